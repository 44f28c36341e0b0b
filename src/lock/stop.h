/*-------------------------------------------------------------------------
 *
 * stop.h
 *	  A statement is canceled when a lock that its transaction relies on is
 *	  lost.
 *
 * None of these functions fails.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_STOP_H
#define ZKLOCK_STOP_H

#include "hold_table.h"

/* The current transaction has taken a hold, and relies on this lock */
extern void zkl_stop_if_lost(Lock *lock);

/*
 * A subtransaction that took holds of some locks has been rolled back, or holds have
 * been released: called for each of these locks, then once.
 */
extern void zkl_stop_less(Lock *lock);
extern void zkl_stop_anew(void);

/*
 * COMMIT or PREPARE TRANSACTION, alone in what the client sent, has begun.  Until
 * then it is not canceled.
 */
extern void zkl_stop_committing(void);

/*
 * From here on, nothing is canceled: the transaction has ended, or is about to
 * commit, so that the commit guard decides.
 */
extern void zkl_stop_no_longer(bool committing);

/*
 * It has ended: the next one may rely on what this session still holds
 */
extern void zkl_stop_next_transaction(void);

#endif							/* ZKLOCK_STOP_H */

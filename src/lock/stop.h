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
 * A subtransaction that took holds of some locks has been rolled back: called
 * for each of these, then once.
 */
extern void zkl_stop_less(Lock *lock);
extern void zkl_stop_anew(void);

/*
 * From here on, nothing is canceled: the commit guard decides, or the
 * transaction has ended.
 */
extern void zkl_stop_no_longer(void);

/*
 * It has ended: the next one may rely on what this session still holds
 */
extern void zkl_stop_next_transaction(void);

#endif							/* ZKLOCK_STOP_H */

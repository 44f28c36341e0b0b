/*-------------------------------------------------------------------------
 *
 * stop.h
 *	  A statement is canceled when a lock that its transaction relies on is
 *	  lost; or the backend is terminated.
 *
 * None of these functions fails, except zkl_stop_init and
 * zkl_terminate_now_or_later.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_STOP_H
#define ZKLOCK_STOP_H

#include "hold_table.h"

/* To be called once, before there is a hold */
extern void zkl_stop_init(void);

/*
 * A lock has more holds, or less: the first is called for each of these locks.  Then,
 * once, zkl_stop_more if holds were taken, and zkl_stop_anew if some were released, or a
 * subtransaction that took some was rolled back.
 */
extern void zkl_tell_reliance(Lock *lock);
extern void zkl_stop_more(void);
extern void zkl_stop_anew(void);

/*
 * From here on, nothing is canceled: the transaction has ended, or is about to
 * commit, so that the commit guard decides.
 */
extern void zkl_stop_no_longer(bool ended);

/*
 * It has ended: the next one may rely on what this session still holds
 */
extern void zkl_stop_next_transaction(void);

/*
 * Before holds are released, zks_stop_end sees to it that the backend is not
 * terminated because of them; this, that it is again because of those that remain, once
 * zkl_tell_reliance has been called for each of these locks.  zkl_stop_anew does the latter,
 * too, and so does the end of the transaction.
 */
extern void zkl_terminate_again(void);

/* zks_stop_end; but if the backend is terminated already, this does not return */
extern void zkl_terminate_now_or_later(void);

#endif							/* ZKLOCK_STOP_H */

/*-------------------------------------------------------------------------
 *
 * commit_guard.h
 *	  The commit guard.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_COMMIT_GUARD_H
#define ZKLOCK_COMMIT_GUARD_H

#include "hold_table.h"

/*
 * Raises 40001 if a lock that the current transaction relies on is lost, or
 * may be.  Returns one of these locks, or NULL if there are none.  asked_at: when
 * ZooKeeper was last asked about one of them, for this commit; or 0.
 */
extern Lock *zkl_guard(bool writes, int64 asked_at);

/* Raises 40001: the transaction cannot commit without this lock */
extern void zkl_raise_lost_at_commit(const Lock *lock, ZkLoss loss);

/*
 * The commit guard ahead of time, for a statement that cannot be undone once
 * it has been carried out.  Raises 40001.
 */
extern void zkl_guard_statement(void);

/*
 * Whether the only statement of this transaction was judged that way.  This and
 * the next may be asked in a signal handler.
 */
extern bool zkl_is_judged(void);

/* Whether the transaction has written, here or elsewhere */
extern bool zkl_has_written(void);

/*
 * What the current transaction has done, until the end of it.  Read in a signal handler,
 * too; a subtransaction undoes none of these.
 */
typedef struct ZkDeeds
{
	bool		judged;			/* by zkl_guard_statement */
	bool		wrote_elsewhere;
	bool		dropped_something;	/* which may be the extension */
} ZkDeeds;

extern ZkDeeds zkl_deeds;

/*
 * From the guard to the commit, waits for PostgreSQL's locks are bounded by
 * the time for which the proof of this lock is valid; beyond it they fail with
 * 40001.  The second function shortens the bound by the time used so far.  The
 * third ends it, and does not fail.
 */
extern void zkl_bound_waits(const Lock *lock);
extern void zkl_bound_next_wait(void);
extern void zkl_unbound_waits(void);

#endif							/* ZKLOCK_COMMIT_GUARD_H */

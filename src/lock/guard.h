/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  The commit guard.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_GUARD_H
#define ZKLOCK_GUARD_H

#include "table.h"

/*
 * Raises 40001 if a lock that the current transaction relies on is lost, or may
 * be.  Returns one of these locks, or NULL without any.
 */
extern Lock *zkl_guard(bool writes);

/*
 * The commit guard ahead of time, for a statement that cannot be undone once
 * it has been carried out.  Raises 40001.
 */
extern void zkl_guard_statement(void);

/* Was the only statement of this transaction judged that way? */
extern bool zkl_is_judged(void);

/* Has the transaction written, here or elsewhere? */
extern bool zkl_has_written(void);

/* What the current transaction has done; a subtransaction does not take it back */
extern void zkl_wrote_elsewhere(void);
extern void zkl_dropped_something(void);	/* which may be the extension */
extern bool zkl_has_dropped_something(void);

/*
 * From the guard to the commit, waits for PostgreSQL's locks are bounded by the
 * time for which the proof of this lock is good; 40001 then.  The second is for
 * whoever took time in between.  The third ends it, and does not fail.
 */
extern void zkl_bound_waits(const Lock *lock);
extern void zkl_bound_next_wait(void);
extern void zkl_unbound_waits(void);

#endif							/* ZKLOCK_GUARD_H */

/*-------------------------------------------------------------------------
 *
 * xact.h
 *	  What transactions and locks do to each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_XACT_H
#define ZKLOCK_XACT_H

/* When the library is loaded */
extern void zkl_watch_commits(void);

/* Before the first lock of the backend; may be called again */
extern void zkl_watch_transactions(void);

/* Before a lock is taken: the guard is to run before what others do at COMMIT */
extern void zkl_be_first_at_commit(void);

/* Does this session hold, or await, a lock?  What follows is only for who does. */
extern bool zkl_has_locks(void);

/*
 * The current transaction has written where that may leave it without an id.  It
 * counts also when a subtransaction takes that back, as an id would stay.
 */
extern void zkl_writes_elsewhere(void);

#endif							/* ZKLOCK_XACT_H */

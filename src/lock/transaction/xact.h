/*-------------------------------------------------------------------------
 *
 * xact.h
 *	  How transactions and locks affect each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_XACT_H
#define ZKLOCK_XACT_H

#include "nodes/nodes.h"

#include "hold_table.h"

/*
 * Called when the library is loaded; see is called first for each statement that is not
 * planned (statement_hooks.c)
 */
extern void zkl_watch_commits(void);
extern void zkl_install_hooks(void (*see) (const Node *statement));

/*
 * Called before a lock is taken: the guard must run before others' work at
 * COMMIT
 */
extern void zkl_watch_transactions(void);

/*
 * Whether this session holds, or waits for, a lock; the rest is only for those
 */
extern bool zkl_has_locks(void);

/*
 * The current transaction has written where that may leave it without an id.
 * That counts even if a subtransaction rolls it back, as an id would stay.
 */
extern void zkl_writes_elsewhere(void);

/* Whether COMMIT has passed the last place where marks of claims are written */
extern bool zkl_too_late_to_claim(void);

/*
 * Nothing may hold this lock any longer, or it was never held: then its node is released, and
 * its entry goes.  Does not fail.
 */
extern void zkl_release_unheld(Lock *lock);

/*
 * Release one count of this hold of the current subtransaction: the call that
 * took it does not want it after all
 */
extern void zkl_take_back(Hold *hold);

#endif							/* ZKLOCK_XACT_H */

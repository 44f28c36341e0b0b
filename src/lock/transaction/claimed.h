/*-------------------------------------------------------------------------
 *
 * claimed.h
 *	  The claims of the current transaction, and their marks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_CLAIMED_H
#define ZKLOCK_CLAIMED_H

#include "hold_table.h"

/*
 * Raises 54000 if the marks of this transaction, and one for this lock, do not
 * fit into one request
 */
extern void zkl_refuse_too_many_claims(ZkSession *session, const Lock *lock);

/*
 * Write the marks that are not written yet, all or none.  Raises 40001 if one of them has changed, if a
 * lock of theirs is lost, or if it is not known whether they were written.
 * Returns when that was asked of ZooKeeper, which is a proof of their locks; 0 if
 * there is none.
 */
extern int64 zkl_write_marks(void);

/*
 * At the end of the transaction, before its holds end: what is to become of
 * the marks.  What no deletion of a lock's node brings is to be settled after that
 * (zkn_settle).  Does not fail.
 */
extern void zkl_decide_marks(bool commit);

#endif							/* ZKLOCK_CLAIMED_H */

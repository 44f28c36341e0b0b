/*-------------------------------------------------------------------------
 *
 * claim.h
 *	  At most one transaction anywhere commits a given period of a path.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_CLAIM_H
#define ZKLOCK_CLAIM_H

#include "hold_table.h"
#include "lock/look/claim_record.h"

/*
 * Take the exclusive lock of this path for the transaction, and the period with
 * it.  False: it was claimed, or the time is up.  path is in UTF-8, as
 * zkb_path_from_text returns it.
 */
extern bool zkl_claim(char *path, TimestampTz period, bool may_wait, ZkWait *wait);

/* What the mark says; false: there is no claim.  palloc'ed. */
extern bool zkl_last_claim(const char *path, ZkClaimRecord *claim);

/* False: there is none */
extern bool zkl_forget_claim(const char *path);

/*
 * Those of the current transaction, and their marks (claimed.c)
 */

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

#endif							/* ZKLOCK_CLAIM_H */

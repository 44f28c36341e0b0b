/*-------------------------------------------------------------------------
 *
 * claim.h
 *	  At most one transaction anywhere commits a given period of a path.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_CLAIM_H
#define ZKLOCK_CLAIM_H

#include "backend/wait.h"
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

#endif							/* ZKLOCK_CLAIM_H */

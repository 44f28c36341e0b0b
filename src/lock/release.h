/*-------------------------------------------------------------------------
 *
 * release.h
 *	  Releasing locks before the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_RELEASE_H
#define ZKLOCK_RELEASE_H

#include "acquire.h"

/*
 * Release the latest hold of this scope, which is one of the session's; false,
 * with a WARNING, if there is none, or if the lock proves to have been lost.
 */
extern bool zkl_unlock(const char *path, ZkpMode mode, ZkScope scope);

/*
 * Release all session-scope holds, or only those that pg_advisory_lock took;
 * returns how many, not counting lost ones.
 */
extern int64 zkl_unlock_all(bool only_advisory);

#endif							/* ZKLOCK_RELEASE_H */

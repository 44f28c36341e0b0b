/*-------------------------------------------------------------------------
 *
 * release.h
 *	  Releasing locks before the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_RELEASE_H
#define ZKLOCK_RELEASE_H

#include "lock/queue/acquire.h"

/*
 * Release the latest hold of this scope, which is one of the session's, of each of
 * these different paths; returns how many.  One without such a hold, or whose lock
 * proves to have been lost, is not counted, with a WARNING.
 */
extern int	zkl_unlock(char **paths, int n, ZkpMode mode, ZkScope scope);

/*
 * Release all holds of these scopes, of ZKL_SESSION_SCOPES; returns how many, not
 * counting lost ones.
 */
extern int64 zkl_unlock_all(int scopes);

#endif							/* ZKLOCK_RELEASE_H */

/*-------------------------------------------------------------------------
 *
 * release.h
 *	  Releasing locks before the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_RELEASE_H
#define ZKLOCK_RELEASE_H

#include "zk/lock_protocol.h"

/*
 * Release the latest session-scope hold; false, with a WARNING, if there is
 * none, or if the lock proves to have been lost.
 */
extern bool zkl_unlock(const char *path, ZkpMode mode);

/* Release all session-scope holds; returns how many, not counting lost ones */
extern int64 zkl_unlock_all(void);

#endif							/* ZKLOCK_RELEASE_H */

/*-------------------------------------------------------------------------
 *
 * release.h
 *	  Giving back before the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_RELEASE_H
#define ZKLOCK_RELEASE_H

#include "zk/protocol.h"

/*
 * Give the latest session-scope hold back; false, with a WARNING, without one
 * and when it proves to have been lost
 */
extern bool zkl_unlock(const char *path, ZkpMode mode);

/* Give all session-scope holds back; returns how many, lost ones not counted */
extern int64 zkl_unlock_all(void);

#endif							/* ZKLOCK_RELEASE_H */

/*-------------------------------------------------------------------------
 *
 * hold.h
 *	  What this backend holds, and what transactions do to it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_HOLD_H
#define ZKLOCK_HOLD_H

#include "datatype/timestamp.h"
#include "backend/wait.h"
#include "zk/protocol.h"

typedef enum ZkScope
{
	ZK_SCOPE_SESSION,
	ZK_SCOPE_TRANSACTION
} ZkScope;

typedef enum ZkHoldState
{
	ZKH_HELD,
	ZKH_SUSPECT,				/* out of ZooKeeper's reach */
	ZKH_LOST
} ZkHoldState;

/* A row of zk_locks */
typedef struct ZkHoldInfo
{
	const char *path;
	const char *root;
	ZkpMode		mode;
	ZkScope		scope;
	int64		count;
	ZkHoldState state;
	int64		token;
	const char *node;
	TimestampTz acquired_at;
} ZkHoldInfo;

/*
 * Take these locks, or one more hold of each: all or none.  paths: UTF-8, as
 * zkpath_from_text gives them, in any order; the array is sorted.  permits: of
 * semaphores.  False: somebody else has one of them.
 */
extern bool zkh_lock(char **paths, int n, ZkpMode mode, int32 permits, ZkScope scope,
					 bool may_wait, ZkWait *wait);

/*
 * Give the latest session-scope hold back; false, with a WARNING, without one
 * and when it proves to have been lost
 */
extern bool zkh_unlock(const char *path, ZkpMode mode);

/* Give all session-scope holds back; returns how many, lost ones not counted */
extern int64 zkh_unlock_all(void);

/* The fencing token; false when not held, or lost */
extern bool zkh_token(const char *path, int64 *token);

/*
 * The token of the exclusive hold, for zk_fence.  Raises 55000 when there is
 * none, 40001 when it is lost.
 */
extern int64 zkh_fencing_token(const char *path);

/*
 * First thing in whatever uses ZooKeeper, or its tokens, but to give back or to
 * show: with nothing held, changed settings of the ZooKeeper session take effect;
 * else raises 55000 if they name another ensemble.
 */
extern void zkh_follow_settings(void);

/*
 * Where in ZooKeeper the lock of that path is, under the root that is set now;
 * UTF-8, palloc'ed.  Nobody but this uses the root.  Raises 42501 as
 * zklock_refuse_dropped_settings does.
 */
extern char *zkh_full_path(const char *path);

/* Calls back for each row of zk_locks */
extern void zkh_each(void (*callback) (const ZkHoldInfo *info, void *arg), void *arg);

#endif							/* ZKLOCK_HOLD_H */

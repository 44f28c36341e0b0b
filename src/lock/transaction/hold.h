/*-------------------------------------------------------------------------
 *
 * hold.h
 *	  Taking holds, releasing them (release.c), and showing them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_HOLD_H
#define ZKLOCK_HOLD_H

#include "hold_table.h"

typedef enum ZkHoldState
{
	ZKL_STATE_HELD,
	ZKL_STATE_SUSPECT,			/* out of ZooKeeper's reach */
	ZKL_STATE_LOST
} ZkHoldState;

/* A row of zk_locks; grant is that of the lock on whose node this one relies */
typedef void (*ZkShowHold) (const Lock *lock, ZkScope scope, int64 count, ZkHoldState state,
							const ZkGrant *grant, void *arg);

/*
 * Take these locks, or one more hold of each: all or none. paths are in UTF-8,
 * as zkb_path_from_text returns them, in byte order, each once.  permits is for
 * semaphores.  False if somebody else has one of them.
 */
extern bool zkl_lock(char **paths, int n, ZkpMode mode, int32 permits, ZkScope scope,
					 bool may_wait, ZkWait *wait);

/*
 * zkl_lock has just taken this one for PostgreSQL's own functions: their lock, with
 * this tag, is to be held beside it.  Raises 53200 if PostgreSQL has no room for
 * that, and releases what zkl_lock has taken.
 */
extern void zkl_add_shadow(const char *path, const LOCKTAG *tag, ZkpMode mode, ZkScope scope);

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

/*
 * A single node is one exclusive lock, and nothing else: raises 0A000 if the next one would
 * be, or this one is, which may have been taken with another style in effect; or NULL
 */
extern void zkl_refuse_single(const Lock *base, const char *what);

/* Raises 55000 if this session holds the lock, and has lost it */
extern void zkl_refuse_lost(Lock *lock);

/* The fencing token; false if the lock is not held, or is lost */
extern bool zkl_token(const char *path, int64 *token);

/*
 * The token of the exclusive hold, for zk_fence.  Raises 55000 if there is
 * none, 40001 if it is lost.
 */
extern int64 zkl_fencing_token(const char *path);

/*
 * Whether anything at this path is held, confirmed by the leader and a quorum in the
 * last third of the session timeout: asks them if need be.  Raises 58030 and 58000
 * if they do not tell within operation_timeout.
 */
extern bool zkl_is_held(const char *path);

/* Call back for each row of zk_locks, with what is known without asking */
extern void zkl_each_hold(ZkShowHold show, void *arg);

#endif							/* ZKLOCK_HOLD_H */

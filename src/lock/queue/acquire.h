/*-------------------------------------------------------------------------
 *
 * acquire.h
 *	  Taking locks: the conversation with ZooKeeper.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_ACQUIRE_H
#define ZKLOCK_ACQUIRE_H

#include "backend/backend_session.h"
#include "zk/lock_protocol.h"

typedef enum ZkScope
{
	ZK_SCOPE_SESSION,
	ZK_SCOPE_TRANSACTION,

	/* The same, of PostgreSQL's own functions; no abort ends the session's */
	ZK_SCOPE_ADVISORY,
	ZK_SCOPE_ADVISORY_TRANSACTION
} ZkScope;

/* How many there are that users see, and which of them this one is to them */
#define ZK_SHOWN_SCOPES		(ZK_SCOPE_TRANSACTION + 1)

static inline bool
zkl_is_advisory(ZkScope scope)
{
	return scope >= ZK_SCOPE_ADVISORY;
}

static inline ZkScope
zkl_shown_scope(ZkScope scope)
{
	return zkl_is_advisory(scope) ? (ZkScope) (scope - ZK_SCOPE_ADVISORY) : scope;
}

typedef struct ZkGrant
{
	ZkNode	   *node;			/* belongs to the session of zkb_generation() */
	int64		token;			/* the zxid that created it */
	char		name[ZKP_NAME_LEN];
} ZkGrant;

/* One lock, or one place of a semaphore, that a call wants */
typedef struct ZkTarget
{
	char	   *dir;			/* its directory: root and path, in UTF-8 */
	const char *path;			/* without the root, for messages */
	ZkNode	   *own;			/* this session's shared node there, or NULL */
	ZkScope		scope;			/* for those who see us wait */
	ZkGrant		grant;			/* the result */
} ZkTarget;

/*
 * Take all of these, or none: then somebody else has one of them, and the time is up, or
 * a node of our own is lost.  The paths are in byte order, without
 * duplicates.  With may_wait, wait in the queues until the call's deadline;
 * without, look once.  holds: this session has other locks, so that others may
 * wait for it.  Raises an error if ZooKeeper could not be asked, 40P01 if the
 * wait is part of a cycle, or an upgrade of our own shared lock would be, 54000
 * if there are too many.  In any case, no nodes are left except the granted ones.
 */
extern bool zkl_acquire(ZkTarget *targets, int n, ZkpMode mode, int32 permits,
						bool may_wait, bool holds, ZkWait *wait);

#endif							/* ZKLOCK_ACQUIRE_H */

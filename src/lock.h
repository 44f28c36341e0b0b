/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  Taking one lock: the conversation with ZooKeeper.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_LOCK_H
#define ZKLOCK_LOCK_H

#include "client.h"
#include "protocol.h"

typedef struct ZkGrant
{
	ZkNode	   *node;			/* belongs to the session of zkc_generation() */
	int64		token;			/* the zxid that created it */
	char		name[ZKP_NAME_LEN];
} ZkGrant;

/*
 * Take the lock at this path (in UTF-8, without the root).  With may_wait,
 * stand in the queue until the call's deadline; without, look once.  False:
 * somebody else has it.  Raises when ZooKeeper could not be asked; whatever
 * happens, no node is left but the granted one.
 */
extern bool zkl_acquire(const char *path, ZkpMode mode, bool may_wait,
						ZkWait *wait, ZkGrant *grant);

#endif							/* ZKLOCK_LOCK_H */

/*-------------------------------------------------------------------------
 *
 * inspect.h
 *	  The contenders for a lock: showing them, and removing one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_INSPECT_H
#define ZKLOCK_INSPECT_H

#include "zk/lock_protocol.h"

/* Somebody who holds a lock, or waits for it */
typedef struct ZkQueueRow
{
	int			position;		/* among those of its kind, from 1 */
	ZkpMode		mode;
	bool		granted;
	const char *node;			/* its name, in UTF-8; NULL: no lock, but in
								 * the way of a single node */
	bool		known;			/* whether the next three fields are known */
	int64_t		token;
	int64_t		session;		/* its owner in ZooKeeper; 0 for none */
	int64_t		since_ms;		/* ZooKeeper's clock, since 1970 */
	bool		ours;			/* created by a zklock, anywhere */
	const char *data;			/* of ours the identity, for
								 * zkb_read_identity; else what its client
								 * wrote; not terminated */
	int			data_len;
} ZkQueueRow;

/*
 * Call back for each contender, in order: those for the lock, then those for
 * the semaphore.  This takes two round trips.  full is the whole path in
 * ZooKeeper, under zklock.root.  Raises what any call that asks ZooKeeper may
 * raise.
 */
extern void zkl_each_contender(const char *full, void (*callback) (const ZkQueueRow *contender, void *arg),
							   void *arg);

/*
 * Delete the node of this name, and tell the user and the server's log whose
 * it was.  False if it was already gone.  Raises 22023 unless it is a
 * contender's name.
 */
extern bool zkl_break(const char *full, const char *node);

#endif							/* ZKLOCK_INSPECT_H */

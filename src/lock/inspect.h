/*-------------------------------------------------------------------------
 *
 * inspect.h
 *	  Everyone at a lock: seeing them, and putting one out.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_INSPECT_H
#define ZKLOCK_INSPECT_H

#include "zk/protocol.h"

/* Somebody who holds a lock, or waits for it */
typedef struct ZkQueueRow
{
	int			position;		/* among those of its kind, from 1 */
	ZkpMode		mode;
	bool		granted;
	const char *node;			/* its name, in UTF-8 */
	bool		known;			/* false: what follows is not */
	int64_t		token;
	int64_t		session;		/* of ZooKeeper; 0: none */
	int64_t		since_ms;		/* ZooKeeper's clock, since 1970 */
	bool		ours;			/* of a zklock, anywhere */
	const char *data;			/* of ours whose it is, for zkb_read_identity;
								 * else what its client wrote.  No terminator */
	int			data_len;
} ZkQueueRow;

/*
 * Calls back for everyone, in their order: those at the lock, then those at
 * the semaphore.  Two round trips.  path: UTF-8, as zkb_path_from_text gives it.
 * Raises what any call does for which ZooKeeper has to be asked.
 */
extern void zkl_each_contender(const char *path, void (*callback) (const ZkQueueRow *contender, void *arg),
							   void *arg);

/*
 * Delete the node of this name, and tell the user and the server's log whose
 * it was.  False: it was gone.  Raises 22023 unless it is a contender's name.
 */
extern bool zkl_break(const char *path, const char *node);

#endif							/* ZKLOCK_INSPECT_H */

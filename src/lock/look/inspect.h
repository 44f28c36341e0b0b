/*-------------------------------------------------------------------------
 *
 * inspect.h
 *	  The contenders for a lock: showing them, and removing one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_INSPECT_H
#define ZKLOCK_INSPECT_H

#include "seen_queue.h"

/*
 * Call back for the queue of the lock, then that of the semaphore, with all that
 * stand there.  This takes two round trips.  full is the whole path in
 * ZooKeeper, under zklock.root.  Raises what any call that asks ZooKeeper may
 * raise.
 */
extern void zkl_look_at_queues(const char *full, ZkShowQueue callback, void *arg);

/*
 * Delete the node of this name, and tell the user and the server's log whose
 * it was.  False if it was already gone.  Raises 22023 unless it is a
 * contender's name.
 */
extern bool zkl_break(const char *full, const char *node);

#endif							/* ZKLOCK_INSPECT_H */

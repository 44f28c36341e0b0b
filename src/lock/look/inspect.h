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

typedef void (*ZkShowContender) (const ZkSeenContender *contender, int position, void *arg);

/*
 * Call back for each contender, in order: those for the lock, then those for
 * the semaphore, with its position among these, from 1.  This takes two round trips.  full is the whole path in
 * ZooKeeper, under zklock.root.  Raises what any call that asks ZooKeeper may
 * raise.
 */
extern void zkl_each_contender(const char *full, ZkShowContender callback, void *arg);

/*
 * Delete the node of this name, and tell the user and the server's log whose
 * it was.  False if it was already gone.  Raises 22023 unless it is a
 * contender's name.
 */
extern bool zkl_break(const char *full, const char *node);

#endif							/* ZKLOCK_INSPECT_H */

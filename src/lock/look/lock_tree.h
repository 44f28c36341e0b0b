/*-------------------------------------------------------------------------
 *
 * lock_tree.h
 *	  What is locked at a path, or below it, or claimed, by whomever.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_LOCK_TREE_H
#define ZKLOCK_LOCK_TREE_H

#include "seen_queue.h"

/*
 * Call back for each queue at this path or below, in no order, with who is first
 * there, if that can be told.  full is a whole
 * path in ZooKeeper, under zklock.root, or that with a slash behind it.  It takes a
 * list for each directory, and one or two reads for each lock, many at a time.
 */
extern void zkl_each_path(const char *full, ZkShowQueue callback, void *arg);

/*
 * Call back for the queue of the lock, then that of the semaphore, with all that
 * stand there.  This takes two round trips.  full is the whole path in
 * ZooKeeper, under zklock.root.  Raises what any call that asks ZooKeeper may
 * raise.
 */
extern void zkl_look_at_queues(const char *full, ZkShowQueue callback, void *arg);

/*
 * The same as zkl_each_path for the mark of each path that was ever claimed, as a queue of one.  It
 * takes a list and a read for each.
 */
extern void zkl_each_mark(const char *full, ZkShowQueue callback, void *arg);

#endif							/* ZKLOCK_LOCK_TREE_H */

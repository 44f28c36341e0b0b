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

/* What is looked at */
typedef enum ZkWalk
{
	ZKL_WALK_PATHS,				/* each queue at the path or below, with who
								 * is first there, if that can be told: a list
								 * for each directory, and one or two reads
								 * for each lock, many at a time */
	ZKL_WALK_QUEUES,			/* the queue of the lock, then that of the
								 * semaphore, with all that stand there: two
								 * round trips, nothing below */
	ZKL_WALK_MARKS				/* the mark of each path, at this one or
								 * below, that was ever claimed, as a queue of
								 * one: a list and a read for each */
} ZkWalk;

/*
 * Call back for each of these, in no order.  full is a whole path in ZooKeeper, under
 * zklock.root, or that with a slash behind it.  Raises what any call that asks ZooKeeper
 * may raise.
 */
extern void zkl_walk(const char *full, ZkWalk what, ZkShowQueue callback, void *arg);

/*
 * Delete the node of this name (inspect.c), and tell the user and the server's log whose
 * it was.  False if it was already gone.  Raises 22023 unless it is a
 * contender's name.
 */
extern bool zkl_break(const char *full, const char *node);

#endif							/* ZKLOCK_LOCK_TREE_H */

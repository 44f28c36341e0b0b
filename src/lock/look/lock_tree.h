/*-------------------------------------------------------------------------
 *
 * lock_tree.h
 *	  What is locked below a path, or claimed, by whomever.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_LOCK_TREE_H
#define ZKLOCK_LOCK_TREE_H

#include "claim_record.h"
#include "seen_queue.h"

/*
 * Call back for each queue at this path or below, in no order, with who is first
 * there, if that can be told.  full is a whole
 * path in ZooKeeper, under zklock.root, or that with a slash behind it.  It takes a
 * list for each directory, and one or two reads for each lock, many at a time.
 */
extern void zkl_each_path(const char *full, ZkShowQueue callback, void *arg);

/*
 * The same for each path with a claim, its latest, which is NULL if it cannot be
 * read.  It takes a list and a read for each.
 */
extern void zkl_each_claim(const char *full,
						   void (*callback) (const char *path, const ZkClaimRecord *claim, void *arg),
						   void *arg);

#endif							/* ZKLOCK_LOCK_TREE_H */

/*-------------------------------------------------------------------------
 *
 * fence.h
 *	  The table of fencing tokens, zk_fences.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_FENCE_H
#define ZKLOCK_FENCE_H

#include "commands/trigger.h"

/*
 * Record that the holder with this token of the lock at this path (in UTF-8;
 * full_path includes the root) is about to write.  Raises 40001 if a greater
 * one has already been recorded.  Either way the path's row is locked to the
 * end of the transaction.  The argument function is zk_fence, in whose schema
 * the table is; the current user is its owner.
 */
extern void zkl_record_token(Oid function, const char *path, const char *full_path, int64 token);

/*
 * What the triggers of zk_fences do where logical replication writes to it: the
 * greater token of each path stays.  Returns the row to be written, or NULL.  The
 * argument function is theirs, which has the same schema and owner as zk_fence.
 */
extern HeapTuple zkl_merge_replicated(Oid function, TriggerData *trigger);

#endif							/* ZKLOCK_FENCE_H */

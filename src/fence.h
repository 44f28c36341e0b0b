/*-------------------------------------------------------------------------
 *
 * fence.h
 *	  The table of fencing tokens, zk_fences.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_FENCE_H
#define ZKLOCK_FENCE_H

/*
 * Record that the holder with this token of the lock at this path (in UTF-8,
 * root included) is about to write.  Raises 40001 when a greater one was
 * here before.  Either way the path's row is locked to the end of the
 * transaction.  schema: of the table.
 */
extern void zkf_record(Oid schema, const char *path, int64 token);

#endif							/* ZKLOCK_FENCE_H */

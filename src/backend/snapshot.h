/*-------------------------------------------------------------------------
 *
 * snapshot.h
 *	  A procedure that waits keeps no snapshot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SNAPSHOT_H
#define ZKLOCK_SNAPSHOT_H

#include "fmgr.h"

/*
 * Give up the snapshot of the statement that calls the procedure, or do nothing
 * where that is not safe.  Have no pointer into the arguments any longer.  If this
 * returns true, call EnsurePortalSnapshotExists() in the end, but not after an error.
 */
extern bool zkb_leave_snapshot(FunctionCallInfo fcinfo);

#endif							/* ZKLOCK_SNAPSHOT_H */

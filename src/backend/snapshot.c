/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *	  A procedure that waits keeps no snapshot, where it is safe to give it up.
 *
 * VACUUM cannot remove what a snapshot sees, and CREATE INDEX CONCURRENTLY waits
 * for it.  PostgreSQL expects of a procedure that it may end the transaction, and
 * with it the snapshot that the portal has made active for the statement; what runs
 * next in the portal then gets another one.
 *
 * That is so for the portal's snapshot alone.  Any other belongs to somebody who has
 * made it active and will need it: a query, a function, PL/pgSQL for a block with
 * EXCEPTION.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "nodes/parsenodes.h"
#include "tcop/pquery.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "snapshot.h"

static bool
is_procedure(FunctionCallInfo fcinfo)
{
	return fcinfo->context != NULL && IsA(fcinfo->context, CallContext);
}

/*
 * There is no portal in a worker of logical replication, and in a trigger that was
 * deferred until COMMIT.
 */
static bool
is_portals_own(void)
{
	return ActivePortal != NULL && ActivePortal->portalSnapshot != NULL &&
		ActiveSnapshotSet() && GetActiveSnapshot() == ActivePortal->portalSnapshot;
}

bool
zkb_leave_snapshot(FunctionCallInfo fcinfo)
{
	if (!is_procedure(fcinfo) || IsolationUsesXactSnapshot() || !is_portals_own())
		return false;
	PopActiveSnapshot();
	ActivePortal->portalSnapshot = NULL;	/* it is gone */
	return true;
}

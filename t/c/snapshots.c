/*-------------------------------------------------------------------------
 *
 * snapshots.c
 *	  Another extension that says in the server log, where a wait for a lock is
 *	  logged, which snapshots the backend has meanwhile, and reads a catalog then; that
 *	  says which ones a CALL ends with; and that forgets the text of the running
 *	  statement, for t/108_procedures.pl.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "fmgr.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/elog.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(snapshots);
PG_FUNCTION_INFO_V1(forget_text);

static ProcessUtility_hook_type next_hook;

static char *
which_snapshots(void)
{
	return psprintf("active snapshot: %s, the portal's: %s", ActiveSnapshotSet() ? "yes" : "no",
					ActivePortal != NULL && ActivePortal->portalSnapshot != NULL ? "yes" : "no");
}

static void
tell(ErrorData *data)
{
	static Oid	nobody = FirstNormalObjectId - 1;

	if (strstr(data->message, "still waiting") == NULL)
		return;
	data->hint = which_snapshots();

	/* not in the cache, so that the catalog is read, for which a snapshot is taken */
	(void) SearchSysCacheExists1(TYPEOID, ObjectIdGetDatum(nobody--));
}

static void
run_utility(PlannedStmt *pstmt, const char *text, bool read_only, ProcessUtilityContext context,
			ParamListInfo params, QueryEnvironment *env, DestReceiver *dest, QueryCompletion *completion)
{
	(next_hook != NULL ? next_hook : standard_ProcessUtility) (pstmt, text, read_only, context, params, env, dest, completion);
	if (IsA(pstmt->utilityStmt, CallStmt))
		ereport(NOTICE, errmsg_internal("%s", which_snapshots()));
}

/* snapshots(): from now on, say so */
Datum
snapshots(PG_FUNCTION_ARGS)
{
	emit_log_hook = tell;
	next_hook = ProcessUtility_hook;
	ProcessUtility_hook = run_utility;
	PG_RETURN_VOID();
}

/* forget_text(): what the handlers of signals see is as for a call by the fast path */
Datum
forget_text(PG_FUNCTION_ARGS)
{
	debug_query_string = NULL;
	PG_RETURN_VOID();
}

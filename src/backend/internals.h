/*-------------------------------------------------------------------------
 *
 * internals.h
 *	  What leans on PostgreSQL beyond what it promises to extensions.
 *
 * Each has its reason.  All of this was read in PostgreSQL 15 to 19, and has to be
 * read again in another one.  What is more than a few lines is where it is used:
 * the error of a cancel, and that of a wait that the guard has bounded, get another
 * SQLSTATE while they are reported (stop.c, explain_cancel; commit_guard.c,
 * explain_bound); a signal handler reads the portal that runs (stop.c,
 * must_go_on); the walk through the lock table has all its partitions
 * (local_waits.c); calls of functions are replaced in parsed queries (redirect.c,
 * see_calls); an empty WAL record gives a transaction an id that lasts (claimed.c,
 * lasting_xid); a Port is read, and its connection closed early (backend_session.c,
 * hang_up); and a callback asks whether the postmaster lives (xact.c,
 * end_transaction).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_INTERNALS_H
#define ZKLOCK_INTERNALS_H

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#if PG_VERSION_NUM >= 200000
#error "compare internals.h with this version of PostgreSQL first"
#endif

/*
 * Have the running statement canceled, as if its client had asked for that, or
 * take it back, all but what the client has asked for.  For a signal handler.
 * True if that changed anything.
 *
 * There is no hook for a reason of one's own.  But PostgreSQL only tests the
 * flag, and sets it to true, which is 1: so our value tells our cancel from all
 * others, even if one arrives after it.
 */
#define OUR_CANCEL	2

static inline bool
cancel_statement(bool cancel)
{
	sig_atomic_t before = cancel ? false : OUR_CANCEL;

	if (!__atomic_compare_exchange_n(&QueryCancelPending, &before, cancel ? OUR_CANCEL : false,
									 false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return false;
	if (cancel)
	{
		InterruptPending = true;
		SetLatch(MyLatch);
	}
	return true;
}

/*
 * For a while, have waits for PostgreSQL's locks end after this many ms, or undo that.
 * The lock manager reads the variable at the beginning of each wait; a SET in
 * between would be lost.  Returns what it was.
 */
static inline int
replace_lock_timeout(int ms)
{
	int			before = LockTimeout;

	LockTimeout = ms;
	return before;
}

/*
 * Remove an error context that is not the last one, or has been removed with others
 * by an error: a transaction's callbacks return in between.
 */
static inline void
remove_error_context(ErrorContextCallback *ours)
{
	ErrorContextCallback **context = &error_context_stack;

	while (*context != NULL && *context != ours)
		context = &(*context)->previous;
	if (*context != NULL)
		*context = ours->previous;
}

/*
 * There is no portal in a worker of logical replication, and in a trigger that was
 * deferred until COMMIT.
 */
static inline bool
snapshot_is_portals_own(void)
{
	return ActivePortal != NULL && ActivePortal->portalSnapshot != NULL &&
		ActiveSnapshotSet() && GetActiveSnapshot() == ActivePortal->portalSnapshot;
}

/*
 * Give up the snapshot of the statement that calls the procedure, or do nothing
 * where that is not safe.  Have no pointer into the arguments any longer.  If this
 * returns true, call EnsurePortalSnapshotExists() in the end, but not after an error.
 *
 * VACUUM cannot remove what a snapshot sees, and CREATE INDEX CONCURRENTLY waits
 * for it.  PostgreSQL expects of a procedure that it may end the transaction, and
 * with it the snapshot that the portal has made active for the statement; what runs
 * next in the portal then gets another one.
 *
 * That is so for the portal's snapshot alone.  Any other belongs to somebody who has
 * made it active and will need it: a query, a function, PL/pgSQL for a block with
 * EXCEPTION.
 */
static inline bool
leave_snapshot(FunctionCallInfo fcinfo)
{
	bool		is_procedure = fcinfo->context != NULL && IsA(fcinfo->context, CallContext);

	if (!is_procedure || IsolationUsesXactSnapshot() || !snapshot_is_portals_own())
		return false;
	PopActiveSnapshot();
	ActivePortal->portalSnapshot = NULL;	/* it is gone */
	return true;
}

/*
 * The entry of a process in what pg_stat_activity shows, or NULL; it may be of
 * another process by now.  What pgstat offers is a copy of all entries, which
 * is slow, and renewing it would change what the user's transaction sees.  All
 * entries are one array, and our own is known.
 */
static inline const volatile PgBackendStatus *
status_entry(const PGPROC *proc)
{
	int			number = proc - ProcGlobal->allProcs;
	int			own = MyProc - ProcGlobal->allProcs;

#if PG_VERSION_NUM < 170000
	/* of the auxiliary processes only this one waits for locks */
	number = number < MaxBackends ? proc->backendId - 1 : MaxBackends + StartupProcess;
	own = MyProc->backendId - 1;
	if (own < 0)
		return NULL;
#endif
	return number >= 0 ? MyBEEntry + (number - own) : NULL;
}

/*
 * All settings of the server, to see which of ours had a value before they were
 * defined, and whether that is still in effect.  A struct config_generic has
 * name, context, source and reset_source.
 */
static inline struct config_generic **
guc_variables(int *n)
{
#if PG_VERSION_NUM >= 160000
	return get_guc_variables(n);
#else
	*n = GetNumConfigOptions();
	return get_guc_variables();
#endif
}

/*
 * Whether the user's own statement is running, and can neither commit nor be the
 * one that commits.  What a callback runs during COMMIT has no portal, that of the
 * CALL, DO or VACUUM which commits, or a cursor's, which has a name.
 */
static inline bool
is_in_plain_statement(void)
{
	if (ActivePortal == NULL || ActivePortal->name[0] != '\0')
		return false;
	switch (ActivePortal->commandTag)
	{
		case CMDTAG_SELECT:
		case CMDTAG_INSERT:
		case CMDTAG_UPDATE:
		case CMDTAG_DELETE:
		case CMDTAG_COPY:
		case CMDTAG_TRUNCATE_TABLE:
		case CMDTAG_NOTIFY:
			return true;
		default:
			return false;
	}
}

/* From 16 on, each call of the above makes a copy of the list */
static inline const struct config_generic *
guc_variable(const char *name)
{
#if PG_VERSION_NUM >= 160000
	return find_option(name, false, true, 0);
#else
	int			n;
	struct config_generic **settings = guc_variables(&n);

	for (int i = 0; i < n; i++)
	{
		if (pg_strcasecmp(settings[i]->name, name) == 0)
			return settings[i];
	}
	return NULL;
#endif
}

#endif							/* ZKLOCK_INTERNALS_H */

/*-------------------------------------------------------------------------
 *
 * internals.h
 *	  What leans on PostgreSQL beyond what it promises to extensions.
 *
 * Each has its reason.  All of this was read in PostgreSQL 15 to 19, and has to be
 * read again in another one.  What is more than a few lines is where it is used:
 * the error of a cancel, and that of a wait that the guard has bounded, get another
 * SQLSTATE while they are reported (stop.c, explain_cancel; commit_guard.c,
 * explain_bound); a signal handler reads the text of the statement (stop.c,
 * must_go_on); a portal loses its snapshot (snapshot.c); and the end of a process
 * goes on out of another exit (backend_session.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_INTERNALS_H
#define ZKLOCK_INTERNALS_H

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

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

#endif							/* ZKLOCK_INTERNALS_H */

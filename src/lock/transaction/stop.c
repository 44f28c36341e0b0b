/*-------------------------------------------------------------------------
 *
 * stop.c
 *	  A statement is canceled when a lock that its transaction relies on is
 *	  lost; or the backend is terminated.
 *
 * COMMIT would refuse it (commit_guard.c), but that may be hours away.  So the
 * session's thread sends a signal (zk/stop_signal.c), and its handler, here,
 * does what a client's request to cancel does.  The same signal as that of a
 * client (SIGINT) would not do: its flag stays set until something looks at it,
 * which may be the next transaction, or a COMMIT that waits for its synchronous
 * standby, and takes it for a request to wait no longer.  Ours is taken back when
 * the guard begins and when the transaction ends, before either.
 *
 * The error is the client's, 57014, while it is inside the server, so that no
 * EXCEPTION block with WHEN OTHERS catches it.  On its way out it becomes 40001
 * and tells the path; but PostgreSQL asks us only where log_min_messages lets errors
 * into the server log.
 *
 * With zklock.cancel_on_loss = terminate the backend itself ends when a session-scope
 * hold is lost, or in doubt, whatever it does: between transactions, too, but not
 * from the guard to the end of the transaction, where a wait for a synchronous standby
 * would end without that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/snapmgr.h"

#include "backend/backend_session.h"
#include "backend/compat.h"
#include "backend/encoding.h"
#include "backend/errors.h"
#include "backend/internals.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "commit_guard.h"
#include "stop.h"

/*
 * The guard has begun: nothing is stopped until the transaction has ended, not even if
 * something takes a lock meanwhile
 */
static bool guarded = false;

/*
 * A statement was canceled, and its error has not been reported; and when there last
 * was a reason for that
 */
static volatile sig_atomic_t canceled = false;
static volatile int64 canceled_at;

/* This process was asked to end */
static volatile sig_atomic_t terminating = false;

/*
 * Treat a cancel error as ours for this long after our last signal; later ones
 * are the client's.  While there is a reason, it is given
 * anew each second.  But it may be gone before the error gets out: PL/pgSQL rolls back
 * what an EXCEPTION block has done, and then looks for a handler, and COMMIT in a
 * procedure rolls back before it passes an error on.  A handler that wants it may
 * go on for hours, in which a cancel is the client's.
 */
#define ON_ITS_WAY_MS		2000

/*-------------------------------------------------------------------------
 * The signal
 *-------------------------------------------------------------------------
 */

static int	stop_signal = 0;

/*
 * COMMIT and ROLLBACK that fail before they begin leave a transaction that waits
 * for another ROLLBACK.  Some clients, such as psycopg2, take them for the end of
 * it in any case: each later statement would fail.  And the guard is near.
 *
 * Nor is there anything to cancel between two statements, of which the next one may
 * be these.
 *
 * Neither has a snapshot.  What can take long has one, or waits for a lock, as the
 * description of a statement does for its tables; or it is in its portal, as a
 * procedure that waits (backend/internals.h).  (What another extension does at the end of
 * a portal has none of these.)  And a background worker sends no COMMIT.
 */
static bool
must_go_on(void)
{
	if (MyBackendType != B_BACKEND || ActiveSnapshotSet() || MyProc->waitLock != NULL)
		return false;
	if (ActivePortal == NULL)
		return true;
	switch (ActivePortal->commandTag)
	{
		case CMDTAG_COMMIT:
		case CMDTAG_COMMIT_PREPARED:
		case CMDTAG_PREPARE_TRANSACTION:
		case CMDTAG_ROLLBACK:
		case CMDTAG_ROLLBACK_PREPARED:
			return true;
		default:
			return false;
	}
}

/*
 * By PostgreSQL's own signal for that, since each kind of process has a handler of its
 * own for it, which knows what has to end: that of a backend sets flags and the latch,
 * and so ends a wait for its client, too.  It runs when ours has returned.  The
 * default one of a background worker does not return: out of a COMMIT it would make the
 * server panic, so there we are asked again.
 */
static void
terminate(void)
{
	if (terminating ||
		(MyBgworkerEntry != NULL && (InterruptHoldoffCount > 0 || CritSectionCount > 0)))
		return;
	terminating = true;
	(void) raise(SIGTERM);
}

static void
cancel(ZkReliance reliance)
{
	if ((reliance == ZKN_RELIED || zkl_has_written()) && !must_go_on())
	{
		canceled_at = zks_now();
		if (cancel_statement(true))
			canceled = true;
	}
}

/*
 * Runs in the main thread, at any moment; so it only looks at what the owner of
 * the signal asks for, and sets flags.  During an exit there is nothing left to
 * cancel, and soon no MyProc.
 */
static void
stop_handler(int signo)
{
	int			save_errno = errno;
	ZkReliance	reliance = zks_stop_asked(ZKS_STOP_STATEMENT);

	if (!proc_exit_inprogress && MyProc != NULL && !zkl_is_judged())
	{
		if (zks_stop_asked(ZKS_STOP_PROCESS) != ZKN_NOT_RELIED)
			terminate();
		else if (reliance != ZKN_NOT_RELIED)
			cancel(reliance);
	}
	errno = save_errno;
}

static bool
handles(int signo, void (*handler) (int))
{
	struct sigaction action;

	return sigaction(signo, NULL, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
		action.sa_handler == handler;
}

/*
 * A signal that nobody else uses in this process: one that nobody handles.
 * PostgreSQL uses none of the real-time signals.  Libraries that do take a fixed
 * one, from either end: the garbage collectors of other languages the first few,
 * valgrind and Java the last.  So begin in the middle; and should somebody take
 * ours nevertheless, take another one.
 *
 * All signals are blocked while the handler runs.  As PostgreSQL's own, it
 * restarts system calls.
 */
static bool
have_signal(void)
{
	struct sigaction action = {.sa_handler = stop_handler,.sa_flags = SA_RESTART};
	int			middle = (SIGRTMIN + SIGRTMAX) / 2;

	if (stop_signal != 0 && handles(stop_signal, stop_handler))
		return true;
	sigfillset(&action.sa_mask);
	for (int signo = middle; signo < SIGRTMAX; signo++)
	{
		if (!handles(signo, SIG_DFL) || sigaction(signo, &action, NULL) != 0)
			continue;
		stop_signal = signo;
		return true;
	}
	return false;
}

/*-------------------------------------------------------------------------
 * The error
 *-------------------------------------------------------------------------
 */

static emit_log_hook_type next_emit_log_hook = NULL;

/* The path for a message */
static char *
path_in_error(const char *dir)
{
	size_t		root_len = zkb_root_len(zklock_root);

	if (strncmp(dir, zklock_root, root_len) == 0 && dir[root_len] == '/')
		dir += root_len;
	return zkb_from_utf8_unconverted(dir);
}

/*
 * PL/Perl and PL/Python raise an error of their own, with the text of ours in it.
 * Other cancels, such as statement_timeout's, have another text.
 */
static bool
is_ours(const ErrorData * edata)
{
	static const char text[] = "canceling statement due to user request";

	return canceled && zks_now() - canceled_at < ON_ITS_WAY_MS * ZKS_MS &&
		edata->elevel == ERROR &&
		((edata->message_id != NULL && strcmp(edata->message_id, text) == 0) ||
		 (edata->message != NULL && strstr(edata->message, _(text)) != NULL));
}

/* What this allocates goes with the error */
static void
explain_cancel(ErrorData * edata)
{
	if (is_ours(edata))
	{
		ZkStopReason reason;

		canceled = false;
		zks_stop_reason(ZKS_STOP_STATEMENT, &reason);
		edata->sqlerrcode = ERRCODE_T_R_SERIALIZATION_FAILURE;
		edata->message = psprintf(reason.doubt ?
								  _("canceling statement due to possible loss of lock on \"%s\"") :
								  _("canceling statement due to loss of lock on \"%s\""),
								  path_in_error(reason.dir));
		edata->detail = pstrdup(zkb_loss_detail(reason.loss));
		edata->hint = pstrdup(_("If the lock has session scope, release it. Then lock again and retry the transaction."));
	}
	if (next_emit_log_hook)
		next_emit_log_hook(edata);
}

/*
 * Why the backend ends, which the client is not told: for that it is as if an
 * administrator had terminated it.  An error here would go on with the exit.
 */
static void
tell_why(int code, Datum arg)
{
	ZkStopReason why;

	if (!terminating)
		return;
	zks_stop_reason(ZKS_STOP_PROCESS, &why);
	ereport(LOG_SERVER_ONLY,
			(why.doubt ?
			 errmsg("terminating connection due to possible loss of lock on \"%s\"", path_in_error(why.dir)) :
			 errmsg("terminating connection due to loss of lock on \"%s\"", path_in_error(why.dir)),
			 errdetail_internal("%s", zkb_loss_detail(why.loss))));
}

void
zkl_stop_init(void)
{
	before_shmem_exit(tell_why, (Datum) 0);
	next_emit_log_hook = emit_log_hook;
	emit_log_hook = explain_cancel;
}

/*-------------------------------------------------------------------------
 * What the transaction relies on
 *-------------------------------------------------------------------------
 */

/*
 * What was asked for so far is void.  A cancel that has not been acted upon is
 * taken back; one that has is an error already.
 */
static void
take_back(void)
{
	if (cancel_statement(false))
		canceled = false;
}

/* Whether the current transaction has taken a hold of the lock */
static bool
is_taken_here(Lock *lock)
{
	dlist_iter	iter;

	dlist_foreach(iter, &lock->holds)
	{
		const Hold *hold = dlist_container(Hold, in_lock, iter.cur);

		if (hold->subid != InvalidSubTransactionId && hold->used && !hold->proven)
			return true;
	}
	return false;
}

/* Whether the session has a hold of it that no end of a transaction releases */
static bool
is_of_session(Lock *lock)
{
	return zkl_latest_hold(lock, ZKL_SESSION_SCOPES) != NULL;
}

/* Whether that is so for any lock that relies on the node of this one */
static bool
is_any(bool (*is_so) (Lock *lock), Lock *base)
{
	Lock	   *twin = zkl_twin_of(base);

	return is_so(base) || (twin != NULL && twin->grant.node == NULL && is_so(twin));
}

void
zkl_tell_reliance(Lock *lock)
{
	Lock	   *twin = zkl_twin_of(lock);
	Lock	   *base = lock->grant.node != NULL || twin == NULL ? zkl_base(lock) : zkl_base(twin);
	ZkSession  *session = zkl_peek_session_of(base);

	if (session != NULL)
		zkn_rely(session, base->grant.node,
				 is_any(is_taken_here, base) ? ZKN_RELIED : ZKN_RELIED_IF_WRITTEN,
				 is_any(is_of_session, base));
}

static bool
lost(ZkStopReason *why, const Lock *lock, ZkLoss loss)
{
	why->doubt = false;
	why->loss = loss;
	strlcpy(why->dir, lock->key.path, sizeof(why->dir));
	return true;
}

/*
 * The guard will refuse a transaction that took a lock and lost it, though it has
 * given it back since: that call has told so, which is not enough to go on for hours.
 */
static bool
gave_back_lost(ZkStopReason *why)
{
	dlist_iter	iter;

	dlist_foreach(iter, &zkl_xact_holds)
	{
		const Hold *hold = dlist_container(Hold, in_xact, iter.cur);

		if (hold->loss != ZK_NOT_LOST)
			return lost(why, hold->lock, hold->loss);
	}
	return false;
}

/*
 * Whether a lock is held since a ZooKeeper session that is closed by now, of which this is
 * so, or of one that relies on its node (unless is_so is NULL)
 */
static bool
is_of_closed_session(bool (*is_so) (Lock *lock), ZkStopReason *why)
{
	static uint32 none_before = 0;	/* all that is held is of this session, as
									 * long as it is there */
	dlist_iter	iter;

	if (zkb_peek() != NULL && zkb_generation() == none_before)
		return false;
	dlist_foreach(iter, &zkl_held)
	{
		Lock	   *base = zkl_base(dlist_container(Lock, in_held, iter.cur));

		if (base != NULL && zkl_peek_session_of(base) == NULL &&
			(is_so == NULL || is_any(is_so, base)))
			return lost(why, base, base->loss != ZK_NOT_LOST ? base->loss : zkb_last_loss());
	}
	if (is_so == NULL)
		none_before = zkb_generation();
	return false;
}

/* Also what earlier transactions took counts, if this one writes */
static void
begin(void)
{
	ZkReliance	reliance = ZKN_NOT_RELIED;
	ZkStopReason why;

	if (guarded || !have_signal())
		return;
	zks_stop_begin(ZKS_STOP_STATEMENT, stop_signal);
	if (gave_back_lost(&why) || is_of_closed_session(is_taken_here, &why))
		reliance = ZKN_RELIED;
	else if (is_of_closed_session(NULL, &why))
		reliance = ZKN_RELIED_IF_WRITTEN;
	zks_stop_self(ZKS_STOP_STATEMENT, reliance, &why);
}

void
zkl_stop_more(void)
{
	if (!zks_stop_possible(ZKS_STOP_STATEMENT))
		begin();
	if (!zks_stop_possible(ZKS_STOP_PROCESS))
		zkl_terminate_again();
}

void
zkl_stop_anew(void)
{
	zkl_terminate_again();
	if (!zks_stop_possible(ZKS_STOP_STATEMENT))
		return;
	begin();

	/* what is asked for from now on is asked for again */
	take_back();
}

void
zkl_stop_no_longer(bool ended)
{
	guarded = !ended;
	zks_stop_end(ZKS_STOP_PROCESS);
	if (zks_stop_possible(ZKS_STOP_STATEMENT))
	{
		zks_stop_end(ZKS_STOP_STATEMENT);
		take_back();
	}
	if (!ended)
		canceled = false;
}

void
zkl_stop_next_transaction(void)
{
	if (zkl_nnodes == 0 || proc_exit_inprogress)
		return;
	if (zkb_peek() != NULL)
		zkn_rely_less(zkb_peek());
	begin();
	zkl_terminate_again();
}

/*-------------------------------------------------------------------------
 * When the backend may be terminated
 *-------------------------------------------------------------------------
 */

void
zkl_terminate_again(void)
{
	ZkStopReason why;

	if (guarded || !have_signal())
		return;
	zks_stop_begin(ZKS_STOP_PROCESS, stop_signal);
	if (zkb_peek() != NULL)
		zks_stop_look(zkb_peek());
	zks_stop_self(ZKS_STOP_PROCESS,
				  is_of_closed_session(is_of_session, &why) ? ZKN_RELIED : ZKN_NOT_RELIED, &why);
}

/* Else a wait for a synchronous standby, say, would find the request to end */
void
zkl_terminate_now_or_later(void)
{
	zks_stop_end(ZKS_STOP_PROCESS);
	if (terminating)
		CHECK_FOR_INTERRUPTS();
}

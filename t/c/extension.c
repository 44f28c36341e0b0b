/*-------------------------------------------------------------------------
 *
 * extension.c
 *	  What another extension, or a background worker, may do at a bad moment, for
 *	  several files of t/.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "access/transam.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/elog.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "backend/internals.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(late);
PG_FUNCTION_INFO_V1(fail_at);
PG_FUNCTION_INFO_V1(leave);
PG_FUNCTION_INFO_V1(snapshots);
PG_FUNCTION_INFO_V1(forget_text);
PG_FUNCTION_INFO_V1(cancels);
PG_FUNCTION_INFO_V1(execute_canceled);
PG_FUNCTION_INFO_V1(seems_to_compute);
PG_FUNCTION_INFO_V1(worker_launch);
PGDLLEXPORT void worker_main(Datum arg);

/*
 * At COMMIT, where a message is logged, and at exit
 */

static char command[1000];
static char message[100];

static void
execute_late(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_PRE_COMMIT || command[0] == '\0')
		return;
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	SPI_execute(command, false, 0);
	SPI_finish();
	PopActiveSnapshot();
	command[0] = '\0';
}

/* late(text): execute this at COMMIT */
Datum
late(PG_FUNCTION_ARGS)
{
	static bool registered = false;

	if (!registered)
		RegisterXactCallback(execute_late, NULL);
	registered = true;
	strlcpy(command, text_to_cstring(PG_GETARG_TEXT_PP(0)), sizeof(command));
	PG_RETURN_VOID();
}

static void
fail(ErrorData *data)
{
	if (message[0] == '\0' || strstr(data->message, message) == NULL)
		return;
	message[0] = '\0';
	ereport(ERROR, (errmsg("could not log this")));
}

/* fail_at(text): an error where the next such message is written to the log */
Datum
fail_at(PG_FUNCTION_ARGS)
{
	emit_log_hook = fail;
	strlcpy(message, text_to_cstring(PG_GETARG_TEXT_PP(0)), sizeof(message));
	PG_RETURN_VOID();
}

static void
tell_status(int status, void *arg)
{
	dprintf(STDERR_FILENO, "it exits with status %d\n", status);
}

/*
 * leave(boolean): exit, as a library may, with status 0; or, with false, say what the
 * status is when that is done
 */
Datum
leave(PG_FUNCTION_ARGS)
{
	if (PG_GETARG_BOOL(0))
		exit(0);
	on_exit(tell_status, NULL);
	PG_RETURN_VOID();
}

/*
 * Which snapshots a backend has while a wait for a lock is logged, and a CALL ends with
 */

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

/*
 * A cancel of ours and one of the client at the same moment, one that comes while a
 * function runs, itself or only its signal; and one that finds no latch waited for
 */

/* c: ours; w: ours is withdrawn; i: the client's arrives (SIGINT) */
Datum
cancels(PG_FUNCTION_ARGS)
{
	char	   *steps = text_to_cstring(PG_GETARG_TEXT_PP(0));
	bool		pending;

	HOLD_INTERRUPTS();
	for (char *step = steps; *step != '\0'; step++)
	{
		if (*step == 'i')
			kill(getpid(), SIGINT);
		else
			(void) cancel_statement(*step == 'c');
	}
	pending = QueryCancelPending;
	QueryCancelPending = false;
	RESUME_INTERRUPTS();
	PG_RETURN_BOOL(pending);
}

static bool
is_signaled(void)
{
	sigset_t	pending;
	bool		found = false;

	sigpending(&pending);
	for (int signo = SIGRTMIN; signo <= SIGRTMAX; signo++)
		found |= sigismember(&pending, signo) == 1;
	return found;
}

/*
 * execute_canceled(text, boolean): executes this once there is a cancel, before that can
 * have an effect, or already when its signal waits to be let in; seems to sleep until then
 */
Datum
execute_canceled(PG_FUNCTION_ARGS)
{
	char	   *query = text_to_cstring(PG_GETARG_TEXT_PP(0));
	bool		blocks = PG_GETARG_BOOL(1);
	sigset_t	all;
	sigset_t	before;

	sigfillset(&all);
	SPI_connect();
	HOLD_INTERRUPTS();
	sigprocmask(SIG_SETMASK, blocks ? &all : NULL, &before);
	pgstat_report_wait_start(WAIT_EVENT_PG_SLEEP);
	while (blocks ? !is_signaled() : !QueryCancelPending)
		pg_usleep(1000);
	pgstat_report_wait_end();
	SPI_execute(query, false, 0);
	sigprocmask(SIG_SETMASK, &before, NULL);
	RESUME_INTERRUPTS();
	SPI_finish();
	PG_RETURN_VOID();
}

/* As a computation, which waits for no latch, but without using the processor */
Datum
seems_to_compute(PG_FUNCTION_ARGS)
{
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(10000);
	}
}

/*
 * A background worker that takes a lock
 *
 * SIGTERM is handled by die(), as in most workers, or by the default handler
 * of workers: bgworker_die exits from within the signal handler, the hardest
 * way to end.  PostgreSQL itself does not survive that if the signal arrives
 * during a malloc().
 */

void
worker_main(Datum arg)
{
	if (!DatumGetBool(arg))
		pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection("postgres", NULL, 0);
	StartTransactionCommand();
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, MyBgworkerEntry->bgw_extra);
	SPI_execute(MyBgworkerEntry->bgw_extra, false, 0);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	proc_exit(0);
}

/* worker_launch(library text, query text, at_once boolean): the worker's pid */
Datum
worker_launch(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	pid_t		pid;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = PG_GETARG_DATUM(2);
	strlcpy(worker.bgw_library_name, text_to_cstring(PG_GETARG_TEXT_PP(0)), sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "worker_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "zklock test worker", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "zklock test worker", BGW_MAXLEN);
	strlcpy(worker.bgw_extra, text_to_cstring(PG_GETARG_TEXT_PP(1)), BGW_EXTRALEN);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle) ||
		WaitForBackgroundWorkerStartup(handle, &pid) != BGWH_STARTED)
		ereport(ERROR, (errmsg("could not start the worker")));
	PG_RETURN_INT32(pid);
}

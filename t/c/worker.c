/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  A background worker that takes a lock, for t/020_cancel.pl and t/034_stop.pl.
 *
 * SIGTERM is handled by die(), as in most workers, or by the default handler
 * of workers: bgworker_die exits from within the signal handler, the hardest
 * way to end.  PostgreSQL itself does not survive that if the signal arrives
 * during a malloc().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(worker_launch);
PGDLLEXPORT void worker_main(Datum arg);

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

/*-------------------------------------------------------------------------
 *
 * late.c
 *	  Another extension that executes SQL at COMMIT, in a callback of its own,
 *	  fails where a message is logged, or leaves the process, for
 *	  t/025_commit_guard.pl, t/073_tls.pl and t/094_claims.pl.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/elog.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(late);
PG_FUNCTION_INFO_V1(fail_at);
PG_FUNCTION_INFO_V1(leave);

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

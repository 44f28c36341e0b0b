/*-------------------------------------------------------------------------
 *
 * late.c
 *	  Another extension that executes SQL at COMMIT, in a callback of its
 *	  own, for t/025_commit_guard.pl and t/105_claims_refused.pl.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(late);

static char command[1000];

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

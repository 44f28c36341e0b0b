/*-------------------------------------------------------------------------
 *
 * cancel.c
 *	  What becomes of a cancel of ours and one of the client at the same
 *	  moment, of one that comes while a function runs, and of one that finds
 *	  no latch waited for; and of a signal that comes late: for t/034_stop.pl.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"

#include "backend/internals.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(cancels);

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

PG_FUNCTION_INFO_V1(execute_canceled);

/* Executes this once there is a cancel, before that can have an effect; seems to sleep until then */
Datum
execute_canceled(PG_FUNCTION_ARGS)
{
	char	   *query = text_to_cstring(PG_GETARG_TEXT_PP(0));

	SPI_connect();
	HOLD_INTERRUPTS();
	pgstat_report_wait_start(WAIT_EVENT_PG_SLEEP);
	while (!QueryCancelPending)
		pg_usleep(1000);
	pgstat_report_wait_end();
	SPI_execute(query, false, 0);
	RESUME_INTERRUPTS();
	SPI_finish();
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(seems_to_compute);

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

PG_FUNCTION_INFO_V1(await_signal);
PG_FUNCTION_INFO_V1(take_signal);

static sigset_t before;

/* Lets no signal in, until one of ours waits for that; seems to sleep meanwhile */
Datum
await_signal(PG_FUNCTION_ARGS)
{
	sigset_t	all;
	sigset_t	pending;
	bool		found = false;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	pgstat_report_wait_start(WAIT_EVENT_PG_SLEEP);
	while (!found)
	{
		pg_usleep(1000);
		sigpending(&pending);
		for (int signo = SIGRTMIN; signo <= SIGRTMAX; signo++)
			found |= sigismember(&pending, signo) == 1;
	}
	pgstat_report_wait_end();
	PG_RETURN_VOID();
}

Datum
take_signal(PG_FUNCTION_ARGS)
{
	sigprocmask(SIG_SETMASK, &before, NULL);
	PG_RETURN_VOID();
}

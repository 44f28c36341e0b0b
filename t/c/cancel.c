/*-------------------------------------------------------------------------
 *
 * cancel.c
 *	  What becomes of a cancel of ours and one of the client at the same
 *	  moment, for t/034_stop.pl.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "backend/compat.h"

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
			(void) cancel_statement_compat(*step == 'c');
	}
	pending = QueryCancelPending;
	QueryCancelPending = false;
	RESUME_INTERRUPTS();
	PG_RETURN_BOOL(pending);
}

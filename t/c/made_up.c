/*-------------------------------------------------------------------------
 *
 * made_up.c
 *	  A function that only a made-up next version of the library has, for
 *	  t/071_upgrade.pl.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

PG_FUNCTION_INFO_V1(zk_made_up);

Datum
zk_made_up(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(2);
}

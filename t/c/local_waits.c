/*-------------------------------------------------------------------------
 *
 * local_waits.c
 *	  Shows SQL what src/lock/deadlock/local_waits.c finds, for t/019_local_waits.pl.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "fmgr.h"
#include "funcapi.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "backend/compat.h"
#include "backend/settings.h"
#include "lock/deadlock/local_waits.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(local_waits);
PG_FUNCTION_INFO_V1(blocks_somebody);
PG_FUNCTION_INFO_V1(own_tag);
PG_FUNCTION_INFO_V1(in_worker);
PG_FUNCTION_INFO_V1(locked);

/* Built with -DLWLockAcquire=counted_acquire, the files under test come by here. */
#undef LWLockAcquire
extern bool LWLockAcquire(LWLock *lock, LWLockMode mode);
extern bool counted_acquire(LWLock *lock, LWLockMode mode);

static int	acquired;

bool
counted_acquire(LWLock *lock, LWLockMode mode)
{
	acquired++;
	return LWLockAcquire(lock, mode);
}

/* How many partitions of the lock table zkl_local_waits has locked */
Datum
locked(PG_FUNCTION_ARGS)
{
	ZkLocalWait *waits;

	acquired = 0;
	(void) zkl_local_waits(&waits, INT_MAX);
	PG_RETURN_INT32(acquired);
}

/* what node_identity.c uses of settings.c */
bool		zklock_publish_identity = true;

/* local_waits(most integer) */
Datum
local_waits(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ZkLocalWait *waits;
	int			n = zkl_local_waits(&waits, PG_GETARG_INT32(0));

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		Datum		values[6] = {
			Int32GetDatum(waits[i].pid),
			CStringGetTextDatum(waits[i].tag),
			TimestampTzGetDatum(waits[i].since),
			Int32GetDatum(waits[i].blocker),
			Int32GetDatum(waits[i].blocker < 0 ? MyProcPid : waits[waits[i].blocker].pid),
			CStringGetTextDatum(waits[i].what)
		};
		bool		nulls[6] = {false};

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
blocks_somebody(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(zkl_blocks_somebody());
}

Datum
own_tag(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(zkb_own_tag()));
}

Datum
in_worker(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(IsParallelWorker());
}

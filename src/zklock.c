/*-------------------------------------------------------------------------
 *
 * zklock.c
 *	  Module entry, SQL functions.
 *
 * This file checks arguments; lock/ knows what a lock is, and views.c how
 * users see it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/timestamp.h"

#include "backend/compat.h"
#include "backend/internals.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "backend/slots.h"
#include "lock/transaction/claim.h"
#include "lock/transaction/fence.h"
#include "lock/transaction/hold.h"
#include "lock/transaction/xact.h"
#include "redirect.h"
#include "sql_function.h"

MODULE_MAGIC_COMPAT();

void		_PG_init(void);

/* This may run in the postmaster, so it opens nothing. */
void
_PG_init(void)
{
	zklock_define_settings();
	zkb_reserve_slots();
	zkl_install_hooks(zk_see_statement);
	zkl_watch_commits();
	zk_watch_calls();
}

/*-------------------------------------------------------------------------
 * Arguments
 *-------------------------------------------------------------------------
 */

/* In byte order, each once */
static char **
paths_argument(FunctionCallInfo fcinfo, int *n)
{
	Datum	   *elements;
	bool	   *nulls;
	char	  **paths;

	zkb_refuse_null(PG_ARGISNULL(0), "array of lock paths");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, &nulls, n);
	paths = palloc(Max(*n, 1) * sizeof(char *));
	for (int i = 0; i < *n; i++)
	{
		zkb_refuse_null(nulls[i], "lock path");
		paths[i] = zkb_path_from_text(DatumGetTextPP(elements[i]));
	}
	qsort(paths, *n, sizeof(char *), pg_qsort_strcmp);
	*n = (int) qunique(paths, *n, sizeof(char *), pg_qsort_strcmp);
	return paths;
}

/*
 * The timeout argument in ms, or -1 if it is null; zk_try_lock() and the like are the same
 * function without that argument.  Fractions are rounded up.  In ms no interval overflows.
 */
static int64
timeout_argument(FunctionCallInfo fcinfo, int n)
{
	Interval   *timeout;
	int64		ms;
	int64		rest;

	if (PG_NARGS() <= n)
		return 0;
	if (PG_ARGISNULL(n))
		return -1;
	timeout = PG_GETARG_INTERVAL_P(n);
	ms = ((int64) timeout->month * DAYS_PER_MONTH + timeout->day) * (USECS_PER_DAY / 1000) + timeout->time / 1000;
	rest = timeout->time % 1000;
	if (ms < 0 || (ms == 0 && rest < 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock timeout must not be negative")));
	return ms + (rest > 0 ? 1 : 0);
}

/*-------------------------------------------------------------------------
 * Taking and releasing
 *-------------------------------------------------------------------------
 */

/* A call waits no longer than its timeout argument says; zero means a single try */
static bool
begin_call(int64 timeout, ZkWait *wait)
{
	bool		may_wait = timeout != 0;

	zkb_wait_begin(wait, may_wait ? timeout : -1, may_wait);
	return may_wait;
}

static bool
lock_paths(char **paths, int n, int64 timeout, ZkpMode mode, int32 permits, ZkScope scope)
{
	ZkWait		wait;
	bool		may_wait = begin_call(timeout, &wait);

	return zkl_lock(paths, n, mode, permits, scope, may_wait, &wait);
}

static Datum
lock_function(FunctionCallInfo fcinfo, ZkpMode mode, ZkScope scope)
{
	char	   *path = zkb_path_argument(fcinfo);

	PG_RETURN_BOOL(lock_paths(&path, 1, timeout_argument(fcinfo, 1), mode, 0, scope));
}

static Datum
lock_many_function(FunctionCallInfo fcinfo, ZkScope scope)
{
	int			n;
	char	  **paths = paths_argument(fcinfo, &n);

	PG_RETURN_BOOL(lock_paths(paths, n, timeout_argument(fcinfo, 1), ZKP_EXCLUSIVE, 0, scope));
}

static Datum
semaphore_function(FunctionCallInfo fcinfo, ZkScope scope)
{
	char	   *path = zkb_path_argument(fcinfo);
	int32		permits;

	zkb_refuse_null(PG_ARGISNULL(1), "permits");
	permits = PG_GETARG_INT32(1);
	if (permits < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("permits must be at least 1")));
	PG_RETURN_BOOL(lock_paths(&path, 1, timeout_argument(fcinfo, 2), ZKP_SEMAPHORE, permits, scope));
}

/* There is no result that could be ignored: it has the lock, or fails */
static Datum
acquire_procedure(FunctionCallInfo fcinfo, ZkScope scope)
{
	char	   *path = zkb_path_argument(fcinfo);
	int64		timeout = timeout_argument(fcinfo, 1);
	bool		may_wait;
	bool		left;
	ZkpMode		mode;
	ZkWait		wait;

	zkb_refuse_null(PG_ARGISNULL(2), "shared");
	mode = PG_GETARG_BOOL(2) ? ZKP_SHARED : ZKP_EXCLUSIVE;
	may_wait = begin_call(timeout, &wait);
	zkb_wait_or_fail(&wait);
	left = leave_snapshot(fcinfo);
	if (!zkl_lock(&path, 1, mode, 0, scope, may_wait, &wait))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not obtain lock on \"%s\"", zkb_path_for_display(path))));
	if (left)
		EnsurePortalSnapshotExists();
	PG_RETURN_VOID();
}

static Datum
unlock_function(FunctionCallInfo fcinfo, ZkpMode mode)
{
	char	   *path = zkb_path_argument(fcinfo);

	PG_RETURN_BOOL(zkl_unlock(&path, 1, mode, ZK_SCOPE_SESSION) == 1);
}

SQL_FUNCTION(zk_lock, lock_function(fcinfo, ZKP_EXCLUSIVE, ZK_SCOPE_SESSION));
SQL_FUNCTION(zk_lock_shared, lock_function(fcinfo, ZKP_SHARED, ZK_SCOPE_SESSION));
SQL_FUNCTION(zk_xact_lock, lock_function(fcinfo, ZKP_EXCLUSIVE, ZK_SCOPE_TRANSACTION));
SQL_FUNCTION(zk_xact_lock_shared, lock_function(fcinfo, ZKP_SHARED, ZK_SCOPE_TRANSACTION));
SQL_FUNCTION(zk_lock_many, lock_many_function(fcinfo, ZK_SCOPE_SESSION));
SQL_FUNCTION(zk_xact_lock_many, lock_many_function(fcinfo, ZK_SCOPE_TRANSACTION));
SQL_FUNCTION(zk_semaphore_acquire, semaphore_function(fcinfo, ZK_SCOPE_SESSION));
SQL_FUNCTION(zk_xact_semaphore_acquire, semaphore_function(fcinfo, ZK_SCOPE_TRANSACTION));
SQL_FUNCTION(zk_acquire, acquire_procedure(fcinfo, ZK_SCOPE_SESSION));
SQL_FUNCTION(zk_xact_acquire, acquire_procedure(fcinfo, ZK_SCOPE_TRANSACTION));
SQL_FUNCTION(zk_unlock, unlock_function(fcinfo, ZKP_EXCLUSIVE));
SQL_FUNCTION(zk_unlock_shared, unlock_function(fcinfo, ZKP_SHARED));
SQL_FUNCTION(zk_semaphore_release, unlock_function(fcinfo, ZKP_SEMAPHORE));

PG_FUNCTION_INFO_V1(zk_unlock_many);
Datum
zk_unlock_many(PG_FUNCTION_ARGS)
{
	int			n;
	char	  **paths = paths_argument(fcinfo, &n);

	PG_RETURN_INT32(zkl_unlock(paths, n, ZKP_EXCLUSIVE, ZK_SCOPE_SESSION));
}

PG_FUNCTION_INFO_V1(zk_unlock_all);
Datum
zk_unlock_all(PG_FUNCTION_ARGS)
{
	int64		dropped = zkl_unlock_all(ZKL_SESSION_SCOPES);

	PG_RETURN_INT32((int32) Min(dropped, PG_INT32_MAX));
}

PG_FUNCTION_INFO_V1(zk_lock_token);
Datum
zk_lock_token(PG_FUNCTION_ARGS)
{
	int64		token;

	if (!zkl_token(zkb_path_argument(fcinfo), &token))
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

SQL_FUNCTION(zk_lock_held, BoolGetDatum(zkl_is_held(zkb_path_argument(fcinfo))));

/* This is SECURITY DEFINER, so that it writes as the owner of the table */
PG_FUNCTION_INFO_V1(zk_fence);
Datum
zk_fence(PG_FUNCTION_ARGS)
{
	char	   *path = zkb_path_argument(fcinfo);
	int64		token;

	PreventCommandIfReadOnly("zk_fence()");
	token = PG_ARGISNULL(1) ? zkl_fencing_token(path) : PG_GETARG_INT64(1);
	zkl_follow_settings();
	zkl_record_token(fcinfo->flinfo->fn_oid, path, zkl_full_path(path), token);
	PG_RETURN_INT64(token);
}

/* This is SECURITY DEFINER, too */
PG_FUNCTION_INFO_V1(zk_fences_merge);
Datum
zk_fences_merge(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("%s can only be called as a trigger", "zk_fences_merge()")));
	PG_RETURN_POINTER(zkl_merge_replicated(fcinfo->flinfo->fn_oid, (TriggerData *) fcinfo->context));
}

/*-------------------------------------------------------------------------
 * Claims
 *-------------------------------------------------------------------------
 */

static TimestampTz
period_argument(FunctionCallInfo fcinfo)
{
	TimestampTz period;

	zkb_refuse_null(PG_ARGISNULL(1), "period");
	period = PG_GETARG_TIMESTAMPTZ(1);
	if (TIMESTAMP_NOT_FINITE(period))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("period must be finite")));
	return period;
}

PG_FUNCTION_INFO_V1(zk_claim);
Datum
zk_claim(PG_FUNCTION_ARGS)
{
	char	   *path = zkb_path_argument(fcinfo);
	TimestampTz period = period_argument(fcinfo);
	int64		timeout = timeout_argument(fcinfo, 2);
	ZkWait		wait;
	bool		may_wait = begin_call(timeout, &wait);

	PG_RETURN_BOOL(zkl_claim(path, period, may_wait, &wait));
}

SQL_FUNCTION(zk_claim_forget, BoolGetDatum(zkl_forget_claim(zkb_path_argument(fcinfo))));

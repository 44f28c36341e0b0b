/*-------------------------------------------------------------------------
 *
 * advisory.c
 *	  The SQL functions of the extension zklock_advisory: PostgreSQL's own for
 *	  advisory locks, on locks in ZooKeeper.
 *
 * One C function serves a key of one number and of two: they are two paths, as
 * they are two locks in PostgreSQL.  All is as there, but for what a lock that
 * can be lost makes different; doc/advisory-drop-in.md tells that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/lsyscache.h"

#include "backend/path.h"
#include "backend/settings.h"
#include "lock/transaction/hold.h"
#include "sql_function.h"

#define ADVISORY_DIR	"/advisory"

static char *
key_path(FunctionCallInfo fcinfo)
{
	const char *space = zklock_advisory_space;

	if (space[0] == '\0')
		space = get_database_name(MyDatabaseId);
	if (space == NULL)
		elog(ERROR, "cache lookup failed for database %u", MyDatabaseId);
	space = zkb_name_as_part(space);
	if (PG_NARGS() == 2)
		return psprintf(ADVISORY_DIR "/%s/%d,%d", space, PG_GETARG_INT32(0), PG_GETARG_INT32(1));
	return psprintf(ADVISORY_DIR "/%s/" INT64_FORMAT, space, PG_GETARG_INT64(0));
}

/* The lock that the same function of PostgreSQL would take */
static LOCKTAG
key_tag(FunctionCallInfo fcinfo)
{
	LOCKTAG		tag;

	if (PG_NARGS() == 2)
		SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) PG_GETARG_INT32(0), (uint32) PG_GETARG_INT32(1), 2);
	else
		SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (PG_GETARG_INT64(0) >> 32), (uint32) PG_GETARG_INT64(0), 1);
	return tag;
}

static bool
take(FunctionCallInfo fcinfo, ZkpMode mode, ZkScope scope, bool may_wait)
{
	char	   *path = key_path(fcinfo);
	LOCKTAG		tag = key_tag(fcinfo);
	ZkWait		wait;

	zkb_wait_begin(&wait, -1, may_wait);
	if (!zkl_lock(&path, 1, mode, 0, scope, may_wait, &wait))
		return false;
	zkl_add_shadow(path, &tag, mode, scope);
	return true;
}

static Datum
lock_function(FunctionCallInfo fcinfo, ZkpMode mode, ZkScope scope)
{
	(void) take(fcinfo, mode, scope, true);
	PG_RETURN_VOID();
}

static Datum
unlock_function(FunctionCallInfo fcinfo, ZkpMode mode)
{
	char	   *path = key_path(fcinfo);

	PG_RETURN_BOOL(zkl_unlock(&path, 1, mode, ZK_SCOPE_ADVISORY) == 1);
}

static Datum
unlock_all_function(void)
{
	(void) zkl_unlock_all(ZKL_SCOPE(ZK_SCOPE_ADVISORY));
	PG_RETURN_VOID();
}

SQL_FUNCTION(zk_advisory_lock, lock_function(fcinfo, ZKP_EXCLUSIVE, ZK_SCOPE_ADVISORY));
SQL_FUNCTION(zk_advisory_lock_shared, lock_function(fcinfo, ZKP_SHARED, ZK_SCOPE_ADVISORY));
SQL_FUNCTION(zk_advisory_xact_lock, lock_function(fcinfo, ZKP_EXCLUSIVE, ZK_SCOPE_ADVISORY_TRANSACTION));
SQL_FUNCTION(zk_advisory_xact_lock_shared, lock_function(fcinfo, ZKP_SHARED, ZK_SCOPE_ADVISORY_TRANSACTION));
SQL_FUNCTION(zk_try_advisory_lock, BoolGetDatum(take(fcinfo, ZKP_EXCLUSIVE, ZK_SCOPE_ADVISORY, false)));
SQL_FUNCTION(zk_try_advisory_lock_shared, BoolGetDatum(take(fcinfo, ZKP_SHARED, ZK_SCOPE_ADVISORY, false)));
SQL_FUNCTION(zk_try_advisory_xact_lock, BoolGetDatum(take(fcinfo, ZKP_EXCLUSIVE, ZK_SCOPE_ADVISORY_TRANSACTION, false)));
SQL_FUNCTION(zk_try_advisory_xact_lock_shared, BoolGetDatum(take(fcinfo, ZKP_SHARED, ZK_SCOPE_ADVISORY_TRANSACTION, false)));
SQL_FUNCTION(zk_advisory_unlock, unlock_function(fcinfo, ZKP_EXCLUSIVE));
SQL_FUNCTION(zk_advisory_unlock_shared, unlock_function(fcinfo, ZKP_SHARED));
SQL_FUNCTION(zk_advisory_unlock_all, unlock_all_function());

/*-------------------------------------------------------------------------
 *
 * views.c
 *	  SQL functions that show rows, and the columns of these.
 *
 * What a row says is found out elsewhere; this file knows how users see it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "common/int.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "backend/backend_session.h"
#include "backend/compat.h"
#include "backend/encoding.h"
#include "backend/node_identity.h"
#include "backend/path.h"
#include "backend/slots.h"
#include "lock/look/inspect.h"
#include "lock/look/lock_tree.h"
#include "lock/transaction/claim.h"
#include "lock/transaction/hold.h"

static const char *const mode_names[] = {"none", "shared", "exclusive", "semaphore"};
static const char *const scope_names[] = {"session", "transaction"};
static const char *const state_names[] = {"held", "suspect", "lost"};
static const char *const session_state_names[] = {"connecting", "connected", "suspended"};

StaticAssertDecl(lengthof(mode_names) == ZKP_SEMAPHORE + 1, "mode_names is indexed by ZkpMode");
StaticAssertDecl(lengthof(scope_names) == ZK_SHOWN_SCOPES, "scope_names is indexed by ZkScope");
StaticAssertDecl(lengthof(state_names) == ZKL_STATE_LOST + 1, "state_names is indexed by ZkHoldState");
StaticAssertDecl(lengthof(session_state_names) == ZKS_OVER,
				 "session_state_names is indexed by ZkSessionState, and a session that is over is not shown");

/* Text that others wrote, or NULL */
static Datum
text_or_null(const char *value, bool *isnull)
{
	*isnull = value == NULL;
	return value != NULL ? CStringGetTextDatum(value) : (Datum) 0;
}

/* Where in ZooKeeper the lock of this path is, for a look at what others do there */
static const char *
where_to_look(const char *path)
{
	const char *full = zkl_full_path(path);

	zkl_follow_settings();
	return full;
}

static void
put_lock(const ZkHoldInfo *info, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[9];
	bool		nulls[9] = {false};
	int			i = 0;

	values[i++] = CStringGetTextDatum(zkb_path_for_display(info->path));
	values[i++] = CStringGetTextDatum(zkb_path_for_display(info->root));
	values[i++] = CStringGetTextDatum(mode_names[info->mode]);
	values[i++] = CStringGetTextDatum(scope_names[info->scope]);
	values[i++] = Int64GetDatum(info->count);
	values[i++] = CStringGetTextDatum(state_names[info->state]);
	nulls[i] = info->state == ZKL_STATE_LOST;
	values[i++] = Int64GetDatum(info->token);
	values[i++] = CStringGetTextDatum(zkb_from_utf8_escaped(info->node, strlen(info->node), true));
	values[i++] = TimestampTzGetDatum(info->acquired_at);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

PG_FUNCTION_INFO_V1(zk_lock_status);
Datum
zk_lock_status(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	zkl_each_hold(put_lock, fcinfo->resultinfo);
	return (Datum) 0;
}

/* The kind for each mode */
static const char *const kind_names[] = {"none", "lock", "lock", "semaphore"};

StaticAssertDecl(lengthof(kind_names) == ZKP_SEMAPHORE + 1, "kind_names is indexed by ZkpMode");

/* Convert ZooKeeper's time, in ms since 1970; its value may be anything */
static bool
unix_ms_as_timestamp(int64 ms, TimestampTz *timestamp)
{
	if (pg_mul_s64_overflow(ms, 1000, timestamp) ||
		pg_sub_s64_overflow(*timestamp, (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY,
							timestamp))
		return false;
	return IS_VALID_TIMESTAMP(*timestamp);
}

/* A number that zkb_read_identity has read, or NULL */
static Datum
number_or_null(const char *value, bool *isnull)
{
	*isnull = value == NULL;
	return Int32GetDatum(value != NULL ? (int32) strtol(value, NULL, 10) : 0);
}

static Datum
session_or_null(const ZkQueueRow *contender, bool *isnull)
{
	*isnull = contender->session == 0;
	return CStringGetTextDatum(psprintf("0x%llx", (unsigned long long) contender->session));
}

static Datum
since_or_null(const ZkQueueRow *contender, bool *isnull)
{
	TimestampTz since = 0;

	*isnull = !contender->known || !unix_ms_as_timestamp(contender->since_ms, &since);
	return TimestampTzGetDatum(since);
}

/* What a node says: the columns from host to data */
#define SAYS_COLUMNS	8

static void
put_what_it_says(const ZkQueueRow *contender, Datum *values, bool *nulls)
{
	char	   *fields[ZKB_FIELDS] = {NULL};
	int			i = 0;

	if (contender->ours)
		zkb_read_identity(contender->data, contender->data_len, fields);
	values[i] = text_or_null(fields[ZKB_FIELD_HOST], &nulls[i]);
	i++;
	values[i] = number_or_null(fields[ZKB_FIELD_PORT], &nulls[i]);
	i++;
	values[i] = text_or_null(fields[ZKB_FIELD_CLUSTER_NAME], &nulls[i]);
	i++;
	values[i] = number_or_null(fields[ZKB_FIELD_PID], &nulls[i]);
	i++;
	values[i] = text_or_null(fields[ZKB_FIELD_DATABASE], &nulls[i]);
	i++;
	values[i] = text_or_null(fields[ZKB_FIELD_USER], &nulls[i]);
	i++;
	values[i] = text_or_null(fields[ZKB_FIELD_APPLICATION_NAME], &nulls[i]);
	i++;
	nulls[i] = contender->ours || contender->data_len == 0;
	values[i] = nulls[i] ? (Datum) 0 :
		CStringGetTextDatum(zkb_from_utf8_escaped(contender->data, contender->data_len, true));
}

static void
put_contender(const ZkQueueRow *contender, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[8 + SAYS_COLUMNS];
	bool		nulls[8 + SAYS_COLUMNS] = {false};
	int			i = 0;

	values[i++] = Int32GetDatum(contender->position);
	values[i++] = CStringGetTextDatum(kind_names[contender->mode]);
	values[i++] = CStringGetTextDatum(mode_names[contender->mode]);
	values[i++] = BoolGetDatum(contender->granted);
	nulls[i] = !contender->known || contender->node == NULL;
	values[i++] = Int64GetDatum(contender->token);
	values[i] = session_or_null(contender, &nulls[i]);
	i++;
	values[i] = since_or_null(contender, &nulls[i]);
	i++;
	values[i] = text_or_null(contender->node != NULL ?
							 zkb_from_utf8_escaped(contender->node, strlen(contender->node), true) : NULL,
							 &nulls[i]);
	i++;
	put_what_it_says(contender, values + i, nulls + i);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

PG_FUNCTION_INFO_V1(zk_lock_queue);
Datum
zk_lock_queue(PG_FUNCTION_ARGS)
{
	char	   *path = zkb_path_argument(fcinfo);

	InitMaterializedSRF(fcinfo, 0);
	zkl_each_contender(where_to_look(path), put_contender, fcinfo->resultinfo);
	return (Datum) 0;
}

static void
put_path(const ZkPathRow *row, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[6 + SAYS_COLUMNS];
	bool		nulls[6 + SAYS_COLUMNS];
	int			i = 0;

	memset(nulls, true, sizeof(nulls));
	nulls[i] = false;
	values[i++] = CStringGetTextDatum(zkb_from_utf8_escaped(row->path, strlen(row->path), false));
	nulls[i] = !row->known;
	values[i++] = CStringGetTextDatum(kind_names[row->semaphore ? ZKP_SEMAPHORE : ZKP_EXCLUSIVE]);
	nulls[i] = !row->known;
	values[i++] = Int32GetDatum(row->contenders);
	nulls[i] = !row->known || row->holders < 0;
	values[i++] = Int32GetDatum(row->holders);
	if (row->first != NULL)
	{
		values[i] = since_or_null(row->first, &nulls[i]);
		i++;
		values[i] = session_or_null(row->first, &nulls[i]);
		i++;
		put_what_it_says(row->first, values + i, nulls + i);
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* The root is no lock, but there may be locks below it */
static char *
prefix_argument(FunctionCallInfo fcinfo)
{
	text	   *prefix = PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0);

	if (prefix != NULL && VARSIZE_ANY_EXHDR(prefix) == 1 && *VARDATA_ANY(prefix) == '/')
		return pstrdup("/");
	return zkb_path_argument(fcinfo);
}

PG_FUNCTION_INFO_V1(zk_lock_paths);
Datum
zk_lock_paths(PG_FUNCTION_ARGS)
{
	char	   *prefix = prefix_argument(fcinfo);

	InitMaterializedSRF(fcinfo, 0);
	zkl_each_path(where_to_look(prefix), put_path, fcinfo->resultinfo);
	return (Datum) 0;
}

/* The columns of zk_last_claim, in order */
enum
{
	CLAIM_PERIOD,
	CLAIM_STATE,
	CLAIM_SINCE,
	CLAIM_HOST,
	CLAIM_DATNAME,
	CLAIM_SYSTEM_IDENTIFIER,
	CLAIM_TRANSACTION_ID,
	CLAIM_COLUMNS
};

static void
put_claim_columns(const ZkClaimRecord *claim, Datum *values, bool *nulls)
{
	char	   *fields[ZKB_FIELDS];

	memset(nulls, false, CLAIM_COLUMNS * sizeof(bool));
	zkb_read_identity(claim->identity, strlen(claim->identity), fields);
	values[CLAIM_PERIOD] = TimestampTzGetDatum(claim->period);
	values[CLAIM_STATE] = CStringGetTextDatum(claim->done ? "done" : "pending");
	values[CLAIM_SINCE] = TimestampTzGetDatum(claim->since);
	values[CLAIM_HOST] = text_or_null(fields[ZKB_FIELD_HOST], &nulls[CLAIM_HOST]);
	values[CLAIM_DATNAME] = text_or_null(fields[ZKB_FIELD_DATABASE], &nulls[CLAIM_DATNAME]);
	values[CLAIM_SYSTEM_IDENTIFIER] = Int64GetDatum((int64) claim->system);
	values[CLAIM_TRANSACTION_ID] = FullTransactionIdGetDatum(claim->xid);
	nulls[CLAIM_TRANSACTION_ID] = !FullTransactionIdIsValid(claim->xid);
}

PG_FUNCTION_INFO_V1(zk_last_claim);
Datum
zk_last_claim(PG_FUNCTION_ARGS)
{
	char	   *path = zkb_path_argument(fcinfo);
	TupleDesc	desc;
	Datum		values[CLAIM_COLUMNS];
	bool		nulls[CLAIM_COLUMNS];
	ZkClaimRecord claim;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	memset(nulls, true, sizeof(nulls));
	if (zkl_last_claim(path, &claim))
		put_claim_columns(&claim, values, nulls);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* The path, and the columns of zk_last_claim */
static void
put_claim(const char *path, const ZkClaimRecord *claim, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[1 + CLAIM_COLUMNS];
	bool		nulls[1 + CLAIM_COLUMNS];

	memset(nulls, true, sizeof(nulls));
	nulls[0] = false;
	values[0] = CStringGetTextDatum(zkb_from_utf8_escaped(path, strlen(path), false));
	if (claim != NULL)
		put_claim_columns(claim, values + 1, nulls + 1);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

PG_FUNCTION_INFO_V1(zk_claims);
Datum
zk_claims(PG_FUNCTION_ARGS)
{
	char	   *prefix = prefix_argument(fcinfo);

	InitMaterializedSRF(fcinfo, 0);
	zkl_each_claim(where_to_look(prefix), put_claim, fcinfo->resultinfo);
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(zk_lock_break);
Datum
zk_lock_break(PG_FUNCTION_ARGS)
{
	char	   *path = zkb_path_argument(fcinfo);

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("lock node must not be null")));
	PG_RETURN_BOOL(zkl_break(where_to_look(path), zkb_name_from_text(PG_GETARG_TEXT_PP(1))));
}

/* Convert a time of zks_now() to the clock that users read */
static TimestampTz
as_timestamp(int64 boottime_ns)
{
	return GetCurrentTimestamp() - (zks_now() - boottime_ns) / 1000;
}

static Datum
ms_as_interval(int ms)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = ms * INT64CONST(1000);
	return IntervalPGetDatum(interval);
}

PG_FUNCTION_INFO_V1(zk_session_status);
Datum
zk_session_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;
	ZkSession  *session = zkb_session();	/* not one that is over */
	ZkSessionInfo info;
	Datum		values[14];
	bool		nulls[14] = {false};
	const char *servers;
	int			i = 0;

	InitMaterializedSRF(fcinfo, 0);
	rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	memset(&info, 0, sizeof(info));
	if (session != NULL)
		zks_info(session, &info);

	values[i++] = CStringGetTextDatum(session == NULL || info.state == ZKS_OVER ? "none" :
									  session_state_names[info.state]);
	nulls[i] = info.epoch == 0;
	values[i++] = CStringGetTextDatum(psprintf("0x%llx", (unsigned long long) info.session_id));
	servers = zkb_servers();
	values[i] = text_or_null(servers, &nulls[i]);
	i++;
	nulls[i] = info.server[0] == '\0';
	values[i++] = CStringGetTextDatum(info.server);
	nulls[i] = info.epoch == 0;
	values[i++] = ms_as_interval(info.timeout_ms);
	nulls[i] = info.epoch == 0;
	values[i++] = TimestampTzGetDatum(as_timestamp(info.heard_at));
	values[i++] = Int64GetDatum(zkb_counters.requests + info.requests);
	values[i++] = Int64GetDatum(zkb_counters.waits);
	values[i++] = Int64GetDatum(zkb_counters.timeouts);
	values[i++] = Int64GetDatum(zkb_counters.deadlock_checks);
	values[i++] = Int64GetDatum(zkb_counters.deadlocks);
	values[i++] = Int64GetDatum(zkb_counters.reconnections + info.reconnections);
	values[i++] = Int64GetDatum(zkb_counters.losses + info.losses);
	values[i++] = Int32GetDatum(info.unreleased);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/* The columns of zk_server_locks, in order */
enum
{
	PID,
	DATNAME,
	USENAME,
	PATH,
	ROOT,
	MODE,
	SCOPE,
	COUNT,
	GRANTED,
	STATE,
	TOKEN,
	ACQUIRED_AT,
	WAITING_SINCE,
	MORE,
	ZK_SESSION,
	SESSION_STATE,
	REQUESTS,
	WAITS,
	TIMEOUTS,
	DEADLOCK_CHECKS,
	DEADLOCKS,
	RECONNECTIONS,
	LOSSES,
	UNRELEASED,
	SERVER_LOCKS_COLUMNS
};

typedef struct Row
{
	ReturnSetInfo *rsinfo;
	Datum		values[SERVER_LOCKS_COLUMNS];
	bool		nulls[SERVER_LOCKS_COLUMNS];
} Row;

static void
set_column(Row *row, int column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

/* What others wrote, in UTF-8: their database may have another encoding */
static void
set_text(Row *row, int column, const char *utf8)
{
	set_column(row, column, CStringGetTextDatum(zkb_from_utf8_escaped(utf8, strlen(utf8), false)));
}

static void
set_name(Row *row, int column, const char *name)
{
	if (name != NULL)
		set_column(row, column, CStringGetTextDatum(name));
}

static void
put_row(Row *row)
{
	tuplestore_putvalues(row->rsinfo->setResult, row->rsinfo->setDesc, row->values, row->nulls);
}

/* What is the same in all rows of a backend */
static void
set_totals(Row *row, const ZkSlot *slot, const ZkSessionInfo *session, bool has_session)
{
	const ZkBackendCounters *counters = &slot->counters;

	set_column(row, MORE, Int32GetDatum(slot->more));
	if (session->session_id != 0)
		set_column(row, ZK_SESSION, CStringGetTextDatum(psprintf("0x%llx", (unsigned long long) session->session_id)));
	set_column(row, SESSION_STATE, CStringGetTextDatum(has_session ? session_state_names[session->state] : "none"));
	set_column(row, REQUESTS, Int64GetDatum(counters->requests + session->requests));
	set_column(row, WAITS, Int64GetDatum(counters->waits));
	set_column(row, TIMEOUTS, Int64GetDatum(counters->timeouts));
	set_column(row, DEADLOCK_CHECKS, Int64GetDatum(counters->deadlock_checks));
	set_column(row, DEADLOCKS, Int64GetDatum(counters->deadlocks));
	set_column(row, RECONNECTIONS, Int64GetDatum(counters->reconnections + session->reconnections));
	set_column(row, LOSSES, Int64GetDatum(counters->losses + session->losses));
	set_column(row, UNRELEASED, Int32GetDatum(session->unreleased));
}

static void
put_server_hold(Row row, const ZkSlot *slot, int i, ZkScope scope, const ZkSessionInfo *session)
{
	const ZkSlotHold *hold = &slot->holds[i];
	ZkHoldState state = zkb_slot_lost(slot, i, session) ? ZKL_STATE_LOST :
	zkb_is_fresh(session) ? ZKL_STATE_HELD : ZKL_STATE_SUSPECT;

	set_text(&row, PATH, hold->path);
	set_text(&row, ROOT, hold->root);
	set_column(&row, MODE, CStringGetTextDatum(mode_names[(int) hold->mode]));
	set_column(&row, SCOPE, CStringGetTextDatum(scope_names[scope]));
	set_column(&row, COUNT, Int64GetDatum(hold->counts[scope]));
	set_column(&row, GRANTED, BoolGetDatum(true));
	set_column(&row, STATE, CStringGetTextDatum(state_names[state]));
	if (state != ZKL_STATE_LOST)
		set_column(&row, TOKEN, Int64GetDatum(hold->token));
	set_column(&row, ACQUIRED_AT, TimestampTzGetDatum(hold->acquired_at));
	put_row(&row);
}

static void
put_server_wait(Row row, const ZkSlotWait *wait)
{
	set_text(&row, PATH, wait->path);
	set_text(&row, ROOT, wait->root);
	set_column(&row, MODE, CStringGetTextDatum(mode_names[(int) wait->mode]));
	set_column(&row, SCOPE, CStringGetTextDatum(scope_names[(int) wait->scope]));
	set_column(&row, GRANTED, BoolGetDatum(false));
	set_column(&row, STATE, CStringGetTextDatum("waiting"));
	set_column(&row, WAITING_SINCE, TimestampTzGetDatum(as_timestamp(wait->since)));
	put_row(&row);
}

/*
 * As in pg_stat_activity everybody sees that a backend is there, and whose it
 * is.
 */
static void
put_slot(const ZkSlot *slot, bool whole, void *arg)
{
	Row			row = {.rsinfo = arg};
	ZkSessionInfo session;
	bool		has_session;
	int			nrows = 0;

	memset(row.nulls, true, sizeof(row.nulls));
	set_column(&row, PID, Int32GetDatum(slot->pid));
	set_name(&row, DATNAME, OidIsValid(slot->database) ? get_database_name(slot->database) : NULL);
	set_name(&row, USENAME, OidIsValid(slot->role) ? GetUserNameFromId(slot->role, true) : NULL);
	if (!whole || !(has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
					has_privs_of_role(GetUserId(), slot->role)))
	{
		put_row(&row);
		return;
	}
	has_session = zkb_slot_session(slot, &session);
	set_totals(&row, slot, &session, has_session);
	for (int i = 0; i < slot->nholds; i++)
	{
		for (int scope = ZK_SCOPE_SESSION; scope <= ZK_SCOPE_TRANSACTION; scope++)
		{
			if (slot->holds[i].counts[scope] == 0)
				continue;
			put_server_hold(row, slot, i, (ZkScope) scope, &session);
			nrows++;
		}
	}
	if (slot->wait.since != 0)
		put_server_wait(row, &slot->wait);
	else if (nrows == 0)
		put_row(&row);
}

PG_FUNCTION_INFO_V1(zk_server_lock_status);
Datum
zk_server_lock_status(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	zkb_each_slot(put_slot, fcinfo->resultinfo);
	return (Datum) 0;
}

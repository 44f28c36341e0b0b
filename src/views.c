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
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "backend/backend_session.h"
#include "backend/compat.h"
#include "backend/encoding.h"
#include "backend/node_identity.h"
#include "backend/path.h"
#include "backend/slots.h"
#include "lock/look/lock_tree.h"
#include "lock/transaction/claim.h"
#include "lock/transaction/hold.h"
#include "sql_function.h"

static const char *const mode_names[] = {"none", "shared", "exclusive", "semaphore"};
static const char *const scope_names[] = {"session", "transaction"};
static const char *const state_names[] = {"held", "suspect", "lost"};
static const char *const session_state_names[] = {"connecting", "connected", "suspended"};

StaticAssertDecl(lengthof(mode_names) == ZKP_SEMAPHORE + 1, "mode_names is indexed by ZkpMode");
StaticAssertDecl(lengthof(scope_names) == ZK_SHOWN_SCOPES, "scope_names is indexed by ZkScope");
StaticAssertDecl(lengthof(state_names) == ZKL_STATE_LOST + 1, "state_names is indexed by ZkHoldState");
StaticAssertDecl(lengthof(session_state_names) == ZKS_OVER,
				 "session_state_names is indexed by ZkSessionState, and a session that is over is not shown");

/* Of zk_server_locks */
#define MOST_COLUMNS	24

/* A row as it is filled in, column by column; those left out are null */
typedef struct Row
{
	ReturnSetInfo *rsinfo;
	int			n;
	Datum		values[MOST_COLUMNS];
	bool		nulls[MOST_COLUMNS];
} Row;

static void
begin_row(Row *row, void *rsinfo)
{
	row->rsinfo = rsinfo;
	row->n = 0;
	memset(row->nulls, true, sizeof(row->nulls));
}

static void
add_if(Row *row, bool known, Datum value)
{
	Assert(row->n < MOST_COLUMNS);
	row->values[row->n] = value;
	row->nulls[row->n++] = !known;
}

static void
add(Row *row, Datum value)
{
	add_if(row, true, value);
}

static void
add_text(Row *row, const char *value)
{
	add_if(row, value != NULL, value != NULL ? CStringGetTextDatum(value) : (Datum) 0);
}

/* What others wrote, in UTF-8: their database may have another encoding */
static void
add_utf8(Row *row, const char *utf8, bool all)
{
	add_text(row, utf8 != NULL ? zkb_from_utf8_escaped(utf8, strlen(utf8), all) : NULL);
}

static void
add_session(Row *row, int64 session)
{
	add_if(row, session != 0, CStringGetTextDatum(psprintf("0x%llx", (unsigned long long) session)));
}

static void
put_row(Row *row)
{
	tuplestore_putvalues(row->rsinfo->setResult, row->rsinfo->setDesc, row->values, row->nulls);
}

/* Where in ZooKeeper the lock of this path is, for a look at what others do there */
static const char *
where_to_look(const char *path)
{
	const char *full = zkl_full_path(path);

	zkl_follow_settings();
	return full;
}

/* The rows of what is read there, or below */
static Datum
show_queues(FunctionCallInfo fcinfo, const char *path, ZkWalk what, ZkShowQueue put)
{
	InitMaterializedSRF(fcinfo, 0);
	zkl_walk(where_to_look(path), what, put, fcinfo->resultinfo);
	return (Datum) 0;
}

static void
put_lock(const Lock *lock, ZkScope scope, int64 count, ZkHoldState state, const ZkGrant *grant,
		 void *arg)
{
	Row			row;

	begin_row(&row, arg);
	add_text(&row, zkb_path_for_display(lock->key.path + lock->root_len));
	add_text(&row, zkb_path_for_display(zkl_root_of(lock)));
	add_text(&row, mode_names[(int) lock->key.mode]);
	add_text(&row, scope_names[scope]);
	add(&row, Int64GetDatum(count));
	add_text(&row, state_names[state]);
	add_if(&row, state != ZKL_STATE_LOST, Int64GetDatum(grant->token));
	add_utf8(&row, grant->name, true);
	add(&row, TimestampTzGetDatum(lock->acquired_at));
	put_row(&row);
}

PG_FUNCTION_INFO_V1(zk_lock_status);
Datum
zk_lock_status(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	zkl_each_hold(put_lock, fcinfo->resultinfo);
	return (Datum) 0;
}

/* ZooKeeper's time, in ms since 1970, may be anything */
static void
add_since(Row *row, const ZkSeenContender *contender)
{
	int64		ms = contender->read ? contender->stat.made_at_ms : -1;
	bool		known = ms >= 0 && ms < PG_INT64_MAX / 1000;
	TimestampTz since = known ? ms * 1000 - (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY : 0;

	add_if(row, known && IS_VALID_TIMESTAMP(since), TimestampTzGetDatum(since));
}

/* What a node says: the columns from host to data */
static void
add_what_it_says(Row *row, const ZkSeenContender *contender)
{
	/* none, if it was not made by a zklock; all but the tag, in their order */
	for (int i = ZKB_FIELD_HOST; i < ZKB_FIELDS; i++)
	{
		const char *field = contender->fields[i];

		if (i == ZKB_FIELD_PORT || i == ZKB_FIELD_PID)
			add_if(row, field != NULL, Int32GetDatum(field != NULL ? (int32) strtol(field, NULL, 10) : 0));
		else
			add_text(row, field);
	}
	add_text(row, contender->says.ours || contender->data_len == 0 ? NULL :
			 zkb_from_utf8_escaped(contender->data, contender->data_len, true));
}

static void
put_queue(const char *path, const ZkSeenQueue *queue, void *arg)
{
	for (int i = 0; i < queue->n; i++)
	{
		const ZkSeenContender *contender = &queue->list[i];
		const ZkpContender *name = &contender->name;
		Row			row;

		CHECK_FOR_INTERRUPTS();
		begin_row(&row, arg);
		add(&row, Int32GetDatum(i + 1));
		add_text(&row, queue->semaphore ? "semaphore" : "lock");
		add_text(&row, mode_names[name->mode]);
		add(&row, BoolGetDatum(contender->granted));
		add_if(&row, contender->read && name->name != NULL, Int64GetDatum(contender->stat.place_czxid));
		add_session(&row, contender->stat.owner);
		add_since(&row, contender);
		add_utf8(&row, name->name, true);
		add_what_it_says(&row, contender);
		put_row(&row);
	}
}

static void
put_path(const char *path, const ZkSeenQueue *queue, void *arg)
{
	bool		known = queue != NULL && queue->judged;
	int			holders = 0;
	Row			row;

	for (int i = 0; known && i < queue->n; i++)
		holders += queue->list[i].granted;
	begin_row(&row, arg);
	add_utf8(&row, path, false);
	add_text(&row, queue == NULL ? NULL : queue->semaphore ? "semaphore" : "lock");
	add_if(&row, queue != NULL, Int32GetDatum(queue != NULL ? queue->n : 0));
	add_if(&row, known, Int32GetDatum(holders));
	if (known && queue->list[0].read)
	{
		add_since(&row, &queue->list[0]);
		add_session(&row, queue->list[0].stat.owner);
		add_what_it_says(&row, &queue->list[0]);
	}
	put_row(&row);
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

/* The columns of zk_last_claim */
static void
add_claim(Row *row, const ZkClaimRecord *claim)
{
	char	   *fields[ZKB_FIELDS];

	zkb_read_identity(claim->identity, strlen(claim->identity), fields);
	add(row, TimestampTzGetDatum(claim->period));
	add_text(row, claim->done ? "done" : "pending");
	add(row, TimestampTzGetDatum(claim->since));
	add_text(row, fields[ZKB_FIELD_HOST]);
	add_text(row, fields[ZKB_FIELD_DATABASE]);
	add(row, Int64GetDatum((int64) claim->system));
	add_if(row, FullTransactionIdIsValid(claim->xid), FullTransactionIdGetDatum(claim->xid));
}

PG_FUNCTION_INFO_V1(zk_last_claim);
Datum
zk_last_claim(PG_FUNCTION_ARGS)
{
	char	   *path = zkb_path_argument(fcinfo);
	TupleDesc	desc;
	Row			row;
	ZkClaimRecord claim;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	begin_row(&row, NULL);
	if (zkl_last_claim(path, &claim))
		add_claim(&row, &claim);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), row.values, row.nulls)));
}

/* The path, and the columns of zk_last_claim */
static void
put_claim(const char *path, const ZkSeenQueue *queue, void *arg)
{
	const ZkSeenContender *mark = queue != NULL ? &queue->list[0] : NULL;
	ZkClaimRecord claim;
	Row			row;

	begin_row(&row, arg);
	add_utf8(&row, path, false);
	if (mark != NULL && mark->read && mark->stat.owner == 0 &&
		zkl_read_claim(mark->data, mark->data_len, &claim))
		add_claim(&row, &claim);
	put_row(&row);
}

SQL_FUNCTION(zk_lock_queue, show_queues(fcinfo, zkb_path_argument(fcinfo), ZKL_WALK_QUEUES, put_queue));
SQL_FUNCTION(zk_lock_paths, show_queues(fcinfo, prefix_argument(fcinfo), ZKL_WALK_PATHS, put_path));
SQL_FUNCTION(zk_claims, show_queues(fcinfo, prefix_argument(fcinfo), ZKL_WALK_MARKS, put_claim));

PG_FUNCTION_INFO_V1(zk_lock_break);
Datum
zk_lock_break(PG_FUNCTION_ARGS)
{
	char	   *path = zkb_path_argument(fcinfo);

	zkb_refuse_null(PG_ARGISNULL(1), "lock node");
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

/* What a session and its backend have counted, as zk_session and zk_server_locks end */
static void
add_counters(Row *row, const ZkBackendCounters *counters, const ZkSessionInfo *session)
{
	add(row, Int64GetDatum(counters->requests + session->requests));
	add(row, Int64GetDatum(counters->waits));
	add(row, Int64GetDatum(counters->timeouts));
	add(row, Int64GetDatum(counters->deadlock_checks));
	add(row, Int64GetDatum(counters->deadlocks));
	add(row, Int64GetDatum(counters->reconnections + session->reconnections));
	add(row, Int64GetDatum(counters->losses + session->losses));
	add(row, Int32GetDatum(session->unreleased));
}

PG_FUNCTION_INFO_V1(zk_session_status);
Datum
zk_session_status(PG_FUNCTION_ARGS)
{
	ZkSession  *session = zkb_session();	/* not one that is over */
	ZkSessionInfo info = {0};
	ZkSessionTexts texts = {0};
	bool		connected;
	Row			row;

	InitMaterializedSRF(fcinfo, 0);
	begin_row(&row, fcinfo->resultinfo);
	if (session != NULL)
	{
		info = zks_info(session);
		zks_texts(session, &texts);
	}
	connected = info.epoch != 0;

	add_text(&row, session == NULL || info.state == ZKS_OVER ? "none" : session_state_names[info.state]);
	add_if(&row, connected, CStringGetTextDatum(psprintf("0x%llx", (unsigned long long) info.session_id)));
	add_text(&row, session != NULL ? zkb_servers() : NULL);
	add_text(&row, texts.server[0] != '\0' ? texts.server : NULL);
	add_if(&row, connected, ms_as_interval(info.timeout_ms));
	add_if(&row, connected, TimestampTzGetDatum(as_timestamp(info.heard_at)));
	add_counters(&row, &zkb_counters, &info);
	put_row(&row);
	return (Datum) 0;
}

/* Where in a row of zk_server_locks begins what is of a lock, and of the backend */
#define OF_LOCK			3
#define OF_BACKEND		13

/* What is the same in all rows of a backend */
static void
add_totals(Row *row, const ZkSlot *slot, const ZkSessionInfo *session, bool has_session)
{
	row->n = OF_BACKEND;
	add(row, Int32GetDatum(slot->more));
	add_session(row, session->session_id);
	add_text(row, has_session ? session_state_names[session->state] : "none");
	add_counters(row, &slot->counters, session);
	Assert(row->n == MOST_COLUMNS);
}

/* A row for each scope; state: of a hold */
static int
put_server_lock(Row row, const ZkSlotLock *lock, ZkHoldState state)
{
	bool		held = lock->since == 0;
	int			nrows = 0;

	for (int scope = ZK_SCOPE_SESSION; scope <= ZK_SCOPE_TRANSACTION; scope++)
	{
		if (lock->counts[scope] == 0)
			continue;
		row.n = OF_LOCK;
		add_utf8(&row, lock->path, false);
		add_utf8(&row, lock->root, false);
		add_text(&row, mode_names[(int) lock->mode]);
		add_text(&row, scope_names[scope]);
		add_if(&row, held, Int64GetDatum(lock->counts[scope]));
		add(&row, BoolGetDatum(held));
		add_text(&row, held ? state_names[state] : "waiting");
		add_if(&row, held && state != ZKL_STATE_LOST, Int64GetDatum(lock->token));
		add_if(&row, held, TimestampTzGetDatum(lock->acquired_at));
		add_if(&row, !held, TimestampTzGetDatum(as_timestamp(lock->since)));
		put_row(&row);
		nrows++;
	}
	return nrows;
}

/*
 * As in pg_stat_activity everybody sees that a backend is there, and whose it
 * is.
 */
static void
put_slot(const ZkSlot *slot, void *arg)
{
	Row			row;
	ZkSessionInfo session;
	bool		has_session;
	int			nrows = 0;

	begin_row(&row, arg);
	add(&row, Int32GetDatum(slot->pid));
	add_text(&row, OidIsValid(slot->database) ? get_database_name(slot->database) : NULL);
	add_text(&row, OidIsValid(slot->role) ? GetUserNameFromId(slot->role, true) : NULL);
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) &&
		!has_privs_of_role(GetUserId(), slot->role))
	{
		put_row(&row);
		return;
	}
	has_session = zkb_slot_session(slot, &session);
	add_totals(&row, slot, &session, has_session);
	for (int i = 0; i < slot->nholds; i++)
		nrows += put_server_lock(row, &slot->holds[i],
								 zkb_slot_lost(slot, i, &session) ? ZKL_STATE_LOST :
								 zks_is_fresh(&session) ? ZKL_STATE_HELD : ZKL_STATE_SUSPECT);
	if (slot->wait.since != 0)
		nrows += put_server_lock(row, &slot->wait, ZKL_STATE_HELD);
	if (nrows == 0)
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

/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  The table of fencing tokens, zk_fences.
 *
 * A holder that slept through its lock does not know that there has been
 * another since; the data does, once that one has left its token here.  The
 * row lock gives the writes the order of the tokens: the second writer waits
 * for the first one's transaction to end, and then sees its token.
 *
 * A token that is already there is not written again: a holder may pass the
 * fence in each of a thousand transactions.
 *
 * Logical replication may bring rows of another server's table (FOR ALL TABLES
 * includes it).  Triggers that fire only there let them raise a token, never
 * lower or remove one: those who come with the token between could write again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "parser/analyze.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "backend/compat.h"
#include "backend/path.h"
#include "fence.h"

/* Locks the row even if its token is not smaller and stays */
#define RECORD \
	"INSERT INTO %s AS fence (path, token) VALUES ($1, $2) " \
	"ON CONFLICT (path) DO UPDATE SET token = excluded.token, recorded_at = DEFAULT " \
	"WHERE fence.token < excluded.token"

#define LOOK \
	"SELECT token FROM %s WHERE path = $1"

#define SET_ASIDE \
	"SELECT array_agg(fence) FROM %s AS fence"

#define PUT_BACK \
	"INSERT INTO %s SELECT * FROM unnest($1)"

/*
 * Whether this is a table that the current user owns; a superuser must own it,
 * too
 */
static bool
is_own_table(Oid relation)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
	bool		own = false;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		own = form->relkind == RELKIND_RELATION && form->relowner == GetUserId();
		ReleaseSysCache(tuple);
	}
	return own;
}

/*
 * The table's name in our statement, until that has been analyzed; NULL for
 * all other statements.
 */
static const char *table_to_find = NULL;

/* Whether our own statement runs: the triggers leave it alone */
static bool executing = false;

static post_parse_analyze_hook_type next_post_parse_analyze = NULL;

/*
 * Which table a name refers to is certain only when the statement has found
 * and locked it: until then its schema may be renamed, and another created in
 * its place.  The owner of another table could have its triggers or column
 * defaults run as the function's owner, who is the current user here.  But
 * nobody else can create a table that we own.
 */
static void
analyze_hook(ParseState *pstate, Query *query, JumbleStateCompat *jstate)
{
	const char *name = table_to_find;
	ListCell   *cell;

	table_to_find = NULL;
	if (name != NULL)
	{
		foreach(cell, query->rtable)
		{
			const RangeTblEntry *entry = lfirst(cell);

			if (entry->rtekind == RTE_RELATION && !is_own_table(entry->relid))
				ereport(ERROR,
						(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						 errmsg("table %s is not owned by the owner of function zk_fence", name),
						 errdetail("Triggers of another owner's table would run with the privileges of the function's owner."),
						 errhint("Make one role the owner of both.")));
		}
	}
	if (next_post_parse_analyze)
		next_post_parse_analyze(pstate, query, jstate);
}

static void
watch_analysis(void)
{
	static bool watching = false;

	if (watching)
		return;
	watching = true;
	next_post_parse_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = analyze_hook;
}

/*
 * The table's qualified name.  It lies in the schema of the function; but
 * either may be dropped while the statement runs.  A name without a schema
 * could refer to a table of the caller.
 */
static char *
find_table(Oid function)
{
	Oid			schema = get_func_namespace(function);
	char	   *schema_name = OidIsValid(schema) ? get_namespace_name(schema) : NULL;

	if (schema_name == NULL || !OidIsValid(get_relname_relid("zk_fences", schema)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"zk_fences\" does not exist"),
				 errdetail("The table belongs in the schema of function zk_fence, and one of the two has been dropped.")));
	return quote_qualified_identifier(schema_name, "zk_fences");
}

static int
execute(const char *command, const char *table, int nargs, Oid *types, Datum *values,
		bool read_only, int expected)
{
	int			rc = 0;

	watch_analysis();
	table_to_find = table;
	executing = true;
	PG_TRY();
	{
		rc = SPI_execute_with_args(psprintf(command, table), nargs, types, values, NULL, read_only, 0);
	}
	PG_FINALLY();
	{
		table_to_find = NULL;
		executing = false;
	}
	PG_END_TRY();
	if (rc != expected)
		elog(ERROR, "could not use %s: %s", table, SPI_result_code_string(rc));
	return (int) SPI_processed;
}

/* Records a token, unless that or a greater one is recorded; returns what is */
static int64
record(const char *table, const char *path, int64 token)
{
	Oid			types[] = {TEXTOID, INT8OID};
	Datum		values[] = {CStringGetTextDatum(path), Int64GetDatum(token)};
	bool		isnull;

	if (execute(RECORD, table, 2, types, values, false, SPI_OK_INSERT) > 0)
		return token;

	/* we have locked the row, so it cannot change */
	if (execute(LOOK, table, 1, types, values, false, SPI_OK_SELECT) != 1)
		elog(ERROR, "fence of lock path \"%s\" is gone", path);
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
}

void
zkl_record_token(Oid function, const char *path, const char *full_path, int64 token)
{
	char	   *table = find_table(function);
	int64		recorded;

	SPI_connect();
	recorded = record(table, zkb_path_for_display(full_path), token);
	SPI_finish();

	if (recorded > token)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("stale fencing token for the lock on \"%s\"", zkb_path_for_display(path)),
				 errdetail("The token is " INT64_FORMAT ", but " INT64_FORMAT " has already been recorded.",
						   token, recorded),
				 errhint("Another client has held the lock since; lock again and retry the transaction.")));
}

/*-------------------------------------------------------------------------
 * What logical replication brings
 *-------------------------------------------------------------------------
 */

/* The rows that a TRUNCATE is about to remove, as an array of this type */
static struct varlena *set_aside = NULL;
static Oid	set_aside_type;

/* A trigger cannot prevent a TRUNCATE without an error, which would stop the subscription */
static void
truncate_is_next(const char *table)
{
	Datum		rows;
	bool		isnull;

	/* now that the table is locked: the transaction may have an older one */
	CommandCounterIncrement();
	PushActiveSnapshot(GetLatestSnapshot());
	execute(SET_ASIDE, table, 0, NULL, NULL, true, SPI_OK_SELECT);
	PopActiveSnapshot();
	rows = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	set_aside_type = SPI_gettypeid(SPI_tuptable->tupdesc, 1);
	if (!isnull)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		set_aside = PG_DETOAST_DATUM_COPY(rows);
		MemoryContextSwitchTo(old);
	}
}

static void
forget_rows(void)
{
	if (set_aside != NULL)
		pfree(set_aside);
	set_aside = NULL;
}

static void
truncate_is_over(const char *table)
{
	Datum		rows = PointerGetDatum(set_aside);

	if (set_aside != NULL)
		execute(PUT_BACK, table, 1, &set_aside_type, &rows, false, SPI_OK_INSERT);
	forget_rows();
}

/* Records the token of a row that is to be there; false if the table will refuse that row */
static bool
merge(const char *table, HeapTuple row, TupleDesc desc)
{
	char	   *path = SPI_getvalue(row, desc, SPI_fnumber(desc, "path"));
	bool		isnull;
	Datum		token = SPI_getbinval(row, desc, SPI_fnumber(desc, "token"), &isnull);

	if (path == NULL || isnull)
		return false;
	(void) record(table, path, DatumGetInt64(token));
	return true;
}

HeapTuple
zkl_merge_replicated(Oid function, TriggerData *trigger)
{
	bool		update = TRIGGER_FIRED_BY_UPDATE(trigger->tg_event);
	HeapTuple	row = update ? trigger->tg_newtuple : trigger->tg_trigtuple;
	HeapTuple	instead = NULL;
	char	   *table = find_table(function);

	if (RelationGetRelid(trigger->tg_relation) != get_relname_relid("zk_fences", get_func_namespace(function)))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger function zk_fences_merge() can only be used on table %s", table)));

	/* somebody may have enabled the triggers elsewhere (ENABLE TRIGGER ALL) */
	if (executing || SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA)
		return row;

	SPI_connect();
	if (!TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
	{
		if (!TRIGGER_FIRED_BY_DELETE(trigger->tg_event) &&
			!merge(table, row, RelationGetDescr(trigger->tg_relation)))
			instead = row;
	}
	else if (TRIGGER_FIRED_BEFORE(trigger->tg_event))
	{
		forget_rows();			/* of one that failed */
		truncate_is_next(table);
	}
	else
		truncate_is_over(table);
	SPI_finish();
	return instead;
}

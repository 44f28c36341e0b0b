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
						 errmsg("%s is not owned by the owner of zk_fence", name),
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
				 errmsg("could not find the table zk_fences"),
				 errdetail("It belongs in the schema of zk_fence, and one of the two has been dropped.")));
	return quote_qualified_identifier(schema_name, "zk_fences");
}

static int
execute(const char *command, const char *table, const char *path, int64 token, int expected)
{
	Oid			types[] = {TEXTOID, INT8OID};
	Datum		values[] = {CStringGetTextDatum(path), Int64GetDatum(token)};
	int			rc = 0;

	table_to_find = table;
	PG_TRY();
	{
		rc = SPI_execute_with_args(psprintf(command, table), lengthof(types),
								   types, values, NULL, false, 0);
	}
	PG_FINALLY();
	{
		table_to_find = NULL;
	}
	PG_END_TRY();
	if (rc != expected)
		elog(ERROR, "could not use %s: %s", table, SPI_result_code_string(rc));
	return (int) SPI_processed;
}

/* The recorded token; we have locked the row, so it cannot change */
static int64
recorded_token(const char *table, const char *path)
{
	bool		isnull;

	if (execute(LOOK, table, path, 0, SPI_OK_SELECT) != 1)
		elog(ERROR, "fence of lock path \"%s\" is gone", path);
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
}

void
zkl_record_token(Oid function, const char *path, const char *full_path, int64 token)
{
	int64		recorded = token;
	char	   *table = find_table(function);

	full_path = zkb_path_for_display(full_path);
	watch_analysis();

	SPI_connect();
	if (execute(RECORD, table, full_path, token, SPI_OK_INSERT) == 0)
		recorded = recorded_token(table, full_path);
	SPI_finish();

	if (recorded > token)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("stale fencing token for the lock on \"%s\"", zkb_path_for_display(path)),
				 errdetail("The token is " INT64_FORMAT ", but " INT64_FORMAT " has already been recorded.",
						   token, recorded),
				 errhint("Somebody else has held the lock since; lock again and repeat the transaction.")));
}

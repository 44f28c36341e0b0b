/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  The table of fencing tokens, zk_fences.
 *
 * A holder that slept through its lock does not know that there was another
 * since; the data does, once that has left its token here.  The row's lock
 * makes the order of tokens that of the writes: who comes second waits for the
 * first to end, and then sees its token.
 *
 * A token that is there already is not written again: a holder may pass the
 * fence in each of a thousand transactions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "fence.h"
#include "path.h"

/* Locks the row, also where its token is not smaller and stays */
#define RECORD \
	"INSERT INTO %s AS fence (path, token) VALUES ($1, $2) " \
	"ON CONFLICT (path) DO UPDATE SET token = excluded.token, recorded_at = DEFAULT " \
	"WHERE fence.token < excluded.token"

#define LOOK \
	"SELECT token FROM %s WHERE path = $1"

static int
execute(const char *command, Oid schema, const char *path, int64 token, int expected)
{
	Oid			types[] = {TEXTOID, INT8OID};
	Datum		values[] = {CStringGetTextDatum(path), Int64GetDatum(token)};
	char	   *table = quote_qualified_identifier(get_namespace_name(schema), "zk_fences");
	int			rc = SPI_execute_with_args(psprintf(command, table), lengthof(types),
										   types, values, NULL, false, 0);

	if (rc != expected)
		elog(ERROR, "could not use %s: %s", table, SPI_result_code_string(rc));
	return (int) SPI_processed;
}

/* The token that is recorded; the row is ours, so it stays what it is */
static int64
recorded_token(Oid schema, const char *path)
{
	bool		isnull;

	if (execute(LOOK, schema, path, 0, SPI_OK_SELECT) != 1)
		elog(ERROR, "fence of lock path \"%s\" is gone", path);
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
}

void
zkf_record(Oid schema, const char *path, int64 token)
{
	int64		recorded = token;

	path = zkpath_for_display(path);

	SPI_connect();
	if (execute(RECORD, schema, path, token, SPI_OK_INSERT) == 0)
		recorded = recorded_token(schema, path);
	SPI_finish();

	if (recorded > token)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("stale fencing token for the lock on \"%s\"", path),
				 errdetail("The token is " INT64_FORMAT ", and " INT64_FORMAT " was here before.",
						   token, recorded),
				 errhint("Somebody else has held the lock since; lock again and repeat the transaction.")));
}

/*-------------------------------------------------------------------------
 *
 * no_text.c
 *	  A client whose server process is at work without the text of a statement:
 *	  a call by the fast path ("call"), a trigger that is deferred until the Sync
 *	  message ("sync"), and the description of a prepared statement ("describe"), which
 *	  waits for the statement's table, as another connection has locked that.
 *
 *	  no_text CONNINFO PATH call|sync|describe
 *
 * Prints the SQLSTATE with which it ends.
 *
 *-------------------------------------------------------------------------
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *
run(PGconn *conn, const char *sql)
{
	PGresult   *result = PQexec(conn, sql);

	if (PQntuples(result) != 1)
	{
		fprintf(stderr, "%s: %s", sql, PQerrorMessage(conn));
		exit(2);
	}
	return PQgetvalue(result, 0, 0);
}

static void
lock(PGconn *conn, const char *begun, const char *path)
{
	char		sql[200];

	snprintf(sql, sizeof(sql), "%s(%s)", begun, PQescapeLiteral(conn, path, strlen(path)));
	run(conn, sql);
}

int
main(int argc, char **argv)
{
	PGconn	   *conn = PQconnectdb(argv[1]);
	PGresult   *result;

	if (strcmp(argv[3], "call") == 0)
	{
		int			answer;
		int			len;
		int			oid = atoi(run(conn, "SELECT 'sleeps_long'::regproc::oid"));

		lock(conn, "BEGIN; SELECT zk_xact_lock", argv[2]);
		result = PQfn(conn, oid, &answer, &len, 1, NULL, 0);
	}
	else if (strcmp(argv[3], "describe") == 0)
	{
		PGconn	   *other = PQconnectdb(argv[1]);

		/* or it would wait for itself, should the test fail */
		PQclear(PQexec(conn, "SET lock_timeout = '60s'"));
		PQclear(PQprepare(conn, "s", "SELECT * FROM late", 0, NULL));
		lock(conn, "BEGIN; SELECT zk_xact_lock", argv[2]);
		PQclear(PQexec(other, "BEGIN; LOCK late"));
		result = PQdescribePrepared(conn, "s");
		PQfinish(other);
	}
	else
	{
		lock(conn, "SELECT zk_lock", argv[2]);
		result = PQexecParams(conn, "INSERT INTO late VALUES (1)", 0, NULL, NULL, NULL, NULL, 0);
	}
	puts(PQresultErrorField(result, PG_DIAG_SQLSTATE));
	PQfinish(conn);
	return 0;
}

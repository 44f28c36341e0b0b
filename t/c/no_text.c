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

int
main(int argc, char **argv)
{
	PGconn	   *conn = PQconnectdb(argv[1]);
	const char *path = PQescapeLiteral(conn, argv[2], strlen(argv[2]));
	char		sql[200];
	PGresult   *result;

	if (strcmp(argv[3], "call") == 0)
	{
		int			answer;
		int			len;
		int			oid = atoi(run(conn, "SELECT 'sleeps_long'::regproc::oid"));

		snprintf(sql, sizeof(sql), "BEGIN; SELECT zk_xact_lock(%s)", path);
		run(conn, sql);
		result = PQfn(conn, oid, &answer, &len, 1, NULL, 0);
	}
	else if (strcmp(argv[3], "describe") == 0)
	{
		PGconn	   *other = PQconnectdb(argv[1]);

		/* or it would wait for itself, should the test fail */
		PQclear(PQexec(conn, "SET lock_timeout = '60s'"));
		PQclear(PQprepare(conn, "s", "SELECT * FROM late", 0, NULL));
		snprintf(sql, sizeof(sql), "BEGIN; SELECT zk_xact_lock(%s)", path);
		run(conn, sql);
		PQclear(PQexec(other, "BEGIN; LOCK late"));
		result = PQdescribePrepared(conn, "s");
		PQfinish(other);
	}
	else
	{
		snprintf(sql, sizeof(sql), "SELECT zk_lock(%s)", path);
		run(conn, sql);
		result = PQexecParams(conn, "INSERT INTO late VALUES (1)", 0, NULL, NULL, NULL, NULL, 0);
	}
	puts(PQresultErrorField(result, PG_DIAG_SQLSTATE));
	PQfinish(conn);
	return 0;
}

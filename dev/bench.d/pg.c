/*
 * Locks taken by SQL, as a subject of dev/bench: through libpq, with prepared
 * statements, one thread for each client.
 *
 *   pg CONNINFO SUBJECT
 *
 * SUBJECT:
 *   zklock          zk_lock and zk_unlock, a statement each
 *   zklock-xact     BEGIN, zk_xact_lock, COMMIT: a statement each
 *   zklock-plpgsql  zk_lock and zk_unlock in a loop of one PL/pgSQL function, which
 *                   reads the clock itself
 *   advisory        pg_advisory_lock and pg_advisory_unlock
 *
 * dev/bench.d/runner describes the commands.  Paths are those of ZooKeeper and
 * begin with zklock's root.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

#define ROOT "/zklock"
#define SECOND INT64_C(1000000000)
#define MAX_CLIENTS 256

typedef struct Subject
{
	const char *name;
	const char *acquire;
	const char *release;		/* NULL: COMMIT */
	const char *try;
	const char *many;			/* takes several in one transaction */
	bool		loop;			/* by the functions below */
} Subject;

static const Subject subjects[] = {
	{"zklock", "SELECT zk_lock($1)", "SELECT zk_unlock($1)", "SELECT zk_try_lock($1)",
	"SELECT zk_xact_lock_many($1::text[])", false},
	{"zklock-xact", "SELECT zk_xact_lock($1)", NULL, "SELECT zk_try_xact_lock($1)",
	"SELECT zk_xact_lock_many($1::text[])", false},
	{"zklock-plpgsql", "SELECT zk_lock($1)", "SELECT zk_unlock($1)", NULL, NULL, true},
	{"advisory", "SELECT true FROM (SELECT pg_advisory_lock(hashtextextended($1, 0))) l",
		"SELECT pg_advisory_unlock(hashtextextended($1, 0))",
		"SELECT pg_try_advisory_lock(hashtextextended($1, 0))",
		"SELECT count(*) > 0 FROM (SELECT pg_advisory_xact_lock(hashtextextended(p, 0)) "
	"FROM unnest($1::text[]) p) l", false}
};

/* called by "zklock-plpgsql"; in ns, like all times here */
static const char *const functions =
	"CREATE FUNCTION pg_temp.ns(timestamptz) RETURNS bigint LANGUAGE sql AS\n"
	"	$$ SELECT (extract(epoch FROM $1) * 1000000000)::bigint $$;\n"
	/* ASKED:GOT:RELEASE:RELEASED of each round */
	"CREATE FUNCTION pg_temp.rounds(path text, n int) RETURNS text LANGUAGE plpgsql AS $$\n"
	"DECLARE\n"
	"	asked timestamptz[]; got timestamptz[]; release timestamptz[]; released timestamptz[];\n"
	"BEGIN\n"
	"	FOR i IN 1 .. n LOOP\n"
	"		asked[i] := clock_timestamp();\n"
	"		PERFORM zk_lock(path);\n"
	"		got[i] := clock_timestamp();\n"
	"		release[i] := got[i];\n"
	"		PERFORM zk_unlock(path);\n"
	"		released[i] := clock_timestamp();\n"
	"	END LOOP;\n"
	"	RETURN (SELECT string_agg(concat_ws(':', pg_temp.ns(a), pg_temp.ns(b), pg_temp.ns(c), pg_temp.ns(d)), ' ')\n"
	"		FROM unnest(asked, got, release, released) AS t (a, b, c, d));\n"
	"END $$;\n"
	/* how many rounds end in this time */
	"CREATE FUNCTION pg_temp.own(path text, since double precision, until double precision)\n"
	"RETURNS bigint LANGUAGE plpgsql AS $$\n"
	"DECLARE\n"
	"	count bigint := 0;\n"
	"	from_then timestamptz := to_timestamp(since);\n"
	"	to_then timestamptz := to_timestamp(until);\n"
	"	now timestamptz;\n"
	"BEGIN\n"
	"	LOOP\n"
	"		PERFORM zk_lock(path);\n"
	"		PERFORM zk_unlock(path);\n"
	"		now := clock_timestamp();\n"
	"		EXIT WHEN now >= to_then;\n"
	"		IF now >= from_then THEN count := count + 1; END IF;\n"
	"	END LOOP;\n"
	"	RETURN count;\n"
	"END $$";

typedef struct Hold
{
	int64_t		asked;
	int64_t		got;
	int64_t		release;
	int64_t		released;
} Hold;

typedef struct Client
{
	PGconn	   *conn;
	pthread_t	thread;
	char		error[400];		/* empty: none so far */

	/* what it is to do */
	char		path[1060];
	int			rounds;
	Hold	   *holds;
	char	   *text;			/* instead of holds: the function's result */
	int64_t		since;			/* for "own": the measured time */
	int64_t		until;
	int64_t		count;
} Client;

static const char *conninfo;
static const Subject *subject;
static Client clients[MAX_CLIENTS];
static int	n_clients;
static pthread_barrier_t barrier;

static int64_t
now_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

static int64_t
now(void)
{
	return now_of(CLOCK_MONOTONIC);
}

static void *
allocate(size_t count, size_t size)
{
	void	   *p = calloc(count ? count : 1, size);

	if (!p)
	{
		perror("pg");
		exit(1);
	}
	return p;
}

static bool
failed(Client *c, const char *what)
{
	const char *why = PQerrorMessage(c->conn);

	if (!c->error[0])
		snprintf(c->error, sizeof c->error, "%s: %s", what, why[0] ? why : "not what it should say");
	for (char *p = c->error; *p; p++)
	{
		if (*p == '\n')
			*p = ' ';
	}
	return false;
}

/*
 * Executes a prepared statement, or "BEGIN" and the like.  expected: its
 * result, or NULL
 */
static bool
run(Client *c, const char *statement, const char *value, const char *expected)
{
	PGresult   *res = value
		? PQexecPrepared(c->conn, statement, 1, &value, NULL, NULL, 0)
		: PQexec(c->conn, statement);
	bool		ok = PQresultStatus(res) == PGRES_TUPLES_OK || PQresultStatus(res) == PGRES_COMMAND_OK;

	if (ok && expected)
		ok = PQntuples(res) == 1 && strcmp(PQgetvalue(res, 0, 0), expected) == 0;
	PQclear(res);
	return ok || failed(c, statement);
}

static bool
acquire(Client *c, const char *path)
{
	return (subject->release || run(c, "BEGIN", NULL, NULL)) && run(c, "acquire", path, "t");
}

static bool
release(Client *c, const char *path)
{
	return subject->release ? run(c, "release", path, "t") : run(c, "COMMIT", NULL, NULL);
}

static void
finish(Client *c)
{
	PQfinish(c->conn);
	c->conn = NULL;
}

static bool
prepare(Client *c, const char *name, const char *sql)
{
	PGresult   *res = sql ? PQprepare(c->conn, name, sql, 0, NULL) : NULL;
	bool		ok = !sql || PQresultStatus(res) == PGRES_COMMAND_OK;

	PQclear(res);
	return ok || failed(c, sql);
}

static bool
connect_client(Client *c)
{
	c->error[0] = '\0';
	c->conn = PQconnectdb(conninfo);
	if (PQstatus(c->conn) != CONNECTION_OK)
		failed(c, "connect");
	else if (prepare(c, "acquire", subject->acquire) && prepare(c, "release", subject->release) &&
			 prepare(c, "try", subject->try) && prepare(c, "many", subject->many) &&
			 (!subject->loop || run(c, functions, NULL, NULL)))
		return true;
	finish(c);
	return false;
}

/* A client with a ZooKeeper session */
static bool
connect_and_warm(Client *c)
{
	const char *warm = "/bench/warm";

	if (!connect_client(c))
		return false;
	if (acquire(c, warm) && release(c, warm))
		return true;
	finish(c);
	return false;
}

/* Have exactly n clients; 0 is enough for the scenes with one client */
static bool
have_clients(int n)
{
	while (n_clients > n)
		finish(&clients[--n_clients]);
	while (n_clients < n)
	{
		if (!connect_and_warm(&clients[n_clients]))
		{
			printf("error %s\n", clients[n_clients].error);
			return false;
		}
		n_clients++;
	}
	return true;
}

/* Prints "ok", or the error of the first thread that failed */
static bool
all_well(int n)
{
	for (int i = 0; i < n; i++)
	{
		if (clients[i].error[0])
		{
			printf("error %s\n", clients[i].error);
			return false;
		}
	}
	printf("ok");
	return true;
}

static void
in_threads(int n, void *(*code) (void *))
{
	pthread_barrier_init(&barrier, NULL, n);
	for (int i = 0; i < n; i++)
	{
		if (pthread_create(&clients[i].thread, NULL, code, &clients[i]) != 0)
		{
			perror("pg: thread");
			exit(1);
		}
	}
	for (int i = 0; i < n; i++)
		pthread_join(clients[i].thread, NULL);
	pthread_barrier_destroy(&barrier);
}

/* -------------------------------------------------------------- the scenes */

/*
 * Calls a function above on the client's path; returns its result, to be
 * freed, or NULL
 */
static char *
call(Client *c, const char *function, const char *more)
{
	char		sql[2048];
	char	   *path = PQescapeLiteral(c->conn, c->path, strlen(c->path));
	PGresult   *res;
	char	   *text = NULL;

	snprintf(sql, sizeof sql, "SELECT pg_temp.%s(%s, %s)", function, path, more);
	PQfreemem(path);
	res = PQexec(c->conn, sql);
	if (PQresultStatus(res) == PGRES_TUPLES_OK && PQntuples(res) == 1)
		text = strdup(PQgetvalue(res, 0, 0));
	else
		failed(c, function);
	PQclear(res);
	return text;
}

/* c->rounds holds, into c->holds or c->text */
static void
hold(Client *c)
{
	if (subject->loop)
	{
		char		rounds[20];

		snprintf(rounds, sizeof rounds, "%d", c->rounds);
		c->text = call(c, "rounds", rounds);
		return;
	}
	for (int i = 0; i < c->rounds; i++)
	{
		Hold	   *h = &c->holds[i];

		h->asked = now();
		if (!acquire(c, c->path))
			return;
		h->got = h->release = now();
		if (!release(c, c->path))
			return;
		h->released = now();
	}
}

static void *
hold_thread(void *arg)
{
	pthread_barrier_wait(&barrier);
	hold(arg);
	return NULL;
}

static void
begin_holds(Client *c, const char *path, int rounds)
{
	snprintf(c->path, sizeof c->path, "%s", path);
	c->rounds = rounds;
	c->holds = allocate(rounds, sizeof(Hold));
	c->text = NULL;
	c->error[0] = '\0';
}

static void
end_holds(Client *c)
{
	free(c->holds);
	free(c->text);
	c->holds = NULL;
	c->text = NULL;
}

static void
do_free(const char *path, int rounds)
{
	Client	   *c = &clients[0];

	begin_holds(c, path, rounds);
	hold(c);
	if (all_well(1))
	{
		char	   *text = c->text;

		for (int i = 0; i < rounds; i++)
		{
			Hold		h = c->holds[i];

			if (subject->loop)
			{
				int			length = 0;

				sscanf(text, "%" SCNd64 ":%" SCNd64 ":%" SCNd64 ":%" SCNd64 "%n",
					   &h.asked, &h.got, &h.release, &h.released, &length);
				text += length;
			}
			printf(" %" PRId64 ":%" PRId64, h.got - h.asked, h.released - h.release);
		}
		printf("\n");
	}
	end_holds(c);
}

static void
do_hand(const char *path, int n, int rounds)
{
	if (!have_clients(n))
		return;
	for (int i = 0; i < n; i++)
		begin_holds(&clients[i], path, rounds);
	in_threads(n, hold_thread);
	if (all_well(n))
	{
		for (int i = 0; i < n; i++)
		{
			if (subject->loop)
				printf(" %s", clients[i].text);
			else
			{
				for (int k = 0; k < rounds; k++)
				{
					const Hold *h = &clients[i].holds[k];

					printf(" %" PRId64 ":%" PRId64 ":%" PRId64 ":%" PRId64, h->asked, h->got, h->release, h->released);
				}
			}
		}
		printf("\n");
	}
	for (int i = 0; i < n; i++)
		end_holds(&clients[i]);
}

static void *
own_thread(void *arg)
{
	Client	   *c = arg;

	pthread_barrier_wait(&barrier);
	if (subject->loop)
	{
		/* the function uses another clock */
		int64_t		other = now_of(CLOCK_REALTIME) - now();
		char		more[100];
		char	   *count;

		snprintf(more, sizeof more, "%.6f, %.6f", (c->since + other) / 1e9, (c->until + other) / 1e9);
		count = call(c, "own", more);
		c->count = count ? atoll(count) : 0;
		free(count);
		return NULL;
	}
	for (;;)
	{
		int64_t		t;

		if (!acquire(c, c->path) || !release(c, c->path))
			return NULL;
		t = now();
		if (t >= c->until)
			return NULL;
		c->count += t >= c->since;
	}
}

static void
do_own(const char *path, int n, double seconds)
{
	int64_t		since;
	int64_t		count = 0;

	if (!have_clients(n))
		return;
	since = now() + SECOND;
	for (int i = 0; i < n; i++)
	{
		Client	   *c = &clients[i];

		snprintf(c->path, sizeof c->path, "%s/%d", path, i + 1);
		c->error[0] = '\0';
		c->since = since;
		c->until = since + (int64_t) (seconds * SECOND);
		c->count = 0;
	}
	in_threads(n, own_thread);
	for (int i = 0; i < n; i++)
		count += clients[i].count;
	if (all_well(n))
		printf(" %" PRId64 ":%" PRId64 "\n", count, (int64_t) (seconds * SECOND));
}

/* They keep what they get until they are closed. */
static void
do_keep(const char *path, int n)
{
	char		own_path[1060];

	if (!have_clients(n))
		return;
	for (int i = 0; i < n; i++)
	{
		snprintf(own_path, sizeof own_path, "%s/%d", path, i + 1);
		clients[i].error[0] = '\0';
		acquire(&clients[i], own_path);
	}
	if (all_well(n))
		printf("\n");
}

/* Prints what one client measured, unless something went wrong; frees it */
static void
print_times(int64_t *ns, int rounds)
{
	if (all_well(1))
	{
		for (int i = 0; i < rounds; i++)
			printf(" %" PRId64, ns[i]);
		printf("\n");
	}
	free(ns);
}

/* "try" and "many": what a call of clients[0] costs, this many times */
static void
do_one(bool (*once) (Client *c, const char *value), const char *value, int rounds)
{
	Client	   *c = &clients[0];
	int64_t    *ns = allocate(rounds, sizeof *ns);

	c->error[0] = '\0';
	for (int i = 0; i < rounds && !c->error[0]; i++)
	{
		int64_t		start = now();

		once(c, value);
		ns[i] = now() - start;
	}
	print_times(ns, rounds);
}

static bool
try_once(Client *c, const char *path)
{
	return run(c, "try", path, "f");
}

static bool
many_once(Client *c, const char *paths)
{
	return run(c, "BEGIN", NULL, NULL) && run(c, "many", paths, "t") && run(c, "COMMIT", NULL, NULL);
}

static void
do_many(const char *path, int k, int rounds)
{
	size_t		size = k * (strlen(path) + 20) + 3;
	char	   *paths = allocate(size, 1);
	size_t		length = 0;

	for (int i = 1; i <= k; i++)
		length += snprintf(paths + length, size - length, "%c\"%s/%d\"", i == 1 ? '{' : ',', path, i);
	snprintf(paths + length, size - length, "}");
	do_one(many_once, paths, rounds);
	free(paths);
}

/* The backend exists already: its first call is measured. */
static void
do_first(const char *path, int rounds)
{
	Client	   *c = &clients[0];
	int64_t    *ns = allocate(rounds, sizeof *ns);

	have_clients(0);
	c->error[0] = '\0';
	for (int i = 0; i < rounds && !c->error[0]; i++)
	{
		int64_t		start;

		if (!connect_client(c))
			break;
		start = now();
		if (acquire(c, path))
		{
			ns[i] = now() - start;
			release(c, path);
		}
		finish(c);
	}
	print_times(ns, rounds);
}

static void
do_version(void)
{
	PGresult   *res = PQexec(clients[0].conn, "SELECT 'PostgreSQL ' || current_setting('server_version') || "
							 "', zklock ' || (SELECT extversion FROM pg_extension WHERE extname = 'zklock')");

	printf("ok %s\n", PQresultStatus(res) == PGRES_TUPLES_OK ? PQgetvalue(res, 0, 0) : "unknown");
	PQclear(res);
}

static void
answer(char *line)
{
	char		path[1024];
	const char *own_path = path;
	int			n;
	int			rounds;
	double		seconds;

	if (sscanf(line, "clients %d", &n) == 1 && n <= MAX_CLIENTS)
	{
		if (have_clients(n))
			printf("ok\n");
		return;
	}
	if (sscanf(line, "%*s %1000s", path) == 1 && strncmp(path, ROOT "/", sizeof ROOT) == 0)
		own_path += sizeof ROOT - 1;

	if (sscanf(line, "first %*s %d", &rounds) == 1)
	{
		do_first(own_path, rounds);
		return;
	}
	if (sscanf(line, "hand %*s %d %d", &n, &rounds) == 2 && n > 0 && n <= MAX_CLIENTS)
	{
		do_hand(own_path, n, rounds);
		return;
	}
	if (sscanf(line, "hold %*s %d", &n) == 1 && n > 0 && n <= MAX_CLIENTS)
	{
		do_keep(own_path, n);
		return;
	}
	if (sscanf(line, "own %*s %d %lf", &n, &seconds) == 2 && n > 0 && n <= MAX_CLIENTS)
	{
		do_own(own_path, n, seconds);
		return;
	}

	/* the scenes with one client */
	if (n_clients == 0 && !have_clients(1))
		return;
	if (sscanf(line, "free %*s %d", &rounds) == 1)
		do_free(own_path, rounds);
	else if (sscanf(line, "try %*s %d", &rounds) == 1 && subject->try)
		do_one(try_once, own_path, rounds);
	else if (sscanf(line, "many %*s %d %d", &n, &rounds) == 2 && subject->many)
		do_many(own_path, n, rounds);
	else if (strcmp(line, "version") == 0)
		do_version();
	else
		printf("error no such scene\n");
}

int
main(int argc, char **argv)
{
	char	   *line = NULL;
	size_t		size = 0;
	ssize_t		length;

	for (size_t i = 0; argc == 3 && i < sizeof subjects / sizeof subjects[0]; i++)
	{
		if (strcmp(argv[2], subjects[i].name) == 0)
			subject = &subjects[i];
	}
	if (!subject)
	{
		fprintf(stderr, "usage: pg CONNINFO zklock|zklock-xact|zklock-plpgsql|advisory\n");
		return 2;
	}
	conninfo = argv[1];

	if (!have_clients(1))
		return 1;
	printf("ready\n");
	fflush(stdout);
	while ((length = getline(&line, &size, stdin)) > 0)
	{
		if (line[length - 1] == '\n')
			line[length - 1] = '\0';
		if (strcmp(line, "quit") == 0)
			break;
		answer(line);
		fflush(stdout);
	}
	free(line);
	have_clients(0);
	return 0;
}

/*
 * See crew.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "crew.h"

#define SECOND		INT64_C(1000000000)
#define MAX_WORKERS 1024
#define MAX_WORDS	6

typedef struct Worker
{
	pid_t		pid;
	FILE	   *to;
	FILE	   *from;
} Worker;

/* of the first process: [0] does what one client does, the others contend */
static Worker workers[MAX_WORKERS + 1];
static int	n_workers;

/* of a worker */
static Client *client;
static struct Kept
{
	char	   *path;
	Lock	   *lock;
}		   *kept;
static int	n_kept;
static jmp_buf failed;
static bool can_fail;

static const char *hosts;
static int	session_timeout;

static int64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

static void
sleep_until(int64_t when)
{
	struct timespec t = {when / SECOND, when % SECOND};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

void *
allocate(size_t size)
{
	void	   *p = calloc(1, size ? size : 1);

	if (!p)
	{
		perror("calloc");
		_exit(1);
	}
	return p;
}

void
fail(const char *format,...)
{
	va_list		args;

	printf("error ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	if (!can_fail)
		_exit(1);
	longjmp(failed, 1);
}

void
split_path(const char *path, void (*each) (void *arg, const char *dir), void *arg)
{
	char		dir[1024];

	snprintf(dir, sizeof dir, "%s", path);
	for (char *slash = strchr(dir + 1, '/'); slash; slash = strchr(slash + 1, '/'))
	{
		*slash = '\0';
		each(arg, dir);
		*slash = '/';
	}
	each(arg, dir);
}

/* ------------------------------------------------------------ what a client does */

/* One object for each path, as an application would keep it */
static Lock *
lock_of(const char *path)
{
	for (int i = 0; i < n_kept; i++)
	{
		if (strcmp(kept[i].path, path) == 0)
			return kept[i].lock;
	}
	if (n_kept % 64 == 0 && !(kept = realloc(kept, (n_kept + 64) * sizeof *kept)))
		abort();
	kept[n_kept].lock = subject.lock(client, path, true);
	kept[n_kept].path = strdup(path);
	return kept[n_kept++].lock;
}

/* Times are printed at the end, not in between. */
static void
print_times(int64_t *times, int n)
{
	printf("ok");
	for (int i = 0; i < n; i++)
		printf(" %" PRId64, times[i]);
	free(times);
}

static void
do_free(const char *path, int rounds)
{
	Lock	   *lock = lock_of(path);
	int64_t    *times = allocate(2 * rounds * sizeof *times);

	for (int i = 0; i < rounds; i++)
	{
		int64_t		asked = now(),
					got;

		subject.acquire(lock);
		got = now();
		subject.release(lock);
		times[2 * i] = got - asked;
		times[2 * i + 1] = now() - got;
	}
	printf("ok");
	for (int i = 0; i < rounds; i++)
		printf(" %" PRId64 ":%" PRId64, times[2 * i], times[2 * i + 1]);
	free(times);
}

/* In a session of its own, since the recipe's try leaves a watch behind. */
static void
do_try(const char *path, int rounds)
{
	int64_t    *times = allocate(rounds * sizeof *times);
	Client	   *mine = subject.open(hosts, session_timeout, true);
	Lock	   *lock = subject.lock(mine, path, true);
	bool		taken = true;

	for (int i = 0; i < rounds && taken; i++)
	{
		int64_t		began = now();

		taken = !subject.try(lock);
		times[i] = now() - began;
	}
	if (!taken)
		subject.release(lock);
	subject.close(mine);
	subject.forget(lock);
	if (!taken)
		fail("nobody has it: %s", path);
	print_times(times, rounds);
}

/* One after another: there is no call for several locks. */
static void
do_many(const char *path, int k, int rounds)
{
	int64_t    *times = allocate(rounds * sizeof *times);
	Lock	  **locks = allocate(k * sizeof *locks);

	for (int i = 0; i < k; i++)
	{
		char		name[1024];

		snprintf(name, sizeof name, "%s/%d", path, i + 1);
		locks[i] = lock_of(name);
	}
	for (int i = 0; i < rounds; i++)
	{
		int64_t		began = now();

		for (int j = 0; j < k; j++)
			subject.acquire(locks[j]);
		for (int j = 0; j < k; j++)
			subject.release(locks[j]);
		times[i] = now() - began;
	}
	free(locks);
	print_times(times, rounds);
}

static void
do_first(const char *path, int rounds)
{
	int64_t    *times = allocate(rounds * sizeof *times);

	lock_of(path);				/* creates the directory */
	for (int i = 0; i < rounds; i++)
	{
		int64_t		began = now();
		Client	   *mine = subject.open(hosts, session_timeout, false);
		Lock	   *lock = subject.lock(mine, path, false);

		subject.acquire(lock);
		times[i] = now() - began;
		subject.release(lock);
		subject.close(mine);
		subject.forget(lock);
	}
	print_times(times, rounds);
}

static void
do_hand(const char *path, int64_t start, int rounds)
{
	Lock	   *lock = lock_of(path);
	int64_t    *times = allocate(4 * rounds * sizeof *times),
			   *t = times;

	sleep_until(start);
	for (int i = 0; i < rounds; i++)
	{
		*t++ = now();
		subject.acquire(lock);
		*t++ = now();
		*t++ = now();
		subject.release(lock);
		*t++ = now();
	}
	printf("ok");
	for (t = times; t < times + 4 * rounds; t += 4)
		printf(" %" PRId64 ":%" PRId64 ":%" PRId64 ":%" PRId64, t[0], t[1], t[2], t[3]);
	free(times);
}

/* Rounds that end within the measured time count. */
static void
do_own(const char *path, int64_t start, double seconds)
{
	Lock	   *lock = lock_of(path);
	int64_t		since = start + SECOND,
				until = since + (int64_t) (seconds * SECOND),
				count = 0,
				t;

	sleep_until(start);
	do
	{
		subject.acquire(lock);
		subject.release(lock);
		t = now();
		if (t >= since && t < until)
			count++;
	} while (t < until);
	printf("ok %" PRId64, count);
}

static void
work(char **word, int n)
{
	if (n == 3 && strcmp(word[0], "free") == 0)
		do_free(word[1], atoi(word[2]));
	else if (n == 3 && strcmp(word[0], "try") == 0 && subject.try)
		do_try(word[1], atoi(word[2]));
	else if (n == 4 && strcmp(word[0], "many") == 0 && subject.is_lock)
		do_many(word[1], atoi(word[2]), atoi(word[3]));
	else if (n == 3 && strcmp(word[0], "first") == 0)
		do_first(word[1], atoi(word[2]));
	else if (n == 4 && strcmp(word[0], "hand") == 0)
		do_hand(word[1], atoll(word[2]), atoi(word[3]));
	else if (n == 4 && strcmp(word[0], "own") == 0)
		do_own(word[1], atoll(word[2]), atof(word[3]));
	else
		fail("no such scene");
	printf("\n");
	fflush(stdout);
}

static int
split(char *line, char **word)
{
	int			n = 0;
	char	   *rest;

	for (char *w = strtok_r(line, " \n", &rest); w && n < MAX_WORDS; w = strtok_r(NULL, " \n", &rest))
		word[n++] = w;
	return n;
}

/* Its standard input and output are the pipes to the first process. */
static void
worker_main(void)
{
	char		line[4096];
	FILE	   *in = fdopen(STDIN_FILENO, "r");	/* stdin has a buffer of the first process */

	alarm(30);					/* ends the process if no server answers */
	client = subject.open(hosts, session_timeout, true);
	alarm(0);
	printf("ok\n");
	fflush(stdout);
	can_fail = true;
	setvbuf(in, NULL, _IONBF, 0);	/* so that poll sees everything that was not read yet */
	for (;;)
	{
		char	   *word[MAX_WORDS];

		subject.idle(client, STDIN_FILENO);
		if (!fgets(line, sizeof line, in))
			break;
		if (setjmp(failed) == 0)
			work(word, split(line, word));
	}
	subject.close(client);
	_exit(0);
}

/* ------------------------------------------------------------- the first process */

static void
start_worker(Worker *w)
{
	int			in[2],
				out[2];
	pid_t		parent = getpid();

	if (pipe(in) != 0 || pipe(out) != 0 || (w->pid = fork()) < 0)
	{
		perror("fork");
		exit(1);
	}
	if (w->pid == 0)
	{
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		/* the others must notice when the first process closes their pipes */
		for (int i = 0; i < n_workers; i++)
		{
			close(fileno(workers[i].to));
			close(fileno(workers[i].from));
		}
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		close(in[0]);
		close(in[1]);
		close(out[0]);
		close(out[1]);
		worker_main();
	}
	close(in[0]);
	close(out[1]);
	w->to = fdopen(in[1], "w");
	w->from = fdopen(out[0], "r");
	n_workers++;
}

static void
end_worker(Worker *w)
{
	n_workers--;
	fclose(w->to);
	fclose(w->from);
	waitpid(w->pid, NULL, 0);
}

/*
 * Returns what follows "ok", to be freed; on any other answer prints it and
 * returns NULL
 */
static char *
answer(Worker *w, bool told_already)
{
	char	   *line = NULL;
	size_t		size = 0;
	ssize_t		n = getline(&line, &size, w->from);

	if (n >= 3 && memcmp(line, "ok", 2) == 0)
	{
		line[n - 1] = '\0';
		memmove(line, line + 2, n - 2);
		return line;
	}
	if (!told_already)
		printf("%s", n > 0 ? line : "error a client has ended\n");
	free(line);
	return NULL;
}

/* Have n clients, besides the one that runs the scenes for one client. */
static bool
have_clients(int n)
{
	bool		ok = true;
	int			had = n_workers;

	if (n < 0 || n > MAX_WORKERS)
	{
		printf("error not so many clients\n");
		return false;
	}
	while (n_workers > n + 1)
		end_worker(&workers[n_workers - 1]);
	while (n_workers < n + 1)
		start_worker(&workers[n_workers]);
	for (int i = had; i < n_workers; i++)
	{
		char	   *text = answer(&workers[i], !ok);

		ok = ok && text;
		free(text);
	}
	while (!ok && n_workers > had)
		end_worker(&workers[n_workers - 1]);
	return ok;
}

/* All of them at once; their answers are printed, or added up */
static void
together(char **word)
{
	bool		own = strcmp(word[0], "own") == 0,
				ok = true;
	int			clients = atoi(word[2]);
	int64_t		start,
				count = 0;
	char	  **texts;

	if (!have_clients(clients))
		return;
	texts = allocate(clients * sizeof *texts);
	start = now() + SECOND / 5;
	for (int i = 1; i <= clients; i++)
	{
		fprintf(workers[i].to, "%s %s", word[0], word[1]);
		if (own)
			fprintf(workers[i].to, "/%d", i);
		fprintf(workers[i].to, " %" PRId64 " %s\n", start, word[3]);
		fflush(workers[i].to);
	}
	for (int i = 0; i < clients; i++)
	{
		texts[i] = answer(&workers[i + 1], !ok);
		ok = ok && texts[i];
		if (ok)
			count += atoll(texts[i]);
	}
	if (ok && own)
		printf("ok %" PRId64 ":%" PRId64 "\n", count, (int64_t) (atof(word[3]) * SECOND));
	else if (ok)
	{
		printf("ok");
		for (int i = 0; i < clients; i++)
			printf("%s", texts[i]);
		printf("\n");
	}
	for (int i = 0; i < clients; i++)
		free(texts[i]);
	free(texts);
}

int
main(int argc, char **argv)
{
	char		line[4096];

	if (argc < 3)
	{
		fprintf(stderr, "usage: %s HOSTS SESSION_TIMEOUT_MS\n", argv[0]);
		return 2;
	}
	hosts = argv[1];
	session_timeout = atoi(argv[2]);
	signal(SIGPIPE, SIG_IGN);
	zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);

	if (!have_clients(0))
	{
		fflush(stdout);
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n") != 0)
	{
		char		copy[4096],
				   *word[MAX_WORDS];
		int			n;

		strcpy(copy, line);
		n = split(copy, word);
		if (n == 1 && strcmp(word[0], "version") == 0)
			printf("ok %s\n", subject.version);
		else if (n == 2 && strcmp(word[0], "clients") == 0)
		{
			if (have_clients(atoi(word[1])))
				printf("ok\n");
		}
		else if (n == 4 && strcmp(word[0], "own") == 0)
			together(word);
		else if (n == 4 && strcmp(word[0], "hand") == 0 && subject.is_lock)
			together(word);
		else if (n > 0 && strcmp(word[0], "own") != 0 && strcmp(word[0], "hand") != 0)
		{
			char	   *text;

			fputs(line, workers[0].to);
			fflush(workers[0].to);
			text = answer(&workers[0], false);
			if (text)
				printf("ok%s\n", text);
			free(text);
		}
		else
			printf("error no such scene\n");
		fflush(stdout);
	}
	while (n_workers)
		end_worker(&workers[n_workers - 1]);
	return 0;
}

/*-------------------------------------------------------------------------
 *
 * memory_test.c
 *	  One walk through all of session.h, for t/042_memory.pl.
 *
 *		memory_test HOSTS SESSION_TIMEOUT_MS [FIRST_XID]
 *
 * Each line on stdin asks for one walk:
 *
 *		run DIR BIG PATIENCE_MS ENDING BOUND_MS KIND AT COUNT CROWD
 *
 * DIR is a directory that nobody else uses, BIG one with many children.
 * PATIENCE_MS is how long the walk waits for anything; an owner with less than
 * a second gives up at the first wait that was in vain, as a cancelled
 * statement does.  ENDING says what is done before zks_close: "tidy" gives all
 * back and waits until it is gone, "hasty" gives all back, "rude" nothing.
 * From the ATth call of KIND (memory, library, send, none) COUNT fail.
 *
 * The walk talks on stdout, a line each:
 *
 *		do create|delete|set PATH	somebody else does that; "ok" on stdin
 *									says that it is done
 *		session 0xID				a session that there was
 *		quiet 0xID					it has no node now: "ok" when looked at
 *		bad TEXT					what should not be
 *		done STEPS CALLS MS			steps finished, calls of KIND, and the time
 *
 * After each walk no thread, descriptor or (with the leak sanitizer) memory is
 * left.  What else there is to find is for sanitizers and valgrind.
 *
 *-------------------------------------------------------------------------
 */
#define NO_FAULTS
#include "faults.h"
#undef malloc
#undef calloc
#undef strdup
#undef eventfd
#undef getrandom
#undef pthread_attr_init
#undef pthread_create
#undef zookeeper_init2

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "session_int.h"

#define NNODES		40
#define NREQUESTS	40
#define NWATCHES	12

/* Longer than the second that a suspended session may take to be given up */
#define SETTLE_MS	8000

/* What zookeeper_close waits for a silent server, the linger, and a margin */
#define END_MS		9000

/*-------------------------------------------------------------------------
 * Calls that fail
 *-------------------------------------------------------------------------
 */

/* atomic, since a keeper that was left behind reads them without a mutex */
static atomic_int fault_kind;
static atomic_long fault_at,
			fault_count,
			calls;

int
fault_now(FaultKind kind)
{
	long		call;

	if ((int) kind != atomic_load(&fault_kind))
		return 0;
	call = atomic_fetch_add(&calls, 1) + 1;
	return call >= fault_at && call < fault_at + fault_count;
}

/*
 * The library's: each second fault takes half of what there is, then fails.
 * Such a connection is dead.
 */
ssize_t
send(int sock, const void *bytes, size_t len, int flags)
{
	if (fault_now(FAULT_SEND))
	{
		if (fault_at % 2 == 0 && len > 4)
			(void) sendto(sock, bytes, len / 2, flags, NULL, 0);
		shutdown(sock, SHUT_RDWR);
		errno = fault_at % 3 == 0 ? EPIPE : ECONNRESET;
		return -1;
	}
	return sendto(sock, bytes, len, flags, NULL, 0);
}

/*
 * The library counts its requests from the time of the first one on.  So one
 * can have it come to where 2^31 is, as it does in 2038 at the latest.
 */
static time_t time_for_library;

time_t
time(time_t *t)
{
	struct timespec now = {.tv_sec = time_for_library};

	if (now.tv_sec == 0)
		clock_gettime(CLOCK_REALTIME, &now);
	if (t != NULL)
		*t = now.tv_sec;
	return now.tv_sec;
}

/*-------------------------------------------------------------------------
 * The state of a walk
 *-------------------------------------------------------------------------
 */

/* What the leak sanitizer exports, if it is there */
extern int	__lsan_do_recoverable_leak_check(void) __attribute__((weak));

static const char *hosts;
static int	timeout_ms;

static ZkSession *session;
static ZkNode *nodes[NNODES];
static ZkRequest *requests[NREQUESTS];
static ZkWatch *watches[NWATCHES];
static char dir[256];
static char big[256];
static int	patience_ms;
static bool stop;				/* go to the end */
static int	steps;
static int64_t last_id;
static uint64_t last_ticket;
static bool in_vain;			/* some wait was */

static void
say(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static void
ask(const char *what, const char *path)
{
	char		line[64];

	say("%s %s", what, path);
	if (fgets(line, sizeof(line), stdin) == NULL)
		exit(3);
}

static ZkSessionState
state(void)
{
	ZkSessionInfo info;

	zks_info(session, &info);
	if (info.session_id != 0 && info.session_id != last_id)
	{
		last_id = info.session_id;
		say("session 0x%llx", (unsigned long long) last_id);
	}
	if (info.state == ZKS_OVER && info.error == 0)
		say("bad over without an error");
	return info.state;
}

/* Wait for something; false if it did not come, and perhaps never will */
#define WAIT_FOR(condition) \
	do { \
		int64_t		until_ = zks_now() + patience_ms * NS_PER_MS; \
		while (!(condition)) \
		{ \
			if (state() == ZKS_OVER || zks_now() > until_) \
			{ \
				in_vain = true; \
				if (state() == ZKS_OVER || patience_ms < 1000) \
					stop = true; \
				break; \
			} \
			nap(); \
		} \
	} while (0)

static void
nap(void)
{
	struct pollfd fd = {.fd = zks_notify_fd(session),.events = POLLIN};

	poll(&fd, 1, 20);
	zks_notify_clear(session);
}

static ZkNodeInfo
node(int i)
{
	ZkNodeInfo	info = {.state = ZKN_ABSENT};

	if (nodes[i] != NULL)
		zkn_info(session, nodes[i], &info);
	return info;
}

static bool
settled(int i)
{
	ZkNodeState s = node(i).state;

	return s != ZKN_CREATING && s != ZKN_UNSURE;
}

static bool
answered(int i)
{
	ZkAnswer	answer;

	return requests[i] == NULL || zks_answered(session, requests[i], &answer);
}

static bool
armed(int i)
{
	ZkWatchInfo info;

	if (watches[i] == NULL)
		return true;
	zks_watch_info(session, watches[i], &info);
	return info.state != ZKW_PENDING;
}

static ZkWatchState
watch_state(int i)
{
	ZkWatchInfo info;

	if (watches[i] == NULL)
		return ZKW_FAILED;
	zks_watch_info(session, watches[i], &info);
	return info.state;
}

static void
create(int i, const char *below, ZkpMode mode, bool parents)
{
	char		path[ZKS_PATH_LEN];
	char	   *dirs[] = {path};
	ZkpWant		want = {.mode = mode};

	snprintf(path, sizeof(path), "%s%s", dir, below);
	if (!zkn_create(session, dirs, 1, &want, parents, &nodes[i]))
		nodes[i] = NULL;
}

static void
discard(int i)
{
	uint64_t	ticket;

	if (nodes[i] == NULL)
		return;
	ticket = zkn_discard(session, nodes[i]);
	nodes[i] = NULL;
	if (ticket <= last_ticket)
		say("bad ticket %llu after %llu", (unsigned long long) ticket,
			(unsigned long long) last_ticket);
	last_ticket = ticket;
}

static void
unwatch(int i)
{
	if (watches[i] != NULL)
		zks_unwatch(session, watches[i]);
	watches[i] = NULL;
}

static void
forget(int i)
{
	if (requests[i] != NULL)
		zks_request_free(session, requests[i]);
	requests[i] = NULL;
}

/* The full path of a node of ours */
static const char *
path_of(int i, const char *below)
{
	static char path[ZKS_PATH_LEN];
	ZkNodeInfo	info = node(i);

	snprintf(path, sizeof(path), "%s%s/%s", dir, below,
			 info.name[0] != '\0' ? info.name : "none");
	return path;
}

static bool
reconnected(void)
{
	ZkSessionInfo info;

	zks_info(session, &info);
	return info.epoch != 1 || info.state != ZKS_CONNECTED;
}

static bool
all_gone(void)
{
	int			refused;

	return zkn_gone(session, 1, last_ticket, &refused);
}

/*-------------------------------------------------------------------------
 * The steps
 *-------------------------------------------------------------------------
 */

/* made with its directories; and one that joins it */
static void
step_create(void)
{
	create(0, "/p/q", ZKP_EXCLUSIVE, true);
	create(1, "/p/q", ZKP_SHARED, false);
	WAIT_FOR(settled(0) && settled(1));
}

/* no directory; a directory that cannot be; one that nobody else will use */
static void
step_absent(void)
{
	char		below[ZKS_PATH_LEN];

	create(2, "/none", ZKP_EXCLUSIVE, false);
	snprintf(below, sizeof(below), "/p/q/%s/x", node(0).name);
	if (node(0).state == ZKN_PRESENT)
		create(3, below, ZKP_EXCLUSIVE, true);
	create(9, "/r/s", ZKP_SHARED, true);
	WAIT_FOR(settled(2) && settled(3) && settled(9));
	discard(2);
	discard(3);
	discard(9);
}

/* The node that is ours, and was, must be in a list asked for in between */
static void
step_list(void)
{
	char		path[ZKS_PATH_LEN];
	ZkNodeState before = node(0).state;
	ZkAnswer	answer;

	snprintf(path, sizeof(path), "%s/p/q", dir);
	requests[0] = zks_list(session, path, false);
	requests[1] = zks_list(session, path, true);
	requests[2] = zks_list(session, path, true);
	forget(2);
	requests[2] = zks_list(session, big, false);
	requests[3] = zks_list(session, dir, true);
	WAIT_FOR(answered(0) && answered(1) && answered(2) && answered(3));
	forget(0);
	if (requests[1] != NULL && zks_answered(session, requests[1], &answer) &&
		answer.rc == ZOK && before == ZKN_PRESENT && node(0).state == ZKN_PRESENT &&
		state() != ZKS_OVER)
	{
		bool		found = false;

		for (int i = 0; i < answer.nchildren; i++)
			found |= strcmp(answer.children[i], node(0).name) == 0;
		if (!found)
			say("bad not in the list: %s", node(0).name);
	}
	if (requests[2] != NULL && zks_answered(session, requests[2], &answer) &&
		answer.rc == ZOK && answer.nchildren < 100)
		say("bad long list: %d", answer.nchildren);
	forget(1);
	forget(2);
	forget(3);
}

/*
 * Two on one node, one on nothing, one dropped before its answer; and the only
 * ones on their paths, which have to be taken away
 */
static void
step_watch(void)
{
	const char *path = path_of(0, "/p/q");

	watches[0] = zks_watch(session, path);
	watches[1] = zks_watch(session, path);
	watches[2] = zks_watch(session, "/none");
	watches[3] = zks_watch(session, path_of(1, "/p/q"));
	unwatch(3);
	watches[7] = zks_watch(session, dir);
	watches[8] = zks_watch(session, big);
	watches[9] = zks_watch(session, big);
	unwatch(8);
	if (nodes[0] != NULL)
		zkn_watch(session, nodes[0]);
	if (nodes[1] != NULL)
		zkn_watch(session, nodes[1]);
	WAIT_FOR(armed(0) && armed(1) && armed(2) && armed(7) && armed(9) && node(0).watch != ZKW_PENDING &&
			 node(1).watch != ZKW_PENDING);
	unwatch(0);
	unwatch(1);
	unwatch(2);
	unwatch(7);
	unwatch(9);
}

/* somebody else changes and deletes what we watch */
static void
step_event(void)
{
	char		other[300];

	snprintf(other, sizeof(other), "%s/other", dir);
	ask("do create", other);
	watches[4] = zks_watch(session, other);
	watches[5] = zks_watch(session, other);
	WAIT_FOR(armed(4) && armed(5));
	ask("do set", other);
	WAIT_FOR(watch_state(4) != ZKW_ARMED && watch_state(5) != ZKW_ARMED);
	unwatch(4);
	watches[4] = zks_watch(session, other);
	watches[6] = zks_watch(session, other);
	WAIT_FOR(armed(4) && armed(6));
	ask("do delete", other);
	WAIT_FOR(watch_state(4) != ZKW_ARMED);
	unwatch(4);
	unwatch(5);
	unwatch(6);
}

/* somebody else deletes what is ours */
static void
step_stolen(void)
{
	if (node(1).state != ZKN_PRESENT)
		return;
	zkn_watch(session, nodes[1]);
	WAIT_FOR(node(1).watch != ZKW_PENDING);
	ask("do delete", path_of(1, "/p/q"));
	WAIT_FOR(node(1).state == ZKN_LOST);
	discard(1);
}

static ZkRequest *
check(ZkNode *const *which, int n)
{
	int			asked = n;
	ZkRequest  *r = zkn_check(session, which, &asked);

	/* fewer are only asked for when memory is out */
	if (r != NULL && asked != n && atomic_load(&fault_kind) != FAULT_MEMORY)
		say("bad check of %d: only %d are asked for", n, asked);
	if (asked == 0 && r != NULL)
		say("bad check of nothing");
	return r;
}

/*
 * All there; as many as can be asked for; one that is not there; and one that
 * nobody waits for.  What is not in doubt must be so.
 */
static void
step_check(void)
{
	ZkNode	   *all[ZKN_CHECK_MAX];
	ZkNode	   *two[2];
	ZkAnswer	answer;
	bool		there = node(0).state == ZKN_PRESENT;

	create(7, "/p/q", ZKP_EXCLUSIVE, false);
	create(8, "/p/q", ZKP_EXCLUSIVE, false);
	WAIT_FOR(settled(7) && settled(8));
	if (!there || node(7).state != ZKN_PRESENT || node(8).state != ZKN_PRESENT)
		return;
	for (int i = 0; i < ZKN_CHECK_MAX; i++)
		all[i] = nodes[i % 2 == 0 ? 0 : 7];
	requests[4] = check(all, 2);
	requests[5] = check(all, 2);
	/* each path is an allocation, and each of them a walk */
	requests[6] = check(all, atomic_load(&fault_kind) == FAULT_MEMORY ? 10 : ZKN_CHECK_MAX);
	forget(5);
	WAIT_FOR(answered(4) && answered(6));
	for (int i = 4; i <= 6; i += 2)
	{
		if (requests[i] == NULL || !zks_answered(session, requests[i], &answer))
			continue;
		if (answer.rc != ZOK && !zks_is_doubtful(answer.rc))
			say("bad check: %d, missing %d", answer.rc, answer.missing);
	}
	ask("do delete", path_of(7, "/p/q"));
	two[0] = nodes[0];
	two[1] = nodes[7];
	requests[7] = check(two, 2);
	WAIT_FOR(answered(7));
	if (requests[7] != NULL && zks_answered(session, requests[7], &answer) &&
		!zks_is_doubtful(answer.rc) && (answer.rc != ZNONODE || answer.missing != 1) &&
		atomic_load(&fault_kind) != FAULT_MEMORY)
		say("bad check of one that is gone: %d, missing %d", answer.rc, answer.missing);
	zkn_lost(session, nodes[7]);
	if (node(7).state != ZKN_LOST)
		say("bad state of one that is lost: %d", (int) node(7).state);
	for (int i = 4; i <= 7; i++)
		forget(i);
	zkn_delete(session, nodes[7]);
	zkn_delete(session, nodes[8]);
	WAIT_FOR(node(7).state != ZKN_PRESENT && node(8).state != ZKN_PRESENT);
	if (!in_vain && node(8).state != ZKN_DELETED && !reconnected())
		say("bad state of one that was deleted: %d", (int) node(8).state);
	discard(7);
	discard(8);
}

/* given up in each state: asked for, there, watched, to be deleted */
static void
step_discard(void)
{
	create(4, "/p/q", ZKP_EXCLUSIVE, false);
	discard(4);
	create(5, "/p/q", ZKP_EXCLUSIVE, false);
	create(6, "/p/q", ZKP_EXCLUSIVE, false);
	WAIT_FOR(settled(5) && settled(6));
	if (nodes[5] != NULL)
		zkn_watch(session, nodes[5]);
	discard(5);
	if (node(6).state == ZKN_PRESENT)
		zkn_delete(session, nodes[6]);
	discard(6);
	WAIT_FOR(all_gone());
}

/* more than one flight, and than the socket surely takes */
static void
step_crowd(void)
{
	for (int i = 10; i < NNODES; i++)
		create(i, "/p/q", i % 3 ? ZKP_EXCLUSIVE : ZKP_SHARED, false);
	for (int i = 10; i < NNODES; i += 3)
		discard(i);
	for (int i = 10; i < NREQUESTS; i++)
		requests[i] = zks_list(session, big, i % 2 == 0);
	for (int i = 11; i < NNODES; i += 3)
		WAIT_FOR(settled(i));
	for (int i = 10; i < NREQUESTS; i++)
		WAIT_FOR(answered(i));
	for (int i = 10; i < NNODES; i++)
		discard(i);
	for (int i = 10; i < NREQUESTS; i++)
		forget(i);

	/* heartbeats, and the watch that one of them sets */
	if (!in_vain)
		for (int64_t until = zks_now() + timeout_ms * NS_PER_MS * 2 / 3;
			 zks_now() < until && state() != ZKS_OVER;)
			nap();
	WAIT_FOR(all_gone());
}

/*-------------------------------------------------------------------------
 * The end
 *-------------------------------------------------------------------------
 */

static void
give_all_back(void)
{
	/* what a step left open, when it was in vain */
	for (int i = 0; i < NREQUESTS; i++)
		forget(i);
	for (int i = 0; i < NWATCHES; i++)
		unwatch(i);
	for (int i = 0; i < NNODES; i++)
		discard(i);
}

/* Nothing hangs on the session any more that would grow with its life */
static bool
empty(void)
{
	sigset_t	saved;
	bool		result;

	zks_enter(session, &saved);
	result = session->nodes == NULL && session->requests == NULL &&
		session->watches == NULL && session->in_flight == 0;
	zks_leave(session, &saved);
	return result;
}

static void
describe_rest(void)
{
	sigset_t	saved;
	int			nnodes = 0,
				nrequests = 0,
				nwatches = 0;

	zks_enter(session, &saved);
	/* what a ZkNode looks like is node.c's own business */
	nnodes = session->nodes != NULL;
	for (ZkRequest *r = session->requests; r != NULL; r = r->next)
		nrequests++;
	for (ZkWatch *w = session->watches; w != NULL; w = w->next)
		nwatches++;
	say("bad left in the session: nodes %d, requests %d, watches %d, in flight %d, state %d",
		nnodes, nrequests, nwatches, session->in_flight, (int) session->info.state);
	zks_leave(session, &saved);
}

static void
tidy_up(void)
{
	int64_t		until = zks_now() + SETTLE_MS * NS_PER_MS;
	char		id[32];

	while (!empty() && zks_now() < until)
		nap();
	if (!empty())
	{
		describe_rest();
		return;
	}
	if (!all_gone())
		say("bad nothing left, but not gone");
	snprintf(id, sizeof(id), "0x%llx", (unsigned long long) last_id);
	if (state() == ZKS_CONNECTED)
		ask("quiet", id);
}

static int
count_entries(const char *name)
{
	DIR		   *d = opendir(name);
	int			n = 0;

	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

static void
end(const char *how, int bound_ms, int threads, int descriptors)
{
	int64_t		start;
	int64_t		ms;

	if (strcmp(how, "rude") != 0)
		give_all_back();
	if (strcmp(how, "tidy") == 0)
		tidy_up();
	(void) state();
	start = zks_now();
	zks_close(session, bound_ms);
	ms = (zks_now() - start) / NS_PER_MS;
	if (ms > bound_ms + 1500)
		say("bad close took %lld ms of %d", (long long) ms, bound_ms);

	/* the keeper may have been left behind: it must end by itself */
	for (start = zks_now();
		 count_entries("/proc/self/task") > threads &&
		 zks_now() - start < END_MS * NS_PER_MS;)
		poll(NULL, 0, 5);
	if (count_entries("/proc/self/task") > threads)
		say("bad the keeper has not ended");
	else if (count_entries("/proc/self/fd") != descriptors)
		say("bad %d descriptors, not %d", count_entries("/proc/self/fd"), descriptors);
}

/*
 * The thread sanitizer begins one of its own with the first.  One that has
 * been joined is still seen for a moment, so look for a while, once.
 */
static void *
do_nothing(void *argument)
{
	return argument;
}

static int
threads_without_session(void)
{
	static int	least = 0;
	pthread_t	thread;

	if (least != 0)
		return least;
	if (pthread_create(&thread, NULL, do_nothing, NULL) != 0)
		exit(2);
	pthread_join(thread, NULL);
	for (int i = 0; i < 40; i++)
	{
		int			n = count_entries("/proc/self/task");

		if (least == 0 || n < least)
			least = n;
		poll(NULL, 0, 5);
	}
	return least;
}

static void
walk(const char *ending, int bound_ms, bool crowd)
{
	static void (*const all[]) (void) = {
		step_create, step_absent, step_list, step_watch, step_event,
		step_stolen, step_check, step_discard, step_crowd
	};
	int			nsteps = (int) (sizeof(all) / sizeof(all[0])) - (crowd ? 0 : 1);
	int			threads = threads_without_session();
	int			descriptors = count_entries("/proc/self/fd");

	stop = in_vain = false;
	steps = 0;
	last_id = 0;
	last_ticket = 0;
	memset(nodes, 0, sizeof(nodes));
	memset(requests, 0, sizeof(requests));
	memset(watches, 0, sizeof(watches));

	session = zks_open(hosts, timeout_ms);
	if (session != NULL)
	{
		WAIT_FOR(state() == ZKS_CONNECTED);
		for (int i = 0; i < nsteps && !stop; i++)
		{
			all[i] ();
			if (!in_vain)
				steps++;
		}
		end(ending, bound_ms, threads, descriptors);
		session = NULL;
	}
	else if (count_entries("/proc/self/fd") != descriptors)
		say("bad descriptors after a failed zks_open");
	if (__lsan_do_recoverable_leak_check != NULL && __lsan_do_recoverable_leak_check())
		say("bad leak");
}

int
main(int argc, char **argv)
{
	static const char *const kinds[FAULT_KINDS] = {"none", "memory", "library", "send"};
	char		line[1024];

	if (argc != 3 && argc != 4)
		return 2;
	time_for_library = argc == 4 ? atol(argv[3]) : 0;
	hosts = argv[1];
	timeout_ms = atoi(argv[2]);

	while (fgets(line, sizeof(line), stdin) != NULL)
	{
		char		ending[16];
		char		kind[16];
		int			bound_ms;
		int			crowd;
		long		at;
		long		count;
		int64_t		start = zks_now();

		if (sscanf(line, "run %255s %255s %d %15s %d %15s %ld %ld %d", dir, big,
				   &patience_ms, ending, &bound_ms, kind, &at, &count,
				   &crowd) != 9)
			return 2;
		atomic_store(&fault_at, at);
		atomic_store(&fault_count, count);
		atomic_store(&calls, 0);
		atomic_store(&fault_kind, FAULT_NONE);
		for (int i = 1; i < FAULT_KINDS; i++)
		{
			if (strcmp(kind, kinds[i]) == 0)
				atomic_store(&fault_kind, i);
		}
		walk(ending, bound_ms, crowd);
		say("done %d %ld %lld", steps, atomic_load(&calls),
			(long long) ((zks_now() - start) / NS_PER_MS));
	}
	return 0;
}

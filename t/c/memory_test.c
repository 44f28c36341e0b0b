/*-------------------------------------------------------------------------
 *
 * memory_test.c
 *	  One walk through all that zk/ offers, or many at random, for
 *	  t/040_sanitizers.pl.
 *
 *		memory_test HOSTS SESSION_TIMEOUT_MS random SECONDS SEED
 *
 * Opens and closes sessions, and does everything at random moments, while the server
 * is disturbed.  Prints failures ("bad ..."), and how much was done.
 *
 *		memory_test HOSTS SESSION_TIMEOUT_MS [FIRST_XID [RECEIVE_BUFFER]]
 *
 * Each line on stdin asks for one walk:
 *
 *		run DIR BIG PATIENCE_MS ENDING BOUND_MS KIND AT COUNT CROWD
 *
 * DIR is a directory that nobody else uses, BIG one with many children.
 * PATIENCE_MS is how long the walk waits for anything; with less than a second
 * it gives up at the first wait that times out, as a canceled statement does.
 * ENDING says what is done before zks_close: "tidy" gives everything back and
 * waits until it is gone, "hasty" begins requests that it will not see the end
 * of and gives everything back, "rude" gives nothing back, "held" is "rude"
 * while the answer to a read of a group is held back.
 * CROWD: 1 includes the steps with many requests, 2 also those with a thousand
 * nodes; else 0.  RECEIVE_BUFFER limits the socket buffers, as
 * net.core.rmem_max does.
 * COUNT calls of KIND (memory, library, send, none) fail, from the ATth on.
 *
 * The walk prints requests and results, one per line:
 *
 *		do create|delete|set PATH	another client is to do that; "ok" on stdin
 *									says that it is done
 *		do hold OP					hold back the next answer to OP
 *		do wait OP					wait until that has happened
 *		do steal DIR				another client deletes what is in there, then
 *									the held answer is released
 *		do forbid|allow DIR			make what is in there read-only, or writable
 *		session 0xID				the id of a session that existed
 *		quiet 0xID					it has no nodes now: "ok" when that was checked
 *		bad TEXT					a failure
 *		done STEPS CALLS			steps finished, and calls of KIND
 *
 * After each walk no thread, descriptor or (with the leak sanitizer) memory
 * may be left.  Sanitizers and valgrind find the rest.
 *
 *-------------------------------------------------------------------------
 */
#define NO_FAULTS
#include "faults.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "zk/mark.h"
#include "zk/request_private.h"
#include "zk/stop_signal.h"
#include "zk/tls.h"
#include "zk/watch_private.h"

#define NCROWD		40
#define GROUPS		NCROWD		/* the first of the nodes that are made together */
#define SHARES		(GROUPS + 20)	/* the first of those that become shared */
#define MARKED		(SHARES + 30)	/* the first of those under which there are marks */
#define NMARKS		10
#define NNODES		(MARKED + NMARKS)
#define NREQUESTS	60
#define NWATCHES	24

/* Longer than a suspended session may take until it is given up */
#define SETTLE_MS	8000

/* For a thousand answers that arrive in small pieces, on a busy machine */
#define LONGEST_MS	60000

/*
 * How long zookeeper_close waits for a silent server, the linger, and a margin
 */
#define END_MS		9000

/*-------------------------------------------------------------------------
 * Calls that fail
 *-------------------------------------------------------------------------
 */

/* atomic, since a keeper that was left behind reads it without a mutex */
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
 * The library's own send(): for every other fault position half of the data is
 * sent before it fails.  The connection is then dead.
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

static int	most_receive_buffer;

int
meagre_setsockopt(int sock, int level, int name, const void *value, socklen_t len)
{
	int			size = *(const int *) value;

	if (level == SOL_SOCKET && name == SO_RCVBUF && most_receive_buffer > 0 &&
		size > most_receive_buffer)
		size = most_receive_buffer;
	return setsockopt(sock, level, name, &size, len);
}

/*
 * The library numbers its requests starting from the current time.  So a test
 * can make it reach 2^31, as it will in 2038 at the latest.
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

/* Exported by the leak sanitizer, if present */
extern int	__lsan_do_recoverable_leak_check(void) __attribute__((weak));

static const char *hosts;
static int	timeout_ms;
static int	threads,			/* without a session */
			descriptors;

static ZkSession *session;
static ZkNode *nodes[NNODES];
static ZkRequest *requests[NREQUESTS];
static ZkWatch *watches[NWATCHES];
static char *watched[NWATCHES];	/* at random: whose list, or NULL */
static ZkMark *marks[NMARKS];
static ZkMarks left;			/* by earlier sessions */
static char dir[256];
static char big[256];
static int	patience_ms;
static bool stop;				/* skip the remaining steps */
static int	steps;
static int	nwalks;
static int64_t last_id;
static uint64_t last_ticket;
static bool in_vain;			/* a wait has timed out */

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

/* Good until the sixteenth next one */
static char *
printed(const char *format,...)
{
	static char paths[16][ZKS_PATH_LEN];
	static int	next = 0;
	char	   *result = paths[next++ % 16];
	va_list		args;

	va_start(args, format);
	vsnprintf(result, ZKS_PATH_LEN, format, args);
	va_end(args);
	return result;
}

/* With another session */
static void
begin(void)
{
	stop = in_vain = false;
	steps = 0;
	last_id = 0;
	last_ticket = 0;
	memset(nodes, 0, sizeof(nodes));
	memset(requests, 0, sizeof(requests));
	memset(watches, 0, sizeof(watches));
	memset(watched, 0, sizeof(watched));
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
	ZkSessionInfo info = zks_info(session);

	if (info.session_id != 0 && info.session_id != last_id)
	{
		last_id = info.session_id;
		say("session 0x%llx", (unsigned long long) last_id);
	}
	if (info.state == ZKS_OVER && info.error == 0)
		say("bad over without an error");
	/* once everything was lost, the walk is as good as over */
	return info.losses > 0 ? ZKS_OVER : info.state;
}

/* Wait for something; false if it did not happen in time */
#define WAIT_FOR(condition) \
	do { \
		int64_t		until_ = zks_now() + patience_ms * ZKS_MS; \
		while (!(condition)) \
		{ \
			if (state() == ZKS_OVER || zks_now() > until_) \
			{ \
				in_vain = true; \
				if (state() == ZKS_OVER || patience_ms < 1000) \
					stop = true; \
				break; \
			} \
			nap(20); \
		} \
	} while (0)

static void
nap(int ms)
{
	struct pollfd fd = {.fd = zks_await(session, NULL),.events = POLLIN};

	poll(&fd, 1, ms);
	zks_awaited(session);
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

/* Unlike the one above, false if nothing was asked */
static bool
has_answer(int i, ZkAnswer *answer)
{
	return requests[i] != NULL && zks_answered(session, requests[i], answer);
}

static ZkWatchState
watch_state(int i)
{
	ZkWatchInfo info;

	if (watches[i] == NULL)
		return ZKR_WATCH_FAILED;
	zks_watch_info(session, watches[i], &info);
	return info.state;
}

static bool
all_settled(void)
{
	for (int i = 0; i < NNODES; i++)
	{
		if (nodes[i] != NULL && !settled(i))
			return false;
	}
	return true;
}

/* All requests, and all watches with a path of their own */
static bool
all_answered(void)
{
	for (int i = 0; i < NREQUESTS; i++)
	{
		if (!answered(i))
			return false;
	}
	for (int i = 0; i < NWATCHES; i++)
	{
		if (watch_state(i) == ZKR_WATCH_PENDING)
			return false;
	}
	return true;
}

/* n of them in one transaction, from index i on */
static void
create_group(int i, int n, const char *const *below, ZkpMode mode, ZkpStyle style, bool parents)
{
	char	   *dirs[8];
	ZkpWant		want = {.mode = mode,.style = style,.permits = 3,.identity = "host a\n"};

	for (int k = 0; k < n; k++)
		dirs[k] = printed("%s%s", dir, below[k]);
	if (!zkn_create(session, dirs, n, &want, parents, &nodes[i]))
		memset(&nodes[i], 0, n * sizeof(ZkNode *));
}

static void
create_as(int i, const char *below, ZkpMode mode, ZkpStyle style, bool parents)
{
	create_group(i, 1, &below, mode, style, parents);
}

static void
create(int i, const char *below, ZkpMode mode, bool parents)
{
	create_as(i, below, mode, ZKP_CURATOR, parents);
}

/* Tickets increase: nodes with an earlier one are, or will be, gone or readers */
static void
take_ticket(uint64_t ticket)
{
	if (ticket <= last_ticket)
		say("bad ticket %llu after %llu", (unsigned long long) ticket,
			(unsigned long long) last_ticket);
	last_ticket = ticket;
}

static void
discard(int i)
{
	if (nodes[i] != NULL)
		take_ticket(zkn_discard(session, nodes[i]));
	nodes[i] = NULL;
}

static void
discard_some(int first, int n)
{
	for (int i = first; i < first + n; i++)
		discard(i);
}

static void
delete_node(int i)
{
	if (node(i).state == ZKN_PRESENT)
		zkn_delete(session, nodes[i]);
}

static void
watch_node(int i)
{
	if (nodes[i] != NULL)
		zkn_watch(session, nodes[i]);
}

static uint64_t
share(int i)
{
	uint64_t	ticket = nodes[i] != NULL ? zkn_share(session, nodes[i]) : 0;

	if (ticket != 0)
		take_ticket(ticket);
	return ticket;
}

static bool
shared(int i)
{
	ZkNodeInfo	info = node(i);

	return !info.sharing || info.state != ZKN_PRESENT;
}

static void
unwatch(int i)
{
	if (watches[i] != NULL)
		zks_unwatch(session, watches[i], false);
	watches[i] = NULL;
	watched[i] = NULL;
}

static void
forget(int i)
{
	if (requests[i] != NULL)
		zks_request_free(session, requests[i]);
	requests[i] = NULL;
}

static void
forget_all(void)
{
	for (int i = 0; i < NREQUESTS; i++)
		forget(i);
	for (int i = 0; i < NWATCHES; i++)
		unwatch(i);
}

/* How many watches are kept there */
static int
count_watches(const char *path)
{
	int			n = 0;
	ZkWatch    *w;

	zks_enter(session);
	LIST_FOREACH(w, &session->watches.all, in_list)
		n += strcmp(w->path, path) == 0;
	zks_leave(session);
	return n;
}

/* The full path of a node of ours */
static const char *
path_of(int i)
{
	ZkNodeInfo	info = node(i);

	return printed("%s/p/q/%s", dir, info.name[0] != '\0' ? info.name : "none");
}

static bool
reconnected(void)
{
	ZkSessionInfo info = zks_info(session);

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

/* A node whose directories are created, and a second one that joins it */
static void
step_create(void)
{
	create(0, "/p/q", ZKP_EXCLUSIVE, true);
	create(1, "/p/q", ZKP_SHARED, false);
	WAIT_FOR(all_settled());
}

/* No directory; an impossible directory; one that nobody else will use */
static void
step_absent(void)
{
	create(2, "/none", ZKP_EXCLUSIVE, false);
	if (node(0).state == ZKN_PRESENT)
		create(3, printed("/p/q/%s/x", node(0).name), ZKP_EXCLUSIVE, true);
	create(9, "/r/s", ZKP_SHARED, true);
	WAIT_FOR(all_settled());
	discard(2);
	discard(3);
	discard(9);
}

/* The node must be in the list exactly once, under its old or its new name */
static void
is_once(int i, const char *old, const char *name)
{
	ZkAnswer	answer;
	int			n = 0;

	if (!has_answer(i, &answer) || answer.rc != ZOK)
		return;
	for (int k = 0; k < answer.nchildren; k++)
		n += strcmp(answer.children[k], name) == 0 || strcmp(answer.children[k], old) == 0;
	if (n != 1)
		say("bad list: %s is there %d times", name, n);
}

/* A list requested while the node is ours throughout must contain it */
static void
step_list(void)
{
	const char *list = printed("%s/p/q", dir);
	ZkNodeState before = node(0).state;
	ZkAnswer	answer;

	requests[0] = zks_list(session, list, false, false);
	requests[1] = zks_list(session, list, true, false);
	requests[2] = zks_list(session, list, true, false);
	forget(2);
	requests[2] = zks_list(session, big, false, false);
	requests[3] = zks_list(session, dir, true, false);
	WAIT_FOR(all_answered());
	if (before == ZKN_PRESENT && node(0).state == ZKN_PRESENT && state() != ZKS_OVER)
		is_once(1, node(0).name, node(0).name);
	if (has_answer(2, &answer) && answer.rc == ZOK && answer.nchildren < 100)
		say("bad long list: %d", answer.nchildren);
	forget_all();
}

/*
 * Two watches on one node, one on a missing node, one dropped before its
 * answer; and the only ones on their paths, which have to be removed
 */
static void
step_watch(void)
{
	const char *own = path_of(0);

	watches[0] = zks_watch(session, own);
	watches[1] = zks_watch(session, own);
	watches[2] = zks_watch(session, "/none");
	watches[3] = zks_watch(session, path_of(1));
	unwatch(3);
	watches[7] = zks_watch(session, dir);
	watches[8] = zks_watch(session, big);
	watches[9] = zks_watch(session, big);
	unwatch(8);
	watch_node(0);
	watch_node(1);
	requests[0] = zks_list_and_watch(session, dir, false, &watches[14]);
	requests[1] = zks_list_and_watch(session, dir, true, &watches[15]);
	requests[2] = zks_list_and_watch(session, "/none", false, &watches[16]);
	requests[3] = zks_list_and_watch(session, big, true, &watches[17]);
	forget(1);
	unwatch(17);
	WAIT_FOR(all_answered() && node(0).watch != ZKR_WATCH_PENDING && node(1).watch != ZKR_WATCH_PENDING);
	forget_all();
}

/* Another client changes and deletes a node that we watch */
static void
step_event(void)
{
	const char *other = printed("%s/other", dir);
	int			nwatches;

	requests[0] = zks_list_and_watch(session, dir, false, &watches[14]);
	WAIT_FOR(watch_state(14) != ZKR_WATCH_PENDING);
	forget(0);
	nwatches = count_watches(dir);
	for (int i = 0; i < 3 && watch_state(14) == ZKR_WATCH_ARMED; i++)
	{
		requests[0] = zks_list_and_watch(session, dir, i == 1, &watches[14]);
		if (i == 2)				/* before the last one is answered */
			requests[1] = zks_list_and_watch(session, dir, false, &watches[14]);
		WAIT_FOR(all_answered());
		if (answered(0) && answered(1) && count_watches(dir) > nwatches)
			say("bad each look leaves a watch");
		nwatches = count_watches(dir);
		forget(0);
		forget(1);
	}
	ask("do create", other);
	if (watch_state(14) == ZKR_WATCH_ARMED)
		requests[0] = zks_list_and_watch(session, dir, false, &watches[14]);	/* before its event is read */
	WAIT_FOR(answered(0));
	forget(0);
	watches[4] = zks_watch(session, other);
	watches[5] = zks_watch(session, other);
	WAIT_FOR(all_answered());
	ask("do set", other);
	WAIT_FOR(watch_state(4) != ZKR_WATCH_ARMED && watch_state(5) != ZKR_WATCH_ARMED);
	unwatch(4);
	watches[4] = zks_watch(session, other);
	watches[6] = zks_watch(session, other);
	WAIT_FOR(all_answered());
	ask("do delete", other);
	WAIT_FOR(watch_state(4) != ZKR_WATCH_ARMED && watch_state(14) != ZKR_WATCH_ARMED);
	forget_all();
}

/* Another client deletes our node */
static void
step_stolen(void)
{
	if (node(1).state != ZKN_PRESENT)
		return;
	zkn_watch(session, nodes[1]);
	WAIT_FOR(node(1).watch != ZKR_WATCH_PENDING);
	ask("do delete", path_of(1));
	WAIT_FOR(node(1).state == ZKN_LOST);
	discard(1);
}

static ZkRequest *
check(ZkNode *const *which, int n)
{
	int			asked = n;
	ZkRequest  *r = zkn_check(session, which, &asked);

	/* fewer are requested only when out of memory */
	if (r != NULL && asked != n && atomic_load(&fault_kind) != FAULT_MEMORY)
		say("bad check of %d: only %d are asked for", n, asked);
	if (asked == 0 && r != NULL)
		say("bad check of nothing");
	return r;
}

/*
 * A check that is answered without doubt is right: all are there, or this one is
 * missing
 */
static void
is_right(int i, const char *what, int missing)
{
	ZkAnswer	answer;

	if (has_answer(i, &answer) && !zks_is_doubtful(answer.rc) &&
		(missing < 0 ? answer.rc != ZOK : answer.rc != ZNONODE || answer.missing != missing))
		say("bad %s: check says %d, %d is missing", what, answer.rc, answer.missing);
	forget(i);
}

/*
 * Checks of nodes that all exist; of as many as can be requested; with one
 * missing node; and one that is dropped.  An answer that is not doubtful must
 * be right.
 */
static void
step_check(void)
{
	ZkNode	   *all[ZKN_CHECK_MAX];
	bool		there = node(0).state == ZKN_PRESENT;

	create(7, "/p/q", ZKP_EXCLUSIVE, false);
	create(8, "/p/q", ZKP_EXCLUSIVE, false);
	WAIT_FOR(all_settled());
	if (!there || node(7).state != ZKN_PRESENT || node(8).state != ZKN_PRESENT)
		return;
	for (int i = 0; i < ZKN_CHECK_MAX; i++)
		all[i] = nodes[i % 2 == 0 ? 0 : 7];
	requests[4] = check(all, 2);
	requests[5] = check(all, 2);
	/* each path is an allocation, and the test walks through each of them */
	requests[6] = check(all, atomic_load(&fault_kind) == FAULT_MEMORY ? 10 : ZKN_CHECK_MAX);
	forget(5);
	WAIT_FOR(answered(4) && answered(6));
	is_right(4, "check", -1);
	is_right(6, "check", -1);
	ask("do delete", path_of(7));
	requests[7] = check(all, 2);
	WAIT_FOR(answered(7));
	if (atomic_load(&fault_kind) != FAULT_MEMORY)
		is_right(7, "check of one that is gone", 1);
	zkn_report_lost(session, nodes[7], ZK_LOST_NODE);
	if (node(7).state != ZKN_LOST)
		say("bad state of one that is lost: %d", (int) node(7).state);
	forget(7);
	zkn_delete(session, nodes[7]);
	zkn_delete(session, nodes[8]);
	WAIT_FOR(node(7).state != ZKN_PRESENT && node(8).state != ZKN_PRESENT);
	if (!in_vain && node(8).state != ZKN_DELETED && !reconnected())
		say("bad state of one that was deleted: %d", (int) node(8).state);
	discard(7);
	discard(8);
}

/* Discarded in each state: requested, present, watched, being deleted */
static void
step_discard(void)
{
	create(4, "/p/q", ZKP_EXCLUSIVE, false);
	discard(4);
	create(5, "/p/q", ZKP_EXCLUSIVE, false);
	create(6, "/p/q", ZKP_EXCLUSIVE, false);
	WAIT_FOR(all_settled());
	watch_node(5);
	discard(5);
	delete_node(6);
	discard(6);
	WAIT_FOR(all_gone());
}

/*
 * Created together: none, if one cannot be; all, in one transaction; two in
 * one directory; all discarded at once, and some of them.
 */
static void
step_group(void)
{
	static const char *const bad[] = {"/p/q", "/none/x", "/p/q"};
	static const char *const good[] = {"/g/a", "/g/b", "/p/q", "/p/q"};
	const int	g = GROUPS;
	ZkNodeInfo	info[4];
	bool		sure = node(0).state == ZKN_PRESENT;
	int			npresent = 0;

	create_group(g, 3, bad, ZKP_EXCLUSIVE, ZKP_CURATOR, false);
	create_group(g + 3, 4, good, ZKP_EXCLUSIVE, ZKP_CURATOR, true);
	create_group(g + 7, 3, good + 1, ZKP_SEMAPHORE, ZKP_CURATOR, false);
	discard_some(g + 7, 3);
	create_group(g + 10, 3, good + 1, ZKP_SHARED, ZKP_CURATOR, false);
	discard(g + 11);
	create_group(g + 13, 2, bad, ZKP_EXCLUSIVE, ZKP_CURATOR, true);
	WAIT_FOR(all_settled());

	for (int i = 0; i < 3; i++)
	{
		info[i] = node(g + i);
		if (nodes[g + i] != NULL && info[i].state == ZKN_PRESENT)
			say("bad group: %d is there, although one has no directory", i);

		/*
		 * each may be absent after a doubt; the code that the others have is one
		 * where a connection was dropped
		 */
		if (sure && settled(g + i) && nodes[g + i] != NULL && info[i].state == ZKN_ABSENT &&
			state() != ZKS_OVER && info[i].rc != (i == 1 ? ZNONODE : ZRUNTIMEINCONSISTENCY) &&
			!(zks_is_doubtful(info[i].rc) && (info[i].rc != ZRUNTIMEINCONSISTENCY || reconnected())))
			say("bad group: %d is absent with %d", i, info[i].rc);
	}
	for (int i = 0; i < 4; i++)
	{
		info[i] = node(g + 3 + i);
		npresent += info[i].state == ZKN_PRESENT;
	}
	for (int i = 0; i < 4; i++)
	{
		if (info[i].state == ZKN_PRESENT && (info[i].czxid <= 0 || info[i].name[0] == '\0'))
			say("bad group: one has no czxid, or no name");
		for (int j = 0; j < i; j++)
		{
			if (info[i].state != ZKN_PRESENT || info[j].state != ZKN_PRESENT)
				continue;
			if (info[i].czxid != info[j].czxid)
				say("bad group: two transactions");
			if (strcmp(info[i].name, info[j].name) == 0)
				say("bad group: two have one name");
		}
	}
	if (npresent != 0 && npresent != 4 && !in_vain && state() != ZKS_OVER)
		say("bad group: %d of 4 are there", npresent);
	if (npresent == 4)
	{
		requests[8] = check(&nodes[g + 3], 4);
		zkn_watch(session, nodes[g + 3]);
		zkn_watch(session, nodes[g + 4]);
		WAIT_FOR(answered(8) && node(g + 3).watch != ZKR_WATCH_PENDING);
		is_right(8, "group", -1);
		zkn_delete(session, nodes[g + 5]);
		WAIT_FOR(node(g + 5).state != ZKN_PRESENT);
	}
	discard_some(g, 15);
	WAIT_FOR(all_gone());
}

/*
 * The node of a group that is read to verify it has vanished by then: each of
 * them is looked for.
 */
static void
step_robbed(void)
{
	static const char *const dirs[] = {"/g/a", "/p/q", "/g/a"};
	const int	g = GROUPS;

	create(g + 3, "/g/a", ZKP_SHARED, true);
	WAIT_FOR(settled(g + 3));
	discard(g + 3);
	WAIT_FOR(all_gone());
	ask("do hold", "exists");
	create_group(g, 3, dirs, ZKP_EXCLUSIVE, ZKP_CURATOR, false);
	ask("do steal", printed("%s/g/a", dir));
	WAIT_FOR(all_settled());
	if (node(g).state == ZKN_PRESENT && node(g + 2).state != ZKN_PRESENT && !in_vain && !reconnected())
		say("bad group: one is gone, the other is there");
	discard_some(g, 3);
	WAIT_FOR(all_gone());
}

/*
 * Single nodes: a second one at the same path, which cannot be; a check of them with
 * one of a queue; one that another client deletes; one that is discarded at once.
 */
static void
step_single(void)
{
	const int	g = GROUPS;

	create_as(g, "/p/one", ZKP_EXCLUSIVE, ZKP_SINGLE, true);
	create_as(g + 1, "/s/two", ZKP_EXCLUSIVE, ZKP_SINGLE, true);
	WAIT_FOR(all_settled());
	create_as(g + 2, "/p/one", ZKP_EXCLUSIVE, ZKP_SINGLE, false);
	create_as(g + 3, "/p/three", ZKP_EXCLUSIVE, ZKP_SINGLE, false);
	discard(g + 3);
	WAIT_FOR(all_settled());
	if (node(g).state == ZKN_PRESENT && node(g + 2).state == ZKN_PRESENT)
		say("bad single: two at one path");
	if (node(0).state == ZKN_PRESENT && node(g).state == ZKN_PRESENT && node(g + 1).state == ZKN_PRESENT)
	{
		ZkNode	   *all[] = {nodes[g + 1], nodes[0], nodes[g]};

		zkn_watch(session, nodes[g]);
		zkn_watch(session, nodes[g + 1]);
		requests[8] = check(all, 3);
		WAIT_FOR(answered(8) && node(g).watch != ZKR_WATCH_PENDING && node(g + 1).watch != ZKR_WATCH_PENDING);
		is_right(8, "single", -1);
		ask("do delete", printed("%s/s/two", dir));
		requests[8] = check(all, 3);
		WAIT_FOR(answered(8));
		is_right(8, "single, one gone", 0);
		zkn_delete(session, nodes[g]);
		WAIT_FOR(node(g).state != ZKN_PRESENT);
		if (!in_vain && node(g).state != ZKN_DELETED && !reconnected())
			say("bad single: state of one that was deleted: %d", (int) node(g).state);
	}
	discard_some(g, 3);
	WAIT_FOR(all_gone());
}

/*
 * The holder becomes a reader, by its data or by its name, and continues as
 * one; is discarded or deleted before and after the answer; was watched, or
 * had vanished; and a check comes in between.
 */
static void
step_share(void)
{
	enum {STAYS, SHARE_DISCARD, SHARE_DELETE, DISCARDED, DELETED, STOLEN, TWICE, NKINDS};
	static const ZkpStyle styles[] = {ZKP_CURATOR, ZKP_CURATOR_RW, ZKP_KAZOO};
	const int	form[] = {SHARES, SHARES + NKINDS};
	char		old[2][ZKP_NAME_LEN];
	ZkNode	   *checked[4];
	int			nchecked = 0;
	uint64_t	stolen[2] = {0, 0};
	ZkAnswer	answer;
	ZkWatchInfo watch;

	/* leave out node 0: heartbeats ask for it */
	for (int f = 0; f < 2; f++)
		for (int i = 0; i < NKINDS; i++)
			create_as(form[f] + i, "/p/q", ZKP_EXCLUSIVE, styles[f == 0 ? 0 : 1 + nwalks % 2], false);
	WAIT_FOR(all_settled());
	for (int f = 0; f < 2; f++)
	{
		strcpy(old[f], node(form[f]).name);
		watch_node(form[f]);
		watch_node(form[f] + SHARE_DELETE);
		watches[10 + f] = zks_watch(session, path_of(form[f]));
	}
	WAIT_FOR(all_answered() && node(form[0]).watch != ZKR_WATCH_PENDING &&
			 node(form[1]).watch != ZKR_WATCH_PENDING);
	for (int f = 0; f < 2; f++)
	{
		if (node(form[f] + STOLEN).state == ZKN_PRESENT)
			ask("do delete", path_of(form[f] + STOLEN));
	}

	for (int f = 0; f < 2; f++)
	{
		share(form[f] + STAYS);
		share(form[f] + TWICE);
		share(form[f] + TWICE);
		share(form[f] + SHARE_DISCARD);
		discard(form[f] + SHARE_DISCARD);
		share(form[f] + SHARE_DELETE);
		delete_node(form[f] + SHARE_DELETE);
		share(form[f] + DISCARDED);
		share(form[f] + DELETED);
		stolen[f] = share(form[f] + STOLEN);
		if (node(form[f] + STAYS).state == ZKN_PRESENT)
			checked[nchecked++] = nodes[form[f] + STAYS];
		if (node(form[f] + DELETED).state == ZKN_PRESENT)
			checked[nchecked++] = nodes[form[f] + DELETED];
		watches[12 + f] = zks_watch(session, path_of(form[f]));
	}
	if (nchecked > 0)
		requests[8] = check(checked, nchecked);
	WAIT_FOR(all_answered());
	for (int i = 0; i < 2 * NKINDS; i++)
		WAIT_FOR(shared(SHARES + i));
	WAIT_FOR(node(form[0] + SHARE_DELETE).state != ZKN_PRESENT &&
			 node(form[1] + SHARE_DELETE).state != ZKN_PRESENT);

	/* unless the answer is doubtful, it was there all the time */
	is_right(8, "share", -1);
	for (int f = 0; f < 2 && !in_vain; f++)
	{
		ZkNodeInfo	info = node(form[f] + STAYS);
		int			refused;

		if (nodes[form[f]] == NULL || state() == ZKS_OVER || old[f][0] == '\0')
			continue;
		if (info.state != ZKN_PRESENT || node(form[f] + DISCARDED).state == ZKN_LOST)
			say("bad share: state %d, error %d", (int) info.state, info.rc);
		if ((strcmp(info.name, old[f]) == 0) != (f == 0))
			say("bad share: %s is %s", old[f], info.name);
		if (stolen[f] != 0 && !zkn_gone(session, stolen[f], stolen[f], &refused))
			say("bad share: one that is lost is still waited for");
		if (node(form[f] + STOLEN).state == ZKN_PRESENT && !reconnected() && stolen[f] != 0)
			say("bad share: one that was stolen");
		WAIT_FOR(watch_state(10 + f) != ZKR_WATCH_ARMED && watch_state(10 + f) != ZKR_WATCH_PENDING);
		if (!in_vain && watch_state(10 + f) != (f == 0 ? ZKR_WATCH_CHANGED : ZKR_WATCH_FIRED) && !reconnected() &&
			watch_state(10 + f) != ZKR_WATCH_FAILED)
			say("bad share: who waits is told %d", (int) watch_state(10 + f));
		if (watches[12 + f] != NULL && watch_state(12 + f) == ZKR_WATCH_ARMED)
		{
			zks_watch_info(session, watches[12 + f], &watch);
			if (!watch.stat.says_shared && !reconnected())
				say("bad share: who looks then is not told");
		}
	}

	requests[9] = zks_list(session, printed("%s/p/q", dir), true, false);
	for (int f = 0; f < 2; f++)
	{
		requests[NCROWD + f] = zks_read(session, path_of(form[f]), false, ZKS_DATA_KEPT);
		delete_node(form[f] + DELETED);
		watch_node(form[f] + STAYS);
	}
	WAIT_FOR(all_answered());
	for (int f = 0; f < 2 && !in_vain; f++)
	{
		if (node(form[f]).state != ZKN_PRESENT || nodes[form[f]] == NULL)
			continue;
		is_once(9, old[f], node(form[f]).name);
		if (!has_answer(NCROWD + f, &answer) || zks_is_doubtful(answer.rc))
			continue;
		/* the new node says whose place it took */
		if (answer.rc != ZOK || !answer.stat.says_shared || answer.stat.place_czxid != node(form[f]).czxid)
			say("bad share: read %d, %d, another transaction", answer.rc, (int) answer.stat.says_shared);
	}
	WAIT_FOR(node(form[0] + DELETED).state != ZKN_PRESENT &&
			 node(form[1] + DELETED).state != ZKN_PRESENT);
	forget_all();
	discard_some(SHARES, 2 * NKINDS);
	WAIT_FOR(all_gone());
}

static ZkMarkState
mark_state(int i)
{
	ZkMarkInfo	info = {.state = ZKN_MARK_REFUSED};

	if (marks[i] != NULL)
		zkn_mark_info(marks[i], &info);
	return info.state;
}

static void
decide(int i, bool done)
{
	if (marks[i] != NULL)
		zkn_decide_mark(marks[i], done);
	marks[i] = NULL;
}

static const char *
mark_path(int i)
{
	return printed("/many%s-%d", dir, i);
}

/* n of them in one transaction, from index i on, at this version */
static void
mark(int i, int n, int version)
{
	ZkMarking	what[NMARKS];

	for (int k = i; k < i + n; k++)
	{
		if (node(MARKED + k).state != ZKN_PRESENT)
			return;
		what[k - i] = (ZkMarking)
		{
			.node = nodes[MARKED + k],.path = mark_path(k),.version = version,
				.pending = "pending",.done = "done",.before = ""
		};
	}
	if (!zkn_mark(session, what, n, &marks[i]))
		memset(&marks[i], 0, n * sizeof(ZkMark *));
}

/*
 * Marks that become final, or are taken back: with the node, which is discarded or
 * deleted, or alone, since the node stays or was deleted by somebody; that somebody has
 * changed; that are decided before the answer; and two that are refused.
 */
static void
step_mark(void)
{
	enum {DONE, UNDONE, STAYS, DELETED, STOLEN, CHANGED, EARLY, REFUSED};
	static const char *const expected[] = {"done", "", "done", "", "done", "x", "", "", ""};
	const int	n = REFUSED + 2;
	bool		changed;
	ZkMarkInfo	info;
	ZkAnswer	answer;

	for (int i = 0; i < n; i++)
	{
		create(MARKED + i, "/p/q", ZKP_EXCLUSIVE, false);
		requests[NCROWD + i] = zks_make(session, mark_path(i), false);
	}
	WAIT_FOR(all_settled() && all_answered());
	mark(DONE, 2, 0);
	for (int i = STAYS; i <= EARLY; i++)
		mark(i, 1, 0);
	mark(REFUSED, 2, 7);
	decide(EARLY, false);
	discard(MARKED + EARLY);
	for (int i = 0; i < n; i++)
		WAIT_FOR(mark_state(i) != ZKN_MARKING);
	if (mark_state(STOLEN) == ZKN_MARKED)
		ask("do delete", path_of(MARKED + STOLEN));
	changed = mark_state(CHANGED) == ZKN_MARKED;	/* otherwise it is in doubt */
	if (changed)
		ask("do set", mark_path(CHANGED));
	if (marks[REFUSED] != NULL)
	{
		zkn_mark_info(marks[REFUSED], &info);
		if (info.state == ZKN_MARKED || (info.state == ZKN_MARK_REFUSED && info.rc != ZBADVERSION && info.rc != ZNONODE))
			say("bad mark: state %d, error %d", (int) info.state, info.rc);
	}
	for (int i = 0; i < n; i++)
		decide(i, strcmp(expected[i], "done") == 0 || i == CHANGED);
	zkn_settle(session);
	delete_node(MARKED + DELETED);
	WAIT_FOR(!zkn_mark_is_open(session, mark_path(STAYS)));
	WAIT_FOR(node(MARKED + DELETED).state != ZKN_PRESENT);
	discard_some(MARKED, n);
	forget_all();
	WAIT_FOR(all_gone());
	for (int i = 0; i < n; i++)
		WAIT_FOR(!zkn_mark_is_open(session, mark_path(i)));
	for (int i = 0; i < n; i++)
		requests[NCROWD + i] = zks_read(session, mark_path(i), true, ZKS_DATA_KEPT);
	WAIT_FOR(all_answered());
	for (int i = 0; i < n; i++)
	{
		if (!in_vain && atomic_load(&fault_kind) == FAULT_NONE && has_answer(NCROWD + i, &answer) &&
			(changed || i != CHANGED) && answer.rc == ZOK && !reconnected() && (answer.data_len != (int) strlen(expected[i]) ||
			 memcmp(answer.data != NULL ? answer.data : "", expected[i], answer.data_len) != 0))
			say("bad mark %d: \"%.*s\"", i, answer.data_len, answer.data != NULL ? answer.data : "");
		if (!in_vain && has_answer(NCROWD + i, &answer) &&
			answer.rc == ZOK && answer.data_len == 7 && memcmp(answer.data, "pending", 7) == 0)
			say("bad mark %d is pending", i);
	}
	forget_all();
}

/* More than one batch, and certainly more than the socket buffers take */
static void
step_crowd(void)
{
	for (int i = 10; i < NCROWD; i++)
		create(i, "/p/q", i % 3 ? ZKP_EXCLUSIVE : ZKP_SHARED, false);
	for (int i = 10; i < NCROWD; i += 3)
		discard(i);
	for (int i = 10; i < NCROWD; i++)
		requests[i] = zks_list(session, big, i % 2 == 0, false);
	for (int i = 11; i < NCROWD; i += 3)
		WAIT_FOR(settled(i));
	for (int i = 10; i < NCROWD; i++)
		WAIT_FOR(answered(i));
	discard_some(10, NCROWD - 10);
	forget_all();

	/* heartbeats, and the watch that one of them sets */
	if (!in_vain)
		for (int64_t until = zks_now() + timeout_ms * ZKS_MS * 2 / 3;
			 zks_now() < until && state() != ZKS_OVER;)
			nap(20);
	WAIT_FOR(all_gone());
}

/*
 * As many as fit into one transaction: with short names, and with long names
 * of directories.  The kernel's buffer must hold the whole answer.
 */
static void
step_masses(void)
{
	static char paths[ZKN_CHECK_MAX][23];
	static char long_path[ZKS_PATH_LEN];
	static char *dirs[ZKN_CHECK_MAX];
	static ZkNode *many[ZKN_CHECK_MAX];

	for (int form = 0; form < 2; form++)
	{
		int			n = 0;
		ZkpWant		want = {.mode = ZKP_SEMAPHORE,.permits = INT32_MAX};
		int			npresent = 0;
		int64_t		start;
		ZkNodeInfo	info = {0};

		/*
		 * a thousand, if the names are short; those directories exist already
		 */
		snprintf(long_path, sizeof(long_path), "%s/%01000d", dir, 0);
		for (int i = 0; i < ZKN_CHECK_MAX; i++)
		{
			snprintf(paths[i], sizeof(paths[i]), "/many/%016d", i);
			dirs[i] = form == 0 ? paths[i] : long_path;
		}
		while (n < ZKN_CHECK_MAX && zkn_fit(session, dirs, n + 1, &want))
			n++;
		if (form == 0 ? n < 300 : n < 30)
			say("bad fit: %d of %d bytes", n, (int) strlen(dirs[0]));
		if (form == 0 && most_receive_buffer == 0 && n < ZKN_CHECK_MAX)
			say("bad fit: only %d", n);

		create(GROUPS, long_path + strlen(dir), ZKP_SEMAPHORE, true);
		WAIT_FOR(settled(GROUPS));

		start = zks_now();
		if (!zkn_create(session, dirs, n, &want, false, many))
			n = 0;
		for (int i = 0; i < n; i++)
		{
			while (zkn_info(session, many[i], &info),
				   (info.state == ZKN_CREATING || info.state == ZKN_UNSURE) && !stop &&
				   zks_now() - start < (patience_ms < 1000 ? 2 : 10) * patience_ms * ZKS_MS &&
				   state() != ZKS_OVER)
				nap(20);
			npresent += info.state == ZKN_PRESENT;
		}
		if (npresent != n && atomic_load(&fault_kind) == FAULT_NONE && !reconnected())
			say("bad masses: %d of %d are there, %d ms later; the last: state %d, error %d", npresent, n,
				(int) ((zks_now() - start) / ZKS_MS), (int) info.state, info.rc);
		if (npresent != n)
			in_vain = true;
		else if (n > 0)
		{
			requests[8] = check(many, n);
			WAIT_FOR(answered(8));
			forget(8);
		}
		for (int i = 0; i < n; i++)
			take_ticket(zkn_discard(session, many[i]));
		discard(GROUPS);
		WAIT_FOR(all_gone());
	}
}

/* ZooKeeper refuses: whatever was begun continues once it no longer does */
static void
step_forbidden(void)
{
	static const char *const dirs[] = {"/p/q", "/f/f"};
	const int	g = GROUPS;

	create_as(g, "/f/f", ZKP_EXCLUSIVE, ZKP_KAZOO, true);
	create_as(g + 1, "/f/f", ZKP_EXCLUSIVE, ZKP_KAZOO, true);
	create_as(g + 2, "/f/f", ZKP_EXCLUSIVE, ZKP_CURATOR_RW, true);
	WAIT_FOR(all_settled());
	ask("do forbid", printed("%s/f/f", dir));
	create_group(g + 3, 2, dirs, ZKP_EXCLUSIVE, ZKP_CURATOR, false);
	share(g);
	share(g + 1);
	discard(g + 1);
	share(g + 2);
	delete_node(g + 2);
	WAIT_FOR(all_settled());
	if (node(g).state == ZKN_PRESENT)
		WAIT_FOR(node(g).rc == ZNOAUTH || !node(g).sharing);
	if (node(g + 2).state == ZKN_PRESENT)
		WAIT_FOR(node(g + 2).rc == ZNOAUTH);
	if (!in_vain && !reconnected() && atomic_load(&fault_kind) == FAULT_NONE)
	{
		/* an answer may say that the session has moved, and then a look denies the nodes */
		if ((node(g + 3).state != ZKN_ABSENT || node(g + 3).rc != ZRUNTIMEINCONSISTENCY ||
			 node(g + 4).state != ZKN_ABSENT || node(g + 4).rc != ZNOAUTH) &&
			node(g + 3).rc != ZCONNECTIONLOSS)
			say("bad forbidden group: states %d, %d, errors %d, %d", (int) node(g + 3).state,
				(int) node(g + 4).state, node(g + 3).rc, node(g + 4).rc);
		if (!node(g).sharing || node(g + 2).state != ZKN_PRESENT || node(g + 2).rc != ZNOAUTH)
			say("bad forbidden share: states %d, %d, error %d", (int) node(g).state,
				(int) node(g + 2).state, node(g + 2).rc);
	}
	ask("do allow", printed("%s/f/f", dir));
	WAIT_FOR(shared(g) && node(g + 2).state != ZKN_PRESENT);
	discard_some(g, 5);
	WAIT_FOR(all_gone());
}

/*-------------------------------------------------------------------------
 * The end
 *-------------------------------------------------------------------------
 */

/* Requests whose end the owner will not see */
static void
begin_something(void)
{
	static const char *const dirs[] = {"/p/q", "/g/c", "/p/q"};

	for (int i = 0; i < 3; i++)
		create(MARKED + i, "/p/q", ZKP_EXCLUSIVE, false);
	WAIT_FOR(all_settled());
	create_group(GROUPS, 3, dirs, ZKP_EXCLUSIVE, ZKP_CURATOR, true);
	create_group(GROUPS + 3, 2, dirs, ZKP_SHARED, ZKP_CURATOR, false);
	discard(GROUPS + 1);
	share(0);
	share(GROUPS);
	discard(0);
	if (nodes[GROUPS + 2] != NULL)
		zkn_delete(session, nodes[GROUPS + 2]);
	requests[8] = zks_read(session, dir, false, ZKS_DATA_KEPT);
	mark(0, 1, 2);				/* the version after step_mark */
	mark(1, 2, 2);
	decide(1, true);
	discard(MARKED + 2);
}

static void
give_all_back(void)
{
	/* what a step left open after a timeout */
	forget_all();
	for (int i = 0; i < NMARKS; i++)
		decide(i, false);
	discard_some(0, NNODES);
}

/*
 * Nothing that would grow with the session's life is left in it.  Marks that were
 * open when it ended go to the next one.
 */
static bool
empty(void)
{
	bool		result;

	zks_enter(session);
	result = TAILQ_EMPTY(&session->nodes.all) && TAILQ_EMPTY(&session->requests.answered) &&
		(LIST_EMPTY(&session->marks) || session->info.state == ZKS_OVER) &&
		LIST_EMPTY(&session->watches.all) && session->requests.in_flight == 0;
	zks_leave(session);
	return result;
}

/* Answers so far: while more arrive, the rest may still come */
static uint64_t
count_replies(void)
{
	uint64_t	replies;

	zks_enter(session);
	replies = session->requests.replies;
	zks_leave(session);
	return replies;
}

static void
tidy_up(void)
{
	int64_t		until = zks_now() + SETTLE_MS * ZKS_MS;
	int64_t		at_last = zks_now() + LONGEST_MS * ZKS_MS;
	uint64_t	replies = count_replies();
	ZkSessionInfo info;

	while (!empty() && zks_now() < until)
	{
		nap(20);
		if (count_replies() == replies || zks_now() > at_last)
			continue;
		replies = count_replies();
		until = zks_now() + SETTLE_MS * ZKS_MS;
	}
	if (!empty())
	{
		/* forfeited nodes wait for a server that may never come back */
		info = zks_info(session);
		if (!info.forfeited || info.state != ZKS_SUSPENDED)
		{
			zks_enter(session);
			say("bad left in the session, which is in state %d: requests %d, a node %d, a mark %d, a watch %d", (int) info.state,
				session->requests.in_flight, !TAILQ_EMPTY(&session->nodes.all), !LIST_EMPTY(&session->marks),
				!LIST_EMPTY(&session->watches.all));
			zks_leave(session);
		}
		return;
	}
	if (!all_gone())
		say("bad nothing left, but not gone");
	if (state() == ZKS_CONNECTED)
		ask("quiet", printed("0x%llx", (unsigned long long) last_id));
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

/* A keeper that was left behind must end by itself */
static void
is_over(void)
{
	for (int64_t start = zks_now();
		 count_entries("/proc/self/task") > threads &&
		 zks_now() - start < END_MS * ZKS_MS;)
		poll(NULL, 0, 5);
	if (count_entries("/proc/self/task") > threads)
		say("bad the keeper has not ended");
	else if (count_entries("/proc/self/fd") != descriptors)
		say("bad %d descriptors, not %d", count_entries("/proc/self/fd"), descriptors);
}

static void
end(const char *how, int bound_ms)
{
	int64_t		start;
	int64_t		ms;

	if (strcmp(how, "held") == 0)
	{
		static const char *const dirs[] = {"/p/q", "/g/a", "/p/q"};

		ask("do hold", "exists");
		create_group(GROUPS + 5, 3, dirs, ZKP_EXCLUSIVE, ZKP_CURATOR, true);
		ask("do wait", "exists");
	}
	else if (strcmp(how, "tidy") != 0)
		begin_something();
	if (strcmp(how, "tidy") == 0 || strcmp(how, "hasty") == 0)
		give_all_back();
	if (strcmp(how, "tidy") == 0)
		tidy_up();
	(void) state();
	start = zks_now();
	zks_close(session, bound_ms, nwalks % 2 ? &left : NULL);
	if (nwalks % 2 == 0)
		memset(marks, 0, sizeof(marks));
	ms = (zks_now() - start) / ZKS_MS;
	if (ms > bound_ms + 1500)
		say("bad close took %lld ms of %d", (long long) ms, bound_ms);

	is_over();
}

/*
 * The thread sanitizer starts a thread of its own with the first one.  A
 * joined thread stays visible for a moment, so count for a while, once.
 */
static void *
do_nothing(void *argument)
{
	return argument;
}

static int
threads_without_session(void)
{
	int			least = 0;
	pthread_t	thread;

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

/*-------------------------------------------------------------------------
 * At random
 *-------------------------------------------------------------------------
 */

#define NSLOTS		12			/* the first of nodes, watches, and requests for lists */
#define CHECKS		NSLOTS		/* the first of the requests for checks */
#define NDIRS		2
#define NSINGLES	3

/* several slots have the same path of a single node; the last directory is never made */
static char *const singles[NSINGLES] = {"/random/1", "/random/a/2", "/random_single/3"};
static char *const dirs[NDIRS + 1] = {"/random/a/b", "/random/a/c", "/random/none/d"};

static bool deleted[NSLOTS];	/* or will be */
static ZkpMode mode[NSLOTS];	/* ZKP_NONE: a single node */
static char *list_of[NSLOTS];	/* the directory whose list is asked for */
static long nsessions,
			ncreated,
			nchecked;

/*
 * A node that is renamed keeps the UUID at the start of its name, and must
 * never be listed under both names.
 */
static void
look_for_twins(const ZkAnswer *answer)
{
	for (int i = 0; i < answer->nchildren; i++)
	{
		for (int j = 0; j < i; j++)
		{
			if (strncmp(answer->children[i], answer->children[j], 32) == 0)
				say("bad two names: %s and %s", answer->children[i], answer->children[j]);
		}
	}
}

static void
use_list(int i)
{
	ZkAnswer	answer;

	if (requests[i] == NULL)
	{
		list_of[i] = watched[i] != NULL ? watched[i] : dirs[rand() % NDIRS];
		if ((watches[i] == NULL || watched[i] != NULL) && rand() % 3 == 0)
		{
			/* perhaps once more, in whatever state the watch is */
			watched[i] = list_of[i];
			requests[i] = zks_list_and_watch(session, list_of[i], rand() % 2 == 0, &watches[i]);
		}
		else
			requests[i] = zks_list(session, list_of[i], rand() % 2 == 0, false);
	}
	else if (has_answer(i, &answer))
	{
		if (answer.rc == ZOK)
			look_for_twins(&answer);
		if (watches[i] == NULL && answer.rc == ZOK && answer.nchildren > 0)
			watches[i] = zks_watch(session, printed("%s/%s", list_of[i], answer.children[rand() % answer.nchildren]));
		forget(i);
	}
	else if (rand() % 4 == 0)
		forget(i);				/* not answered, and no longer wanted */
}

/* In this slot, and in those behind it as far as they are free */
static void
make_nodes(int i)
{
	static const ZkpMode modes[] = {ZKP_EXCLUSIVE, ZKP_EXCLUSIVE, ZKP_SHARED, ZKP_SEMAPHORE};
	ZkpWant		want = {.mode = modes[rand() % 4],.style = (ZkpStyle) (rand() % 3),.permits = 1 + rand() % 3,.identity = "host a\n"};
	int			most = rand() % 2 == 0 ? 1 : 1 + rand() % 5;
	char	   *where[5];
	int			n = 0;
	int			refused;

	do
		where[n++] = dirs[rand() % 20 == 0 ? NDIRS : rand() % NDIRS];
	while (n < most && i + n < NSLOTS && nodes[i + n] == NULL);
	if (n == 1 && rand() % 3 == 0)
	{
		want.mode = ZKP_EXCLUSIVE;
		want.style = ZKP_SINGLE;
		where[0] = singles[rand() % NSINGLES];
		if (zkn_unwanted(session, where[0], &refused))
			return;
	}
	if (!zkn_create(session, where, n, &want, rand() % 2 == 0, &nodes[i]))
		return;
	for (int k = i; k < i + n; k++)
	{
		deleted[k] = false;
		mode[k] = want.style == ZKP_SINGLE ? ZKP_NONE : want.mode;
	}
	ncreated += n;
}

static void
use_node(int i)
{
	ZkNodeInfo	info = node(i);

	if (nodes[i] == NULL)
	{
		make_nodes(i);
		return;
	}
	if (rand() % 3 == 0)
		watch_node(i);
	if (rand() % 3 == 0 && !deleted[i] && mode[i] == ZKP_EXCLUSIVE)
		share(i);
	if (rand() % 6 == 0 && !deleted[i] && mode[i] == ZKP_SEMAPHORE)
		zkn_tell_granted(session, nodes[i]);
	if (rand() % 10 == 0 && info.state == ZKN_PRESENT)
	{
		zkn_delete(session, nodes[i]);
		deleted[i] = true;
	}
	if (rand() % 5 == 0 || info.state == ZKN_ABSENT || info.state == ZKN_LOST || info.state == ZKN_DELETED)
		discard(i);
}

/*
 * A check must find each node that is known to exist, whatever its name.
 * Nobody else deletes it.
 */
static void
use_check(int i)
{
	ZkNode	   *which[NSLOTS];
	int			n = 0;
	ZkAnswer	answer;

	if (!answered(CHECKS + i) && rand() % 4 != 0)
		return;
	nchecked += has_answer(CHECKS + i, &answer);
	is_right(CHECKS + i, "check", -1);
	for (int k = 0; k < NSLOTS; k++)
	{
		if (node(k).state == ZKN_PRESENT && !deleted[k])
			which[n++] = nodes[k];
	}
	if (n > 0)
		requests[CHECKS + i] = zkn_check(session, which, &n);
}

static void
do_anything(void)
{
	int			i = rand() % NSLOTS;

	switch (rand() % 5)
	{
		case 0:
			use_list(i);
			break;
		case 1:
			use_node(i);
			break;
		case 2:
			(void) watch_state(i);
			unwatch(i);
			break;
		case 3:
			nap(rand() % 3);
			break;
		case 4:
			use_check(i);
			break;
	}
}

/* Of what its owner has, half is given back before the session ends */
static void
close_random(void)
{
	for (int i = 0; i < NSLOTS; i++)
	{
		if (rand() % 2 == 0)
		{
			forget(i);
			forget(CHECKS + i);
			unwatch(i);
			discard(i);
		}
	}
	zks_close(session, rand() % 3 == 0 ? 0 : 3000, NULL);
}

static void
walk_at_random(int seconds)
{
	int64_t		until = zks_now() + seconds * 1000 * ZKS_MS;
	const char *ca_file = getenv("ZK_TLS_CA_FILE");
	ZkTlsFiles	files = {.name = {ca_file, "", "", ""},.verify_host = true};
	ZkOptions	options = {.hosts = hosts,.timeout_ms = timeout_ms};
	char		error[256];

	for (; zks_now() < until; nsessions++)
	{
		if (ca_file != NULL && (options.tls = zks_tls(&files, error, sizeof(error))) == NULL)
			exit(2);
		begin();
		session = zks_open(&options);
		if (session == NULL)
			exit(2);
		while (zks_info(session).state != ZKS_CONNECTED && zks_info(session).state != ZKS_OVER && zks_now() < until)
			nap(50);
		for (int n = rand() % 2000; n > 0 && zks_info(session).state != ZKS_OVER && zks_now() < until; n--)
			do_anything();
		close_random();
	}
	is_over();
	say("%ld sessions, %ld nodes, %ld checks", nsessions, ncreated, nchecked);
}

static void
walk(const char *ending, int bound_ms, int crowd)
{
	static void (*const all[]) (void) = {
		step_create, step_absent, step_list, step_watch, step_event,
		step_stolen, step_check, step_discard, step_group, step_robbed, step_single, step_share, step_mark,
		step_crowd, step_forbidden, step_masses
	};
	int			nsteps = (int) (sizeof(all) / sizeof(all[0])) -
		(crowd == 2 ? 0 : crowd == 1 ? 1 : 3);
	ZkCredential credentials[] = {{"digest", "walker:a b"}, {"digest", "another:"}};
	ZkOptions	options = {.hosts = hosts,.timeout_ms = timeout_ms,.credentials = credentials,.ncredentials = 2};

	nwalks++;
	begin();
	session = zks_open(&options);
	if (session != NULL)
	{
		zkn_adopt_marks(session, &left);
		for (int i = 0; i < NMARKS; i++)
			decide(i, false);
		WAIT_FOR(state() == ZKS_CONNECTED);
		for (int i = 0; i < nsteps && !stop; i++)
		{
			all[i] ();
			if (!in_vain)
				steps++;
		}
		end(ending, bound_ms);
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

	if (argc < 3 || argc > 6)
		return 2;
	hosts = argv[1];
	timeout_ms = atoi(argv[2]);
	threads = threads_without_session();
	descriptors = count_entries("/proc/self/fd");
	if (argc == 6)
	{
		srand(atoi(argv[5]));
		walk_at_random(atoi(argv[4]));
		return 0;
	}
	time_for_library = argc > 3 ? atol(argv[3]) : 0;
	most_receive_buffer = argc > 4 ? atoi(argv[4]) : 0;

	while (fgets(line, sizeof(line), stdin) != NULL)
	{
		char		ending[16];
		char		kind[16];
		int			bound_ms;
		int			crowd;
		long		at;
		long		count;

		if (sscanf(line, "run %255s %255s %d %15s %d %15s %ld %ld %d", dir, big,
				   &patience_ms, ending, &bound_ms, kind, &at, &count,
				   &crowd) != 9)
			return 2;
		atomic_store(&fault_at, at);
		atomic_store(&fault_count, count);
		atomic_store(&calls, 0);
		for (int i = 0; i < FAULT_KINDS; i++)
		{
			if (strcmp(kind, kinds[i]) == 0)
				atomic_store(&fault_kind, i);
		}
		walk(ending, bound_ms, crowd);
		say("done %d %ld", steps, atomic_load(&calls));
	}
	return 0;
}

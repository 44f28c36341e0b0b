/*-------------------------------------------------------------------------
 *
 * session_test.c
 *	  The session and its nodes without PostgreSQL, for the sanitizers.
 *
 *		session_test HOSTS SECONDS SEED
 *
 * Makes nodes, alone and together, watches, shares, checks, deletes, and
 * discards them at random moments, opens and closes sessions, while
 * t/040_sanitizers.pl disturbs the server.  No list may show two names of one
 * node, and at the end nothing may be left: prints "left: N nodes" and exits with
 * 0 if N is 0.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zk/mark.h"
#include "zk/stop_signal.h"
#include "zk/tls.h"

#define NSLOTS		12
#define NDIRS		2

/* of single nodes; several slots have the same */
#define NSINGLES	3
static char *const singles[NSINGLES] = {
	"/zklock_session_test/1", "/zklock_session_test/a/2", "/zklock_session_single/3"
};

/* and one that is never created */
static char *const dirs[NDIRS + 1] = {
	"/zklock_session_test/a/b", "/zklock_session_test/a/c", "/zklock_session_test/none/d"
};

typedef struct Slot
{
	ZkNode	   *node;
	bool		deleted;		/* or will be */
	bool		single;
	ZkRequest  *list;
	char	   *list_dir;
	ZkRequest  *check;
	ZkWatch    *watch;
	char	   *watched_dir;	/* whose list it watches, or NULL */
} Slot;

static ZkSession *session;
static Slot slots[NSLOTS];
static long nsingle;
static long ncreated,
			nlisted,
			nwatched,
			nsessions,
			ngroups,
			nshared,
			nturned,
			nchecked,
			ntwice,
			nlost;

static void
wait_a_little(int ms)
{
	struct pollfd fd = {.fd = zks_await(session, NULL),.events = POLLIN};

	poll(&fd, 1, ms);
	zks_awaited(session);
}

static bool
open_session(const char *hosts, int64_t until)
{
	const char *ca_file = getenv("ZK_TLS_CA_FILE");
	ZkTlsFiles	files = {.name = {ca_file, "", "", ""},.verify_host = true};
	char		error[256] = "";
	ZkTls	   *tls = ca_file != NULL ? zks_tls(&files, error, sizeof(error)) : NULL;

	if (ca_file != NULL && tls == NULL)
	{
		fprintf(stderr, "%s\n", error);
		exit(2);
	}
	session = zks_open(&(ZkOptions) {.hosts = hosts,.timeout_ms = 2000,.tls = tls});
	if (session == NULL)
	{
		perror("zks_open");
		exit(2);
	}
	nsessions++;
	while (zks_now() < until)
	{
		ZkSessionInfo info;

		info = zks_info(session);
		if (info.state == ZKS_CONNECTED)
			return true;
		if (info.state == ZKS_OVER)
			return false;
		wait_a_little(50);
	}
	return false;
}

/* As its owner would, before the session ends */
static void
close_session(int bound_ms)
{
	for (int i = 0; i < NSLOTS; i++)
	{
		if (rand() % 2 == 0)
		{
			if (slots[i].list != NULL)
				zks_request_free(session, slots[i].list);
			if (slots[i].check != NULL)
				zks_request_free(session, slots[i].check);
			if (slots[i].watch != NULL)
				zks_unwatch(session, slots[i].watch, false);
			if (slots[i].node != NULL)
				(void) zkn_discard(session, slots[i].node);
		}
	}
	memset(slots, 0, sizeof(slots));
	zks_close(session, bound_ms, NULL);
	session = NULL;
}

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
			if (strncmp(answer->children[i], answer->children[j], 32) != 0)
				continue;
			printf("two names: %s and %s\n", answer->children[i], answer->children[j]);
			ntwice++;
		}
	}
}

static void
use_list(Slot *slot)
{
	ZkAnswer	answer;

	if (slot->list == NULL)
	{
		slot->list_dir = slot->watched_dir != NULL ? slot->watched_dir : dirs[rand() % NDIRS];
		if ((slot->watch == NULL || slot->watched_dir != NULL) && rand() % 3 == 0)
		{
			/* perhaps once more, in whatever state the watch is */
			slot->watched_dir = slot->list_dir;
			slot->list = zks_list_and_watch(session, slot->list_dir, rand() % 2 == 0, &slot->watch);
			nwatched++;
		}
		else
			slot->list = zks_list(session, slot->list_dir, rand() % 2 == 0);
	}
	else if (zks_answered(session, slot->list, &answer))
	{
		nlisted++;
		if (answer.rc == 0)
			look_for_twins(&answer);
		if (slot->watch == NULL && answer.rc == 0 && answer.nchildren > 0)
		{
			char		path[ZKS_PATH_LEN];

			snprintf(path, sizeof(path), "%s/%s", slot->list_dir,
					 answer.children[rand() % answer.nchildren]);
			slot->watch = zks_watch(session, path);
			nwatched++;
		}
		zks_request_free(session, slot->list);
		slot->list = NULL;
	}
	else if (rand() % 4 == 0)
	{
		/* not answered, and no longer wanted */
		zks_request_free(session, slot->list);
		slot->list = NULL;
	}
}

/* In this slot, and in others that are free */
static void
make_nodes(Slot *first)
{
	static const ZkpMode modes[] = {ZKP_EXCLUSIVE, ZKP_EXCLUSIVE, ZKP_SHARED, ZKP_SEMAPHORE};
	ZkpWant		want = {.mode = modes[rand() % 4],.style = (ZkpStyle) (rand() % 3),.permits = 1 + rand() % 3,.identity = "host a\n"};
	int			n = rand() % 2 == 0 ? 1 : 1 + rand() % 5;
	Slot	   *chosen[NSLOTS] = {first};
	char	   *where[NSLOTS];
	ZkNode	   *made[NSLOTS];
	int			nchosen = 1;
	int			refused;

	for (int i = 0; i < NSLOTS && nchosen < n; i++)
	{
		if (slots[i].node == NULL && &slots[i] != first)
			chosen[nchosen++] = &slots[i];
	}
	for (int i = 0; i < nchosen; i++)
		where[i] = dirs[rand() % 20 == 0 ? NDIRS : rand() % NDIRS];
	if (nchosen == 1 && rand() % 3 == 0)
	{
		want.mode = ZKP_EXCLUSIVE;
		want.style = ZKP_SINGLE;
		where[0] = singles[rand() % NSINGLES];
		if (zkn_unwanted(session, where[0], &refused))
			return;
		nsingle++;
	}
	if (!zkn_create(session, where, nchosen, &want, rand() % 2 == 0, made))
		return;
	for (int i = 0; i < nchosen; i++)
	{
		chosen[i]->node = made[i];
		chosen[i]->deleted = false;
		chosen[i]->single = want.style == ZKP_SINGLE;
	}
	ncreated += nchosen;
	ngroups += nchosen > 1;
}

static void
use_node(Slot *slot)
{
	ZkNodeInfo	info;

	if (slot->node == NULL)
	{
		make_nodes(slot);
		return;
	}
	zkn_info(session, slot->node, &info);
	if (rand() % 3 == 0)
		zkn_watch(session, slot->node);
	if (rand() % 3 == 0 && !slot->deleted && !slot->single)
	{
		nturned += info.sharing;
		nshared += zkn_share(session, slot->node) != 0;
	}
	if (rand() % 6 == 0 && !slot->deleted && !slot->single)
		zkn_tell_granted(session, slot->node);
	if (rand() % 10 == 0 && info.state == ZKN_PRESENT)
	{
		zkn_delete(session, slot->node);
		slot->deleted = true;
	}
	if (rand() % 5 == 0 || info.state == ZKN_ABSENT || info.state == ZKN_LOST ||
		info.state == ZKN_DELETED)
	{
		nlost += info.state == ZKN_LOST;
		(void) zkn_discard(session, slot->node);
		slot->node = NULL;
	}
}

/*
 * A check must find each node that is known to exist, whatever its name.
 * Nobody else deletes it.
 */
static void
use_check(Slot *slot)
{
	ZkNode	   *nodes[NSLOTS];
	ZkNodeInfo	info;
	ZkAnswer	answer;
	int			n = 0;

	if (slot->check != NULL && zks_answered(session, slot->check, &answer))
	{
		nchecked++;
		if (answer.rc != 0 && !zks_is_doubtful(answer.rc))
		{
			printf("check: %d, missing %d\n", answer.rc, answer.missing);
			ntwice++;
		}
	}
	if (slot->check != NULL)
		zks_request_free(session, slot->check);
	slot->check = NULL;
	for (int i = 0; i < NSLOTS; i++)
	{
		if (slots[i].node == NULL)
			continue;
		zkn_info(session, slots[i].node, &info);
		if (info.state == ZKN_PRESENT && !slots[i].deleted)
			nodes[n++] = slots[i].node;
	}
	if (n > 0)
		slot->check = zkn_check(session, nodes, &n);
}

static void
step(void)
{
	Slot	   *slot = &slots[rand() % NSLOTS];

	switch (rand() % 5)
	{
		case 4:
			use_check(slot);
			break;
		case 0:
			use_list(slot);
			break;
		case 1:
			use_node(slot);
			break;
		case 2:
			if (slot->watch != NULL)
			{
				ZkWatchInfo info;

				zks_watch_info(session, slot->watch, &info);
				zks_unwatch(session, slot->watch, false);
				slot->watch = NULL;
				slot->watched_dir = NULL;
			}
			break;
		case 3:
			wait_a_little(rand() % 3);
			break;
	}
}

/* How many contenders are there, according to the leader?  -1: unknown */
static int
count_nodes(void)
{
	int			n = 0;

	for (int d = 0; d < NSINGLES; d++)
	{
		ZkRequest  *read = zks_read_fresh(session, singles[d]);
		ZkAnswer	answer;
		int			rc = 0;

		for (int i = 0; i < 100 && !zks_answered(session, read, &answer); i++)
			wait_a_little(50);
		if (zks_answered(session, read, &answer))
			rc = answer.rc;
		zks_request_free(session, read);
		if (rc == ZKS_OK)
			n++;
		else if (rc != ZKS_NO_NODE)
			return -1;
	}
	for (int d = 0; d < NDIRS; d++)
	{
		ZkRequest  *list = zks_list(session, dirs[d], true);
		ZkAnswer	answer;
		int			here = -1;

		for (int i = 0; i < 100 && !zks_answered(session, list, &answer); i++)
			wait_a_little(50);
		if (zks_answered(session, list, &answer))
			here = answer.rc == 0 ? answer.nchildren : answer.rc == -101 ? 0 : -1;
		zks_request_free(session, list);
		if (here < 0)
			return -1;
		n += here;
	}
	return n;
}

int
main(int argc, char **argv)
{
	int64_t		until;
	int			left = -1;

	if (argc != 4)
		return 2;
	until = zks_now() + atoi(argv[2]) * 1000 * ZKS_MS;
	srand(atoi(argv[3]));

	while (zks_now() < until)
	{
		if (open_session(argv[1], until))
		{
			int			nsteps = rand() % 2000;
			ZkSessionInfo info;

			for (int i = 0; i < nsteps && zks_now() < until; i++)
			{
				step();
				info = zks_info(session);
				if (info.state == ZKS_OVER)
					break;
			}
		}
		close_session(rand() % 3 == 0 ? 0 : 3000);
	}

	/* what was abandoned goes with its session, after two seconds */
	for (int i = 0; i < 200 && left != 0; i++)
	{
		if (session == NULL && !open_session(argv[1], zks_now() + 5000 * ZKS_MS))
		{
			close_session(3000);
			continue;
		}
		left = count_nodes();
		if (left < 0)
			close_session(3000);
		else if (left > 0)
			wait_a_little(100);
	}
	if (session != NULL)
		close_session(3000);
	printf("sessions: %ld, nodes: %ld, lost: %ld, lists: %ld, watches: %ld\n",
		   nsessions, ncreated, nlost, nlisted, nwatched);
	printf("groups: %ld, shared: %ld, seen on their way: %ld, checks: %ld\n",
		   ngroups, nshared, nturned, nchecked);
	printf("single: %ld\n", nsingle);
	printf("left: %d nodes\n", left);
	return left != 0 || ntwice != 0;
}

/*-------------------------------------------------------------------------
 *
 * session_test.c
 *	  The session and its nodes without PostgreSQL, for the sanitizers.
 *
 *		session_test HOSTS SECONDS SEED
 *
 * Makes, watches, and discards nodes at random moments, opens and closes
 * sessions, while t/040_sanitizers.pl hurts the server.  In the end nothing
 * may be left: prints "left: N nodes" and exits with 0 if N is 0.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

#define NSLOTS		8
#define DIR			"/zklock_session_test/a/b"

typedef struct Slot
{
	ZkNode	   *node;
	ZkRequest  *list;
	ZkWatch    *watch;
} Slot;

static ZkSession *session;
static Slot slots[NSLOTS];
static long ncreated,
			nlisted,
			nwatched,
			nsessions,
			nlost;

static void
wait_a_little(int ms)
{
	struct pollfd fd = {.fd = zks_notify_fd(session),.events = POLLIN};

	poll(&fd, 1, ms);
	zks_notify_clear(session);
}

static bool
open_session(const char *hosts, int64_t until)
{
	session = zks_open(hosts, 2000);
	if (session == NULL)
	{
		perror("zks_open");
		exit(2);
	}
	nsessions++;
	while (zks_now() < until)
	{
		ZkSessionInfo info;

		zks_info(session, &info);
		if (info.state == ZKS_CONNECTED)
			return true;
		if (info.state == ZKS_OVER)
			return false;
		wait_a_little(50);
	}
	return false;
}

/* As its owner would, before the session goes */
static void
close_session(int bound_ms)
{
	for (int i = 0; i < NSLOTS; i++)
	{
		if (rand() % 2 == 0)
		{
			if (slots[i].list != NULL)
				zks_request_free(session, slots[i].list);
			if (slots[i].watch != NULL)
				zks_unwatch(session, slots[i].watch);
			if (slots[i].node != NULL)
				(void) zkn_discard(session, slots[i].node);
		}
	}
	memset(slots, 0, sizeof(slots));
	zks_close(session, bound_ms);
	session = NULL;
}

static void
use_list(Slot *slot)
{
	ZkAnswer	answer;

	if (slot->list == NULL)
		slot->list = zks_list(session, DIR, rand() % 2 == 0);
	else if (zks_answered(session, slot->list, &answer))
	{
		nlisted++;
		if (slot->watch == NULL && answer.rc == 0 && answer.nchildren > 0)
		{
			char		path[ZKS_PATH_LEN];

			snprintf(path, sizeof(path), "%s/%s", DIR,
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

static void
use_node(Slot *slot)
{
	ZkNodeInfo	info;

	if (slot->node == NULL)
	{
		char	   *dir = DIR;
		ZkpWant		want = {.mode = ZKP_EXCLUSIVE};

		if (!zkn_create(session, &dir, 1, &want, rand() % 2 == 0, &slot->node))
			slot->node = NULL;
		ncreated++;
		return;
	}
	zkn_info(session, slot->node, &info);
	if (rand() % 3 == 0)
		zkn_watch(session, slot->node);
	if (rand() % 3 == 0 || info.state == ZKN_ABSENT || info.state == ZKN_LOST)
	{
		nlost += info.state == ZKN_LOST;
		(void) zkn_discard(session, slot->node);
		slot->node = NULL;
	}
}

static void
step(void)
{
	Slot	   *slot = &slots[rand() % NSLOTS];

	switch (rand() % 4)
	{
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
				zks_unwatch(session, slot->watch);
				slot->watch = NULL;
			}
			break;
		case 3:
			wait_a_little(rand() % 3);
			break;
	}
}

/* How many contenders are there, as the leader knows?  -1: not to be had */
static int
count_nodes(void)
{
	ZkRequest  *list = zks_list(session, DIR, true);
	ZkAnswer	answer;
	int			n = -1;

	for (int i = 0; i < 100 && !zks_answered(session, list, &answer); i++)
		wait_a_little(50);
	if (zks_answered(session, list, &answer))
		n = answer.rc == 0 ? answer.nchildren : answer.rc == -101 ? 0 : -1;
	zks_request_free(session, list);
	return n;
}

int
main(int argc, char **argv)
{
	int64_t		until;
	int			left = -1;

	if (argc != 4)
		return 2;
	until = zks_now() + atoi(argv[2]) * 1000 * NS_PER_MS;
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
				zks_info(session, &info);
				if (info.state == ZKS_OVER)
					break;
			}
		}
		close_session(rand() % 3 == 0 ? 0 : 3000);
	}

	/* what was abandoned goes with its session, after two seconds */
	for (int i = 0; i < 200 && left != 0; i++)
	{
		if (session == NULL && !open_session(argv[1], zks_now() + 5000 * NS_PER_MS))
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
	printf("left: %d nodes\n", left);
	return left != 0;
}

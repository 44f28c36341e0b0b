/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  Taking one lock: the conversation with ZooKeeper.
 *
 * The create of our node and a list of its directory are sent together; the
 * answers come in the order of the requests, so the list shows us in our
 * place: a free lock costs one round trip.  Where others stand before us, the
 * two nearest are watched, and our own node.  When the farther goes, the list
 * is read again while the nearer still stands; so when that goes, we mostly
 * know already that nobody else is left, and hold the lock without asking:
 * numbers only grow, nobody can have come in before us.
 *
 * Three things make that last step unsafe (besides what protocol.c knows of
 * the numbers), and then the list is read again: a reconnection (missed events
 * are replayed in no order), a watch on our own node that is not in force (an
 * expiry would have shown first, on the same connection), and a process that
 * was stopped (what it reads then is old).
 *
 * Each attempt is bound to one session.  When that ends, or our node is
 * deleted by somebody, a new attempt begins, at the end of the queue.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <zookeeper/zookeeper.h>

#include "miscadmin.h"

#include "lock.h"
#include "path.h"
#include "settings.h"

typedef struct Blocker
{
	ZkWatch    *watch;
	char		name[256];		/* any client's node; longer ones are not watched twice */
} Blocker;

/* What is under way, so that an error can undo it */
typedef struct Attempt
{
	const char *path;			/* as the user knows it */
	char	   *dir;			/* as ZooKeeper does */
	ZkpMode		mode;
	ZkWait	   *wait;
	ZkSession  *session;
	ZkNode	   *node;
	ZkRequest  *list;
	bool		list_fresh;		/* it was asked of the leader */
	uint32		list_epoch;		/* the connection that the last one came by */
	Blocker		nearest;
	Blocker		second;
} Attempt;

typedef enum Outcome
{
	GRANTED,
	TAKEN,						/* somebody else has it, and time is up */
	LIST_AGAIN,					/* something changed: look at the queue */
	START_AGAIN					/* our node is gone: queue again */
} Outcome;

static void
drop_list(Attempt *a)
{
	if (a->list != NULL)
		zks_request_free(a->session, a->list);
	a->list = NULL;
}

static void
drop_watch(Attempt *a, Blocker *blocker)
{
	if (blocker->watch != NULL)
		zks_unwatch(a->session, blocker->watch);
	blocker->watch = NULL;
}

/* Nothing of the attempt is left behind, but a node that was granted */
static void
drop_attempt(Attempt *a)
{
	drop_list(a);
	drop_watch(a, &a->nearest);
	drop_watch(a, &a->second);
	if (a->node != NULL)
		(void) zkn_discard(a->session, a->node);
	a->node = NULL;
}

/*-------------------------------------------------------------------------
 * Answers
 *-------------------------------------------------------------------------
 */

/*
 * Wait for something that ZooKeeper owes us since a moment ago.  While the
 * connection is cut that may take until it is back; what is raised then says
 * so.  Returns false when the session is over.
 */
static bool
await_something(Attempt *a, int64 until)
{
	ZkSessionInfo info;

	zks_info(a->session, &info);
	if (info.state == ZKS_OVER)
		return false;
	if (!zkwait(a->wait, a->session, until, ZKWAIT_ACQUIRE))
		zkc_raise_unanswered(a->wait);
	return true;
}

/* Until what ZooKeeper says can be believed; false when the session is over */
static bool
await_fresh(Attempt *a, int64 until)
{
	for (;;)
	{
		ZkSessionInfo info;

		zks_info(a->session, &info);
		if (zkc_is_fresh(&info))
			return true;
		if (!await_something(a, until))
			return false;
	}
}

static void
raise_no_memory(void)
{
	ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
}

static void
send_list(Attempt *a, bool fresh)
{
	drop_list(a);
	a->list_fresh = fresh;
	a->list = zks_list(a->session, a->dir, fresh);
	if (a->list == NULL)
		raise_no_memory();
}

/*
 * The children of the lock.  A list that was lost with its connection is
 * asked for again, fresh: the next server may lag behind.  Returns false when
 * the session is over; an answer of ZNONODE is one.
 */
static bool
await_list(Attempt *a, ZkAnswer *answer)
{
	int64		until = zkwait_after(zklock_operation_timeout);

	for (;;)
	{
		ZkSessionInfo info;

		while (!zks_answered(a->session, a->list, answer))
		{
			if (!await_something(a, until))
				return false;
		}
		if (answer->rc == ZOK || answer->rc == ZNONODE)
		{
			/* an answer that lay unread while we were stopped says nothing */
			zks_info(a->session, &info);
			if (zkc_is_fresh(&info))
			{
				a->list_epoch = answer->epoch;
				return true;
			}
		}
		else if (!zks_is_doubtful(answer->rc))
			zkc_raise(answer->rc, a->path);
		if (!await_fresh(a, until))
			return false;
		CHECK_FOR_INTERRUPTS();
		send_list(a, true);
	}
}

/* Until we know what became of our create */
static void
await_node(Attempt *a, ZkNodeInfo *node)
{
	int64		until = zkwait_after(zklock_operation_timeout);

	for (;;)
	{
		zkn_info(a->session, a->node, node);
		if (node->state != ZKN_CREATING && node->state != ZKN_UNSURE)
			return;
		if (!await_something(a, until))
		{
			/* the session is over; its thread is about to say so of the node */
			node->state = ZKN_LOST;
			return;
		}
	}
}

/*-------------------------------------------------------------------------
 * Standing in the queue
 *-------------------------------------------------------------------------
 */

/*
 * Make our node.  GRANTED means only that it is there, with a list sent.
 */
static Outcome
join_queue(Attempt *a)
{
	int64		until = zkwait_after(zklock_operation_timeout);
	bool		parents = false;

	for (;;)
	{
		ZkNodeInfo	node;

		a->node = zkn_create(a->session, a->dir, a->mode, parents);
		if (a->node == NULL)
			raise_no_memory();
		send_list(a, false);

		await_node(a, &node);
		if (node.state == ZKN_PRESENT)
			return GRANTED;
		drop_attempt(a);
		if (node.state == ZKN_LOST || zks_is_doubtful(node.rc))
			return START_AGAIN;
		if (node.rc != ZNONODE || zks_now() >= Min(until, a->wait->deadline))
			zkc_raise(node.rc, a->path);

		/* no parent yet, or ZooKeeper reaped it just now */
		parents = true;
		CHECK_FOR_INTERRUPTS();
	}
}

/* Keep a watch that is on the right node already */
static void
watch_blocker(Attempt *a, Blocker *blocker, const char *name)
{
	char	   *path;

	if (blocker->watch != NULL)
	{
		ZkSessionInfo info;
		ZkWatchInfo watch;

		zks_watch_info(a->session, blocker->watch, &watch);
		zks_info(a->session, &info);
		if (name != NULL && strcmp(blocker->name, name) == 0 &&
			(watch.state == ZKW_PENDING ||
			 (watch.state == ZKW_ARMED && watch.epoch == info.epoch)))
			return;
		drop_watch(a, blocker);
	}
	if (name == NULL)
		return;
	strlcpy(blocker->name, name, sizeof(blocker->name));
	path = psprintf("%s/%s", a->dir, name);
	blocker->watch = zks_watch(a->session, path);
	pfree(path);
	if (blocker->watch == NULL)
		raise_no_memory();
}

static void
watch_queue(Attempt *a, const ZkpView *view)
{
	/* the second may have become the nearest: its watch goes with it */
	if (a->nearest.watch == NULL || strcmp(a->nearest.name, view->nearest) != 0)
	{
		if (a->second.watch != NULL && strcmp(a->second.name, view->nearest) == 0)
		{
			drop_watch(a, &a->nearest);
			a->nearest = a->second;
			a->second.watch = NULL;
		}
	}
	zkn_watch(a->session, a->node);
	watch_blocker(a, &a->nearest, view->nearest);
	watch_blocker(a, &a->second, view->second);
}

/*
 * The nearest blocker is gone, and the last list showed nobody else to wait
 * for.  Do we hold the lock for certain?
 */
static bool
is_our_turn(Attempt *a)
{
	ZkNodeInfo	node;
	ZkSessionInfo info;

	/* the session last: had it reconnected meanwhile, the epoch would tell */
	zkn_info(a->session, a->node, &node);
	zks_info(a->session, &info);
	return node.state == ZKN_PRESENT && node.watch == ZKW_ARMED &&
		node.watch_epoch == info.epoch && a->list_epoch == info.epoch &&
		zkc_is_fresh(&info);
}

/*
 * Has this watch nothing more to tell, so that the queue must be looked at
 * again?  Raises when ZooKeeper refused to set it.
 */
static bool
is_spent(Attempt *a, const ZkWatchInfo *watch)
{
	if (watch->state == ZKW_FAILED && !zks_is_doubtful(watch->rc))
		zkc_raise(watch->rc, a->path);
	return watch->state != ZKW_ARMED && watch->state != ZKW_PENDING;
}

/*
 * Sleep until something happens in the queue that the list has shown.
 */
static Outcome
await_turn(Attempt *a, bool next)
{
	int64		armed_by = zkwait_after(zklock_operation_timeout);

	for (;;)
	{
		ZkSessionInfo info;
		ZkNodeInfo	node;
		ZkWatchInfo nearest;
		ZkWatchInfo second = {.state = ZKW_ARMED};
		int64		until = ZKS_NEVER;

		/*
		 * The session first: what is read of the watches after it can only be
		 * newer.
		 */
		zks_info(a->session, &info);
		zks_watch_info(a->session, a->nearest.watch, &nearest);
		if (a->second.watch != NULL)
			zks_watch_info(a->session, a->second.watch, &second);
		zkn_info(a->session, a->node, &node);

		if (info.state == ZKS_OVER || node.state == ZKN_LOST)
			return START_AGAIN;
		if (info.state == ZKS_CONNECTED)
		{
			if (info.epoch != a->list_epoch)
				return LIST_AGAIN;
			if (nearest.state == ZKW_FIRED && nearest.epoch == info.epoch &&
				next && is_our_turn(a))
				return GRANTED;
			if (is_spent(a, &nearest) || is_spent(a, &second) ||
				node.watch == ZKW_FAILED || node.watch == ZKW_CHANGED)
				return LIST_AGAIN;
			if (nearest.state == ZKW_PENDING || second.state == ZKW_PENDING ||
				node.watch == ZKW_PENDING)
				until = armed_by;
		}
		else
			until = info.suspended_at + zklock_operation_timeout * NS_PER_MS;

		if (!zkwait(a->wait, a->session, until, ZKWAIT_ACQUIRE))
		{
			if (info.state != ZKS_CONNECTED)
				zkc_raise_cut_off(&info);
			if (zks_now() >= a->wait->deadline)
				return TAKEN;
			zkc_raise_no_answer(a->wait);
		}
	}
}

/* One attempt with one node in one session */
static Outcome
attempt(Attempt *a, bool may_wait)
{
	Outcome		outcome = join_queue(a);
	bool		counted = false;
	bool		look_closer = false;

	while (outcome == GRANTED || outcome == LIST_AGAIN)
	{
		ZkAnswer	answer;
		ZkpView		view;
		ZkNodeInfo	node;

		if (outcome == LIST_AGAIN)
		{
			ZkSessionInfo info;

			/* after a reconnection, from a server that may lag behind */
			zks_info(a->session, &info);
			send_list(a, info.epoch != a->list_epoch || look_closer);
		}
		if (!await_list(a, &answer))
			return START_AGAIN;

		zkn_info(a->session, a->node, &node);
		if (answer.rc != ZOK || node.state != ZKN_PRESENT)
			return START_AGAIN;
		zkp_look(answer.children, answer.nchildren, node.name, a->mode, &view);
		if (!view.self_seen)
		{
			/* do not give our place up for what a lagging server says */
			if (a->list_fresh)
				return START_AGAIN;
			look_closer = true;
			outcome = LIST_AGAIN;
			continue;
		}
		if (view.nblockers == 0)
			return GRANTED;
		if (!may_wait)
			return TAKEN;

		if (!counted)
			zkc_counters.waits++;
		counted = true;
		watch_queue(a, &view);
		outcome = await_turn(a, view.next);
		if (outcome == GRANTED)
			return GRANTED;
		if (outcome == TAKEN)
			zkc_counters.timeouts++;
	}
	return outcome;
}

/*
 * Would a newcomer have to wait?  Asked of the leader, since a follower may
 * still show, or not yet show, another.  Writes nothing.
 */
static Outcome
look_first(Attempt *a)
{
	ZkAnswer	answer;
	ZkpView		view;

	send_list(a, true);
	if (!await_list(a, &answer))
		return START_AGAIN;
	if (answer.rc == ZNONODE)
		return GRANTED;
	zkp_look(answer.children, answer.nchildren, NULL, a->mode, &view);
	drop_list(a);
	return view.nblockers == 0 ? GRANTED : TAKEN;
}

static bool
acquire(Attempt *a, bool may_wait)
{
	for (;;)
	{
		Outcome		outcome = GRANTED;

		a->session = zkc_connect(a->wait);
		pfree(a->dir);
		a->dir = zkpath_join(zkc_root(), a->path);
		if (!may_wait)
			outcome = look_first(a);
		if (outcome == GRANTED)
			outcome = attempt(a, may_wait);
		if (outcome == GRANTED)
			return true;
		drop_attempt(a);
		if (outcome == TAKEN)
			return false;
		CHECK_FOR_INTERRUPTS();
	}
}

bool
zkl_acquire(const char *path, ZkpMode mode, bool may_wait, ZkWait *wait,
			ZkGrant *grant)
{
	Attempt		a = {.path = path,.mode = mode,.wait = wait};
	bool		held;

	a.dir = pstrdup("");
	PG_TRY();
	{
		held = acquire(&a, may_wait);
	}
	PG_CATCH();
	{
		/*
		 * A FATAL error does not come here; it ends the process, and the
		 * session with all its nodes.
		 */
		drop_attempt(&a);
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (held)
	{
		ZkNodeInfo	node;

		zkn_info(a.session, a.node, &node);
		grant->node = a.node;
		grant->token = node.czxid;
		strlcpy(grant->name, node.name, sizeof(grant->name));
		a.node = NULL;
		drop_attempt(&a);
	}
	pfree(a.dir);
	return held;
}

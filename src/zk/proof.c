/*-------------------------------------------------------------------------
 *
 * proof.c
 *	  Whether our nodes are still there, as far as is known, and what relies on
 *	  that.
 *
 * A node that was created (node.c) may be deleted by anybody.  So whoever relies on
 * one has to know more than that it was there once.  What tells is a watch on the node
 * itself, which fires when it is gone; the heartbeat, which reads one of the nodes; a
 * check of several of them, which only a quorum can answer; and the owner, which may
 * have seen a list without it.  What of this is a proof, and for which nodes:
 * src/README.md, "What is proven, and when".
 *
 * When they say that a node is gone, it is lost.  What has to follow, for this node or
 * any other, is done in node.c.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "multi.h"
#include "node_private.h"
#include "nodes.h"
#include "operation.h"

/* ZooKeeper accepts a megabyte for a request by default */
#define CHECK_BYTES			(400 * 1024)

/*
 * Watches
 */

/* A read of a single node must say which one is meant */
static int64_t
meant(const ZkNode *n)
{
	return n->single.at_path ? n->czxid : 0;
}

/*
 * A watch on the node itself, unless there is one that can still fire in time.
 * One that the library took over from another connection fires too late: the
 * server tells what it missed in no particular order.  Until the new one is answered
 * the node counts as held, and is shown so; what relies on it asks a quorum instead.
 */
static void
keep_watch(ZkNode *n)
{
	ZkWatch    *old = n->watch;

	if (zkn_is_renaming(n))
		return;
	if (old != NULL && old->info.state != ZKR_WATCH_FAILED && old->info.state != ZKR_WATCH_CHANGED &&
		!(old->info.state == ZKR_WATCH_ARMED && old->info.epoch != n->session->info.epoch))
		return;

	/*
	 * the new one first: then the old one need not be taken away at the
	 * server
	 */
	n->watch = zkr_new_watch_locked(n->session, n->path, meant(n), 0);
	if (n->watch != NULL)
		n->watch->of_ours = true;
	if (old != NULL)
		zkr_drop_watch_locked(old);
}

void
zkn_watch(ZkSession *s, ZkNode *n)
{
	zks_enter(s);
	if (zkn_is_held(n))
		keep_watch(n);
	zks_leave(s);
}

void
zkn_watch_named(ZkSession *s, const char *dir, const char *name)
{
	ZkNode	   *n;

	zks_enter(s);
	TAILQ_FOREACH(n, &s->nodes.all, link)
	{
		if (zkn_is_held(n) && strcmp(n->dir, dir) == 0 && strcmp(n->name, name) == 0)
			keep_watch(n);
	}
	zks_leave(s);
}

/*
 * Heartbeats
 */

static void
on_heartbeat(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	/* an idle process need not be told that all is well */
	if (!zkn_called_back_quietly_locked(n) || !zkn_is_held(n))
		return;
	if (r->answer.rc == ZOK)
	{
		const ZkRequest *question = r->before != NULL ? r->before : r;

		if (question->writes)
			n->proven_at = question->answer.sent_at;
	}
	else if (r->answer.rc == ZNONODE || r->answer.rc == ZNOAUTH)
	{
		zkn_lose_locked(n, r->answer.rc == ZNOAUTH ? ZK_LOST_ACCESS : ZK_LOST_NODE);
		n->session->notify = true;
	}
}

void
zkn_expect_turn(ZkSession *s, ZkNode *n, bool expects)
{
	zks_enter(s);
	s->nodes.expecting = expects ? n : NULL;
	zks_leave(s);
}

/* Whether one of them is next in line */
bool
zkn_expects_turn_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	return s->nodes.expecting != NULL && zkn_is_held(s->nodes.expecting);
}

/* What was sent is carried out before we ask */
static const char *
path_by_then(const ZkNode *n)
{
	return n->tell_sent && n->shared_name[0] != '\0' ? n->shared_path : n->path;
}

/*
 * Asks a quorum whether these are there: r is answered last.  Those before the last that
 * are read, behind the check of them, are as good as heartbeats.
 */
static void
send_checks(ZkRequest *r, ZkNode *const *nodes, int n)
{
	ZkOp		ops[ZKN_CHECK_MAX];
	ZkRequest  *checks = r;
	int			last = n - 1;

	while (last >= 0 && !nodes[last]->single.at_path)
		last--;
	if (last >= 0 && (checks = zkr_new_before_locked(r)) == NULL)
		return;
	for (int i = 0; i == 0 || i < n; i++)
	{
		ZkOp		op = {.type = ZOO_CHECK_OP,.path = path_by_then(nodes[i]),.version = -1};

		ops[i] = op;
	}
	zkr_multi_locked(checks, ops, n);
	for (int i = 0; i < last; i++)
	{
		ZkRequest  *read;

		if (!nodes[i]->single.at_path)
			continue;
		read = zkn_request_locked(nodes[i], on_heartbeat);
		if (read == NULL)
		{
			zkr_answer_locked(r, ZSYSTEMERROR);
			return;
		}
		read->meant = nodes[i]->czxid;
		zkr_read_locked(read, ZOO_EXISTS_OP, nodes[i]->dir);
	}
	if (last >= 0)
	{
		r->meant = nodes[last]->czxid;
		r->answer.missing = last;
		zkr_read_locked(r, ZOO_EXISTS_OP, nodes[last]->dir);
	}
}

/*
 * The heartbeat of a session that has a node to lose: a read of one that is there,
 * behind a sync, which a server that is cut off from its leader cannot answer; it
 * would still answer the read, and the session would believe to be alive while it has
 * expired.  But a leader that is cut off from the others answers that, too, until it
 * notices.  So with quorum it is a request that only a quorum can answer.  Without such
 * a node it asks about the root.
 */
void
zkn_beat_locked(ZkSession *s, bool quorum)
{
	ZkOp		root = {.type = ZOO_CHECK_OP,.path = "/",.version = -1};
	ZkNode	   *n = TAILQ_FIRST(&s->nodes.all);
	ZkRequest  *r;

	zk_assert(zks_has_mutex(s));
	while (n != NULL && (!zkn_is_held(n) || zkn_is_renaming(n)))
		n = TAILQ_NEXT(n, link);
	r = n != NULL ? zkn_request_locked(n, on_heartbeat) : zkr_new_locked(s, NULL, NULL);
	if (r == NULL)
		return;
	r->listener = LISTENER_NONE;
	if (!quorum)
	{
		r->meant = n != NULL ? meant(n) : 0;
		r->sync_path = "/";
		zkr_read_locked(r, n != NULL ? ZOO_GETDATA_OP : ZOO_EXISTS_OP, n != NULL ? n->path : "/");
	}
	else if (n != NULL)
		send_checks(r, &n, 1);
	else
		zkr_multi_locked(r, &root, 1);	/* whatever is said of it */
}

/*
 * Once a heartbeat: deletes that could not be sent, second looks, and a watch
 * on each node that is still ours, so that its loss is noticed before its own
 * create is too old to prove that it exists.
 */
void
zkn_heartbeat_locked(ZkSession *s)
{
	ZkNode	   *n;

	zk_assert(zks_has_mutex(s));
	zkn_catch_up_locked(s);
	TAILQ_FOREACH(n, &s->nodes.all, link)
	{
		if (zkn_is_held(n) && n->telling == TELLS_NOTHING &&
			(n->watch != NULL || !zkr_watches_exceed_locked(s, true)))
			keep_watch(n);
	}
}

/*
 * What checks prove
 */

ZkRequest *
zkn_check(ZkSession *s, ZkNode *const *nodes, int *n)
{
	size_t		bytes = 0;
	int			count = 0;
	ZkRequest  *r;

	zks_enter(s);
	while (count < *n && count < ZKN_CHECK_MAX && bytes < CHECK_BYTES)
		bytes += strlen(path_by_then(nodes[count++]));
	*n = count;
	r = count > 0 ? zkr_new_locked(s, NULL, NULL) : NULL;
	if (r != NULL)
		send_checks(r, nodes, count);
	zks_leave(s);
	return r;
}

/*
 * Whether an event would have told of its deletion before the session's latest
 * transaction was answered
 */
static bool
is_told_of(const ZkNode *n)
{
	return n->watch != NULL && n->watch->info.state == ZKR_WATCH_ARMED &&
		n->watch->info.epoch == n->session->info.epoch;
}

int
zkn_unproven(ZkSession *s, ZkNode *const *nodes, int n, ZkUse use, int64_t since, ZkNode **ask)
{
	int64_t		least;
	int			told = -1;
	int			count = 0;

	zks_enter(s);
	least = zks_proof_since(&s->info, use);
	if (least < since)
		least = since;
	for (int i = 0; i < n; i++)
	{
		if (nodes[i]->proven_at >= least)
			continue;
		if (!is_told_of(nodes[i]))
			ask[count++] = nodes[i];
		else if (s->info.quorum_at < least)
			told = i;
	}
	zks_leave(s);
	if (count == 0 && told >= 0)
		ask[count++] = nodes[told]; /* the answer will do for all of them */
	return count;
}

void
zkn_proven(ZkSession *s, ZkNode *const *nodes, int n, int64_t sent_at)
{
	zks_enter(s);
	for (int i = 0; i < n; i++)
		nodes[i]->proven_at = sent_at;
	zks_leave(s);
}

/*
 * Losses, as the owner sees them, and others
 */

bool
zkn_report_lost(ZkSession *s, ZkNode *n, ZkLoss loss)
{
	bool		certain;

	zks_enter(s);
	certain = !zkn_is_renaming(n);
	if (n->state == ZKN_PRESENT && certain)
		zkn_lose_locked(n, loss);
	zks_leave(s);
	return certain;
}

/*
 * Whether it is known to be lost, or its watch says so now.  Our own delete fires that,
 * too, but is decided by its answer.
 */
static bool
note_if_lost(ZkNode *n)
{
	if (zkn_is_held(n) && n->watch != NULL && n->watch->info.state == ZKR_WATCH_FIRED)
		zkn_lose_locked(n, ZK_LOST_NODE);
	return n->loss != ZK_NOT_LOST;
}

/*
 * The losses go first: while the session is connected again, what it lost before
 * must not look held.
 */
static void
write_shown(ZkShown *shown, uint32_t state, const ZkSessionInfo *info)
{
	atomic_store(&shown->state, state);
#define SHOW(member, value)	atomic_store_explicit(&shown->member, (value), memory_order_relaxed)
	SHOW(timeout_ms, (uint32_t) info->timeout_ms);
	SHOW(session_id, info->epoch > 0 ? info->session_id : 0);
	SHOW(answered_at, info->answered_at);
	SHOW(requests, info->requests);
	SHOW(reconnections, info->reconnections);
	SHOW(losses, info->losses);
	SHOW(unreleased, (uint32_t) info->unreleased);
#undef SHOW
}

/* For what other processes see */
void
zkn_show_locked(ZkSession *s)
{
	uint32_t	state = s->info.state + 1;

	zk_assert(zks_has_mutex(s));
	if (zks_in_doubt(&s->info))
		state |= ZKS_SHOWN_IN_DOUBT;
	for (int i = 0; i < ZKS_SHOWN_NODES; i++)
	{
		if (s->shown.nodes[i] != NULL && note_if_lost(s->shown.nodes[i]))
			state |= ZKS_SHOWN_LOST(i);
	}
	pthread_mutex_lock(&s->shown.mutex);
	if (s->shown.memory != NULL)
		write_shown(s->shown.memory, state, &s->info);
	pthread_mutex_unlock(&s->shown.mutex);
}

void
zkn_show(ZkSession *s, ZkNode *const *nodes, int n)
{
	zks_enter(s);
	for (int i = 0; i < ZKS_SHOWN_NODES; i++)
		s->shown.nodes[i] = i < n ? nodes[i] : NULL;
	zkn_show_locked(s);
	zks_leave(s);
}

int
zkn_first_lost(ZkSession *s, ZkNode *const *nodes, int n, ZkLoss *loss)
{
	int			i;

	zks_enter(s);
	for (i = 0; i < n; i++)
	{
		if (note_if_lost(nodes[i]) || nodes[i]->state != ZKN_PRESENT)
			break;
	}
	if (i < n)
		*loss = nodes[i]->loss != ZK_NOT_LOST ? nodes[i]->loss : ZK_LOST_NODE;
	zks_leave(s);
	return i < n ? i : -1;
}

void
zkn_info(ZkSession *s, ZkNode *n, ZkNodeInfo *info)
{
	zks_enter(s);
	info->state = note_if_lost(n) ? ZKN_LOST : n->state;
	info->loss = n->loss;
	info->rc = n->refused != 0 ? n->refused : n->rc;
	info->sharing = n->telling == TELLING_SHARED;
	info->comes_next = n->comes_next;
	info->czxid = n->czxid;
	/* until it is known, it is only what it begins with */
	snprintf(info->name, sizeof(info->name), "%s", n->name[n->prefix_len] != '\0' ? n->name : "");
	info->watch = n->watch != NULL ? n->watch->info.state : ZKR_WATCH_FAILED;
	info->watch_epoch = n->watch != NULL ? n->watch->info.epoch : 0;
	zks_leave(s);
}

/*
 * Relying on nodes
 */

void
zkn_rely(ZkSession *s, ZkNode *n, ZkReliance reliance, bool by_session)
{
	zks_enter(s);
	zkn_rely_locked(n, reliance);
	n->by_session = by_session;
	if (note_if_lost(n))
		s->nodes.some_lost = true;
	zks_leave(s);
}

/* There may be thousands that it relied on */
void
zkn_rely_less(ZkSession *s)
{
	zks_enter(s);
	s->nodes.transaction++;
	zks_leave(s);
}

static ZkReliance
reliance_on(const ZkNode *n)
{
	return n->reliance == ZKN_RELIED && n->transaction != n->session->nodes.transaction ?
		ZKN_RELIED_IF_WRITTEN : n->reliance;
}

/*
 * Whether the node is lost by ZooKeeper's word.  One that counts as lost only
 * because nothing was heard is, once we are connected again: it is deleted
 * then.
 */
static bool
is_known_lost(ZkNode *n)
{
	ZkSessionState state = n->session->info.state;

	return note_if_lost(n) && (n->loss != ZK_LOST_CONTACT || state == ZKS_CONNECTED || state == ZKS_OVER);
}

/*
 * How much the owner relies on one that is lost, or in doubt if that counts: on
 * the one that it relies on most.  why->doubt says whether the whole session is in
 * doubt.
 */
ZkReliance
zkn_reliance_locked(ZkSession *s, bool doubt_counts, bool only_by_session, ZkStopReason *why)
{
	ZkReliance	most = ZKN_NOT_RELIED;
	bool		session_doubted = why->doubt;
	ZkNode	   *n;

	zk_assert(zks_has_mutex(s));
	if (!s->nodes.some_lost && !session_doubted)
		return most;
	s->nodes.some_lost = false;
	TAILQ_FOREACH(n, &s->nodes.all, link)
	{
		bool		lost;

		/* of one that its owner has released, the answer tells */
		if (n->reliance == ZKN_NOT_RELIED || (!zkn_is_wanted(n) && n->loss != ZK_LOST_CONTACT))
			continue;
		s->nodes.some_lost |= note_if_lost(n);
		if (reliance_on(n) <= most || (only_by_session && !n->by_session))
			continue;
		lost = is_known_lost(n);
		if (!lost && !session_doubted && !(doubt_counts && note_if_lost(n)))
			continue;
		most = reliance_on(n);
		why->doubt = !lost;
		why->loss = !lost ? ZK_LOST_CONTACT : n->loss != ZK_NOT_LOST ? n->loss : ZK_LOST_NODE;
		snprintf(why->dir, sizeof(why->dir), "%s", n->dir);
	}
	return most;
}

/*-------------------------------------------------------------------------
 *
 * node.c
 *	  The nodes that this session creates (create.c), from then to the last trace.
 *
 * This file keeps the promise that a node does not outlive its purpose.  Each
 * create has a unique name (a UUID), so that a node whose answer was lost can
 * be found, and so that a repeated delete can never hit another one.  A node
 * that is no longer wanted stays in the session's list until ZooKeeper has
 * confirmed that it is gone, or the session is over, which is equivalent.
 * (A single node has a name that others give to theirs, too: see single.c.)
 *
 *	           create      create   no      list   list   our
 *	           answered    refused  answer  shows  lacks  delete
 *	                                        it     it     answered
 *	CREATING   PRESENT     ABSENT   UNSURE
 *	UNSURE                                  PRESENT ABSENT
 *	PRESENT                                               DELETED
 *	ABSENT                                  PRESENT ABSENT
 *
 * UNSURE ends after a reconnection: sync, list, match (of a single node: sync,
 * read, compare).  One that is ABSENT, and that its owner discards, may have been
 * UNSURE: then it is looked for again and again for a while; and the directories that
 * were created for it are pruned.
 *
 * These states are what ZooKeeper has said.  Whether the node is lost is another
 * matter: somebody has deleted it, we have no access, nothing is heard, or the
 * session is over (zkn_lose_locked).  Its owner sees LOST then; but it may stand
 * nevertheless, so it is deleted like any other.
 *
 * Callbacks note what they have learned; zkn_advance_locked() decides what follows from the
 * state, and from whether the owner is interested in the node (see Interest), which
 * may change in each state.
 *
 * A node whose holder has become a reader says so in its data or, where other
 * clients go by names, is replaced by one with a reader's name, in one
 * transaction.  Until that is answered, its name is unknown, and requests that
 * need the name have to wait.  A waiter that was granted a place of a
 * semaphore informs those behind it in the same way, by the node's data.
 *
 * A node under which a claim was marked (mark.c) is deleted together with what
 * becomes of the mark, in one transaction, and not before that is decided.
 *
 * A single node is told from others at its path by its version and its transaction
 * (single.c).  Whenever there is more reason than usual to doubt that it is there, it
 * is read before it is deleted.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lease.h"
#include "mark_private.h"
#include "node_private.h"
#include "nodes.h"
#include "operation.h"

/* The chart */
static void
set_state(ZkNode *n, ZkNodeState state)
{
#define TO(state)	(1 << (state))
	static const int next[] = {
		[ZKN_CREATING] = TO(ZKN_UNSURE) | TO(ZKN_PRESENT) | TO(ZKN_ABSENT),
		[ZKN_UNSURE] = TO(ZKN_UNSURE) | TO(ZKN_PRESENT) | TO(ZKN_ABSENT),
		[ZKN_PRESENT] = TO(ZKN_DELETED),
		[ZKN_ABSENT] = TO(ZKN_ABSENT) | TO(ZKN_PRESENT),
		[ZKN_DELETED] = 0,
	};

	_Static_assert(sizeof(next) / sizeof(next[0]) == ZKN_DELETED + 1, "all states");
	zk_assert(next[n->state] & TO(state));
	(void) next;
	n->session->nodes.path_bytes -= zkn_may_stand(n) * n->path_bytes;
	n->state = state;
	n->session->nodes.path_bytes += zkn_may_stand(n) * n->path_bytes;
#undef TO
}

/*
 * The code with which ZooKeeper refuses to delete the node, or ZOK.  It is
 * reported to an owner that waits for zkn_delete, and to all others by these
 * counters.
 */
static void
set_refused(ZkNode *n, int rc)
{
	ZkSessionInfo *info = &n->session->info;

	if (rc != ZOK && n->refused == ZOK)
	{
		info->refused = rc;
		snprintf(n->session->texts.refused_path, sizeof(n->session->texts.refused_path), "%s", n->path);
		info->refusals += (n->interest != RETURNED);
	}
	info->unreleased += (rc != ZOK) - (n->refused != ZOK);
	n->refused = rc;
}

/* It is settled without us */
void
zkn_part_with_mark_locked(ZkNode *n)
{
	ZkMark	   *mark = n->mark;

	zk_assert(zks_has_mutex(n->session));
	n->mark = NULL;
	if (mark != NULL)
		zkn_leave_mark_locked(mark);
}

/* How many of them there are is counted, for those who ask often */
void
zkn_rely_locked(ZkNode *n, ZkReliance reliance)
{
	ZkSession  *s = n->session;

	zk_assert(zks_has_mutex(s));
	s->nodes.nrelied += (reliance != ZKN_NOT_RELIED) - (n->reliance != ZKN_NOT_RELIED);
	n->reliance = reliance;
	n->transaction = s->nodes.transaction;
}

/* Returned or discarded */
static void
lose_interest(ZkNode *n, Interest interest)
{
	if (n->interest == WANTED)
	{
		TAILQ_REMOVE(&n->session->nodes.all, n, link);
		TAILQ_INSERT_HEAD(&n->session->nodes.all, n, link);
	}
	n->interest = interest;
}

/*
 * Out of the list; memory waits for the requests that still point here.
 */
static void
finish(ZkNode *n)
{
	ZkSession  *s = n->session;

	if (n->interest != FINISHED)
	{
		n->interest = FINISHED;
		set_refused(n, ZOK);
		if (s->nodes.expecting == n)
			s->nodes.expecting = NULL;
		zkn_rely_locked(n, ZKN_NOT_RELIED);
		TAILQ_REMOVE(&s->nodes.all, n, link);
		s->nodes.path_bytes -= zkn_may_stand(n) * n->path_bytes;
		zk_assert(!TAILQ_EMPTY(&s->nodes.all) || s->nodes.path_bytes == 0);
		if (TAILQ_EMPTY(&s->nodes.all))
			s->idle.since = zks_now();
		if (n->watch != NULL)
			zkr_drop_watch_locked(n->watch);
		n->watch = NULL;
		zkn_part_with_mark_locked(n);
		s->notify = true;
		for (int i = 0; i < ZKS_SHOWN_NODES; i++)
		{
			if (s->shown.nodes[i] == n)
				s->shown.nodes[i] = NULL;
		}
	}
	if (n->pending == 0)
		free(n);
}

/* Once lost, always lost: the first reason is kept */
void
zkn_lose_locked(ZkNode *n, ZkLoss loss)
{
	zk_assert(zks_has_mutex(n->session));
	n->session->nodes.some_lost = true;
	n->single.unseen = true;
	if (n->loss == ZK_NOT_LOST)
	{
		n->loss = loss;
		atomic_fetch_add(&n->session->news, 1);
	}

	/* what it was to tell is no longer needed: it is not sent again */
	if (zkn_is_wanted(n))
		n->ticket = 0;
}

/* Comes first in each callback: false if the node is no longer of interest */
bool
zkn_called_back_quietly_locked(ZkNode *n)
{
	zk_assert(zks_has_mutex(n->session));
	n->pending--;
	if (n->interest != FINISHED)
		return true;
	finish(n);
	return false;
}

/* ... where somebody may wait for the result */
bool
zkn_called_back_locked(ZkNode *n)
{
	zk_assert(zks_has_mutex(n->session));
	n->session->notify = true;
	return zkn_called_back_quietly_locked(n);
}

ZkRequest *
zkn_request_locked(ZkNode *n, ZkDone done)
{
	ZkRequest  *r = zkr_new_locked(n->session, done, n);

	zk_assert(zks_has_mutex(n->session));
	if (r != NULL)
		n->pending++;
	return r;
}

/* Its name is known, in whole */
void
zkn_name_locked(ZkNode *n, const char *name)
{
	zk_assert(zks_has_mutex(n->session));
	snprintf(n->name, ZKP_NAME_LEN, "%s", name);
	if (!zkp_shared_name(n->shared_name, n->name))
		n->shared_name[0] = '\0';
}

/*
 * The node is known not to exist.  If it is no longer wanted, that is the end,
 * except for two things.  Its create may still be carried out: so look again,
 * for a while.  And its directory may have been created only for it.
 */
void
zkn_absent_locked(ZkNode *n, int rc)
{
	zk_assert(zks_has_mutex(n->session));
	set_state(n, ZKN_ABSENT);
	n->rc = rc;
	n->prune_len = n->parents ? (int) strlen(n->dir) : 0;
	n->look_at = zks_now() + zks_late_after(&n->session->info);
	zkn_advance_locked(n);
}

/* Of a single one its version is known by that, too, and how we call it */
void
zkn_present_locked(ZkNode *n, const ZkStat *stat)
{
	zk_assert(zks_has_mutex(n->session));
	set_state(n, ZKN_PRESENT);
	n->rc = ZOK;
	n->czxid = stat->czxid;
	if (n->single.at_path)
	{
		n->single.version = stat->version;
		zkp_single_name(n->name, stat->czxid);
	}
	zkn_advance_locked(n);
}

/* Looks as soon as we are connected, or soon if we are */
void
zkn_unsure_locked(ZkNode *n, int rc)
{
	zk_assert(zks_has_mutex(n->session));
	set_state(n, ZKN_UNSURE);
	n->rc = rc;
	if (zks_usable_locked(n->session))
		zks_catch_up_soon_locked(n->session);
	zkn_doubt_locked(n);
}

/* The data that says this, or NULL; the caller frees it */
char *
zkn_make_data(const ZkpData *says)
{
	char	   *data = malloc(strlen(says->identity) + ZKP_DATA_EXTRA);

	if (data != NULL)
		zkp_write_data(data, says);
	return data;
}

/*
 * For one whose create was not answered.  sync first: the server that we are connected
 * to may lag behind (CURATOR-264)
 */
static void
look(ZkNode *n)
{
	ZkRequest  *r = zkn_request_locked(n, n->looked);

	if (r == NULL)
		return;
	r->sync_path = n->dir;
	r->keeps_all = n->want.record != NULL;
	zkr_read_locked(r, n->single.at_path ? ZOO_EXISTS_OP : ZOO_GETCHILDREN_OP, n->dir);
}

/*
 * Deletion
 */

/* ZooKeeper has said that it is, or that there is none */
static void
deleted(ZkNode *n, int rc)
{
	zkr_node_is_gone_locked(n->session, n->path, n->dir);
	set_refused(n, ZOK);
	if (rc == ZNONODE && !n->doubted)
		zkn_lose_locked(n, ZK_LOST_NODE);
	n->rc = rc;
	set_state(n, ZKN_DELETED);
	zkn_advance_locked(n);
}

/* A single node was read, so that only that one is deleted */
static void
on_seen(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	if (!zkn_called_back_locked(n))
		return;
	n->deleting = false;
	if (r->answer.rc == ZOK || r->answer.rc == ZNOAUTH)
	{
		/* who may not look relies on the version */
		n->single.closed_to_us = r->answer.rc == ZNOAUTH;
		if (r->answer.rc == ZOK)
			n->single.version = r->answer.stat.version;
		n->single.unseen = false;
		zkn_advance_locked(n);
	}
	else if (r->answer.rc == ZNONODE)
		deleted(n, ZNONODE);
	else if (!zks_is_open(r->answer.rc))
		set_refused(n, r->answer.rc);
}

/*
 * Of a claim's mark that is set with it: it may have been refused, since somebody has
 * changed it, then the node goes alone; or the node, since somebody has deleted it,
 * then the mark is set alone.
 *
 * If in doubt, it is sent again once connected, or at the next heartbeat.  The
 * same if ZooKeeper refused: an ACL can be corrected.  A server that throttles has
 * refused nothing.
 */
static void
on_deleted(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	ZkMark	   *mark = r->op == ZOO_MULTI_OP ? n->mark : NULL;
	bool		of_node = r->op == ZOO_MULTI_OP && r->answer.rc != ZOK && !zks_is_doubtful(r->answer.rc) && zkr_failed_op(r) == 1;
	int			rc = r->answer.rc;

	if (mark != NULL)
		rc = zkn_mark_set_answered_locked(mark, of_node ? ZRUNTIMEINCONSISTENCY : r->answer.rc);
	if (of_node)
		rc = r->answer.rc;
	if (!zkn_called_back_locked(n))
		return;
	n->deleting = false;
	if (r->answer.rc != ZOK && rc == ZOK)
	{
		zkn_advance_locked(n);	/* without the mark */
		return;
	}
	if (of_node && rc == ZNONODE)
		zkn_part_with_mark_locked(n);
	zkn_turn_ended_locked(n->session, n->dir, n->czxid, rc == ZOK);
	if (rc == ZNONODE && n->tell_doubted && n->shared_name[0] != '\0')
	{
		/* it was renamed after all, though a second attempt was refused */
		zkn_name_locked(n, n->shared_name);
		zkn_advance_locked(n);
	}
	else if (rc == ZOK || rc == ZNONODE)
		deleted(n, rc);
	else if (zks_is_doubtful(rc))
	{
		n->doubted = n->single.unseen = true;
		zkn_doubt_locked(n);
	}
	else if (rc == ZBADVERSION && !n->single.closed_to_us)
	{
		/* another one is there, or somebody has written to ours */
		n->single.unseen = true;
		zkn_advance_locked(n);
	}
	else if (!zks_is_busy(rc))
		set_refused(n, rc == ZBADVERSION ? ZNOAUTH : rc);
}

static void
send_delete(ZkNode *n, bool with_mark)
{
	const ZkSessionInfo *info = &n->session->info;

	/* if there is a reason why it should be gone, or we would not know of one */
	bool		read_first = n->single.version >= 0 && (n->single.unseen || zks_now() - info->heard_at >= zks_late_after(info));
	ZkRequest  *r = zkn_request_locked(n, read_first ? on_seen : on_deleted);
	ZkOp		ops[2] = {{0}, {.type = ZOO_DELETE_OP,.path = n->path,.version = n->single.version}};

	if (r == NULL)
		return;					/* at the next heartbeat */
	n->deleting = true;
	if (n->watch != NULL)
		zkr_leave_watch_locked(n->watch);	/* its event is not for us any
											 * more */
	n->watch = NULL;
	if (read_first)
	{
		r->meant = n->czxid;
		r->sync_path = n->path;
		zkr_read_locked(r, ZOO_EXISTS_OP, n->path);
	}
	else if (with_mark)
	{
		zkn_mark_op(n->mark, &ops[0]);
		zkr_multi_locked(r, ops, 2);
	}
	else
		zkr_send_locked(r, &ops[1]);
}

/*
 * Deletes it, unless that is under way.  As long as a claim's mark is not settled,
 * who comes next would take the period for claimed, so the two go together.
 */
static void
get_rid_of(ZkNode *n)
{
	if (n->deleting)
		return;
	if (n->mark == NULL || zkn_mark_over(n->mark))
		send_delete(n, false);
	else if (zkn_mark_can_be_set(n->mark))
		send_delete(n, true);
	else
		zkn_advance_mark_locked(n->mark);
}

/* Its mark is refused, so that it cannot go, or there is something new of that */
void
zkn_mark_moved_locked(ZkNode *n, int refused)
{
	if (refused == ZOK)
		zkn_advance_locked(n);
	else if (!zkn_is_wanted(n))
		set_refused(n, refused);
}

void
zkn_give_marks_locked(ZkSession *s, ZkMarks *list)
{
	ZkNode	   *n;

	zk_assert(zks_has_mutex(s));
	TAILQ_FOREACH(n, &s->nodes.all, link)
		n->mark = NULL;
	zkn_take_marks_locked(s, list);
}

/*
 * Becoming shared, and telling of a grant
 */

static void
on_told(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	bool		renamed = n->shared_name[0] != '\0';

	if (!zkn_called_back_locked(n))
		return;
	n->tell_sent = false;
	set_refused(n, ZOK);
	if (r->answer.rc == ZOK || (r->answer.rc == ZNODEEXISTS && renamed && n->tell_doubted))
	{
		if (renamed)
			zkn_name_locked(n, n->shared_name);
		if (r->answer.rc == ZOK)
			n->proven_at = r->answer.sent_at;
	}
	else if (r->answer.rc == ZNONODE || r->answer.rc == ZNODEEXISTS)
	{
		/* somebody has deleted it, or we have */
		if (zkn_is_wanted(n))
			zkn_lose_locked(n, ZK_LOST_NODE);
	}
	else if (zks_is_open(r->answer.rc))
	{
		n->tell_doubted |= zks_is_doubtful(r->answer.rc);
		return;
	}
	else if (n->telling == TELLING_SHARED)
	{
		set_refused(n, r->answer.rc);
		if (zkn_is_wanted(n))
			return;
	}

	/*
	 * those behind it know, or need not know any longer, or look now and then
	 */
	n->telling = TELLS_NOTHING;
	if (zkn_is_wanted(n))
		n->ticket = 0;
	zkn_advance_locked(n);
}

/* Sent again once connected, or at the next heartbeat, until it is answered */
static void
tell(ZkNode *n)
{
	bool		rename = n->shared_name[0] != '\0';
	ZkOp		op = {.type = ZOO_SETDATA_OP,.path = n->path,.version = -1};
	ZkpData		says = {
		.shared = n->telling == TELLING_SHARED,
		.granted = n->telling == TELLING_GRANTED,
		.czxid = rename ? n->czxid : 0,
		.identity = n->want.identity
	};
	char	   *data = zkn_make_data(&says);
	ZkRequest  *r = data != NULL ? zkn_request_locked(n, on_told) : NULL;

	n->tell_sent = r != NULL;
	if (r != NULL && rename)
	{
		ZkOp		ops[2] = {
			{.type = ZOO_CREATE_OP,.path = n->shared_path,.flags = ZOO_EPHEMERAL,
			.data = data,.closed = n->want.closed},
			{.type = ZOO_DELETE_OP,.path = n->path,.version = -1}
		};

		/* it would take this for the loss of the node */
		if (n->watch != NULL)
			zkr_drop_watch_locked(n->watch);
		n->watch = NULL;
		zkr_multi_locked(r, ops, 2);
	}
	else if (r != NULL)
	{
		op.data = data;
		zkr_send_locked(r, &op);
	}
	free(data);
}

/*
 * A container that never had a child is never reaped, nor are its parents.  So
 * start from the deepest one: delete the first that exists, if it is one of
 * ours and never had a child; its parents then had one, and ZooKeeper reaps
 * them.
 */

static void
send_prune(ZkNode *n, int type, ZkDone done)
{
	ZkRequest  *r = zkn_request_locked(n, done);
	char		dir[ZKS_PATH_LEN];
	ZkOp		op = {.type = type,.path = dir};	/* as it was made */

	snprintf(dir, sizeof(dir), "%.*s", n->prune_len, n->dir);
	if (r != NULL)
		zkr_send_locked(r, &op);
}

/* One is read, or deleted */
static void
on_pruned(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	bool		was_read = r->op == ZOO_GETDATA_OP;

	/* NOTEMPTY: it is in use now; in doubt, or throttled: again, later */
	if (!zkn_called_back_locked(n) || zks_is_open(r->answer.rc))
		return;
	if (was_read && r->answer.rc == ZOK && r->answer.stat.is_our_directory && r->answer.stat.cversion == 0)
	{
		send_prune(n, ZOO_DELETE_OP, on_pruned);
		return;
	}
	while (was_read && n->prune_len > 0 && n->dir[--n->prune_len] != '/')
		;
	if (!was_read || r->answer.rc != ZNONODE)
		n->prune_len = 0;
	zkn_advance_locked(n);
}

/*
 * What is to be done now, if anything.  Nothing of it fails for good: what was not
 * answered, or could not be sent, is done again when connected, or at the next
 * heartbeat.  The node may be freed.
 */
void
zkn_advance_locked(ZkNode *n)
{
	bool		usable = zks_usable_locked(n->session);
	int64_t		now = zks_now();

	zk_assert(zks_has_mutex(n->session));
	switch (n->state)
	{
		case ZKN_CREATING:
		case ZKN_LOST:
			break;
		case ZKN_UNSURE:
			if (usable && n->pending == 0 && now >= n->look_at)
				look(n);
			break;
		case ZKN_PRESENT:

			/*
			 * while a rename is unanswered, we do not know which name to
			 * delete
			 */
			if (!usable)
				break;
			if (zkn_is_wanted(n) && n->mark != NULL)
				zkn_advance_mark_locked(n->mark);	/* without the node */
			if (zkn_is_wanted(n) ? zkn_is_held(n) && n->telling != TELLS_NOTHING : zkn_is_renaming(n))
			{
				if (!n->tell_sent)
					tell(n);
			}
			else if (!zkn_is_wanted(n))
				get_rid_of(n);
			break;
		case ZKN_ABSENT:
		case ZKN_DELETED:
			if (n->interest != DISCARDED)
				break;
			n->ticket = 0;		/* nobody waits for what follows */
			if (n->state == ZKN_ABSENT && n->prune_len > 0)
			{
				if (usable && n->pending == 0)
					send_prune(n, ZOO_GETDATA_OP, on_pruned);
			}
			else if (now >= n->stale_until || (n->state == ZKN_DELETED && n->single.versions == 0))
				finish(n);
			else if (n->state == ZKN_ABSENT && usable && n->pending == 0 && now >= n->look_at)
				look(n);
			break;
	}
}

/*
 * What the owner asks for
 */

void
zkn_delete(ZkSession *s, ZkNode *n)
{
	zks_enter(s);
	if (zkn_is_wanted(n))
		lose_interest(n, RETURNED);
	zkn_advance_locked(n);
	zks_leave(s);
}

uint64_t
zkn_discard(ZkSession *s, ZkNode *n)
{
	uint64_t	ticket;

	zks_enter(s);
	ticket = n->ticket = ++s->nodes.tickets;
	if (n->interest == RETURNED && n->loss != ZK_NOT_LOST && n->refused != ZOK)
		s->info.refusals++;		/* its owner has not asked, so it has not been
								 * told */
	lose_interest(n, DISCARDED);
	zkn_rely_locked(n, ZKN_NOT_RELIED);
	n->loss = ZK_NOT_LOST;
	if (s->info.state == ZKS_OVER)
		finish(n);
	else
		zkn_advance_locked(n);
	s->notify = false;			/* it would end the owner's next wait at once */
	zks_leave(s);
	return ticket;
}

uint64_t
zkn_share(ZkSession *s, ZkNode *n)
{
	uint64_t	ticket = 0;

	zks_enter(s);
	if (zkn_is_held(n) && n->telling == TELLS_NOTHING)
	{
		ticket = n->ticket = ++s->nodes.tickets;
		n->telling = TELLING_SHARED;
		n->tell_doubted = false;
		zkn_turn_shared_locked(s, n->dir);
		zkn_advance_locked(n);
	}
	zks_leave(s);
	return ticket;
}

void
zkn_granted(ZkSession *s, ZkNode *n)
{
	zks_enter(s);
	if (zkn_is_held(n) && n->telling == TELLS_NOTHING)
		zkn_turn_granted_locked(s, n->dir, n->name, n->czxid);
	zks_leave(s);
}

void
zkn_tell_granted(ZkSession *s, ZkNode *n)
{
	zk_assert(n->want.mode == ZKP_SEMAPHORE);	/* others it would rename */
	zks_enter(s);
	if (n->telling == TELLS_NOTHING)
	{
		n->telling = TELLING_GRANTED;
		zkn_advance_locked(n);
	}
	zks_leave(s);
}

/*
 * What the session tells us
 */

/*
 * Continue with what could not be done, or was not answered, until now: connected
 * again, and at each heartbeat
 */
void
zkn_catch_up_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkNode *next,
		 *n = TAILQ_FIRST(&s->nodes.all); n != NULL; n = next)
	{
		next = TAILQ_NEXT(n, link);
		zkn_advance_locked(n);
	}
	zkn_advance_marks_locked(s);
}

/*
 * All nodes count as lost, whether they exist or not, and are deleted as soon
 * as possible.  The owner still sees them, as lost.
 */
void
zkn_forfeit_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkNode *next,
		 *n = TAILQ_FIRST(&s->nodes.all); n != NULL; n = next)
	{
		next = TAILQ_NEXT(n, link);
		if (!zkn_is_held(n))
			continue;
		zkn_lose_locked(n, ZK_LOST_CONTACT);
		lose_interest(n, RETURNED);
		zkn_advance_locked(n);
	}
}

/* The session is over, and all its nodes with it */
void
zkn_over_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkNode *next,
		 *n = TAILQ_FIRST(&s->nodes.all); n != NULL; n = next)
	{
		next = TAILQ_NEXT(n, link);
		if (n->interest == DISCARDED)
			finish(n);
		else if (zkn_may_stand(n))
			zkn_lose_locked(n, zks_is_auth_failure(s->info.error) ? ZK_LOST_IDENTITY : ZK_LOST_SESSION);
	}
}

/* It is gone, and only kept because of what was asked about it: see single.c */
static bool
is_remembered(const ZkNode *n)
{
	return n->state == ZKN_DELETED && n->interest == DISCARDED;
}

/*
 * Whether there are only nodes here that are not wanted and that ZooKeeper
 * refuses to delete.  Then only the end of the session removes them.  But one
 * that stays because of a claim's mark must not go before that is settled.
 */
bool
zkn_only_refused_locked(ZkSession *s)
{
	ZkNode	   *n;

	zk_assert(zks_has_mutex(s));
	TAILQ_FOREACH(n, &s->nodes.all, link)
	{
		if (is_remembered(n))
			continue;
		if (n->refused == ZOK || n->interest != DISCARDED || (n->mark != NULL && !zkn_mark_over(n->mark)))
			return false;
	}
	return !TAILQ_EMPTY(&s->nodes.all);
}

bool
zkn_any_locked(ZkSession *s)
{
	ZkNode	   *n;

	zk_assert(zks_has_mutex(s));
	TAILQ_FOREACH(n, &s->nodes.all, link)
	{
		if (!is_remembered(n))
			return true;
	}
	return zkn_any_mark_locked(s, NULL);
}

void
zkn_free_all(ZkSession *s)
{
	while (!TAILQ_EMPTY(&s->nodes.all))
	{
		ZkNode	   *n = TAILQ_FIRST(&s->nodes.all);

		TAILQ_REMOVE(&s->nodes.all, n, link);
		free(n);
	}
	zkn_free_marks(s);
	zkn_free_turns(s);
}

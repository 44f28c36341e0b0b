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
 *	           create      create   no      list   list   deleted by  our
 *	           answered    refused  answer  shows  lacks  somebody    delete
 *	                                        it     it                 answered
 *	CREATING   PRESENT     ABSENT   UNSURE
 *	UNSURE                                  PRESENT ABSENT
 *	PRESENT                                               LOST        DELETED
 *
 * UNSURE ends after a reconnection: sync, list, match (of a single node: sync,
 * read, compare).  A single one that is gone when it is read, right behind its
 * create, is LOST at once.  The end of the session makes all of these LOST
 * except those that are ABSENT or DELETED.  A node that its owner discards is
 * deleted when it is, or turns out to be, PRESENT
 * (LOST may only mean that we have no access, so it becomes PRESENT for that;
 * a node being deleted by zkn_delete becomes DELETED).
 * One that is ABSENT was UNSURE once and becomes so again, for further looks,
 * or is PRUNING the directories that were created for it (and is UNSURE again
 * after that), or is finished.
 * set_state() allows no other transitions.
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
 * Independently of that, the owner is interested in the node or not: see
 * Interest.  It may lose interest in each state; the completions do what has
 * to follow.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lease.h"
#include "mark_private.h"
#include "node.h"
#include "node_private.h"
#include "nodes.h"
#include "operation.h"
#include "turn.h"

/* How long until a list that was too large to be read is requested again */
#define TOO_LARGE_PAUSE_MS	60000

static void look(ZkNode *n);
static void send_delete(ZkNode *n);
static void settle_and_delete(ZkNode *n);
static void prune(ZkNode *n);

/* The chart, and what else may follow a state */
static void
set_state(ZkNode *n, ZkNodeState state)
{
#define TO(state)	(1 << (state))
	static const int next[] = {
		[ZKN_CREATING] = TO(ZKN_UNSURE) | TO(ZKN_PRESENT) | TO(ZKN_ABSENT) | TO(ZKN_LOST),
		[ZKN_UNSURE] = TO(ZKN_UNSURE) | TO(ZKN_PRESENT) | TO(ZKN_ABSENT) | TO(ZKN_LOST),
		[ZKN_PRESENT] = TO(ZKN_LOST) | TO(ZKN_DELETED),
		[ZKN_ABSENT] = TO(ZKN_ABSENT) | TO(ZKN_UNSURE) | TO(ZKN_PRUNING),
		[ZKN_PRUNING] = TO(ZKN_PRUNING) | TO(ZKN_UNSURE),
		[ZKN_LOST] = TO(ZKN_LOST) | TO(ZKN_PRESENT) | TO(ZKN_DELETED),
		[ZKN_DELETED] = 0,
	};

	_Static_assert(sizeof(next) / sizeof(next[0]) == ZKN_DELETED + 1, "all states");
	zk_assert(next[n->state] & TO(state));
	(void) next;
	n->state = state;
#undef TO
}

/* Its owner will ask for the result */
static bool
is_awaited(const ZkNode *n)
{
	return n->interest == RETURNED || n->interest == FORFEITED;
}

/* What it tells, or has told, is that it has a place of a semaphore */
static bool
is_of_grant(const ZkNode *n)
{
	return n->telling == TELLING_GRANTED || n->telling == TOLD_GRANTED;
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

	if (rc != ZOK)
		info->refused = rc;
	if (rc != ZOK && n->refused == ZOK && !is_awaited(n))
		info->refusals++;
	info->unreleased += (rc != ZOK) - (n->refused != ZOK);
	n->refused = rc;
}

/* Whether its path is among those that ZooKeeper may have to take at once */
static void
count_path(ZkNode *n, bool counts)
{
	if (counts && !n->counts)
		n->session->path_bytes += n->path_bytes;
	else if (!counts && n->counts)
		n->session->path_bytes -= n->path_bytes;
	n->counts = counts;
}

/*
 * It no longer does once its delete is sent: whatever is created later on that
 * connection comes after that.
 */
static void
set_deleting(ZkNode *n, bool deleting)
{
	n->deleting = deleting;
	count_path(n, !deleting);
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

/*
 * The list: those that nobody wants come first, since many a call asks for them, and
 * those that are held may be thousands
 */

void
zkn_enlist_locked(ZkNode *n)
{
	ZkSession  *s = n->session;

	zk_assert(zks_has_mutex(n->session));
	n->next = NULL;
	n->prev = s->last_node;
	if (n->prev != NULL)
		n->prev->next = n;
	else
		s->nodes = n;
	s->last_node = n;
	count_path(n, true);
}

static void
strike(ZkNode *n)
{
	if (n->prev != NULL)
		n->prev->next = n->next;
	else
		n->session->nodes = n->next;
	if (n->next != NULL)
		n->next->prev = n->prev;
	else
		n->session->last_node = n->prev;
}

/* How many of them there are is counted, for those who ask often */

void
zkn_expect_locked(ZkNode *n, bool expects)
{
	zk_assert(zks_has_mutex(n->session));
	n->session->nexpecting += expects - n->expects_turn;
	n->expects_turn = expects;
}

void
zkn_rely_locked(ZkNode *n, ZkReliance reliance)
{
	ZkSession  *s = n->session;

	zk_assert(zks_has_mutex(s));
	s->nrelied += (reliance != ZKN_NOT_RELIED) - (n->reliance != ZKN_NOT_RELIED);
	n->reliance = reliance;
	n->transaction = s->transaction;
}

/* Returned, forfeited or discarded */
static void
lose_interest(ZkNode *n, Interest interest)
{
	ZkSession  *s = n->session;

	if (n->interest == WANTED)
	{
		strike(n);
		n->prev = NULL;
		n->next = s->nodes;
		if (n->next != NULL)
			n->next->prev = n;
		else
			s->last_node = n;
		s->nodes = n;
	}
	n->interest = interest;
}

/*
 * Out of the list; memory waits for the requests that still point here.
 */
static void
finish(ZkNode *n)
{
	if (n->interest != FINISHED)
	{
		n->interest = FINISHED;
		set_refused(n, ZOK);
		zkn_expect_locked(n, false);
		zkn_rely_locked(n, ZKN_NOT_RELIED);
		strike(n);
		count_path(n, false);
		zk_assert(n->session->nodes != NULL || n->session->path_bytes == 0);
		if (n->session->nodes == NULL)
			n->session->idle_since = zks_now();
		if (n->watch != NULL)
			zkr_drop_watch_locked(n->watch);
		n->watch = NULL;
		zkn_part_with_mark_locked(n);
		n->session->notify = true;
		for (int i = 0; i < ZKS_SHOWN_NODES; i++)
		{
			if (n->session->shown_nodes[i] == n)
				n->session->shown_nodes[i] = NULL;
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
	set_state(n, ZKN_LOST);
	n->session->some_lost = true;
	if (n->loss == ZK_NOT_LOST)
	{
		n->loss = loss;
		atomic_fetch_add(&n->session->news, 1);
	}

	/* what it was to tell is no longer needed: it is not sent again */
	if (zkn_is_wanted(n))
		n->ticket = 0;
}

/* The node no longer exists in ZooKeeper */
void
zkn_ended_locked(ZkNode *n, ZkNodeState state)
{
	zk_assert(zks_has_mutex(n->session));
	if (n->state != state)
		set_state(n, state);
	if (state == ZKN_DELETED)
		count_path(n, false);	/* while one that is lost may be there */
	if (!is_awaited(n))
		finish(n);
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

/* It is being replaced by one with another name */
bool
zkn_is_renaming(const ZkNode *n)
{
	char		name[ZKP_NAME_LEN];

	return zkn_is_telling(n) && zkp_shared_name(name, n->name);
}

/*
 * Deletes it, unless that is under way; an unknown name is settled first.  As
 * long as a claim's mark is not settled, who comes next would take the period
 * for claimed, so the two go together.
 */
static void
get_rid_of(ZkNode *n)
{
	if (n->telling == TELLING_GRANTED)
		n->telling = TOLD_GRANTED;	/* its deletion says more */
	if (n->deleting || zkn_is_renaming(n))
		return;
	if (n->mark == NULL || zkn_mark_over(n->mark))
		send_delete(n);
	else if (zkn_mark_can_be_set(n->mark))
		settle_and_delete(n);
	else
		zkn_advance_mark_locked(n->mark);
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

char *
zkn_node_path(ZkNode *n, const char *name, NodePath *path)
{
	snprintf(path->text, sizeof(path->text), n->single ? "%s" : "%s/%s", n->dir, name);
	return path->text;
}

/* It does not exist, as far as we know, and nothing is left to prune */
static void
look_later_or_finish(ZkNode *n)
{
	if (zks_now() >= n->stale_until)
	{
		finish(n);
		return;
	}
	set_state(n, ZKN_UNSURE);
	count_path(n, false);
	n->ticket = 0;				/* nobody waits for this */
	n->look_at = zks_now() + zks_late_after(&n->session->info);
}

/* Go on with the deepest of its directories; false if it has none */
static bool
leave_dir(ZkNode *n)
{
	char	   *slash = strrchr(n->dir, '/');

	if (n->single && slash != n->dir)
		*slash = '\0';
	return !n->single || slash != n->dir;
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
	if (n->interest != DISCARDED)
		return;
	if (n->parents && leave_dir(n))
		prune(n);
	else
		look_later_or_finish(n);
}

void
zkn_present_locked(ZkNode *n)
{
	zk_assert(zks_has_mutex(n->session));
	set_state(n, ZKN_PRESENT);
	n->rc = ZOK;
	count_path(n, true);
	if (!zkn_is_wanted(n))
		get_rid_of(n);
}

/* This is it */
void
zkn_found_locked(ZkNode *n, const ZkRequest *r)
{
	zk_assert(zks_has_mutex(n->session));
	n->czxid = r->stat.czxid;
	if (n->single)
	{
		if (n->session->newest_single < n->czxid)
			n->session->newest_single = n->czxid;
		n->version = r->stat.version;
		zkp_single_name(n->name, n->czxid);
	}
	zkn_present_locked(n);
}

/* Looks as soon as we are connected, or soon if we are */
void
zkn_unsure_locked(ZkNode *n, int rc)
{
	zk_assert(zks_has_mutex(n->session));
	set_state(n, ZKN_UNSURE);
	n->rc = rc;
	if (zks_usable_locked(n->session))
		zks_catch_up_soon_locked(n->session, zks_now());
	zkn_doubt_version_locked(n);
	n->stale_until = zks_now() + STALE_MS * ZKS_MS;
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
 * Looking for a node whose create was not answered
 */

/* What left it in doubt, which its owner is told if it turns out not to exist */
static int
why_unsure(const ZkNode *n)
{
	return n->rc != ZOK ? n->rc : ZCONNECTIONLOSS;
}

static void
on_found(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	if (!zkn_called_back_locked(n))
		return;
	if (zkn_is_ours_locked(n, r))
		zkn_found_locked(n, r);
	else if (r->rc == ZOK || r->rc == ZNONODE)
		zkn_absent_locked(n, why_unsure(n));
	/* else still unsure: look again on another connection, or later */
}

static void
on_listed(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	size_t		len = strlen(n->prefix);

	if (!zkn_called_back_locked(n))
		return;
	if (r->rc == ZOK)
	{
		for (int i = 0; i < r->nchildren; i++)
		{
			ZkRequest  *stat;

			if (strncmp(r->children[i], n->prefix, len) != 0 ||
				strlen(r->children[i]) > len + ZKR_NUMBER_LEN)
				continue;
			snprintf(n->name, sizeof(n->name), "%s", r->children[i]);
			stat = zkn_request_locked(n, on_found);
			if (stat != NULL)
			{
				NodePath	path;

				zkr_stat_locked(stat, zkn_node_path(n, n->name, &path));
			}
			return;
		}
	}
	if (r->rc == ZOK || r->rc == ZNONODE)
		zkn_absent_locked(n, why_unsure(n));
	else if (r->rc == ZKS_TOO_LARGE)
		/* it costs the connection */
		n->look_at = zks_now() + TOO_LARGE_PAUSE_MS * ZKS_MS;
}

/*
 * sync first: the server that we are connected to may lag behind (CURATOR-264)
 */
static void
look(ZkNode *n)
{
	ZkRequest  *list = zkn_request_locked(n, n->single ? on_found : on_listed);

	if (list == NULL)
		return;
	list->sync_path = n->dir;
	list->interest = n->is_record ? INTEREST_ALL : INTEREST_CONTENDERS;
	if (n->single)
		zkr_stat_locked(list, n->dir);
	else
		zkr_list_locked(list, n->dir);
}

/* It may be there: that was not to be read */
void
zkn_unread_locked(ZkNode *n, int rc)
{
	zk_assert(zks_has_mutex(n->session));
	set_state(n, ZKN_UNSURE);
	if (!zks_is_open(rc))
		look(n);				/* else we are cut off, throttled, or about to
								 * close: later */
}

/*
 * Deletion
 */

/* ZooKeeper has said that it is, or that there is none */
static void
deleted(ZkNode *n, int rc)
{
	if (rc == ZOK || n->doubted)
	{
		n->rc = rc;
		zkn_ended_locked(n, ZKN_DELETED);
		return;
	}
	zkn_lose_locked(n, ZK_LOST_NODE);
	zkn_ended_locked(n, ZKN_LOST);
}

/*
 * If in doubt, it is sent again once connected, or at the next heartbeat.  The
 * same if ZooKeeper refused: an ACL can be corrected.  A server that throttles has
 * refused nothing.
 */
static void
delete_answered(ZkNode *n, int rc)
{
	char		name[ZKP_NAME_LEN];
	NodePath	path;

	set_deleting(n, false);
	zkn_turn_ended_locked(n->session, n->dir, n->czxid, rc == ZOK);
	if (rc == ZOK || rc == ZNONODE)
	{
		set_refused(n, ZOK);
		zkr_node_is_gone_locked(n->session, zkn_node_path(n, n->name, &path), n->dir);
	}
	if (rc == ZNONODE && n->tell_doubted && zkp_shared_name(name, n->name))
	{
		/* it was renamed after all, though a second attempt was refused */
		snprintf(n->name, sizeof(n->name), "%s", name);
		get_rid_of(n);
	}
	else if (rc == ZOK || rc == ZNONODE)
		deleted(n, rc);
	else if (zks_is_doubtful(rc))
	{
		n->doubted = n->unseen = true;
		zkn_doubt_version_locked(n);
	}
	else if (rc == ZBADVERSION && n->single)
	{
		/* another one is there, or somebody has written to ours */
		n->unseen = true;
		if (n->closed_to_us)
			set_refused(n, ZNOAUTH);
		else
			send_delete(n);
	}
	else if (!zks_is_busy(rc))
		set_refused(n, rc);
}

/* A single node was read, so that only that one is deleted */
static void
on_seen(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	if (!zkn_called_back_locked(n))
		return;
	set_deleting(n, false);
	if (r->rc == ZOK || r->rc == ZNOAUTH)
	{
		/* who may not look relies on the version */
		n->closed_to_us = r->rc == ZNOAUTH;
		if (r->rc == ZOK)
			n->version = r->stat.version;
		n->unseen = false;
		send_delete(n);
	}
	else if (r->rc == ZNONODE)
	{
		set_refused(n, ZOK);
		deleted(n, ZNONODE);
	}
	else if (!zks_is_open(r->rc))
		set_refused(n, r->rc);
}

/* Whether we know of no reason why the node should be gone, and would */
static bool
is_seen(const ZkNode *n)
{
	const ZkSessionInfo *info = &n->session->info;

	return !n->unseen && zks_now() - info->heard_at < zks_late_after(info);
}

static void
on_deleted(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	if (zkn_called_back_locked(n))
		delete_answered(n, r->rc);
}

/* NULL: zkn_catch_up_locked tries again */
static ZkRequest *
begin_delete(ZkNode *n, ZkDone done)
{
	ZkRequest  *r;

	if (!zks_usable_locked(n->session))
		return NULL;
	r = zkn_request_locked(n, done);
	if (r == NULL)
		return NULL;
	set_deleting(n, true);

	/*
	 * its event is not for us any more; but a single one may be on another's
	 * node
	 */
	if (n->watch != NULL && n->single)
		zkr_drop_watch_locked(n->watch);
	else if (n->watch != NULL)
		zkr_leave_watch_locked(n->watch);
	n->watch = NULL;
	return r;
}

static void
send_delete(ZkNode *n)
{
	bool		read_first = n->single && !is_seen(n);
	ZkRequest  *r = begin_delete(n, read_first ? on_seen : on_deleted);
	NodePath	path;

	if (r == NULL)
		return;
	(void) zkn_node_path(n, n->name, &path);
	if (read_first)
	{
		r->meant = n->czxid;
		r->sync_path = path.text;
		zkr_stat_locked(r, path.text);
	}
	else
		zkr_delete_locked(r, path.text, n->version);
}

/*
 * Settling a mark
 */

/*
 * The mark may have been refused, since somebody has changed it: then the node
 * goes alone; or the node, since somebody has deleted it: then the mark is set
 * alone.
 */
static void
on_settled(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	ZkMark	   *mark = n->mark;
	bool		of_mark = r->rc == ZOK || zks_is_doubtful(r->rc) || zkr_failed_op(r) == 0;
	int			rc = r->rc;

	if (mark != NULL && of_mark)
		rc = zkn_mark_set_answered_locked(mark, r->rc);
	else if (mark != NULL)
		zkn_mark_not_set(mark);
	if (!zkn_called_back_locked(n))
		return;
	if (r->rc != ZOK && rc == ZOK)
	{
		set_deleting(n, false);
		get_rid_of(n);
		return;
	}
	if (!of_mark && rc == ZNONODE)
		zkn_part_with_mark_locked(n);
	delete_answered(n, rc);
}

static void
settle_and_delete(ZkNode *n)
{
	ZkRequest  *r = begin_delete(n, on_settled);
	NodePath	path;
	ZkOp		ops[2] = {
		{0},
		{.type = ZOO_DELETE_OP,.path = zkn_node_path(n, n->name, &path),.version = -1}
	};

	if (r == NULL)
		return;
	zkn_settle_op(n->mark, &ops[0]);
	zkr_multi_locked(r, ops, 2);
}

/* The mark is to be settled, if not with the node, then without it */
void
zkn_settle_node_locked(ZkNode *n)
{
	zk_assert(zks_has_mutex(n->session));
	if (n->mark == NULL)
		return;
	if (n->state == ZKN_PRESENT && !zkn_is_wanted(n))
		get_rid_of(n);
	else
		zkn_advance_mark_locked(n->mark);
}

static void
settle_all_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkNode *next,
		 *n = s->nodes; n != NULL; n = next)
	{
		next = n->next;
		zkn_settle_node_locked(n);
	}
	zkn_advance_marks_locked(s);
}

void
zkn_settle(ZkSession *s)
{
	zks_enter(s);
	settle_all_locked(s);
	zks_leave(s);
}

void
zkn_give_marks_locked(ZkSession *s, ZkMark **list)
{
	zk_assert(zks_has_mutex(s));
	for (ZkNode *n = s->nodes; n != NULL; n = n->next)
		n->mark = NULL;
	zkn_take_marks_locked(s, list);
}

void
zkn_delete(ZkSession *s, ZkNode *n)
{
	zks_enter(s);
	if (zkn_is_wanted(n))
		lose_interest(n, RETURNED);
	if (n->state == ZKN_PRESENT)
		get_rid_of(n);
	zks_leave(s);
}

uint64_t
zkn_discard(ZkSession *s, ZkNode *n)
{
	uint64_t	ticket;

	zks_enter(s);
	ticket = n->ticket = ++s->tickets;
	if (n->interest == FORFEITED && n->refused != ZOK)
		s->info.refusals++;		/* nobody waits for it, so nobody has been
								 * told */
	lose_interest(n, DISCARDED);
	if (s->info.state == ZKS_OVER)
		finish(n);
	else
		switch (n->state)
		{
			case ZKN_PRESENT:
				get_rid_of(n);
				break;
			case ZKN_ABSENT:
				zkn_absent_locked(n, n->rc);
				break;
			case ZKN_LOST:

				/* it may exist, and only be inaccessible to us */
				if (n->single && n->czxid == 0)
					finish(n);
				else
				{
					set_state(n, ZKN_PRESENT);
					n->unseen = true;
					get_rid_of(n);
				}
				break;
			case ZKN_DELETED:
				finish(n);
				s->notify = false;	/* nobody waits: it would end the owner's
									 * next wait at once */
				break;
			case ZKN_CREATING:
			case ZKN_UNSURE:
			case ZKN_PRUNING:
				break;			/* the callbacks go on */
		}
	zks_leave(s);
	return ticket;
}

/*
 * Becoming shared, and telling of a grant
 */

/* Those behind it know, or need not know any longer */
static void
told(ZkNode *n)
{
	n->telling = is_of_grant(n) ? TOLD_GRANTED : TELLS_NOTHING;
	if (!zkn_is_wanted(n))
		get_rid_of(n);
	else
		n->ticket = 0;
}

static void
on_told(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	char		name[ZKP_NAME_LEN];
	bool		renamed = zkp_shared_name(name, n->name);

	if (!zkn_called_back_locked(n))
		return;
	n->tell_sent = false;
	set_refused(n, ZOK);
	if (r->rc == ZOK || (r->rc == ZNODEEXISTS && renamed && n->tell_doubted))
	{
		if (renamed)
			snprintf(n->name, sizeof(n->name), "%s", name);
		if (r->rc == ZOK)
			n->proven_at = r->sent_at;
		told(n);
	}
	else if (r->rc == ZNONODE || r->rc == ZNODEEXISTS)
	{
		/* somebody has deleted it, or we have */
		if (zkn_is_wanted(n))
			zkn_lose_locked(n, ZK_LOST_NODE);
		told(n);
	}
	else if (zks_is_open(r->rc))
		n->tell_doubted |= zks_is_doubtful(r->rc);
	else if (is_of_grant(n))
		told(n);				/* who waits to hear of it looks now and then */
	else
	{
		set_refused(n, r->rc);
		if (!zkn_is_wanted(n))
			told(n);
	}
}

/* Sent again once connected, or at the next heartbeat, until it is answered */
static void
tell(ZkNode *n)
{
	NodePath	path;
	NodePath	shared_path;
	char		name[ZKP_NAME_LEN];
	char	   *data;
	bool		rename = zkp_shared_name(name, n->name);
	ZkpData		says = {
		.shared = !is_of_grant(n),
		.granted = is_of_grant(n),
		.czxid = rename ? n->czxid : 0,
		.identity = n->identity
	};
	ZkRequest  *r;

	if (!zks_usable_locked(n->session))
		return;
	data = zkn_make_data(&says);
	r = data != NULL ? zkn_request_locked(n, on_told) : NULL;
	if (r == NULL)
	{
		free(data);
		return;
	}
	n->tell_sent = true;
	(void) zkn_node_path(n, n->name, &path);
	if (rename)
	{
		ZkOp		ops[2] = {
			{.type = ZOO_CREATE_OP,.path = zkn_node_path(n, name, &shared_path),.flags = ZOO_EPHEMERAL,
			.data = data,.closed = n->closed},
			{.type = ZOO_DELETE_OP,.path = path.text,.version = -1}
		};

		/* it would take this for the loss of the node */
		if (n->watch != NULL)
			zkr_drop_watch_locked(n->watch);
		n->watch = NULL;
		zkr_multi_locked(r, ops, 2);
	}
	else
		zkr_set_locked(r, path.text, data, -1);
	free(data);
}

uint64_t
zkn_share(ZkSession *s, ZkNode *n)
{
	uint64_t	ticket = 0;

	zks_enter(s);
	if (n->state == ZKN_PRESENT && zkn_is_wanted(n) && !zkn_is_telling(n))
	{
		ticket = n->ticket = ++s->tickets;
		n->telling = TELLING_SHARED;
		n->tell_doubted = false;
		zkn_turn_shared_locked(s, n->dir);
		tell(n);
	}
	zks_leave(s);
	return ticket;
}

void
zkn_granted(ZkSession *s, ZkNode *n)
{
	zks_enter(s);
	if (n->state == ZKN_PRESENT && n->telling == TELLS_NOTHING)
		zkn_turn_granted_locked(s, n->dir, n->name, n->czxid);
	zks_leave(s);
}

void
zkn_tell_granted(ZkSession *s, ZkNode *n)
{
	zks_enter(s);
	if (n->state == ZKN_PRESENT && n->telling == TELLS_NOTHING)
	{
		n->telling = TELLING_GRANTED;
		tell(n);
	}
	zks_leave(s);
}

/*
 * A container that never had a child is never reaped, nor are its parents.  So
 * start from the deepest one: delete the first that exists, if it is one of
 * ours and never had a child; its parents then had one, and ZooKeeper reaps
 * them.
 */

/* Nothing is left to prune */
static void
pruned(ZkNode *n)
{
	for (char *end = n->dir + strlen(n->dir); end < n->identity - 1; end += strlen(end))
		*end = '/';
	look_later_or_finish(n);
}

static void
on_pruned(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	/* NOTEMPTY: it is in use now; in doubt, or throttled: again, later */
	if (zkn_called_back_locked(n) && !zks_is_open(r->rc))
		pruned(n);
}

static void
on_prune_read(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	char	   *slash = strrchr(n->dir, '/');

	if (!zkn_called_back_locked(n) || zks_is_open(r->rc))
		return;
	if (r->rc == ZOK && r->stat.is_mark && r->stat.cversion == 0)
	{
		ZkRequest  *del = zkn_request_locked(n, on_pruned);

		if (del != NULL)
			zkr_delete_locked(del, n->dir, 0);
	}
	else if (r->rc == ZNONODE && slash != NULL && slash != n->dir)
	{
		*slash = '\0';
		prune(n);
	}
	else
		pruned(n);
}

static void
prune(ZkNode *n)
{
	ZkRequest  *r;

	set_state(n, ZKN_PRUNING);
	n->ticket = 0;				/* nobody waits for this */
	if (!zks_usable_locked(n->session))
		return;
	r = zkn_request_locked(n, on_prune_read);
	if (r != NULL)
		zkr_get_locked(r, n->dir);
}

/*
 * What the session tells us
 */

static void
catch_up(ZkNode *n, int64_t now)
{
	switch (n->state)
	{
		case ZKN_UNSURE:
			if (n->pending == 0 && now >= n->look_at)
				look(n);
			break;
		case ZKN_PRESENT:
			if (zkn_is_telling(n) && !n->tell_sent && !n->deleting)
				tell(n);
			else if (!zkn_is_telling(n) && !zkn_is_wanted(n))
				get_rid_of(n);
			break;
		case ZKN_PRUNING:
			if (n->pending == 0)
				prune(n);
			break;
		case ZKN_CREATING:
		case ZKN_ABSENT:
		case ZKN_LOST:
		case ZKN_DELETED:
			break;				/* nothing was left open */
	}
}

/*
 * Continue with what could not be done, or was not answered, until now: connected
 * again, and at each heartbeat
 */
void
zkn_catch_up_locked(ZkSession *s)
{
	int64_t		now = zks_now();

	zk_assert(zks_has_mutex(s));
	for (ZkNode *next,
		 *n = s->nodes; n != NULL; n = next)
	{
		next = n->next;
		catch_up(n, now);
	}
	settle_all_locked(s);
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
		 *n = s->nodes; n != NULL; n = next)
	{
		next = n->next;
		if (n->state != ZKN_PRESENT || !zkn_is_wanted(n))
			continue;
		lose_interest(n, FORFEITED);
		s->some_lost = true;
		n->loss = ZK_LOST_CONTACT;
		n->unseen = true;
		get_rid_of(n);
	}
}

/* The session is over, and all its nodes with it */
void
zkn_over_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkNode *next,
		 *n = s->nodes; n != NULL; n = next)
	{
		next = n->next;
		if (n->interest == DISCARDED)
			finish(n);
		else if (n->state != ZKN_ABSENT && n->state != ZKN_DELETED)
			zkn_lose_locked(n, zks_is_auth_failure(s->info.error) ? ZK_LOST_IDENTITY : ZK_LOST_SESSION);
	}
}

/*
 * Whether there are only nodes here that are not wanted and that ZooKeeper
 * refuses to delete.  Then only the end of the session removes them.  But one
 * that stays because of a claim's mark must not go before that is settled.
 */
bool
zkn_only_refused_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkNode *n = s->nodes; n != NULL; n = n->next)
	{
		if (n->refused == ZOK || n->interest != DISCARDED || (n->mark != NULL && !zkn_mark_over(n->mark)))
			return false;
	}
	return s->nodes != NULL;
}

bool
zkn_any_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	return s->nodes != NULL || zkn_any_mark_locked(s);
}

void
zkn_free_all(ZkSession *s)
{
	while (s->nodes != NULL)
	{
		ZkNode	   *n = s->nodes;

		s->nodes = n->next;
		free(n);
	}
	zkn_free_marks(s);
	zkn_free_turns(s);
}

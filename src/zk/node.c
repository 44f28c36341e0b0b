/*-------------------------------------------------------------------------
 *
 * node.c
 *	  The nodes that this session creates, from the create to the last trace.
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
 * one that is returned, whose last words were under way, becomes DELETED).
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

/* ZooKeeper accepts a megabyte for a request by default */
#define REQUEST_BYTES		(512 * 1024)

/* Of the result of a set: its header, and what it says of the node */
#define MARK_RESULT_BYTES	(9 + 68)

/* All have the same length */
#define ANY_UUID			"00000000-0000-4000-8000-000000000000"

/* How long until a list that was too large to be read is requested again */
#define TOO_LARGE_PAUSE_MS	60000

/*
 * Nodes that are created together.  Each of them has a request pending while
 * the group has one.
 */
typedef struct Group
{
	int64_t		sent_at;		/* of their create */
	int			n;
	ZkNode	   *nodes[];
} Group;

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
	zkn_count_unknown_locked(n, -1);
	n->state = state;
	zkn_count_unknown_locked(n, 1);
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
static void
leave_mark(ZkNode *n)
{
	ZkMark	   *mark = n->mark;

	n->mark = NULL;
	if (mark != NULL)
		zkn_leave_mark_locked(mark);
}

/*
 * The list: those that nobody wants come first, since many a call asks for them, and
 * those that are held may be thousands
 */

static void
enlist_last(ZkNode *n)
{
	ZkSession  *s = n->session;

	n->next = NULL;
	n->prev = s->last_node;
	if (n->prev != NULL)
		n->prev->next = n;
	else
		s->nodes = n;
	s->last_node = n;
	count_path(n, true);
	zkn_count_unknown_locked(n, 1);
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
		zkn_count_unknown_locked(n, -1);
		zk_assert(n->session->nodes != NULL || n->session->path_bytes == 0);
		if (n->session->nodes == NULL)
			n->session->idle_since = zks_now();
		if (n->watch != NULL)
			zkr_drop_watch_locked(n->watch);
		n->watch = NULL;
		leave_mark(n);
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
static void
ended(ZkNode *n, ZkNodeState state)
{
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
static void
absent(ZkNode *n, int rc)
{
	set_state(n, ZKN_ABSENT);
	n->rc = rc;
	if (n->interest != DISCARDED)
		return;
	if (n->parents && leave_dir(n))
		prune(n);
	else
		look_later_or_finish(n);
}

static void
present(ZkNode *n)
{
	set_state(n, ZKN_PRESENT);
	n->rc = ZOK;
	count_path(n, true);
	if (!zkn_is_wanted(n))
		get_rid_of(n);
}

/*
 * Creation
 */

/* The create was refused */
static void
refused_create(ZkNode *n, int rc)
{
	absent(n, rc == ZNONODE && n->parent_rc != ZOK ? n->parent_rc : rc);
}

/* This is it */
static void
found(ZkNode *n, const ZkRequest *r)
{
	n->czxid = r->stat.czxid;
	if (n->single)
	{
		if (n->session->newest_single < n->czxid)
			n->session->newest_single = n->czxid;
		n->version = r->stat.version;
		zkp_single_name(n->name, n->czxid);
	}
	present(n);
}

/* Looks as soon as we are connected, or soon if we are */
static void
unsure(ZkNode *n, int rc)
{
	set_state(n, ZKN_UNSURE);
	n->rc = rc;
	if (zks_usable_locked(n->session))
		zks_catch_up_soon_locked(n->session, zks_now());
	zkn_doubt_version_locked(n);
	n->stale_until = zks_now() + STALE_MS * ZKS_MS;
}

static void
on_created(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	if (!zkn_called_back_locked(n))
		return;
	if (r->rc == ZOK)
	{
		snprintf(n->name, sizeof(n->name), "%s", r->name);
		n->czxid = r->stat.czxid;
		n->proven_at = r->sent_at;
		n->comes_next = zkn_turn_created_locked(n->session, n->dir, n->name, n->czxid);
		present(n);
		return;
	}
	(void) zkn_turn_created_locked(n->session, n->dir, NULL, 0);
	if (zks_is_doubtful(r->rc))
		unsure(n, r->rc);
	else
		refused_create(n, r->rc);
}

static void
on_parent(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	/* the first error is the reason for those that follow */
	if (zkn_called_back_locked(n) && n->parent_rc == ZOK && r->rc != ZNODEEXISTS)
		n->parent_rc = r->rc;
}

/* Whether this directory is the other one, or one of its ancestors */
static bool
leads_to(const char *dir, const char *other)
{
	size_t		len = strlen(dir);

	return strncmp(dir, other, len) == 0 && (other[len] == '/' || other[len] == '\0');
}

/*
 * Sends all ancestors and then the directory itself, together, except those
 * that were sent for the directory before.  If one exists, that is not an
 * error; only a few first calls ever come here.
 */
static void
create_parents(ZkNode *n, const char *before)
{
	char		path[ZKS_PATH_LEN];

	snprintf(path, sizeof(path), "%s", n->dir);
	for (char *slash = path; slash != NULL;)
	{
		ZkRequest  *r = NULL;

		slash = strchr(slash + 1, '/');
		if (slash != NULL)
			*slash = '\0';
		else if (n->single)
			break;				/* that is the node */
		if (!leads_to(path, before))
			r = zkn_request_locked(n, on_parent);
		/* the board is for all, whoever may read the records */
		if (r != NULL)
			zkr_create_locked(r, path, ZOO_CONTAINER, CONTAINER_MARK, n->closed && !n->is_record);
		if (slash != NULL)
			*slash = '/';
	}
}

static ZkRequest *
group_request(Group *g, ZkDone done)
{
	ZkRequest  *r = zkr_new_locked(g->nodes[0]->session, done, g);

	if (r == NULL)
		return NULL;
	for (int i = 0; i < g->n; i++)
		g->nodes[i]->pending++;
	return r;
}

/*
 * All of them were created by one transaction, so reading one is enough: that
 * gives the czxid, which a multi does not.
 */
static void
on_group_read(ZkRequest *r)
{
	Group	   *g = (Group *) r->owner;
	bool		ours = r->rc == ZOK && r->stat.owner == r->session->info.session_id;

	for (int i = 0; i < g->n; i++)
	{
		ZkNode	   *n = g->nodes[i];

		if (!zkn_called_back_locked(n))
			continue;
		if (ours)
		{
			n->czxid = r->stat.czxid;
			n->proven_at = g->sent_at;
			present(n);
			continue;
		}
		set_state(n, ZKN_UNSURE);
		if (!zks_is_open(r->rc))
			look(n);			/* else we are cut off, throttled, or about to
								 * close: later */
	}
	free(g);
}

static const char *
name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

static void
on_group_created(ZkRequest *r)
{
	Group	   *g = (Group *) r->owner;
	int			failed = zkr_failed_op(r);
	ZkRequest  *read = NULL;
	NodePath	path;

	g->sent_at = r->sent_at;
	if (r->rc == ZOK)
	{
		/* all stay in CREATING until one has been read */
		for (int i = 0; i < g->n; i++)
			snprintf(g->nodes[i]->name, ZKP_NAME_LEN, "%s", name_of(r->op_names[i]));
		(void) zkn_node_path(g->nodes[0], g->nodes[0]->name, &path);
		read = group_request(g, on_group_read);
	}
	for (int i = 0; i < g->n; i++)
	{
		ZkNode	   *n = g->nodes[i];

		if (!zkn_called_back_locked(n) || read != NULL)
			continue;
		if (r->rc == ZOK || zks_is_doubtful(r->rc))
			unsure(n, r->rc);
		else
			refused_create(n, i == failed ? r->rc : ZRUNTIMEINCONSISTENCY);
	}

	/* last, since it may be answered at once, and the group is freed then */
	if (read != NULL)
		zkr_stat_locked(read, path.text);
	else
		free(g);
}

/*
 * What the path of such a node needs where all are sent at once, with its length; of
 * the longer of its names, if it has another as a reader.  prefix NULL: a single one.
 */
static int
path_bytes(const char *dir, const char *prefix)
{
	char		name[ZKP_NAME_LEN];
	char		shared[ZKP_NAME_LEN];
	size_t		len;

	if (prefix == NULL)
		return (int) (ZKR_STRING_BYTES + strlen(dir));
	snprintf(name, sizeof(name), "%s%010d", prefix, 0);
	len = strlen(name);
	if (zkp_shared_name(shared, name) && strlen(shared) > len)
		len = strlen(shared);
	return (int) (ZKR_STRING_BYTES + strlen(dir) + 1 + len);
}

static ZkNode *
new_node(ZkSession *s, const char *dir, const ZkpWant *want, bool parents)
{
	const char *identity = want->identity != NULL ? want->identity : "";
	size_t		dir_size = strlen(dir) + 1;
	ZkNode	   *n = calloc(1, sizeof(ZkNode) + dir_size + strlen(identity) + 1);
	char		uuid[ZKP_UUID_LEN];

	if (n == NULL || !zks_make_uuid(uuid))
	{
		free(n);
		return NULL;
	}
	n->session = s;
	n->state = ZKN_CREATING;
	n->parents = parents;
	n->closed = want->closed;
	n->is_record = want->record != NULL;
	n->single = !n->is_record && want->style == ZKP_SINGLE;
	n->version = n->single ? want->seen_version : -1;
	strcpy(n->dir, dir);
	n->identity = strcpy(n->dir + dir_size, identity);
	if (!n->single)
		zkp_prefix(n->prefix, uuid, want);
	n->path_bytes = path_bytes(dir, n->single ? NULL : n->prefix);
	return n;
}

/* The data that says this, or NULL; the caller frees it */
static char *
make_data(const ZkpData *says)
{
	char	   *data = malloc(strlen(says->identity) + ZKP_DATA_EXTRA);

	if (data != NULL)
		zkp_write_data(data, says);
	return data;
}

/* What a node's data says until its mode changes */
static char *
identity_data(const char *identity)
{
	ZkpData		says = {.identity = identity};

	return make_data(&says);
}

/* A single create need not be read: its answer has the czxid */
static bool
create_one_locked(ZkNode *n)
{
	char	   *data = identity_data(n->identity);
	ZkRequest  *r = data != NULL ? zkn_request_locked(n, on_created) : NULL;
	NodePath	path;

	zk_assert(zks_has_mutex(n->session));
	if (r != NULL)
	{
		enlist_last(n);
		if (n->parents)
			create_parents(n, "");
		zkr_create_locked(r, zkn_node_path(n, n->prefix, &path), ZOO_EPHEMERAL_SEQUENTIAL, data,
						  n->closed);
	}
	free(data);
	return r != NULL;
}

/* A single node, and the read behind its create */
static void
on_single_created(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	int			created = r->before == NULL ? r->rc : r->before->answered ? r->before->rc : ZSYSTEMERROR;

	if (!zkn_called_back_locked(n))
		return;
	if (created != ZOK && !zks_is_doubtful(created))
		refused_create(n, created);
	else if (zkn_is_ours_locked(n, r))
	{
		n->proven_at = r->before->sent_at;
		found(n, r);
	}
	else if (created == ZOK && (r->rc == ZOK || r->rc == ZNONODE))
	{
		/* somebody has deleted it since */
		zkn_lose_locked(n, ZK_LOST_NODE);
		if (!zkn_is_wanted(n))
			ended(n, ZKN_LOST);
	}
	else
		unsure(n, created);
}

static bool
create_single_locked(ZkNode *n)
{
	char	   *data = identity_data(n->identity);
	ZkRequest  *r = data != NULL ? zkn_request_locked(n, on_single_created) : NULL;
	ZkOp		ops[1 + ZKN_MOST_VERSION] = {0};

	zk_assert(zks_has_mutex(n->session));
	if (r != NULL && (n->version = zkn_new_version_locked(n, n->version)) < 0)
	{
		/* asked again, as if ZooKeeper had said so, until some are free */
		enlist_last(n);
		n->parents = false;
		zkr_deny_locked(r, ZKS_IN_DOUBT);
	}
	else if (r != NULL)
	{
		for (int i = 0; i <= n->version; i++)
		{
			ops[i].type = i == 0 ? ZOO_CREATE_OP : ZOO_SETDATA_OP;
			ops[i].path = n->dir;
			ops[i].flags = ZOO_EPHEMERAL;
			ops[i].data = i == n->version ? data : NULL;
			ops[i].closed = n->closed;
			ops[i].version = -1;
		}
		enlist_last(n);
		if (n->parents)
			create_parents(n, "");
		zkr_stat_behind_locked(r, n->dir, ops, 1 + n->version);
	}
	free(data);
	return r != NULL;
}

static bool
create_group_locked(ZkNode *const *nodes, int n)
{
	Group	   *g = malloc(sizeof(Group) + n * sizeof(ZkNode *));
	ZkOp	   *ops = calloc(n, sizeof(ZkOp));
	char	  **paths = calloc(n, sizeof(char *));
	char	   *data = identity_data(nodes[0]->identity);	/* the same for all */
	ZkRequest  *r = NULL;
	bool		ready = g != NULL && ops != NULL && paths != NULL && data != NULL;

	zk_assert(zks_has_mutex(nodes[0]->session));
	for (int i = 0; ready && i < n; i++)
	{
		NodePath	path;

		paths[i] = strdup(zkn_node_path(nodes[i], nodes[i]->prefix, &path));
		ops[i].type = ZOO_CREATE_OP;
		ops[i].path = paths[i];
		ops[i].flags = ZOO_EPHEMERAL_SEQUENTIAL;
		ops[i].data = data;
		ops[i].closed = nodes[i]->closed;
		ready = paths[i] != NULL;
	}
	if (ready)
	{
		g->n = n;
		memcpy(g->nodes, nodes, n * sizeof(ZkNode *));
		r = group_request(g, on_group_created);
	}
	if (r != NULL)
	{
		for (int i = 0; i < n; i++)
		{
			enlist_last(nodes[i]);
			if (nodes[i]->parents)
				create_parents(nodes[i], i > 0 ? nodes[i - 1]->dir : "");
		}
		zkr_multi_locked(r, ops, n);
	}
	else
		free(g);
	for (int i = 0; paths != NULL && i < n; i++)
		free(paths[i]);
	free(paths);
	free(ops);
	free(data);
	return r != NULL;
}

bool
zkn_create(ZkSession *s, char *const *dirs, int n, const ZkpWant *want, bool parents,
		   ZkNode **nodes)
{
	int			made = 0;
	bool		sent = false;

	while (made < n && (nodes[made] = new_node(s, dirs[made], want, parents)) != NULL)
		made++;
	if (made == n)
	{
		zks_enter(s);
		zk_assert(n == 1 || !nodes[0]->single);
		sent = nodes[0]->single ? create_single_locked(nodes[0]) :
			n == 1 ? create_one_locked(nodes[0]) : create_group_locked(nodes, n);
		zks_leave(s);
	}
	while (!sent && made > 0)
		free(nodes[--made]);
	return sent;
}

/* How many bytes the answer to a multi may have */
static size_t
answer_room_locked(ZkSession *s)
{
	size_t		room = s->receive_buffer / 3;

	zk_assert(zks_has_mutex(s));
	return room == 0 || room > ZKN_MULTI_BYTES ? ZKN_MULTI_BYTES : room;
}

bool
zkn_fit(ZkSession *s, char *const *dirs, int n, const ZkpWant *want)
{
	char		prefix[ZKP_PREFIX_LEN];
	size_t		data_len = (want->identity != NULL ? strlen(want->identity) : 0) + ZKP_DATA_EXTRA;
	size_t		bytes = 0;
	size_t		sent = 0;
	size_t		room;

	zks_enter(s);
	room = answer_room_locked(s);
	zks_leave(s);

	/* the answer has for each its path, with a number of ten digits */
	zkp_prefix(prefix, ANY_UUID, want);
	for (int i = 0; i < n; i++)
	{
		size_t		path_len = strlen(dirs[i]) + 1 + strlen(prefix);

		bytes += ZKR_RESULT_BYTES + path_len + 11;
		sent += ZKR_CREATE_BYTES + path_len + data_len +
			(want->closed ? s->closed_acl_bytes : ZKR_ACL_BYTES);
	}
	return n <= ZKN_CHECK_MAX && bytes <= room && sent <= REQUEST_BYTES;
}

size_t
zkn_path_bytes(ZkSession *s, char *const *dirs, int n, const ZkpWant *want)
{
	char		prefix[ZKP_PREFIX_LEN];
	size_t		bytes;

	zks_enter(s);
	bytes = s->path_bytes;
	zks_leave(s);
	zkp_prefix(prefix, ANY_UUID, want);
	for (int i = 0; i < n; i++)
		bytes += path_bytes(dirs[i], want->style == ZKP_SINGLE ? NULL : prefix);
	return bytes;
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
		found(n, r);
	else if (r->rc == ZOK || r->rc == ZNONODE)
		absent(n, why_unsure(n));
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
		absent(n, why_unsure(n));
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
	if (n->single)
	{
		zkr_stat_fresh_locked(list, n->dir);
		return;
	}
	list->interest = n->is_record ? INTEREST_RECORDS : INTEREST_CONTENDERS;
	zkr_list_fresh_locked(list, n->dir);
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
		ended(n, ZKN_DELETED);
		return;
	}
	zkn_lose_locked(n, ZK_LOST_NODE);
	ended(n, ZKN_LOST);
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

/* NULL: zkn_heartbeat_locked tries again */
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
		zkr_stat_fresh_locked(r, path.text);
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
		leave_mark(n);
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
static void
settle(ZkNode *n)
{
	if (n->mark == NULL)
		return;
	if (n->state == ZKN_PRESENT && !zkn_is_wanted(n))
		get_rid_of(n);
	else
		zkn_advance_mark_locked(n->mark);
}

/* A decision alone is no reason: a node that is wanted may be given up next */
static void
mark_moved(ZkNode *n, bool decided_now)
{
	if (!decided_now || !zkn_is_wanted(n))
		settle(n);
}

void
zkn_settle_all_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkNode *next,
		 *n = s->nodes; n != NULL; n = next)
	{
		next = n->next;
		settle(n);
	}
	zkn_advance_marks_locked(s);
}

void
zkn_settle(ZkSession *s)
{
	zks_enter(s);
	zkn_settle_all_locked(s);
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

/*
 * Writing marks
 */

/* For each node there is a check, and behind it what sets its mark */
static void
on_marked(ZkRequest *r)
{
	Group	   *g = (Group *) r->owner;
	int			failed = r->rc != ZOK && !zks_is_doubtful(r->rc) ? zkr_failed_op(r) : -1;

	for (int i = 0; i < g->n; i++)
	{
		ZkNode	   *n = g->nodes[i];

		/* not before all know: one may be the reason for another */
		if (n->mark != NULL)
			zkn_mark_written_locked(n->mark, r->rc, r->sent_at, failed >= 0 && failed / 2 == i,
									failed % 2 == 0);
	}
	for (int i = 0; i < g->n; i++)
	{
		ZkNode	   *n = g->nodes[i];

		if (!zkn_called_back_locked(n))
			continue;
		if (r->rc == ZOK)
			n->proven_at = r->sent_at;
		if (!zkn_is_wanted(n))
			settle(n);
	}
	free(g);
}

bool
zkn_mark(ZkSession *s, const ZkMarking *what, int n, ZkMark **marks)
{
	Group	   *g = malloc(sizeof(Group) + n * sizeof(ZkNode *));
	ZkOp	   *ops = calloc(2 * n, sizeof(ZkOp));
	NodePath   *paths = calloc(n, sizeof(NodePath));
	ZkRequest  *r = NULL;
	int			made = 0;

	while (made < n && (marks[made] = zkn_new_mark(&what[made])) != NULL)
		made++;
	zks_enter(s);
	if (g != NULL && ops != NULL && paths != NULL && made == n)
	{
		g->n = n;
		for (int i = 0; i < n; i++)
			g->nodes[i] = what[i].node;
		r = group_request(g, on_marked);
	}
	for (int i = 0; i < n && r != NULL; i++)
	{
		ZkNode	   *node = g->nodes[i];

		leave_mark(node);
		node->mark = marks[i];
		zkn_begin_mark_locked(s, marks[i], node, mark_moved);
		ops[2 * i].type = ZOO_CHECK_OP;
		ops[2 * i].path = zkn_node_path(node, node->name, &paths[i]);
		ops[2 * i].version = -1;
		zkn_write_op(marks[i], &ops[2 * i + 1]);
	}
	if (r != NULL)
		zkr_multi_locked(r, ops, 2 * n);
	else
		free(g);
	zks_leave(s);
	while (r == NULL && made > 0)
		zkn_abandon_mark(marks[--made]);
	free(paths);
	free(ops);
	return r != NULL;
}

bool
zkn_marks_fit(ZkSession *s, int n, size_t bytes)
{
	size_t		answer = (size_t) n * 2 * MARK_RESULT_BYTES;
	size_t		room;

	zks_enter(s);
	room = answer_room_locked(s);
	zks_leave(s);
	return 2 * n <= ZKN_CHECK_MAX && bytes <= REQUEST_BYTES && answer <= room;
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
				absent(n, n->rc);
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

bool
zkn_gone(ZkSession *s, uint64_t first, uint64_t last, int *refused)
{
	bool		result = true;

	/*
	 * until the first that waits; one that is refused counts when no other
	 * waits
	 */
	*refused = 0;
	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL && (result || *refused != 0); n = n->next)
	{
		if (n->ticket < first || n->ticket > last)
			continue;
		result = false;
		*refused = n->refused;
	}
	zks_leave(s);
	return result;
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
	data = make_data(&says);
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

/* Continue with what could not be done, or was not answered, until now */
void
zkn_catch_up_locked(ZkNode *n, int64_t now)
{
	zk_assert(zks_has_mutex(n->session));
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

/* Connected again: continue what the broken connection left open */
void
zkn_connected_locked(ZkSession *s)
{
	int64_t		now = zks_now();

	zk_assert(zks_has_mutex(s));
	for (ZkNode *next,
		 *n = s->nodes; n != NULL; n = next)
	{
		next = n->next;
		zkn_catch_up_locked(n, now);
	}
	zkn_settle_all_locked(s);
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

/* The path of one that ZooKeeper refuses to delete, or "" */
void
zkn_refused_path(ZkSession *s, char *path, int size)
{
	NodePath	refused;

	path[0] = '\0';
	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL; n = n->next)
	{
		if (n->refused != ZOK)
			snprintf(path, size, "%s", zkn_node_path(n, n->name, &refused));
	}
	zks_leave(s);
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

/*
 * Nodes that nobody here wants
 */

/* Whether this is its name, even if it does not know yet that it is */
static bool
goes_by(const ZkNode *n, const char *name)
{
	char		shared[ZKP_NAME_LEN];

	if (n->single)
		return false;			/* it is in no queue */
	if (n->name[0] == '\0')
		return strncmp(name, n->prefix, strlen(n->prefix)) == 0;
	return strcmp(name, n->name) == 0 ||
		(zkn_is_telling(n) && zkp_shared_name(shared, n->name) && strcmp(name, shared) == 0);
}

/* Nobody wants it, and it may exist */
static bool
may_be_left(const ZkNode *n)
{
	return !zkn_is_wanted(n) && n->state != ZKN_ABSENT && n->state != ZKN_PRUNING && n->state != ZKN_DELETED;
}

int
zkn_leftovers(ZkSession *s, const char *dir)
{
	int			count = 0;

	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL && !zkn_is_wanted(n); n = n->next)
		count += may_be_left(n) && !n->deleting && strcmp(n->dir, dir) == 0;
	zks_leave(s);
	return count;
}

/* A quorum has said that it does not exist; only a late create could change that */
static bool
was_denied(const ZkNode *n)
{
	return n->state == ZKN_UNSURE && n->look_at != 0;
}

bool
zkn_is_settled(ZkSession *s, const char *path, int *refused)
{
	bool		result = true;

	*refused = ZOK;
	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL && !zkn_is_wanted(n); n = n->next)
	{
		if (strcmp(n->dir, path) != 0 || !may_be_left(n) || was_denied(n))
			continue;
		result = false;
		if (n->refused != ZOK)
			*refused = n->refused;
	}
	zks_leave(s);
	return result;
}

bool
zkn_any_unwanted(ZkSession *s)
{
	bool		result = false;

	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL && !zkn_is_wanted(n) && !result; n = n->next)
		result = may_be_left(n) && !was_denied(n);
	zks_leave(s);
	return result;
}

int
zkn_leave_out_unwanted(ZkSession *s, const char *dir, ZkpContender *queue, int n)
{
	zks_enter(s);
	for (ZkNode *node = s->nodes; node != NULL && !zkn_is_wanted(node); node = node->next)
	{
		int			left = 0;

		if (strcmp(node->dir, dir) != 0)
			continue;
		for (int i = 0; i < n; i++)
		{
			if (!goes_by(node, queue[i].name))
				queue[left++] = queue[i];
		}
		n = left;
	}
	zks_leave(s);
	return n;
}

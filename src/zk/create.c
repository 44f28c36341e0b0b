/*-------------------------------------------------------------------------
 *
 * create.c
 *	  How our nodes, and the marks under them, come to be: one, or several in one
 *	  transaction; and whether they have, if that is not answered.
 *
 * What follows, whatever the answer is, is node.c's.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mark_private.h"
#include "node_private.h"
#include "operation.h"

/* ZooKeeper accepts a megabyte for a request by default */
#define REQUEST_BYTES		(512 * 1024)

/* Of the result of a set: its header, and what it says of the node */
#define MARK_RESULT_BYTES	(9 + 68)

/* How long until a list that was too large to be read is requested again */
#define TOO_LARGE_PAUSE_MS	60000

/* All have the same length */
#define ANY_UUID			"00000000-0000-4000-8000-000000000000"

/*
 * Nodes that are created together.  Each of them has a request pending while
 * the group has one.
 */
typedef struct Group
{
	int			n;
	ZkNode	   *nodes[];
} Group;

/* The create was refused; or it is not known whether there is a node, and which */
static void
not_created(ZkNode *n, int rc)
{
	if (rc == ZOK || zks_is_doubtful(rc))
		zkn_unsure_locked(n, rc);
	else
		zkn_absent_locked(n, rc == ZNONODE && n->parent_rc != ZOK ? n->parent_rc : rc);
}

static void
on_created(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	if (!zkn_called_back_locked(n))
		return;
	if (r->answer.rc == ZOK)
	{
		zkn_name_locked(n, r->name + (n->name - n->path));
		n->proven_at = r->answer.sent_at;
		n->comes_next = zkn_turn_created_locked(n->session, n->dir, n->name, r->answer.stat.czxid);
		zkn_present_locked(n, &r->answer.stat);
		return;
	}
	(void) zkn_turn_created_locked(n->session, n->dir, NULL, 0);
	not_created(n, r->answer.rc);
}

static void
on_parent(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;

	/* the first error is the reason for those that follow */
	if (zkn_called_back_locked(n) && n->parent_rc == ZOK && r->answer.rc != ZNODEEXISTS)
		n->parent_rc = r->answer.rc;
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

	/* the board is for all, whoever may read the records */
	ZkOp		op = {
		.type = ZOO_CREATE_CONTAINER_OP,.path = path,.data = CONTAINER_MARK,.closed = n->want.closed && n->want.record == NULL
	};

	snprintf(path, sizeof(path), "%s", n->dir);
	for (char *slash = path; slash != NULL;)
	{
		ZkRequest  *r = NULL;

		slash = strchr(slash + 1, '/');
		if (slash != NULL)
			*slash = '\0';
		else if (n->single.at_path)
			break;				/* that is the node */
		if (!leads_to(path, before))
			r = zkn_request_locked(n, on_parent);
		if (r != NULL)
			zkr_send_locked(r, &op);
		if (slash != NULL)
			*slash = '/';
	}
}

static ZkRequest *
group_request(ZkNode *const *nodes, int n, ZkDone done)
{
	Group	   *g = malloc(sizeof(Group) + n * sizeof(ZkNode *));
	ZkRequest  *r = g != NULL ? zkr_new_locked(nodes[0]->session, done, g) : NULL;

	if (r == NULL)
	{
		free(g);
		return NULL;
	}
	g->n = n;
	memcpy(g->nodes, nodes, n * sizeof(ZkNode *));
	for (int i = 0; i < n; i++)
		nodes[i]->pending++;
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
	bool		ours = r->answer.rc == ZOK && r->answer.stat.owner == r->session->info.session_id;

	for (int i = 0; i < g->n; i++)
	{
		ZkNode	   *n = g->nodes[i];

		if (!zkn_called_back_locked(n))
			continue;
		if (ours)
			zkn_present_locked(n, &r->answer.stat);
		else
			zkn_unsure_locked(n, ZOK);
	}
	free(g);
}

static void
on_group_created(ZkRequest *r)
{
	Group	   *g = (Group *) r->owner;
	int			failed = zkr_failed_op(r);
	ZkRequest  *read = NULL;

	/* all stay in CREATING until one has been read */
	if (r->answer.rc == ZOK)
		read = group_request(g->nodes, g->n, on_group_read);
	for (int i = 0; i < g->n; i++)
	{
		ZkNode	   *n = g->nodes[i];

		if (r->answer.rc == ZOK)
		{
			zkn_name_locked(n, r->ops[i].create_op.buf + (n->name - n->path));
			n->proven_at = r->answer.sent_at;
		}
		if (!zkn_called_back_locked(n) || read != NULL)
			continue;
		if (r->answer.rc == ZOK || zks_is_doubtful(r->answer.rc) || i == failed)
			not_created(n, r->answer.rc);
		else
			zkn_absent_locked(n, ZRUNTIMEINCONSISTENCY);
	}

	/* last, since it may be answered at once */
	if (read != NULL)
		zkr_read_locked(read, ZOO_EXISTS_OP, r->ops[0].create_op.buf);
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
		zkn_present_locked(n, &r->answer.stat);
	else if (r->answer.rc == ZOK || r->answer.rc == ZNONODE)
		zkn_absent_locked(n, why_unsure(n));
	/* else still unsure: look again on another connection, or later */
}

static void
on_listed(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	size_t		len = n->prefix_len;

	if (!zkn_called_back_locked(n))
		return;
	if (r->answer.rc == ZKS_TOO_LARGE)
		n->look_at = zks_now() + TOO_LARGE_PAUSE_MS * ZKS_MS;	/* it costs the
																 * connection */
	if (r->answer.rc != ZOK && r->answer.rc != ZNONODE)
		return;
	for (int i = 0; i < r->answer.nchildren; i++)
	{
		ZkRequest  *stat;

		if (strncmp(r->answer.children[i], n->name, len) != 0 ||
			strlen(r->answer.children[i]) > len + ZKR_NUMBER_LEN)
			continue;
		zkn_name_locked(n, r->answer.children[i]);
		stat = zkn_request_locked(n, on_found);
		if (stat != NULL)
			zkr_read_locked(stat, ZOO_EXISTS_OP, n->path);
		return;
	}
	zkn_absent_locked(n, why_unsure(n));
}

/* A single node, and the read behind its create */
static void
on_single_created(ZkRequest *r)
{
	ZkNode	   *n = (ZkNode *) r->owner;
	int			created = r->before == NULL ? r->answer.rc : r->before->answered ? r->before->answer.rc : ZSYSTEMERROR;

	if (!zkn_called_back_locked(n))
		return;
	if (zkn_is_ours_locked(n, r))
	{
		n->proven_at = r->before->answer.sent_at;
		zkn_present_locked(n, &r->answer.stat);
	}
	else
		not_created(n, created);	/* or it has been deleted since */
}

/*
 * So often that it gets its version, and read behind that.  If there is none that may be
 * used it is asked again, as if ZooKeeper had said so, until there is.
 */
static void
send_single(ZkNode *n, ZkRequest *r, const char *data)
{
	ZkOp		ops[1 + ZKN_MOST_VERSION] = {0};

	n->single.version = zkn_new_version_locked(n, n->single.version);
	for (int i = 0; i <= n->single.version; i++)
	{
		ops[i].type = i == 0 ? ZOO_CREATE_OP : ZOO_SETDATA_OP;
		ops[i].path = n->dir;
		ops[i].flags = ZOO_EPHEMERAL;
		ops[i].data = i == n->single.version ? data : NULL;
		ops[i].closed = n->want.closed;
		ops[i].version = -1;
	}
	if (n->single.version < 0)
		zkr_answer_locked(r, ZKS_IN_DOUBT);
	else if (zkr_new_before_locked(r) != NULL)
	{
		zkr_multi_locked(r->before, ops, 1 + n->single.version);
		zkr_read_locked(r, ZOO_EXISTS_OP, n->dir);
	}
}

/*
 * One in a queue need not be read: the answer to its create has the czxid.  Of several
 * all or none.
 */
static void
send_queued(ZkNode *const *nodes, int n, ZkRequest *r, const char *data)
{
	ZkOp		ops[ZKN_CHECK_MAX];

	for (int i = 0; i < n; i++)
	{
		ops[i] = (ZkOp)
		{
			.type = n == 1 ? ZOO_CREATE2_OP : ZOO_CREATE_OP,
				.path = nodes[i]->path,
				.flags = ZOO_EPHEMERAL_SEQUENTIAL,
				.data = data,
				.closed = nodes[i]->want.closed,
		};
	}
	if (n == 1)
		zkr_send_locked(r, &ops[0]);
	else
		zkr_multi_locked(r, ops, n);
}

static ZkNode *
new_node(ZkSession *s, const char *dir, const ZkpWant *want, bool parents)
{
	const char *identity = want->identity != NULL ? want->identity : "";
	size_t		dir_size = strlen(dir) + 1;
	ZkNode	   *n = calloc(1, sizeof(ZkNode) + 3 * dir_size + 2 * ZKP_NAME_LEN + strlen(identity) + 1);
	char		uuid[ZKP_UUID_LEN];

	if (n == NULL || !zks_make_uuid(uuid))
	{
		free(n);
		return NULL;
	}
	n->session = s;
	n->state = ZKN_CREATING;
	n->parents = parents;
	n->want = *want;
	n->single.at_path = want->record == NULL && want->style == ZKP_SINGLE;
	n->looked = n->single.at_path ? on_found : on_listed;
	n->single.version = n->single.at_path ? want->seen_version : -1;
	strcpy(n->dir, dir);
	n->path = strcpy(n->dir + dir_size, dir);
	n->name = n->path + dir_size;
	n->shared_path = strcpy(n->name + ZKP_NAME_LEN, dir);
	n->shared_name = n->shared_path + dir_size;
	n->want.identity = strcpy(n->shared_name + ZKP_NAME_LEN, identity);
	if (!n->single.at_path)
	{
		n->name[-1] = n->shared_name[-1] = '/';
		zkp_prefix(n->name, uuid, want);
	}
	n->prefix_len = (int) strlen(n->name);
	n->path_bytes = path_bytes(dir, n->single.at_path ? NULL : n->name);
	return n;
}

static bool
create_locked(ZkNode *const *nodes, int n)
{
	ZkNode	   *first = nodes[0];
	ZkpData		says = {.identity = first->want.identity};	/* the same for all */
	char	   *data = zkn_make_data(&says);
	ZkRequest  *r = data == NULL ? NULL : n > 1 ? group_request(nodes, n, on_group_created) :
	zkn_request_locked(first, first->single.at_path ? on_single_created : on_created);

	/*
	 * in the list those that nobody wants come first, since many a call asks
	 * for them, and those that are held may be thousands
	 */
	for (int i = 0; i < n && r != NULL; i++)
	{
		TAILQ_INSERT_TAIL(&first->session->nodes.all, nodes[i], link);
		first->session->nodes.path_bytes += nodes[i]->path_bytes;
		if (nodes[i]->parents)
			create_parents(nodes[i], i > 0 ? nodes[i - 1]->dir : "");
	}
	if (r != NULL && first->single.at_path)
		send_single(first, r, data);
	else if (r != NULL)
		send_queued(nodes, n, r, data);
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
		zk_assert(n == 1 || (n <= ZKN_CHECK_MAX && !nodes[0]->single.at_path));
		sent = create_locked(nodes, n);
		zks_leave(s);
	}
	while (!sent && made > 0)
		free(nodes[--made]);
	return sent;
}

/* How many bytes the answer to a multi may have */
static size_t
answer_room(ZkSession *s)
{
	size_t		room;

	zks_enter(s);
	room = s->receive_buffer / 3;
	zks_leave(s);
	return room == 0 || room > ZKN_MULTI_BYTES ? ZKN_MULTI_BYTES : room;
}

bool
zkn_fit(ZkSession *s, char *const *dirs, int n, const ZkpWant *want)
{
	char		prefix[ZKP_PREFIX_LEN];
	size_t		data_len = (want->identity != NULL ? strlen(want->identity) : 0) + ZKP_DATA_EXTRA;
	size_t		bytes = 0;
	size_t		sent = 0;

	/* the answer has for each its path, with a number of ten digits */
	zkp_prefix(prefix, ANY_UUID, want);
	for (int i = 0; i < n; i++)
	{
		size_t		path_len = strlen(dirs[i]) + 1 + strlen(prefix);

		bytes += ZKR_RESULT_BYTES + path_len + 11;
		sent += ZKR_CREATE_BYTES + path_len + data_len +
			(want->closed ? s->closed_acl_bytes : ZKR_ACL_BYTES);
	}
	return n <= ZKN_CHECK_MAX && bytes <= answer_room(s) && sent <= REQUEST_BYTES;
}

size_t
zkn_path_bytes(ZkSession *s, char *const *dirs, int n, const ZkpWant *want)
{
	char		prefix[ZKP_PREFIX_LEN];
	size_t		bytes;

	zks_enter(s);
	bytes = s->nodes.path_bytes;
	zks_leave(s);
	zkp_prefix(prefix, ANY_UUID, want);
	for (int i = 0; i < n; i++)
		bytes += path_bytes(dirs[i], want->style == ZKP_SINGLE ? NULL : prefix);
	return bytes;
}

/* For each node there is a check, and behind it what sets its mark */
static void
on_marked(ZkRequest *r)
{
	Group	   *g = (Group *) r->owner;
	int			failed = r->answer.rc != ZOK && !zks_is_doubtful(r->answer.rc) ? zkr_failed_op(r) : -1;

	for (int i = 0; i < g->n; i++)
	{
		ZkNode	   *n = g->nodes[i];

		/* not before all know: one may be the reason for another */
		if (n->mark != NULL)
			zkn_mark_written_locked(n->mark, r->answer.rc, r->answer.sent_at, failed >= 0 && failed / 2 == i,
									failed % 2 == 0);
	}
	for (int i = 0; i < g->n; i++)
	{
		ZkNode	   *n = g->nodes[i];

		if (!zkn_called_back_locked(n))
			continue;
		if (r->answer.rc == ZOK)
			n->proven_at = r->answer.sent_at;
		if (!zkn_is_wanted(n))
			zkn_advance_locked(n);
	}
	free(g);
}

bool
zkn_mark(ZkSession *s, const ZkMarking *what, int n, ZkMark **marks)
{
	ZkNode	   *nodes[ZKN_CHECK_MAX / 2];
	ZkOp		ops[ZKN_CHECK_MAX] = {0};
	ZkRequest  *r = NULL;
	int			made = 0;

	while (made < n && (marks[made] = zkn_new_mark(&what[made])) != NULL)
	{
		nodes[made] = what[made].node;
		made++;
	}
	zk_assert(2 * n <= ZKN_CHECK_MAX);
	zks_enter(s);
	if (made == n)
		r = group_request(nodes, n, on_marked);
	for (int i = 0; i < n && r != NULL; i++)
	{
		zkn_part_with_mark_locked(nodes[i]);
		nodes[i]->mark = marks[i];
		zkn_begin_mark_locked(s, marks[i], nodes[i], zkn_mark_moved_locked);
		ops[2 * i].type = ZOO_CHECK_OP;
		ops[2 * i].path = nodes[i]->path;
		ops[2 * i].version = -1;
		zkn_mark_op(marks[i], &ops[2 * i + 1]);
	}
	if (r != NULL)
		zkr_multi_locked(r, ops, 2 * n);
	zks_leave(s);
	while (r == NULL && made > 0)
		free(marks[--made]);
	return r != NULL;
}

bool
zkn_marks_fit(ZkSession *s, int n, size_t bytes)
{
	size_t		answer = (size_t) n * 2 * MARK_RESULT_BYTES;

	return 2 * n <= ZKN_CHECK_MAX && bytes <= REQUEST_BYTES && answer <= answer_room(s);
}

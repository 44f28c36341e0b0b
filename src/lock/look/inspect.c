/*-------------------------------------------------------------------------
 *
 * inspect.c
 *	  The contenders for a lock: showing them, and removing one.
 *
 * This is for people who look at what is going on and help where it has
 * stopped; no lock is ever granted because of what is seen here.  The list
 * comes from the leader, so that it contains everybody who was there when the
 * call began; those who leave while the nodes are read are left out.  What
 * other clients have written is shown as it is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"

#include "backend/encoding.h"
#include "backend/errors.h"
#include "backend/node_identity.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "inspect.h"

typedef struct Look
{
	const char *path;			/* of the lock */
	const char *dir;			/* the same in ZooKeeper */
	ZkWait		wait;
	ZkReader	reader;
	ZkShowQueue callback;
	void	   *arg;
} Look;

static const ZkDepth all = {.first = INT_MAX,.most = INT_MAX,.closed = true};

static Look *
new_look(const char *full)
{
	Look	   *look = palloc0(sizeof(Look));

	look->path = full + zkb_root_len(zklock_root);
	look->dir = full;
	zkb_wait_begin(&look->wait, -1, false);
	return look;
}

/*-------------------------------------------------------------------------
 * Showing the contenders
 *-------------------------------------------------------------------------
 */

/* False if the connection broke */
static bool
read_all(Look *look, ZkSeenQueue *queues, int n)
{
	if (zkl_read_queues(&look->reader, queues, n, &all) != ZKL_READ)
		return false;
	for (int i = 0; i < n; i++)
	{
		for (int k = 0; k < queues[i].n; k++)
		{
			int			rc = queues[i].list[k].rc;

			if (rc != ZKS_OK && (rc != ZKS_NO_AUTH || !queues[i].judged))
				zkb_raise(rc, look->path);
		}
	}
	return true;
}

/* False if the connection broke */
static bool
show_single(Look *look, bool closed)
{
	ZkSeenQueue queue;

	zkl_take_name(&queue, look->dir, NULL);
	if (!read_all(look, &queue, 1))
		return false;
	if (closed && queue.list[0].rc != ZKS_NO_NODE && queue.list[0].stat.owner == 0)
		zkb_raise(ZKS_NO_AUTH, look->path);
	look->callback(look->path, &queue, look->arg);
	return true;
}

/* False if the connection broke, and nothing was shown */
static bool
look_at_all(void *arg)
{
	Look	   *look = arg;
	ZkSeenQueue queues[2];		/* of the lock, and of the semaphore */
	ZkAnswer	answer;

	if (zkl_ask_apart(&look->reader, zks_list(look->reader.patience.session, look->dir, true), &answer) != ZKL_READ)
		return false;
	if (answer.rc == ZKS_NO_NODE)
		return true;			/* nobody has ever locked here */
	if (answer.rc == ZKS_NO_AUTH)
		return show_single(look, true);
	if (answer.rc != ZKS_OK)
		zkb_raise(answer.rc, look->path);
	for (int i = 0; i < lengthof(queues); i++)
		zkl_take_queue(&queues[i], look->dir, i == 1, &answer);
	if (queues[0].n + queues[1].n == 0)
		return show_single(look, false);
	if (!read_all(look, queues, lengthof(queues)))
		return false;
	for (int i = 0; i < lengthof(queues); i++)
		look->callback(look->path, &queues[i], look->arg);
	return true;
}

void
zkl_look_at_queues(const char *full, ZkShowQueue callback, void *arg)
{
	Look	   *look = new_look(full);

	look->callback = callback;
	look->arg = arg;
	zkl_read_in_rounds(&look->reader, &look->wait, ZKB_WAIT_LOOK, look_at_all, look);
}

/*-------------------------------------------------------------------------
 * Removing a contender
 *-------------------------------------------------------------------------
 */

typedef enum BreakOutcome
{
	BROKEN,
	GONE,
	NOT_KNOWN					/* the connection broke, or it is to be read
								 * again */
} BreakOutcome;

typedef struct Break
{
	Look	   *look;
	BreakOutcome outcome;
	const char *node;
	int64		czxid;			/* of a single node; else 0 */
	int			version;		/* with which it is deleted; -1: any */
	bool		closed;			/* we may not write its data */
	bool		sent;			/* a delete was sent, and may have been
								 * executed */
	char	   *owner;			/* a sentence for DETAIL */
} Break;

/* How many bytes of another client's data are shown */
#define DATA_TOLD		200

static char *
whose(const ZkSeenContender *seen)
{
	StringInfoData text;
	char	   *fields[ZKB_FIELDS];

	if (seen->rc != ZKS_OK)
		return "The owner of the node could not be determined.";
	initStringInfo(&text);
	if (seen->stat.owner == 0)
		appendStringInfoString(&text, "The node belongs to no ZooKeeper session");
	else
		appendStringInfo(&text, "The node belongs to ZooKeeper session 0x%llx",
						 (unsigned long long) seen->stat.owner);
	zkb_read_identity(seen->says.identity, seen->says.identity_len, fields);
	for (int i = 0; i < ZKB_FIELDS; i++)
	{
		/* nobody can do anything with a tag */
		if (fields[i] != NULL && i != ZKB_FIELD_TAG)
			appendStringInfo(&text, ", %s \"%s\"", zkb_field_names[i], fields[i]);
	}
	if (!seen->says.ours && seen->data_len > 0)
		appendStringInfo(&text, ", data \"%s\"",
						 zkb_from_utf8_escaped(seen->data, Min(seen->data_len, DATA_TOLD), true));
	appendStringInfoChar(&text, '.');
	return text.data;
}

/*
 * The node that is meant, or one with ZKS_NO_NODE: another single node is none, nor is
 * one of another name.  NULL if the connection broke.
 */
static ZkSeenContender *
read_to_break(Look *look, Break *b)
{
	const char *name = b->czxid != 0 ? NULL : b->node;
	ZkSeenQueue queue;
	ZkSeenContender *node;

	zkl_take_name(&queue, look->dir, name);
	if (!read_all(look, &queue, 1))
		return NULL;
	node = queue.list;
	if (b->czxid == 0)
	{
		if (queue.replaced)
			node->rc = ZKS_NO_NODE;
		return node;
	}
	if (node->rc == ZKS_NO_AUTH)
		zkb_raise(node->rc, look->path);	/* which one it is cannot be known */
	b->version = node->stat.version;
	if (node->stat.czxid != b->czxid || node->stat.owner == 0)
		node->rc = ZKS_NO_NODE;
	return node;
}

/*
 * Write to the server's log whose node it is before it is deleted: whatever becomes
 * of the call, nobody is removed without a trace.
 */
static void
tell_owner(Look *look, Break *b, const ZkSeenContender *node)
{
	b->owner = whose(node);
	ereport(LOG_SERVER_ONLY,
			(errmsg("removing node \"%s\" from the queue of lock path \"%s\"",
					zkb_from_utf8_escaped(b->node, strlen(b->node), true), zkb_path_for_display(look->path)),
			 errdetail_internal("%s", b->owner)));
}

/*
 * A single node can be deleted only by its version, and one that takes its place may
 * have the same: 0, if another program makes it, or up to ZKN_MOST_VERSION.  So it first
 * gets a version that no new one has, by writing what it says.
 */
static bool
needs_mark(const Break *b, const ZkSeenContender *node)
{
	return b->czxid != 0 && b->version <= ZKN_MOST_VERSION && !b->closed &&
		node->data_len < ZKS_DATA_KEPT && memchr(node->data, '\0', node->data_len) == NULL;
}

/* Whatever the answer, it is read again then */
static void
mark_version(Look *look, Break *b, const ZkSeenContender *node)
{
	ZkAnswer	answer;

	node->data[node->data_len] = '\0';
	if (zkl_ask_apart(&look->reader, zks_mark_version(look->reader.patience.session, look->dir, node->data, b->version),
					  &answer) != ZKL_READ)
		return;
	if (answer.rc == ZKS_NO_AUTH)
		b->closed = true;
	else if (answer.rc != ZKS_OK && answer.rc != ZKS_NO_NODE && answer.rc != ZKS_BAD_VERSION)
		zkb_raise(answer.rc, look->path);
}

/*
 * If the node is gone after an earlier delete may have been executed, we
 * removed it.
 */
static BreakOutcome
delete_node(Look *look, Break *b)
{
	char	   *path = b->czxid != 0 ? pstrdup(look->dir) : psprintf("%s/%s", look->dir, b->node);
	ZkAnswer	answer = {0};

	/* which single one is there may have changed since */
	if (b->owner == NULL || b->czxid != 0)
	{
		ZkSeenContender *node = read_to_break(look, b);

		if (node == NULL)
			return NOT_KNOWN;
		if (node->rc == ZKS_NO_NODE)
			return b->sent ? BROKEN : GONE;
		if (b->owner == NULL)
			tell_owner(look, b, node);
		if (needs_mark(b, node))
		{
			mark_version(look, b, node);
			return NOT_KNOWN;
		}
	}

	/* watch it: if it is our own lock, the event comes before the answer */
	zkn_watch_named(look->reader.patience.session, look->dir, b->node);
	if (zkl_ask_apart(&look->reader, zks_delete(look->reader.patience.session, path, b->version), &answer) != ZKL_READ)
	{
		b->sent |= !zks_is_busy(answer.rc);
		return NOT_KNOWN;
	}
	if (answer.rc == ZKS_NO_NODE)
		return b->sent ? BROKEN : GONE;
	if (answer.rc == ZKS_BAD_VERSION)
		return NOT_KNOWN;
	if (answer.rc == ZKS_NOT_EMPTY)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" of lock path \"%s\" has children",
						zkb_from_utf8_escaped(b->node, strlen(b->node), true), zkb_path_for_display(look->path)),
				 errhint("Another program created the children; delete them with a ZooKeeper client.")));
	if (answer.rc != ZKS_OK)
		zkb_raise(answer.rc, look->path);
	return BROKEN;
}

static bool
break_once(void *arg)
{
	Break	   *b = arg;

	b->outcome = delete_node(b->look, b);
	return b->outcome != NOT_KNOWN;
}

bool
zkl_break(const char *full, const char *node)
{
	Look	   *look;
	Break		b = {.node = node,.version = -1};
	ZkpContender contender;

	if (!zkp_parse_single(node, &b.czxid) &&
		(strchr(node, '/') != NULL || !zkp_parse(node, &contender)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not the name of a lock node", zkb_from_utf8_escaped(node, strlen(node), true)),
				 errhint("Use a name that zk_lock_queue shows in column \"node\".")));
	look = b.look = new_look(full);
	zkl_read_in_rounds(&look->reader, &look->wait, ZKB_WAIT_LOOK, break_once, &b);
	if (b.outcome != BROKEN)
		return false;

	ereport(NOTICE,
			(errmsg("removed node \"%s\" from the queue of lock path \"%s\"",
					zkb_from_utf8_escaped(node, strlen(node), true), zkb_path_for_display(look->path)),
			 errdetail_internal("%s", b.owner)));
	return true;
}

/*-------------------------------------------------------------------------
 *
 * inspect.c
 *	  Removing a contender for a lock, whosever it is.
 *
 * This is for people who help where something has stopped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"

#include "backend/encoding.h"
#include "backend/errors.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "lock_tree.h"

typedef struct Break
{
	const char *path;			/* of the lock */
	const char *dir;			/* the same in ZooKeeper */
	ZkWait		wait;
	ZkReader	reader;
	const char *node;
	int64		czxid;			/* of a single node; else 0 */
	int			version;		/* with which it is deleted; -1: any */
	bool		closed;			/* we may not write its data */
	bool		sent;			/* a delete was sent, and may have been
								 * executed */
	bool		removed;		/* by us */
	char	   *owner;			/* a sentence for DETAIL */
} Break;

/* How many bytes of another client's data are shown */
#define DATA_TOLD		200

static char *
whose(const ZkSeenContender *seen)
{
	StringInfoData text;

	if (seen->rc != ZKS_OK)
		return "The owner of the node could not be determined.";
	initStringInfo(&text);
	if (seen->stat.owner == 0)
		appendStringInfoString(&text, "The node belongs to no ZooKeeper session");
	else
		appendStringInfo(&text, "The node belongs to ZooKeeper session 0x%llx",
						 (unsigned long long) seen->stat.owner);
	for (int i = 0; i < ZKB_FIELDS; i++)
	{
		/* nobody can do anything with a tag */
		if (seen->fields[i] != NULL && i != ZKB_FIELD_TAG)
			appendStringInfo(&text, ", %s \"%s\"", zkb_field_names[i], seen->fields[i]);
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
read_to_break(Break *b)
{
	static const ZkDepth depth = {.first = 1,.most = 1,.closed = true};
	ZkSeenQueue queue;
	ZkSeenContender *node;

	zkl_take_name(&queue, b->dir, b->czxid != 0 ? NULL : b->node);
	if (!zkl_read_queues(&b->reader, &queue, 1, &depth))
		return NULL;
	node = queue.list;
	if (node->rc != ZKS_OK && node->rc != ZKS_NO_NODE && (node->rc != ZKS_NO_AUTH || b->czxid != 0))
		zkb_raise(node->rc, b->path);	/* or it cannot be known which one it
										 * is */
	if (b->czxid == 0)
	{
		if (queue.replaced)
			node->rc = ZKS_NO_NODE;
		return node;
	}
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
tell_owner(Break *b, const ZkSeenContender *node)
{
	b->owner = whose(node);
	ereport(LOG_SERVER_ONLY,
			(errmsg("removing node \"%s\" from the queue of lock path \"%s\"",
					zkb_from_utf8_escaped(b->node, strlen(b->node), true), zkb_path_for_display(b->path)),
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
	return b->czxid != 0 && b->version >= 0 && b->version <= ZKN_MOST_VERSION && !b->closed &&
		node->data_len < ZKS_DATA_KEPT && memchr(node->data, '\0', node->data_len) == NULL;
}

/* Whatever the answer, it is read again then */
static void
mark_version(Break *b, const ZkSeenContender *node)
{
	ZkAnswer	answer;

	node->data[node->data_len] = '\0';
	if (!zkl_ask_apart(&b->reader, zks_mark_version(b->reader.patience.session, b->dir, node->data, b->version),
					   &answer))
		return;
	if (answer.rc == ZKS_NO_AUTH)
		b->closed = true;
	else if (answer.rc != ZKS_OK && answer.rc != ZKS_NO_NODE && answer.rc != ZKS_BAD_VERSION)
		zkb_raise(answer.rc, b->path);
}

/*
 * False if the connection broke, or it is to be read again.  If the node is gone after
 * an earlier delete may have been executed, we removed it.
 */
static bool
break_once(void *arg)
{
	Break	   *b = arg;
	char	   *path = b->czxid != 0 ? pstrdup(b->dir) : psprintf("%s/%s", b->dir, b->node);
	ZkAnswer	answer = {0};

	/* which single one is there may have changed since */
	if (b->owner == NULL || b->czxid != 0)
	{
		ZkSeenContender *node = read_to_break(b);

		if (node == NULL)
			return false;
		b->removed = node->rc == ZKS_NO_NODE && b->sent;
		if (node->rc == ZKS_NO_NODE)
			return true;
		if (b->owner == NULL)
			tell_owner(b, node);
		if (needs_mark(b, node))
		{
			mark_version(b, node);
			return false;
		}
	}

	/* watch it: if it is our own lock, the event comes before the answer */
	zkn_watch_named(b->reader.patience.session, b->dir, b->node);
	if (!zkl_ask_apart(&b->reader, zks_delete(b->reader.patience.session, path, b->version), &answer))
	{
		b->sent |= !zks_is_busy(answer.rc);
		return false;
	}
	if (answer.rc == ZKS_BAD_VERSION)
		return false;
	if (answer.rc == ZKS_NOT_EMPTY)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" of lock path \"%s\" has children",
						zkb_from_utf8_escaped(b->node, strlen(b->node), true), zkb_path_for_display(b->path)),
				 errhint("Another program created the children; delete them with a ZooKeeper client.")));
	if (answer.rc != ZKS_OK && answer.rc != ZKS_NO_NODE)
		zkb_raise(answer.rc, b->path);
	b->removed = answer.rc == ZKS_OK || b->sent;
	return true;
}

bool
zkl_break(const char *full, const char *node)
{
	Break	   *b = palloc0(sizeof(Break));
	ZkpContender contender;

	b->path = full + zkb_root_len(zklock_root);
	b->dir = full;
	b->node = node;
	b->version = -1;
	if (!zkp_parse_single(node, &b->czxid) &&
		(strchr(node, '/') != NULL || !zkp_parse(node, &contender)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not the name of a lock node", zkb_from_utf8_escaped(node, strlen(node), true)),
				 errhint("Use a name that zk_lock_queue shows in column \"node\".")));
	zkb_wait_begin(&b->wait, -1, false);
	zkl_read_in_rounds(&b->reader, &b->wait, ZKB_WAIT_LOOK, break_once, b);
	if (b->removed)
		ereport(NOTICE,
				(errmsg("removed node \"%s\" from the queue of lock path \"%s\"",
						zkb_from_utf8_escaped(node, strlen(node), true), zkb_path_for_display(b->path)),
				 errdetail_internal("%s", b->owner)));
	return b->removed;
}

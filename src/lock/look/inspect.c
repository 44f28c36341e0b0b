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
#include "miscadmin.h"

#include "backend/backend_session.h"
#include "backend/encoding.h"
#include "backend/errors.h"
#include "backend/node_identity.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "inspect.h"
#include "reader.h"

/*
 * The nodes' data is kept whole up to this total, then only the beginning of
 * each
 */
#define KEPT_WHOLE		(64 * 1024 * 1024)
#define KEPT_THEN		256

typedef struct Look
{
	const char *path;			/* of the lock */
	const char *dir;			/* the same in ZooKeeper */
	ZkSession  *session;
	ZkWait		wait;
	size_t		kept;			/* bytes of nodes' data, in this round */
	ZkReader	reader;
	void		(*callback) (const ZkQueueRow *contender, void *arg);
	void	   *arg;
} Look;

static Look *
new_look(const char *full)
{
	Look	   *look = palloc0(sizeof(Look));

	look->path = full + zkb_root_len(zklock_root);
	look->dir = full;
	zkb_wait_begin(&look->wait, -1, false);
	return look;
}

static void
begin_round(Look *look)
{
	look->session = look->reader.patience.session;
	look->kept = 0;
}

/* ask is zks_read or zks_stat; name may be NULL: the path itself, a single node */
static void
send_read(Look *look, ZkRequest *(*ask) (ZkSession *, const char *), const char *name)
{
	char	   *node = name != NULL ? psprintf("%s/%s", look->dir, name) : pstrdup(look->dir);

	zkl_ask(&look->reader, ask(look->session, node));
	pfree(node);
}

/*
 * A node as it was read; rc may be ZKS_NO_NODE if it is gone, ZKS_NO_AUTH if
 * it is closed to us
 */
typedef struct Seen
{
	int			rc;
	ZkStat		stat;
	char	   *data;
	int			data_len;
	ZkpData		says;
} Seen;

static void
take(Look *look, Seen *node, const ZkAnswer *answer)
{
	memset(node, 0, sizeof(*node));
	if (answer->rc != ZKS_OK && answer->rc != ZKS_NO_NODE && answer->rc != ZKS_NO_AUTH)
		zkb_raise(answer->rc, look->path);
	node->rc = answer->rc;
	if (node->rc != ZKS_OK)
		return;
	node->stat = answer->stat;
	node->data_len = look->kept < KEPT_WHOLE ? answer->data_len : Min(answer->data_len, KEPT_THEN);
	node->data = palloc(node->data_len + 1);
	if (node->data_len > 0)
		memcpy(node->data, answer->data, node->data_len);
	look->kept += node->data_len;
	zkp_read_data(node->data, node->data_len, &node->says);
}

/* Await the answer of the oldest request; false if the connection broke */
static bool
await_read(Look *look, Seen *node)
{
	ZkAnswer	answer;

	if (zkl_await_oldest(&look->reader, &answer) != ZKL_READ)
		return false;
	take(look, node, &answer);
	zkl_drop_oldest(&look->reader);
	return true;
}

/*-------------------------------------------------------------------------
 * Showing the contenders
 *-------------------------------------------------------------------------
 */

/* The contenders of one kind, in order */
typedef struct ShownQueue
{
	ZkpContender *contenders;
	int			n;
	Seen	   *seen;			/* contenders[i].tag says which */
} ShownQueue;

typedef struct ToSee
{
	Look	   *look;
	const ZkpContender *contenders;
	Seen	   *seen;
} ToSee;

static const char *
name_of(int i, void *arg)
{
	return ((ToSee *) arg)->contenders[i].name;
}

static void
take_next(int i, const ZkAnswer *answer, void *arg)
{
	ToSee	   *see = arg;

	take(see->look, &see->seen[i], answer);
}

/* False if the connection broke */
static bool
read_nodes(Look *look, const ZkpContender *contenders, int n, Seen *seen)
{
	ToSee		see = {.look = look,.contenders = contenders,.seen = seen};
	ZkNodesToRead nodes = {.dir = look->dir,.n = n,.name = name_of,.take = take_next,.arg = &see};

	return zkl_read_nodes(&look->reader, &nodes) == ZKL_READ;
}

/*
 * A writer of kazoo's or Curator's read-write lock is gone since the list was
 * read.  If it has become a reader with the same number, it is still there.
 */
static bool
follow_writer(Look *look, ZkpContender *contender, Seen *seen)
{
	char		name[ZKP_NAME_LEN];

	if (seen->rc != ZKS_NO_NODE || !zkp_shared_name(name, contender->name))
		return true;
	send_read(look, zks_read, name);
	if (!await_read(look, seen))
		return false;
	if (seen->rc == ZKS_OK)
		(void) zkp_parse(pstrdup(name), contender);
	return true;
}

/* Get what can be known about a node whose data is closed to us */
static bool
see_from_outside(Look *look, const char *name, Seen *seen)
{
	if (seen->rc != ZKS_NO_AUTH)
		return true;
	send_read(look, zks_stat, name);
	return await_read(look, seen);
}

/*
 * Add to the contenders what their nodes say, and leave out those that are
 * gone.  False if the connection broke.
 */
static bool
complete(Look *look, ShownQueue *queue)
{
	int			left = 0;

	for (int i = 0; i < queue->n; i++)
	{
		ZkpContender contender = queue->contenders[i];
		Seen	   *seen = &queue->seen[i];

		if (!follow_writer(look, &contender, seen) ||
			!see_from_outside(look, contender.name, seen))
			return false;
		if (seen->rc == ZKS_NO_NODE)
			continue;
		contender.tag = i;
		contender.owner = seen->stat.owner;
		contender.ours = seen->says.ours;
		if (seen->says.shared && contender.mode == ZKP_EXCLUSIVE)
			contender.mode = ZKP_SHARED;
		queue->contenders[left++] = contender;
	}
	queue->n = left;
	return true;
}

/*
 * Where sequence numbers do not tell the order, the creating transactions do
 */
static void
put_in_order(Look *look, ShownQueue *queue)
{
	if (!zkp_needs_czxids(queue->contenders, queue->n))
		return;
	for (int i = 0; i < queue->n; i++)
	{
		const Seen *seen = &queue->seen[queue->contenders[i].tag];

		if (seen->rc != ZKS_OK)
			zkb_raise(seen->rc, look->path);
		queue->contenders[i].czxid = seen->stat.place_czxid;
	}
	zkp_sort(queue->contenders, queue->n);
}

static void
show(Look *look, const ShownQueue *queue)
{
	bool	   *granted = palloc_extended(Max(queue->n, 1) * sizeof(bool), MCXT_ALLOC_HUGE);

	zkp_granted(queue->contenders, queue->n, granted);
	for (int i = 0; i < queue->n; i++)
	{
		const ZkpContender *contender = &queue->contenders[i];
		const Seen *seen = &queue->seen[contender->tag];
		bool		ours = seen->says.ours;
		ZkQueueRow	row = {
			.position = i + 1,
			.mode = contender->mode,
			.granted = granted[i] && contender->name != NULL,
			.node = contender->name,
			.known = seen->rc == ZKS_OK,
			.token = seen->stat.place_czxid,
			.session = seen->stat.owner,
			.since_ms = seen->stat.made_at_ms,
			.ours = ours,
			.data = ours ? seen->says.identity : seen->data,
			.data_len = ours ? seen->says.identity_len : seen->data_len,
		};

		CHECK_FOR_INTERRUPTS();
		look->callback(&row, look->arg);
	}
}

/*
 * A directory without contenders, or one that is closed to us, may be none, but a
 * single node.  One that is not ephemeral is no lock, and has no name by which it could
 * be removed; but it is in the way of single ones.  False if the connection broke.
 */
static bool
show_single(Look *look, bool closed)
{
	ZkpContender contender = {.mode = ZKP_EXCLUSIVE};
	char		name[ZKP_NAME_LEN];
	Seen		seen;
	ShownQueue	queue = {.contenders = &contender,.n = 1,.seen = &seen};

	send_read(look, zks_read, NULL);
	if (!await_read(look, &seen) || !see_from_outside(look, NULL, &seen))
		return false;
	if (closed && seen.rc != ZKS_NO_NODE && seen.stat.owner == 0)
		zkb_raise(ZKS_NO_AUTH, look->path);
	if (seen.rc == ZKS_NO_NODE ||
		(seen.stat.owner == 0 && (zklock_node_style != ZKP_SINGLE || seen.stat.nbelow > 0 || seen.stat.is_mark)))
		return true;
	zkp_single_name(name, seen.stat.czxid);
	contender.name = seen.stat.owner != 0 ? name : NULL;
	seen.stat.place_czxid = seen.stat.czxid;
	show(look, &queue);
	return true;
}

/* False if the connection broke, and nothing was shown */
static bool
look_at_all(void *arg)
{
	Look	   *look = arg;
	static const ZkpMode kinds[] = {ZKP_EXCLUSIVE, ZKP_SEMAPHORE};
	ShownQueue	queues[lengthof(kinds)];
	ZkpContender *contenders;
	Seen	   *seen;
	int			n = 0;
	ZkAnswer	answer;

	begin_round(look);
	if (zkl_ask_apart(&look->reader, zks_list(look->session, look->dir, true), &answer) != ZKL_READ)
		return false;
	if (answer.rc == ZKS_NO_NODE)
		return true;			/* nobody has ever locked here */
	if (answer.rc == ZKS_NO_AUTH)
		return show_single(look, true);
	if (answer.rc != ZKS_OK)
		zkb_raise(answer.rc, look->path);
	contenders = palloc_extended((answer.nchildren + 1) * sizeof(ZkpContender), MCXT_ALLOC_HUGE);
	for (int i = 0; i < lengthof(kinds); i++)
	{
		queues[i].contenders = contenders + n;
		queues[i].n = zkp_queue(answer.children, answer.nchildren, kinds[i], contenders + n);
		n += queues[i].n;
	}
	if (n == 0)
		return show_single(look, false);
	seen = palloc_extended((n + 1) * sizeof(Seen), MCXT_ALLOC_HUGE);
	if (!read_nodes(look, contenders, n, seen))
		return false;
	for (int i = 0; i < lengthof(kinds); i++)
	{
		queues[i].seen = seen;
		seen += queues[i].n;
		if (!complete(look, &queues[i]))
			return false;
		put_in_order(look, &queues[i]);
	}
	for (int i = 0; i < lengthof(kinds); i++)
		show(look, &queues[i]);
	return true;
}

void
zkl_each_contender(const char *full, void (*callback) (const ZkQueueRow *contender, void *arg),
				   void *arg)
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
whose(const Seen *seen)
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

/* False if the connection broke.  Another single node than the one meant is none. */
static bool
read_to_break(Look *look, Break *b, Seen *node)
{
	const char *name = b->czxid != 0 ? NULL : b->node;

	send_read(look, zks_read, name);
	if (!await_read(look, node) || !see_from_outside(look, name, node))
		return false;
	if (b->czxid != 0 && node->rc == ZKS_NO_AUTH)
		zkb_raise(node->rc, look->path);	/* which one it is cannot be known */
	if (b->czxid != 0 && node->rc == ZKS_OK)
	{
		b->version = node->stat.version;
		if (node->stat.czxid != b->czxid || node->stat.owner == 0)
			node->rc = ZKS_NO_NODE;
	}
	return true;
}

/*
 * Write to the server's log whose node it is before it is deleted: whatever becomes
 * of the call, nobody is removed without a trace.
 */
static void
tell_owner(Look *look, Break *b, const Seen *node)
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
needs_mark(const Break *b, const Seen *node)
{
	return b->czxid != 0 && b->version <= ZKN_MOST_VERSION && !b->closed &&
		node->data_len < ZKS_DATA_KEPT && memchr(node->data, '\0', node->data_len) == NULL;
}

/* Whatever the answer, it is read again then */
static void
mark_version(Look *look, Break *b, const Seen *node)
{
	ZkAnswer	answer;

	node->data[node->data_len] = '\0';
	if (zkl_ask_apart(&look->reader, zks_mark_version(look->session, look->dir, node->data, b->version),
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
	Seen		node;

	/* which single one is there may have changed since */
	if (b->owner == NULL || b->czxid != 0)
	{
		if (!read_to_break(look, b, &node))
			return NOT_KNOWN;
		if (node.rc == ZKS_NO_NODE)
			return b->sent ? BROKEN : GONE;
		if (b->owner == NULL)
			tell_owner(look, b, &node);
		if (needs_mark(b, &node))
		{
			mark_version(look, b, &node);
			return NOT_KNOWN;
		}
	}

	/* watch it: if it is our own lock, the event comes before the answer */
	zkn_watch_named(look->session, look->dir, b->node);
	if (zkl_ask_apart(&look->reader, zks_delete(look->session, path, b->version), &answer) != ZKL_READ)
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

	begin_round(b->look);
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

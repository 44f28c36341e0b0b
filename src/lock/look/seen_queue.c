/*-------------------------------------------------------------------------
 *
 * seen_queue.c
 *	  Queues as they were read: who holds, who waits.
 *
 * Whoever wants to know what others do in a queue, from its list or by a list of its
 * own, reads their nodes here: the views, the log and the chase, each as deep as it
 * needs to, and who takes a lock, where the list alone does not tell.  The
 * rules by which a queue is judged are those of lock_protocol.c.  Several queues are read
 * at once, in as many round trips as one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "backend/settings.h"
#include "seen_queue.h"

/*
 * The nodes' data is kept whole up to this total, then only the beginning of
 * each
 */
#define KEPT_WHOLE		(64 * 1024 * 1024)
#define KEPT_THEN		256

void
zkl_take_contenders(ZkSeenQueue *queue, const char *dir, const ZkpContender *contenders, int n)
{
	memset(queue, 0, sizeof(*queue));
	queue->dir = pstrdup(dir);
	queue->by_czxid = zkp_needs_czxids(contenders, n);
	queue->list = palloc_extended(Max(n, 1) * sizeof(ZkSeenContender), MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE);
	queue->n = n;
	for (int i = 0; i < n; i++)
	{
		queue->list[i].name = contenders[i];
		if (contenders[i].name != NULL)
			queue->list[i].name.name = pstrdup(contenders[i].name);
		queue->list[i].keeps = ZKS_DATA_KEPT;
	}
}

void
zkl_take_queue(ZkSeenQueue *queue, const char *dir, bool semaphore, const ZkAnswer *list)
{
	int			n = list->rc == ZKS_OK ? list->nchildren : 0;
	ZkpContender *contenders = palloc_extended(Max(n, 1) * sizeof(ZkpContender), MCXT_ALLOC_HUGE);

	n = zkp_queue(list->children, n, semaphore ? ZKP_SEMAPHORE : ZKP_EXCLUSIVE, contenders);
	zkl_take_contenders(queue, dir, contenders, n);
	queue->semaphore = semaphore;
	pfree(contenders);
}

void
zkl_take_name(ZkSeenQueue *queue, const char *dir, const char *name)
{
	ZkpContender contender = {.name = name,.mode = ZKP_EXCLUSIVE};

	zkl_take_contenders(queue, dir, &contender, 1);
	queue->single = name == NULL;
}

/*-------------------------------------------------------------------------
 * Reading
 *-------------------------------------------------------------------------
 */

/*
 * Up to where those must be read that may hold.  One that was read is a reader by now,
 * if its data says so, so that those behind it may hold, too.
 */
static int
may_hold(const ZkSeenQueue *queue)
{
	int			end = 0;

	for (int i = 0; i < queue->n; i++)
	{
		const ZkpContender *name = &queue->list[i].name;

		if (!queue->semaphore && name->mode == ZKP_EXCLUSIVE)
			return i + 1;
		if (!queue->semaphore || i < name->permits)
			end = i + 1;
	}
	return end;
}

/*
 * Whether some of the queue must be read, or read on: who comes after those that are
 * gone takes their place.  Where the numbers do not tell the order, the transactions
 * do, so all are read.
 */
static bool
must_read(ZkSeenQueue *queue, const ZkDepth *depth)
{
	int			end = queue->by_czxid ? queue->n :
	Max(depth->holders ? may_hold(queue) : 0, Min(queue->n, depth->first));

	if (queue->unread || end <= queue->end)
		return queue->end > queue->nread;
	queue->too_many = end > depth->most;
	if (!queue->too_many)
		queue->end = end;
	return !queue->too_many;
}

/*
 * A writer of kazoo's or Curator's read-write lock is gone since the list was
 * read.  If it has become a reader with the same number, it is still there.
 */
static void
follow_writer(ZkSeenQueue *queue, ZkSeenContender *contender)
{
	char		name[ZKP_NAME_LEN];
	ZkpContender reader;

	if (contender->name.name == NULL || !zkp_shared_name(name, contender->name.name) || !zkp_parse(name, &reader))
		return;
	queue->replaced = true;
	reader.name = pstrdup(name);
	contender->name = reader;
	contender->keeps = ZKS_DATA_KEPT;
}

static void
take_answer(ZkSeenQueue *queue, ZkSeenContender *contender, const ZkAnswer *answer, const ZkDepth *depth,
			size_t *kept)
{
	bool		was_read = contender->keeps > 0;

	contender->keeps = ZKL_NOT_READ;
	contender->rc = answer->rc;
	if (answer->rc == ZKS_NO_NODE)
		follow_writer(queue, contender);
	if (answer->rc == ZKS_NO_AUTH && was_read && depth->closed)
		contender->keeps = 0;
	if (answer->rc != ZKS_OK)
		return;
	contender->read = true;
	contender->stat = answer->stat;
	contender->data_len = *kept < KEPT_WHOLE ? answer->data_len : Min(answer->data_len, KEPT_THEN);
	contender->data = palloc(contender->data_len + 1);
	if (contender->data_len > 0)
		memcpy(contender->data, answer->data, contender->data_len);
	*kept += contender->data_len;
	zkp_read_data(contender->data, contender->data_len, &contender->says);
	zkb_read_identity(contender->says.identity, contender->says.identity_len, contender->fields);
	contender->name.owner = answer->stat.owner;
	contender->name.ours = contender->says.ours;
	if (queue->by_czxid)
		contender->name.czxid = answer->stat.place_czxid;
	if (contender->says.shared && contender->name.mode == ZKP_EXCLUSIVE && !queue->single)
		contender->name.mode = ZKP_SHARED;
}

static void
ask(ZkReader *r, ZkSeenContender *contender)
{
	const char *dir = contender->queue->dir;
	char	   *path = contender->name.name == NULL ? pstrdup(dir) : psprintf("%s/%s", dir, contender->name.name);

	zkl_ask(r, zks_read(r->patience.session, path, contender->fresh, contender->keeps), contender);
	pfree(path);
}

/* Take answers until no more than this many are due; some ask for more */
static bool
take_answers(ZkReader *r, int left, const ZkDepth *depth, size_t *kept)
{
	while (r->n > left)
	{
		ZkSeenContender *contender = r->about[r->first];
		ZkAnswer	answer;

		if (!zkl_await_oldest(r, &answer))
			return false;
		take_answer(contender->queue, contender, &answer, depth, kept);
		zkl_drop_oldest(r);
		if (contender->keeps != ZKL_NOT_READ)
			ask(r, contender);
	}
	return true;
}

/* Ask about those of the queue that must be read */
static bool
read_on(ZkReader *r, ZkSeenQueue *queue, const ZkDepth *depth, size_t *kept)
{
	for (int i = queue->nread; i < queue->end; i++)
	{
		if (queue->list[i].keeps == ZKL_NOT_READ)
			continue;
		if (!take_answers(r, ZKL_WINDOW - 1, depth, kept))
			return false;
		queue->list[i].queue = queue;
		ask(r, &queue->list[i]);
	}
	return true;
}

static void
leave_out_gone(ZkSeenQueue *queue)
{
	int			left = queue->nread;

	for (int i = queue->nread; i < queue->end; i++)
	{
		if (queue->list[i].rc != ZKS_NO_NODE)
			queue->list[left++] = queue->list[i];
	}
	memmove(&queue->list[left], &queue->list[queue->end], (queue->n - queue->end) * sizeof(ZkSeenContender));
	queue->n -= queue->end - left;
	queue->nread = queue->end = left;
}

/*-------------------------------------------------------------------------
 * Judging
 *-------------------------------------------------------------------------
 */

/*
 * A directory without contenders, or one that is closed to us, may be none, but a
 * single node.  One that is not ephemeral is no lock, and has no name by which it could
 * be removed; but it is in the way of single ones.
 */
static void
judge_single(ZkSeenQueue *queue)
{
	ZkSeenContender *contender = &queue->list[0];

	contender->granted = contender->read && contender->stat.owner != 0;
	if (contender->granted)
	{
		char	   *name = palloc(ZKP_NAME_LEN);

		zkp_single_name(name, contender->stat.czxid);
		contender->name.name = name;
		contender->stat.place_czxid = contender->stat.czxid;
	}
	else if ((contender->rc == ZKS_OK || contender->rc == ZKS_NO_AUTH) &&
			 (zklock_node_style != ZKP_SINGLE || contender->stat.nbelow > 0 || contender->stat.is_our_directory))
		queue->n = 0;
}

/* False if one is closed to us, so that the order is not known */
static bool
put_in_order(ZkSeenQueue *queue)
{
	if (!queue->by_czxid)
		return true;
	for (int i = 0; i < queue->n; i++)
	{
		if (queue->list[i].name.czxid == 0)
			return false;
	}
	qsort(queue->list, queue->n, sizeof(ZkSeenContender), zkp_compare);
	return true;
}

static void
judge(ZkSeenQueue *queue)
{
	ZkpContender *names;
	bool	   *granted;

	queue->judged = !queue->too_many && put_in_order(queue);
	if (!queue->judged || queue->n == 0)
		return;
	if (queue->single)
	{
		judge_single(queue);
		return;
	}
	names = palloc_extended(queue->n * sizeof(ZkpContender), MCXT_ALLOC_HUGE);
	granted = palloc_extended(queue->n, MCXT_ALLOC_HUGE);
	for (int i = 0; i < queue->n; i++)
		names[i] = queue->list[i].name;
	zkp_granted(names, queue->n, granted);
	for (int i = 0; i < queue->n; i++)
		queue->list[i].granted = granted[i];
	pfree(names);
	pfree(granted);
}

bool
zkl_read_queues(ZkReader *r, ZkSeenQueue *queues, int n, const ZkDepth *depth)
{
	size_t		kept = 0;
	bool		more;

	zkl_end_reading(r);
	do
	{
		more = false;
		for (int i = 0; i < n; i++)
		{
			more |= must_read(&queues[i], depth);
			if (!read_on(r, &queues[i], depth, &kept))
				return false;
		}
		if (!take_answers(r, 0, depth, &kept))
			return false;
		for (int i = 0; i < n; i++)
		{
			leave_out_gone(&queues[i]);
			/* the first ones may go as fast as they are read */
			queues[i].unread |= !depth->holders && queues[i].nread == 0;
		}
	} while (more);
	for (int i = 0; i < n; i++)
		judge(&queues[i]);
	return true;
}

bool
zkl_read_queue(ZkReader *r, const char *dir, bool semaphore, const ZkDepth *depth, ZkSeenQueue *queue)
{
	ZkAnswer	answer;
	bool		answered;

	memset(queue, 0, sizeof(*queue));
	if (!zkl_ask_apart(r, zks_list(r->patience.session, dir, false, false), &answer))
		return false;
	zkl_take_queue(queue, dir, semaphore, &answer);
	answered = zkl_read_queues(r, queue, 1, depth);
	if (!queue->judged)
		queue->n = 0;
	return answered;
}

bool
zkl_read_owner(ZkReader *r, const ZkSeenQueue *queue, int at, int64 *owner)
{
	static const ZkDepth depth = {.first = 1,.most = 1};
	ZkSeenQueue alone;
	bool		answered;

	*owner = queue->list[at].name.owner;
	if (*owner != 0)
		return true;
	zkl_take_name(&alone, queue->dir, queue->list[at].name.name);
	alone.list[0].keeps = 0;
	answered = zkl_read_queues(r, &alone, 1, &depth);
	*owner = alone.list[0].stat.owner;
	return answered;
}

/*-------------------------------------------------------------------------
 *
 * seen_queue.c
 *	  A queue as it was read, for those who only look: who holds, who waits.
 *
 * The nodes of those who only wait need not be read to tell who holds: a
 * list has their names and their order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "backend/node_identity.h"
#include "seen_queue.h"

static ZkReading
list_queue(ZkReader *r, ZkSeenQueue *queue)
{
	ZkAnswer	answer;
	ZkReading	reading;

	zkl_ask(r, zks_list(r->patience.session, queue->dir, false));
	reading = zkl_await_oldest(r, &answer);
	if (reading != ZKL_READ)
		return reading;
	if (answer.rc == ZKS_OK)
	{
		ZkpContender *names = palloc_extended((answer.nchildren + 1) * sizeof(ZkpContender), MCXT_ALLOC_HUGE);

		queue->n = zkp_queue(answer.children, answer.nchildren,
							 queue->semaphore ? ZKP_SEMAPHORE : ZKP_EXCLUSIVE, names);
		queue->list = palloc_extended((queue->n + 1) * sizeof(ZkSeenContender), MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE);
		for (int i = 0; i < queue->n; i++)
		{
			queue->list[i].name = names[i];
			queue->list[i].name.name = pstrdup(names[i].name);
		}
		pfree(names);
	}
	zkl_drop_oldest(r);
	return ZKL_READ;
}

/* False if it is gone */
static bool
take_contender(ZkSeenContender *contender, const ZkAnswer *answer)
{
	ZkpData		says;
	char	   *fields[ZKB_FIELDS];

	if (answer->rc == ZKS_NO_NODE)
		return false;
	if (answer->rc != ZKS_OK)
		return true;			/* closed to us: nobody knows who it is */
	contender->read = true;
	contender->stat = answer->stat;
	contender->name.owner = answer->stat.owner;
	contender->name.czxid = answer->stat.place_czxid;
	zkp_read_data(answer->data, answer->data_len, &says);
	contender->name.ours = says.ours;
	if (says.shared && contender->name.mode == ZKP_EXCLUSIVE)
		contender->name.mode = ZKP_SHARED;
	if (!says.ours)
		return true;
	contender->identity = pnstrdup(says.identity, says.identity_len);
	contender->identity_len = strlen(contender->identity);
	zkb_read_identity(contender->identity, contender->identity_len, fields);
	if (fields[ZKB_FIELD_TAG] != NULL)
		strlcpy(contender->tag, fields[ZKB_FIELD_TAG], sizeof(contender->tag));
	return true;
}

/* Those of a queue from first on; left counts those that are not gone */
typedef struct Part
{
	ZkSeenQueue *queue;
	int			first;
	int			left;
} Part;

static const char *
name_of(int i, void *arg)
{
	Part	   *part = arg;

	return part->queue->list[part->first + i].name.name;
}

static void
take_next(int i, const ZkAnswer *answer, void *arg)
{
	Part	   *part = arg;
	ZkSeenContender *list = &part->queue->list[part->first];

	if (take_contender(&list[i], answer))
		list[part->left++] = list[i];
}

/* Read those from first up to this one; who is gone is left out */
static ZkReading
read_contenders(ZkReader *r, ZkSeenQueue *queue, int first, int end)
{
	Part		part = {.queue = queue,.first = first};
	ZkNodesToRead nodes = {.dir = queue->dir,.n = end - first,.name = name_of,.take = take_next,.arg = &part};
	ZkReading	reading = zkl_read_nodes(r, &nodes);
	int			left = first + part.left;

	if (reading != ZKL_READ)
		return reading;
	memmove(&queue->list[left], &queue->list[end], (queue->n - end) * sizeof(ZkSeenContender));
	queue->n -= end - left;
	return ZKL_READ;
}

/* Up to where those must be read that may hold; these were read up to first */
static int
may_hold(const ZkSeenQueue *queue, int first)
{
	int			end = first;

	for (int i = first; i < queue->n; i++)
	{
		const ZkpContender *name = &queue->list[i].name;

		if (!queue->semaphore && name->mode == ZKP_EXCLUSIVE)
			return i + 1;
		if (!queue->semaphore || i < name->permits)
			end = i + 1;
	}
	return end;
}

/* Whether all that were read share the lock, so that the next may hold, too */
static bool
go_on(const ZkSeenQueue *queue, int read)
{
	if (queue->semaphore || read >= queue->n)
		return false;
	for (int i = 0; i < read; i++)
	{
		if (queue->list[i].name.mode == ZKP_EXCLUSIVE)
			return false;
	}
	return true;
}

/* Where the numbers do not tell the order, the transactions do, so all are read */
static ZkReading
read_holders(ZkReader *r, ZkSeenQueue *queue, int with_waiters, int most)
{
	bool		all = false;
	int			read = 0;

	for (int i = 0; i < queue->n; i++)
		all |= zkp_needs_czxids(&queue->list[i].name, 1);
	do
	{
		int			before = queue->n;
		int			end = all ? queue->n : may_hold(queue, read);
		ZkReading	reading;

		end = Max(end, Min(queue->n, with_waiters));
		if (end > most)
		{
			queue->n = 0;
			return ZKL_READ;
		}
		reading = read_contenders(r, queue, read, end);
		if (reading != ZKL_READ)
			return reading;
		read = end - (before - queue->n);
	} while (go_on(queue, read));
	return ZKL_READ;
}

/* By what stands at the beginning of a contender */
static int
compare_contenders(const void *left, const void *right)
{
	ZkpContender pair[2] = {((const ZkSeenContender *) left)->name, ((const ZkSeenContender *) right)->name};

	zkp_sort(pair, 2);
	return strcmp(pair[0].name, pair[1].name) == 0 ? 0 :
		strcmp(pair[0].name, ((const ZkSeenContender *) left)->name.name) == 0 ? -1 : 1;
}

/* One that was read keeps its czxid only where that tells the order */
static void
put_in_order(ZkSeenQueue *queue)
{
	bool		by_czxid = false;

	for (int i = 0; i < queue->n; i++)
		by_czxid |= zkp_needs_czxids(&queue->list[i].name, 1);
	for (int i = 0; i < queue->n; i++)
	{
		if (!by_czxid)
			queue->list[i].name.czxid = 0;
		else if (queue->list[i].name.czxid == 0)
		{
			queue->n = 0;		/* one is closed to us: the order is not known */
			return;
		}
	}
	if (by_czxid)
		qsort(queue->list, queue->n, sizeof(ZkSeenContender), compare_contenders);
}

static void
judge(ZkSeenQueue *queue)
{
	ZkpContender *names = palloc_extended((queue->n + 1) * sizeof(ZkpContender), MCXT_ALLOC_HUGE);
	bool	   *granted = palloc_extended(queue->n + 1, MCXT_ALLOC_HUGE);

	for (int i = 0; i < queue->n; i++)
		names[i] = queue->list[i].name;
	zkp_granted(names, queue->n, granted);
	for (int i = 0; i < queue->n; i++)
		queue->list[i].granted = granted[i];
	pfree(names);
	pfree(granted);
}

ZkReading
zkl_read_queue(ZkReader *r, const char *dir, bool semaphore, int with_waiters, int most, ZkSeenQueue *queue)
{
	ZkReading	reading;

	memset(queue, 0, sizeof(*queue));
	queue->dir = pstrdup(dir);
	queue->semaphore = semaphore;
	reading = list_queue(r, queue);
	if (reading == ZKL_READ)
		reading = read_holders(r, queue, with_waiters, most);
	if (reading != ZKL_READ)
		return reading;
	put_in_order(queue);
	judge(queue);
	return ZKL_READ;
}

ZkReading
zkl_read_single(ZkReader *r, ZkSeenQueue *queue)
{
	ZkAnswer	answer;
	ZkReading	reading;

	zkl_ask(r, zks_read(r->patience.session, queue->dir));
	reading = zkl_await_oldest(r, &answer);
	if (reading != ZKL_READ)
		return reading;
	if (answer.rc == ZKS_OK && answer.stat.owner != 0)
	{
		queue->list = palloc0(sizeof(ZkSeenContender));
		queue->list[0].name.mode = ZKP_EXCLUSIVE;
		queue->list[0].granted = true;
		queue->n = take_contender(&queue->list[0], &answer);
	}
	zkl_drop_oldest(r);
	return ZKL_READ;
}

ZkReading
zkl_read_owner(ZkReader *r, ZkSeenQueue *queue, int at, int64 *owner)
{
	ZkSeenContender *contender = &queue->list[at];

	if (contender->name.owner == 0)
	{
		char	   *path = psprintf("%s/%s", queue->dir, contender->name.name);
		ZkAnswer	answer;
		ZkReading	reading;

		zkl_ask(r, zks_stat(r->patience.session, path));
		pfree(path);
		reading = zkl_await_oldest(r, &answer);
		if (reading != ZKL_READ)
			return reading;
		if (answer.rc == ZKS_OK)
			contender->name.owner = answer.stat.owner;
		zkl_drop_oldest(r);
	}
	*owner = contender->name.owner;
	return ZKL_READ;
}

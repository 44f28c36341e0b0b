/*-------------------------------------------------------------------------
 *
 * lock_tree.c
 *	  What is locked at a path, or below it, or claimed, by whomever.
 *
 * The tree is walked from its top, some directories at a time: they are listed, and
 * the queues that are found there are read.  What is below them comes next, before
 * what stands beside them; so that what is kept meanwhile is little more than the
 * names of one directory for each level.
 * It is no snapshot: locks come and go meanwhile.  A connection that breaks
 * costs no more than the questions under way, which are asked again.
 *
 * Only what a lock's path may be is walked.  A directory with a contender in it
 * is a lock; all others, and whatever else stands in the tree, are passed over.
 * A path may also be looked at for itself.  Its list comes from the leader, so that it
 * has everybody who was there when the call began; those who leave while the nodes are
 * read are left out.
 * The marks of claims are a tree of the same paths, where each node may be a mark.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "claim_record.h"
#include "lock_tree.h"

/*
 * How many directories are listed at a time.  The answer to a list may have 8 MB, so
 * they are fewer than where single nodes are read.
 */
#define MOST_LISTS		250

/* How often a directory is listed anew because the first of its queue is gone */
#define LISTS_MAX		3

/*
 * Of a queue two are read: whether who is first holds alone may depend on whose the
 * second is, in an upgrade.  Where sequence numbers do not tell the order, all of it
 * has to be read, but no more than this.
 */
static const ZkDepth depths[] = {
	[ZKL_WALK_PATHS] = {.first = 2,.most = 10000,.closed = true},
	[ZKL_WALK_QUEUES] = {.first = INT_MAX,.most = INT_MAX,.closed = true},
	[ZKL_WALK_MARKS] = {.first = 1,.most = 1}
};

/* A directory to be listed */
typedef struct Task
{
	struct Task *next;
	ZkpMode		again;			/* only for this queue; or ZKP_NONE: for the
								 * first time */
	int			nlists;			/* earlier ones of it */
	char		dir[FLEXIBLE_ARRAY_MEMBER]; /* in ZooKeeper; "" is its root */
} Task;

typedef struct Walk
{
	char	   *top;			/* in ZooKeeper, as Task.dir */
	int			root_len;		/* of zklock.root, or of the root of marks */
	ZkWalk		what;
	bool		closed;			/* the list of a path for itself */
	ZkShowQueue callback;
	void	   *arg;
	MemoryContext context;
	MemoryContext found_context;
	ZkWait		wait;
	ZkReader	reader;
	Task	   *to_list;		/* the next one first */
	ZkSeenQueue found[2 * MOST_LISTS];	/* to be read, and shown; or marks */
	int			nfound;
} Walk;

static void
list_later(Walk *w, const char *dir, ZkpMode again, int nlists)
{
	Task	   *task = MemoryContextAlloc(w->context, offsetof(Task, dir) + strlen(dir) + 1);

	task->again = again;
	task->nlists = nlists;
	strcpy(task->dir, dir);
	task->next = w->to_list;
	w->to_list = task;
}

/*-------------------------------------------------------------------------
 * Rows
 *-------------------------------------------------------------------------
 */

static void
show(Walk *w, const char *path, const ZkSeenQueue *queue)
{
	CHECK_FOR_INTERRUPTS();
	w->callback(path, queue, w->arg);
}

/* Whether there is nothing: a mark that is empty was made in vain, or stands above others, or is forgotten */
static bool
is_nothing(const Walk *w, const ZkSeenQueue *queue)
{
	const ZkSeenContender *first = &queue->list[0];

	if (w->what == ZKL_WALK_MARKS)
		return first->rc == ZKS_NO_NODE || (first->read && first->data_len == 0);
	return queue->single && (queue->n == 0 || !first->read);
}

static void
show_queue(Walk *w, const ZkSeenQueue *queue)
{
	const char *path = queue->dir + w->root_len;
	bool		alone = w->what == ZKL_WALK_QUEUES;

	if (w->closed && queue->list[0].rc != ZKS_NO_NODE && queue->list[0].stat.owner == 0)
		zkb_raise(ZKS_NO_AUTH, path);
	for (int i = 0; i < queue->nread; i++)
	{
		int			rc = queue->list[i].rc;

		if (rc != ZKS_OK && (rc != ZKS_NO_AUTH || (alone && !queue->judged)) && (rc != ZKS_TOO_LARGE || alone))
			zkb_raise(rc, path);
	}
	if (is_nothing(w, queue))
		return;
	if (!alone && queue->judged && queue->nread == 0 && queue->nlists < LISTS_MAX)
		/* the first is gone: who is it now? */
		list_later(w, queue->dir, queue->semaphore ? ZKP_SEMAPHORE : ZKP_EXCLUSIVE, queue->nlists + 1);
	else
		show(w, path, queue);
}

/*-------------------------------------------------------------------------
 * A directory
 *-------------------------------------------------------------------------
 */

static void
find_queue(Walk *w, const Task *task, const ZkAnswer *answer, bool semaphore)
{
	ZkSeenQueue *queue = &w->found[w->nfound];

	zkl_take_queue(queue, task->dir, semaphore, answer);
	queue->nlists = task->nlists;
	queue->unread = queue->nlists >= LISTS_MAX; /* one that always changes */
	w->nfound += queue->n > 0;
}

static void
find_directories(Walk *w, const Task *task, const ZkAnswer *answer)
{
	for (int i = 0; i < answer->nchildren; i++)
	{
		char	   *dir = psprintf("%s/%s", task->dir, answer->children[i]);
		const char *path = dir + w->root_len;

		CHECK_FOR_INTERRUPTS();
		if (zkb_check_path(path) == NULL && (w->root_len > 0 || strcmp(path, "/zookeeper") != 0))
			list_later(w, dir, ZKP_NONE, 0);
		pfree(dir);
	}
}

static void
take_list(Walk *w, const Task *task, const ZkAnswer *answer)
{
	const char *path = task->dir + w->root_len;
	bool		is_top = strcmp(task->dir, w->top) == 0;

	switch (answer->rc)
	{
		case ZKS_NO_NODE:
			return;
		case ZKS_OK:
			break;
		case ZKS_NO_AUTH:
		case ZKS_TOO_LARGE:
			if (!is_top)
			{
				show(w, path, NULL);
				return;
			}
			w->closed = w->what == ZKL_WALK_QUEUES && answer->rc == ZKS_NO_AUTH;
			if (w->closed)
				break;			/* it may be a single node */
			pg_fallthrough;
		default:
			zkb_raise(answer->rc, path[0] != '\0' ? path : "/");
	}
	if (task->again == ZKP_NONE && w->what != ZKL_WALK_QUEUES)
		find_directories(w, task, answer);
	if (path[0] == '\0')
		return;					/* a root is no lock */
	if (w->what != ZKL_WALK_MARKS && task->again != ZKP_SEMAPHORE)
		find_queue(w, task, answer, false);
	if (w->what != ZKL_WALK_MARKS && task->again != ZKP_EXCLUSIVE)
		find_queue(w, task, answer, true);
	if (w->what == ZKL_WALK_MARKS || (answer->nchildren == 0 && task->again == ZKP_NONE))
		zkl_take_name(&w->found[w->nfound++], task->dir, NULL);
}

/*-------------------------------------------------------------------------
 * The walk
 *-------------------------------------------------------------------------
 */

static bool
list_some(Walk *w)
{
	ZkReader   *r = &w->reader;
	bool		answered = true;
	Task	   *task;

	for (; w->to_list != NULL && r->n < MOST_LISTS; w->to_list = task->next)
	{
		task = w->to_list;
		zkl_ask(r, zks_list(r->patience.session, task->dir[0] != '\0' ? task->dir : "/", strcmp(task->dir, w->top) == 0, true), task);
	}

	/* what is below is put before the rest */
	while (r->n > 0)
	{
		ZkAnswer	answer;

		answered = zkl_await_oldest(r, &answer);
		if (!answered)
			break;
		task = r->about[r->first];
		take_list(w, task, &answer);
		zkl_drop_oldest(r);
		pfree(task);
		r->last_round = 0;
	}
	for (int i = r->n - 1; i >= 0; i--)
	{
		task = r->about[(r->first + i) % ZKL_WINDOW];
		task->next = w->to_list;	/* those that are left go back */
		w->to_list = task;
	}
	return answered;
}

static bool
read_found(Walk *w)
{
	if (!zkl_read_queues(&w->reader, w->found, w->nfound, &depths[w->what]))
		return false;
	for (int i = 0; i < w->nfound; i++)
		show_queue(w, &w->found[i]);
	w->nfound = 0;
	w->reader.last_round = 0;
	return true;
}

/* On one connection; false if it broke before the end */
static bool
walk_on(void *arg)
{
	Walk	   *w = arg;
	MemoryContext old = MemoryContextSwitchTo(w->found_context);
	bool		answered = true;

	while (answered && (w->to_list != NULL || w->nfound > 0))
	{
		answered = w->nfound > 0 ? read_found(w) : list_some(w);
		if (w->nfound == 0)
			MemoryContextReset(w->found_context);	/* and what the rows took */
	}
	MemoryContextSwitchTo(old);
	return answered;
}

void
zkl_walk(const char *full, ZkWalk what, ZkShowQueue callback, void *arg)
{
	Walk	   *w = palloc0(sizeof(Walk));
	int			len;

	w->root_len = zkb_root_len(zklock_root);
	w->top = what == ZKL_WALK_MARKS ? zkl_mark_path(full, w->root_len) : pstrdup(full);
	if (what == ZKL_WALK_MARKS)
		w->root_len += strlen(ZKP_CLAIMS);
	len = strlen(w->top);
	if (w->top[len - 1] == '/')
		w->top[len - 1] = '\0';
	w->what = what;
	w->callback = callback;
	w->arg = arg;
	w->context = AllocSetContextCreate(CurrentMemoryContext, "zklock tree", ALLOCSET_DEFAULT_SIZES);
	w->found_context = AllocSetContextCreate(w->context, "zklock queues", ALLOCSET_DEFAULT_SIZES);
	list_later(w, w->top, ZKP_NONE, 0);
	zkb_wait_begin(&w->wait, -1, false);
	zkl_read_in_rounds(&w->reader, &w->wait, ZKB_WAIT_LOOK, walk_on, w);
	MemoryContextDelete(w->context);
	pfree(w);
}

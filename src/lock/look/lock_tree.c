/*-------------------------------------------------------------------------
 *
 * lock_tree.c
 *	  What is locked below a path, or claimed, by whomever.
 *
 * The tree is walked from its top, with many questions under way.  What is
 * found is asked about next, before what stands beside it; so that what is
 * kept meanwhile is little more than the names of one directory for each level.
 * It is no snapshot: locks come and go meanwhile.  A connection that breaks
 * costs no more than the questions under way, which are asked again.
 *
 * Only what a lock's path may be is walked.  A directory with a contender in it
 * is a lock; all others, and whatever else stands in the tree, are passed over.
 * The marks of claims are a tree of the same paths, where each node may be a mark.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "backend/backend_session.h"
#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "lock_tree.h"
#include "seen_queue.h"

/*
 * The number of questions under way.  The answer to a list may have 8 MB, so they
 * are fewer than where single nodes are read.
 */
#define WINDOW			250

/* How often a directory is listed anew because the first of its queue is gone */
#define LISTS_MAX		3

/* A queue that was found; in a memory context of its own */
typedef struct Found
{
	MemoryContext context;
	char	   *dir;			/* in ZooKeeper */
	bool		semaphore;
	bool		single;			/* dir is the node */
	int			nlists;			/* of the directory, so far */
	ZkpContender *contenders;	/* in order */
	int			n;
	int			holders;		/* -1: not known yet */
	ZkQueueRow	first;
} Found;

typedef enum Step
{
	LIST_DIRECTORY,
	READ_FIRST,					/* of a queue */
	STAT_FIRST,					/* its data is closed to us */
	READ_SECOND,				/* which holds as well if it is the first's */
	STAT_SINGLE,				/* a directory that may be a single node */
	READ_MARK
} Step;

typedef struct Task
{
	struct Task *next;
	Step		step;
	ZkpMode		again;			/* LIST_DIRECTORY: only for this queue; or
								 * ZKP_NONE: for the first time */
	int			nlists;			/* earlier ones of it */
	Found	   *found;			/* the others: of this queue */
	char		dir[FLEXIBLE_ARRAY_MEMBER]; /* LIST_DIRECTORY, READ_MARK: in
											 * ZooKeeper; "" is its root */
} Task;

typedef struct Walk
{
	char	   *top;			/* in ZooKeeper, as Task.dir */
	int			root_len;		/* of zklock.root, or of the root of marks */
	void		(*callback) (const ZkPathRow *row, void *arg);
	void		(*each_claim) (const char *path, const ZkClaimRecord *claim, void *arg);	/* marks are walked */
	void	   *arg;
	MemoryContext context;
	MemoryContext row_context;
	ZkSession  *session;
	ZkWait		wait;
	ZkReader	reader;
	bool		begun;			/* the top has been listed */
	int64		answer_due;		/* when the next answer must have come,
								 * however often the connection breaks */
	Task	   *to_ask;			/* the next one first */
	Task	   *asked;			/* the oldest first */
	Task	  **asked_end;
	Task	   *unordered;		/* READ_FIRST where the order is not known */
} Walk;

static Task *
new_task(Walk *w, Step step, Found *found, const char *dir)
{
	Task	   *task = MemoryContextAlloc(w->context, offsetof(Task, dir) + strlen(dir) + 1);

	task->step = step;
	task->again = ZKP_NONE;
	task->nlists = 0;
	task->found = found;
	strcpy(task->dir, dir);
	return task;
}

static void
push(Task **list, Task *task)
{
	task->next = *list;
	*list = task;
}

/*-------------------------------------------------------------------------
 * Rows
 *-------------------------------------------------------------------------
 */

static void
show(Walk *w, const ZkPathRow *row)
{
	MemoryContext old = MemoryContextSwitchTo(w->row_context);

	CHECK_FOR_INTERRUPTS();
	w->callback(row, w->arg);
	MemoryContextSwitchTo(old);
	MemoryContextReset(w->row_context);
}

static void
show_claim(Walk *w, const char *path, const ZkAnswer *answer)
{
	MemoryContext old = MemoryContextSwitchTo(w->row_context);
	ZkClaimRecord claim;
	bool		read = (answer->rc == ZKS_OK && answer->stat.owner == 0 &&
						zkl_read_claim(answer->data, answer->data_len, &claim));

	CHECK_FOR_INTERRUPTS();
	w->each_claim(path, read ? &claim : NULL, w->arg);
	MemoryContextSwitchTo(old);
	MemoryContextReset(w->row_context);
}

static void
show_unread(Walk *w, const char *path, const ZkAnswer *answer)
{
	ZkPathRow	row = {.path = path};

	if (w->each_claim != NULL)
		show_claim(w, path, answer);
	else
		show(w, &row);
}

static void
show_found(Walk *w, Found *found, bool first_known)
{
	ZkPathRow	row = {
		.path = found->dir + w->root_len,
		.known = true,
		.semaphore = found->semaphore,
		.contenders = found->n,
		.holders = found->holders,
		.first = first_known ? &found->first : NULL,
	};

	show(w, &row);
	MemoryContextDelete(found->context);
}

/* By the rules of the queue, with what has been read of it */
static void
count_holders(Found *found)
{
	bool	   *granted = palloc_extended(found->n * sizeof(bool), MCXT_ALLOC_HUGE);

	zkp_granted(found->contenders, found->n, granted);
	found->holders = 0;
	for (int i = 0; i < found->n; i++)
		found->holders += granted[i];
	pfree(granted);
}

/*-------------------------------------------------------------------------
 * A directory
 *-------------------------------------------------------------------------
 */

/* A queue of this kind, if there is one in the list */
static void
find_queue(Walk *w, const Task *task, const ZkAnswer *answer, ZkpMode mode)
{
	MemoryContext context = AllocSetContextCreate(w->context, "zklock queue", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	ZkpContender *contenders = palloc_extended((answer->nchildren + 1) * sizeof(ZkpContender), MCXT_ALLOC_HUGE);
	int			n = zkp_queue(answer->children, answer->nchildren, mode, contenders);

	if (n > 0)
	{
		Found	   *found = palloc0(sizeof(Found));
		Task	   *read = new_task(w, READ_FIRST, found, "");

		found->context = context;
		found->dir = pstrdup(task->dir);
		found->semaphore = mode == ZKP_SEMAPHORE;
		found->nlists = task->nlists + 1;
		found->contenders = palloc_extended(n * sizeof(ZkpContender), MCXT_ALLOC_HUGE);
		memcpy(found->contenders, contenders, n * sizeof(ZkpContender));
		found->n = n;
		for (int i = 0; i < n; i++)
			found->contenders[i].name = i < 2 ? pstrdup(contenders[i].name) : NULL;
		found->holders = -1;
		push(zkp_needs_czxids(found->contenders, n) ? &w->unordered : &w->to_ask, read);
	}
	pfree(contenders);
	MemoryContextSwitchTo(old);
	if (n == 0)
		MemoryContextDelete(context);
}

/* A directory without children, if it is a single node */
static void
find_single(Walk *w, const char *dir)
{
	MemoryContext context = AllocSetContextCreate(w->context, "zklock single node", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Found	   *found = palloc0(sizeof(Found));

	found->context = context;
	found->dir = pstrdup(dir);
	found->single = true;
	found->contenders = palloc0(sizeof(ZkpContender));
	found->contenders[0].mode = ZKP_EXCLUSIVE;
	found->n = found->holders = 1;
	push(&w->to_ask, new_task(w, STAT_SINGLE, found, ""));
	MemoryContextSwitchTo(old);
}

static void
take_single(Walk *w, const Task *task, const ZkAnswer *answer)
{
	if (answer->rc == ZKS_OK && (answer->stat.owner != 0 || zklock_node_style == ZKP_SINGLE))
		push(&w->to_ask, new_task(w, READ_FIRST, task->found, ""));
	else
		MemoryContextDelete(task->found->context);
}

static void
find_directories(Walk *w, const Task *task, const ZkAnswer *answer)
{
	for (int i = 0; i < answer->nchildren; i++)
	{
		char	   *dir = psprintf("%s/%s", task->dir, answer->children[i]);
		const char *path = dir + w->root_len;

		CHECK_FOR_INTERRUPTS();
		if (zkb_is_lock_path(path) && (w->root_len > 0 || strcmp(path, "/zookeeper") != 0))
			push(&w->to_ask, new_task(w, LIST_DIRECTORY, NULL, dir));
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
				show_unread(w, path, answer);
				return;
			}
			pg_fallthrough;
		default:
			zkb_raise(answer->rc, path[0] != '\0' ? path : "/");
	}
	if (task->again == ZKP_NONE)
		find_directories(w, task, answer);
	if (path[0] == '\0')
		return;					/* a root is no lock */
	if (w->each_claim != NULL)
	{
		push(&w->to_ask, new_task(w, READ_MARK, NULL, task->dir));
		return;
	}
	if (task->again != ZKP_SEMAPHORE)
		find_queue(w, task, answer, ZKP_EXCLUSIVE);
	if (task->again != ZKP_EXCLUSIVE)
		find_queue(w, task, answer, ZKP_SEMAPHORE);
	if (answer->nchildren == 0 && task->again == ZKP_NONE)
		find_single(w, task->dir);
}

/* One that is empty was made in vain, or stands above others, or is forgotten */
static void
take_mark(Walk *w, const Task *task, const ZkAnswer *answer)
{
	const char *path = task->dir + w->root_len;

	if (answer->rc == ZKS_NO_NODE || (answer->rc == ZKS_OK && answer->data_len == 0))
		return;
	if (answer->rc != ZKS_OK && answer->rc != ZKS_NO_AUTH && answer->rc != ZKS_TOO_LARGE)
		zkb_raise(answer->rc, path);
	show_claim(w, path, answer);
}

/*-------------------------------------------------------------------------
 * A queue
 *-------------------------------------------------------------------------
 */

/* The first is gone: who is it now? */
static void
list_again(Walk *w, Found *found)
{
	Task	   *list;

	if (found->nlists >= LISTS_MAX)
	{
		if (found->holders < 0)
			count_holders(found);
		show_found(w, found, false);
		return;
	}
	if (found->single)
	{
		found->nlists++;
		push(&w->to_ask, new_task(w, STAT_SINGLE, found, ""));
		return;
	}
	list = new_task(w, LIST_DIRECTORY, NULL, found->dir);
	list->again = found->semaphore ? ZKP_SEMAPHORE : ZKP_EXCLUSIVE;
	list->nlists = found->nlists;
	push(&w->to_ask, list);
	MemoryContextDelete(found->context);
}

static void
keep_what_it_says(ZkpContender *contender, const ZkAnswer *answer, ZkpData *says)
{
	zkp_read_data(answer->data, answer->data_len, says);
	contender->owner = answer->stat.owner;
	contender->ours = says->ours;
	if (says->shared && contender->mode == ZKP_EXCLUSIVE)
		contender->mode = ZKP_SHARED;
}

static void
keep_first(Found *found, const ZkAnswer *answer)
{
	ZkpData		says;
	const char *data;
	int			data_len;
	char	   *copy;

	keep_what_it_says(&found->contenders[0], answer, &says);
	if (found->single)
	{
		char	   *name = MemoryContextAlloc(found->context, ZKP_NAME_LEN);

		zkp_single_name(name, answer->stat.czxid);
		found->contenders[0].name = name;
		found->contenders[0].mode = ZKP_EXCLUSIVE;
	}
	data = says.ours ? says.identity : answer->data;
	data_len = says.ours ? says.identity_len : answer->data_len;
	copy = MemoryContextAlloc(found->context, data_len + 1);
	if (data_len > 0)
		memcpy(copy, data, data_len);
	found->first = (ZkQueueRow)
	{
		.position = 1,
			.mode = found->contenders[0].mode,
			.node = found->contenders[0].name,
			.known = true,
			.token = found->single ? answer->stat.czxid : answer->stat.place_czxid,
			.session = answer->stat.owner,
			.since_ms = answer->stat.made_at_ms,
			.ours = says.ours,
			.data = copy,
			.data_len = data_len,
	};
}

/* Whether who holds depends on whose the second is: an upgrade */
static bool
must_read_second(const Found *found)
{
	return found->holders < 0 && found->n > 1 && found->contenders[0].ours &&
		found->contenders[0].mode == ZKP_SHARED && found->contenders[1].mode == ZKP_EXCLUSIVE;
}

static void
take_first(Walk *w, const Task *task, const ZkAnswer *answer)
{
	Found	   *found = task->found;
	bool		persistent = found->single && answer->rc == ZKS_OK && answer->stat.owner == 0;

	/* one that is not ephemeral is nobody's lock, but in a single node's way */
	if (persistent)
		found->holders = 0;
	if (persistent && (zklock_node_style != ZKP_SINGLE || answer->stat.nbelow > 0 || answer->stat.is_mark))
		MemoryContextDelete(found->context);
	else if (answer->rc == ZKS_NO_NODE)
		list_again(w, found);
	else if (answer->rc == ZKS_NO_AUTH && task->step == READ_FIRST)
		push(&w->to_ask, new_task(w, STAT_FIRST, found, ""));
	else if (answer->rc != ZKS_OK && answer->rc != ZKS_NO_AUTH && answer->rc != ZKS_TOO_LARGE)
		zkb_raise(answer->rc, found->dir + w->root_len);
	else
	{
		if (answer->rc == ZKS_OK)
			keep_first(found, answer);
		if (must_read_second(found))
		{
			push(&w->to_ask, new_task(w, READ_SECOND, found, ""));
			return;
		}
		if (found->holders < 0)
			count_holders(found);
		show_found(w, found, answer->rc == ZKS_OK);
	}
}

static void
take_second(Walk *w, const Task *task, const ZkAnswer *answer)
{
	ZkpData		says;

	if (answer->rc == ZKS_OK)
		keep_what_it_says(&task->found->contenders[1], answer, &says);
	count_holders(task->found);
	show_found(w, task->found, true);
}

/*
 * Where sequence numbers do not tell the order, all of the queue has to be read.
 * Too many, or one is closed to us: then the order is not known.
 */
#define UNORDERED_MAX		10000

static ZkReading
put_in_order(Walk *w, Task *task)
{
	Found	   *found = task->found;
	MemoryContext context = AllocSetContextCreate(w->context, "zklock unordered queue", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	ZkSeenQueue queue;
	ZkReading	reading = zkl_read_queue(&w->reader, found->dir, found->semaphore, 0, UNORDERED_MAX, &queue);

	MemoryContextSwitchTo(old);
	if (reading != ZKL_READ)
		return reading;
	w->unordered = task->next;
	if (queue.n == 0)
	{
		show_found(w, found, false);
		pfree(task);
	}
	else
	{
		found->n = queue.n;
		found->holders = 0;
		for (int i = 0; i < queue.n; i++)
			found->holders += queue.list[i].granted;
		found->contenders[0] = queue.list[0].name;
		found->contenders[0].name = MemoryContextStrdup(found->context, queue.list[0].name.name);
		push(&w->to_ask, task);
	}
	MemoryContextDelete(context);
	return ZKL_READ;
}

/*-------------------------------------------------------------------------
 * The walk
 *-------------------------------------------------------------------------
 */

static void
made_progress(Walk *w)
{
	w->answer_due = zkb_deadline(zklock_operation_timeout);
}

static ZkRequest *
request_of(Walk *w, const Task *task)
{
	const ZkpContender *contender;
	char	   *path;
	ZkRequest  *request;

	if (task->step == LIST_DIRECTORY)
		return zks_list_all(w->session, task->dir[0] != '\0' ? task->dir : "/", !w->begun);
	if (task->step == READ_MARK)
		return zks_read(w->session, task->dir);
	contender = &task->found->contenders[task->step == READ_SECOND ? 1 : 0];
	path = task->found->single ? pstrdup(task->found->dir) :
		psprintf("%s/%s", task->found->dir, contender->name);
	request = (task->step == STAT_FIRST || task->step == STAT_SINGLE ? zks_stat : zks_read) (w->session, path);
	pfree(path);
	return request;
}

static void
ask_ahead(Walk *w)
{
	while (w->to_ask != NULL && w->reader.n < WINDOW)
	{
		Task	   *task = w->to_ask;

		zkl_ask(&w->reader, request_of(w, task));
		w->to_ask = task->next;
		task->next = NULL;
		*w->asked_end = task;
		w->asked_end = &task->next;
	}
}

static ZkReading
take_oldest(Walk *w)
{
	Task	   *task = w->asked;
	ZkAnswer	answer;
	ZkReading	reading = zkl_await_oldest(&w->reader, &answer);

	if (reading != ZKL_READ)
		return reading;
	w->asked = task->next;
	if (w->asked == NULL)
		w->asked_end = &w->asked;
	switch (task->step)
	{
		case LIST_DIRECTORY:
			take_list(w, task, &answer);
			break;
		case READ_FIRST:
		case STAT_FIRST:
			take_first(w, task, &answer);
			break;
		case READ_SECOND:
			take_second(w, task, &answer);
			break;
		case STAT_SINGLE:
			take_single(w, task, &answer);
			break;
		case READ_MARK:
			take_mark(w, task, &answer);
			break;
	}
	zkl_drop_oldest(&w->reader);
	pfree(task);
	w->begun = true;
	made_progress(w);
	return ZKL_READ;
}

/* What was asked and not answered is to be asked again */
static void
ask_again(Walk *w)
{
	*w->asked_end = w->to_ask;
	w->to_ask = w->asked;
	w->asked = NULL;
	w->asked_end = &w->asked;
	zkl_end_reading(&w->reader);
}

/* On one connection; false if it broke before the end */
static bool
walk_on(Walk *w)
{
	ZkReading	reading = ZKL_READ;

	w->session = zkb_connect(&w->wait);
	zkl_begin_reading(&w->reader, w->session, &w->wait, ZKB_WAIT_LOOK);
	while (reading == ZKL_READ)
	{
		ask_ahead(w);
		if (w->asked != NULL)
			reading = take_oldest(w);
		else if (w->unordered != NULL)
			reading = put_in_order(w, w->unordered);
		else
			return true;
	}
	if (zks_now() >= w->answer_due)
		zkb_raise_unanswered(&w->wait, w->session);
	ask_again(w);
	return false;
}

static void
walk(Walk *w, void *arg)
{
	int			len = strlen(w->top);

	if (w->top[len - 1] == '/')
		w->top[len - 1] = '\0';
	w->arg = arg;
	w->context = AllocSetContextCreate(CurrentMemoryContext, "zklock tree", ALLOCSET_DEFAULT_SIZES);
	w->row_context = AllocSetContextCreate(w->context, "zklock row", ALLOCSET_DEFAULT_SIZES);
	w->asked_end = &w->asked;
	push(&w->to_ask, new_task(w, LIST_DIRECTORY, NULL, w->top));
	zkb_wait_begin(&w->wait, -1, false);
	made_progress(w);
	PG_TRY();
	{
		while (!walk_on(w))
			;
	}
	PG_FINALLY();
	{
		if (w->session != NULL)
			zkl_end_reading(&w->reader);
	}
	PG_END_TRY();
	MemoryContextDelete(w->context);
	pfree(w);
}

void
zkl_each_path(const char *full, void (*callback) (const ZkPathRow *row, void *arg), void *arg)
{
	Walk	   *w = palloc0(sizeof(Walk));

	w->top = pstrdup(full);
	w->root_len = zkb_root_len(zklock_root);
	w->callback = callback;
	walk(w, arg);
}

void
zkl_each_claim(const char *full,
			   void (*callback) (const char *path, const ZkClaimRecord *claim, void *arg),
			   void *arg)
{
	Walk	   *w = palloc0(sizeof(Walk));
	int			root_len = zkb_root_len(zklock_root);

	w->top = zkl_mark_path(full, root_len);
	w->root_len = root_len + strlen(ZKP_CLAIMS);
	w->each_claim = callback;
	walk(w, arg);
}

/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Taking locks: the conversation with ZooKeeper.
 *
 * The create of our node and a list of its directory are sent together.
 * Answers come in the order of the requests, so the list shows our place in
 * the queue, and a free lock costs one round trip.  A session that takes a lock
 * again and again mostly leaves out the list: its new node's number tells that
 * nobody came in between (turn.c).  If others are ahead of us,
 * we watch the two nearest ones and our own node.  When the farther one goes,
 * the list is read again while the nearer one still stands; so when that one
 * goes, we mostly know already that nobody else is left, and hold the lock
 * without asking: numbers only grow, so nobody can have come in before us.  (To
 * watch the nearest alone, and to list when it goes, is two requests less, and
 * slower even where a round trip is short: see doc/performance.md.)
 *
 * Three things make that last step unsafe (besides what lock_protocol.c knows about
 * the numbers), and then the list is read again: a reconnection (missed events
 * are replayed in no particular order), a watch on our own node that is not
 * armed (an armed one would have shown an expiry first, on the same
 * connection), and a process that was stopped (what it reads then is old).
 *
 * A reader's turn can come in one more way: the writer before it stays, but
 * its data changes to say that it is a reader now.  The watch tells when the
 * data changes, and brings the data when it is set anew.
 *
 * A semaphore is the same queue with more holders.  The first waiter watches
 * the directory itself, since anyone who leaves makes room for it; each other
 * waiter watches the one right before it, which says in its node's data when
 * it is granted its place.  So a freed place wakes one waiter, and then the
 * next one, which takes over watching the directory.  If a waiter says so
 * while we see others before it, it has nothing more to tell, and we watch the
 * directory instead.  A waiter that says nothing may be on a machine that has
 * stalled, and a directory's event may be kept back: so each looks by itself
 * now and then, the sooner the nearer it is to its turn.  If the numbers of
 * places differ, the waiters of each number are such a chain of their own: see
 * look_at_semaphore.  So whoever leaves is seen by one of each number, and four
 * requests hand a place on: the delete, the list of the first waiter, its word that
 * it has the place, and the list of the next one.
 *
 * The nodes of several locks are created in one ZooKeeper transaction, so that
 * two such calls have the same order everywhere.  We wait for the first lock,
 * in the order of the paths, that somebody else has; the nodes after it are
 * given up meanwhile, so that nobody waits for a lock that we do not hold yet
 * either.  A waiter holds only locks that come before, so such calls cannot
 * deadlock.
 *
 * A single node (zklock.node_style) has no queue.  Whoever could create it holds;
 * everybody else watches it, and tries again when it is gone.
 *
 * Each round is bound to one session.  When that ends, or somebody deletes a
 * node of ours, a new round begins, at the end of the queues.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"

#include "acquire.h"
#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/node_identity.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "backend/slots.h"
#include "deadlock.h"
#include "reader.h"

/*
 * An answer is asked for again at once this many times, then after pauses,
 * each twice as long as the one before, up to a second.
 */
#define AT_ONCE			3
#define FIRST_PAUSE_MS	4
#define MOST_DOUBLINGS	8
#define FEW_DOUBLINGS	4
#define FORGOTTEN_MS	10000

/* So many of those before us are named in an error */
#define MOST_TOLD		3

/* One of those before us, whom we watch */
typedef struct Blocker
{
	ZkWatch    *watch;
	char	   *name;
} Blocker;

typedef struct BlockerList
{
	Blocker    *list;			/* sorted by name */
	int			n;
} BlockerList;

typedef enum Verdict
{
	GRANTED,
	TAKEN,						/* somebody else has it, and time is up */
	WAIT_ON,					/* others are before us, and nothing has
								 * happened so far */
	WAIT_FOR_ANSWER,			/* the same, and a watch is not answered yet */
	LIST_AGAIN,					/* something changed: list the queue again */
	START_AGAIN					/* our node is gone: queue again */
} Verdict;

/*
 * Our place in one queue, and what is under way there, so that an error can
 * undo it
 */
typedef struct Place
{
	ZkTarget   *target;
	ZkNode	   *node;
	ZkRequest  *list;
	ZkRequest  *check;			/* of our node, sent along with it, or behind
								 * it; or NULL */
	bool		unprompted;		/* nothing has happened, but it is time for a
								 * list */
	bool		list_fresh;		/* the leader was asked */
	int			leftovers;		/* nodes of ours to be deleted that it may
								 * show */
	uint32		list_epoch;		/* the connection by which the last list came,
								 * or could have come with the create */
	bool		by_changes;		/* we wait for any change of the directory */
	ZkWatch    *changes;		/* armed by the list, if so */
	bool		behind;			/* the last list showed others before us */
	int			need;			/* so many must leave before us */
	bool		tell;			/* others wait to hear that we hold */
	bool		alone;			/* nobody else was in the queue, as the last
								 * list or our number said */
	ZkRequest **reads;			/* of others' nodes */
	int			nreads;
	BlockerList blockers;
	BlockerList old_blockers;	/* of the list before, while they are being
								 * replaced */
	ZkSearch   *search;			/* for a deadlock, while we wait; or NULL */
	struct Call *call;			/* these three for still_waits */
	const ZkpView *view;
	Verdict		seen;
} Place;

typedef struct Call
{
	ZkpWant		want;
	bool		may_wait;
	bool		holds;			/* this session has other locks */
	bool		waited;
	bool		warned;			/* of a node that is no lock */
	struct Place *waiting;		/* there, now; or NULL */
	ZkWaitLog	log;
	ZkWait	   *wait;
	int			in_vain;		/* how often we have asked again lately */
	int64		asked_again_at;
	ZkSession  *session;
	Place	   *places;
	int			n;
} Call;

/* A queue as the last list showed it, and what it means for us */
typedef struct ListedQueue
{
	ZkpContender *contenders;	/* the names are the list's */
	int			n;
	ZkpView		view;
} ListedQueue;

static bool
is_single(const Call *c)
{
	return c->want.style == ZKP_SINGLE;
}

static void
drop_list(Call *c, Place *p)
{
	if (p->list != NULL)
		zks_request_free(c->session, p->list);
	p->list = NULL;
	if (p->check != NULL)
		zks_request_free(c->session, p->check);
	p->check = NULL;
}

static void
drop_changes(Call *c, Place *p)
{
	if (p->changes != NULL)
		zks_leave_watch(c->session, p->changes);
	p->changes = NULL;
}

static void
drop_reads(Call *c, Place *p)
{
	while (p->nreads > 0)
		zks_request_free(c->session, p->reads[--p->nreads]);
	if (p->reads != NULL)
		pfree(p->reads);
	p->reads = NULL;
}

static void
drop_blocker(Call *c, Blocker *blocker)
{
	if (blocker->watch != NULL)
		zks_unwatch(c->session, blocker->watch);
	blocker->watch = NULL;
	if (blocker->name != NULL)
		pfree(blocker->name);
	blocker->name = NULL;
}

static void
drop_blockers(Call *c, BlockerList *blockers)
{
	for (int i = 0; i < blockers->n; i++)
		drop_blocker(c, &blockers->list[i]);
	if (blockers->list != NULL)
		pfree(blockers->list);
	memset(blockers, 0, sizeof(*blockers));
}

static void
end_search(Place *p)
{
	if (p->search != NULL)
		zkl_end_search(p->search);
	p->search = NULL;
}

/* Leave nothing behind, except a node that was granted */
static void
drop_place(Call *c, Place *p)
{
	end_search(p);				/* before the node goes */
	drop_list(c, p);
	drop_reads(c, p);
	drop_blockers(c, &p->old_blockers);
	drop_blockers(c, &p->blockers);
	drop_changes(c, p);
	if (p->node != NULL)
		(void) zkn_discard(c->session, p->node);
	p->node = NULL;
	p->by_changes = p->behind = p->tell = p->alone = p->unprompted = false;
}

/* Drop this place and all that come after it */
static void
drop_from(Call *c, int first)
{
	for (int i = first; i < c->n; i++)
		drop_place(c, &c->places[i]);
}

/*-------------------------------------------------------------------------
 * Answers
 *-------------------------------------------------------------------------
 */

static void
raise_no_use(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_IO_ERROR),
			 errmsg("ZooKeeper gave no usable answer within %d ms", zklock_operation_timeout),
			 errdetail("Its answers about the lock's nodes kept changing or contradicting each other."),
			 errhint("Check the ensemble, or raise zklock.operation_timeout.")));
}

/*
 * The answer was of no use, so we must ask again.  That happens when things
 * change meanwhile; but a server that goes on like this must neither hold up a
 * call that may not wait, nor be asked without a pause.
 */
static void
ask_after_pause(Call *c, int doublings)
{
	int64		now = zks_now();
	int64		until;

	CHECK_FOR_INTERRUPTS();
	if (now >= c->wait->try_until)
		raise_no_use();
	if (now - c->asked_again_at > FORGOTTEN_MS * ZKS_MS)
		c->in_vain = 0;
	c->asked_again_at = now;
	if (c->in_vain++ < AT_ONCE)
		return;
	until = zkb_deadline(FIRST_PAUSE_MS << Min(c->in_vain - AT_ONCE - 1, doublings));
	while (zkb_wait(c->wait, c->session, Min(until, c->wait->try_until), ZKB_WAIT_ACQUIRE))
		;
	if (zks_now() >= c->wait->try_until)
		raise_no_use();
}

static void
ask_again(Call *c)
{
	ask_after_pause(c, MOST_DOUBLINGS);
}

/*
 * Wait for an answer that ZooKeeper owes us.  If the connection is broken,
 * that may last until it is restored, and the error says so.  Returns false
 * when the session is over.
 */
static bool
await_something(Call *c, int64 until)
{
	ZkSessionInfo info;

	zks_info(c->session, &info);
	if (info.state == ZKS_OVER)
		return false;
	if (!zkb_wait(c->wait, c->session, until, ZKB_WAIT_ACQUIRE))
		zkb_raise_unanswered(c->wait);
	return true;
}

/*
 * Wait until ZooKeeper's answers can be believed; false if the session is over
 */
static bool
await_fresh(Call *c, int64 until)
{
	for (;;)
	{
		ZkSessionInfo info;

		zks_info(c->session, &info);
		if (zkb_is_fresh(&info))
			return true;
		if (!await_something(c, until))
			return false;
	}
}

static void
raise_no_memory(void)
{
	ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
}

static void
send_list(Call *c, Place *p, bool fresh)
{
	drop_list(c, p);
	p->list_fresh = fresh;
	p->leftovers = zkn_leftovers(c->session, p->target->dir);
	p->list = is_single(c) ? zks_read_fresh(c->session, p->target->dir) :
		p->by_changes ?
		zks_list_and_watch(c->session, p->target->dir, fresh, &p->changes) :
		zks_list(c->session, p->target->dir, fresh);
	if (p->list == NULL)
		raise_no_memory();
}

/*
 * Whether the time is up for a waiter that was behind others a moment ago, and
 * is only looking again.  Somebody else was ahead all that time.
 */
static bool
is_too_late(Call *c, Place *p)
{
	ZkSessionInfo info;

	zks_info(c->session, &info);
	return p->behind && info.state == ZKS_CONNECTED && zks_now() >= c->wait->deadline;
}

/*
 * Wait for the lock's children.  A list that was lost with its connection is
 * requested again, fresh, since the next server may lag behind.  Returns false
 * when the session is over, or time is up; ZKS_NO_NODE is a valid answer.
 */
static bool
await_list(Call *c, Place *p, ZkAnswer *answer)
{
	int64		until = zkb_wait_answer_due(c->wait);

	for (int asked = 1;; asked++)
	{
		ZkSessionInfo info;

		while (!zks_answered(c->session, p->list, answer))
		{
			if (is_too_late(c, p))
				return false;
			if (!await_something(c, until))
				return false;
		}
		if (answer->rc == ZKS_OK || answer->rc == ZKS_NO_NODE)
		{
			/* an answer that lay unread while we were stopped proves nothing */
			zks_info(c->session, &info);
			if (zkb_is_fresh(&info))
			{
				p->list_epoch = answer->epoch;
				return true;
			}
		}
		else if (!zks_is_doubtful(answer->rc))
			zkb_raise(answer->rc, p->target->path);
		if (!await_fresh(c, until))
			return false;
		CHECK_FOR_INTERRUPTS();
		if (asked > 1)
			ask_again(c);		/* the first repeat, after a lost connection,
								 * needs no pause */
		send_list(c, p, true);
	}
}

/*
 * Wait until we know what became of our create, or it is too late: then it does not
 * matter
 */
static void
await_node(Call *c, Place *p, ZkNodeInfo *node)
{
	int64		until = zkb_wait_answer_due(c->wait);

	for (;;)
	{
		zkn_info(c->session, p->node, node);
		if (node->state != ZKN_CREATING && node->state != ZKN_UNSURE)
			return;
		if (is_too_late(c, p))
			return;
		if (!await_something(c, until))
		{
			/* the session is over; its thread is about to mark the node */
			node->state = ZKN_LOST;
			return;
		}
	}
}

static void
send_read(Call *c, Place *p, const char *name)
{
	char	   *path = psprintf("%s/%s", p->target->dir, name);

	CHECK_FOR_INTERRUPTS();
	p->reads[p->nreads] = zks_read(c->session, path);
	pfree(path);
	if (p->reads[p->nreads] == NULL)
		raise_no_memory();
	p->nreads++;
}

/*
 * Read these contenders' nodes, up to ZKL_WINDOW at a time.  Returns false if this
 * connection cannot deliver them.
 */
static bool
read_nodes(Call *c, Place *p, const ZkpContender *contenders, int n, ZkAnswer *answers)
{
	int64		until = zkb_wait_answer_due(c->wait);
	ZkSessionInfo info;

	drop_reads(c, p);
	p->reads = palloc_extended(n * sizeof(ZkRequest *), MCXT_ALLOC_HUGE);
	for (int i = 0; i < n; i++)
	{
		while (p->nreads < n && p->nreads - i < ZKL_WINDOW)
			send_read(c, p, contenders[p->nreads].name);
		while (!zks_answered(c->session, p->reads[i], &answers[i]))
		{
			if (!await_something(c, until))
				return false;
		}
		if (zks_is_doubtful(answers[i].rc))
			return false;
		if (answers[i].rc != ZKS_OK && answers[i].rc != ZKS_NO_NODE && answers[i].rc != ZKS_NO_AUTH)
			zkb_raise(answers[i].rc, p->target->path);
		until = zkb_wait_answer_due(c->wait);
	}
	/* answers that lay unread while we were stopped prove nothing */
	zks_info(c->session, &info);
	return zkb_is_fresh(&info);
}

/*-------------------------------------------------------------------------
 * The queue
 *-------------------------------------------------------------------------
 */

static void
free_queue(ListedQueue *queue)
{
	if (queue->contenders != NULL)
		pfree(queue->contenders);
	if (queue->view.watch != NULL)
		pfree(queue->view.watch);
	memset(queue, 0, sizeof(*queue));
}

/*
 * Where sequence numbers do not tell the order, the creating transactions do.
 * False if somebody in the list may have been replaced by one whom it does not
 * show: a reader in the place of a writer.
 */
static bool
fill_in_czxids(Call *c, Place *p, ListedQueue *queue)
{
	ZkAnswer   *answers = palloc_extended(queue->n * sizeof(ZkAnswer), MCXT_ALLOC_HUGE);
	int			left = 0;
	bool		complete = read_nodes(c, p, queue->contenders, queue->n, answers);

	for (int i = 0; complete && i < queue->n; i++)
	{
		char		shared[ZKP_NAME_LEN];

		if (answers[i].rc == ZKS_NO_NODE)
		{
			complete = !zkp_shared_name(shared, queue->contenders[i].name);
			continue;
		}
		if (answers[i].rc != ZKS_OK)
			zkb_raise(answers[i].rc, p->target->path);
		queue->contenders[left] = queue->contenders[i];
		queue->contenders[left++].czxid = answers[i].czxid;
	}
	pfree(answers);
	if (!complete)
		return false;
	queue->n = left;
	zkp_sort(queue->contenders, queue->n);
	return true;
}

/*
 * Work out what this list means for us, or, with node NULL, for a newcomer.
 * False if that is not certain, and the list must be read again.
 */
static bool
look_at_queue(Call *c, Place *p, const ZkAnswer *answer, const ZkNodeInfo *node, ListedQueue *queue)
{
	ZkNodeInfo	own;
	int			listed;

	/* a node of ours that is gone since then would look like another's */
	if (zkn_leftovers(c->session, p->target->dir) < p->leftovers)
		return false;
	queue->contenders = palloc_extended(Max(answer->nchildren, 1) * sizeof(ZkpContender),
										MCXT_ALLOC_HUGE);
	queue->n = zkp_queue(answer->children, answer->nchildren, c->want.mode, queue->contenders);
	listed = queue->n;
	queue->n = zkn_leave_out_unwanted(c->session, p->target->dir, queue->contenders, queue->n);
	if (zkp_needs_czxids(queue->contenders, queue->n) && !fill_in_czxids(c, p, queue))
		return false;
	queue->view.watch = palloc(Max(queue->n, 1) * sizeof(int));
	if (p->target->own != NULL)
		zkn_info(c->session, p->target->own, &own);
	zkp_look(queue->contenders, queue->n, node != NULL ? node->name : NULL,
			 p->target->own != NULL ? own.name : NULL, &c->want, &queue->view);

	/* without what was left out we hold, but others still see us as waiting */
	p->tell = queue->view.tell || (queue->n < listed && c->want.permits > 1);
	p->alone = queue->view.self_seen && listed == 1;
	return true;
}

/*
 * Others are before us, and we do not wait.  But if all that is in our way is
 * one exclusive node, its data may say that its holder is a reader now.
 */
static Verdict
look_closer(Call *c, Place *p, const ListedQueue *queue)
{
	ZkAnswer	answer;

	if (!queue->view.may_be_soft)
		return TAKEN;
	if (!read_nodes(c, p, &queue->contenders[queue->view.watch[0]], 1, &answer))
		return LIST_AGAIN;
	return answer.rc == ZKS_NO_NODE || (answer.rc == ZKS_OK && answer.says_shared) ? GRANTED : TAKEN;
}

/*-------------------------------------------------------------------------
 * Standing in the queue
 *-------------------------------------------------------------------------
 */

/* Whether all we want is one exclusive lock, and we have nothing there yet */
static bool
wants_one(const Call *c)
{
	return c->n == 1 && c->want.mode == ZKP_EXCLUSIVE && !is_single(c) && c->places[0].target->own == NULL;
}

/*
 * Request our nodes, this one and all that come after it, and their lists; but
 * no list where the answer to the create is likely to say that nobody is before us
 */
static void
send_creates(Call *c, int first, bool parents)
{
	int			n = c->n - first;
	char	  **dirs = palloc(n * sizeof(char *));
	ZkNode	  **nodes = palloc(n * sizeof(ZkNode *));
	bool		bet;

	for (int i = 0; i < n; i++)
		dirs[i] = c->places[first + i].target->dir;

	/*
	 * who only tries has looked already, and shall not need a third round
	 * trip
	 */
	bet = wants_one(c) && c->may_wait && zkn_bet(c->session, dirs[0]);
	if (bet)
	{
		ZkSessionInfo info;

		/*
		 * The list that follows if the bet is lost needs no sync: who has
		 * answered the create there has it.
		 */
		zks_info(c->session, &info);
		c->places[first].list_epoch = info.epoch;
	}
	zks_gather(c->session);
	if (!zkn_create(c->session, dirs, n, &c->want, parents, nodes))
		raise_no_memory();
	for (int i = 0; i < n; i++)
		c->places[first + i].node = nodes[i];
	for (int i = first; i < c->n && !is_single(c) && !bet; i++)
		send_list(c, &c->places[i], false);
	pfree(dirs);
	pfree(nodes);
}

/*
 * Wait until we know what became of our nodes: GRANTED if they exist,
 * START_AGAIN if one was lost, or is in doubt, TAKEN if it is too late.  But if ZooKeeper has refused
 * one, that alone counts: it is returned in *refused, and why in *rc.
 */
static Verdict
await_creates(Call *c, int first, Place **refused, int *rc)
{
	Verdict		outcome = GRANTED;

	*refused = NULL;
	for (int i = first; i < c->n; i++)
	{
		ZkNodeInfo	node;

		await_node(c, &c->places[i], &node);
		if (node.state == ZKN_PRESENT)
			continue;
		if (node.state == ZKN_CREATING || node.state == ZKN_UNSURE)
			return TAKEN;
		outcome = START_AGAIN;
		if (node.state != ZKN_LOST && !zks_is_doubtful(node.rc))
		{
			*refused = &c->places[i];
			*rc = node.rc;
			break;
		}
	}
	return outcome;
}

/*
 * What we no longer want at this path must be known to be gone before we create a
 * single node there, or we could take one for the other.
 */
static Verdict
await_settled(Call *c, Place *p)
{
	int64		until = zkb_wait_answer_due(c->wait);
	int			refused;

	while (!zkn_is_settled(c->session, p->target->dir, &refused))
	{
		if (refused != ZKS_OK)
			zkb_raise(refused, p->target->path);
		if (is_too_late(c, p))
			return TAKEN;
		if (!await_something(c, until))
			return START_AGAIN;
	}
	return GRANTED;
}

/*
 * Create our nodes, this one and all that come after it.  GRANTED means only
 * that they exist, and that lists were requested; TAKEN, of a single node, that
 * another is there.
 */
static Verdict
join_queues(Call *c, int first)
{
	int64		until = zkb_wait_answer_due(c->wait);
	bool		parents = false;
	bool		leftovers = zkn_any_unwanted(c->session);

	for (;;)
	{
		Place	   *refused;
		int			rc = ZKS_OK;
		bool		late;
		Verdict		outcome;

		send_creates(c, first, parents);
		outcome = await_creates(c, first, &refused, &rc);
		if (refused == NULL)
			return outcome;
		if (is_single(c) && rc == ZKS_NODE_EXISTS)
		{
			(void) zkn_discard(c->session, refused->node);
			refused->node = NULL;
			return TAKEN;
		}
		if (rc == ZKS_NO_CHILDREN && leftovers)
		{
			/* a single node of ours may have been there */
			leftovers = false;
			outcome = await_settled(c, refused);
			if (outcome != GRANTED)
				return outcome;
			drop_from(c, first);
			continue;
		}
		drop_from(c, first);
		late = zks_now() >= Min(until, c->wait->deadline);
		if (rc != ZKS_NO_NODE || (late && parents))
			zkb_raise(rc, refused->target->path);

		/* there is no parent yet, or ZooKeeper has just removed it */
		if (late)
			zkb_raise_no_answer(c->wait);
		parents = true;
		ask_again(c);
	}
}

/*
 * Whether this watch can still tell us what we want to know, or has done so:
 * the event often comes right after the list that still shows the node.
 */
static bool
is_of_use(Call *c, const Blocker *blocker)
{
	ZkSessionInfo info;
	ZkWatchInfo watch;

	if (blocker->watch == NULL)
		return false;
	zks_watch_info(c->session, blocker->watch, &watch);
	zks_info(c->session, &info);
	return watch.state == ZKR_WATCH_PENDING ||
		((watch.state == ZKR_WATCH_ARMED || watch.state == ZKR_WATCH_FIRED) &&
		 watch.epoch == info.epoch);
}

static void
set_watch(Call *c, Place *p, Blocker *blocker)
{
	char	   *path = is_single(c) ? pstrdup(p->target->dir) :
	psprintf("%s/%s", p->target->dir, blocker->name);
	ZkWatch    *old = blocker->watch;

	/*
	 * set the new one first: then the old one need not be removed at the
	 * server
	 */
	blocker->watch = zks_watch(c->session, path);
	if (old != NULL)
		zks_unwatch(c->session, old);
	pfree(path);
	if (blocker->watch == NULL)
		raise_no_memory();
}

static int
compare_blockers(const void *left, const void *right)
{
	return strcmp(((const Blocker *) left)->name, ((const Blocker *) right)->name);
}

static BlockerList
list_blockers(const ListedQueue *queue)
{
	BlockerList blockers = {.n = queue->view.nwatch};

	blockers.list = palloc0(blockers.n * sizeof(Blocker));
	for (int i = 0; i < blockers.n; i++)
		blockers.list[i].name = pstrdup(queue->contenders[queue->view.watch[i]].name);
	qsort(blockers.list, blockers.n, sizeof(Blocker), compare_blockers);
	return blockers;
}

/*
 * Who is in both lists, which are sorted alike, keeps the watch, if it is still
 * of use.
 */
static void
keep_watches(Call *c, BlockerList *blockers, BlockerList *old_blockers)
{
	Blocker    *old = old_blockers->list;
	Blocker    *end = old + old_blockers->n;

	for (int i = 0; i < blockers->n; i++)
	{
		Blocker    *blocker = &blockers->list[i];

		while (old < end && compare_blockers(old, blocker) < 0)
			old++;
		if (old < end && compare_blockers(old, blocker) == 0 && is_of_use(c, old))
		{
			blocker->watch = old->watch;
			old->watch = NULL;
		}
	}
}

/*
 * Watch those whom the view names, and our own node.  Both lists hang on the
 * place, so that an error in between leaves no watch behind.
 */
static void
watch_queue(Call *c, Place *p, const ListedQueue *queue)
{
	BlockerList blockers = {0};

	if (!p->by_changes)
		blockers = list_blockers(queue);
	p->old_blockers = p->blockers;
	p->blockers = blockers;
	keep_watches(c, &p->blockers, &p->old_blockers);
	zkn_watch(c->session, p->node);
	for (int i = 0; i < p->blockers.n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (p->blockers.list[i].watch == NULL)
			set_watch(c, p, &p->blockers.list[i]);
	}
	drop_blockers(c, &p->old_blockers);
}

/*
 * One of those before us is gone or no longer blocks us, and the last list
 * showed nobody else to wait for.  Whether we hold the lock for certain.
 */
static bool
is_our_turn(Call *c, Place *p)
{
	ZkNodeInfo	node;
	ZkSessionInfo info;

	/* read the session last: if it has reconnected meanwhile, the epoch tells */
	zkn_info(c->session, p->node, &node);
	zks_info(c->session, &info);
	return node.state == ZKN_PRESENT && node.watch == ZKR_WATCH_ARMED &&
		node.watch_epoch == info.epoch && p->list_epoch == info.epoch &&
		zkb_is_fresh(&info);
}

/* What a watch on one of those before us says */
typedef enum Sign
{
	NO_SIGN,
	NOT_ANSWERED,				/* whether the watch is armed */
	OUR_TURN,
	NO_LONGER_WAITS,			/* for a place of a semaphore: it has one, or
								 * is gone */
	GONE,						/* but there may be others before us */
	DATA_CHANGED,				/* to what, a new watch tells */
	NOT_ARMED					/* the watch failed */
} Sign;

/*
 * Changes nothing: this is what a grant without a list rests on.  Whether our
 * turn is certain is asked last, since it must not be older than the sign.
 */
static Sign
read_sign(Call *c, Place *p, const ZkpView *view, const ZkWatchInfo *watch, uint32 epoch)
{
	bool		current = watch->epoch == epoch;

	switch (watch->state)
	{
		case ZKR_WATCH_PENDING:
			return NOT_ANSWERED;
		case ZKR_WATCH_ARMED:
			if (view->may_soften && watch->says_shared && current && is_our_turn(c, p))
				return OUR_TURN;
			return view->ahead > 0 && watch->says_granted ? NO_LONGER_WAITS : NO_SIGN;
		case ZKR_WATCH_FIRED:
			if (view->next && current && is_our_turn(c, p))
				return OUR_TURN;
			return view->ahead == 1 ? NO_LONGER_WAITS : GONE;
		case ZKR_WATCH_CHANGED:

			/* who waits for a place of a semaphore says only that it has it */
			return view->ahead > 0 ? NO_LONGER_WAITS : DATA_CHANGED;
		case ZKR_WATCH_FAILED:
			break;
	}
	return NOT_ARMED;
}

/*
 * Look at what the watches on those before us say now, and renew those that
 * have to be.  GRANTED means that, with what the list showed, we know that it is
 * our turn.  Raises if ZooKeeper refused a watch.
 */
static Verdict
look_at_blockers(Call *c, Place *p, const ZkpView *view, uint32 epoch)
{
	Verdict		outcome = WAIT_ON;

	for (int i = 0; i < p->blockers.n; i++)
	{
		Blocker    *blocker = &p->blockers.list[i];
		ZkWatchInfo watch;

		zks_watch_info(c->session, blocker->watch, &watch);
		switch (read_sign(c, p, view, &watch, epoch))
		{
			case OUR_TURN:
				return GRANTED;
			case NO_LONGER_WAITS:

				/*
				 * Mostly that makes us the first; from now on we watch the
				 * directory, which works even if it does not.
				 */
				p->by_changes = true;
				return LIST_AGAIN;
			case NOT_ARMED:
				if (!zks_is_doubtful(watch.rc))
					zkb_raise(watch.rc, p->target->path);
				pg_fallthrough;
			case GONE:
				outcome = LIST_AGAIN;
				break;
			case DATA_CHANGED:
				if (is_single(c))
				{
					outcome = LIST_AGAIN;	/* and may be another by now */
					break;
				}
				set_watch(c, p, blocker);
				pg_fallthrough;
			case NOT_ANSWERED:
				if (outcome == WAIT_ON)
					outcome = WAIT_FOR_ANSWER;
				break;
			case NO_SIGN:
				break;
		}
	}
	return outcome;
}

static Verdict
look_at_changes(Call *c, Place *p)
{
	ZkWatchInfo watch;

	zks_watch_info(c->session, p->changes, &watch);
	return watch.state == ZKR_WATCH_ARMED ? WAIT_ON : LIST_AGAIN;
}

/*
 * What has happened in the queue since the list, as far as our watches tell.
 * The session was looked at before: what they say can only be newer.
 */
static Verdict
look_at_watches(Call *c, Place *p, const ZkpView *view, const ZkSessionInfo *info)
{
	ZkNodeInfo	node = {.state = ZKN_ABSENT,.watch = ZKR_WATCH_ARMED};	/* a single one */
	Verdict		outcome;

	if (p->node != NULL)
		zkn_info(c->session, p->node, &node);
	if (info->state == ZKS_OVER || node.state == ZKN_LOST)
		return START_AGAIN;
	if (info->state != ZKS_CONNECTED)
		return WAIT_ON;
	if (info->epoch != p->list_epoch)
		return LIST_AGAIN;
	outcome = p->by_changes ? look_at_changes(c, p) : look_at_blockers(c, p, view, info->epoch);
	if (outcome != WAIT_ON && outcome != WAIT_FOR_ANSWER)
		return outcome;
	if (node.watch == ZKR_WATCH_FAILED || node.watch == ZKR_WATCH_CHANGED)
		return LIST_AGAIN;
	return node.watch == ZKR_WATCH_PENDING ? WAIT_FOR_ANSWER : outcome;
}

static bool
is_waiting(Verdict outcome)
{
	return outcome == WAIT_ON || outcome == WAIT_FOR_ANSWER;
}

/* Once something has happened, that is kept: to look may change the watches */
static bool
still_waits(void *arg)
{
	Place	   *p = arg;
	ZkSessionInfo info;

	zks_info(p->call->session, &info);
	if (is_waiting(p->seen))
		p->seen = look_at_watches(p->call, p, p->view, &info);
	return is_waiting(p->seen) && info.state == ZKS_CONNECTED;
}

static Verdict
search(Place *p, const ZkpView *view, Verdict outcome)
{
	p->view = view;
	p->seen = outcome;
	zkl_search(p->search);
	return p->seen;
}

static void
begin_search(Call *c, int at)
{
	Place	   *p = &c->places[at];
	ZkSearchFor what = {
		.session = c->session,.wait = c->wait,.node = p->node,
		.dir = p->target->dir,.root_len = p->target->path - p->target->dir,
		.want = &c->want,.log = &c->log,.holds = c->holds || at > 0,.go_on = still_waits,.arg = p
	};

	p->call = c;
	p->search = zkl_begin_search(&what);
}

/*
 * Sleep until something happens in the queue that the list has shown.
 */
static Verdict
await_turn(Call *c, Place *p, const ZkpView *view)
{
	int64		armed_by = zkb_deadline(zklock_operation_timeout);
	int64		began_at = zks_now();

	for (;;)
	{
		ZkSessionInfo info;
		Verdict		outcome;
		int64		until = ZKS_NEVER;
		int64		look_at = ZKS_NEVER;
		int64		search_at = ZKS_NEVER;

		zks_info(c->session, &info);
		outcome = look_at_watches(c, p, view, &info);
		if (!is_waiting(outcome))
			return outcome;
		if (info.state == ZKS_CONNECTED && zks_now() >= zkl_search_due(p->search))
		{
			outcome = search(p, view, outcome);
			zkb_slot_still_waits(&zkb_counters);
			if (!is_waiting(outcome))
				return outcome;
			continue;			/* what came with its last answer woke nobody
								 * else */
		}

		if (info.state != ZKS_CONNECTED)
			until = info.suspended_at + zklock_operation_timeout * ZKS_MS;
		else if (outcome == WAIT_FOR_ANSWER)
			until = armed_by;
		else
			armed_by = zkb_deadline(zklock_operation_timeout);

		/*
		 * The one that would tell us may be unable to; and who may not read a
		 * directory at the moment of its change is never told (ZooKeeper
		 * 3.8.4, 3.9.2).
		 */
		if (info.state == ZKS_CONNECTED && p->by_changes)
			look_at = began_at + info.timeout_ms * ZKS_MS;
		else if (info.state == ZKS_CONNECTED && view->ahead > 0)
			look_at = began_at + view->ahead * (info.timeout_ms * ZKS_MS / 4);
		if (info.state == ZKS_CONNECTED)
			search_at = zkl_search_due(p->search);

		if (zkb_wait(c->wait, c->session, Min(Min(until, look_at), search_at), ZKB_WAIT_ACQUIRE))
			continue;
		if (info.state != ZKS_CONNECTED)
			zkb_raise_cut_off(&info);
		if (zks_now() >= c->wait->deadline)
			return TAKEN;
		if (zks_now() >= look_at)
		{
			p->unprompted = true;
			return LIST_AGAIN;
		}
		if (zks_now() < until)
			continue;			/* time to search */
		zkb_raise_no_answer(c->wait);
	}
}

static void
raise_deadlock(const char *path)
{
	zkb_counters.deadlocks++;
	pgstat_report_deadlock();
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected on lock path \"%s\"", zkb_path_for_display(path)),
			 errdetail("This session holds a shared lock that another client, which requested the exclusive lock first, waits for."),
			 errhint("Release the shared lock before taking the exclusive one.")));
}

/* Others are before us: we wait here now, if we did not before */
static void
begin_to_wait(Call *c, int at)
{
	Place	   *p = &c->places[at];

	if (!c->waited)
		zkb_counters.waits++;
	c->waited = true;
	p->behind = true;
	if (c->log.began_at == 0)
		c->log.began_at = zks_now();
	if (c->waiting != p)
		zkb_slot_waits((char) c->want.mode, (char) zkl_shown_scope(p->target->scope), p->target->dir,
					   p->target->path - p->target->dir, c->log.began_at, &zkb_counters);
	c->waiting = p;
	if (p->search == NULL)
		begin_search(c, at);
}

/*
 * Others are before us.  Give up the later places, and wait here, if we may.
 */
static Verdict
stand_in_queue(Call *c, int at, ListedQueue *queue)
{
	Place	   *p = &c->places[at];
	Verdict		outcome;

	if (!c->may_wait)
		return look_closer(c, p, queue);
	if (queue->view.stuck)
		raise_deadlock(p->target->path);
	drop_from(c, at + 1);
	p->need = queue->view.need;
	p->by_changes |= queue->view.first;
	begin_to_wait(c, at);
	zks_gather(c->session);
	watch_queue(c, p, queue);
	if (p->by_changes && p->changes == NULL)
		return LIST_AGAIN;		/* this time with the watch on the directory */

	/* readers, and those who wait for a place, may all be next */
	zkn_expect_turn(c->session, p->node, queue->view.next && c->want.mode == ZKP_EXCLUSIVE);
	outcome = await_turn(c, p, &queue->view);
	zkn_expect_turn(c->session, p->node, false);
	if (outcome == TAKEN)
		zkb_counters.timeouts++;
	return outcome;
}

/* Check our node, unless that is not needed */
static void
send_check(Call *c, Place *p)
{
	int			n = 1;

	if (zkb_is_certain(&p->node, n))
		return;
	p->check = zkn_check(c->session, &p->node, &n);
	if (p->check == NULL)
		raise_no_memory();
}

/*
 * It is our turn, if our node still exists.  What the list and the events say
 * about others cannot get worse, but a server that is cut off from its leader,
 * or a leader from its quorum, would show us our own node long after it is
 * gone.  So a quorum must have confirmed it less than a third of the session
 * timeout ago: by its create, the heartbeat of who is next in line, or a check.
 * That is sent along with a list, and behind an event.
 */
static Verdict
confirm_turn(Call *c, Place *p)
{
	int64		until = zkb_wait_answer_due(c->wait);
	ZkAnswer	answer;

	if (zkb_is_certain(&p->node, 1))
		return GRANTED;
	if (p->check == NULL)
		send_check(c, p);
	if (p->check == NULL)
		return GRANTED;			/* proven just now */
	while (!zks_answered(c->session, p->check, &answer))
	{
		if (!await_something(c, until))
			return START_AGAIN;
	}
	switch (answer.rc)
	{
		case ZKS_OK:
			zkn_proven(c->session, &p->node, 1, answer.sent_at);
			return zkb_is_certain(&p->node, 1) ? GRANTED : LIST_AGAIN;
		case ZKS_NO_NODE:
			return START_AGAIN;
		default:
			if (!zks_is_doubtful(answer.rc))
				zkb_raise(answer.rc, p->target->path);
			return LIST_AGAIN;
	}
}

static void
request_list(Call *c, Place *p, bool fresh)
{
	ZkSessionInfo info;

	/* after a reconnection, the new server may lag behind */
	zks_info(c->session, &info);
	zks_gather(c->session);
	send_list(c, p, fresh || info.epoch != p->list_epoch);
	if (!p->unprompted)
		send_check(c, p);		/* else it is hardly our turn */
	p->unprompted = false;
}

/*
 * Wait for the list, and see what it means for us: GRANTED or WAIT_ON, or
 * LIST_AGAIN if that is not certain, and the leader must be asked.
 */
static Verdict
read_list(Call *c, Place *p, ListedQueue *queue)
{
	ZkAnswer	answer;
	ZkNodeInfo	node;

	if (!await_list(c, p, &answer))
	{
		if (!is_too_late(c, p))
			return START_AGAIN;
		zkb_counters.timeouts++;
		return TAKEN;
	}
	zkn_info(c->session, p->node, &node);
	if (answer.rc != ZKS_OK || node.state != ZKN_PRESENT)
		return START_AGAIN;
	if (!look_at_queue(c, p, &answer, &node, queue))
	{
		if (!await_fresh(c, zkb_wait_answer_due(c->wait)))
			return START_AGAIN;
		ask_again(c);
		return LIST_AGAIN;
	}
	/* do not give up our place because of a server that lags behind */
	if (!queue->view.self_seen)
		return p->list_fresh ? START_AGAIN : LIST_AGAIN;
	return queue->view.need == 0 ? GRANTED : WAIT_ON;
}

/* The wait is over, in one way or another */
static void
end_turn(Call *c, Place *p, Verdict outcome)
{
	c->waiting = NULL;
	zkb_slot_waits_no_more(&zkb_counters);
	if (outcome != GRANTED)
		return;
	c->in_vain = 0;				/* we get on, however many are left */
	end_search(p);
	zkl_log_end_of_wait(&c->log, true);
	c->log.began_at = 0;
}

/*
 * Whether our node, of which no list was requested, comes right after our last
 * one.  That it still exists is confirm_turn's matter, as after a list.
 */
static bool
comes_next(Call *c, Place *p)
{
	ZkNodeInfo	node;

	if (p->list != NULL || !wants_one(c))
		return false;
	zkn_info(c->session, p->node, &node);
	p->alone = node.state == ZKN_PRESENT && node.comes_next;
	return p->alone;
}

/*
 * Take our turn in one queue, where we have a node and, mostly, have requested a
 * list
 */
static Verdict
take_turn(Call *c, int at)
{
	Place	   *p = &c->places[at];
	Verdict		outcome = LIST_AGAIN;
	bool		fresh = false;
	int			need = INT_MAX;

	if (comes_next(c, p))
		outcome = confirm_turn(c, p);
	while (outcome == LIST_AGAIN)
	{
		ListedQueue queue = {0};

		if (p->list == NULL)
			request_list(c, p, fresh);
		outcome = read_list(c, p, &queue);
		if (outcome == LIST_AGAIN)
			fresh = true;
		else if (outcome == WAIT_ON)
		{
			outcome = stand_in_queue(c, at, &queue);

			/* nobody has gone, though somebody may have come */
			if (outcome == LIST_AGAIN && queue.view.need >= need)
				ask_after_pause(c, p->by_changes ? 0 : MOST_DOUBLINGS);
			need = Min(need, queue.view.need);
		}
		if (outcome == GRANTED)
			outcome = confirm_turn(c, p);
		free_queue(&queue);
		drop_list(c, p);
	}
	end_turn(c, p, outcome);
	return outcome;
}

/*-------------------------------------------------------------------------
 * A single node
 *-------------------------------------------------------------------------
 */

static void
warn_of_no_lock(Call *c, Place *p)
{
	if (!c->warned)
		ereport(WARNING,
				(errmsg("the node at lock path \"%s\" is no lock", zkb_path_for_display(p->target->path)),
				 errdetail("It is not ephemeral, so it does not go away with whoever created it."),
				 errhint("The lock can be taken once somebody has deleted the node.")));
	c->warned = true;
}

/* A directory of ours that nobody uses any longer is in the way */
static void
remove_directory(Call *c, Place *p, int version)
{
	int64		until = zkb_wait_answer_due(c->wait);
	ZkAnswer	answer;

	drop_list(c, p);
	p->list = zks_delete_directory(c->session, p->target->dir, version);
	if (p->list == NULL)
		raise_no_memory();
	while (!zks_answered(c->session, p->list, &answer))
	{
		if (!await_something(c, until))
			return;
	}
	drop_list(c, p);
	if (answer.rc == ZKS_NO_AUTH)
		zkb_raise(answer.rc, p->target->path);
}

/*
 * There is a node, which is not ours: TAKEN, or LIST_AGAIN if it has been removed, or
 * was meant to be.
 */
static Verdict
judge_occupant(Call *c, Place *p, int64 owner, int nbelow, bool is_mark, int version)
{
	if (owner != 0)
		return TAKEN;
	if (nbelow > 0)
		zkb_raise(ZKS_NOT_EMPTY, p->target->path);
	if (!is_mark)
	{
		warn_of_no_lock(c, p);
		return TAKEN;
	}
	remove_directory(c, p, version);
	ask_again(c);
	return LIST_AGAIN;
}

/*
 * Watch the node that is there, and find out what it is: TAKEN, or LIST_AGAIN if
 * it is gone.
 */
static Verdict
watch_occupant(Call *c, Place *p)
{
	int64		until = zkb_wait_answer_due(c->wait);
	ZkWatchInfo watch;
	ZkSessionInfo info;

	if (p->blockers.list == NULL)
	{
		p->blockers.list = palloc0(sizeof(Blocker));
		p->blockers.n = 1;
	}
	set_watch(c, p, &p->blockers.list[0]);
	for (;;)
	{
		zks_watch_info(c->session, p->blockers.list[0].watch, &watch);
		if (watch.state != ZKR_WATCH_PENDING)
			break;
		if (is_too_late(c, p))
			return TAKEN;
		if (!await_something(c, until))
			return START_AGAIN;
	}
	p->list_epoch = watch.epoch;
	if (watch.state == ZKR_WATCH_FAILED)
	{
		if (!zks_is_doubtful(watch.rc))
			zkb_raise(watch.rc, p->target->path);
		return await_fresh(c, until) ? LIST_AGAIN : START_AGAIN;
	}
	if (watch.state != ZKR_WATCH_ARMED)
	{
		ask_after_pause(c, FEW_DOUBLINGS);	/* the others are faster */
		return LIST_AGAIN;
	}
	zks_info(c->session, &info);
	if (watch.owner != 0 && watch.owner != info.session_id)
		c->want.seen_version = watch.version;
	return judge_occupant(c, p, watch.owner, watch.nbelow, watch.is_mark, watch.version);
}

/* Somebody else's node is there: wait until it is gone */
static Verdict
await_occupant(Call *c)
{
	Place	   *p = &c->places[0];
	ZkpView		view = {.need = 1};
	ZkWatchInfo watch;

	do
	{
		Verdict		outcome = watch_occupant(c, p);

		if (outcome != TAKEN || zks_now() >= c->wait->deadline)
			return outcome;
		c->in_vain = 0;
		p->need = 1;
		begin_to_wait(c, 0);
		outcome = await_turn(c, p, &view);
		if (outcome != LIST_AGAIN)
			return outcome;
		zks_watch_info(c->session, p->blockers.list[0].watch, &watch);
	} while (watch.state != ZKR_WATCH_FIRED);
	return LIST_AGAIN;
}

static Verdict
confirm_single(Call *c, Place *p)
{
	Verdict		outcome;

	while ((outcome = confirm_turn(c, p)) == LIST_AGAIN)
	{
		drop_list(c, p);
		if (!await_fresh(c, zkb_wait_answer_due(c->wait)))
			return START_AGAIN;
		ask_again(c);
		send_check(c, p);
	}
	drop_list(c, p);
	return outcome;
}

static Verdict
take_single(Call *c)
{
	Place	   *p = &c->places[0];
	Verdict		outcome;

	do
	{
		CHECK_FOR_INTERRUPTS();
		outcome = await_settled(c, p);
		if (outcome == GRANTED)
			outcome = join_queues(c, 0);
		if (outcome == GRANTED)
			outcome = confirm_single(c, p);
		else if (outcome == TAKEN && c->may_wait && !is_too_late(c, p))
			outcome = await_occupant(c);
		if (outcome == LIST_AGAIN && is_too_late(c, p))
			outcome = TAKEN;
	} while (outcome == LIST_AGAIN);
	if (outcome == TAKEN && c->may_wait)
		zkb_counters.timeouts++;
	end_turn(c, p, outcome);
	return outcome;
}

/* Whether it would have to wait, as look_first does it */
static Verdict
look_first_at_single(Call *c)
{
	Place	   *p = &c->places[0];
	ZkAnswer	answer;
	ZkSessionInfo info;
	Verdict		outcome = await_settled(c, p);

	if (outcome != GRANTED)
		return outcome;
	send_list(c, p, true);
	if (!await_list(c, p, &answer))
		return START_AGAIN;
	drop_list(c, p);
	if (answer.rc == ZKS_NO_NODE)
		return GRANTED;
	zks_info(c->session, &info);
	if (answer.owner == info.session_id)
		return START_AGAIN;		/* of an earlier create, which came late */
	outcome = judge_occupant(c, p, answer.owner, answer.nbelow, answer.is_mark, answer.version);
	return outcome == LIST_AGAIN ? START_AGAIN : outcome;
}

/*
 * Take all locks, in the order of the paths.  After a wait, the nodes of the
 * later paths are created again.
 */
static Verdict
take_turns(Call *c)
{
	for (int i = 0; i < c->n; i++)
	{
		Verdict		outcome = GRANTED;

		if (c->places[i].node == NULL)
			outcome = join_queues(c, i);
		if (outcome == GRANTED)
			outcome = take_turn(c, i);
		if (outcome != GRANTED)
			return outcome;
	}
	return GRANTED;
}

/*
 * Find out whether a newcomer would have to wait.  The leader is asked, since
 * a follower may still show, or not yet show, another contender.  Writes
 * nothing.
 */
static Verdict
look_first(Call *c)
{
	Verdict		outcome = GRANTED;

	/* on one connection, whatever follows a fresh list is as fresh */
	zks_gather(c->session);
	for (int i = 0; i < c->n; i++)
		send_list(c, &c->places[i], i == 0);
	for (int i = 0; i < c->n && outcome == GRANTED; i++)
	{
		Place	   *p = &c->places[i];
		ZkAnswer	answer;
		ListedQueue queue = {0};

		if (!await_list(c, p, &answer))
			return START_AGAIN;
		if (answer.rc == ZKS_NO_NODE)
			continue;
		if (!look_at_queue(c, p, &answer, NULL, &queue))
			outcome = START_AGAIN;
		else if (queue.view.need > 0)
			outcome = look_closer(c, p, &queue);
		free_queue(&queue);
	}
	for (int i = 0; i < c->n; i++)
		drop_list(c, &c->places[i]);
	return outcome == LIST_AGAIN ? START_AGAIN : outcome;
}

/*
 * Whether we still have all: the first may have been lost while we waited for
 * the rest.
 */
static bool
have_all(Call *c)
{
	ZkNode	  **nodes = palloc(c->n * sizeof(ZkNode *));
	ZkProof		proof = ZKB_PROVEN;
	ZkLoss		loss;
	bool		result;

	for (int i = 0; i < c->n; i++)
		nodes[i] = c->places[i].node;
	if (!zkb_is_certain(nodes, c->n))
		proof = zkb_prove(nodes, c->n, c->wait, zkb_wait_answer_due(c->wait));
	if (proof == ZKB_NO_ANSWER)
		zkb_raise_unanswered(c->wait);
	result = proof == ZKB_PROVEN && zkn_first_lost(c->session, nodes, c->n, &loss) < 0;
	pfree(nodes);
	return result;
}

static void
refuse_too_large(Call *c)
{
	char	  **dirs = palloc(c->n * sizeof(char *));
	size_t		bytes = 0;

	for (int i = 0; i < c->n; i++)
	{
		dirs[i] = c->places[i].target->dir;
		bytes += strlen(dirs[i]);
	}
	if (c->n > 1 && !zkn_fit(c->session, dirs, c->n, &c->want))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many ZooKeeper locks at once"),
				 errdetail("%d locks, with %zu bytes of paths, are too many for one request.",
						   c->n, bytes),
				 errhint("Take them in smaller groups, in byte order, or use shorter paths.")));
	pfree(dirs);
}

/* Get the session, and what depends on it */
static void
begin_round(Call *c)
{
	c->session = zkb_connect(c->wait);
	c->want.style = (ZkpStyle) zklock_node_style;
	c->want.closed = zklock_acl == ZKLOCK_ACL_CREATOR;
	if (c->want.closed)
		zkb_refuse_nameless();
	c->want.identity = zkb_identity_lines();
	refuse_too_large(c);
}

/* Nodes of ours are gone; perhaps since we broke a circle, and do not know it */
static void
ask_who_did_it(Call *c)
{
	ZkSessionInfo info;

	zks_info(c->session, &info);
	for (int i = 0; i < c->n && info.state != ZKS_OVER && !info.forfeited; i++)
	{
		if (c->places[i].search != NULL)
			zkl_search_found_gone(c->places[i].search);
	}
}

static ZkAcquired
acquire(Call *c)
{
	uint32		generation = zkb_generation();

	for (;;)
	{
		Verdict		outcome = GRANTED;

		begin_round(c);
		if (!c->may_wait)
			zkb_wait_limit_try(c->wait);
		for (int i = 0; i < c->n; i++)
		{
			ZkNode	   *own = c->places[i].target->own;
			ZkLoss		loss;

			if (own != NULL && (zkb_generation() != generation ||
								zkn_first_lost(c->session, &own, 1, &loss) == 0))
				return ZKL_OWN_LOST;
		}
		if (!c->may_wait)
			outcome = is_single(c) ? look_first_at_single(c) : look_first(c);
		if (outcome == GRANTED)
			outcome = is_single(c) ? take_single(c) : take_turns(c);
		if (outcome == GRANTED && c->n > 1 && !have_all(c))
			outcome = START_AGAIN;
		if (outcome == GRANTED)
			return ZKL_HELD;
		if (outcome == START_AGAIN)
			ask_who_did_it(c);
		drop_from(c, 0);
		if (outcome == TAKEN)
			return ZKL_TAKEN;
		ask_again(c);
	}
}

/* An error that ends a wait says for what */
static void
tell_where_we_wait(void *arg)
{
	Call	   *c = arg;

	if (c->waiting == NULL)
		return;
	if (c->want.mode == ZKP_SEMAPHORE)
		errcontext("while waiting for a place of semaphore \"%s\"", zkb_path_for_display(c->waiting->target->path));
	else
		errcontext("while waiting for lock path \"%s\"", zkb_path_for_display(c->waiting->target->path));
}

/*
 * Who holds us up, as far as our watches have read it, for an error that ends the
 * wait; or NULL.  Asks nothing.
 */
static char *
tell_blockers(void *arg)
{
	Call	   *c = arg;
	Place	   *p = c->waiting;
	StringInfoData text;

	if (p == NULL)
		return NULL;
	initStringInfo(&text);
	for (int i = 0; i < p->blockers.n && i < MOST_TOLD; i++)
	{
		char		data[ZKS_WATCHED_KEPT];
		int64		owner;
		int			len;
		ZkpData		says;

		if (p->blockers.list[i].watch == NULL)
			continue;
		len = zks_watched_data(c->session, p->blockers.list[i].watch, data, &owner);
		if (len < 0 || owner == 0)
			continue;
		zkp_read_data(data, len, &says);
		appendStringInfo(&text, "%s%s", text.len > 0 ? ", " : "",
						 zkb_who(says.identity, says.identity_len, 0, owner));
	}
	if (text.len == 0)
		return NULL;
	return psprintf(p->need == 1 ? "It is held by %s." : "Before this session in the queue, among others: %s.", text.data);
}

ZkAcquired
zkl_acquire(ZkTarget *targets, int n, ZkpMode mode, int32 permits, bool may_wait, bool holds,
			ZkWait *wait)
{
	Call		c = {.may_wait = may_wait,.holds = holds,.wait = wait,.n = n};
	volatile ZkAcquired outcome = ZKL_TAKEN;
	ErrorContextCallback context;

	c.want.mode = mode;
	c.want.permits = permits;
	c.places = palloc0(n * sizeof(Place));
	for (int i = 0; i < n; i++)
		c.places[i].target = &targets[i];
	wait->tell = tell_blockers;
	wait->arg = &c;
	context.callback = tell_where_we_wait;
	context.arg = &c;
	context.previous = error_context_stack;
	error_context_stack = &context;
	PG_TRY();
	{
		outcome = acquire(&c);
	}
	PG_CATCH();
	{
		/*
		 * A FATAL error does not get here; it ends the process, and with it
		 * the session and all its nodes.
		 */
		wait->tell = NULL;
		wait->arg = NULL;
		drop_from(&c, 0);
		if (zkb_peek() != NULL)
			zks_send(zkb_peek());
		zkb_slot_waits_no_more(&zkb_counters);
		zkl_log_end_of_wait(&c.log, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	error_context_stack = context.previous;
	wait->tell = NULL;
	wait->arg = NULL;
	zkl_log_end_of_wait(&c.log, false); /* a granted one has been logged */

	zks_send(c.session);
	for (int i = 0; i < n; i++)
	{
		Place	   *p = &c.places[i];

		if (outcome == ZKL_HELD)
		{
			ZkNodeInfo	node;

			zkn_info(c.session, p->node, &node);
			if (p->tell)
				zkn_tell_granted(c.session, p->node);
			if (wants_one(&c) && p->alone)
				zkn_granted(c.session, p->node);
			targets[i].grant.node = p->node;
			targets[i].grant.token = node.czxid;
			strlcpy(targets[i].grant.name, node.name, sizeof(targets[i].grant.name));
			p->node = NULL;
			drop_place(&c, p);
		}
	}
	pfree(c.places);
	return outcome;
}

bool
zkl_is_high(const char *name)
{
	ZkpContender contender;

	return zkp_parse(name, &contender) &&
		(contender.seq > ZKP_SEQ_HIGH || contender.seq < 0);
}

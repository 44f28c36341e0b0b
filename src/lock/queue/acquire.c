/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Taking locks: the course of a call, queue after queue.
 *
 * The create of our node and a list of its directory are sent together.
 * Answers come in the order of the requests, so the list shows our place in
 * the queue, and a free lock costs one round trip.  A session that takes a lock
 * again and again mostly leaves out the list: its new node's number tells that
 * nobody came in between (turn.c).  If others are ahead of us, we wait for them
 * (blockers.c).
 *
 * The nodes of several locks are created in one ZooKeeper transaction, so that
 * two such calls have the same order everywhere.  We wait for the first lock,
 * in the order of the paths, that somebody else has; the nodes after it are
 * given up meanwhile, so that nobody waits for a lock that we do not hold yet
 * either.  A waiter holds only locks that come before, so such calls cannot
 * deadlock.
 *
 * Each round is bound to one session.  When that ends, or somebody deletes a
 * node of ours, a new round begins, at the end of the queues.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "pgstat.h"
#include "utils/memutils.h"

#include "backend/encoding.h"
#include "backend/errors.h"
#include "backend/node_identity.h"
#include "backend/path.h"
#include "backend/settings.h"
#include "backend/slots.h"
#include "place.h"

/*-------------------------------------------------------------------------
 * The queue
 *-------------------------------------------------------------------------
 */

/*
 * Where sequence numbers do not tell the order, the creating transactions do.
 * False if somebody in the list may have been replaced by one whom it does not
 * show: a reader in the place of a writer.
 */
static bool
put_in_order(Call *c, Place *p, ZkpContender *contenders, int *n)
{
	ZkSeenQueue seen;

	zkl_take_contenders(&seen, p->target->dir, contenders, *n);
	if (!zkl_read_others(c, p, &seen, 1) || seen.replaced)
		return false;
	*n = seen.n;
	for (int i = 0; i < seen.n; i++)
	{
		if (seen.list[i].rc != ZKS_OK)
			zkb_raise(seen.list[i].rc, p->target->path);
		(void) zkp_parse(seen.list[i].name.name, &contenders[i]);
		contenders[i].czxid = seen.list[i].name.czxid;
	}
	return true;
}

/* We remember of this many directories, at most, that they were looked at */
#define DIRECTORIES_LOOKED_AT	1024

/*
 * Children that have a number, and are no contenders, may be another library's
 * locks, which neither wait for us nor we for them.  Or they may be locks below this
 * one.  The nodes tell, so they are asked for, once a session and directory.  A single
 * node is ephemeral, too, but zklock's own has been written to.
 */
static void
warn_of_strangers(Call *c, Place *p, const ZkAnswer *list)
{
	static uint64 looked_at[DIRECTORIES_LOOKED_AT];
	const char *dir = p->target->dir;
	uint64		hash = hash_bytes_extended((const unsigned char *) dir, (int) strlen(dir), 0);
	uint64	   *entry = &looked_at[hash % DIRECTORIES_LOOKED_AT];
	ZkSeenQueue strangers[ZKS_STRANGERS];

	if (*entry == hash)
		return;
	for (int i = 0; i < list->nstrangers; i++)
	{
		zkl_take_name(&strangers[i], dir, list->strangers[i]);
		strangers[i].list[0].keeps = 0;
	}
	if (!zkl_read_others(c, p, strangers, list->nstrangers))
		return;
	*entry = hash;
	for (int i = 0; i < list->nstrangers; i++)
	{
		const ZkSeenContender *node = &strangers[i].list[0];
		const char *name = list->strangers[i];

		if (node->rc != ZKS_OK || node->stat.owner == 0 || node->stat.version > 0)
			continue;
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lock path \"%s\" has a node of an unknown kind", zkb_path_for_display(p->target->path)),
				 errdetail("zklock does not wait for node \"%s\", and the client that created it might not wait for zklock.",
						   zkb_from_utf8_escaped(name, strlen(name), true)),
				 errhint("If it is another library's lock, both might be held at the same time. Use only one kind of lock at each path.")));
		return;
	}
}

static bool
judge(Call *c, Place *p, const ZkAnswer *answer, const ZkNodeInfo *node)
{
	ZkpContender *contenders = palloc_extended(Max(answer->nchildren, 1) * sizeof(ZkpContender),
											   MCXT_ALLOC_HUGE);
	ZkNodeInfo	own;
	int			listed = zkp_queue(answer->children, answer->nchildren, c->want.mode, contenders);
	int			n = zkn_leave_out_unwanted(c->session, p->target->dir, contenders, listed);

	if (zkp_needs_czxids(contenders, n) && !put_in_order(c, p, contenders, &n))
		return false;
	if (p->target->own != NULL)
		zkn_info(c->session, p->target->own, &own);
	zkp_look(contenders, n, node != NULL ? node->name : NULL,
			 p->target->own != NULL ? own.name : NULL, &c->want, &p->view);
	for (int i = 0; i < p->view.nwatch; i++)
		p->nearest[i] = contenders[p->view.watch[i]].name;

	/* without what was left out we hold, but others still see us as waiting */
	p->view.tell |= n < listed && c->want.permits > 1;
	p->alone = p->view.self_seen && listed == 1;
	if (answer->nstrangers > 0)
		warn_of_strangers(c, p, answer);
	return true;
}

/*
 * Work out what this list means for us, or, with node NULL, for a newcomer.
 * False if that is not certain, and the list must be read again.
 */
static bool
look_at_queue(Call *c, Place *p, const ZkAnswer *answer, const ZkNodeInfo *node)
{
	MemoryContext old;
	bool		certain;

	/* a node of ours that is gone since then would look like another's */
	if (zkn_leftovers(c->session, p->target->dir) < p->leftovers)
		return false;
	MemoryContextReset(c->listed);
	old = MemoryContextSwitchTo(c->listed);
	certain = judge(c, p, answer, node);
	MemoryContextSwitchTo(old);
	return certain;
}

/*
 * Others are before us, and we do not wait.  But if all that is in our way is
 * one exclusive node, its data may say that its holder is a reader now.  That one had
 * the lock alone then, so it is the first.
 */
static Verdict
look_closer(Call *c, Place *p)
{
	ZkSeenQueue seen;
	const ZkSeenContender *writer;

	if (!p->view.may_soften || p->view.watch[0] > 0)
		return TAKEN;
	zkl_take_name(&seen, p->target->dir, p->nearest[0]);
	if (!zkl_read_others(c, p, &seen, 1))
		return LIST_AGAIN;
	writer = seen.list;
	if (writer->rc != ZKS_OK && writer->rc != ZKS_NO_NODE && writer->rc != ZKS_NO_AUTH)
		zkb_raise(writer->rc, p->target->path);
	return writer->rc == ZKS_NO_NODE || writer->says.shared ? GRANTED : TAKEN;
}

/*-------------------------------------------------------------------------
 * Our turn in it
 *-------------------------------------------------------------------------
 */

static void
raise_deadlock(const char *path)
{
	zkb_counters.deadlocks++;
	pgstat_report_deadlock();
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected on lock path \"%s\"", zkb_path_for_display(path)),
			 errdetail("Another client, which requested the exclusive lock first, waits for the shared lock that this session holds."),
			 errhint("Release the shared lock before taking the exclusive one.")));
}

/*
 * Others are before us.  Give up the later places, and wait here, if we may.
 */
static Verdict
stand_in_queue(Call *c, int at)
{
	Place	   *p = &c->places[at];
	Verdict		outcome;

	if (!c->may_wait)
		return look_closer(c, p);
	if (p->view.stuck)
		raise_deadlock(p->target->path);
	zkl_drop_from(c, at + 1);
	p->by_changes |= p->view.nwatch == 0;
	zkl_begin_to_wait(c, at);
	zks_gather(c->session);
	zkl_watch_queue(c, p);
	if (p->by_changes && p->changes == NULL)
		return LIST_AGAIN;		/* this time with the watch on the directory */

	/* readers, and those who wait for a place, may all be next */
	zkn_expect_turn(c->session, p->node, p->view.next && c->want.mode == ZKP_EXCLUSIVE);
	outcome = zkl_await_turn(c, p);
	zkn_expect_turn(c->session, p->node, false);
	return outcome;
}

/*
 * Wait for the list, and see what it means for us: GRANTED or WAIT_ON, or
 * LIST_AGAIN if that is not certain, and the leader must be asked.
 */
static Verdict
read_list(Call *c, Place *p)
{
	ZkAnswer	answer;
	ZkNodeInfo	node;

	if (!zkl_await_list(c, p, &answer))
		return zkl_is_too_late(c, p) ? TAKEN : START_AGAIN;
	zkn_info(c->session, p->node, &node);
	if (answer.rc != ZKS_OK || node.state != ZKN_PRESENT)
		return START_AGAIN;
	if (!look_at_queue(c, p, &answer, &node))
	{
		if (!zkl_await_fresh(c, zkb_wait_answer_due(c->wait)))
			return START_AGAIN;
		zkl_ask_again(c, MOST_DOUBLINGS);
		return LIST_AGAIN;
	}
	/* do not give up our place because of a server that lags behind */
	if (!p->view.self_seen)
		return p->list_fresh ? START_AGAIN : LIST_AGAIN;
	return p->view.need == 0 ? GRANTED : WAIT_ON;
}

/*
 * Whether our node, of which no list was requested, comes right after our last
 * one.  That it still exists is zkl_confirm_turn's matter, as after a list.
 */
static bool
comes_next(Call *c, Place *p)
{
	ZkNodeInfo	node;

	if (p->list != NULL || !zkl_wants_one(c))
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
		outcome = zkl_confirm_turn(c, at, 1);
	while (outcome == LIST_AGAIN)
	{
		if (p->list == NULL)
			/* after a reconnection, the new server may lag behind */
			zkl_send_list(c, p, fresh || zks_info(c->session).epoch != p->list_epoch);
		outcome = read_list(c, p);
		if (outcome == LIST_AGAIN)
			fresh = true;
		else if (outcome == WAIT_ON)
		{
			outcome = stand_in_queue(c, at);

			/* nobody has gone, though somebody may have come */
			if (outcome == LIST_AGAIN && p->view.need >= need)
				zkl_ask_again(c, p->by_changes ? 0 : MOST_DOUBLINGS);
			need = Min(need, p->view.need);
		}
		if (outcome == GRANTED)
			outcome = zkl_confirm_turn(c, at, 1);
		zkl_drop_list(c, p);
	}
	zkl_end_turn(c, p, outcome);
	return outcome;
}

/*-------------------------------------------------------------------------
 * The call
 *-------------------------------------------------------------------------
 */

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
			outcome = zkl_join_queues(c, i);
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
	Verdict		outcome = zkl_is_single(c) ? zkl_await_settled(c, &c->places[0]) : GRANTED;

	if (outcome != GRANTED)
		return outcome;

	/* on one connection, whatever follows a fresh list is as fresh */
	zks_gather(c->session);
	for (int i = 0; i < c->n; i++)
		zkl_send_list(c, &c->places[i], i == 0);
	for (int i = 0; i < c->n && outcome == GRANTED; i++)
	{
		Place	   *p = &c->places[i];
		ZkAnswer	answer;

		if (!zkl_await_list(c, p, &answer))
			return START_AGAIN;
		if (answer.rc == ZKS_NO_NODE)
			continue;
		if (zkl_is_single(c))
			outcome = zkl_look_at_single(c, p, &answer.stat);
		else if (!look_at_queue(c, p, &answer, NULL))
			outcome = START_AGAIN;
		else if (p->view.need > 0)
			outcome = look_closer(c, p);
	}
	for (int i = 0; i < c->n; i++)
		zkl_drop_list(c, &c->places[i]);
	return outcome == LIST_AGAIN ? START_AGAIN : outcome;
}

static void
refuse_too_large(Call *c)
{
	ZkPatience	patience = zkl_patience(c, NULL);
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

	/* what nobody wants any longer is about to go */
	patience.raises = false;
	while ((bytes = zkn_path_bytes(c->session, dirs, c->n, &c->want)) > ZKN_PATHS_MAX &&
		   zkn_unwanted(c->session, NULL, NULL) && zkb_wait_on(&patience))
		;
	if (bytes > ZKN_PATHS_MAX && patience.waited != ZKB_SESSION_OVER)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many ZooKeeper locks"),
				 errdetail("The paths of this session's nodes in ZooKeeper would have %zu bytes; the maximum is %d.",
						   bytes, ZKN_PATHS_MAX),
				 errhint("Use shorter paths, or release some of the locks first.")));
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

static bool
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
				return false;
		}
		if (!c->may_wait)
			outcome = look_first(c);
		if (outcome == GRANTED)
			outcome = zkl_is_single(c) ? zkl_take_single(c) : take_turns(c);

		/* the first may have been lost while we waited for the rest */
		if (outcome == GRANTED && c->n > 1)
			outcome = zkl_confirm_turn(c, 0, c->n);
		if (outcome == GRANTED)
			return true;
		zkl_drop_from(c, 0);
		if (outcome == TAKEN)
		{
			zkb_counters.timeouts += c->may_wait;
			return false;
		}
		zkl_ask_again(c, MOST_DOUBLINGS);
	}
}

static void
take_grants(Call *c)
{
	for (int i = 0; i < c->n; i++)
	{
		Place	   *p = &c->places[i];
		ZkGrant    *grant = &p->target->grant;
		ZkNodeInfo	node;

		zkn_info(c->session, p->node, &node);
		if (p->view.tell)
			zkn_tell_granted(c->session, p->node);
		if (zkl_wants_one(c) && p->alone)
			zkn_granted(c->session, p->node);
		grant->node = p->node;
		grant->token = node.czxid;
		strlcpy(grant->name, node.name, sizeof(grant->name));
		p->node = NULL;
	}
}

/* An error that ends a wait says for what */
static void
tell_where_we_wait(void *arg)
{
	Call	   *c = arg;

	if (c->waiting == NULL)
		return;
	errcontext(c->want.mode == ZKP_SEMAPHORE ?
			   "while waiting for a place of semaphore \"%s\"" : "while waiting for lock path \"%s\"",
			   zkb_path_for_display(c->waiting->target->path));
}

bool
zkl_acquire(ZkTarget *targets, int n, ZkpMode mode, int32 permits, bool may_wait, bool holds,
			ZkWait *wait)
{
	Call		c = {.may_wait = may_wait,.holds = holds,.wait = wait,.n = n};
	volatile bool held = false;
	ErrorContextCallback context;

	c.want.mode = mode;
	c.want.permits = permits;
	c.places = palloc0(n * sizeof(Place));
	c.listed = AllocSetContextCreate(CurrentMemoryContext, "zklock queue", ALLOCSET_SMALL_SIZES);
	for (int i = 0; i < n; i++)
	{
		c.places[i].call = &c;
		c.places[i].target = &targets[i];
	}
	wait->tell = zkl_tell_blockers;
	wait->arg = &c;
	context.callback = tell_where_we_wait;
	context.arg = &c;
	context.previous = error_context_stack;
	error_context_stack = &context;
	PG_TRY();
	{
		held = acquire(&c);
		if (held)
			take_grants(&c);
	}
	PG_FINALLY();
	{
		/*
		 * A FATAL error does not get here; it ends the process, and with it
		 * the session and all its nodes.
		 */
		if (c.waiting != NULL && zks_now() >= wait->lock_deadline)
			zkb_counters.timeouts++;
		wait->tell = NULL;
		wait->arg = NULL;
		if (c.reader != NULL)
			zkl_end_reading(c.reader);
		zkl_drop_from(&c, 0);
		if (zkb_peek() != NULL)
			zks_send(zkb_peek());
		zkb_slot_waits_no_more();
		zkl_log_end_of_wait(&c.log, false); /* a granted one has been logged */
	}
	PG_END_TRY();
	error_context_stack = context.previous;
	MemoryContextDelete(c.listed);
	pfree(c.places);
	return held;
}

/*-------------------------------------------------------------------------
 *
 * place.c
 *	  Our places: their nodes, from the create to the proof that they are
 *	  still there, and what is asked about them, until it is answered.
 *
 * What is under way hangs on the place, so that an error can undo it.  An answer
 * that leaves everything open, or is of no use, is asked for again, with pauses if need be.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "backend/errors.h"
#include "backend/settings.h"
#include "place.h"

/*
 * An answer is asked for again at once this many times, then after pauses,
 * each twice as long as the one before, up to a second.
 */
#define AT_ONCE			3
#define FIRST_PAUSE_MS	4
#define FORGOTTEN_MS	10000

void
zkl_drop_list(Call *c, Place *p)
{
	if (p->list != NULL)
		zks_request_free(c->session, p->list);
	p->list = NULL;
}

/* Leave nothing behind, except a node that was granted */
static void
drop_place(Call *c, Place *p)
{
	zkl_end_search(&p->search); /* before the node goes */
	zkl_drop_list(c, p);
	zkl_drop_blockers(c, p);
	if (p->changes != NULL)
		zks_unwatch(c->session, p->changes, true);
	p->changes = NULL;
	if (p->node != NULL)
		(void) zkn_discard(c->session, p->node);
	p->node = NULL;
	p->by_changes = p->alone = false;
}

/* Drop this place and all that come after it */
void
zkl_drop_from(Call *c, int first)
{
	for (int i = first; i < c->n; i++)
		drop_place(c, &c->places[i]);
}

/*-------------------------------------------------------------------------
 * Answers
 *-------------------------------------------------------------------------
 */

/*
 * The answer was of no use, so we must ask again.  That happens when things
 * change meanwhile; but a server that goes on like this must neither hold up a
 * call that may not wait, nor be asked without a pause.
 */
void
zkl_ask_again(Call *c, int doublings)
{
	int64		now = zks_now();
	int64		until;

	CHECK_FOR_INTERRUPTS();
	if (now >= c->wait->try_until ||
		(c->unclear_since != 0 && now - c->unclear_since >= zklock_operation_timeout * ZKS_MS))
		zkb_raise_no_use(c->wait);
	if (now - c->asked_again_at > FORGOTTEN_MS * ZKS_MS)
		c->in_vain = 0;
	c->asked_again_at = now;
	if (c->in_vain++ < AT_ONCE)
		return;
	until = zkb_deadline(FIRST_PAUSE_MS << Min(c->in_vain - AT_ONCE - 1, doublings));
	zkb_sleep(c->wait, c->session, Min(until, c->wait->try_until), ZKB_WAIT_ACQUIRE);
	if (zks_now() >= c->wait->try_until)
		zkb_raise_no_use(c->wait);
}

static bool
has_time(void *arg)
{
	Place	   *p = arg;

	return !zkl_is_too_late(p->call, p);
}

/*
 * For an answer that ZooKeeper owes us from now on.  It is of no use (ZKB_NO_REASON)
 * once it is too late at this place, if one is given.
 */
ZkPatience
zkl_patience(Call *c, Place *p)
{
	ZkPatience	patience = {
		.session = c->session,.wait = c->wait,.event = ZKB_WAIT_ACQUIRE,
		.until = zkb_wait_answer_due(c->wait),.raises = true,.go_on = p != NULL ? has_time : NULL,.arg = p
	};

	return patience;
}

/*
 * Wait until ZooKeeper's answers can be believed; false if the session is over
 */
bool
zkl_await_fresh(Call *c, int64 until)
{
	ZkPatience	patience = zkl_patience(c, NULL);
	ZkSessionInfo info;

	patience.until = until;
	do
		info = zks_info(c->session);
	while (!zks_is_fresh(&info) && zkb_wait_on(&patience));
	return patience.waited == ZKB_CAME;
}

void
zkl_send_list(Call *c, Place *p, bool fresh)
{
	zkl_drop_list(c, p);
	p->list_fresh = fresh;
	p->leftovers = zkn_leftovers(c->session, p->target->dir);
	p->list = zkb_sent(zkl_is_single(c) ? zks_read(c->session, p->target->dir, true, ZKS_DATA_KEPT) :
					   p->by_changes ?
					   zks_list_and_watch(c->session, p->target->dir, fresh, &p->changes) :
					   zks_list(c->session, p->target->dir, fresh, false));
}

/*
 * Whether the time is up for a waiter that was behind others a moment ago, and
 * is only looking again.  Somebody else was ahead all that time.
 */
bool
zkl_is_too_late(Call *c, Place *p)
{
	return c->waiting == p && zks_info(c->session).state == ZKS_CONNECTED && zks_now() >= c->wait->deadline;
}

/*
 * Wait for the lock's children.  A list that was lost with its connection is
 * requested again, fresh, since the next server may lag behind.  Returns false
 * when the session is over, or time is up; ZKS_NO_NODE is a valid answer.
 */
bool
zkl_await_list(Call *c, Place *p, ZkAnswer *answer)
{
	ZkPatience	patience = zkl_patience(c, p);

	for (int asked = 1;; asked++)
	{
		ZkSessionInfo info;

		if (zkb_await_answer(&patience, p->list, answer) != ZKB_CAME)
			return false;
		if (answer->rc == ZKS_OK || answer->rc == ZKS_NO_NODE)
		{
			/* an answer that lay unread while we were stopped proves nothing */
			info = zks_info(c->session);
			if (zks_is_fresh(&info))
			{
				c->wait->said = ZKS_OK;
				p->list_epoch = answer->epoch;
				return true;
			}
		}
		else
			zkl_must_be_open(c, p, answer->rc);
		if (zks_is_busy(answer->rc))
			patience.until = zkb_wait_answer_due(c->wait);
		if (!zkl_await_fresh(c, patience.until))
			return false;
		CHECK_FOR_INTERRUPTS();

		/* the first repeat, after a lost connection, needs no pause */
		if (asked > 1)
			zkl_ask_again(c, MOST_DOUBLINGS);
		zkl_send_list(c, p, true);
	}
}

/*
 * Read others' nodes.  Returns false if this connection cannot deliver them, or it is
 * too late.
 */
bool
zkl_read_others(Call *c, Place *p, ZkSeenQueue *queues, int n)
{
	static const ZkDepth all = {.first = INT_MAX,.most = INT_MAX};
	bool		answered;
	ZkSessionInfo info;

	if (c->reader == NULL)
		c->reader = MemoryContextAllocZero(GetMemoryChunkContext(c->places), sizeof(ZkReader));
	zkl_begin_reading(c->reader, zkl_patience(c, p));
	answered = zkl_read_queues(c->reader, queues, n, &all);
	zkl_end_reading(c->reader);
	if (!answered && zks_is_open(c->wait->said))
		zkl_must_be_open(c, p, c->wait->said);

	/* answers that lay unread while we were stopped prove nothing */
	info = zks_info(c->session);
	return answered && zks_is_fresh(&info);
}

/*-------------------------------------------------------------------------
 * Nodes
 *-------------------------------------------------------------------------
 */

/* Whether all we want is one exclusive lock, and we have nothing there yet */
bool
zkl_wants_one(const Call *c)
{
	return c->n == 1 && c->want.mode == ZKP_EXCLUSIVE && !zkl_is_single(c) && c->places[0].target->own == NULL;
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
	 * zk_try_lock has just listed the queue; do not cost it a third round
	 * trip
	 */
	bet = zkl_wants_one(c) && c->may_wait && zkn_bet(c->session, dirs[0]);
	if (bet)
	{
		/*
		 * The list that follows if the bet is lost needs no sync: who has
		 * answered the create there has it.
		 */
		c->places[first].list_epoch = zks_info(c->session).epoch;
	}
	zks_gather(c->session);
	if (!zkn_create(c->session, dirs, n, &c->want, parents, nodes))
		zkb_raise_no_memory();
	for (int i = 0; i < n; i++)
		c->places[first + i].node = nodes[i];
	for (int i = first; i < c->n && !zkl_is_single(c) && !bet; i++)
		zkl_send_list(c, &c->places[i], false);
	pfree(dirs);
	pfree(nodes);
}

/*
 * Wait until we know what became of our nodes: GRANTED if they exist,
 * START_AGAIN if one was lost, or that is not known, TAKEN if it is too late.  But if ZooKeeper has refused
 * one, that alone counts: it is returned in *refused, and why in *rc.
 */
static Verdict
await_creates(Call *c, int first, Place **refused, int *rc)
{
	Verdict		outcome = GRANTED;

	*refused = NULL;
	for (int i = first; i < c->n; i++)
	{
		ZkPatience	patience = zkl_patience(c, &c->places[i]);
		ZkNodeInfo	node;

		if (zkb_await_node(&patience, c->places[i].node, &node) == ZKB_SESSION_OVER)
			node.state = ZKN_LOST;	/* the thread is about to say so */
		if (node.state == ZKN_PRESENT)
			continue;
		if (node.state == ZKN_CREATING || node.state == ZKN_UNSURE)
			return TAKEN;
		outcome = START_AGAIN;
		if (node.state == ZKN_LOST)
			continue;
		if (zks_is_doubtful(node.rc))
			zkl_must_be_open(c, &c->places[i], node.rc);
		else
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
Verdict
zkl_await_settled(Call *c, Place *p)
{
	ZkPatience	patience = zkl_patience(c, p);
	int			refused;

	while (zkn_unwanted(c->session, p->target->dir, &refused))
	{
		if (refused != ZKS_OK)
			zkb_raise(refused, p->target->path);
		if (!zkb_wait_on(&patience))
			return patience.waited == ZKB_NO_REASON ? TAKEN : START_AGAIN;
	}
	return GRANTED;
}

/*
 * Create our nodes, this one and all that come after it.  GRANTED means only
 * that they exist, and that lists were requested; TAKEN, of a single node, that
 * another is there.
 */
Verdict
zkl_join_queues(Call *c, int first)
{
	int64		until = zkb_wait_answer_due(c->wait);
	bool		parents = false;
	bool		leftovers = zkn_unwanted(c->session, NULL, NULL);

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
		if (zkl_is_single(c) && rc == ZKS_NODE_EXISTS)
		{
			(void) zkn_discard(c->session, refused->node);
			refused->node = NULL;
			return TAKEN;
		}
		if (rc == ZKS_NO_CHILDREN && leftovers)
		{
			/* a single node of ours may have been there */
			leftovers = false;
			outcome = zkl_await_settled(c, refused);
			if (outcome != GRANTED)
				return outcome;
			zkl_drop_from(c, first);
			continue;
		}
		zkl_drop_from(c, first);
		if (zks_is_busy(rc))
		{
			zkl_must_be_open(c, refused, rc);
			until = zkb_wait_answer_due(c->wait);
		}
		late = zks_now() >= Min(until, c->wait->deadline);
		if (!zks_is_busy(rc) && (rc != ZKS_NO_NODE || (late && parents)))
			zkb_raise(rc, refused->target->path);

		/* there is no parent yet, or ZooKeeper has just removed it */
		if (late)
			zkb_raise_no_answer(c->wait);
		parents |= rc == ZKS_NO_NODE;
		zkl_ask_again(c, MOST_DOUBLINGS);
	}
}

/*
 * It is our turn at these places, if our nodes still exist.  What the lists and the
 * events say about others cannot get worse, but a server that is cut off from its
 * leader, or a leader from its quorum, would show us our own nodes long after they are
 * gone.  So a quorum must have confirmed them less than a third of the session
 * timeout ago: by their create, the heartbeat of who is next in line, or a check.
 */
Verdict
zkl_confirm_turn(Call *c, int first, int n)
{
	ZkNode	  **nodes = palloc(n * sizeof(ZkNode *));
	ZkProof		proof;

	for (int i = 0; i < n; i++)
		nodes[i] = c->places[first + i].node;
	proof = zkb_prove(nodes, n, ZKS_GRANT, 0, c->wait, zkb_wait_answer_due(c->wait));
	pfree(nodes);
	if (proof == ZKB_NO_ANSWER && zks_now() >= c->wait->deadline && zks_info(c->session).state == ZKS_CONNECTED)
		return TAKEN;
	if (proof == ZKB_NO_ANSWER)
		zkb_raise_unanswered(c->wait, c->session);
	return proof == ZKB_PROVEN ? GRANTED : START_AGAIN;
}

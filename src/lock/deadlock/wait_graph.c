/*-------------------------------------------------------------------------
 *
 * wait_graph.c
 *	  Who waits for whom, and whether that is a cycle.
 *
 * One that waits for a lock needs all of those before it to go that conflict,
 * so it is stuck if any of them is.  The same is true of a party, which needs
 * all that it waits for.  One that waits for a semaphore needs only so many of
 * those before it to go that fewer than its permits are left, so it is stuck
 * if that many are: no single wait for a semaphore tells anything, and a
 * cycle of waits may well be one that its members get out of.
 *
 * Therefore we do not look for cycles first.  We suppose that everybody who
 * waits is stuck, and take away who is not: whoever waits for nothing gives
 * back what it has, which lets others go on, and so forth.  What is left is
 * the greatest set in which everyone is stuck because of others in it: none of
 * them proceeds unless one gives up, and all others can.  (The least such set
 * is empty: being stuck has no first cause.)
 *
 * Each of these waits for another of them, so there are cycles; but one may
 * be stuck behind a cycle without being part of it, and giving up would not
 * help.  So a party is told only if a way leads from it through such waits
 * back to itself.  Its contender that waits is itself in this respect: it goes
 * if the party gives up.  Any such way is a real cycle.  Each wait on it is
 * one that keeps the waiter stuck; for a semaphore, together with others
 * before it that are stuck, which become evidence, too.
 *
 * The way leads through somebody who only waits, too, such as a writer between
 * readers: if that one gives up, the reader behind it can go on.  But where two
 * wait for the same holder, the first of them is a bystander of the second's
 * cycle (in a queue that many stand in, there is always one): the second has
 * to wait for the holder anyway, and for all that the first waits for.  So
 * those who wait count only where those who hold would not be enough, or if
 * they wait for one that the second does not.
 *
 * Some of the stuck need not lead to a cycle with a party in it: two that
 * nobody knows can be a tie, and each wait for the other.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "wait_graph.h"

/* The first stuck contender of some kind, and the first of another owner */
typedef struct First
{
	ZkGraphContender *one;
	ZkGraphContender *other;
} First;

/* The stuck contenders in the first part of a queue */
typedef struct Before
{
	int			n;
	int			ngranted;
	First		first[2][2];	/* by whether they wait, and are shared */
} Before;

/* The search for a way from self to itself, over the fewest parties */
typedef struct Search
{
	ZkGraph    *g;
	ZkGraphParty *self;
	ZkGraphNode *first;			/* to be followed, and the last of these */
	ZkGraphNode *last;
	ZkGraphNode *end;			/* of the way, before it is at self again */
} Search;

static void
breathe(const ZkGraph *g)
{
	if (g->breathe != NULL)
		g->breathe();
}

static void
prepare_node(ZkGraphNode *node, ZkGraphKind kind, bool stuck)
{
	memset(node, 0, sizeof(*node));
	node->kind = kind;
	node->stuck = stuck;
}

static bool
same_owner(const ZkGraphContender *a, const ZkGraphContender *b)
{
	return a->owner == b->owner && a->owner != 0;
}

static void
prepare_queue(ZkGraph *g, int queue)
{
	ZkGraphQueue *q = &g->queues[queue];

	q->to_judge = true;
	for (int i = 0; i < q->n; i++)
	{
		ZkGraphContender *c = &q->contenders[i];

		prepare_node(&c->node, ZKL_CONTENDER, !c->granted || c->party >= 0);
		c->enough = false;
		c->queue = queue;
		c->next_held = NULL;
		if (c->granted && c->party >= 0)
		{
			c->node.reason = &g->parties[c->party].node;
			c->next_held = g->parties[c->party].held;
			g->parties[c->party].held = c;
		}
	}
}

/* Suppose that all who wait are stuck */
static void
prepare(ZkGraph *g)
{
	for (int i = 0; i < g->nparties; i++)
	{
		ZkGraphParty *p = &g->parties[i];

		prepare_node(&p->node, ZKL_PARTY, true);
		p->waits_for = -1;
		p->wait = p->queue >= 0 ? &g->queues[p->queue].contenders[p->at] : NULL;
		if (p->wait != NULL && p->wait->granted)
			p->wait = NULL;
		p->held = NULL;
		p->waits = NULL;
	}
	for (int i = g->nlocals - 1; i >= 0; i--)
	{
		ZkGraphLocal *l = &g->locals[i];

		prepare_node(&l->node, ZKL_LOCAL, true);
		l->node.reason = &g->parties[l->holder].node;
		l->next_wait = g->parties[l->waiter].waits;
		g->parties[l->waiter].waits = l;
	}
	for (int i = 0; i < g->nqueues; i++)
		prepare_queue(g, i);
}

/* What keeps this party stuck; rather a wait in ZooKeeper, which can be checked; or NULL */
static ZkGraphNode *
find_reason(const ZkGraphParty *p)
{
	if (p->wait != NULL && p->wait->node.stuck)
		return &p->wait->node;
	for (ZkGraphLocal *l = p->waits; l != NULL; l = l->next_wait)
	{
		if (l->node.reason->stuck)
			return &l->node;
	}
	return NULL;
}

/* If nothing keeps this party stuck, it proceeds, and gives back all that it has */
static bool
judge_party(ZkGraph *g, ZkGraphParty *p)
{
	if (!p->node.stuck || find_reason(p) != NULL)
		return false;
	p->node.stuck = false;
	for (ZkGraphContender *c = p->held; c != NULL; c = c->next_held)
	{
		c->node.stuck = false;
		g->queues[c->queue].to_judge = true;
	}
	return true;
}

static void
add_before(Before *before, ZkGraphContender *c)
{
	First	   *first = &before->first[!c->granted][c->shared];

	if (!c->node.stuck)
		return;
	before->n++;
	before->ngranted += c->granted;
	if (first->one == NULL)
		first->one = c;
	else if (first->other == NULL && !same_owner(first->one, c))
		first->other = c;
}

/*
 * A stuck contender that holds this one up, or NULL.  One that is granted is
 * better: its evidence is shorter.  And always taking the first makes evidence
 * that several share.
 */
static ZkGraphContender *
find_blocker(const Before *before, const ZkGraphContender *c)
{
	for (int waits = 0; waits < 2; waits++)
	{
		for (int shared = 0; shared < (c->shared ? 1 : 2); shared++)
		{
			const First *first = &before->first[waits][shared];
			ZkGraphContender *blocker = first->one;

			/*
			 * the other differs from it in its owner, or has none that is
			 * known
			 */
			if (blocker != NULL && (blocker == c || same_owner(blocker, c)))
				blocker = first->other;
			if (blocker != NULL)
				return blocker;
		}
	}
	return NULL;
}

/* before includes c itself, and its ties */
static bool
stays_stuck(const ZkGraphQueue *q, const Before *before, ZkGraphContender *c)
{
	ZkGraphContender *blocker;

	if (q->semaphore)
	{
		c->enough = before->ngranted >= c->permits;
		return before->n - 1 >= c->permits;
	}
	blocker = find_blocker(before, c);
	c->enough = blocker != NULL && blocker->granted;
	c->node.reason = blocker != NULL ? &blocker->node : NULL;
	return blocker != NULL;
}

/* Each that falls may have been what kept others of its rank stuck: judge them again */
static void
judge_queue(ZkGraph *g, ZkGraphQueue *q)
{
	Before		before = {0};
	int			end;

	q->to_judge = false;
	for (int start = 0; start < q->n; start = end)
	{
		Before		with = before;

		for (end = start; end < q->n && q->contenders[end].rank == q->contenders[start].rank; end++)
			add_before(&with, &q->contenders[end]);
		for (int i = start; i < end; i++)
		{
			ZkGraphContender *c = &q->contenders[i];

			if (c->node.stuck && !c->granted && !stays_stuck(q, &with, c))
			{
				c->node.stuck = false;
				q->to_judge |= end - start > 1;
				if (c->party >= 0)
					(void) judge_party(g, &g->parties[c->party]);
			}
			add_before(&before, c);
		}
	}
}

/* A look at a long queue waits for all that may change it by then */
static ZkGraphQueue *
shortest_to_judge(const ZkGraph *g)
{
	ZkGraphQueue *shortest = NULL;

	for (int i = 0; i < g->nqueues; i++)
	{
		ZkGraphQueue *q = &g->queues[i];

		if (q->to_judge && (shortest == NULL || q->n < shortest->n))
			shortest = q;
	}
	return shortest;
}

/* Take away who is not stuck, until nobody else falls because of that */
static void
find_stuck(ZkGraph *g)
{
	bool		fell;

	do
	{
		ZkGraphQueue *q;

		while ((q = shortest_to_judge(g)) != NULL)
		{
			breathe(g);
			judge_queue(g, q);
		}
		fell = false;
		for (int i = 0; i < g->nparties; i++)
			fell |= judge_party(g, &g->parties[i]);
	} while (fell);
}

/*
 * A contender is reached once, so those that are not yet are in lists: a way
 * through a long queue does not look at all pairs.
 */
static void
list_unreached(ZkGraphQueue *q)
{
	q->unreached[0] = q->unreached[1] = NULL;
	for (int i = q->n - 1; i >= 0; i--)
	{
		ZkGraphContender *c = &q->contenders[i];
		ZkGraphContender **list = &q->unreached[!c->granted];

		if (!c->node.stuck)
			continue;
		c->next_unreached = *list;
		*list = c;
	}
}

/*
 * The way has come to this node.  Returns whether it is complete.  A contender that
 * only waits belongs to the same step, and is followed next.
 */
static bool
reach(Search *s, ZkGraphNode *node, ZkGraphNode *from)
{
	bool		waits = node->kind == ZKL_CONTENDER && !((ZkGraphContender *) node)->granted;
	ZkGraphNode **link;

	if (node->reached)
	{
		if (node != &s->self->node && node != (ZkGraphNode *) s->self->wait)
			return false;
		from->reason = node;
		s->end = from;
		return true;
	}
	node->reached = true;
	node->from = from;
	if (node->kind != ZKL_PARTY && !waits)
		return reach(s, node->reason, node);
	link = waits || s->first == NULL ? &s->first : &s->last->next;
	node->next = *link;
	*link = node;
	if (node->next == NULL)
		s->last = node;
	return false;
}

static bool
holds_up(const ZkGraphQueue *q, const ZkGraphContender *other, const ZkGraphContender *c)
{
	if (other == c || other->rank > c->rank)
		return false;
	return q->semaphore || (!(other->shared && c->shared) && !same_owner(other, c));
}

/*
 * The rank from which those before this one count that only wait: behind one
 * that is stuck and holds, and does not hold this one up itself.  INT64_MAX:
 * none counts.
 */
static int64_t
first_that_counts(const ZkGraphQueue *q, const ZkGraphContender *c)
{
	if (!c->enough)
		return INT64_MIN;
	if (q->semaphore || (c->party < 0 && !c->shared))
		return INT64_MAX;
	for (int i = 0; i < q->n && q->contenders[i].rank <= c->rank; i++)
	{
		const ZkGraphContender *holder = &q->contenders[i];

		if (holder->granted && holder->node.stuck && !holds_up(q, holder, c))
			return holder->rank;
	}
	return INT64_MAX;
}

/*
 * Goes on to those that hold up a contender.  Those that hold come first, since they
 * make a cycle that is plainer.
 */
static bool
follow_contender(Search *s, ZkGraphContender *c)
{
	ZkGraphQueue *q = &s->g->queues[c->queue];
	int64_t		first = INT64_MIN;

	for (int waits = 0; waits < 2 && first < INT64_MAX; waits++)
	{
		ZkGraphContender **link = &q->unreached[waits];

		while (*link != NULL && (*link)->rank <= c->rank)
		{
			ZkGraphContender *blocker = *link;

			if (blocker->rank < first || !holds_up(q, blocker, c))
			{
				link = &blocker->next_unreached;
				continue;
			}
			*link = blocker->next_unreached;
			if (reach(s, &blocker->node, &c->node))
				return true;
		}
		first = first_that_counts(q, c);
	}
	return false;
}

static bool
follow_party(Search *s, ZkGraphParty *p)
{
	for (ZkGraphLocal *l = p->waits; l != NULL; l = l->next_wait)
	{
		if (l->node.reason->stuck && reach(s, &l->node, &p->node))
			return true;
	}
	return p->wait != NULL && p->wait->node.stuck && reach(s, &p->wait->node, &p->node);
}

/* Those whom the fewest parties separate from self are followed first */
static bool
find_way(Search *s)
{
	for (int i = 0; i < s->g->nqueues; i++)
		list_unreached(&s->g->queues[i]);
	(void) reach(s, &s->self->node, NULL);
	while (s->first != NULL)
	{
		ZkGraphNode *node = s->first;

		breathe(s->g);
		s->first = node->next;
		if (node->kind == ZKL_PARTY ? follow_party(s, (ZkGraphParty *) node) :
			follow_contender(s, (ZkGraphContender *) node))
			return true;
	}
	return false;
}

static void
need(Search *s, ZkGraphNode *node)
{
	if (node->evidence)
		return;
	node->evidence = true;
	node->next = s->first;
	s->first = node;
}

/*
 * The way, from its end.  All of it is evidence before anything else is chosen, so
 * that this can rest on it.
 */
static void
mark_cycle(Search *s)
{
	ZkGraphParty *next = s->self;

	s->first = NULL;
	for (ZkGraphNode *node = s->end; node != NULL; node = node->from)
	{
		need(s, node);
		if (node->kind == ZKL_PARTY)
		{
			ZkGraphParty *p = (ZkGraphParty *) node;

			p->waits_for = (int) (next - s->g->parties);
			next = p;
		}
		if (node->from != NULL)
			node->from->reason = node;
	}
}

/*
 * As many before this one as it has permits: the one on the way, and the first ones, which
 * mostly hold.  So those who wait in one queue share their evidence.
 */
static void
need_before(Search *s, ZkGraphContender *c)
{
	ZkGraphQueue *q = &s->g->queues[c->queue];
	int			missing = c->permits - (c->node.reason != NULL);

	for (int i = 0; missing > 0 && i < q->n && q->contenders[i].rank <= c->rank; i++)
	{
		ZkGraphContender *other = &q->contenders[i];

		if (other == c || !other->node.stuck || &other->node == c->node.reason)
			continue;
		need(s, &other->node);
		missing--;
	}
}

/* What is evidence must be stuck because of evidence */
static void
complete_evidence(Search *s)
{
	while (s->first != NULL)
	{
		ZkGraphNode *node = s->first;
		ZkGraphContender *c = (ZkGraphContender *) node;

		breathe(s->g);
		s->first = node->next;
		if (node->kind == ZKL_PARTY && node->reason == NULL)
			node->reason = find_reason((ZkGraphParty *) node);
		if (node->reason != NULL)
			need(s, node->reason);
		if (node->kind == ZKL_CONTENDER && !c->granted && s->g->queues[c->queue].semaphore)
			need_before(s, c);
	}
}

bool
zkl_find_cycle(ZkGraph *g, int self)
{
	Search		search = {.g = g,.self = &g->parties[self]};

	prepare(g);
	find_stuck(g);
	if (!search.self->node.stuck || !find_way(&search))
		return false;
	mark_cycle(&search);
	complete_evidence(&search);
	return true;
}

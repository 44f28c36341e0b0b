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
	ZkGraphParty *last;			/* of the parties that are reached */
	ZkGraphContender *middle;	/* of the contenders that are reached and only
								 * wait: those not yet followed */
} Search;

static bool
same_owner(const ZkGraphContender *a, const ZkGraphContender *b)
{
	return a->owner == b->owner && a->owner != 0;
}

static int
index_of(const ZkGraph *g, const ZkGraphContender *c)
{
	return (int) (c - g->queues[c->queue].contenders);
}

static void
prepare_queue(ZkGraph *g, int queue)
{
	ZkGraphQueue *q = &g->queues[queue];

	q->to_judge = true;
	for (int i = 0; i < q->n; i++)
	{
		ZkGraphContender *c = &q->contenders[i];

		c->stuck = !c->granted || c->party >= 0;
		c->evidence = c->proven = c->enough = c->reached = false;
		c->blocker = -1;
		c->queue = queue;
		c->from = c->next = c->next_held = NULL;
		if (c->granted && c->party >= 0)
		{
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

		p->stuck = true;
		p->evidence = p->proven = p->reached = false;
		p->waits_for = p->local = p->held_up_by = -1;
		p->wait = p->queue >= 0 ? &g->queues[p->queue].contenders[p->at] : NULL;
		if (p->wait != NULL && p->wait->granted)
			p->wait = NULL;
		p->held = NULL;
		p->waits = NULL;
	}
	for (int i = g->nlocals - 1; i >= 0; i--)
	{
		ZkGraphLocal *l = &g->locals[i];

		l->evidence = false;
		l->next_wait = g->parties[l->waiter].waits;
		g->parties[l->waiter].waits = l;
	}
	for (int i = 0; i < g->nqueues; i++)
		prepare_queue(g, i);
}

/* If nothing keeps this party stuck, it proceeds, and gives back all that it has */
static bool
judge_party(ZkGraph *g, ZkGraphParty *p)
{
	if (!p->stuck || (p->wait != NULL && p->wait->stuck))
		return false;
	for (ZkGraphLocal *l = p->waits; l != NULL; l = l->next_wait)
	{
		if (g->parties[l->holder].stuck)
			return false;
	}
	p->stuck = false;
	for (ZkGraphContender *c = p->held; c != NULL; c = c->next_held)
	{
		c->stuck = false;
		g->queues[c->queue].to_judge = true;
	}
	return true;
}

static void
add_before(Before *before, ZkGraphContender *c)
{
	First	   *first = &before->first[!c->granted][c->shared];

	if (!c->stuck)
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
	c->blocker = blocker != NULL ? (int) (blocker - q->contenders) : -1;
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

			if (c->stuck && !c->granted && !stays_stuck(q, &with, c))
			{
				c->stuck = false;
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
			judge_queue(g, q);
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

		if (!c->stuck)
			continue;
		c->next = *list;
		*list = c;
	}
}

/*
 * The way has come to this party: by a local wait, or through a contender that
 * another one is behind.  Returns whether it is complete.
 */
static bool
reach_party(Search *s, ZkGraphParty *p, ZkGraphLocal *by, ZkGraphContender *through,
			ZkGraphContender *behind)
{
	if (p->reached && p != s->self)
		return false;
	p->by = by;
	p->through = through;
	p->behind = behind;
	if (p == s->self)
		return true;
	p->reached = true;
	p->next = NULL;
	s->last->next = p;
	s->last = p;
	return false;
}

static bool
reach_contender(Search *s, ZkGraphContender *c, ZkGraphContender *behind)
{
	if (c->granted || c == s->self->wait)
		return reach_party(s, &s->g->parties[c->party], NULL, c, behind);
	if (c->reached)
		return false;
	c->reached = true;
	c->from = behind;
	c->next = s->middle;
	s->middle = c;
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

		if (holder->granted && holder->stuck && !holds_up(q, holder, c))
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
				link = &blocker->next;
				continue;
			}
			*link = blocker->next;
			if (reach_contender(s, blocker, c))
				return true;
		}
		first = first_that_counts(q, c);
	}
	return false;
}

static bool
follow_party(Search *s, ZkGraphParty *p)
{
	ZkGraphContender *c = p->wait;

	for (ZkGraphLocal *l = p->waits; l != NULL; l = l->next_wait)
	{
		ZkGraphParty *holder = &s->g->parties[l->holder];

		if (holder->stuck && reach_party(s, holder, l, NULL, NULL))
			return true;
	}
	if (c == NULL || !c->stuck || c->reached)
		return false;
	c->reached = true;
	s->middle = NULL;
	do
	{
		if (follow_contender(s, c))
			return true;
		c = s->middle;
		if (c != NULL)
			s->middle = c->next;
	} while (c != NULL);
	return false;
}

/*
 * Those whom the fewest parties separate from self are followed first; of what
 * one party waits for, the contenders that only wait belong to the same step.
 */
static bool
find_way(ZkGraph *g, ZkGraphParty *self)
{
	Search		search = {.g = g,.self = self,.last = self};

	for (int i = 0; i < g->nqueues; i++)
		list_unreached(&g->queues[i]);
	self->reached = true;
	self->next = NULL;
	for (ZkGraphParty *p = self; p != NULL; p = p->next)
	{
		if (follow_party(&search, p))
			return true;
	}
	return false;
}

/*
 * The way, from its end, as steps of the parties.  All of it is evidence before
 * anything else is chosen, so that this can rest on it.
 */
static void
mark_cycle(ZkGraph *g, ZkGraphParty *self)
{
	ZkGraphParty *p = self;

	do
	{
		ZkGraphParty *waiter;

		p->evidence = true;
		if (p->by != NULL)
		{
			waiter = &g->parties[p->by->waiter];
			waiter->local = (int) (p->by - g->locals);
		}
		else
		{
			ZkGraphContender *blocker = p->through;
			ZkGraphContender *c = p->behind;

			/* from is NULL for the contender by which a party waits */
			for (;; blocker = c, c = c->from)
			{
				blocker->evidence = true;
				c->blocker = index_of(g, blocker);
				if (c->from == NULL)
					break;
			}
			c->evidence = true;
			waiter = &g->parties[c->party];
			waiter->held_up_by = index_of(g, p->through);
		}
		waiter->waits_for = (int) (p - g->parties);
		p = waiter;
	} while (p != self);
}

/* A wait that keeps this party stuck; rather one in ZooKeeper, which can be checked */
static void
prove_party(ZkGraph *g, ZkGraphParty *p)
{
	ZkGraphLocal *l = p->waits;

	if (p->local >= 0)
		l = &g->locals[p->local];
	else if (p->wait != NULL && p->wait->stuck)
	{
		p->wait->evidence = true;
		return;
	}
	while (!g->parties[l->holder].stuck)
		l = l->next_wait;
	l->evidence = true;
	g->parties[l->holder].evidence = true;
}

/*
 * As many before this one as it has permits: the one on the way, then those that
 * need no further evidence, then those that hold.
 */
static void
prove_semaphore(ZkGraph *g, ZkGraphContender *c)
{
	ZkGraphQueue *q = &g->queues[c->queue];
	int			missing = c->permits - (c->blocker >= 0);

	for (int pass = 0; pass < 3; pass++)
	{
		for (int i = 0; i < q->n && q->contenders[i].rank <= c->rank && missing > 0; i++)
		{
			ZkGraphContender *other = &q->contenders[i];
			bool		known = other->evidence;

			if (other == c || !other->stuck || i == c->blocker)
				continue;
			if (pass == 0 && other->granted)
				known |= g->parties[other->party].evidence;
			if (pass == 0 ? known : (!known && (pass == 2 || other->granted)))
			{
				other->evidence = true;
				missing--;
			}
		}
	}
}

static void
prove_contender(ZkGraph *g, ZkGraphContender *c)
{
	ZkGraphQueue *q = &g->queues[c->queue];

	if (c->granted)
		g->parties[c->party].evidence = true;
	else if (q->semaphore)
		prove_semaphore(g, c);
	else
		q->contenders[c->blocker].evidence = true;
}

/* What is evidence must be stuck because of evidence.  Returns whether any was not yet. */
static bool
prove_all(ZkGraph *g)
{
	bool		any = false;

	for (int i = 0; i < g->nparties; i++)
	{
		ZkGraphParty *p = &g->parties[i];

		if (!p->evidence || p->proven)
			continue;
		p->proven = any = true;
		prove_party(g, p);
	}
	for (int i = 0; i < g->nqueues; i++)
	{
		for (int k = 0; k < g->queues[i].n; k++)
		{
			ZkGraphContender *c = &g->queues[i].contenders[k];

			if (!c->evidence || c->proven)
				continue;
			c->proven = any = true;
			prove_contender(g, c);
		}
	}
	return any;
}

bool
zkl_find_cycle(ZkGraph *g, int self)
{
	ZkGraphParty *p = &g->parties[self];

	prepare(g);
	find_stuck(g);
	if (!p->stuck || !find_way(g, p))
		return false;
	mark_cycle(g, p);
	while (prove_all(g))
		;
	return true;
}

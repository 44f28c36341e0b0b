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

/* What has to be looked at because somebody turned out not to be stuck */
typedef struct Work
{
	ZkGraph    *g;
	ZkGraphParty *freed;
	ZkGraphQueue *to_judge[32]; /* by the bits of their length */
} Work;

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
	ZkGraphContender *last_middle;
} Search;

/* What became evidence, and must have evidence itself */
typedef struct Evidence
{
	ZkGraph    *g;
	ZkGraphParty *parties;
	ZkGraphContender *contenders;
} Evidence;

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

	for (int i = 0; i < q->n; i++)
	{
		ZkGraphContender *c = &q->contenders[i];

		c->stuck = !c->granted || c->party >= 0;
		c->evidence = c->enough = c->reached = false;
		c->blocker = -1;
		c->queue = queue;
		c->from = c->next_held = c->next = NULL;
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
		p->evidence = p->reached = false;
		p->waits_for = p->local = p->held_up_by = -1;
		p->wait = p->queue >= 0 ? &g->queues[p->queue].contenders[p->at] : NULL;
		if (p->wait != NULL && p->wait->granted)
			p->wait = NULL;
		p->reasons = p->wait != NULL;
		p->held = NULL;
		p->waits = p->awaited = NULL;
	}
	for (int i = g->nlocals - 1; i >= 0; i--)
	{
		ZkGraphLocal *l = &g->locals[i];
		ZkGraphParty *waiter = &g->parties[l->waiter];
		ZkGraphParty *holder = &g->parties[l->holder];

		l->evidence = false;
		l->next_wait = waiter->waits;
		waiter->waits = l;
		l->next_awaited = holder->awaited;
		holder->awaited = l;
		waiter->reasons++;
	}
	for (int i = 0; i < g->nqueues; i++)
		prepare_queue(g, i);
}

static void
free_party(Work *work, ZkGraphParty *p)
{
	p->stuck = false;
	p->next = work->freed;
	work->freed = p;
}

/* One of the waits of this party does not keep it stuck */
static void
lose_reason(Work *work, ZkGraphParty *p)
{
	if (--p->reasons == 0)
		free_party(work, p);
}

static void
judge_later(Work *work, ZkGraphQueue *q)
{
	int			bits = 0;

	if (q->to_judge)
		return;
	while (q->n >> bits > 1)
		bits++;
	q->to_judge = true;
	q->next = work->to_judge[bits];
	work->to_judge[bits] = q;
}

static ZkGraphQueue *
next_to_judge(Work *work)
{
	for (int bits = 0; bits < 32; bits++)
	{
		ZkGraphQueue *q = work->to_judge[bits];

		if (q == NULL)
			continue;
		work->to_judge[bits] = q->next;
		q->to_judge = false;
		return q;
	}
	return NULL;
}

/* This party proceeds, and gives back all that it has */
static void
let_go(Work *work, ZkGraphParty *p)
{
	for (ZkGraphContender *c = p->held; c != NULL; c = c->next_held)
	{
		c->stuck = false;
		judge_later(work, &work->g->queues[c->queue]);
	}
	for (ZkGraphLocal *l = p->awaited; l != NULL; l = l->next_awaited)
		lose_reason(work, &work->g->parties[l->waiter]);
}

static void
add_before(Before *before, ZkGraphContender *c)
{
	First	   *first = &before->first[!c->granted][c->shared];

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

/*
 * Judges those from start to end - 1, which have the same rank.  Each that
 * falls may have been what kept a tie of its stuck.
 */
static void
judge_rank(Work *work, ZkGraphQueue *q, int start, int end, Before *before)
{
	bool		fell;
	Before		with;

	do
	{
		with = *before;
		fell = false;
		for (int i = start; i < end; i++)
		{
			if (q->contenders[i].stuck)
				add_before(&with, &q->contenders[i]);
		}
		for (int i = start; i < end; i++)
		{
			ZkGraphContender *c = &q->contenders[i];

			if (!c->stuck || c->granted || stays_stuck(q, &with, c))
				continue;
			c->stuck = false;
			fell = true;
			if (c->party >= 0 && work->g->parties[c->party].wait == c)
				lose_reason(work, &work->g->parties[c->party]);
		}
	} while (fell);
	*before = with;
}

static void
judge_queue(Work *work, ZkGraphQueue *q)
{
	Before		before = {0};
	int			end;

	for (int start = 0; start < q->n; start = end)
	{
		for (end = start + 1; end < q->n; end++)
		{
			if (q->contenders[end].rank != q->contenders[start].rank)
				break;
		}
		judge_rank(work, q, start, end, &before);
	}
}

/* Take away all who are not stuck */
static void
find_stuck(ZkGraph *g)
{
	Work		work = {.g = g};
	ZkGraphQueue *q;

	for (int i = 0; i < g->nqueues; i++)
	{
		g->queues[i].to_judge = false;
		judge_later(&work, &g->queues[i]);
	}
	for (int i = 0; i < g->nparties; i++)
	{
		if (g->parties[i].reasons == 0)
			free_party(&work, &g->parties[i]);
	}

	/* a look at a long queue waits for all that may change it by then */
	do
	{
		ZkGraphParty *p;

		while ((p = work.freed) != NULL)
		{
			work.freed = p->next;
			let_go(&work, p);
		}
		q = next_to_judge(&work);
		if (q != NULL)
			judge_queue(&work, q);
	} while (q != NULL);
}

/*
 * A contender is reached once, so those that are not yet are in lists: a way
 * through a long queue does not look at all pairs.
 */
static void
list_unreached(ZkGraphQueue *q)
{
	memset(q->unreached, 0, sizeof(q->unreached));
	q->reader = NULL;
	for (int i = q->n - 1; i >= 0; i--)
	{
		ZkGraphContender *c = &q->contenders[i];
		ZkGraphContender **list = &q->unreached[!c->granted][!q->semaphore && c->shared];

		if (!c->stuck)
			continue;
		if (c->granted && c->shared)
			q->reader = c;
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
	if (c->granted)
		return reach_party(s, &s->g->parties[c->party], NULL, c, behind);
	if (c == s->self->wait)
		return reach_party(s, s->self, NULL, c, behind);
	if (c->reached)
		return false;
	c->reached = true;
	c->from = behind;
	c->next = NULL;
	if (s->middle == NULL)
		s->middle = c;
	else
		s->last_middle->next = c;
	s->last_middle = c;
	return false;
}

/*
 * The rank from which those before this one count that only wait: behind one
 * that is stuck and holds, and does not hold this one up itself.  INT64_MAX:
 * none counts.
 */
static int64_t
first_that_counts(const ZkGraph *g, const ZkGraphContender *c)
{
	const ZkGraphQueue *q = &g->queues[c->queue];
	int64_t		first = INT64_MAX;

	if (!c->enough)
		return INT64_MIN;
	if (q->semaphore)
		return INT64_MAX;
	if (c->shared && q->reader != NULL)
		first = q->reader->rank;
	if (c->party < 0)
		return first;
	for (ZkGraphContender *own = g->parties[c->party].held; own != NULL; own = own->next_held)
	{
		if (own->queue == c->queue && own->stuck && same_owner(own, c) && own->rank < first)
			first = own->rank;
	}
	return first;
}

/* Goes on to those in this list that hold up a contender */
static bool
follow_list(Search *s, ZkGraphContender *c, ZkGraphContender **link, int64_t first)
{
	bool		semaphore = s->g->queues[c->queue].semaphore;

	while (*link != NULL && (*link)->rank <= c->rank)
	{
		ZkGraphContender *blocker = *link;

		if (blocker == c || blocker->rank < first || (!semaphore && same_owner(blocker, c)))
		{
			link = &blocker->next;
			continue;
		}
		*link = blocker->next;
		if (reach_contender(s, blocker, c))
			return true;
	}
	return false;
}

/* Those that hold come first, since they make a cycle that is plainer */
static bool
follow_contender(Search *s, ZkGraphContender *c)
{
	ZkGraphQueue *q = &s->g->queues[c->queue];
	int64_t		first = INT64_MIN;

	for (int waits = 0; waits < 2 && first < INT64_MAX; waits++)
	{
		if (follow_list(s, c, &q->unreached[waits][0], first))
			return true;
		if (!c->shared && follow_list(s, c, &q->unreached[waits][1], first))
			return true;
		first = first_that_counts(s->g, c);
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
	for (;;)
	{
		if (follow_contender(s, c))
			return true;
		c = s->middle;
		if (c == NULL)
			return false;
		s->middle = c->next;
	}
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

static void
need_party(Evidence *evidence, ZkGraphParty *p)
{
	if (p->evidence)
		return;
	p->evidence = true;
	p->next = evidence->parties;
	evidence->parties = p;
}

static void
need_contender(Evidence *evidence, ZkGraphContender *c)
{
	if (c->evidence)
		return;
	c->evidence = true;
	c->next = evidence->contenders;
	evidence->contenders = c;
}

/*
 * The way, from its end, as steps of the parties.  All of it is evidence before
 * anything else is chosen, so that this can rest on it.
 */
static void
mark_cycle(Evidence *evidence, ZkGraphParty *self)
{
	ZkGraph    *g = evidence->g;
	ZkGraphParty *p = self;

	do
	{
		ZkGraphParty *waiter;

		need_party(evidence, p);
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
				need_contender(evidence, blocker);
				c->blocker = index_of(g, blocker);
				if (c->from == NULL)
					break;
			}
			need_contender(evidence, c);
			waiter = &g->parties[c->party];
			waiter->held_up_by = index_of(g, p->through);
		}
		waiter->waits_for = (int) (p - g->parties);
		p = waiter;
	} while (p != self);
}

/* A wait that keeps this party stuck; one that is evidence already, if any */
static void
prove_party(Evidence *evidence, ZkGraphParty *p)
{
	ZkGraph    *g = evidence->g;
	ZkGraphLocal *chosen = NULL;
	bool		may_wait = p->wait != NULL && p->wait->stuck;

	if (p->local >= 0)
		chosen = &g->locals[p->local];
	else if (p->waits_for < 0 && !(may_wait && p->wait->evidence))
	{
		for (ZkGraphLocal *l = p->waits; l != NULL; l = l->next_wait)
		{
			ZkGraphParty *holder = &g->parties[l->holder];

			if (holder->evidence || (holder->stuck && chosen == NULL && !may_wait))
				chosen = l;
		}
	}
	if (chosen != NULL)
	{
		chosen->evidence = true;
		need_party(evidence, &g->parties[chosen->holder]);
	}
	else
		need_contender(evidence, p->wait);
}

/*
 * As many before this one as it has permits: the one on the way, then those that
 * need no further evidence, then those that hold.
 */
static void
prove_semaphore(Evidence *evidence, ZkGraphContender *c)
{
	ZkGraphQueue *q = &evidence->g->queues[c->queue];
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
				known |= evidence->g->parties[other->party].evidence;
			if (pass == 0 ? known : (!known && (pass == 2 || other->granted)))
			{
				need_contender(evidence, other);
				missing--;
			}
		}
	}
}

static void
prove_contender(Evidence *evidence, ZkGraphContender *c)
{
	ZkGraphQueue *q = &evidence->g->queues[c->queue];

	if (c->granted)
		need_party(evidence, &evidence->g->parties[c->party]);
	else if (q->semaphore)
		prove_semaphore(evidence, c);
	else
		need_contender(evidence, &q->contenders[c->blocker]);
}

/* What is evidence must be stuck because of evidence */
static void
mark_evidence(ZkGraph *g, ZkGraphParty *self)
{
	Evidence	evidence = {.g = g};

	mark_cycle(&evidence, self);
	while (evidence.parties != NULL || evidence.contenders != NULL)
	{
		if (evidence.parties != NULL)
		{
			ZkGraphParty *p = evidence.parties;

			evidence.parties = p->next;
			prove_party(&evidence, p);
		}
		else
		{
			ZkGraphContender *c = evidence.contenders;

			evidence.contenders = c->next;
			prove_contender(&evidence, c);
		}
	}
}

bool
zkl_find_cycle(ZkGraph *g, int self)
{
	ZkGraphParty *p = &g->parties[self];

	prepare(g);
	find_stuck(g);
	if (!p->stuck || !find_way(g, p))
		return false;
	mark_evidence(g, p);
	return true;
}

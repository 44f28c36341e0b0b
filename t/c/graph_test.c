/*-------------------------------------------------------------------------
 *
 * graph_test.c
 *	  Who is in a cycle of waits, without a server.  Prints TAP.
 *
 *		graph_test [SEED [ROUNDS]]
 *
 *-------------------------------------------------------------------------
 */
#include <limits.h>
#include <string.h>
#include <time.h>

#include "lock/deadlock/wait_graph.h"
#include "unit.h"

#define PARTIES		6
#define QUEUES		4
#define LENGTH		6
#define LOCALS		6

/* A graph, and the memory for it */
typedef struct Case
{
	ZkGraph		g;
	ZkGraphParty parties[PARTIES];
	ZkGraphQueue queues[QUEUES];
	ZkGraphContender contenders[QUEUES][LENGTH];
	ZkGraphLocal locals[LOCALS];
} Case;

/*-------------------------------------------------------------------------
 * Graphs
 *-------------------------------------------------------------------------
 */

static void
clear(Case *c)
{
	memset(c, 0, sizeof(*c));
	c->g.parties = c->parties;
	c->g.queues = c->queues;
	c->g.locals = c->locals;
	for (int i = 0; i < PARTIES; i++)
		c->parties[i].queue = c->parties[i].at = -1;
	for (int i = 0; i < QUEUES; i++)
		c->queues[i].contenders = c->contenders[i];

	/* whatever the search finds there must not matter */
	for (int i = 0; i < QUEUES; i++)
		memset(c->contenders[i], 0x55, sizeof(c->contenders[i]));
}

static ZkGraphContender *
add(ZkGraph *g, int queue, int party)
{
	ZkGraphQueue *q = &g->queues[queue];
	ZkGraphContender *added = &q->contenders[q->n];

	added->party = party;
	added->granted = true;
	added->shared = false;
	added->permits = 0;
	/* of nobody known, each has a session of its own */
	added->owner = party >= 0 ? party + 1 : 100000 * (queue + 1) + q->n;
	added->rank = q->n == 0 ? 1 : added[-1].rank + 1;
	q->n++;
	return added;
}

static void
add_local(Case *c, int waiter, int holder)
{
	c->locals[c->g.nlocals].waiter = waiter;
	c->locals[c->g.nlocals++].holder = holder;
}

/* The wait of its party, if that has no other */
static void
wait_for(ZkGraph *g, int queue, int at)
{
	int			party = g->queues[queue].contenders[at].party;

	if (party < 0 || g->parties[party].queue >= 0)
		return;
	g->parties[party].queue = queue;
	g->parties[party].at = at;
}

static const char *
text_of(const Case *c)
{
	static char text[5000];
	char	   *end = text;

	for (int i = 0; i < c->g.nparties; i++)
		end += sprintf(end, "#   party %d waits in queue %d, at %d\n", i, c->parties[i].queue, c->parties[i].at);
	for (int i = 0; i < c->g.nqueues; i++)
	{
		for (int j = 0; j < c->queues[i].n; j++)
		{
			const ZkGraphContender *it = &c->contenders[i][j];

			end += sprintf(end, "#   %s %d: party %d, session %d, rank %d, %s, %d permits, %s\n", c->queues[i].semaphore ? "semaphore" : "queue",
						   i, it->party, (int) it->owner, (int) it->rank, it->shared ? "shared" : "exclusive", it->permits, it->granted ? "holds" : "waits");
		}
	}
	for (int i = 0; i < c->g.nlocals; i++)
		end += sprintf(end, "#   party %d waits for party %d\n", c->locals[i].waiter, c->locals[i].holder);
	return text;
}

/*-------------------------------------------------------------------------
 * The model: what the words mean
 *
 * A node is a party or a contender.  It is stuck because of so many of its
 * reasons, and the stuck are the greatest set in which everyone has so many
 * reasons in the set.
 *-------------------------------------------------------------------------
 */

#define NODES		(PARTIES + QUEUES * LENGTH)

typedef struct Model
{
	const Case *c;
	uint32_t	reasons[NODES];
	int			need[NODES];
	uint32_t	there;
} Model;

static int
node_of(int queue, int at)
{
	return PARTIES + queue * LENGTH + at;
}

static const ZkGraphContender *
contender_of(const Case *c, int node)
{
	return &c->contenders[(node - PARTIES) / LENGTH][(node - PARTIES) % LENGTH];
}

static const ZkGraphNode *
found_of(const Case *c, int node)
{
	return node < PARTIES ? &c->parties[node].node : &contender_of(c, node)->node;
}

static uint32_t
bit(int node)
{
	return (uint32_t) 1 << node;
}

/* The contender by which a party waits, or -1 */
static int
wait_of(const Case *c, int party)
{
	const ZkGraphParty *p = &c->parties[party];

	return p->queue < 0 || c->contenders[p->queue][p->at].granted ? -1 : node_of(p->queue, p->at);
}

/* What is told of a party of the cycle is a local wait */
static bool
is_local(const Case *c, int party)
{
	return c->parties[party].node.reason->kind == ZKL_LOCAL;
}

static bool
holds_up(const ZkGraphQueue *q, int other, int it)
{
	const ZkGraphContender *a = &q->contenders[other];
	const ZkGraphContender *b = &q->contenders[it];

	if (other == it || a->rank > b->rank)
		return false;
	if (q->semaphore)
		return true;
	return (!a->shared || !b->shared) && (a->owner == 0 || b->owner == 0 || a->owner != b->owner);
}

static void
model_queue(Model *m, int queue, bool only_evidence)
{
	const ZkGraphQueue *q = &m->c->queues[queue];

	for (int i = 0; i < q->n; i++)
	{
		const ZkGraphContender *it = &q->contenders[i];
		int			node = node_of(queue, i);

		m->need[node] = 1;
		m->reasons[node] = 0;
		if (only_evidence && !it->node.evidence)
			continue;
		m->there |= bit(node);
		if (it->granted)
		{
			m->reasons[node] = it->party >= 0 ? bit(it->party) : 0;
			continue;
		}
		if (q->semaphore)
			m->need[node] = it->permits;
		for (int j = 0; j < q->n; j++)
		{
			if (holds_up(q, j, i))
				m->reasons[node] |= bit(node_of(queue, j));
		}
	}
}

/* Of all that is there, or only of what is evidence */
static void
model(Model *m, const Case *c, bool only_evidence)
{
	m->c = c;
	m->there = 0;
	for (int i = 0; i < c->g.nqueues; i++)
		model_queue(m, i, only_evidence);
	for (int i = 0; i < c->g.nparties; i++)
	{
		m->need[i] = 1;
		m->reasons[i] = wait_of(c, i) >= 0 ? bit(wait_of(c, i)) : 0;
		m->there |= bit(i);
	}
	for (int i = 0; i < c->g.nlocals; i++)
	{
		const ZkGraphLocal *l = &c->locals[i];

		if (!only_evidence || l->node.evidence)
			m->reasons[l->waiter] |= bit(l->holder);
	}
}

/* That set: whoever has not enough reasons in what is left, is in none */
static uint32_t
greatest(const Model *m)
{
	uint32_t	left = m->there;
	uint32_t	before;

	do
	{
		before = left;
		for (int i = 0; i < NODES; i++)
		{
			if ((left & bit(i)) != 0 && __builtin_popcount(left & m->reasons[i]) < m->need[i])
				left &= ~bit(i);
		}
	} while (left != before);
	return left;
}

/*
 * Whether one that is stuck rests on another.  It may rest on any stuck reason,
 * unless that one only waits, all that this waits for are reasons, too, and
 * those that hold are enough.
 */
static bool
rests_on(const Model *m, uint32_t stuck, int node, int other)
{
	const Case *c = m->c;
	int			queue = (other - PARTIES) / LENGTH;
	int			enough_hold = 0;

	if ((stuck & bit(node)) == 0 || (stuck & m->reasons[node] & bit(other)) == 0)
		return false;
	if (node < PARTIES || other < PARTIES || contender_of(c, other)->granted)
		return true;
	for (int i = 0; i < c->queues[queue].n; i++)
	{
		if (!c->contenders[queue][i].granted || (stuck & bit(node_of(queue, i))) == 0)
			continue;
		if ((m->reasons[node] & bit(node_of(queue, i))) != 0)
			enough_hold++;
		else if (c->contenders[queue][i].rank <= contender_of(c, other)->rank)
			return true;
	}
	return enough_hold < m->need[node];
}

/* The fewest parties on a way from self to itself, or INT_MAX */
static int
fewest(const Model *m, uint32_t stuck, int self)
{
	int			far[NODES];
	int			best = INT_MAX;
	bool		changed = true;

	for (int i = 0; i < NODES; i++)
		far[i] = INT_MAX;
	far[self] = 0;
	while (changed)
	{
		changed = false;
		for (int from = 0; from < NODES; from++)
		{
			for (int to = 0; to < NODES && far[from] < INT_MAX; to++)
			{
				int			there = far[from] + (to < PARTIES);

				if (!rests_on(m, stuck, from, to))
					continue;
				if (to == self || (from >= PARTIES && to == wait_of(m->c, self)))
				{
					int			length = far[from] + 1;

					best = length < best ? length : best;
				}
				else if (there < far[to])
				{
					far[to] = there;
					changed = true;
				}
			}
		}
	}
	return best;
}

/*-------------------------------------------------------------------------
 * What must be true of any graph
 *-------------------------------------------------------------------------
 */

static long ngraphs;
static long nstuck;
static long ntold;
static long nbystanders;
static long nmiddle;
static long nlocal;
static long nsemaphore;
static long nlong;

/* Of failures only the first is reported, since one cause has thousands of effects */
static bool
holds(bool *good, bool passed, const Case *c, int self, const char *what)
{
	if (!passed && *good)
		printf("# %s, of party %d:\n%s", what, self, text_of(c));
	*good &= passed;
	return passed;
}

static bool
says_stuck(const Model *m, uint32_t stuck)
{
	for (int i = 0; i < NODES; i++)
	{
		if ((m->there & bit(i)) != 0 && found_of(m->c, i)->stuck != ((stuck & bit(i)) != 0))
			return false;
	}
	return true;
}

/*
 * The step of this party in ZooKeeper.  Returns the number of contenders on it
 * after its own, without the one by which self waits; or -1.
 */
static int
walk_step(const Case *c, const Model *m, uint32_t stuck, int self, int party)
{
	const ZkGraphParty *p = &c->parties[party];
	int			node = wait_of(c, party);
	int			n = 0;

	if (node < 0 || p->node.reason != &contender_of(c, node)->node)
		return -1;
	do
	{
		const ZkGraphContender *it = contender_of(c, node);
		int			at = 0;

		while (at < c->queues[p->queue].n && &c->contenders[p->queue][at].node != it->node.reason)
			at++;
		if (!it->node.evidence || (stuck & bit(node)) == 0 || at == c->queues[p->queue].n || ++n > LENGTH ||
			(m->reasons[node] & bit(node_of(p->queue, at))) == 0)
			return -1;
		node = node_of(p->queue, at);
	} while (!contender_of(c, node)->granted && node != wait_of(c, self));
	nmiddle += n > 1;
	if (contender_of(c, node)->party != p->waits_for || !contender_of(c, node)->node.evidence)
		return -1;
	if (contender_of(c, node)->granted)
		return contender_of(c, node)->node.reason == &c->parties[p->waits_for].node ? n : -1;
	return p->waits_for == self ? n - 1 : -1;
}

/*
 * The cycle is one of real waits, with the fewest parties.  Returns which
 * parties are in it, or 0; on_way is the number of contenders.
 */
static uint32_t
walk(const Case *c, const Model *m, uint32_t stuck, int self, int *on_way)
{
	uint32_t	seen = 0;
	int			at = self;

	*on_way = 0;
	do
	{
		const ZkGraphParty *p = &c->parties[at];

		if ((seen & bit(at)) != 0 || !p->node.evidence || p->waits_for < 0 || (stuck & bit(at)) == 0)
			return 0;
		seen |= bit(at);
		if (is_local(c, at))
		{
			const ZkGraphLocal *l = (const ZkGraphLocal *) p->node.reason;

			nlocal++;
			if (!l->node.evidence || l->waiter != at || l->holder != p->waits_for)
				return 0;
		}
		else
		{
			int			n = walk_step(c, m, stuck, self, at);

			if (n < 0)
				return 0;
			*on_way += 1 + n;
		}
		at = p->waits_for;
	} while (at != self);
	for (int i = 0; i < c->g.nparties; i++)
	{
		if ((c->parties[i].waits_for >= 0) != ((seen & bit(i)) != 0))
			return 0;
	}
	return __builtin_popcount(seen) == fewest(m, stuck, self) ? seen : 0;
}

/*
 * Evidence is enough, and not much more: each contender is there because a party
 * waits by it, or it is one of those that another one needs.
 */
static void
check_evidence(const Case *c, int self, int on_way, bool *good)
{
	Model		m;
	uint32_t	stuck;
	uint32_t	evidence = 0;
	int			contenders = 0;
	int			most = 0;
	bool		semaphore = false;

	model(&m, c, true);
	for (int i = 0; i < NODES; i++)
	{
		if ((m.there & bit(i)) == 0 || !found_of(c, i)->evidence)
			continue;
		evidence |= bit(i);
		contenders += i >= PARTIES;
		most += i < PARTIES ? 1 : contender_of(c, i)->granted ? 0 : m.need[i];
		semaphore |= i >= PARTIES && !contender_of(c, i)->granted && c->queues[(i - PARTIES) / LENGTH].semaphore;
	}
	stuck = greatest(&m);
	holds(good, (evidence & ~stuck) == 0, c, self, "some evidence is not stuck because of evidence");
	holds(good, contenders <= most, c, self, "more evidence than needed");
	if (!semaphore && !is_local(c, self))
		holds(good, contenders == on_way, c, self, "evidence that is not of the cycle");
	nsemaphore += semaphore;
}

static bool
check(Case *c)
{
	bool		good = true;
	char		before[5000];
	uint32_t	stuck;
	Model		m;

	strcpy(before, text_of(c));
	model(&m, c, false);
	stuck = greatest(&m);
	for (int self = 0; self < c->g.nparties; self++)
	{
		bool		verdict = zkl_find_cycle(&c->g, self);

		holds(&good, says_stuck(&m, stuck), c, self, "not who is stuck");
		holds(&good, verdict == ((stuck & bit(self)) != 0 && fewest(&m, stuck, self) < INT_MAX),
			  c, self, verdict ? "told, but in no cycle" : "in a cycle, and not told");
		nstuck += c->parties[self].node.stuck;
		if (verdict)
		{
			int			on_way;
			uint32_t	cycle = walk(c, &m, stuck, self, &on_way);

			ntold++;
			nlong += __builtin_popcount(cycle) > 2;
			if (holds(&good, cycle != 0, c, self, "not a cycle, or not the shortest"))
				check_evidence(c, self, on_way, &good);
		}
		else
			nbystanders += c->parties[self].node.stuck;
	}
	holds(&good, strcmp(before, text_of(c)) == 0, c, -1, "the graph was changed");
	ngraphs++;
	return good;
}

/*-------------------------------------------------------------------------
 * Random graphs
 *-------------------------------------------------------------------------
 */

/* Whether it holds, if everybody keeps to the rules */
static bool
is_free(const ZkGraphQueue *q, int at)
{
	int			before = 0;

	for (int i = 0; i < q->n; i++)
		before += holds_up(q, i, at);
	return before < (q->semaphore ? q->contenders[at].permits : 1);
}

static void
random_queue(Case *c, int queue, bool orderly)
{
	ZkGraphQueue *q = &c->queues[queue];
	int			permits = 1 + below(3);

	q->semaphore = below(3) == 0;
	for (int n = 1 + below(LENGTH); n > 0; n--)
	{
		ZkGraphContender *it = add(&c->g, queue, below(8) == 0 ? -1 : below(c->g.nparties));

		it->shared = below(2) == 0;
		it->permits = below(5) == 0 ? 1 + below(3) : permits;
		if (below(12) == 0)
			it->owner = below(2) == 0 ? 0 : it->owner + 100;
		if (q->n > 1 && below(12) == 0)
			it->rank = it[-1].rank;
	}
	for (int i = 0; i < q->n; i++)
	{
		q->contenders[i].granted = orderly ? is_free(q, i) : below(2) == 0;
		if (below(10) != 0 && (!q->contenders[i].granted || below(10) == 0))
			wait_for(&c->g, queue, i);
	}

	/* to look beyond the end must matter */
	if (q->n < LENGTH)
		q->contenders[q->n] = q->contenders[q->n - 1];
}

static void
random_graph(Case *c)
{
	bool		orderly = below(3) != 0;

	clear(c);
	c->g.nparties = 1 + below(PARTIES);
	c->g.nqueues = 1 + below(QUEUES);
	for (int i = 0; i < c->g.nqueues; i++)
		random_queue(c, i, orderly);
	for (int n = below(2) * below(LOCALS + 1); n > 0; n--)
	{
		int			waiter = below(c->g.nparties);

		add_local(c, waiter, below(c->g.nparties));
	}
}

static void
test_random(int rounds)
{
	bool		good = true;

	for (int i = 0; i < rounds && good; i++)
	{
		Case		c;

		random_graph(&c);
		good = check(&c);
	}
	ok(good, "%ld random graphs, as the model says", ngraphs);
	printf("# %ld parties stuck, %ld told, %ld bystanders; %ld cycles of three and more, %ld waits "
		   "in them over others, %ld local ones, %ld with semaphores\n",
		   nstuck, ntold, nbystanders, nlong, nmiddle, nlocal, nsemaphore);
	if (rounds >= 10000)
		ok(ntold > 1000 && nbystanders > 1000 && nlong > 1000 && nmiddle > 1000 && nlocal > 1000 &&
		   nsemaphore > 1000, "of all kinds");
}

/*-------------------------------------------------------------------------
 * Large graphs
 *-------------------------------------------------------------------------
 */

#define MANY_PARTIES	2000
#define MANY			20000

static ZkGraphParty many_parties[MANY_PARTIES];
static ZkGraphQueue many_queues[MANY_PARTIES + 1];
static ZkGraphContender many[MANY];
static ZkGraph large = {.parties = many_parties,.queues = many_queues};
static int	nmany;

/* Queues are filled one after the other */
static void
begin_queue(bool semaphore)
{
	many_queues[large.nqueues++] = (ZkGraphQueue)
	{
		.semaphore = semaphore,.contenders = &many[nmany]
	};
}

static void
stand(int party, bool granted, bool shared, int permits)
{
	ZkGraphContender *c = add(&large, large.nqueues - 1, party);

	c->granted = granted;
	c->shared = shared;
	c->permits = permits;
	if (!granted)
		wait_for(&large, large.nqueues - 1, many_queues[large.nqueues - 1].n - 1);
	nmany++;
}

/* Each waits for the one before; the first for the last, or for nobody */
static void
chain(bool closed, bool forward)
{
	for (int i = 0; i < MANY_PARTIES; i++)
	{
		int			party = forward ? i : MANY_PARTIES - 1 - i;

		begin_queue(false);
		stand(party, true, false, 0);
		if (party + 1 < MANY_PARTIES || closed)
			stand((party + 1) % MANY_PARTIES, false, false, 0);
	}
}

/*
 * In a chain of all parties, which is closed or not, each that falls changes a long queue
 * of a lock that they share, or a semaphore: before it is followed, or behind.  Or half of them hold
 * that, half wait, and many stand between.
 */
static void
test_large(void)
{
	bool		good = true;
	clock_t		begin = clock();

	for (int form = 0; form < 24; form++)
	{
		bool		semaphore = form % 2 != 0;
		bool		at_the_end = form / 2 % 2 != 0;
		bool		forward = form / 4 % 2 != 0;
		bool		closed = form / 8 == 1;
		bool		halves = form / 8 == 2;
		int			self = MANY_PARTIES - 1;
		int			nsteps = 0;

		large.nqueues = nmany = 0;
		large.nparties = MANY_PARTIES;
		for (int i = 0; i < MANY_PARTIES; i++)
			many_parties[i].queue = -1;
		if (halves)
		{
			begin_queue(false);
			stand(self, true, false, 0);
			for (int i = 0; i < MANY_PARTIES / 2; i++)
				stand(i, false, false, 0);
		}
		else if (at_the_end)
			chain(closed, forward);
		begin_queue(semaphore);
		for (int i = 0; i < MANY_PARTIES / (halves ? 2 : 1); i++)
			stand(i, true, true, MANY_PARTIES);
		while (nmany < MANY - (halves ? MANY_PARTIES / 2 : at_the_end ? 0 : 2 * MANY_PARTIES))
			stand(-1, false, nmany % 2 == 0, 1 + nmany % MANY_PARTIES);
		for (int i = MANY_PARTIES / 2; i < MANY_PARTIES && halves; i++)
			stand(i, false, i % 2 == 0, MANY_PARTIES / 2);
		if (!halves && !at_the_end)
			chain(closed, forward);

		if (zkl_find_cycle(&large, self))
		{
			int			at = self;

			do
				at = many_parties[at].waits_for;
			while (++nsteps < MANY_PARTIES && at != self);
		}
		good &= nsteps == (halves ? 2 : closed ? MANY_PARTIES : 0);
	}
	ok(good, "cycles of %d parties with %d contenders, and chains", MANY_PARTIES, MANY);
	ok(clock() - begin < CLOCKS_PER_SEC, "which take no noticeable time");
	printf("# %.1f ms\n", (double) (clock() - begin) * 1000 / CLOCKS_PER_SEC);
}

int
main(int argc, char **argv)
{
	begin_tests(argc, argv);
	test_large();
	test_random(argc > 2 ? atoi(argv[2]) : 50000);
	return end_tests();
}

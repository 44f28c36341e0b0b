/*-------------------------------------------------------------------------
 *
 * graph_test.c
 *	  Who is in a cycle of waits, without a server.  Prints TAP.
 *
 *		graph_test [SEED [ROUNDS]]
 *
 * A graph that is wrong is shown like this: "As Bx? Cs?; C2 A2?; A>B".  That is two
 * queues, in their order, and a local wait, of A for a lock that B has.  A contender
 * has a party, A to F or - for nobody known; a mode, s or x, or its permits of
 * a semaphore; and
 *
 *		?		it waits; the first such contender of a party is its wait
 *		??		it waits, and its party does not wait for it
 *		!		it is its party's wait, and granted
 *		'		another session's, of the same party
 *		*		nobody knows whose session's
 *		= 		(before it) it has the same rank as the one before
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

static void
copy(Case *to, const Case *from)
{
	*to = *from;
	to->g.parties = to->parties;
	to->g.queues = to->queues;
	to->g.locals = to->locals;
	for (int i = 0; i < QUEUES; i++)
		to->queues[i].contenders = to->contenders[i];
}

static ZkGraphContender *
add(Case *c, int queue, int party)
{
	ZkGraphQueue *q = &c->queues[queue];
	ZkGraphContender *added = &q->contenders[q->n];

	added->party = party;
	added->granted = true;
	added->shared = false;
	added->permits = 0;
	/* of nobody known, each has a session of its own */
	added->owner = party >= 0 ? party + 1 : 1000 + queue * LENGTH + q->n;
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
wait_for(Case *c, int queue, int at)
{
	int			party = c->contenders[queue][at].party;

	if (party < 0 || c->parties[party].queue >= 0)
		return;
	c->parties[party].queue = queue;
	c->parties[party].at = at;
}

static char *
letter(int party)
{
	static char letters[][2] = {"-", "A", "B", "C", "D", "E", "F"};

	return letters[party + 1];
}

/* All of it, or what is evidence */
static const char *
text_of(const Case *c, bool only_evidence)
{
	static char text[2000];
	char	   *end = text;
	const char *space = "";

	for (int i = 0; i < c->g.nqueues; i++)
	{
		const ZkGraphQueue *q = &c->queues[i];

		end += sprintf(end, "%s", i > 0 ? ";" : "");
		for (int j = 0; j < q->n; j++)
		{
			const ZkGraphContender *it = &q->contenders[j];
			bool		waits = it->party >= 0 && c->parties[it->party].queue == i &&
				c->parties[it->party].at == j;
			int64_t		owner = it->party >= 0 ? it->party + 1 : it->owner;

			if (only_evidence && !it->node.evidence)
				continue;
			end += sprintf(end, "%s%s%s", space, j > 0 && it->rank == it[-1].rank ? "=" : "",
						   letter(it->party));
			end += q->semaphore ? sprintf(end, "%d", it->permits) : sprintf(end, it->shared ? "s" : "x");
			end += sprintf(end, "%s%s", it->granted ? (waits ? "!" : "") : waits || it->party < 0 ? "?" : "??",
						   it->owner == 0 ? "*" : it->owner != owner ? "'" : "");
			space = " ";
		}
		space = " ";
	}
	for (int i = 0; i < c->g.nlocals; i++)
	{
		if (!only_evidence || c->locals[i].node.evidence)
			end += sprintf(end, "; %s>%s", letter(c->locals[i].waiter), letter(c->locals[i].holder));
	}
	return text;
}

static void
remove_contender(Case *c, int queue, int at)
{
	ZkGraphQueue *q = &c->queues[queue];

	memmove(&q->contenders[at], &q->contenders[at + 1], (q->n - at - 1) * sizeof(ZkGraphContender));
	q->n--;
	for (int i = 0; i < c->g.nparties; i++)
	{
		ZkGraphParty *p = &c->parties[i];

		if (p->queue == queue && p->at == at)
			p->queue = p->at = -1;
		else if (p->queue == queue && p->at > at)
			p->at--;
	}
}

/* It waits no longer; and gives back what it has, or keeps it for now */
static void
give_up(Case *c, int party, bool all)
{
	ZkGraphParty *p = &c->parties[party];
	int			n = 0;

	if (p->queue >= 0 && !c->contenders[p->queue][p->at].granted)
		remove_contender(c, p->queue, p->at);
	p->queue = p->at = -1;
	for (int i = 0; i < c->g.nlocals; i++)
	{
		if (c->locals[i].waiter != party)
			c->locals[n++] = c->locals[i];
	}
	c->g.nlocals = n;
	for (int i = 0; i < c->g.nqueues && all; i++)
	{
		for (int j = c->queues[i].n - 1; j >= 0; j--)
		{
			if (c->contenders[i][j].party == party && c->contenders[i][j].granted)
				remove_contender(c, i, j);
		}
	}
}

/*-------------------------------------------------------------------------
 * The model: what the words mean, by trying all sets
 *
 * A node is a party or a contender.  It is stuck because of so many of its
 * reasons, and the stuck are the union of all sets in which everyone has so
 * many reasons in the set.
 *-------------------------------------------------------------------------
 */

#define NODES		(PARTIES + QUEUES * LENGTH)
#define TRIED		13			/* nodes of which all sets are tried */

typedef enum Part
{
	ALL,
	EVIDENCE,					/* only what is evidence is there */
	CHOSEN						/* and only those waits that are told */
} Part;

typedef struct Model
{
	const Case *c;
	uint32_t	reasons[NODES];
	int			need[NODES];
	uint32_t	there;
	int			tried[NODES];
	int			ntried;
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

static uint32_t
bit_of_wait(const Case *c, int party)
{
	return wait_of(c, party) >= 0 ? bit(wait_of(c, party)) : 0;
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
model_queue(Model *m, int queue, Part part)
{
	const ZkGraphQueue *q = &m->c->queues[queue];

	for (int i = 0; i < q->n; i++)
	{
		const ZkGraphContender *it = &q->contenders[i];
		int			node = node_of(queue, i);

		m->need[node] = 1;
		m->reasons[node] = 0;
		if (part != ALL && !it->node.evidence)
			continue;
		m->there |= bit(node);
		if (it->granted)
		{
			m->reasons[node] = it->party >= 0 ? bit(it->party) : 0;
			continue;
		}
		m->tried[m->ntried++] = node;
		if (q->semaphore)
			m->need[node] = it->permits;
		for (int j = 0; j < q->n; j++)
		{
			if (part == CHOSEN && !q->semaphore && &q->contenders[j].node != it->node.reason)
				continue;
			if (holds_up(q, j, i) && (part == ALL || q->contenders[j].node.evidence))
				m->reasons[node] |= bit(node_of(queue, j));
		}
	}
}

static void
model(Model *m, const Case *c, Part part)
{
	m->c = c;
	m->there = 0;
	m->ntried = 0;
	for (int i = 0; i < c->g.nqueues; i++)
		model_queue(m, i, part);
	for (int i = 0; i < c->g.nparties; i++)
	{
		m->need[i] = 1;
		m->reasons[i] = bit_of_wait(c, i) & m->there;
		m->there |= bit(i);
	}
	for (int i = 0; i < c->g.nlocals; i++)
	{
		const ZkGraphLocal *l = &c->locals[i];

		if (part == ALL || l->node.evidence)
			m->reasons[l->waiter] |= bit(l->holder);
	}
	for (int i = 0; i < c->g.nparties; i++)
	{
		if (part == CHOSEN && c->parties[i].waits_for >= 0)
			m->reasons[i] &= is_local(c, i) ? bit(c->parties[i].waits_for) : bit_of_wait(c, i);
		/* others are stuck if their wait is, so they are not tried */
		if ((m->reasons[i] & (bit(PARTIES) - 1)) != 0)
			m->tried[m->ntried++] = i;
	}
}

static int
count(uint32_t set)
{
	return __builtin_popcount(set);
}

static bool
enough(const Model *m, int node, uint32_t set)
{
	return count(set & m->reasons[node]) >= m->need[node];
}

/* The greatest set without these */
static uint32_t
greatest(const Model *m, uint32_t without)
{
	uint32_t	all = 0;
	uint32_t	tried = 0;

	for (int i = 0; i < m->ntried; i++)
		tried |= bit(m->tried[i]);
	for (uint32_t which = 1; which < bit(m->ntried); which++)
	{
		uint32_t	set = 0;
		bool		good = true;

		for (int i = 0; i < m->ntried; i++)
			set |= (which >> i & 1) != 0 ? bit(m->tried[i]) : 0;
		if ((set & without) != 0 || (set & ~all) == 0)
			continue;

		/* the parties that were not tried, and what these all have */
		for (int i = 0; i < m->c->g.nparties; i++)
		{
			if ((tried & bit(i)) == 0 && enough(m, i, set))
				set |= bit(i) & ~without;
		}
		for (int i = PARTIES; i < NODES; i++)
		{
			if ((m->there & ~tried & ~without & bit(i)) != 0 && enough(m, i, set))
				set |= bit(i);
		}
		for (int i = 0; i < m->ntried && good; i++)
			good = (set & bit(m->tried[i])) == 0 || enough(m, m->tried[i], set);
		if (good)
			all |= set;
	}
	return all;
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
static long nexact;
static long nsimple;
static long nnobody;

/* Of failures only the first is reported, since one cause has thousands of effects */
static bool
holds(bool *good, bool passed, const Case *c, int self, const char *what)
{
	if (!passed && *good)
		printf("# %s: %s, of %s\n", what, text_of(c, false), letter(self));
	*good &= passed;
	return passed;
}

static bool
says_stuck(const Case *c, uint32_t stuck)
{
	for (int i = 0; i < c->g.nparties; i++)
	{
		if (c->parties[i].node.stuck != ((stuck & bit(i)) != 0))
			return false;
	}
	for (int i = 0; i < c->g.nqueues; i++)
	{
		for (int j = 0; j < c->queues[i].n; j++)
		{
			if (c->contenders[i][j].node.stuck != ((stuck & bit(node_of(i, j))) != 0))
				return false;
		}
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
	return count(seen) == fewest(m, stuck, self) ? seen : 0;
}

/*
 * Evidence is enough, and not much more: each contender is there because a party
 * waits by it, or it is one of those that another one needs.
 */
static void
check_evidence(const Case *c, uint32_t cycle, int self, int on_way, bool *good)
{
	Model		m;
	uint32_t	stuck;
	uint32_t	evidence = 0;
	int			contenders = 0;
	int			most = 0;
	bool		exact = true;
	bool		semaphore = false;

	model(&m, c, EVIDENCE);
	for (int i = 0; i < c->g.nparties; i++)
	{
		evidence |= c->parties[i].node.evidence ? bit(i) : 0;
		most += c->parties[i].node.evidence;
	}
	for (int i = PARTIES; i < NODES; i++)
	{
		if ((m.there & bit(i)) == 0)
			continue;
		evidence |= bit(i);
		contenders++;
		if (contender_of(c, i)->granted)
			continue;
		most += m.need[i];
		if (c->queues[(i - PARTIES) / LENGTH].semaphore)
		{
			semaphore = true;
			if (contender_of(c, i)->node.reason != NULL && count(m.reasons[i]) != m.need[i])
				exact = false;
		}
	}
	stuck = greatest(&m, 0);
	holds(good, (cycle & ~stuck) == 0, c, self, "the evidence does not tell that the cycle is stuck");
	holds(good, (evidence & ~stuck) == 0, c, self, "some evidence is not stuck because of evidence");
	holds(good, contenders <= most, c, self, "more evidence than needed");
	if (!semaphore && !is_local(c, self))
		holds(good, contenders == on_way, c, self, "evidence that is not of the cycle");
	nsemaphore += semaphore;

	/* without self, whoever is in the cycle has lost the reason that was told */
	if (!exact)
		return;
	nexact++;
	model(&m, c, CHOSEN);
	holds(good, (cycle & ~greatest(&m, 0)) == 0, c, self, "the waits that are told are not enough");
	stuck = greatest(&m, bit(self) | bit_of_wait(c, self));
	holds(good, (cycle & stuck) == 0, c, self, "the cycle does not rest on this party");
}

/* Somebody who gives up makes an end of a cycle, if there are no other reasons */
static void
check_simple(const Case *c, const Model *m, uint32_t stuck, uint32_t cycle, int self, bool *good)
{
	for (int i = 0; i < NODES; i++)
	{
		if ((stuck & bit(i)) != 0 && count(stuck & m->reasons[i]) != m->need[i])
			return;
	}
	nsimple++;
	for (int all = 0; all < 2; all++)
	{
		Case		after;

		copy(&after, c);
		give_up(&after, self, all);
		for (int i = 0; i < c->g.nparties; i++)
		{
			if ((cycle & bit(i)) == 0)
				continue;
			holds(good, !zkl_find_cycle(&after.g, i), c, i, "told of a cycle that is no more");
			holds(good, !after.parties[i].node.stuck, c, i, "stuck without the cycle");
		}
	}
}

/* One after the other of those who are told gives up, until nobody is told */
static void
check_victims(const Case *c, bool all, bool nobody, bool *good)
{
	Case		now;
	bool		any = true;

	copy(&now, c);
	while (any)
	{
		int			first = below(now.g.nparties);

		any = false;
		for (int i = 0; i < now.g.nparties && !any; i++)
		{
			int			party = (first + i) % now.g.nparties;

			if (!zkl_find_cycle(&now.g, party))
				continue;
			any = true;
			give_up(&now, party, all);
			zkl_find_cycle(&now.g, party);
			holds(good, !now.parties[party].node.stuck, c, party, "gave up, and is stuck");
		}
	}
	for (int i = 0; i < now.g.nparties; i++)
		holds(good, !now.parties[i].node.stuck || nobody, c, i, "stuck, and nobody was told of it");
}

/* Returns whom it tells, or a negative number */
static int
check(Case *c)
{
	bool		good = true;
	char		before[2000];
	uint32_t	told = 0;
	uint32_t	parties = 0;
	uint32_t	stuck;
	Model		m;

	strcpy(before, text_of(c, false));
	model(&m, c, ALL);
	stuck = greatest(&m, 0);
	for (int self = 0; self < c->g.nparties; self++)
	{
		bool		verdict = zkl_find_cycle(&c->g, self);

		parties |= bit(self) | bit_of_wait(c, self);
		holds(&good, says_stuck(c, stuck), c, self, "not who is stuck");
		holds(&good, verdict == ((stuck & bit(self)) != 0 && fewest(&m, stuck, self) < INT_MAX),
			  c, self, verdict ? "told, but in no cycle" : "in a cycle, and not told");
		nstuck += c->parties[self].node.stuck;
		if (verdict)
		{
			int			on_way;
			uint32_t	cycle = walk(c, &m, stuck, self, &on_way);

			ntold++;
			told |= bit(self);
			nlong += count(cycle) > 2;
			if (holds(&good, cycle != 0, c, self, "not a cycle, or not the shortest"))
			{
				check_evidence(c, cycle, self, on_way, &good);
				check_simple(c, &m, stuck, cycle, self, &good);
			}
		}

		/* whoever is not told is stuck by others alone, even if it gave up itself */
		else if (c->parties[self].node.stuck)
		{
			uint32_t	others = greatest(&m, bit(self) | bit_of_wait(c, self));
			int			wait = wait_of(c, self);

			nbystanders++;
			holds(&good, enough(&m, self, others) || (wait >= 0 && enough(&m, wait, others)), c, self,
				  "not told, but others are stuck because of it");
		}
	}
	if (stuck != 0)
	{
		/* contenders that nobody waits by can only be stuck by a tie of their own */
		bool		nobody = greatest(&m, parties) != 0;

		nnobody += nobody;
		holds(&good, told != 0 || nobody || (stuck & (bit(PARTIES) - 1)) == 0, c, -1,
			  "stuck, and nobody is told");
		check_victims(c, false, nobody, &good);
		check_victims(c, true, nobody, &good);
	}
	holds(&good, strcmp(before, text_of(c, false)) == 0, c, -1, "the graph was changed");
	ngraphs++;
	return good ? (int) told : -1;
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
		ZkGraphContender *it = add(c, queue, below(8) == 0 ? -1 : below(c->g.nparties));

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
			wait_for(c, queue, i);
	}
}

static void
random_graph(Case *c)
{
	bool		orderly = below(3) != 0;
	int			tried;

	do
	{
		bool		waits[PARTIES] = {false};

		clear(c);
		c->g.nparties = 1 + below(PARTIES);
		c->g.nqueues = 1 + below(QUEUES);
		for (int i = 0; i < c->g.nqueues; i++)
			random_queue(c, i, orderly);
		tried = 0;
		for (int n = below(2) * below(LOCALS + 1); n > 0; n--)
		{
			int			waiter = below(c->g.nparties);

			add_local(c, waiter, below(c->g.nparties));
			tried += !waits[waiter];
			waits[waiter] = true;
		}
		for (int i = 0; i < c->g.nqueues; i++)
		{
			for (int j = 0; j < c->queues[i].n; j++)
				tried += !c->contenders[i][j].granted;
		}
		/* large ones take long */
	} while (tried > TRIED || tried > 4 + below(TRIED - 3));
}

static void
test_random(int rounds)
{
	bool		good = true;

	ngraphs = nstuck = ntold = nbystanders = nmiddle = nlocal = 0;
	nsemaphore = nlong = nexact = nsimple = nnobody = 0;
	for (int i = 0; i < rounds && good; i++)
	{
		Case		c;

		random_graph(&c);
		good = check(&c) >= 0;
	}
	ok(good, "%ld random graphs, as the model says", ngraphs);
	printf("# %ld parties stuck, %ld told, %ld bystanders; %ld cycles of three and more, %ld waits "
		   "in them over others, %ld local ones, %ld with semaphores; %ld rest on one party, "
		   "%ld are alone, %ld graphs with stuck nobodies\n",
		   nstuck, ntold, nbystanders, nlong, nmiddle, nlocal, nsemaphore, nexact, nsimple, nnobody);
	if (rounds >= 10000)
		ok(ntold > 1000 && nbystanders > 1000 && nlong > 1000 && nmiddle > 1000 && nlocal > 1000 &&
		   nsemaphore > 1000 && nexact > 1000 && nsimple > 1000 && nnobody > 10, "of all kinds");
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
	ZkGraphQueue *q = &many_queues[large.nqueues++];

	q->semaphore = semaphore;
	q->contenders = &many[nmany];
	q->n = 0;
}

static void
stand(int party, bool granted, bool shared, int permits)
{
	ZkGraphQueue *q = &many_queues[large.nqueues - 1];
	ZkGraphContender *c = &q->contenders[q->n];

	c->party = party;
	c->granted = granted;
	c->shared = shared;
	c->permits = permits;
	c->owner = party >= 0 ? party + 1 : 10000 + nmany;
	c->rank = q->n;
	if (!granted && party >= 0)
	{
		many_parties[party].queue = large.nqueues - 1;
		many_parties[party].at = q->n;
	}
	q->n++;
	nmany++;
}

static void
begin_large(void)
{
	large.nqueues = nmany = 0;
	large.nparties = MANY_PARTIES;
	for (int i = 0; i < MANY_PARTIES; i++)
		many_parties[i].queue = -1;
}

static void
finds(const char *what, int self, bool expected, int steps)
{
	clock_t		begin = clock();
	bool		found = zkl_find_cycle(&large, self);
	double		ms = (double) (clock() - begin) * 1000 / CLOCKS_PER_SEC;
	int			at = self;
	int			n = 0;

	while (found && n <= MANY_PARTIES)
	{
		n++;
		at = many_parties[at].waits_for;
		if (at == self)
			break;
	}
	ok(found == expected && n == steps, "%s", what);
	printf("# %d contenders, %d steps, %.1f ms\n", nmany, n, ms);
}

/*
 * Each waits for the one before; the first for the last, or for nobody.  The
 * queues are in this order, or the other way round.
 */
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

static void
test_large(void)
{
	begin_large();
	chain(true, true);
	finds("a cycle of all parties", 0, true, MANY_PARTIES);

	begin_large();
	chain(false, true);
	finds("a chain of all", MANY_PARTIES - 1, false, 0);

	/* each party that falls changes a long queue */
	for (int i = 0; i < 8; i++)
	{
		bool		semaphore = i % 2 != 0;
		bool		at_the_end = i / 2 % 2 != 0;
		bool		forward = i < 4;

		begin_large();
		if (at_the_end)
			chain(false, forward);
		begin_queue(semaphore);
		for (int j = 0; j < MANY_PARTIES; j++)
			stand(j, true, true, MANY_PARTIES);
		while (nmany < MANY - (at_the_end ? 0 : 2 * MANY_PARTIES))
			stand(-1, false, false, 1 + nmany % MANY_PARTIES);
		if (!at_the_end)
			chain(false, forward);
		finds(semaphore ? "a chain whose members hold a semaphore" : "a chain whose members share a lock",
			  MANY_PARTIES - 1, false, 0);
	}

	/* half of them hold, half wait, and many stand between */
	for (int semaphore = 0; semaphore < 2; semaphore++)
	{
		begin_large();
		begin_queue(false);
		stand(MANY_PARTIES - 1, true, false, 0);
		for (int i = 0; i < MANY_PARTIES / 2; i++)
			stand(i, false, false, 0);
		begin_queue(semaphore);
		for (int i = 0; i < MANY_PARTIES / 2; i++)
			stand(i, true, true, MANY_PARTIES / 2);
		while (nmany < MANY - MANY_PARTIES / 2)
			stand(-1, false, nmany % 2 == 0, MANY_PARTIES / 2);
		for (int i = MANY_PARTIES / 2; i < MANY_PARTIES; i++)
			stand(i, false, i % 2 == 0, MANY_PARTIES / 2);
		finds(semaphore ? "a long queue of a semaphore" : "a long queue of a lock", MANY_PARTIES - 1, true, 2);
	}
}

int
main(int argc, char **argv)
{
	begin_tests(argc, argv);
	test_large();
	test_random(argc > 2 ? atoi(argv[2]) : 50000);
	return end_tests();
}

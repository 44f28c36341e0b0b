/*-------------------------------------------------------------------------
 *
 * wait_graph.h
 *	  Who waits for whom, and whether that is a cycle.
 *
 * Plain C: no PostgreSQL, no ZooKeeper, no I/O, and no memory but the
 * caller's, so that what gets a transaction aborted can be tested alone
 * (t/c/graph_test.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WAIT_GRAPH_H
#define ZKLOCK_WAIT_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ZkGraphKind
{
	ZKL_PARTY,
	ZKL_CONTENDER,
	ZKL_LOCAL
} ZkGraphKind;

/* What can be stuck; comes first in what it is */
typedef struct ZkGraphNode
{
	/* found */
	bool		stuck;			/* will never proceed, or go, by itself */
	bool		evidence;		/* the cycle rests on it */
	struct ZkGraphNode *reason; /* of evidence: what it is stuck because of,
								 * on the way around the cycle, or beside it;
								 * NULL: only others before it in the queue of
								 * a semaphore */
	ZkGraphKind kind;

	/* the search's own */
	bool		reached;
	struct ZkGraphNode *from;
	struct ZkGraphNode *next;
} ZkGraphNode;

/* One that stands in a queue; holds, or waits for those before it to go */
typedef struct ZkGraphContender
{
	ZkGraphNode node;

	/* filled in by the caller */
	int			party;			/* whose it is; -1: nobody known, who proceeds
								 * once granted */
	bool		granted;
	bool		shared;			/* in the queue of a lock */
	int32_t		permits;		/* in that of a semaphore: it holds once fewer
								 * are before it; greater than 0 */
	int64_t		owner;			/* ZooKeeper's session, of one party: in the
								 * queue of a lock those of one owner do not
								 * wait for each other; 0: not known, and like
								 * no other */
	int64_t		rank;			/* of two that have the same, each counts as
								 * before the other */

	/* the search's own */
	bool		enough;
	int			queue;
	struct ZkGraphContender *next_held;
	struct ZkGraphContender *next_unreached;
} ZkGraphContender;

typedef struct ZkGraphQueue
{
	bool		semaphore;		/* not a lock */
	ZkGraphContender *contenders;	/* by rank */
	int			n;

	/* the search's own */
	bool		to_judge;
	ZkGraphContender *unreached[2]; /* that hold, that wait */
} ZkGraphQueue;

/*
 * A session.  What it waits for in ZooKeeper is a contender of its own, and of
 * no other party.  If that turns out to be granted, this wait is over.
 */
typedef struct ZkGraphParty
{
	ZkGraphNode node;

	/* filled in by the caller */
	int			queue;			/* where it waits in ZooKeeper, or -1 */
	int			at;				/* its contender there: index into the queue */

	/* found */
	int			waits_for;		/* if it is in the cycle: the next party
								 * there; or -1 */

	/* the search's own */
	struct ZkGraphContender *wait;
	struct ZkGraphContender *held;
	struct ZkGraphLocal *waits;
} ZkGraphParty;

/* A wait for a lock of PostgreSQL's, between parties on one server */
typedef struct ZkGraphLocal
{
	ZkGraphNode node;

	/* filled in by the caller */
	int			waiter;
	int			holder;			/* has the lock, directly or through others */
	int			record;			/* this and the next: the caller's own */
	int			wait;

	/* the search's own */
	struct ZkGraphLocal *next_wait;
} ZkGraphLocal;

typedef struct ZkGraph
{
	ZkGraphParty *parties;
	int			nparties;
	ZkGraphQueue *queues;
	int			nqueues;
	ZkGraphLocal *locals;
	int			nlocals;
	void		(*breathe) (void);	/* called now and then, and may leave by
									 * longjmp(); or NULL */
} ZkGraph;

/*
 * Whether this party is in a cycle of waits that nobody in it can leave by
 * itself; not if it merely waits for one.  Fills in what is found: who is
 * stuck, and if true, a cycle with the fewest parties, and the evidence for
 * it.
 *
 * From self, waits_for leads around the cycle and back to self, and so do the
 * reasons: that of a party is its local wait, or its contender.  In ZooKeeper a
 * party may be held up through others: from its own contender, they lead over
 * contenders that only wait themselves, such as a writer between readers, to one
 * that is granted, or the one by which self waits.
 *
 * As long as all evidence stands, all parties of the cycle are stuck: each
 * contender that is evidence is there, holds or waits as was said here, and if
 * it holds, its party waits as was said here; and so do these local waits.
 */
extern bool zkl_find_cycle(ZkGraph *g, int self);

#endif							/* ZKLOCK_WAIT_GRAPH_H */

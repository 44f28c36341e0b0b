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

/* One that stands in a queue; holds, or waits for those before it to go */
typedef struct ZkGraphContender
{
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

	/* found */
	bool		stuck;			/* will never go by itself */
	bool		evidence;		/* the cycle rests on it */
	int			blocker;		/* if it is evidence and waits: the one, at
								 * this index of the queue, that it waits for
								 * on the way around the cycle, or, in the
								 * queue of a lock, by evidence beside that;
								 * or -1 */

	/* the search's own */
	bool		enough;
	bool		reached;
	bool		proven;
	int			queue;
	struct ZkGraphContender *from;
	struct ZkGraphContender *next_held;
	struct ZkGraphContender *next;
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
	/* filled in by the caller */
	int			queue;			/* where it waits in ZooKeeper, or -1 */
	int			at;				/* its contender there: index into the queue */

	/* found */
	bool		stuck;			/* will never proceed by itself */
	bool		evidence;		/* the cycle rests on its waits */
	int			waits_for;		/* if it is in the cycle: the next party
								 * there; or -1 */
	int			local;			/* by this local wait; or -1: in ZooKeeper */
	int			held_up_by;		/* and if so, by this contender of waits_for
								 * in the same queue: see zkl_find_cycle */

	/* the search's own */
	bool		reached;
	bool		proven;
	struct ZkGraphContender *wait;
	struct ZkGraphContender *held;
	struct ZkGraphLocal *waits;
	struct ZkGraphContender *through;
	struct ZkGraphContender *behind;
	struct ZkGraphLocal *by;
	struct ZkGraphParty *next;
} ZkGraphParty;

/* A wait for a lock of PostgreSQL's, between parties on one server */
typedef struct ZkGraphLocal
{
	/* filled in by the caller */
	int			waiter;
	int			holder;			/* has the lock, directly or through others */
	int			record;			/* this and the next: the caller's own */
	int			wait;

	/* found */
	bool		evidence;		/* the cycle rests on it */

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
} ZkGraph;

/*
 * Whether this party is in a cycle of waits that nobody in it can leave by
 * itself; not if it merely waits for one.  Fills in what is found: who is
 * stuck, and if true, a cycle with the fewest parties, and the evidence for
 * it.
 *
 * From self, waits_for leads around the cycle and back to self.  In ZooKeeper
 * a party may be held up through others: from its own contender, blocker leads
 * to held_up_by, over contenders that only wait themselves, such as a writer
 * between readers.  held_up_by is granted, unless it is the one by which self
 * waits.
 *
 * As long as all evidence stands, all parties of the cycle are stuck: each
 * contender that is evidence is there, holds or waits as was said here, and if
 * it holds, its party waits as was said here; and so do these local waits.
 */
extern bool zkl_find_cycle(ZkGraph *g, int self);

#endif							/* ZKLOCK_WAIT_GRAPH_H */

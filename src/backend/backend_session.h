/*-------------------------------------------------------------------------
 *
 * backend_session.h
 *	  This backend's ZooKeeper session: one at a time, opened when needed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_BACKEND_SESSION_H
#define ZKLOCK_BACKEND_SESSION_H

#include "compat.h"
#include "wait.h"

typedef struct ZkBackendCounters
{
	int64		waits;			/* calls that found the lock taken and waited */
	int64		timeouts;		/* of those, given up */
	int64		losses;			/* sessions that ended without our doing */
	int64		requests;		/* of sessions before this one */
	int64		reconnections;
} ZkBackendCounters;

extern ZkBackendCounters zkb_counters;

/*
 * The session if there is one that is not over, else NULL.  Notices the end
 * of the one there was.
 */
extern ZkSession *zkb_session(void);

/*
 * A WARNING if ZooKeeper has refused to release locks since it last said so.  (The
 * end of a transaction, which gave them back, does not wait for that.)
 */
extern void zkb_warn_unreleased(void);

/*
 * The same, without looking: it may be over, but its nodes can be asked.  For
 * those to whom its end must not come in between.
 */
extern ZkSession *zkb_peek(void);

/*
 * Counts the sessions: what was made in an earlier one is gone.  Only valid
 * after zkb_session or zkb_connect.
 */
extern uint32 zkb_generation(void);

/*
 * Raises 55000 if the session was opened without credentials: nobody could be
 * the creator of a node.
 */
extern void zkb_refuse_nameless(void);

/*
 * With nothing held, other settings than the session was opened with take
 * effect: end it, so that the next call opens another.
 */
extern void zkb_follow_settings(void);

/*
 * With something held, they do not.  But what is locked now would be locked in
 * another place than SHOW says, if zklock.hosts has no server in common with
 * what it was when the session was opened: 55000.
 */
extern void zkb_refuse_another_ensemble(void);

/* The servers that the session was opened for; NULL: there is no session */
extern const char *zkb_servers(void);

/*
 * A session that is connected and whose life is proven recently, opened if
 * need be.  Waits no longer than connect_timeout for a new one and
 * operation_timeout for one that is cut off.  Raises 55000, 53xxx, 58000,
 * 58030.
 */
extern ZkSession *zkb_connect(ZkWait *wait);

/*
 * Was the session's life proven so recently that what ZooKeeper last said of
 * its nodes can be believed?
 */
extern bool zkb_is_fresh(const ZkSessionInfo *info);

/*
 * Did the leader and a quorum confirm these nodes so recently, and did heartbeats
 * come so regularly before that, that none can have gone since but by somebody's
 * hand?  Ask before you ask whether one is known to be lost.
 */
extern bool zkb_are_proven(ZkNode *const *nodes, int n);

/*
 * The same of one that is about to be granted: recently is enough, since what
 * relies on it comes later.
 */
extern bool zkb_is_certain(ZkNode *const *nodes, int n);

/* Why the latest session that is over has lost what it had */
extern ZkLoss zkb_last_loss(void);

typedef enum ZkProof
{
	ZKB_PROVEN,
	ZKB_MISSING,				/* a node is gone, or closed to us: it is lost
								 * now */
	ZKB_OVER,					/* the session has ended */
	ZKB_NO_ANSWER
} ZkProof;

/*
 * Ask the leader and a quorum whether the session lives, and these nodes of
 * it.  Waits until this time, for a reconnection too.  Raises only what ends
 * any wait, and 53200.  If it was answered, that was asked for less than a
 * third of the session timeout ago.
 */
extern ZkProof zkb_prove(ZkNode *const *nodes, int n, ZkWait *wait, int64 until);

/* Raise 58030: the connection is broken, or the answer did not come */
pg_noreturn extern void zkb_raise_unanswered(ZkWait *wait);

#endif							/* ZKLOCK_BACKEND_SESSION_H */

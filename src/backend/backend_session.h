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
#include "zk/lease.h"
#include "zk/mark.h"
#include "zk/stop_signal.h"

/*
 * The session if there is one that is not over, else NULL.  Notices the end of
 * the previous one.
 */
extern ZkSession *zkb_session(void);

/*
 * At the end of each transaction: from here to the next of these calls, the session
 * is closed when it has been idle for zklock.idle_timeout.  Does not fail.
 */
extern void zkb_rest(void);

/*
 * Forget the session without closing it, in a process that is about to end: its nodes
 * stay until it expires.
 */
extern void zkb_let_expire(void);

/*
 * Whether something may have been lost since the last call of this
 */
extern bool zkb_may_have_lost(void);

/*
 * Issue a WARNING if ZooKeeper has refused releases that were not yet
 * reported.  (The end of a transaction, which sent them, does not wait for the
 * result.)
 */
extern void zkb_warn_unreleased(void);

/*
 * Like zkb_session, but without checking: it may be over, but its nodes can
 * still be examined.  For callers that must not notice its end at this point.
 */
extern ZkSession *zkb_peek(void);

/*
 * Number of the current session: nodes that were created in an earlier one are
 * gone.  Only valid after zkb_session or zkb_connect.
 */
extern uint32 zkb_generation(void);

/*
 * Raises 55000 if the session was opened without credentials: its nodes would
 * have no creator to be restricted to.
 */
extern void zkb_refuse_nameless(void);

/*
 * While nothing is held, changed settings take effect: if they differ from
 * those of the session, end it, so that the next call opens another.
 */
extern void zkb_follow_settings(void);

/*
 * While something is held, they do not.  But if zklock.hosts has no server in
 * common with its value when the session was opened, a lock taken now would be
 * in a place other than SHOW says: raises 55000.
 */
extern void zkb_refuse_another_ensemble(void);

/* The servers for which this session, or the last one, was opened; palloc'ed */
extern const char *zkb_servers(void);

/*
 * A session that is connected and was recently proven alive, opened if need
 * be.  Waits no longer than connect_timeout for a new one and
 * operation_timeout for one that is cut off.  Raises 55000, 53xxx, 58000,
 * 58030.
 */
extern ZkSession *zkb_connect(ZkWait *wait);

/* Why the last session that ended lost what it had */
extern ZkLoss zkb_last_loss(void);

typedef enum ZkProof
{
	ZKB_PROVEN,
	ZKB_LOST,					/* a node is gone, or closed to us, and is now
								 * marked as lost; or the session has ended */
	ZKB_NO_ANSWER
} ZkProof;

/*
 * Have the leader and a quorum confirm that the session is alive and has these nodes,
 * unless they did, when they were asked at this time or later.  Waits until then, for
 * a reconnection too; a COMMIT, after a silence, for the leader to be told first, which
 * comes on top.  Raises only what interrupts any wait, and 53200.
 */
extern ZkProof zkb_prove(ZkNode *const *nodes, int n, ZkUse use, int64 since,
						 ZkWait *wait, int64 until);

#endif							/* ZKLOCK_BACKEND_SESSION_H */

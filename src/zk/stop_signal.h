/*-------------------------------------------------------------------------
 *
 * stop_signal.h
 *	  The owner is asked to stop what relies on a lost node, or to end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_STOP_SIGNAL_H
#define ZKLOCK_STOP_SIGNAL_H

#include "node.h"

/*
 * During a turn, which the owner begins and ends, its thread is
 * sent a signal when a node that it relies on is known to be lost, and each
 * second until the turn ends.  With ZKS_STOP_DOUBT also when nothing has
 * proven for a whole session timeout that the session lives.  Begin a turn
 * after what is relied on has become more, and a new one when it has become
 * less.  If it is to carry on, the owner still relies on something that a session
 * had which is closed by now.
 */
typedef enum ZksStopWhen
{
	ZKS_STOP_NEVER,
	ZKS_STOP_LOST,
	ZKS_STOP_DOUBT,
	ZKS_STOP_TERMINATE			/* as ZKS_STOP_DOUBT, and see
								 * zks_terminate_begin */
} ZksStopWhen;

typedef struct ZkStopReason
{
	bool		doubt;			/* it may still be held */
	ZkLoss		loss;
	char		dir[ZKS_PATH_LEN];	/* of the node */
} ZkStopReason;

extern void zks_stop_when(ZksStopWhen when);
extern void zks_stop_begin(int signal, bool carry_on);
extern void zks_stop_end(void);
extern bool zks_stop_possible(void);	/* a turn has begun */

/*
 * Whether something may rely on locks of a session that is closed by now.  True
 * after each close, until the owner says what is so.
 */
extern bool zks_stop_closed_counts(void);
extern void zks_stop_closed(bool counts);

/*
 * In this turn the owner has a reason of its own to stop, whatever is lost or not:
 * the signal comes a second from now, and each second until the next turn, or for
 * longer if it has one then.  NULL: it has none, which must be said, too.
 */
extern void zks_stop_self(const ZkStopReason *why);

/* For the handler: whether the owner is asked to stop, in this turn */
extern ZkReliance zks_stop_asked(void);

/* What was lost when the owner was last asked */
extern void zks_stop_reason(ZkStopReason *reason);

/*
 * With ZKS_STOP_TERMINATE the owner's process is to end when a node on which it relies
 * by a session-scope hold is lost, or in doubt.  That is so between transactions, too, and not
 * while one commits, so it has turns of its own, with the same signal.  End one
 * before such a hold is released, and begin a new one when that has been told by
 * zkn_rely: what was asked for in the old one is void.  A new one looks at once at the
 * session, which may be NULL; zks_terminate_self gives, or takes back, a reason for this
 * turn that no session's thread knows.
 */
extern void zks_terminate_begin(int signal, ZkSession *session);
extern void zks_terminate_end(void);
extern bool zks_terminate_possible(void);
extern void zks_terminate_self(const ZkStopReason *why);
extern bool zks_terminate_asked(void);	/* for the handler */
extern void zks_terminate_reason(ZkStopReason *reason);

#endif							/* ZKLOCK_STOP_SIGNAL_H */

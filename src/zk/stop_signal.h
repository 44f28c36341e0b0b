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
 * During a span, which the owner begins and ends, its thread is
 * sent a signal when a node that it relies on is known to be lost, and each
 * second until the span ends.  With ZKS_STOP_DOUBT also when nothing has
 * proven for a whole session timeout that the session lives.  Begin a span
 * after what is relied on has become more, and a new one when it has become
 * less: what was asked for in the old one is void.
 *
 * With ZKS_STOP_TERMINATE its process is to end when a node on which it relies by a
 * session-scope hold is lost, or in doubt.  That is so between transactions, too, and not
 * while one commits, so it has spans of its own, with the same signal.  End one before
 * such a hold is released, and begin a new one when that has been told by zkn_rely.
 */
typedef enum ZksStopWhat
{
	ZKS_STOP_STATEMENT,
	ZKS_STOP_PROCESS
} ZksStopWhat;

#define ZKS_STOP_KINDS		2

typedef enum ZksStopWhen
{
	ZKS_STOP_NEVER,
	ZKS_STOP_LOST,
	ZKS_STOP_DOUBT,
	ZKS_STOP_TERMINATE			/* as ZKS_STOP_DOUBT, and the process, too */
} ZksStopWhen;

typedef struct ZkStopReason
{
	bool		doubt;			/* it may still be held */
	ZkLoss		loss;
	char		dir[ZKS_PATH_LEN];	/* of the node */
} ZkStopReason;

extern void zks_stop_when(ZksStopWhen when);
extern void zks_stop_begin(ZksStopWhat what, int signal);
extern void zks_stop_end(ZksStopWhat what);
extern bool zks_stop_possible(ZksStopWhat what);	/* a span has begun */

/* What was lost before the span began need not wait for the session's thread */
extern void zks_stop_look(ZkSession *session);

/*
 * In this span the owner has a reason of its own to stop, which no session's thread
 * knows, such as what a session had that it has closed: the signal comes a second from
 * now, and each second until the span ends, or for longer if there is such a reason in the
 * next one; for the process at once, too.  ZKN_NOT_RELIED: it has none, which must be
 * said, too.
 */
extern void zks_stop_self(ZksStopWhat what, ZkReliance reliance, const ZkStopReason *why);

/* For the handler: whether the owner is asked to stop, in this span */
extern ZkReliance zks_stop_asked(ZksStopWhat what);

/* What was lost when the owner was last asked */
extern void zks_stop_reason(ZksStopWhat what, ZkStopReason *reason);

#endif							/* ZKLOCK_STOP_SIGNAL_H */

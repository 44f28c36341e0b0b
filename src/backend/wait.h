/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Waiting for ZooKeeper, in a way that can always be ended.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WAIT_H
#define ZKLOCK_WAIT_H

#include "zk/session.h"

/* The limits of one call, all on the clock of zks_now() */
typedef struct ZkWait
{
	int64		deadline;		/* of the timeout argument, or ZKS_NEVER */
	int64		lock_deadline;	/* of lock_timeout, or ZKS_NEVER */
	int64		try_until;		/* when one that may not wait for others must
								 * know, or ZKS_NEVER */
} ZkWait;

typedef enum ZkWaitEvent
{
	ZKB_WAIT_CONNECT,
	ZKB_WAIT_ACQUIRE,
	ZKB_WAIT_RELEASE,
	ZKB_WAIT_CHECK,				/* that a lock is still held */
	ZKB_WAIT_LOOK				/* at a queue */
} ZkWaitEvent;

/*
 * timeout_ms < 0: no limit.  lock_timeout counts for calls that wait for
 * others, not for those that only try.
 */
extern void zkb_wait_begin(ZkWait *wait, int64 timeout_ms, bool use_lock_timeout);

/* For a wait of one's own, by whoever has called zkb_wait_begin once; never fails */
extern uint32 zkb_wait_event(ZkWaitEvent event);

/* The time at which so many ms from now are over */
extern int64 zkb_deadline(int ms);

/*
 * A call that may not wait for others has a session now: whatever it asks, and
 * however often this is said, operation_timeout from now is for all of it
 */
extern void zkb_wait_limit_try(ZkWait *wait);

/* When what is asked now must be answered */
extern int64 zkb_wait_answer_due(const ZkWait *wait);

/*
 * Wait until something has changed in the session, until this time, or the
 * call's deadline; whichever it was, look again.  Returns false when one of
 * the times is over.  Raises 55P03 at lock_timeout's; cancel and terminate
 * end it as they end any statement.
 */
extern bool zkb_wait(ZkWait *wait, ZkSession *session, int64 until, ZkWaitEvent event);

#endif							/* ZKLOCK_WAIT_H */

/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Waiting for ZooKeeper, in a way that can always be interrupted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WAIT_H
#define ZKLOCK_WAIT_H

#include "zk/node.h"
#include "zk/request.h"

/* The limits of one call, all on the clock of zks_now() */
typedef struct ZkWait
{
	int64		deadline;		/* of the timeout argument, or ZKS_NEVER */
	int64		lock_deadline;	/* of lock_timeout, or ZKS_NEVER */
	int64		try_until;		/* when a call that may not wait for others
								 * must have its answer, or ZKS_NEVER */
	char	   *(*tell) (void *arg);	/* a sentence for DETAIL: for whom we
										 * wait; may return NULL, or be NULL */
	void	   *arg;
	int			said;			/* what ZooKeeper last said that was no
								 * answer, to be told if there is none; or 0 */
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
 * timeout_ms < 0 means no limit.  lock_timeout applies to calls that wait for
 * others, not to those that only try.
 */
extern void zkb_wait_begin(ZkWait *wait, int64 timeout_ms, bool use_lock_timeout);

/* The timeout raises an error, as lock_timeout does, instead of being returned */
extern void zkb_wait_or_fail(ZkWait *wait);

/*
 * For a caller with a wait of its own, after one zkb_wait_begin; never fails
 */
extern uint32 zkb_wait_event(ZkWaitEvent event);

/* The time that is this many ms from now */
extern int64 zkb_deadline(int ms);

/*
 * A call that may not wait for others has a session now.  All that it asks
 * must be answered within operation_timeout of the first call of this.
 */
extern void zkb_wait_limit_try(ZkWait *wait);

/* When a request that is sent now must be answered */
extern int64 zkb_wait_answer_due(const ZkWait *wait);

/*
 * Wait until something has changed in the session, until this time, or until
 * the call's deadline; the caller must then look again.  Returns false once
 * one of the times has passed.  Raises 55P03 when lock_timeout expires; cancel
 * and terminate end it as they end any statement.
 */
extern bool zkb_wait(ZkWait *wait, ZkSession *session, int64 until, ZkWaitEvent event);

typedef enum ZkWaited
{
	ZKB_CAME,
	ZKB_SESSION_OVER,
	ZKB_NO_REASON,
	ZKB_LATE
} ZkWaited;

/* How long, and why, a call waits for what ZooKeeper owes it */
typedef struct ZkPatience
{
	ZkSession  *session;
	ZkWait	   *wait;
	ZkWaitEvent event;
	int64		until;
	bool		raises;			/* zkb_raise_unanswered, instead of ZKB_LATE */
	bool		(*go_on) (void *arg);	/* whether there is still reason to
										 * wait; NULL: yes */
	void	   *arg;
	ZkWaited	waited;			/* what came of it */
} ZkPatience;

/*
 * while (!it_is_there && zkb_wait_on(patience));
 * If the connection is broken, that may last until it is restored.
 */
extern bool zkb_wait_on(ZkPatience *patience);
extern ZkWaited zkb_await_answer(ZkPatience *patience, ZkRequest *request, ZkAnswer *answer);

/* The same for a node, until it is known what became of its create */
extern ZkWaited zkb_await_node(ZkPatience *patience, ZkNode *node, ZkNodeInfo *info);

/* Let this time pass, or the call's */
extern void zkb_sleep(ZkWait *wait, ZkSession *session, int64 until, ZkWaitEvent event);

/*
 * The pause before that is asked again to which ZooKeeper gave no answer; no longer
 * than until this time
 */
extern void zkb_pause(ZkWait *wait, ZkSession *session, int64 until, ZkWaitEvent event);

#endif							/* ZKLOCK_WAIT_H */

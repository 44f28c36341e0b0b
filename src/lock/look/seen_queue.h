/*-------------------------------------------------------------------------
 *
 * seen_queue.h
 *	  A queue as it was read, for those who only look: who holds, who waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SEEN_QUEUE_H
#define ZKLOCK_SEEN_QUEUE_H

#include "reader.h"
#include "zk/lock_protocol.h"

typedef struct ZkSeenContender
{
	ZkpContender name;
	bool		granted;
	bool		read;			/* what follows is known */
	ZkStat		stat;
	char		tag[ZKP_TAG_LEN];	/* of the backend; "": none of ours */
	char	   *identity;		/* lines of node_identity.c */
	int			identity_len;
} ZkSeenContender;

typedef struct ZkSeenQueue
{
	char	   *dir;
	bool		semaphore;		/* those for a semaphore, or those for a lock */
	ZkSeenContender *list;		/* in order */
	int			n;
} ZkSeenQueue;

/*
 * Read a queue according to the server that we are connected to: those that hold,
 * and with_waiters as many of those that wait.  If more than most would have to be
 * read, or the order cannot be told, the queue is empty.  All is palloc'ed.  No other
 * question may be under way, and the caller ends the reading, in case of an error, too.
 */
extern ZkReading zkl_read_queue(ZkReader *reader, const char *dir, bool semaphore, int with_waiters,
								int most, ZkSeenQueue *queue);

/* A queue in which nobody was found: its directory may be a single node, which holds */
extern ZkReading zkl_read_single(ZkReader *reader, ZkSeenQueue *queue);

/* The session of this contender, which is read if it is not known; or 0 */
extern ZkReading zkl_read_owner(ZkReader *reader, ZkSeenQueue *queue, int at, int64 *owner);

#endif							/* ZKLOCK_SEEN_QUEUE_H */

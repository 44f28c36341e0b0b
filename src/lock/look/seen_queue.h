/*-------------------------------------------------------------------------
 *
 * seen_queue.h
 *	  Queues as they were read: who holds, who waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SEEN_QUEUE_H
#define ZKLOCK_SEEN_QUEUE_H

#include "backend/node_identity.h"
#include "reader.h"

typedef struct ZkSeenQueue ZkSeenQueue;

#define ZKL_NOT_READ	(-1)

typedef struct ZkSeenContender
{
	ZkpContender name;			/* comes first: see zkp_compare; with name
								 * NULL: a single node that is no lock */
	bool		granted;
	bool		fresh;			/* it is read according to the leader */
	int			keeps;			/* it is read next, with so much of its data;
								 * 0: without; ZKL_NOT_READ: no more */
	ZkSeenQueue *queue;			/* that it is in, from then on */
	int			rc;				/* of the answer */
	bool		read;			/* what follows is known */
	ZkStat		stat;
	char	   *data;			/* not terminated */
	int			data_len;
	ZkpData		says;			/* the same, read */
	char	   *fields[ZKB_FIELDS]; /* what it says of whose it is */
} ZkSeenContender;

struct ZkSeenQueue
{
	char	   *dir;
	bool		semaphore;		/* those for a semaphore, or those for a lock */
	bool		single;			/* dir itself may be the node */
	bool		judged;			/* else the order, or who holds, is not known */
	bool		replaced;		/* a writer is gone, and there may be a reader
								 * in its place: who was found is in the list */
	ZkSeenContender *list;		/* in order */
	int			n;

	/* of the reading */
	bool		by_czxid;		/* numbers do not tell the order */
	bool		unread;			/* as the caller says: it is not to be read */
	bool		too_many;		/* would have to be read */
	int			nread;			/* the first ones */
	int			end;			/* and those up to here are being read */
	int			nlists;			/* the caller's */
};

/* Shows the queue of a path, which is in UTF-8; NULL: that could not be read */
typedef void (*ZkShowQueue) (const char *path, const ZkSeenQueue *queue, void *arg);

/*
 * How many are read.  The nodes of those who only wait need not be, to tell who
 * holds: a list has their names and their order.
 */
typedef struct ZkDepth
{
	bool		holders;		/* all that may hold */
	int			first;			/* and this many of the first in any case */
	int			most;			/* but none if they are more than that */
	bool		closed;			/* what can be known of one whose data is
								 * closed to us */
} ZkDepth;

/* The queue of one kind in this list of a directory, which need not stay */
extern void zkl_take_queue(ZkSeenQueue *queue, const char *dir, bool semaphore, const ZkAnswer *list);

/* These, which need not stay either */
extern void zkl_take_contenders(ZkSeenQueue *queue, const char *dir, const ZkpContender *contenders, int n);

/* A node by its name in the directory; or, with NULL, the directory as a single node */
extern void zkl_take_name(ZkSeenQueue *queue, const char *dir, const char *name);

/*
 * Read these queues, each to this depth, and judge who holds.  Who is gone is left
 * out.  All is palloc'ed.  Other questions are dropped, and the caller ends the
 * reading, in case of an error, too.  If the connection broke, this may go on with
 * another one.
 */
extern bool zkl_read_queues(ZkReader *reader, ZkSeenQueue *queues, int n, const ZkDepth *depth);

/*
 * List and read one, according to the server that we are connected to.  If it cannot be judged, it is empty.
 */
extern bool zkl_read_queue(ZkReader *reader, const char *dir, bool semaphore, const ZkDepth *depth,
						   ZkSeenQueue *queue);

/* The session of this contender, which is asked for if it is not known; or 0 */
extern bool zkl_read_owner(ZkReader *reader, const ZkSeenQueue *queue, int at, int64 *owner);

#endif							/* ZKLOCK_SEEN_QUEUE_H */

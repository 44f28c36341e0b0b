/*-------------------------------------------------------------------------
 *
 * protocol.h
 *	  The names of lock nodes, their order, and who blocks whom.
 *
 * Plain C: no PostgreSQL, no ZooKeeper, no I/O, so that the rules on which
 * mutual exclusion rests can be tested alone (t/c/protocol_test.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_PROTOCOL_H
#define ZKLOCK_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

/* A UUID in text form, with its terminator */
#define ZKP_UUID_LEN		37

/* Room for "_c_<uuid>-semaphore-<permits>-" and its terminator */
#define ZKP_PREFIX_LEN		64

/* Room for a prefix and the number that ZooKeeper appends */
#define ZKP_NAME_LEN		(ZKP_PREFIX_LEN + 12)

/* Room for the lines that tell whose a node is, and for all that zkp_write_data writes */
#define ZKP_IDENTITY_LEN	2048
#define ZKP_DATA_LEN		(ZKP_IDENTITY_LEN + 64)

/*
 * Above this number, the end of the numbers is near: 2^31 - 1, after which
 * ZooKeeper's counter sticks
 */
#define ZKP_SEQ_HIGH		2000000000

typedef enum ZkpMode
{
	ZKP_NONE,					/* not a contender */
	ZKP_SHARED,
	ZKP_EXCLUSIVE,
	ZKP_SEMAPHORE				/* these and the two above ignore each other */
} ZkpMode;

/* Whose names our nodes have; whatever it is, we read everyone's */
typedef enum ZkpStyle
{
	ZKP_CURATOR,				/* Curator's mutex; shared locks beside it */
	ZKP_CURATOR_RW,				/* Curator's read-write lock */
	ZKP_KAZOO					/* kazoo's Lock, ReadLock, WriteLock */
} ZkpStyle;

/* What somebody wants who is going to stand in a queue */
typedef struct ZkpWant
{
	ZkpMode		mode;
	ZkpStyle	style;
	int32_t		permits;		/* of a semaphore: how many may hold at once */
	const char *identity;		/* lines that tell who it is, or NULL */
	bool		closed;			/* what is made for it is for those who are we */
} ZkpWant;

typedef struct ZkpContender
{
	const char *name;			/* points to what was parsed */
	ZkpMode		mode;
	int32_t		seq;			/* the number that ZooKeeper appended */
	int32_t		permits;		/* of a semaphore */
	int64_t		czxid;			/* the transaction that made it, or the one in
								 * whose place it stands; 0: not known */
	int64_t		owner;			/* the session that made it; 0: not known.
								 * Only for zkp_granted, as is: */
	bool		ours;			/* zklock made it */
	int			tag;			/* the caller's */
} ZkpContender;

/* What the data of a node says */
typedef struct ZkpData
{
	bool		ours;			/* zklock wrote it */
	bool		shared;			/* the holder has become a reader */
	bool		granted;		/* a place of a semaphore is its own */
	int64_t		czxid;			/* of the node whose place it took, or 0 */
	const char *identity;		/* the lines that follow; no terminator */
	int			identity_len;
} ZkpData;

/*
 * What a queue says to one who stands in it.
 */
typedef struct ZkpView
{
	bool		self_seen;		/* our own node is in the queue */
	int			need;			/* how many of those before us must go; 0: we
								 * hold */
	int			nwatch;			/* whom to watch: indexes into the queue, the */
	int		   *watch;			/* nearest first; room for the whole queue */
	bool		next;			/* once one of the watched is deleted, we hold */
	bool		may_soften;		/* one exclusive node is before us, and its
								 * data may come to say that it has become
								 * shared */
	bool		may_be_soft;	/* and may say so already */
	bool		stuck;			/* who must go before us waits for us */
	bool		first;			/* of a semaphore's waiters: nobody is
								 * watched, since any change of the directory
								 * may be what we wait for */
	int			ahead;			/* so many waiters of a semaphore are before
								 * us, and the nearest of them is watched:
								 * look again once it is gone, or says
								 * "granted" */
	bool		tell;			/* we hold, and somebody waits to be told */
} ZkpView;

/* Whether this child is a contender, of whichever client */
extern bool zkp_parse(const char *name, ZkpContender *contender);

/*
 * Whether a part of a user's path looks like a node that zklock or another
 * client makes for itself.  A lock there could not be told from a contender.
 */
extern bool zkp_is_reserved(const char *part, int len);

/* The name of a new node, up to the number; prefix has ZKP_PREFIX_LEN bytes */
extern void zkp_prefix(char *prefix, const char *uuid, const ZkpWant *want);

/*
 * The name that an exclusive node gets when its holder becomes a reader; name
 * has ZKP_NAME_LEN bytes.  False: it keeps its name, and its data tells.
 */
extern bool zkp_shared_name(char *name, const char *exclusive);

/*
 * What is written into a node of ours: lines of text, the first "zklock".
 * Then "shared", once its holder has become a reader, or "granted", once the
 * place of a semaphore that it waited for is its own; of a node that took the
 * place of another, the transaction that made that one ("czxid 42"), since
 * order may go by those; and whose it is.  data has ZKP_DATA_LEN bytes; says:
 * identity ends with a zero, or is NULL.  Reading takes anybody's data.
 */
extern void zkp_write_data(char *data, const ZkpData *says);
extern void zkp_read_data(const char *data, int len, ZkpData *says);

/*
 * The contenders among these children, in their order: those for a semaphore,
 * or those for a lock.  Returns how many; queue has room for n.
 */
extern int	zkp_queue(char *const *names, int n, ZkpMode mode, ZkpContender *queue);

/*
 * Whether the numbers do not tell the order.  Then the czxids must be filled in,
 * those that are gone left out, and the queue sorted again.
 */
extern bool zkp_needs_czxids(const ZkpContender *queue, int n);
extern void zkp_sort(ZkpContender *queue, int n);

/*
 * Whom one who wants this must wait for.  self is its node's name, or NULL for
 * one who has none yet and would stand behind everybody.  own is the name of
 * the shared node that the same session holds there already, or NULL.
 */
extern void zkp_look(const ZkpContender *queue, int n, const char *self,
					 const char *own, const ZkpWant *want, ZkpView *view);

/*
 * Which of the queue hold the lock.  Those whose data says that they have become
 * shared have that mode here.
 */
extern void zkp_granted(const ZkpContender *queue, int n, bool *granted);

#endif							/* ZKLOCK_PROTOCOL_H */

/*-------------------------------------------------------------------------
 *
 * lock_protocol.h
 *	  The names of lock nodes, their order, and who blocks whom.
 *
 * Plain C: no PostgreSQL, no ZooKeeper, no I/O, so that the rules on which
 * mutual exclusion rests can be tested alone (t/c/protocol_test.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_LOCK_PROTOCOL_H
#define ZKLOCK_LOCK_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

/* A UUID in text form, with its terminator */
#define ZKP_UUID_LEN		37

/* Room for "_c_<uuid>-semaphore-<permits>-" and its terminator */
#define ZKP_PREFIX_LEN		64

/* Room for a prefix and the number that ZooKeeper appends */
#define ZKP_NAME_LEN		(ZKP_PREFIX_LEN + 12)

/*
 * Room for the lines that tell whose node it is, and for what zkp_write_data
 * writes before them
 */
#define ZKP_IDENTITY_LEN	2048
#define ZKP_DATA_EXTRA		64

/*
 * Above this number, sequence numbers are about to run out: ZooKeeper's
 * counter stops at 2^31 - 1
 */
#define ZKP_SEQ_HIGH		2000000000

typedef enum ZkpMode
{
	ZKP_NONE,					/* not a contender */
	ZKP_SHARED,
	ZKP_EXCLUSIVE,
	ZKP_SEMAPHORE				/* these and locks ignore each other */
} ZkpMode;

/* The names that our nodes get; we read everyone's in any case */
typedef enum ZkpStyle
{
	ZKP_CURATOR,				/* Curator's mutex, and shared locks of our
								 * own */
	ZKP_CURATOR_RW,				/* Curator's read-write lock */
	ZKP_KAZOO,					/* kazoo's Lock, ReadLock, WriteLock */
	ZKP_SINGLE					/* one node at the path itself: no queue */
} ZkpStyle;

/*
 * The directories, below the root, of the records that tell who waits where while
 * he is waited for, and of the marks of claims; and how the names of such
 * directories begin, which no part of a user's path may have
 */
#define ZKP_BOARD			"/__zklock_waits__"
#define ZKP_CLAIMS			"/__zklock_claims__"
#define ZKP_OWN_DIRS		"__zklock_"

/* The tag of a backend: hex digits, and a terminator */
#define ZKP_TAG_LEN			17

/* What a contender wants */
typedef struct ZkpWant
{
	ZkpMode		mode;
	ZkpStyle	style;
	int32_t		permits;		/* of a semaphore: how many may hold at once */
	const char *identity;		/* lines that tell who it is, or NULL */
	bool		closed;			/* only our own identity gets access */
	int32_t		seen_version;	/* of a single node: that of the one before,
								 * if it was seen; else 0 */
	const char *record;			/* instead of a contender, a record on the
								 * board: how its name begins, which is a tag,
								 * and "+" if it names others; or NULL */
} ZkpWant;

typedef struct ZkpContender
{
	const char *name;			/* points to what was parsed */
	ZkpMode		mode;
	int32_t		seq;			/* the number that ZooKeeper appended */
	int32_t		permits;		/* of a semaphore */
	int64_t		czxid;			/* the transaction that created it, or the
								 * node that it replaced; 0: not known */
	int64_t		owner;			/* the session that created it; 0: not known.
								 * Only for zkp_granted, like: */
	bool		ours;			/* zklock made it */
} ZkpContender;

/* The name of a record */
typedef struct ZkpRecordName
{
	char		tag[ZKP_TAG_LEN];
	bool		names_others;
} ZkpRecordName;

/* What the data of a node says */
typedef struct ZkpData
{
	bool		ours;			/* zklock wrote it */
	bool		shared;			/* its holder has become a reader */
	bool		granted;		/* it has its place of a semaphore */
	int64_t		czxid;			/* of the node that it replaced, or 0 */
	const char *identity;		/* the lines that follow; no terminator */
	int			identity_len;
} ZkpData;

/* A contender's view of its queue */
#define ZKP_MOST_WATCHED	2
typedef struct ZkpView
{
	bool		self_seen;		/* our own node is in the queue */
	int			need;			/* how many of those before us must leave; 0:
								 * we hold */
	int			nwatch;			/* whom to watch: indexes into the queue, the
								 * nearest first.  Nobody, though some must
								 * leave: any change of the directory may be
								 * what we wait for */
	int			watch[ZKP_MOST_WATCHED];
	bool		next;			/* once one of the watched is deleted, we hold */
	bool		may_soften;		/* one exclusive node is before us, and its
								 * data may change to say that it is shared;
								 * if it is the first of all, it may already
								 * say so */
	bool		stuck;			/* one that must leave before us waits for us */
	int			ahead;			/* this many waiters with the same number are
								 * before us, and the nearest of them is
								 * watched: look again once it is gone, or
								 * says "granted" */
	bool		tell;			/* we hold, and somebody waits to be told */
} ZkpView;

/* Whether this child is a contender, of whichever client */
extern bool zkp_parse(const char *name, ZkpContender *contender);

/* Whether this child is a record, or has the form of one */
extern bool zkp_parse_record(const char *name, ZkpRecordName *record);

/*
 * Whether a component of a user's path looks like a node that zklock or
 * another client creates for itself.  A lock there would be indistinguishable
 * from a contender.
 */
extern bool zkp_is_reserved(const char *part, int len);

/*
 * Whether this child is no contender, but may be a sequential node of another kind.
 * A name longer than this is not believed to be one.
 */
#define ZKP_STRANGER_MAX	255
extern bool zkp_may_be_stranger(const char *name);

/* Whether it is the name of a directory of zklock's own */
extern bool zkp_is_own_dir(const char *part, int len);

/* The name of a new node, up to the number; prefix has ZKP_PREFIX_LEN bytes */
extern void zkp_prefix(char *prefix, const char *uuid, const ZkpWant *want);

/*
 * The name that an exclusive node gets when its holder becomes a reader; name
 * has ZKP_NAME_LEN bytes.  False: it keeps its name, and its data says so.
 */
extern bool zkp_shared_name(char *name, const char *exclusive);

/*
 * What a single node is called, to tell it from others at the same path, since it
 * has no name of its own: "single-<czxid>".  No child of a directory that is a
 * contender is called so.  name has ZKP_NAME_LEN bytes.
 */
extern void zkp_single_name(char *name, int64_t czxid);
extern bool zkp_parse_single(const char *name, int64_t *czxid);

/*
 * The data of our nodes: lines of text, the first "zklock".  Then "shared",
 * once its holder has become a reader, or "granted", once it has got the place
 * of a semaphore that it waited for; for a node that replaced another one, the
 * transaction that created that one ("czxid 42"), since the order may depend
 * on it; and whose it is.  data has room for the identity and ZKP_DATA_EXTRA
 * bytes; says: identity is NUL-terminated, or NULL.  Reading accepts any data.
 */
extern void zkp_write_data(char *data, const ZkpData *says);
extern void zkp_read_data(const char *data, int len, ZkpData *says);

/*
 * The contenders among these children, in their order: those for a semaphore,
 * or those for a lock.  Returns how many; queue has room for n.
 */
extern int	zkp_queue(char *const *names, int n, ZkpMode mode, ZkpContender *queue);

/*
 * Whether nobody can be before this exclusive node, which was just created,
 * since the one who made it held the same lock alone with the last one, and
 * has given that back: their numbers are next to each other.
 */
extern bool zkp_comes_next(const char *last, int64_t last_czxid, const char *name, int64_t czxid);

/*
 * Whether the numbers of a queue do not tell the order.  Then the czxids must be
 * filled in, vanished nodes left out, and the queue sorted again.
 */
extern bool zkp_needs_czxids(const ZkpContender *queue, int n);
extern int	zkp_compare(const void *left, const void *right);

/*
 * Whom a contender that wants this must wait for.  self is the name of its
 * node, or NULL if it has none yet and would be last.  own is the name of the
 * shared node that the same session already holds there, or NULL.
 */
extern void zkp_look(const ZkpContender *queue, int n, const char *self,
					 const char *own, const ZkpWant *want, ZkpView *view);

/*
 * Which of the queue hold the lock.  Those whose data says that they have
 * become shared must have that mode here.
 */
extern void zkp_granted(const ZkpContender *queue, int n, bool *granted);

#endif							/* ZKLOCK_LOCK_PROTOCOL_H */

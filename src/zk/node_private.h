/*-------------------------------------------------------------------------
 *
 * node_private.h
 *	  What the files about our nodes share: node.c, create.c, unwanted.c,
 *	  single.c and proof.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_NODE_PRIVATE_H
#define ZKLOCK_NODE_PRIVATE_H

#include "mark.h"
#include "request_private.h"
#include "watch_private.h"

/* What the owner wants of the node */
typedef enum Interest
{
	WANTED,
	RETURNED,					/* zkn_delete: it is being deleted, and its
								 * owner asks for the result */
	FORFEITED,					/* nothing was heard for a whole timeout, or
								 * the session has too much to come back with:
								 * the owner sees LOST, while it is being
								 * deleted */
	DISCARDED,					/* it is being deleted, and nobody asks */
	FINISHED					/* it is gone; freed when nothing is pending */
} Interest;

/* What its data, or its name, is to tell the contenders behind it */
typedef enum Telling
{
	TELLS_NOTHING,
	TELLING_SHARED,				/* its holder is a reader now; until answered */
	TELLING_GRANTED,			/* it has its place of a semaphore; until
								 * answered */
	TOLD_GRANTED
} Telling;

struct ZkNode
{
	ZkNode	   *next;
	ZkNode	   *prev;
	ZkSession  *session;
	ZkNodeState state;
	int			rc;
	ZkLoss		loss;			/* how it was lost, if it was */
	ZkReliance	reliance;		/* the owner's, on this node */
	unsigned int transaction;	/* in which it said so */
	bool		by_session;		/* also by a session-scope hold */
	Interest	interest;
	Telling		telling;
	bool		parents;		/* its directory was sent with it */
	bool		closed;			/* as in ZkpWant */
	bool		is_record;		/* on the board: no contender */
	bool		single;			/* dir is its own path */
	bool		comes_next;		/* see turn.c */
	int			version;		/* with which it is deleted; -1: any */
	int			parent_rc;
	int			path_bytes;		/* of ZKN_PATHS_MAX */
	bool		counts;			/* among these */
	bool		deleting;		/* a delete is sent, and not answered */
	bool		doubted;		/* an earlier one may have been carried out */
	bool		unseen;			/* must be read before it is deleted */
	bool		closed_to_us;	/* we may not read it */
	bool		expects_turn;	/* it is next in line for the lock */
	bool		tell_sent;		/* what it tells is sent, and not answered */
	bool		tell_doubted;	/* it may have been carried out */
	int			refused;		/* why ZooKeeper did not delete it, or 0 */
	int			pending;		/* requests that will call back with us */
	uint64_t	ticket;
	int64_t		look_at;		/* another look is due; or 0 */
	int64_t		stale_until;	/* until then its create, which was not
								 * answered, may be carried out; or 0 */
	int64_t		proven_at;		/* when its own create or latest check was
								 * sent */
	int64_t		czxid;
	ZkWatch    *watch;
	ZkMark	   *mark;			/* of a claim under this lock, or NULL */
	char		prefix[ZKP_PREFIX_LEN];
	char		name[ZKP_NAME_LEN];
	const char *identity;		/* stored after the directory */
	char		dir[];			/* truncated step by step while PRUNING */
};

typedef struct NodePath
{
	char		text[ZKS_PATH_LEN];
} NodePath;

/*
 * How long a create that was not answered may still be carried out, though the
 * quorum has denied the node (t/069_late_create.pl).  It waits in its
 * follower's connection to the leader while that is silent, at most syncLimit
 * ticks.  If the session is back with that follower by then, after it was with
 * another one, the leader takes the request for a new one.
 */
#ifndef STALE_MS				/* t/c/faults.h cannot wait */
#define STALE_MS			60000
#endif

static inline bool
zkn_is_wanted(const ZkNode *n)
{
	return n->interest == WANTED;
}

/* Something is to be told, and has not been answered */
static inline bool
zkn_is_telling(const ZkNode *n)
{
	return n->telling == TELLING_SHARED || n->telling == TELLING_GRANTED;
}

/* node.c */
extern bool zkn_is_renaming(const ZkNode *n);
extern char *zkn_node_path(ZkNode *n, const char *name, NodePath *path);
extern ZkRequest *zkn_request_locked(ZkNode *n, ZkDone done);
extern bool zkn_called_back_locked(ZkNode *n);
extern bool zkn_called_back_quietly_locked(ZkNode *n);
extern void zkn_lose_locked(ZkNode *n, ZkLoss loss);
extern void zkn_expect_locked(ZkNode *n, bool expects);
extern void zkn_rely_locked(ZkNode *n, ZkReliance reliance);

/* node.c, for create.c: what a create, and the search for it, has shown */
extern void zkn_enlist_locked(ZkNode *n);
extern void zkn_present_locked(ZkNode *n);
extern void zkn_found_locked(ZkNode *n, const ZkRequest *r);
extern void zkn_absent_locked(ZkNode *n, int rc);
extern void zkn_unsure_locked(ZkNode *n, int rc);
extern void zkn_unread_locked(ZkNode *n, int rc);
extern void zkn_ended_locked(ZkNode *n, ZkNodeState state);
extern void zkn_settle_node_locked(ZkNode *n);
extern void zkn_part_with_mark_locked(ZkNode *n);
extern char *zkn_make_data(const ZkpData *says);

/* single.c */
extern void zkn_doubt_version_locked(ZkNode *n);
extern int	zkn_new_version_locked(const ZkNode *n, int seen);
extern bool zkn_is_ours_locked(const ZkNode *n, const ZkRequest *r);

#endif							/* ZKLOCK_NODE_PRIVATE_H */

/*-------------------------------------------------------------------------
 *
 * node_private.h
 *	  What the files about our nodes share: node.c, create.c, unwanted.c,
 *	  single.c, turn.c and proof.c.
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
	RETURNED,					/* it is being deleted, and its owner asks for
								 * the result (zkn_delete), or for its loss
								 * (zkn_forfeit_locked) */
	DISCARDED,					/* it is being deleted, and nobody asks */
	FINISHED					/* it is gone; freed when nothing is pending */
} Interest;

/* What its data, or its name, is to tell the contenders behind it */
typedef enum Telling
{
	TELLS_NOTHING,
	TELLING_SHARED,				/* its holder is a reader now; until answered */
	TELLING_GRANTED				/* it has its place of a semaphore; until
								 * answered */
} Telling;

/* How a node is told from another one at its path: single.c */
typedef struct ZkSingle
{
	bool		at_path;		/* it stands at the path itself, where others
								 * create theirs */
	int			version;		/* with which it is deleted; -1: any */
	uint32_t	versions;		/* until stale_until, requests that depend on
								 * these may be carried out */
	bool		unseen;			/* must be read before it is deleted */
	bool		closed_to_us;	/* we may not read it */
} ZkSingle;

struct ZkNode
{
	TAILQ_ENTRY(ZkNode) link;
	ZkSession  *session;
	ZkNodeState state;			/* what ZooKeeper has said; never ZKN_LOST */
	int			rc;
	ZkLoss		loss;			/* how it was lost, if it was: then nobody
								 * holds it, whether it still stands or not */
	ZkReliance	reliance;		/* the owner's, on this node */
	unsigned int transaction;	/* in which it said so */
	bool		by_session;		/* also by a session-scope hold */
	Interest	interest;
	Telling		telling;
	bool		parents;		/* its directory was sent with it */
	ZkpWant		want;			/* record: not NULL, if it is one */
	ZkSingle	single;
	ZkDone		looked;			/* the answer, where its create had none */
	bool		comes_next;		/* see turn.c */
	int			parent_rc;
	int			path_bytes;		/* of ZKN_PATHS_MAX */
	bool		deleting;		/* a delete is sent, and not answered */
	bool		doubted;		/* an earlier one may have been carried out */
	bool		tell_sent;		/* what it tells is sent, and not answered */
	bool		tell_doubted;	/* it may have been carried out */
	int			refused;		/* why ZooKeeper did not delete it, or 0 */
	int			pending;		/* requests that will call back with us */
	uint64_t	ticket;
	int			prune_len;		/* of its directories, this much is left to
								 * prune */
	int64_t		look_at;		/* another look is due */
	int64_t		stale_until;	/* until then a request that was not answered
								 * may be carried out; or 0 */
	int64_t		proven_at;		/* when its own create or latest check was
								 * sent */
	int64_t		czxid;
	ZkWatch    *watch;
	ZkMark	   *mark;			/* of a claim under this lock, or NULL */
	char	   *name;			/* until it is known, what it begins with */
	int			prefix_len;		/* so much of that */
	char	   *path;			/* the directory, and behind a slash the name;
								 * of a single one, behind its end */
	char	   *shared_name;	/* which it gets when its holder becomes a
								 * reader; "": it keeps its own */
	char	   *shared_path;
	char		dir[];			/* and the texts above */
};

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

/* What a quorum has denied could only be created late */
static inline bool
zkn_may_stand(const ZkNode *n)
{
	return n->state != ZKN_ABSENT && n->state != ZKN_DELETED;
}

/* It is there, as far as we know, for its owner */
static inline bool
zkn_is_held(const ZkNode *n)
{
	return zkn_is_wanted(n) && n->state == ZKN_PRESENT && n->loss == ZK_NOT_LOST;
}

/* It is being replaced by one with another name */
static inline bool
zkn_is_renaming(const ZkNode *n)
{
	return n->telling == TELLING_SHARED && n->shared_name[0] != '\0';
}

/* node.c */
extern ZkRequest *zkn_request_locked(ZkNode *n, ZkDone done);
extern bool zkn_called_back_locked(ZkNode *n);
extern bool zkn_called_back_quietly_locked(ZkNode *n);
extern void zkn_lose_locked(ZkNode *n, ZkLoss loss);
extern void zkn_rely_locked(ZkNode *n, ZkReliance reliance);

/* node.c, for create.c: what a create, and the search for it, has shown */
extern void zkn_name_locked(ZkNode *n, const char *name);
extern void zkn_present_locked(ZkNode *n, const ZkStat *stat);
extern void zkn_absent_locked(ZkNode *n, int rc);
extern void zkn_unsure_locked(ZkNode *n, int rc);
extern void zkn_advance_locked(ZkNode *n);
extern void zkn_mark_moved_locked(ZkNode *n, int refused);
extern void zkn_part_with_mark_locked(ZkNode *n);
extern char *zkn_make_data(const ZkpData *says);

/* single.c */
extern void zkn_doubt_locked(ZkNode *n);
extern int	zkn_new_version_locked(const ZkNode *n, int seen);
extern bool zkn_is_ours_locked(const ZkNode *n, const ZkRequest *r);

/*
 * turn.c: an exclusive node is granted, and alone in its queue; it was deleted
 * by us, or somehow else; its holder has become a reader.
 */
extern void zkn_turn_granted_locked(ZkSession *s, const char *dir, const char *name, int64_t czxid);
extern void zkn_turn_ended_locked(ZkSession *s, const char *dir, int64_t czxid, bool deleted);
extern void zkn_turn_shared_locked(ZkSession *s, const char *dir);

/*
 * A node is created, or, with name NULL, is not: whether nobody is before it,
 * since it comes right after the last one
 */
extern bool zkn_turn_created_locked(ZkSession *s, const char *dir, const char *name, int64_t czxid);
extern void zkn_free_turns(ZkSession *s);

#endif							/* ZKLOCK_NODE_PRIVATE_H */

/*-------------------------------------------------------------------------
 *
 * table.h
 *	  The table of this backend's locks, and the holds on each: for those that
 *	  take them, give them back, and end transactions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_TABLE_H
#define ZKLOCK_TABLE_H

#include "lib/ilist.h"
#include "utils/hsearch.h"

#include "acquire.h"
#include "backend/path.h"

/* What an error says of a lost lock; the DETAIL is zkb_loss_detail's */
#define LOST_HINT(lock) \
	"Call %s if it is a session-scope lock, then lock again and repeat the transaction.", \
	zkl_unlock_function(lock)

typedef enum ZkScope
{
	ZK_SCOPE_SESSION,
	ZK_SCOPE_TRANSACTION
} ZkScope;

/* The same path under two roots is two locks, and the same lock may have two names */
typedef struct LockKey
{
	char		mode;			/* ZkpMode */
	char	   *path;			/* in ZooKeeper, with the root before it */
} LockKey;

typedef struct Lock
{
	LockKey		key;
	int			root_len;		/* where its path begins, for who took it */
	bool		taken;			/* there is, or was until it was lost, a node */
	bool		ended;			/* in the list of those that lost holds */
	slist_node	in_ended;
	ZkLoss		loss;
	ZkGrant		grant;
	uint32		generation;		/* the session that the node belongs to */
	TimestampTz acquired_at;
	int64		count;			/* of all holds */
	uint64		guarded;		/* in the guard's so manieth run */
	dlist_head	holds;			/* the latest last */
} Lock;

typedef struct Hold
{
	dlist_node	in_lock;
	dlist_node	in_xact;		/* if subid is valid */
	Lock	   *lock;
	ZkScope		scope;
	SubTransactionId subid;		/* InvalidSubTransactionId: an earlier one's */
	int64		count;
	bool		used;			/* was granted once: stays when count is 0 */
	bool		proven;			/* given back, and the lock was held until
								 * then */
	ZkLoss		loss;			/* of the lock, when it was given back */
	bool		doubted;		/* nobody knows whether it was */
} Hold;

extern HTAB *zkl_locks;			/* NULL: this backend never took a lock */
extern dlist_head zkl_xact_holds;	/* of the current transaction */

/* The session that the lock's own node lives in, or NULL when that is gone */
extern ZkSession *zkl_session_of(Lock *lock);

/*
 * The first of these taken locks that is lost, or -1; nodes: theirs; n > 0.
 * Once lost, always lost; its loss says how.  One look at the session and one at the nodes,
 * however many they are: this is on the way of each COMMIT.
 */
extern int	zkl_first_lost(Lock *const *locks, ZkNode *const *nodes, int n);

/*
 * The lock whose node this one stands on: its own, or, for a shared one, the
 * exclusive one's; or NULL.
 */
extern Lock *zkl_base(Lock *lock);

/*
 * The lock for messages: its path as it was typed, in quotes, and its root where
 * another one is in force by now; palloc'ed
 */
extern char *zkl_name(const Lock *lock);
extern const char *zkl_unlock_function(const Lock *lock);

/* As zklock.root was when it was taken; palloc'ed */
extern char *zkl_root_of(const Lock *lock);

/*
 * First thing in whatever uses ZooKeeper, or its tokens, but to give back or to
 * show: with nothing held, changed settings of the ZooKeeper session take effect;
 * else raises 55000 if they name another ensemble.
 */
extern void zkl_follow_settings(void);

/*
 * Where in ZooKeeper the lock of that path is, under the root that is set now;
 * UTF-8, palloc'ed.  Nobody but this uses the root.  Raises 42501 as
 * zklock_refuse_dropped_settings does.
 */
extern char *zkl_full_path(const char *path);

extern void zkl_make_table(void);

/* The entry of the path, as zkl_full_path has just given it: found, or made */
extern Lock *zkl_enter_lock(const char *path, ZkpMode mode);

/* A hold of the current subtransaction, counted 0 */
extern Hold *zkl_make_hold(Lock *lock, ZkScope scope);

/* What follows does not fail */

/* The lock has a node now: it is held */
extern void zkl_take_node(Lock *lock, const ZkGrant *grant);
extern int	zkl_node_count(void);

/* path: as zkl_full_path gives it */
extern Lock *zkl_find_lock(const char *path, ZkpMode mode);

/* The lock of the same path in the other mode, or NULL */
extern Lock *zkl_twin_of(Lock *lock);

/* Is what it stands on lost? */
extern bool zkl_is_lost(Lock *lock);

/*
 * The lock has no holds any more, and gives its node up.  True: to the shared
 * lock that stands on it, too, and now has it; the node is to become shared.
 * False: it is the caller's, to delete.
 */
extern bool zkl_leave_node(Lock *lock);
extern void zkl_forget_if_unused(Lock *lock);
extern void zkl_remove_hold(Hold *hold);
extern Hold *zkl_find_hold(Lock *lock, ZkScope scope, SubTransactionId subid);

/* Of those that are not given back, or NULL */
extern Hold *zkl_latest_hold(Lock *lock, ZkScope scope);

#endif							/* ZKLOCK_TABLE_H */

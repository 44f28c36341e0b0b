/*-------------------------------------------------------------------------
 *
 * hold_table.h
 *	  The table of this backend's locks, and the holds on each, for the code
 *	  that takes them, releases them, and ends transactions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_HOLD_TABLE_H
#define ZKLOCK_HOLD_TABLE_H

#include "lib/ilist.h"
#include "utils/hsearch.h"

#include "backend/path.h"
#include "lock/queue/acquire.h"
#include "shadow.h"

/* Several scopes: those that no end of a transaction releases, and the others */
#define ZKL_SCOPE(scope)	(1 << (scope))
#define ZKL_SESSION_SCOPES	(ZKL_SCOPE(ZK_SCOPE_SESSION) | ZKL_SCOPE(ZK_SCOPE_ADVISORY))
#define ZKL_TRANSACTION_SCOPES \
	(ZKL_SCOPE(ZK_SCOPE_TRANSACTION) | ZKL_SCOPE(ZK_SCOPE_ADVISORY_TRANSACTION))

/* HINT of an error about a lost lock; the DETAIL is zkb_loss_detail's */
#define LOST_HINT_CALL \
	"If the lock has session scope, release it with %s. Then lock again and retry the transaction."
#define LOST_HINT(lock)		LOST_HINT_CALL, zkl_unlock_function(lock)

/*
 * The same path under two roots is two locks, and one lock may have two names
 */
typedef struct LockKey
{
	char		mode;			/* ZkpMode */
	char	   *path;			/* in ZooKeeper, including the root */
} LockKey;

typedef struct Lock
{
	LockKey		key;
	int			root_len;		/* where the path as the user gave it begins */
	bool		ended;			/* in the list of locks that lost holds */
	slist_node	in_ended;
	ZkLoss		loss;
	ZkGrant		grant;			/* its node, which may be lost; NULL: none */
	uint32		generation;		/* the session that the node belongs to */
	TimestampTz acquired_at;
	int64		count;			/* of all holds: see zkl_count */
	int64		advisory_count; /* of those of PostgreSQL's own functions */
	ZkShadow	shadow;			/* while there are such, and it is not lost */
	dlist_node	in_held;		/* while count > 0 */
	uint64		guarded;		/* the last guard run that counted this lock */
	dlist_head	holds;			/* in the order in which they were taken */
} Lock;

/* A period that the current transaction has claimed */
typedef struct Claim
{
	TimestampTz period;
	int			root_len;		/* of the root under which its mark is */
	int			version;		/* of the mark, as it was read */
	ZkMark	   *mark;			/* once that is being written */
	char		before[FLEXIBLE_ARRAY_MEMBER];	/* what it said */
} Claim;

typedef struct Hold
{
	dlist_node	in_lock;
	dlist_node	in_xact;		/* if subid is valid */
	Lock	   *lock;
	ZkScope		scope;
	SubTransactionId subid;		/* InvalidSubTransactionId: an earlier
								 * transaction's */
	int64		count;
	bool		used;			/* was granted once: stays even when count is
								 * 0 */
	bool		proven;			/* released, and it had been proven then */
	ZkLoss		loss;			/* of the lock, when this was released */
	bool		doubted;		/* unknown whether the lock was held until
								 * then */
	Claim	   *claim;			/* made with it, or NULL */
} Hold;

extern HTAB *zkl_locks;			/* NULL if this backend never took a lock */
extern dlist_head zkl_held;		/* what is held, the oldest first */
extern int	zkl_nheld;
extern int	zkl_nnodes;			/* of all locks */
extern dlist_head zkl_xact_holds;	/* of the current transaction */

/*
 * The session to which the node of this lock belongs, or NULL if it is gone; one that is
 * over still has its nodes.  base may be NULL.
 */
extern ZkSession *zkl_peek_session_of(const Lock *base);

/*
 * The first of these taken locks (at least one) that is lost, or -1; the nodes
 * are theirs, and the session is zkb_session or zkb_peek.  Once lost, a lock stays
 * lost; its loss says why.  The session and the nodes are each examined once,
 * however many they are, since this is part of each COMMIT.
 */
extern int	zkl_first_lost(ZkSession *session, Lock *const *locks, ZkNode *const *nodes, int n);

/*
 * The lock on whose node this one relies: itself, or, for a shared one, the
 * exclusive one of the path; or NULL.
 */
extern Lock *zkl_base(Lock *lock);

/*
 * The lock's name for messages: the quoted path as it was given, and its root
 * if another one is in effect by now; palloc'ed.
 */
extern char *zkl_name(const Lock *lock);

/* The SQL function that releases a session-scope hold of it */
extern const char *zkl_unlock_function(const Lock *lock);

/* The zklock.root under which it was taken; palloc'ed */
extern char *zkl_root_of(const Lock *lock);

/*
 * To be called first in whatever uses ZooKeeper or its tokens, except to
 * release or to show.  If nothing is held, changed settings of the ZooKeeper
 * session take effect; else this raises 55000 if they name another ensemble.
 */
extern void zkl_follow_settings(void);

/*
 * Where in ZooKeeper the lock of that path is, under the current zklock.root;
 * UTF-8, palloc'ed.  Only this function prepends the root.  Raises 42501 as
 * zklock_refuse_dropped_settings does.
 */
extern char *zkl_full_path(const char *path);

/* Find or create the entry of a path that zkl_full_path has just returned */
extern Lock *zkl_enter_lock(const char *path, ZkpMode mode);

/* Make a hold of the current subtransaction, with count 0 */
extern void zkl_make_hold(Lock *lock, ZkScope scope);

/* The following functions do not fail */

/* Change the count of the hold, and with it that of the lock */
extern void zkl_count(Hold *hold, int64 change);

/* Record that the lock has a node now: it is held */
extern void zkl_take_node(Lock *lock, const ZkGrant *grant);

/* path is as zkl_full_path returns it */
extern Lock *zkl_find_lock(const char *path, ZkpMode mode);

/* The lock of the same path in the other mode, or NULL */
extern Lock *zkl_twin_of(Lock *lock);

/* Whether the node on which the lock relies is lost */
extern bool zkl_is_lost(Lock *lock);

/* Writes a line to the server log for each lock that was lost since the last call */
extern void zkl_tell_losses(void);

/*
 * The lock has no more holds, and gives up its node.  True: the shared lock
 * that relied on it, too, has it now, and the node must become shared.  False:
 * the caller must delete it.
 */
extern bool zkl_leave_node(Lock *lock);
extern void zkl_forget_if_unused(Lock *lock);
extern void zkl_remove_hold(Hold *hold);
extern Hold *zkl_find_hold(Lock *lock, ZkScope scope, SubTransactionId subid);

/* How many there are in each scope that users see */
extern void zkl_count_shown(const Lock *lock, int64 counts[ZK_SHOWN_SCOPES]);

/* The latest hold of one of these scopes that is not released, or NULL */
extern Hold *zkl_latest_hold(Lock *lock, int scopes);

/* Shows the other backends of this server what this one holds */
extern void zkl_show(void);

#endif							/* ZKLOCK_HOLD_TABLE_H */

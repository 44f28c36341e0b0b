/*-------------------------------------------------------------------------
 *
 * hold.c
 *	  Taking holds, and showing them.
 *
 * Locks that this session holds already are counted once more, and the others
 * are acquired: a call gets all that it asks for, or nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "nodes/value.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "backend/backend_session.h"
#include "backend/encoding.h"
#include "backend/errors.h"
#include "backend/settings.h"
#include "hold.h"
#include "stop.h"
#include "xact.h"

/*-------------------------------------------------------------------------
 * Locking
 *-------------------------------------------------------------------------
 */

void
zkl_refuse_lost(Lock *lock)
{
	if (lock != NULL && lock->count > 0 && zkl_is_lost(lock))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the lock on %s was lost", zkl_name(lock)),
				 errdetail_internal("%s", zkb_loss_detail(zkl_base(lock)->loss)),
				 errhint("Call %s, or end the transaction that took the lock, then lock again.",
						 zkl_unlock_function(lock))));
}

/*
 * None of these that was held when the call began, itself or in the other
 * mode, may be lost.  That can happen while the call waits for the rest.
 */
static void
refuse_lost_meanwhile(Lock **wanted, int n)
{
	for (int i = 0; i < n; i++)
	{
		zkl_refuse_lost(wanted[i]);
		zkl_refuse_lost(zkl_twin_of(wanted[i]));
	}
}

/* Grant one more hold only after the locks that have these nodes are known to be held */
static void
confirm(Lock **wanted, int n, ZkNode *const *nodes, int nnodes, bool may_wait, ZkWait *wait)
{
	(void) zkb_connect(wait);
	if (!may_wait)
		zkb_wait_limit_try(wait);
	refuse_lost_meanwhile(wanted, n);
	if (zkb_prove(nodes, nnodes, ZKS_GRANT, 0, wait, zkb_wait_answer_due(wait)) == ZKB_NO_ANSWER)
		zkb_raise_unanswered(wait, zkb_peek());
	refuse_lost_meanwhile(wanted, n);	/* the answer may have brought a loss */
}

static void
refuse_too_many(int n)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many ZooKeeper locks"),
			 errdetail("This session holds %d locks and requested %d more.", zkl_nnodes, n),
			 errhint("You might need to increase zklock.max_locks.")));
}

/* Acquire these from ZooKeeper, all or none, for a call that wants more than them, maybe */
static bool
acquire(Lock **wanted, int n, Lock **others, int nothers, ZkpMode mode, int32 permits,
		ZkScope scope, bool may_wait, ZkWait *wait)
{
	ZkTarget   *targets;
	bool		held;

	if (nothers > zklock_max_locks - zkl_nnodes)
		refuse_too_many(nothers);
	targets = palloc0(nothers * sizeof(ZkTarget));
	for (int i = 0; i < nothers; i++)
	{
		Lock	   *twin = zkl_twin_of(others[i]);

		targets[i].dir = others[i]->key.path;
		targets[i].path = targets[i].dir + zkb_root_len(zklock_root);
		targets[i].own = twin != NULL ? twin->grant.node : NULL;
		targets[i].scope = scope;
	}
	held = zkl_acquire(targets, nothers, mode, permits, may_wait, zkl_nnodes > 0, wait);
	for (int i = 0; i < nothers && held; i++)
		zkl_take_node(others[i], &targets[i].grant);
	refuse_lost_meanwhile(wanted, n);
	return held;
}

void
zkl_refuse_single(const Lock *base, const char *what)
{
	int64		czxid;

	if (zklock_node_style == ZKP_SINGLE ||
		(base != NULL && base->grant.node != NULL && zkp_parse_single(base->grant.name, &czxid)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s are not supported with zklock.node_style \"single\"", what),
				 errdetail("With this style, a lock is one ephemeral node at the path itself, which is exclusive.")));
}

/* Take all of them, or none */
static bool
obtain(Lock **wanted, int n, ZkpMode mode, int32 permits, ZkScope scope, bool may_wait,
	   ZkWait *wait)
{
	ZkNode	  **held = palloc(n * sizeof(ZkNode *));
	Lock	  **others = palloc(n * sizeof(Lock *));
	int			nheld = 0;
	int			nothers = 0;

	refuse_lost_meanwhile(wanted, n);
	for (int i = 0; i < n; i++)
	{
		Lock	   *base = zkl_base(wanted[i]);

		/* a reader would get the node of base when that is given up */
		if (mode == ZKP_SHARED)
			zkl_refuse_single(base, "shared locks");
		else if (mode == ZKP_SEMAPHORE || n > 1)
			zkl_refuse_single(NULL, mode == ZKP_SEMAPHORE ? "semaphores" : "several locks at once");
		if (base != NULL)
			held[nheld++] = base->grant.node;
		else
			others[nothers++] = wanted[i];
	}
	if (nheld > 0)
		confirm(wanted, n, held, nheld, may_wait, wait);
	return nothers == 0 ||
		acquire(wanted, n, others, nothers, mode, permits, scope, may_wait, wait);
}

/*
 * Once the sequence numbers of a directory have run out, they no longer tell
 * in which order nodes were created.  We can do without them (lock_protocol.c),
 * other clients cannot; so warn in time, once for each path.
 */
static void
warn_if_high(Lock *lock)
{
	static List *warned = NIL;
	ZkpContender contender;
	MemoryContext old;

	if (lock->grant.node == NULL || !zkp_parse(lock->grant.name, &contender) ||
		(contender.seq >= 0 && contender.seq <= ZKP_SEQ_HIGH) ||
		list_member(warned, makeString(lock->key.path)))
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	warned = lappend(warned, makeString(pstrdup(lock->key.path)));
	MemoryContextSwitchTo(old);
	ereport(WARNING,
			(errmsg("ZooKeeper's sequence numbers for lock path %s are about to run out",
					zkl_name(lock)),
			 errdetail("The latest node is \"%s\"; beyond 2147483647, other clients can no longer determine the order of the queue.",
					   zkb_from_utf8_escaped(lock->grant.name, strlen(lock->grant.name), true)),
			 errhint("While the lock is neither held nor waited for, delete its directory in ZooKeeper, or leave it unused for a few minutes: ZooKeeper removes empty directories by itself. Numbers then start again at 0; fencing tokens keep rising.")));
}

/* Find or make the entries in which these are counted */
static void
enter_wanted(Lock **wanted, char **paths, int n, ZkpMode mode, ZkScope scope, SubTransactionId subid)
{
	for (int i = 0; i < n; i++)
	{
		wanted[i] = zkl_enter_lock(zkl_full_path(paths[i]), mode);
		if (zkl_find_hold(wanted[i], scope, subid) == NULL)
			zkl_make_hold(wanted[i], scope);
	}
}

/* Count what was taken, or drop what was entered, and maybe got its node, in vain */
static void
leave_wanted(Lock **wanted, int n, ZkScope scope, SubTransactionId subid, bool held)
{
	for (int i = 0; i < n && wanted[i] != NULL; i++)
	{
		Lock	   *lock = wanted[i];
		Hold	   *hold = zkl_find_hold(lock, scope, subid);

		if (held)
		{
			if (lock->count == 0)
			{
				lock->root_len = zkb_root_len(zklock_root);
				lock->acquired_at = GetCurrentTimestamp();
			}
			zkl_count(hold, 1);
			hold->used = true;
			hold->proven = false;
			zkl_tell_reliance(lock);
			continue;
		}
		if (hold != NULL && !hold->used)
			zkl_remove_hold(hold);
		zkl_release_unheld(lock);
	}
}

bool
zkl_lock(char **paths, int n, ZkpMode mode, int32 permits, ZkScope scope,
		 bool may_wait, ZkWait *wait)
{
	Lock	  **wanted;
	SubTransactionId subid = GetCurrentSubTransactionId();
	volatile bool held = false;

	if (n == 0)
		return true;
	if (n > zklock_max_locks)
		refuse_too_many(n);		/* before as many entries are made */
	(void) zkb_session();		/* notice its end */
	zkl_follow_settings();
	zkl_watch_transactions();

	wanted = palloc0(n * sizeof(Lock *));
	PG_TRY();
	{
		enter_wanted(wanted, paths, n, mode, scope, subid);
		held = obtain(wanted, n, mode, permits, scope, may_wait, wait);
	}
	PG_FINALLY();
	{
		leave_wanted(wanted, n, scope, subid, held);
		if (held)
			zkl_stop_more();
		zkl_show();
	}
	PG_END_TRY();
	for (int i = 0; i < n && held; i++)
		warn_if_high(wanted[i]);
	pfree(wanted);
	return held;
}

/* A hold that PostgreSQL has no room for would outlive the error, being the session's */
void
zkl_add_shadow(const char *path, const LOCKTAG *tag, ZkpMode mode, ZkScope scope)
{
	Lock	   *lock = zkl_find_lock(zkl_full_path(path), mode);

	PG_TRY();
	{
		zkl_take_shadow(&lock->shadow, tag, mode == ZKP_SHARED ? ShareLock : ExclusiveLock);
	}
	PG_CATCH();
	{
		zkl_take_back(zkl_find_hold(lock, scope, GetCurrentSubTransactionId()));
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*-------------------------------------------------------------------------
 * Showing
 *-------------------------------------------------------------------------
 */

/* As of the last heartbeat: a leader that has lost its followers answers for a while */
static ZkHoldState
state_of(Lock *lock)
{
	ZkSessionInfo info;

	if (zkl_is_lost(lock))
		return ZKL_STATE_LOST;
	info = zks_info(zkb_peek());
	return zks_is_fresh(&info) ? ZKL_STATE_HELD : ZKL_STATE_SUSPECT;
}

/* The lock of this path, if it is held, and not known to be lost; or NULL */
static Lock *
find_held(const char *full, ZkpMode mode)
{
	Lock	   *lock = zkl_find_lock(full, mode);

	return lock != NULL && lock->count > 0 && !zkl_is_lost(lock) ? lock : NULL;
}

bool
zkl_is_held(const char *path)
{
	const char *full = zkl_full_path(path);
	int64		until = zkb_deadline(zklock_operation_timeout);
	ZkProof		proof = ZKB_LOST;
	ZkWait		wait;

	zkl_follow_settings();
	zkb_wait_begin(&wait, -1, false);
	for (;;)
	{
		ZkNode	   *nodes[ZKP_SEMAPHORE + 1];
		int			n = 0;

		for (ZkpMode mode = ZKP_SHARED; mode <= ZKP_SEMAPHORE; mode++)
		{
			Lock	   *lock = find_held(full, mode);

			if (lock != NULL)
				nodes[n++] = zkl_base(lock)->grant.node;
		}

		/* the end of the session may have been noticed at the latter of two */
		if (zkb_peek() == NULL)
			n = 0;

		/* also after a proof: the answer may have brought a loss */
		if (n == 0 || proof == ZKB_PROVEN)
			return n > 0;
		proof = zkb_prove(nodes, n, ZKS_GRANT, 0, &wait, until);
		if (proof == ZKB_NO_ANSWER)
			zkb_raise_unanswered(&wait, zkb_peek());
	}
}

bool
zkl_token(const char *path, int64 *token)
{
	const char *full = zkl_full_path(path);
	Lock	   *lock = find_held(full, ZKP_EXCLUSIVE);

	if (lock == NULL)
		lock = find_held(full, ZKP_SHARED);
	if (lock != NULL)
		*token = zkl_base(lock)->grant.token;
	return lock != NULL;
}

/* Update the name: it changes when an exclusive lock becomes a shared one */
static void
refresh_name(Lock *lock)
{
	ZkSession  *session = zkl_peek_session_of(lock);
	ZkNodeInfo	node;

	if (session == NULL)
		return;
	zkn_info(session, lock->grant.node, &node);
	strlcpy(lock->grant.name, node.name, sizeof(lock->grant.name));
}

int64
zkl_fencing_token(const char *path)
{
	Lock	   *lock = zkl_find_lock(zkl_full_path(path), ZKP_EXCLUSIVE);

	if (lock == NULL || lock->count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session does not hold the exclusive lock on \"%s\"",
						zkb_path_for_display(path)),
				 errhint("Acquire the lock first, or pass the token of the program that holds it.")));
	if (zkl_is_lost(lock))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the lock on \"%s\" was lost", zkb_path_for_display(path)),
				 errdetail_internal("%s", zkb_loss_detail(lock->loss)),
				 errhint(LOST_HINT(lock))));
	return lock->grant.token;
}

void
zkl_each_hold(ZkShowHold show, void *arg)
{
	dlist_iter	iter;

	dlist_foreach(iter, &zkl_held)
	{
		Lock	   *lock = dlist_container(Lock, in_held, iter.cur);
		Lock	   *base = zkl_base(lock);
		ZkHoldState state = state_of(lock);
		int64		counts[ZK_SHOWN_SCOPES];

		refresh_name(base);
		zkl_count_shown(lock, counts);
		for (int scope = ZK_SCOPE_SESSION; scope <= ZK_SCOPE_TRANSACTION; scope++)
		{
			if (counts[scope] > 0)
				show(lock, (ZkScope) scope, counts[scope], state, &base->grant, arg);
		}
	}
}

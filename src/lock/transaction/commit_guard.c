/*-------------------------------------------------------------------------
 *
 * commit_guard.c
 *	  The commit guard: a transaction that relied on a lock does not commit
 *	  without it.
 *
 * Everything that can be known is settled here, before COMMIT does what cannot
 * be undone; only this may raise.  When it runs is decided in xact.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "backend/backend_session.h"
#include "backend/errors.h"
#include "backend/internals.h"
#include "backend/settings.h"
#include "commit_guard.h"

/*-------------------------------------------------------------------------
 * What the transaction has done
 *-------------------------------------------------------------------------
 */

ZkDeeds		zkl_deeds;

bool
zkl_has_written(void)
{
	return TransactionIdIsValid(MyProc->xid) || zkl_deeds.wrote_elsewhere;
}

/*-------------------------------------------------------------------------
 * The commit guard
 *-------------------------------------------------------------------------
 */

/*
 * A transaction relies on the locks that it took and did not roll back to a
 * savepoint, and, if it has written, on all that the session holds.  If one of
 * them is lost, or may be, it does not commit.  The gap that remains is the
 * time from here to the commit record; zk_fence closes that.
 */

void
zkl_raise_lost_at_commit(const Lock *lock, ZkLoss loss)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not commit: the lock on %s was lost", zkl_name(lock)),
			 errdetail_internal("%s", zkb_loss_detail(loss)),
			 errhint(LOST_HINT(lock))));
}

static void
raise_doubt_at_commit(const Lock *lock, bool released)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not commit: the lock on %s may have been lost", zkl_name(lock)),
			 released ?
			 errdetail("ZooKeeper could not confirm that the lock was still held when it was released.") :
			 errdetail("ZooKeeper did not confirm within %d ms that the lock was held.", zklock_operation_timeout),
			 released ? errhint("Retry the transaction.") : errhint(LOST_HINT(lock))));
}

/* The locks that the current transaction relies on */
typedef struct Relied
{
	Lock	  **locks;
	ZkNode	  **nodes;			/* theirs */
	int			n;
} Relied;

static void
rely_on(Relied *relied, Lock *lock, uint64 run)
{
	if (lock->guarded == run)
		return;
	lock->guarded = run;
	relied->locks[relied->n] = lock;
	relied->nodes[relied->n++] = lock->grant.node;
}

/* Raises if a lock was lost, or in doubt, when it was released */
static void
find_relied(Relied *relied, bool writes)
{
	static uint64 run = 0;
	long		n = hash_get_num_entries(zkl_locks);
	dlist_iter	iter;

	run++;
	relied->n = 0;
	relied->locks = palloc(n * sizeof(Lock *));
	relied->nodes = palloc(n * sizeof(ZkNode *));
	dlist_foreach(iter, &zkl_xact_holds)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, iter.cur);
		Lock	   *base = zkl_base(hold->lock);

		if (hold->loss != ZK_NOT_LOST)
			zkl_raise_lost_at_commit(hold->lock, hold->loss);
		if (hold->doubted)
			raise_doubt_at_commit(hold->lock, true);
		if (base != NULL && !hold->proven)
			rely_on(relied, base, run);
	}
	if (!writes)
		return;
	dlist_foreach(iter, &zkl_held)
		rely_on(relied, zkl_base(dlist_container(Lock, in_held, iter.cur)), run);
}

static void
refuse_lost_at_commit(const Relied *relied)
{
	int			lost = zkl_first_lost(zkb_session(), relied->locks, relied->nodes, relied->n);

	if (lost >= 0)
		zkl_raise_lost_at_commit(relied->locks[lost], relied->locks[lost]->loss);
}

/* Since when ZooKeeper must have been asked: with "strict", for this commit */
static int64
asked_since(int64 asked_at)
{
	if (zklock_commit_guard != ZKLOCK_GUARD_STRICT)
		return 0;
	return asked_at != 0 ? asked_at : zks_now();
}

/* Returns one of the locks that the transaction relies on, or NULL */
Lock *
zkl_guard(bool writes, int64 asked_at)
{
	Relied		relied;
	ZkWait		wait;
	ZkProof		proof;

	if (zklock_commit_guard == ZKLOCK_GUARD_OFF)
		return NULL;
	find_relied(&relied, writes);
	if (relied.n == 0)
		return NULL;
	refuse_lost_at_commit(&relied);

	zkb_wait_begin(&wait, -1, false);
	proof = zkb_prove(relied.nodes, relied.n, ZKS_COMMIT, asked_since(asked_at), &wait,
					  zkb_deadline(zklock_operation_timeout));
	if (proof != ZKB_NO_ANSWER)
		refuse_lost_at_commit(&relied); /* the answer may have brought a loss */
	if (proof != ZKB_PROVEN)
		raise_doubt_at_commit(relied.locks[0], false);
	return relied.locks[0];
}

void
zkl_guard_statement(void)
{
	(void) zkl_guard(true, 0);
	zkl_deeds.judged = true;
}

/*
 * A statement that cannot be undone, and was judged before it began, is not
 * refused once it is done.  No other statement is part of such a transaction.
 */
bool
zkl_is_judged(void)
{
	return zkl_deeds.judged && (MyXactFlags & XACT_FLAGS_NEEDIMMEDIATECOMMIT) != 0;
}

/*-------------------------------------------------------------------------
 * What COMMIT waits for after the guard
 *-------------------------------------------------------------------------
 */

/*
 * PreCommit_Notify waits for a lock of the whole cluster, which a notifier
 * keeps while it waits for its synchronous standby, possibly forever.  Taking
 * that lock before the guard would be no better: postgres_fdw commits in
 * between, and if its server is this one and also notifies, it would wait for
 * us undetected.  So from the guard to the commit, waits for PostgreSQL's
 * locks are bounded, in the way of lock_timeout, by the remaining validity of
 * the proof.
 */
static struct
{
	int			lock_timeout;	/* the user's */
	int64		until;

	/*
	 * Of a lock that the transaction relies on: another callback may unlock
	 * it, and so free it.  NULL: they are not bounded
	 */
	char	   *name;
	const char *unlock_function;
	ErrorContextCallback context;
}			bound;

/* Make the guard's error of lock_timeout's */
static void
explain_bound(void *arg)
{
	if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE || zks_now() < bound.until)
		return;
	errcode(ERRCODE_T_R_SERIALIZATION_FAILURE);
	errmsg("could not commit: the lock on %s may have been lost", bound.name);
	errdetail("COMMIT waited for one of PostgreSQL's own locks, such as the one that NOTIFY takes, until ZooKeeper's last confirmation was too old.");
	errhint(LOST_HINT_CALL, bound.unlock_function);
}

/* How long, says zk/lease.h */
void
zkl_bound_waits(const Lock *lock)
{
	ZkSessionInfo info = zks_info(zkb_peek());

	bound.until = info.quorum_at + zks_stale_after(&info);
	bound.name = MemoryContextStrdup(TopTransactionContext, zkl_name(lock));
	bound.unlock_function = zkl_unlock_function(lock);
	bound.lock_timeout = LockTimeout;
	zkl_bound_next_wait();
	bound.context.callback = explain_bound;
	bound.context.previous = error_context_stack;
	error_context_stack = &bound.context;
}

/* The user's lock_timeout still applies, with its own error */
void
zkl_bound_next_wait(void)
{
	int64		ms = Max((bound.until - zks_now() + ZKS_MS - 1) / ZKS_MS, 1);

	if (bound.name == NULL)
		return;
	if (bound.lock_timeout > 0)
		ms = Min(ms, bound.lock_timeout);
	(void) replace_lock_timeout((int) Min(ms, INT_MAX));
}

/*
 * Does not fail.  After an error, PostgreSQL has already removed our context.
 */
void
zkl_unbound_waits(void)
{
	if (bound.name == NULL)
		return;
	bound.name = NULL;
	(void) replace_lock_timeout(bound.lock_timeout);
	remove_error_context(&bound.context);
}

/*-------------------------------------------------------------------------
 *
 * xact.c
 *	  What transactions and locks do to each other.
 *
 * A transaction that relied on a lock does not commit without it: the commit
 * guard.  And the end of a transaction gives back what it took.
 *
 * The callbacks at the end of a transaction must neither fail nor wait: after
 * COMMIT an error is a PANIC.  They unlink first and send then, and leave to
 * the session's thread what could not be sent.  Only PRE_COMMIT may raise.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <poll.h>

#include "access/xact.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "backend/client.h"
#include "backend/compat.h"
#include "backend/settings.h"
#include "table.h"
#include "xact.h"

/* How late a cancel may be noticed while releases are confirmed */
#define LINGER_SLICE_MS		10

/*
 * The tickets of the nodes that the current transaction has given back; none
 * while last is 0
 */
typedef struct Release
{
	uint64		first;
	uint64		last;
} Release;

static Release xact_release;

/*
 * What the transaction with this local id has done.  That of another is void, so
 * nothing need be cleared when a transaction ends.
 */
typedef struct Deeds
{
	LocalTransactionId lxid;
	bool		judged;			/* by zkx_guard_statement */
	bool		wrote_elsewhere;
	bool		dropped_something;
} Deeds;

static Deeds last_deeds;

/* What a commit that drops the extension has to give back; none while n is 0 */
static struct
{
	Lock	  **locks;
	int			n;
}			orphans;

static void xact_callback(XactEvent event, void *arg);
static void subxact_callback(SubXactEvent event, SubTransactionId mySubid,
							 SubTransactionId parentSubid, void *arg);

/*
 * Callbacks run last in, first out, and postgres_fdw commits its servers in
 * one.  A lock that proves lost must be noticed before that: so be the last
 * in, for each transaction that takes a lock, and after a statement that wrote
 * elsewhere.  (A server that a transaction which took a lock first uses to read
 * still goes before us.)
 *
 * That statement may be one of another callback, of COMMIT.  PostgreSQL is walking
 * through the list then, past whoever registers now: so earlier registrations
 * stay until the transaction has ended.  Other callbacks register once, at their
 * first use, so a few are enough for one transaction.
 */
static struct
{
	bool		registered[8];	/* the address of each is its argument */
	bool	   *newest;
	bool	   *judged;			/* the newest, when COMMIT was judged */
}			callbacks;

static void
be_first_at_commit(void)
{
	for (int i = 0; i < lengthof(callbacks.registered); i++)
	{
		bool	   *registration = &callbacks.registered[i];

		if (*registration)
			continue;
		RegisterXactCallback(xact_callback, registration);	/* may fail */
		*registration = true;
		callbacks.newest = registration;
		return;
	}
}

static void
unregister(bool *registration)
{
	UnregisterXactCallback(xact_callback, registration);
	*registration = false;
}

/* The transaction has ended: only the newest stays.  False: this is another one. */
static bool
leave_to_newest(bool *registration)
{
	bool		is_newest = registration == callbacks.newest;

	callbacks.judged = NULL;
	if (CALLBACK_MAY_LEAVE_COMPAT && !is_newest)
		unregister(registration);
	for (int i = 0; !CALLBACK_MAY_LEAVE_COMPAT && i < lengthof(callbacks.registered); i++)
	{
		if (callbacks.registered[i] && &callbacks.registered[i] != callbacks.newest)
			unregister(&callbacks.registered[i]);
	}
	return is_newest;
}

/* COMMIT is judged by the first of them that runs, and again if one came after that */
static bool
is_to_judge(void)
{
	bool		judged = callbacks.judged == callbacks.newest;

	callbacks.judged = callbacks.newest;
	return !judged;
}

/*-------------------------------------------------------------------------
 * What the transaction has done
 *-------------------------------------------------------------------------
 */

static Deeds *
deeds(void)
{
	LocalTransactionId lxid = lxid_compat();

	if (last_deeds.lxid != lxid)
		last_deeds = (Deeds)
	{
		.lxid = lxid
	};
	return &last_deeds;
}

bool
zkx_has_locks(void)
{
	return zkh_locks != NULL && hash_get_num_entries(zkh_locks) > 0;
}

/* And whoever writes there for it must not commit before the guard */
void
zkx_writes_elsewhere(void)
{
	deeds()->wrote_elsewhere = true;
	be_first_at_commit();
}

void
zkx_may_have_dropped_extension(void)
{
	deeds()->dropped_something = true;
}

static bool
has_written(void)
{
	return TransactionIdIsValid(GetTopTransactionIdIfAny()) || deeds()->wrote_elsewhere;
}

/*-------------------------------------------------------------------------
 * The commit guard
 *-------------------------------------------------------------------------
 */

/*
 * A transaction relies on the locks that it took and did not roll back to a
 * savepoint, and, if it has written, on all that the session holds.  If one of
 * them is lost, or may be, it does not commit.  What is left is the time from
 * here to the commit record; zk_fence closes that.
 */

static void
raise_lost_at_commit(const Lock *lock, ZkLoss loss)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not commit: the lock on %s was lost", zkh_name(lock)),
			 errdetail_internal("%s", zkc_loss_detail(loss)),
			 errhint(LOST_HINT(lock))));
}

static void
raise_doubt_at_commit(const Lock *lock)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not commit: the lock on %s may have been lost", zkh_name(lock)),
			 errdetail("ZooKeeper did not confirm within %d ms that it was held.", zklock_operation_timeout),
			 errhint(LOST_HINT(lock))));
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

/* Raises for what was lost, or doubted, when it was given back */
static void
find_relied(Relied *relied, bool writes)
{
	static uint64 run = 0;
	long		n = hash_get_num_entries(zkh_locks);
	dlist_iter	iter;

	run++;
	relied->n = 0;
	relied->locks = MemoryContextAlloc(TopTransactionContext, n * sizeof(Lock *));
	relied->nodes = MemoryContextAlloc(TopTransactionContext, n * sizeof(ZkNode *));
	dlist_foreach(iter, &zkh_xact_holds)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, iter.cur);
		Lock	   *base = zkh_base(hold->lock);

		if (hold->loss != ZK_NOT_LOST)
			raise_lost_at_commit(hold->lock, hold->loss);
		if (hold->doubted)
			raise_doubt_at_commit(hold->lock);
		if (base != NULL && !hold->proven)
			rely_on(relied, base, run);
	}
	if (writes)
	{
		HASH_SEQ_STATUS status;
		Lock	   *lock;

		hash_seq_init(&status, zkh_locks);
		while ((lock = hash_seq_search(&status)) != NULL)
		{
			if (lock->count > 0)
				rely_on(relied, zkh_base(lock), run);
		}
	}
}

static void
refuse_lost_at_commit(const Relied *relied)
{
	int			lost = zkh_first_lost(relied->locks, relied->nodes, relied->n);

	if (lost >= 0)
		raise_lost_at_commit(relied->locks[lost], relied->locks[lost]->loss);
}

/* Returns one of the locks that the transaction relies on, if there is any */
static Lock *
guard(bool writes)
{
	Relied		relied;
	bool		proven;
	ZkWait		wait;
	ZkProof		proof;

	if (zklock_commit_guard == ZKLOCK_GUARD_OFF)
		return NULL;
	find_relied(&relied, writes);
	if (relied.n == 0)
		return NULL;
	refuse_lost_at_commit(&relied);
	proven = zklock_commit_guard == ZKLOCK_GUARD_ON && zkc_are_proven(relied.nodes, relied.n);
	refuse_lost_at_commit(&relied);
	if (proven)
		return relied.locks[0];

	zkwait_begin(&wait, -1, false);
	proof = zkc_prove(relied.nodes, relied.n, &wait, zkwait_after(zklock_operation_timeout));
	if (proof != ZKC_NO_ANSWER)
		refuse_lost_at_commit(&relied); /* what came with the answer counts, too */
	if (proof == ZKC_PROVEN)
		return relied.locks[0];
	raise_doubt_at_commit(relied.locks[0]);
	return NULL;				/* not reached */
}

void
zkx_guard_statement(void)
{
	(void) guard(true);
	deeds()->judged = true;
}

/*
 * What cannot be undone, and was judged before it began, is not refused once it
 * is done.  No other statement is part of such a transaction.
 */
static bool
is_judged(void)
{
	return deeds()->judged && is_sole_statement_compat();
}

/*-------------------------------------------------------------------------
 * What COMMIT waits for after the guard
 *-------------------------------------------------------------------------
 */

/*
 * PreCommit_Notify waits for a lock of the whole cluster, which a notifier keeps
 * while it waits for its synchronous standby: without end, maybe.  To take that
 * lock before the guard would be no better: postgres_fdw commits in between, and
 * a server that is this one, and notifies, too, would wait for us unseen.  So
 * waits for PostgreSQL's locks are bounded from the guard to the commit, as
 * lock_timeout does it, by what is left of the proof's time.
 */
static struct
{
	bool		active;
	int			lock_timeout;	/* the user's */
	int64		until;
	const Lock *lock;			/* one that the transaction relies on */
	ErrorContextCallback context;
}			bound;

/* The error is not lock_timeout's, but the guard's */
static void
explain_bound(void *arg)
{
	if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE || zks_now() < bound.until)
		return;
	errcode(ERRCODE_T_R_SERIALIZATION_FAILURE);
	errmsg("could not commit: the lock on %s may have been lost", zkh_name(bound.lock));
	errdetail("COMMIT waited for a lock of PostgreSQL's own, such as the one that NOTIFY takes, until ZooKeeper's last confirmation was too old.");
	errhint(LOST_HINT(bound.lock));
}

/* By the user's lock_timeout, too: who finds his own time over has his own error */
static void
bound_next_wait(void)
{
	int64		ms = Max((bound.until - zks_now() + ZKS_MS - 1) / ZKS_MS, 1);

	if (bound.lock_timeout > 0)
		ms = Min(ms, bound.lock_timeout);
	LockTimeout = (int) Min(ms, INT_MAX);
}

/* Until two thirds of the session timeout: see zkc_is_fresh */
static void
bound_waits(const Lock *lock)
{
	ZkSessionInfo info;

	zks_info(zkc_peek(), &info);
	bound.until = info.quorum_at + info.timeout_ms * ZKS_MS / 3 * 2;
	bound.lock = lock;
	bound.active = true;
	bound.lock_timeout = LockTimeout;
	bound_next_wait();
	bound.context.callback = explain_bound;
	bound.context.previous = error_context_stack;
	error_context_stack = &bound.context;
}

/*
 * postgres_fdw commits its servers in between, which takes time.  This callback,
 * registered when the library is loaded, mostly comes after all others.
 */
static void
last_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT && bound.active)
		bound_next_wait();
}

/* Does not fail.  After an error PostgreSQL has taken our context away itself. */
static void
unbound_waits(void)
{
	if (!bound.active)
		return;
	bound.active = false;
	LockTimeout = bound.lock_timeout;
	for (ErrorContextCallback **context = &error_context_stack;
		 *context != NULL; context = &(*context)->previous)
	{
		if (*context == &bound.context)
		{
			*context = bound.context.previous;
			break;
		}
	}
}

/*-------------------------------------------------------------------------
 * DROP EXTENSION
 *-------------------------------------------------------------------------
 */

/*
 * With the extension go the functions that give locks back.  So what this
 * session holds goes, too, when that commits.
 */
static void
find_orphans(void)
{
	HASH_SEQ_STATUS status;
	Lock	   *lock;

	if (!deeds()->dropped_something || OidIsValid(get_extension_oid("zklock", true)))
		return;
	orphans.locks = MemoryContextAlloc(TopTransactionContext,
									   hash_get_num_entries(zkh_locks) * sizeof(Lock *));
	hash_seq_init(&status, zkh_locks);
	while ((lock = hash_seq_search(&status)) != NULL)
	{
		/* what the end of the transaction would not give back in any case */
		if (zkh_latest_hold(lock, ZK_SCOPE_SESSION) != NULL)
			orphans.locks[orphans.n++] = lock;
	}
	if (orphans.n > 0)
		ereport(NOTICE,
				(errmsg("giving back all ZooKeeper locks of this session"),
				 errdetail("The functions that could give them back are dropped.")));
}

/*-------------------------------------------------------------------------
 * Giving back
 *-------------------------------------------------------------------------
 */

static slist_head ended_locks = SLIST_STATIC_INIT(ended_locks);

static void
remember_ticket(uint64 ticket)
{
	if (ticket == 0)
		return;
	xact_release.last = ticket;
	if (xact_release.first == 0)
		xact_release.first = ticket;
}

/*
 * The last hold is gone: so must be the node, unless the shared lock stands on
 * it, too
 */
static void
release_node(Lock *lock)
{
	ZkSession  *session = zkh_session_of(lock);
	ZkNode	   *node = lock->grant.node;
	bool		passed_on = zkh_leave_node(lock);

	if (session != NULL)
		remember_ticket(passed_on ? zkn_share(session, node) : zkn_discard(session, node));
}

/*
 * The hold belongs to another subtransaction now, or to none; if there is an
 * equal one already, the two become one.
 */
static void
hand_over(Hold *hold, SubTransactionId subid)
{
	Hold	   *other = zkh_find_hold(hold->lock, hold->scope, subid);

	if (other != NULL)
	{
		other->count += hold->count;
		other->proven &= hold->proven;
		if (other->loss == ZK_NOT_LOST)
			other->loss = hold->loss;
		other->doubted |= hold->doubted;
		hold->lock->count += hold->count;	/* zkh_remove_hold takes it off */
		zkh_remove_hold(hold);
		return;
	}
	if (subid == InvalidSubTransactionId)
		dlist_delete(&hold->in_xact);
	hold->subid = subid;
}

/*
 * Drop a hold at the end of its (sub)transaction.  What becomes of the lock is
 * settled when all are dropped: one lock may stand on another.
 */
static void
end_hold(Hold *hold)
{
	Lock	   *lock = hold->lock;

	zkh_remove_hold(hold);
	if (lock->ended)
		return;
	lock->ended = true;
	slist_push_head(&ended_locks, &lock->in_ended);
}

static void
settle_ended(void)
{
	while (!slist_is_empty(&ended_locks))
	{
		Lock	   *lock = slist_container(Lock, in_ended, slist_pop_head_node(&ended_locks));

		lock->ended = false;
		if (lock->count == 0 && lock->taken)
			release_node(lock);
		zkh_forget_if_unused(lock);
	}
}

/*
 * Let the deletes that the end of a transaction has sent be confirmed.  No
 * latch here, and no error; interrupts are held, and PostgreSQL still has the
 * row locks.  So whatever asks this process for something ends the wait: a
 * cancel, which is for the next statement to act on, or a barrier, for which
 * another session's DROP DATABASE waits.  What comes between the look and
 * the poll is seen when the slice is over.
 */
static void
linger(void)
{
	int64		until = zkwait_after(zklock_release_timeout);
	Release		release = xact_release;
	ZkSession  *session;
	int			refused;

	xact_release = (Release) {0};
	if (release.last == 0 || zklock_release_timeout == 0 || proc_exit_inprogress)
		return;
	session = zkc_session();
	while (session != NULL &&
		   !zkn_gone(session, release.first, release.last, &refused) && refused == 0)
	{
		ZkSessionInfo info;
		int64		left = (until - zks_now()) / ZKS_MS;
		struct pollfd fd = {.events = POLLIN};

		zks_info(session, &info);
		if (info.state != ZKS_CONNECTED || left <= 0 ||
			QueryCancelPending || ProcDiePending || ProcSignalBarrierPending)
			return;
		pgstat_report_wait_start(zkwait_event(ZKWAIT_RELEASE));
		fd.fd = zks_await(session, NULL);
		poll(&fd, 1, (int) Min(left, LINGER_SLICE_MS));
		zks_awaited(session);
		pgstat_report_wait_end();
	}
}

/* Locks stay in the table until ended ones are settled */
static void
end_orphans(void)
{
	for (int i = 0; i < orphans.n; i++)
	{
		dlist_mutable_iter iter;

		dlist_foreach_modify(iter, &orphans.locks[i]->holds)
			end_hold(dlist_container(Hold, in_lock, iter.cur));
	}
}

/* The end of the transaction: what it took goes, what is the session's stays */
static void
end_transaction(bool commit)
{
	dlist_mutable_iter iter;

	if (zkc_peek() != NULL)
		zks_gather(zkc_peek());
	dlist_foreach_modify(iter, &zkh_xact_holds)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, iter.cur);

		if (commit && hold->scope == ZK_SCOPE_SESSION && hold->count > 0)
			hand_over(hold, InvalidSubTransactionId);
		else
			end_hold(hold);
	}
	if (commit)
		end_orphans();
	orphans.n = 0;
	settle_ended();
	if (zkc_peek() != NULL)
		zks_send(zkc_peek());
	linger();
}

/*-------------------------------------------------------------------------
 * Callbacks
 *-------------------------------------------------------------------------
 */

void
zkx_be_first_at_commit(void)
{
	if (dlist_is_empty(&zkh_xact_holds))
		be_first_at_commit();
}

void
zkx_watch_commits(void)
{
	RegisterXactCallback(last_callback, NULL);
}

void
zkx_initialize(void)
{
	static bool registered = false;

	if (registered)
		return;
	RegisterSubXactCallback(subxact_callback, NULL);
	registered = true;
}

static void
before_commit(void)
{
	const Lock *relied = is_judged() ? NULL : guard(has_written());

	find_orphans();
	if (relied != NULL)
		bound_waits(relied);
}

static void
xact_callback(XactEvent event, void *arg)
{
	bool		ended = event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE;

	if (ended ? !leave_to_newest(arg) : !is_to_judge())
		return;
	unbound_waits();
	if (hash_get_num_entries(zkh_locks) == 0 && xact_release.last == 0)
		return;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			before_commit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (!dlist_is_empty(&zkh_xact_holds))
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has taken ZooKeeper locks"),
						 errdetail("A lock belongs to a ZooKeeper session, which a prepared transaction outlives.")));
			(void) guard(has_written());
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			end_transaction(true);
			break;
		case XACT_EVENT_ABORT:
			end_transaction(false);
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;				/* a parallel worker holds nothing */
	}
}

/*
 * Sends, and does not wait: a loop of a thousand EXCEPTION blocks would wait
 * a thousand times.
 */
static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	if (dlist_is_empty(&zkh_xact_holds) ||
		dlist_tail_element(Hold, in_xact, &zkh_xact_holds)->subid != mySubid)
		return;

	for (dlist_node *previous,
		 *node = dlist_tail_node(&zkh_xact_holds);
		 node != &zkh_xact_holds.head; node = previous)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, node);

		previous = node->prev;
		if (hold->subid != mySubid)
			break;
		if (event == SUBXACT_EVENT_ABORT_SUB)
			end_hold(hold);
		else
			hand_over(hold, parentSubid);
	}
	settle_ended();
}

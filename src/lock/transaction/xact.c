/*-------------------------------------------------------------------------
 *
 * xact.c
 *	  How transactions and locks affect each other.
 *
 * Before COMMIT, the guard (commit_guard.c) judges whether it may proceed; the end of
 * a transaction releases what it took.
 *
 * The callbacks at the end of a transaction must neither fail nor wait: after
 * COMMIT an error is a PANIC.  They unlink first and send then, and leave to
 * the session's thread what could not be sent.  Only those before the commit
 * may raise.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <poll.h>

#include "access/xact.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "backend/backend_session.h"
#include "backend/compat.h"
#include "backend/internals.h"
#include "backend/settings.h"
#include "claim.h"
#include "commit_guard.h"
#include "stop.h"
#include "xact.h"

/*
 * How late a cancel may be noticed while we wait for releases to be confirmed
 */
#define LINGER_SLICE_MS		10

/* The tickets of the nodes that the current transaction has released; 0: none */
static uint64 first_ticket = 0;
static uint64 last_ticket = 0;

static void xact_callback(XactEvent event, void *arg);

/*
 * Callbacks run last in, first out, and postgres_fdw commits its servers in
 * one.  A lost lock must be noticed before that: so we register last, for each
 * transaction that takes a lock, and again after a statement that wrote
 * elsewhere.  (A server that the transaction first uses after taking a lock,
 * and only reads from, still commits before us.)
 *
 * That statement may be run by another callback, during COMMIT.  PostgreSQL is
 * then walking through the list, and has passed the place where we register
 * now: so earlier registrations stay until the transaction has ended.  To take
 * away the one that PostgreSQL is about to run would be a use of freed memory, and
 * nothing tells whether callbacks are running before the first of ours does; but
 * they are not within a plain statement.
 */
static struct
{
	uintptr_t	oldest;			/* each is a number, which is its argument; or
								 * 0 */
	uintptr_t	newest;
	uintptr_t	judged;			/* the newest one when COMMIT was judged */
}			callbacks;

/* The later ones are found first.  Each transaction's end passes by here: t/041 */
static pg_noinline void
leave_older(void)
{
	for (uintptr_t i = callbacks.newest; i > callbacks.oldest; i--)
		UnregisterXactCallback(xact_callback, (void *) (i - 1));
	callbacks.oldest = callbacks.newest;
}

static void
be_first_at_commit(void)
{
	RegisterXactCallback(xact_callback, (void *) (callbacks.newest + 1));	/* may fail */
	callbacks.newest++;
	if (is_in_plain_statement())
		leave_older();
}

/*
 * The first one that runs judges COMMIT, and so does one that was registered
 * since
 */
static bool
is_to_judge(void)
{
	bool		judged = callbacks.judged == callbacks.newest;

	callbacks.judged = callbacks.newest;
	return !judged;
}

/*-------------------------------------------------------------------------
 * Releasing
 *-------------------------------------------------------------------------
 */

static slist_head ended_locks = SLIST_STATIC_INIT(ended_locks);

static void
remember_ticket(uint64 ticket)
{
	if (ticket == 0)
		return;
	last_ticket = ticket;
	if (first_ticket == 0 || ticket < first_ticket) /* of another session */
		first_ticket = ticket;
}

/*
 * The last hold is gone, and so must be the node, unless the shared lock
 * relies on it, too.
 */
static void
release_node(Lock *lock)
{
	ZkSession  *session = zkb_session() != NULL ? zkl_peek_session_of(lock) : NULL;
	ZkNode	   *node = lock->grant.node;
	bool		passed_on = zkl_leave_node(lock);

	if (session != NULL)
		remember_ticket(passed_on ? zkn_share(session, node) : zkn_discard(session, node));
}

/* A claim goes with its hold; if there is an earlier one, it replaces that */
static void
hand_over_claim(Hold *hold, Hold *other)
{
	if (hold->claim == NULL)
		return;
	if (other->claim != NULL)
		other->claim->period = Max(other->claim->period, hold->claim->period);
	else
	{
		other->claim = hold->claim;
		hold->claim = NULL;
	}
}

/*
 * Make the hold belong to another subtransaction, or to none; if there is an
 * equal one already, merge the two.
 */
static void
hand_over(Hold *hold, SubTransactionId subid)
{
	Hold	   *other = zkl_find_hold(hold->lock, hold->scope, subid);

	if (other != NULL)
	{
		zkl_count(other, hold->count);	/* zkl_remove_hold takes it off */
		other->proven &= hold->proven;
		if (other->loss == ZK_NOT_LOST)
			other->loss = hold->loss;
		other->doubted |= hold->doubted;
		hand_over_claim(hold, other);
		zkl_remove_hold(hold);
		return;
	}
	if (subid == InvalidSubTransactionId)
		dlist_delete(&hold->in_xact);
	hold->subid = subid;
}

/* Whether no abort ends it, as none ends PostgreSQL's own advisory locks */
static bool
outlives_abort(const Hold *hold)
{
	return hold->scope == ZK_SCOPE_ADVISORY && hold->count > 0;
}

/*
 * Drop a hold at the end of its (sub)transaction.  What becomes of the lock is
 * decided when all are dropped, since one lock may rely on another.
 */
static void
end_hold(Hold *hold)
{
	Lock	   *lock = hold->lock;

	zks_stop_end(ZKS_STOP_PROCESS);
	zkl_remove_hold(hold);
	if (lock->ended)
		return;
	lock->ended = true;
	slist_push_head(&ended_locks, &lock->in_ended);
}

void
zkl_release_unheld(Lock *lock)
{
	lock->ended = false;
	if (lock->count == 0 && lock->grant.node != NULL)
		release_node(lock);
	zkl_tell_reliance(lock);
	zkl_forget_if_unused(lock);
}

static void
release_ended(void)
{
	while (!slist_is_empty(&ended_locks))
		zkl_release_unheld(slist_container(Lock, in_ended, slist_pop_head_node(&ended_locks)));
}

/*
 * Wait for ZooKeeper to confirm the deletes that the end of a transaction has
 * sent.  There is no latch here, and errors are not allowed; interrupts are
 * held, and PostgreSQL still has the row locks.  So any request to this
 * process ends the wait: a cancel, on which the next statement acts, or a
 * barrier, for which another session's DROP DATABASE waits.  A request that
 * arrives between the check and the poll is noticed when the slice is over.
 */
static void
linger(void)
{
	int64		until = zkb_deadline(zklock_release_timeout);
	uint64		first = first_ticket;
	uint64		last = last_ticket;
	ZkSession  *session;
	int			refused;

	first_ticket = last_ticket = 0;
	if (last == 0 || zklock_release_timeout == 0 || proc_exit_inprogress)
		return;
	session = zkb_session();
	while (session != NULL &&
		   !zkn_gone(session, first, last, &refused) && refused == 0)
	{
		int64		left = (until - zks_now()) / ZKS_MS;
		struct pollfd fd = {.events = POLLIN};

		if (zks_info(session).state != ZKS_CONNECTED || left <= 0 ||
			QueryCancelPending || ProcDiePending || ProcSignalBarrierPending)
			return;
		pgstat_report_wait_start(zkb_wait_event(ZKB_WAIT_RELEASE));
		fd.fd = zks_await(session, NULL);
		poll(&fd, 1, (int) Min(left, LINGER_SLICE_MS));
		zks_awaited(session);
		pgstat_report_wait_end();
	}
}

/*-------------------------------------------------------------------------
 * DROP EXTENSION
 *-------------------------------------------------------------------------
 */

/*
 * The extension's functions that release locks are dropped with it.  So when that
 * commits, the session's holds of these scopes end, too.
 */
static int	orphans = 0;

static pg_noinline void
find_orphans(void)
{
	bool		any = false;
	dlist_iter	iter;

	orphans = !OidIsValid(get_extension_oid("zklock", true)) ? ZKL_SESSION_SCOPES :
		!OidIsValid(get_extension_oid("zklock_advisory", true)) ? ZKL_SCOPE(ZK_SCOPE_ADVISORY) : 0;
	dlist_foreach(iter, &zkl_held)
		any |= zkl_latest_hold(dlist_container(Lock, in_held, iter.cur), orphans) != NULL;
	if (any)
		ereport(NOTICE,
				(orphans != ZKL_SESSION_SCOPES ?
				 errmsg("releasing all advisory locks of this session in ZooKeeper") :
				 errmsg("releasing all ZooKeeper locks of this session"),
				 errdetail("The functions that could release them have been dropped.")));
}

/*-------------------------------------------------------------------------
 * The end of a transaction
 *-------------------------------------------------------------------------
 */

/*
 * At the end of the transaction, its holds end, and those of the session stay
 */
static void
end_transaction(bool commit)
{
	dlist_mutable_iter iter;

	/*
	 * SyncRepWaitForLSN stops waiting when the postmaster dies, and then the
	 * standby may have the commit and not show it yet.  Whoever came next
	 * would not see it, so our locks stay for as long as if the machine had
	 * failed.  PostmasterIsAlive would need a signal, which comes a moment
	 * later.
	 */
	if (commit && ProcDiePending && !PostmasterIsAliveInternal())
		zkb_let_expire();

	if (zkb_peek() != NULL)
		zks_gather(zkb_peek());
	zkl_decide_marks(commit);
	dlist_foreach_modify(iter, &zkl_xact_holds)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, iter.cur);

		if (outlives_abort(hold) ||
			(commit && hold->scope == ZK_SCOPE_SESSION && hold->count > 0))
			hand_over(hold, InvalidSubTransactionId);
		else
			end_hold(hold);
	}
	if (commit && orphans != 0)
	{
		dlist_foreach_modify(iter, &zkl_held)
		{
			Lock	   *lock = dlist_container(Lock, in_held, iter.cur);
			Hold	   *hold;

			while ((hold = zkl_latest_hold(lock, orphans)) != NULL)
				end_hold(hold);
		}
	}
	release_ended();
	if (zkb_peek() != NULL)
	{
		zkn_settle(zkb_peek());
		zks_send(zkb_peek());
	}
	zkl_show();
	linger();
}

void
zkl_take_back(Hold *hold)
{
	if (hold->count > 1)
	{
		zkl_count(hold, -1);
		return;
	}
	end_hold(hold);
	release_ended();
	zkl_show();
	zkl_stop_anew();
}

/*-------------------------------------------------------------------------
 * Callbacks
 *-------------------------------------------------------------------------
 */

static bool
ends_transaction(XactEvent event)
{
	return event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE;
}

/*
 * postgres_fdw commits its servers in between, which takes time.  This
 * callback is registered when the library is loaded, so it mostly runs after
 * all others.
 */
static bool last_has_run = false;

static void
last_callback(XactEvent event, void *arg)
{
	if (ends_transaction(event))
	{
		last_has_run = false;
		orphans = 0;
		callbacks.judged = 0;
		if (callbacks.oldest != callbacks.newest)
			leave_older();		/* all of them have run */
		zkb_rest();
	}
	else if (event == XACT_EVENT_PRE_COMMIT)
	{
		last_has_run = true;
		if (zkl_locks == NULL)
			return;

		/* another callback may have claimed, where we have judged already */
		(void) zkl_write_marks();
		if (zkl_deeds.dropped_something)
			find_orphans();
		zkl_bound_next_wait();
	}
}

/* What a callback behind the last one claims would never be written */
bool
zkl_too_late_to_claim(void)
{
	return last_has_run;
}

bool
zkl_has_locks(void)
{
	return zkl_locks != NULL && hash_get_num_entries(zkl_locks) > 0;
}

void
zkl_writes_elsewhere(void)
{
	zkl_deeds.wrote_elsewhere = true;

	/* whatever writes there on its behalf must not commit before the guard */
	be_first_at_commit();
}

void
zkl_watch_commits(void)
{
	RegisterXactCallback(last_callback, NULL);
}

/*
 * The marks of claims are written even where nobody asks for a guard.  What
 * writes them proves their locks, so it goes first.  The current context may be
 * that of a procedure, which commits again and again.
 */
static void
before_commit(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	int64		asked_at = zkl_write_marks();
	const Lock *relied = zkl_is_judged() ? NULL : zkl_guard(zkl_has_written(), asked_at);

	zkl_tell_losses();
	if (relied != NULL)
		zkl_bound_waits(relied);
	MemoryContextSwitchTo(old);
}

static void
xact_callback(XactEvent event, void *arg)
{
	bool		ended = ends_transaction(event);

	if (ended ? (uintptr_t) arg != callbacks.newest : !is_to_judge())
		return;
	zkl_unbound_waits();

	/* before a signal asks for what the next transaction has done */
	if (ended)
		memset(&zkl_deeds, 0, sizeof(zkl_deeds));
	zkl_stop_no_longer(ended);
	if (!ended)
		zkl_terminate_now_or_later();
	if (!zkl_has_locks() && last_ticket == 0)
		return;

	if (ended)
	{
		end_transaction(event != XACT_EVENT_ABORT);
		zkl_stop_next_transaction();
	}
	else if (event == XACT_EVENT_PRE_COMMIT)
		before_commit();
	else if (event == XACT_EVENT_PRE_PREPARE)
	{
		if (!dlist_is_empty(&zkl_xact_holds))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has taken ZooKeeper locks"),
					 errdetail("A lock belongs to a ZooKeeper session, which a prepared transaction outlives.")));
		(void) zkl_guard(zkl_has_written(), 0);
	}
}

/*
 * The transaction relies on a hold that remains, but no longer on what its
 * aborted part released before
 */
static void
outlive_subtransaction(Hold *hold, SubTransactionId parentSubid)
{
	hold->loss = ZK_NOT_LOST;
	hold->doubted = false;
	hand_over(hold, parentSubid);
}

/*
 * This sends, and does not wait: a loop of a thousand EXCEPTION blocks would
 * wait a thousand times.
 */
static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;

	/* what failed may have put that off until it is done */
	if (event == SUBXACT_EVENT_ABORT_SUB && zkl_nnodes > 0 && !zks_stop_possible(ZKS_STOP_PROCESS))
		zkl_terminate_again();
	if (dlist_is_empty(&zkl_xact_holds) ||
		dlist_tail_element(Hold, in_xact, &zkl_xact_holds)->subid != mySubid)
		return;

	for (dlist_node *previous,
		 *node = dlist_tail_node(&zkl_xact_holds);
		 node != &zkl_xact_holds.head; node = previous)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, node);

		previous = node->prev;
		if (hold->subid != mySubid)
			break;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			hand_over(hold, parentSubid);
		else if (outlives_abort(hold))
			outlive_subtransaction(hold, parentSubid);
		else
			end_hold(hold);
	}
	release_ended();
	zkl_show();
	if (event == SUBXACT_EVENT_ABORT_SUB)
		zkl_stop_anew();
}

void
zkl_watch_transactions(void)
{
	static bool registered = false;

	if (!registered)
	{
		RegisterSubXactCallback(subxact_callback, NULL);
		zkl_stop_init();
		registered = true;
	}
	if (dlist_is_empty(&zkl_xact_holds))
		be_first_at_commit();
}

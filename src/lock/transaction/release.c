/*-------------------------------------------------------------------------
 *
 * release.c
 *	  Releasing locks before the transaction ends, as zk_unlock does.
 *
 * The hold is gone as soon as the call begins, whatever becomes of it.  The
 * call waits for ZooKeeper to confirm that the node existed until then: if it
 * did not, the lock had been lost, and the transaction that relied on it must
 * know.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "backend/backend_session.h"
#include "backend/errors.h"
#include "backend/settings.h"
#include "hold.h"
#include "stop.h"

/*
 * Release all holds of a lock that have these scopes, or the latest once; returns their
 * count.  An entry that the current transaction took stays: see the head of hold_table.c.
 */
static int64
lower_holds(Lock *lock, int scopes, bool all)
{
	int64		dropped = 0;
	Hold	   *hold;

	while ((all || dropped == 0) && (hold = zkl_latest_hold(lock, scopes)) != NULL)
	{
		int64		by = all ? hold->count : 1;

		dropped += by;
		zkl_count(hold, -by);
		if (hold->count == 0 && hold->subid == InvalidSubTransactionId)
			zkl_remove_hold(hold);
	}
	return dropped;
}

/*
 * What has become of a lock that zk_unlock has released.  The delete of its
 * node tells for certain whether it was held until then: NONODE means that it
 * was not.
 */
typedef enum Ended
{
	WAITING,
	UNCERTAIN,					/* its node is gone, but it is unknown since
								 * when */
	STILL_HELD,					/* by other holds: the node stays */
	HELD_UNTIL_THEN,
	LOST_BEFORE
} Ended;

typedef struct Ending
{
	Lock	   *lock;
	Lock	   *base;			/* the lock on whose node it relied */
	ZkSession  *session;		/* that of its node, or NULL */
	ZkNode	   *node;			/* if there is something to wait for */
	bool		passed_on;		/* the node has become the shared lock's */
	int64		count;			/* of released holds */
	ZkLoss		loss;			/* if it is known to be lost */
	bool		proven;			/* the guard would have passed it then */
	Ended		ended;
} Ending;

/*
 * The lock's holds have been released, however many there were.  Does not
 * fail, and does not notice the end of the session, which other endings still
 * need.
 */
static void
begin_ending(Ending *ending)
{
	Lock	   *lock = ending->lock;
	ZkSession  *session = ending->session;
	ZkNode	   *node = ending->base->grant.node;

	ending->ended = ending->loss != ZK_NOT_LOST ? LOST_BEFORE : STILL_HELD;
	if (lock->count > 0 || lock->grant.node == NULL)
		return;
	ending->passed_on = zkl_leave_node(lock);
	if (ending->loss != ZK_NOT_LOST)
	{
		if (session != NULL && !ending->passed_on)
			(void) zkn_discard(session, node);
		return;
	}
	ending->ended = WAITING;
	ending->node = node;
	if (ending->passed_on)
		(void) zkn_share(session, node);
	else
		zkn_delete(session, node);
}

/*
 * See what has become of it; returns ZKS_OK, or the code with which ZooKeeper
 * refused
 */
static int
look_at_ending(Ending *ending)
{
	ZkSessionInfo info;
	ZkNodeInfo	node;

	if (ending->ended != WAITING)
		return ZKS_OK;

	/* read the session first: its end reaches the node a moment later */
	info = zks_info(ending->session);
	zkn_info(ending->session, ending->node, &node);
	if (node.state == ZKN_DELETED)
		ending->ended = node.rc == ZKS_OK ? HELD_UNTIL_THEN : UNCERTAIN;
	else if (ending->passed_on && node.state == ZKN_PRESENT && !node.sharing)
		ending->ended = HELD_UNTIL_THEN;
	else if (node.state == ZKN_LOST || info.state == ZKS_OVER)
	{
		ending->ended = LOST_BEFORE;
		ending->loss = node.loss != ZK_NOT_LOST ? node.loss : ZK_LOST_SESSION;
		ending->lock->loss = ending->loss;
	}
	else
		return node.rc;
	return ZKS_OK;
}

/*
 * Wait until ZooKeeper has confirmed the deletes, but not forever: the holds
 * are already gone, and the session's thread goes on trying.
 */
static void
await_endings(Ending *endings, int n)
{
	ZkPatience	patience = {.event = ZKB_WAIT_RELEASE,.until = zkb_deadline(zklock_operation_timeout)};
	Ending	   *late = NULL;
	int			refused = ZKS_OK;
	ZkWait		wait;

	zkb_wait_begin(&wait, -1, false);
	patience.wait = &wait;
	for (int i = 0; i < n; i++)
	{
		int			rc;

		patience.session = endings[i].session;
		do
			rc = look_at_ending(&endings[i]);
		while (rc == ZKS_OK && endings[i].ended == WAITING &&
			   (zkb_wait_on(&patience) || patience.waited == ZKB_SESSION_OVER));
		if (rc != ZKS_OK)
			refused = rc;
		if (endings[i].ended == WAITING)
			late = &endings[i];
	}
	for (int i = 0; i < n; i++)
	{
		const Lock *base = endings[i].base;

		/* the loss extends to what relied on a node that is released, too */
		if (endings[i].ended == STILL_HELD && base->grant.node == NULL && base->loss != ZK_NOT_LOST)
		{
			endings[i].ended = LOST_BEFORE;
			endings[i].loss = base->loss;
		}
		if (endings[i].ended == LOST_BEFORE)
			ereport(WARNING,
					(errmsg("the lock on %s had been lost", zkl_name(endings[i].lock)),
					 errdetail_internal("%s", zkb_loss_detail(endings[i].loss))));
	}
	if (late != NULL && refused != ZKS_OK)
		ereport(WARNING,
				(errmsg("ZooKeeper refused the release of a lock: %s", zks_code_text(refused)),
				 errdetail("The release will be retried; the lock is released at the latest when this backend's ZooKeeper session ends.")));
	else if (late != NULL)
		ereport(WARNING,
				(errmsg("ZooKeeper has not confirmed the release of a lock"),
				 errdetail("It will be released when ZooKeeper can be reached, or at the latest when this backend's ZooKeeper session times out.")));
}

/*
 * The transaction may have relied on a lock that it took and released: the
 * guard must know what became of it.
 */
static void
tell_holds(const Ending *ending, Lock *lock)
{
	dlist_iter	iter;

	dlist_foreach(iter, &lock->holds)
	{
		Hold	   *hold = dlist_container(Hold, in_lock, iter.cur);

		if (lock != ending->lock && hold->proven)
			continue;			/* was released before */
		if (ending->ended == LOST_BEFORE)
			hold->loss = ending->loss;
		if (ending->ended == STILL_HELD)
			hold->proven = hold->count == 0 && ending->proven;

		/*
		 * A delete that was sent twice may get NONODE although the lock was
		 * held: do not doubt what the guard would have passed.
		 */
		if (ending->ended == WAITING || ending->ended == UNCERTAIN)
			hold->doubted |= !ending->proven;
	}
}

static void
finish_ending(Ending *ending)
{
	Lock	   *twin = zkl_twin_of(ending->lock);

	if (ending->node != NULL && !ending->passed_on)
		(void) zkn_discard(ending->session, ending->node);
	tell_holds(ending, ending->lock);

	/* the shared lock's holds, released before, if it relied on this node */
	if (ending->node != NULL && twin != NULL && twin->grant.node == NULL)
		tell_holds(ending, twin);
	zkl_tell_reliance(ending->lock);
	if (ending->lock->grant.node == NULL)
		ending->lock->loss = ZK_NOT_LOST;
	zkl_forget_if_unused(ending->lock);
}

/* For releasing a lock that has no hold of this scope */
static void
warn_not_held(Lock *lock, const char *path, ZkpMode mode, ZkScope scope)
{
	const char *shown = zkb_path_for_display(path);
	const char *hint = NULL;

	if (scope == ZK_SCOPE_ADVISORY)
	{
		/* in PostgreSQL's words */
		ereport(WARNING,
				(errmsg("you don't own a lock of type %s",
						mode == ZKP_SHARED ? "ShareLock" : "ExclusiveLock")));
		return;
	}
	if (lock != NULL && zkl_latest_hold(lock, ZKL_TRANSACTION_SCOPES) != NULL)
		hint = "The transaction holds the lock, and releases it when it ends.";
	else if (lock != NULL && zkl_latest_hold(lock, ZKL_SESSION_SCOPES) != NULL)
		hint = "The session took the lock as an advisory lock; release it with pg_advisory_unlock or pg_advisory_unlock_shared.";
	ereport(WARNING,
			(mode == ZKP_SEMAPHORE ? errmsg("you don't own a session-scope place of semaphore \"%s\"", shown) :
			 errmsg("you don't own a session-scope %s lock on \"%s\"", mode == ZKP_SHARED ? "shared" : "exclusive", shown),
			 hint != NULL ? errhint("%s", hint) : 0));
}

/*
 * Note the state of the lock before any of the locks that are released
 * together ends: one may rely on the node of another.
 */
static void
start_ending(Ending *ending)
{
	Lock	   *base = zkl_base(ending->lock);
	ZkNode	   *node = base->grant.node;

	ending->base = base;
	ending->session = zkl_peek_session_of(base);
	ending->loss = base->loss;
	if (ending->session == NULL && ending->loss == ZK_NOT_LOST)
		ending->loss = zkb_last_loss();
	ending->proven = ending->session != NULL && zklock_commit_guard != ZKLOCK_GUARD_STRICT &&
		zkn_unproven(ending->session, &node, 1, ZKS_COMMIT, 0, &node) == 0;
}

/*
 * Release the holds that these locks have in these scopes, all or the latest, and
 * what ZooKeeper has of them.  Returns how many that were, not counting lost ones.
 */
static int64
release(Ending *endings, int n, int scopes, bool all)
{
	int64		released;

	if (n == 0)
		return 0;
	zkl_terminate_now_or_later();

	/* check all of them first, since that may end the session */
	for (int i = 0; i < n; i++)
		(void) zkl_is_lost(endings[i].lock);

	/*
	 * lower all holds before any node goes, since one lock may rely on
	 * another
	 */
	for (int i = 0; i < n; i++)
	{
		start_ending(&endings[i]);
		endings[i].count = lower_holds(endings[i].lock, scopes,
									   all || endings[i].loss != ZK_NOT_LOST);
	}

	/* from here to the end nothing but the wait may fail */
	for (int i = 0; i < n; i++)
		begin_ending(&endings[i]);
	for (int i = 0; i < n; i++)
		zkl_tell_reliance(endings[i].lock);

	/*
	 * the backend is terminated, if at all, because of what remains: the
	 * confirmation may be long in coming
	 */
	zkl_terminate_again();
	zkl_show();
	PG_TRY();
	{
		await_endings(endings, n);
	}
	PG_FINALLY();
	{
		for (int i = 0; i < n; i++)
			finish_ending(&endings[i]);
		zkl_stop_anew();
	}
	PG_END_TRY();

	released = 0;
	for (int i = 0; i < n; i++)
	{
		if (endings[i].ended != LOST_BEFORE)
			released += endings[i].count;
	}
	pfree(endings);
	return released;
}

int
zkl_unlock(char **paths, int npaths, ZkpMode mode, ZkScope scope)
{
	Ending	   *endings = palloc0(Max(npaths, 1) * sizeof(Ending));
	int			n = 0;

	zkb_warn_unreleased();
	for (int i = 0; i < npaths; i++)
	{
		Lock	   *lock = zkl_find_lock(zkl_full_path(paths[i]), mode);

		if (lock != NULL && zkl_latest_hold(lock, ZKL_SCOPE(scope)) != NULL)
			endings[n++].lock = lock;
		else
			warn_not_held(lock, paths[i], mode, scope);
	}
	return (int) release(endings, n, ZKL_SCOPE(scope), false);
}

int64
zkl_unlock_all(int scopes)
{
	Ending	   *endings = palloc0(Max(zkl_nheld, 1) * sizeof(Ending));
	int			n = 0;
	dlist_iter	iter;

	zkb_warn_unreleased();
	dlist_foreach(iter, &zkl_held)
	{
		Lock	   *lock = dlist_container(Lock, in_held, iter.cur);

		if (zkl_latest_hold(lock, scopes) != NULL)
			endings[n++].lock = lock;
	}
	return release(endings, n, scopes, true);
}

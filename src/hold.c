/*-------------------------------------------------------------------------
 *
 * hold.c
 *	  What this backend holds: taking, giving back, looking.
 *
 * A lock is one node in ZooKeeper; a hold is a reason to keep it: how often
 * it was taken, in which scope, in which subtransaction.  Equal holds are one
 * entry with a count, since a row trigger may take the same lock ten thousand
 * times.  The node goes when the last hold goes.  That alone gives re-entry,
 * both scopes, and exact partial rollback.
 *
 * Holds taken in the current transaction are also in one list, the outermost
 * subtransaction's first, so that the end of a subtransaction has to look at
 * the tail only.  An entry whose count has come to zero by zk_unlock stays in
 * that list until the transaction ends: the transaction did rely on the lock.
 *
 * A subtransaction is known by its id.  Ids begin anew in each transaction,
 * so holds that outlive theirs lose it (InvalidSubTransactionId).  What
 * transactions do to holds is in xact.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "client.h"
#include "hold_int.h"
#include "settings.h"

static MemoryContext hold_context = NULL;
HTAB	   *zkh_locks = NULL;
dlist_head	zkh_xact_holds = DLIST_STATIC_INIT(zkh_xact_holds);
static int	nnodes = 0;

/*-------------------------------------------------------------------------
 * Locks
 *-------------------------------------------------------------------------
 */

static void
make_key(LockKey *key, const char *path, ZkpMode mode)
{
	memset(key, 0, sizeof(*key));
	key->mode = (char) mode;
	strlcpy(key->path, path, sizeof(key->path));
}

static Lock *
find_lock(const char *path, ZkpMode mode)
{
	LockKey		key;

	if (zkh_locks == NULL)
		return NULL;
	make_key(&key, path, mode);
	return hash_search(zkh_locks, &key, HASH_FIND, NULL);
}

static Lock *
enter_lock(const char *path, ZkpMode mode)
{
	LockKey		key;
	Lock	   *lock;
	bool		found;

	make_key(&key, path, mode);
	lock = hash_search(zkh_locks, &key, HASH_ENTER, &found);
	if (!found)
	{
		lock->taken = false;
		lock->lost = false;
		lock->count = 0;
		lock->guarded = 0;
		dlist_init(&lock->holds);
	}
	return lock;
}

ZkSession *
zkh_session_of(Lock *lock)
{
	ZkSession  *session = zkc_session();

	return lock->taken && lock->generation == zkc_generation() ? session : NULL;
}

int
zkh_first_lost(Lock *const *locks, ZkNode *const *nodes, int n)
{
	ZkSession  *session = zkc_session();
	ZkSessionInfo info;
	int			lost;

	for (lost = 0; lost < n; lost++)
	{
		if (locks[lost]->lost || session == NULL ||
			locks[lost]->generation != zkc_generation())
			break;
	}
	if (lost == n)
	{
		zks_info(session, &info);

		/* a process that was stopped learns it here before its keeper does */
		lost = zkc_may_have_expired(&info) ? 0 : zkn_first_lost(session, nodes, n);
	}
	if (lost >= 0)
		locks[lost]->lost = true;
	return lost;
}

static bool
is_lost(Lock *lock)
{
	return lock->taken && zkh_first_lost(&lock, &lock->grant.node, 1) == 0;
}

ZkNode *
zkh_drop_node(Lock *lock)
{
	ZkNode	   *node = lock->grant.node;

	lock->taken = false;
	lock->lost = false;
	lock->grant.node = NULL;
	nnodes--;
	return node;
}

void
zkh_forget_if_unused(Lock *lock)
{
	if (dlist_is_empty(&lock->holds))
		hash_search(zkh_locks, &lock->key, HASH_REMOVE, NULL);
}

/*-------------------------------------------------------------------------
 * Holds
 *-------------------------------------------------------------------------
 */

Hold *
zkh_find_hold(Lock *lock, ZkScope scope, SubTransactionId subid)
{
	dlist_iter	iter;

	dlist_foreach(iter, &lock->holds)
	{
		Hold	   *hold = dlist_container(Hold, in_lock, iter.cur);

		if (hold->scope == scope && hold->subid == subid)
			return hold;
	}
	return NULL;
}

void
zkh_remove_hold(Hold *hold)
{
	hold->lock->count -= hold->count;
	dlist_delete(&hold->in_lock);
	if (hold->subid != InvalidSubTransactionId)
		dlist_delete(&hold->in_xact);
	pfree(hold);
}

/*
 * Give one or all of a hold's count back, by zk_unlock.  What the current
 * transaction took stays as an entry: see the head of this file.
 */
static void
lower_hold(Hold *hold, int64 by)
{
	Lock	   *lock = hold->lock;

	hold->count -= by;
	lock->count -= by;
	if (hold->count == 0 && hold->subid == InvalidSubTransactionId)
		zkh_remove_hold(hold);
}

/*-------------------------------------------------------------------------
 * Locking
 *-------------------------------------------------------------------------
 */

static void
initialize(void)
{
	HASHCTL		ctl;

	if (zkh_locks != NULL)
		return;
	if (hold_context == NULL)
	{
		hold_context = AllocSetContextCreate(TopMemoryContext, "zklock",
											 ALLOCSET_DEFAULT_SIZES);
		zkx_initialize();
	}
	ctl.keysize = sizeof(LockKey);
	ctl.entrysize = sizeof(Lock);
	ctl.hcxt = hold_context;
	zkh_locks = hash_create("zklock locks", 16, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
refuse_lost(Lock *lock)
{
	if (lock->count > 0 && is_lost(lock))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the lock on \"%s\" was lost", zkpath_for_display(lock->key.path)),
				 errdetail(LOST_DETAIL),
				 errhint("Call zk_unlock for it, or end the transaction that took it, and lock again.")));
}

static Hold *
make_hold(Lock *lock, ZkScope scope)
{
	Hold	   *hold = MemoryContextAllocZero(hold_context, sizeof(Hold));

	hold->lock = lock;
	hold->scope = scope;
	hold->subid = GetCurrentSubTransactionId();
	dlist_push_tail(&lock->holds, &hold->in_lock);
	dlist_push_tail(&zkh_xact_holds, &hold->in_xact);
	return hold;
}

static void
take_node(Lock *lock, const ZkGrant *grant)
{
	lock->grant = *grant;
	lock->generation = zkc_generation();
	lock->taken = true;
	lock->lost = false;
	lock->acquired_at = GetCurrentTimestamp();
	nnodes++;
}

/* One more hold is granted only after the lock is known to be held */
static void
confirm(Lock *lock, ZkWait *wait)
{
	ZkSession  *session = zkc_connect(wait);
	ZkSessionInfo info;

	refuse_lost(lock);
	zks_info(session, &info);
	if (zkc_is_proven(&info))
		return;
	switch (zkc_prove(&lock->grant.node, 1, wait, zkwait_after(zklock_operation_timeout)))
	{
		case ZKC_PROVEN:
			break;
		case ZKC_MISSING:
		case ZKC_OVER:
			refuse_lost(lock);
			break;
		case ZKC_NO_ANSWER:
			zkc_raise_unanswered(wait);
	}
}

/* Held already, or to be had from ZooKeeper */
static bool
obtain(Lock *lock, bool may_wait, ZkWait *wait)
{
	ZkGrant		grant;

	if (lock->taken && lock->count > 0)
	{
		confirm(lock, wait);
		return true;
	}
	if (nnodes >= zklock_max_locks)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many ZooKeeper locks"),
				 errdetail("This session holds %d.", nnodes),
				 errhint("You might need to increase zklock.max_locks.")));
	if (!zkl_acquire(lock->key.path, (ZkpMode) lock->key.mode, may_wait, wait, &grant))
		return false;

	/* from here to the return nothing may fail or be interrupted */
	take_node(lock, &grant);
	return true;
}

bool
zkh_lock(const char *path, ZkpMode mode, ZkScope scope, bool may_wait, ZkWait *wait)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	Lock	   *volatile lock;
	Hold	   *volatile hold;
	volatile bool held = false;

	initialize();
	(void) zkc_session();		/* notice its end, if so */
	if (nnodes == 0)
		zkc_follow_settings();
	zkx_be_first_at_commit();

	lock = enter_lock(path, mode);
	hold = zkh_find_hold(lock, scope, subid);
	if (hold == NULL)
		hold = make_hold(lock, scope);

	PG_TRY();
	{
		refuse_lost(lock);
		held = obtain(lock, may_wait, wait);
	}
	PG_FINALLY();
	{
		if (held)
		{
			hold->count++;
			lock->count++;
			hold->used = true;
			hold->proven = false;
		}
		else if (!hold->used)
		{
			zkh_remove_hold(hold);
			zkh_forget_if_unused(lock);
		}
	}
	PG_END_TRY();
	return held;
}

/*-------------------------------------------------------------------------
 * Unlocking
 *-------------------------------------------------------------------------
 */

static Hold *
latest_session_hold(Lock *lock)
{
	dlist_iter	iter;

	dlist_reverse_foreach(iter, &lock->holds)
	{
		Hold	   *hold = dlist_container(Hold, in_lock, iter.cur);

		if (hold->scope == ZK_SCOPE_SESSION && hold->count > 0)
			return hold;
	}
	return NULL;
}

/* All session-scope holds of a lock; returns their count */
static int64
lower_session_holds(Lock *lock)
{
	int64		dropped = 0;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &lock->holds)
	{
		Hold	   *hold = dlist_container(Hold, in_lock, iter.cur);

		if (hold->scope == ZK_SCOPE_SESSION && hold->count > 0)
		{
			dropped += hold->count;
			lower_hold(hold, hold->count);
		}
	}
	return dropped;
}

static void
warn_lost(const char *path)
{
	ereport(WARNING,
			(errmsg("the lock on \"%s\" had been lost", zkpath_for_display(path))));
}

/*
 * A lock that zk_unlock has given back.  The delete of its node tells for
 * certain whether it was held until then: NONODE means that it was not.
 */
typedef enum Ended
{
	WAITING,
	UNCERTAIN,					/* its node is gone, nobody knows since when */
	STILL_HELD,					/* by other holds: the node is there */
	HELD_UNTIL_THEN,
	LOST_BEFORE
} Ended;

typedef struct Ending
{
	Lock	   *lock;
	ZkSession  *session;		/* if there is something to wait for */
	ZkNode	   *node;
	int64		count;			/* of holds given back */
	bool		proven;			/* the guard would have passed it then */
	Ended		ended;
} Ending;

/*
 * So many of the lock's holds have been given back.  Does not fail, and does
 * not notice the end of the session, which other endings need.
 */
static void
begin_ending(Ending *ending, Lock *lock, int64 count, bool lost)
{
	ZkSession  *session = lock->generation == zkc_generation() ? zkc_peek() : NULL;
	ZkSessionInfo info;
	ZkNode	   *node;

	memset(ending, 0, sizeof(*ending));
	ending->lock = lock;
	ending->count = count;
	if (session != NULL)
	{
		zks_info(session, &info);
		ending->proven = zkc_is_proven(&info) && zklock_commit_guard != ZKLOCK_GUARD_STRICT;
	}
	ending->ended = lost || session == NULL ? LOST_BEFORE : STILL_HELD;
	if (lock->count > 0)
		return;
	node = zkh_drop_node(lock);
	if (session == NULL)
		return;
	if (lost)
	{
		(void) zkn_discard(session, node);
		return;
	}
	ending->ended = WAITING;
	ending->session = session;
	ending->node = node;
	zkn_delete(session, node);
}

/* What has become of it?  Returns the code with which ZooKeeper refused, or 0 */
static int
look_at_ending(Ending *ending)
{
	ZkSessionInfo info;
	ZkNodeInfo	node;

	if (ending->ended != WAITING)
		return 0;

	/* the session first: its end is said of the node a moment later */
	zks_info(ending->session, &info);
	zkn_info(ending->session, ending->node, &node);
	if (node.state == ZKN_DELETED)
		ending->ended = node.rc == 0 ? HELD_UNTIL_THEN : UNCERTAIN;
	else if (node.state == ZKN_LOST || info.state == ZKS_OVER)
		ending->ended = LOST_BEFORE;
	else
		return node.rc;
	return 0;
}

/*
 * Wait until ZooKeeper has confirmed the deletes, but not without end: the
 * holds are gone already, and the session's thread goes on.
 */
static void
await_endings(Ending *endings, int n)
{
	int64		until = zkwait_after(zklock_operation_timeout);
	bool		in_time = true;
	Ending	   *late = NULL;
	int			refused = 0;
	ZkWait		wait;

	zkwait_begin(&wait, -1, false);
	for (int i = 0; i < n; i++)
	{
		for (;;)
		{
			int			rc = look_at_ending(&endings[i]);

			if (rc != 0)
				refused = rc;
			if (rc != 0 || !in_time || endings[i].ended != WAITING)
				break;
			in_time = zkwait(&wait, endings[i].session, until, ZKWAIT_RELEASE);
		}
		if (endings[i].ended == WAITING)
			late = &endings[i];
	}
	for (int i = 0; i < n; i++)
	{
		if (endings[i].ended == LOST_BEFORE)
			warn_lost(endings[i].lock->key.path);
	}
	if (late != NULL && refused != 0)
		ereport(WARNING,
				(errmsg("ZooKeeper refused the release of a lock: %s", zkc_explain(refused)),
				 errdetail("It will be tried again; at the latest the lock is released when this backend's ZooKeeper session ends.")));
	else if (late != NULL)
		ereport(WARNING,
				(errmsg("ZooKeeper has not confirmed the release of a lock"),
				 errdetail("It will be released when ZooKeeper can be reached, or at the latest when this backend's ZooKeeper session times out.")));
}

/*
 * The transaction may have relied on what it took and gave back: the guard is
 * to know what became of it.
 */
static void
finish_ending(Ending *ending)
{
	dlist_iter	iter;

	if (ending->node != NULL)
		(void) zkn_discard(ending->session, ending->node);
	dlist_foreach(iter, &ending->lock->holds)
	{
		Hold	   *hold = dlist_container(Hold, in_lock, iter.cur);

		switch (ending->ended)
		{
			case WAITING:
			case UNCERTAIN:

				/*
				 * A delete that was sent twice has an honest NONODE, too: do
				 * not doubt what the guard would have passed.
				 */
				hold->doubted |= !ending->proven;
				break;
			case STILL_HELD:
				hold->proven = hold->count == 0 && ending->proven;
				break;
			case HELD_UNTIL_THEN:
				break;
			case LOST_BEFORE:
				hold->lost = true;
				break;
		}
	}
	zkh_forget_if_unused(ending->lock);
}

static void
finish_endings(Ending *endings, int n)
{
	for (int i = 0; i < n; i++)
		finish_ending(&endings[i]);
}

/* From begin_ending to here nothing may fail */
static void
complete_endings(Ending *endings, int n)
{
	PG_TRY();
	{
		await_endings(endings, n);
	}
	PG_CATCH();
	{
		finish_endings(endings, n);
		PG_RE_THROW();
	}
	PG_END_TRY();
	finish_endings(endings, n);
}

bool
zkh_unlock(const char *path, ZkpMode mode)
{
	Lock	   *lock = find_lock(path, mode);
	Hold	   *hold = lock != NULL ? latest_session_hold(lock) : NULL;
	bool		lost;
	Ending		ending;

	if (hold == NULL)
	{
		ereport(WARNING,
				(errmsg("you don't own a session-scope %s lock on \"%s\"",
						mode == ZKP_SHARED ? "shared" : "exclusive",
						zkpath_for_display(path))));
		return false;
	}
	lost = is_lost(lock);
	if (lost)
		(void) lower_session_holds(lock);
	else
		lower_hold(hold, 1);
	begin_ending(&ending, lock, 1, lost);
	complete_endings(&ending, 1);
	return ending.ended != LOST_BEFORE;
}

int64
zkh_unlock_all(void)
{
	HASH_SEQ_STATUS status;
	Lock	   *lock;
	Ending	   *endings;
	int			n = 0;
	int64		dropped = 0;

	if (zkh_locks == NULL || hash_get_num_entries(zkh_locks) == 0)
		return 0;
	endings = palloc(hash_get_num_entries(zkh_locks) * sizeof(Ending));

	/* all of them first: it may end the session */
	hash_seq_init(&status, zkh_locks);
	while ((lock = hash_seq_search(&status)) != NULL)
		(void) is_lost(lock);

	hash_seq_init(&status, zkh_locks);
	while ((lock = hash_seq_search(&status)) != NULL)
	{
		bool		lost = lock->taken && lock->lost;
		int64		count = lower_session_holds(lock);

		if (count > 0)
			begin_ending(&endings[n++], lock, count, lost);
	}
	complete_endings(endings, n);
	for (int i = 0; i < n; i++)
	{
		if (endings[i].ended != LOST_BEFORE)
			dropped += endings[i].count;
	}
	pfree(endings);
	return dropped;
}

/*-------------------------------------------------------------------------
 * Looking
 *-------------------------------------------------------------------------
 */

static ZkHoldState
state_of(Lock *lock)
{
	ZkSession  *session;
	ZkSessionInfo info;

	if (is_lost(lock))
		return ZKH_LOST;
	session = zkh_session_of(lock);
	if (session == NULL)		/* it ended just now */
		return ZKH_LOST;
	zks_info(session, &info);
	return zkc_is_fresh(&info) ? ZKH_HELD : ZKH_SUSPECT;
}

bool
zkh_token(const char *path, int64 *token)
{
	static const ZkpMode modes[] = {ZKP_EXCLUSIVE, ZKP_SHARED};

	for (int i = 0; i < lengthof(modes); i++)
	{
		Lock	   *lock = find_lock(path, modes[i]);

		if (lock != NULL && lock->count > 0 && !is_lost(lock))
		{
			*token = lock->grant.token;
			return true;
		}
	}
	return false;
}

int64
zkh_fencing_token(const char *path)
{
	Lock	   *lock = find_lock(path, ZKP_EXCLUSIVE);

	if (lock == NULL || lock->count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session does not hold the exclusive lock on \"%s\"",
						zkpath_for_display(path)),
				 errhint("Lock it first, or give the token of the program that holds it.")));
	if (is_lost(lock))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the lock on \"%s\" was lost", zkpath_for_display(path)),
				 errdetail(LOST_DETAIL),
				 errhint(LOST_HINT)));
	return lock->grant.token;
}

char *
zkh_full_path(const char *path)
{
	if (nnodes == 0)
		zkc_follow_settings();
	return zkpath_join(zkc_root(), path);
}

void
zkh_each(void (*callback) (const ZkHoldInfo *info, void *arg), void *arg)
{
	HASH_SEQ_STATUS status;
	Lock	   *lock;

	if (zkh_locks == NULL)
		return;
	hash_seq_init(&status, zkh_locks);
	while ((lock = hash_seq_search(&status)) != NULL)
	{
		int64		counts[2] = {0, 0};
		dlist_iter	iter;

		dlist_foreach(iter, &lock->holds)
		{
			Hold	   *hold = dlist_container(Hold, in_lock, iter.cur);

			counts[hold->scope] += hold->count;
		}
		for (int scope = ZK_SCOPE_SESSION; scope <= ZK_SCOPE_TRANSACTION; scope++)
		{
			ZkHoldInfo	info;

			if (counts[scope] == 0)
				continue;
			info.path = lock->key.path;
			info.mode = (ZkpMode) lock->key.mode;
			info.scope = (ZkScope) scope;
			info.count = counts[scope];
			info.state = state_of(lock);
			info.token = lock->grant.token;
			info.node = lock->grant.name;
			info.acquired_at = lock->acquired_at;
			callback(&info, arg);
		}
	}
}

/*-------------------------------------------------------------------------
 *
 * hold_table.c
 *	  The table of this backend's locks, and the holds on each.
 *
 * A lock is one node in ZooKeeper; a hold is a reason to keep it: how often it
 * was taken, in which scope, in which subtransaction.  Equal holds are one
 * entry with a count, since a row trigger may take the same lock ten thousand
 * times.  (What the functions of zklock_advisory take are scopes of their own: the
 * session's belongs to it from the beginning, so that no abort ends it; and while
 * there is either, the lock has a shadow.)  The node is deleted when the last hold
 * ends.  That alone makes locks re-entrant, and gives both scopes and exact partial
 * rollback.
 *
 * A shared lock that is taken under the exclusive one of the same path relies
 * on that one's node, and inherits it when the exclusive one is released:
 * nobody can get in between.  The other way round, the exclusive lock gets a
 * node of its own, at the end of the queue.
 *
 * Holds taken in the current transaction are also in one list, the outermost
 * subtransaction's first, so that the end of a subtransaction need only look
 * at the tail.  An entry whose count zk_unlock has reduced to zero stays in
 * that list until the transaction ends: the transaction did rely on the lock.
 *
 * A subtransaction is identified by its id.  Ids start anew in each
 * transaction, so holds that outlive theirs get InvalidSubTransactionId.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "utils/memutils.h"

#include "backend/backend_session.h"
#include "backend/errors.h"
#include "backend/settings.h"
#include "backend/slots.h"
#include "hold_table.h"

static MemoryContext hold_context = NULL;
HTAB	   *zkl_locks = NULL;
dlist_head	zkl_xact_holds = DLIST_STATIC_INIT(zkl_xact_holds);
dlist_head	zkl_held = DLIST_STATIC_INIT(zkl_held);
int			zkl_nheld = 0;
int			zkl_nnodes = 0;

/*-------------------------------------------------------------------------
 * Locks
 *-------------------------------------------------------------------------
 */

/* A table keyed by text would need room for the longest in each entry: 2 kB */

static uint32
hash_key(const void *key, Size keysize)
{
	const LockKey *k = key;

	return hash_bytes((const unsigned char *) k->path, (int) strlen(k->path)) ^ k->mode;
}

static int
compare_keys(const void *a, const void *b, Size keysize)
{
	const LockKey *key = a;
	const LockKey *other = b;

	return key->mode != other->mode ? 1 : strcmp(key->path, other->path);
}

static void
make_table(void)
{
	HASHCTL		ctl;

	if (zkl_locks != NULL)
		return;
	if (hold_context == NULL)
		hold_context = AllocSetContextCreate(TopMemoryContext, "zklock",
											 ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(LockKey);
	ctl.entrysize = sizeof(Lock);
	ctl.hash = hash_key;
	ctl.match = compare_keys;
	ctl.hcxt = hold_context;
	zkl_locks = hash_create("zklock locks", 16, &ctl,
							HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
}

char *
zkl_full_path(const char *path)
{
	zklock_refuse_dropped_settings();
	return zkb_join_path(zklock_root, path);
}

Lock *
zkl_find_lock(const char *path, ZkpMode mode)
{
	LockKey		key = {.mode = (char) mode,.path = unconstify(char *, path)};

	if (zkl_locks == NULL)
		return NULL;
	return hash_search(zkl_locks, &key, HASH_FIND, NULL);
}

Lock *
zkl_twin_of(Lock *lock)
{
	if (lock->key.mode == ZKP_SEMAPHORE)
		return NULL;
	return zkl_find_lock(lock->key.path,
						 lock->key.mode == ZKP_SHARED ? ZKP_EXCLUSIVE : ZKP_SHARED);
}

Lock *
zkl_base(Lock *lock)
{
	Lock	   *twin;

	if (lock->grant.node != NULL)
		return lock;
	if (lock->key.mode != ZKP_SHARED)
		return NULL;
	twin = zkl_twin_of(lock);
	return twin != NULL && twin->grant.node != NULL ? twin : NULL;
}

Lock *
zkl_enter_lock(const char *path, ZkpMode mode)
{
	Lock	   *lock = zkl_find_lock(path, mode);
	LockKey		key = {.mode = (char) mode};

	if (lock != NULL)
		return lock;
	make_table();
	key.path = MemoryContextStrdup(hold_context, path);
	lock = hash_search(zkl_locks, &key, HASH_ENTER, NULL);
	key = lock->key;
	memset(lock, 0, sizeof(Lock));
	lock->key = key;
	lock->root_len = zkb_root_len(zklock_root);
	dlist_init(&lock->holds);
	return lock;
}

char *
zkl_root_of(const Lock *lock)
{
	return lock->root_len == 0 ? pstrdup("/") : pnstrdup(lock->key.path, lock->root_len);
}

char *
zkl_name(const Lock *lock)
{
	const char *path = zkb_path_for_display(lock->key.path + lock->root_len);
	const char *root = zkl_root_of(lock);

	if (strcmp(root, zklock_root) == 0)
		return psprintf("\"%s\"", path);
	return psprintf("\"%s\" (under \"%s\")", path, zkb_path_for_display(root));
}

/* The latest one of these scopes that counts at least so much, or NULL */
static Hold *
latest_hold(const Lock *lock, int scopes, int64 least)
{
	dlist_iter	iter;

	dlist_reverse_foreach(iter, unconstify(dlist_head *, &lock->holds))
	{
		Hold	   *hold = dlist_container(Hold, in_lock, iter.cur);

		if ((scopes & ZKL_SCOPE(hold->scope)) != 0 && hold->count >= least)
			return hold;
	}
	return NULL;
}

const char *
zkl_unlock_function(const Lock *lock)
{
	if (lock->key.mode == ZKP_SEMAPHORE)
		return "zk_semaphore_release";

	/* zk_unlock has nothing to release, and pg_advisory_unlock has, or had */
	if (latest_hold(lock, ZKL_SCOPE(ZK_SCOPE_SESSION), 1) == NULL &&
		latest_hold(lock, ZKL_SCOPE(ZK_SCOPE_ADVISORY), 0) != NULL)
		return lock->key.mode == ZKP_SHARED ? "pg_advisory_unlock_shared" : "pg_advisory_unlock";
	return lock->key.mode == ZKP_SHARED ? "zk_unlock_shared" : "zk_unlock";
}

ZkSession *
zkl_peek_session_of(const Lock *base)
{
	return base != NULL && base->generation == zkb_generation() ? zkb_peek() : NULL;
}

/* That of the lock, and that of the shared one which relies on its node */
static void
drop_shadows(Lock *lock)
{
	Lock	   *twin = zkl_twin_of(lock);

	zkl_drop_shadow(&lock->shadow);
	if (twin != NULL && zkl_base(twin) == lock)
		zkl_drop_shadow(&twin->shadow);
}

int
zkl_first_lost(ZkSession *session, Lock *const *locks, ZkNode *const *nodes, int n)
{
	ZkLoss		loss = ZK_NOT_LOST;
	int			lost;

	for (lost = 0; lost < n; lost++)
	{
		if (locks[lost]->loss != ZK_NOT_LOST)
			return lost;
		if (session == NULL || locks[lost]->generation != zkb_generation())
		{
			loss = zkb_last_loss();
			break;
		}
	}
	if (lost == n)
	{
		/* a process that was stopped notices it here before its keeper does */
		zks_expire(session);
		lost = zkn_first_lost(session, nodes, n, &loss);
	}
	if (lost >= 0)
	{
		locks[lost]->loss = loss != ZK_NOT_LOST ? loss : ZK_LOST_SESSION;
		drop_shadows(locks[lost]);

		/* who only looks is not to be canceled here (tell_news) */
		HOLD_INTERRUPTS();
		ereport(LOG,
				(errmsg("the lock on %s was lost", zkl_name(locks[lost])),
				 errdetail_internal("%s", zkb_loss_detail(locks[lost]->loss))));
		RESUME_INTERRUPTS();
	}
	return lost;
}

bool
zkl_is_lost(Lock *lock)
{
	Lock	   *base = zkl_base(lock);

	return base != NULL && zkl_first_lost(zkb_session(), &base, &base->grant.node, 1) == 0;
}

/* A session that is over stays: its thread still stops what relies on its locks */
void
zkl_tell_losses(void)
{
	dlist_iter	iter;

	if (!zkb_may_have_lost())
		return;
	dlist_foreach(iter, &zkl_held)
	{
		Lock	   *base = zkl_base(dlist_container(Lock, in_held, iter.cur));

		if (base != NULL)
			(void) zkl_first_lost(zkb_peek(), &base, &base->grant.node, 1);
	}
}

void
zkl_take_node(Lock *lock, const ZkGrant *grant)
{
	Assert(lock->grant.node == NULL && lock->count == 0);
	lock->grant = *grant;
	lock->generation = zkb_generation();
	lock->loss = ZK_NOT_LOST;
	zkl_nnodes++;
}

bool
zkl_leave_node(Lock *lock)
{
	Lock	   *heir = lock->key.mode == ZKP_EXCLUSIVE ? zkl_twin_of(lock) : NULL;

	Assert(lock->grant.node != NULL && zkl_nnodes > 0);
	if (heir != NULL && (heir->count == 0 || heir->grant.node != NULL))
		heir = NULL;
	if (heir != NULL)
	{
		heir->loss = lock->loss;
		heir->grant = lock->grant;
		heir->generation = lock->generation;
	}
	else
		zkl_nnodes--;
	lock->loss = ZK_NOT_LOST;
	lock->grant.node = NULL;
	return heir != NULL;
}

void
zkl_forget_if_unused(Lock *lock)
{
	char	   *path = lock->key.path;

	if (!dlist_is_empty(&lock->holds))
		return;
	Assert(lock->count == 0 && lock->grant.node == NULL && !lock->ended && lock->shadow.state == ZKL_NO_SHADOW);
	hash_search(zkl_locks, &lock->key, HASH_REMOVE, NULL);
	pfree(path);
}

void
zkl_follow_settings(void)
{
	if (zkl_nnodes == 0)
		zkb_follow_settings();
	else
		zkb_refuse_another_ensemble();
}

/*-------------------------------------------------------------------------
 * Holds
 *-------------------------------------------------------------------------
 */

void
zkl_count(Hold *hold, int64 change)
{
	Lock	   *lock = hold->lock;
	bool		was_held = lock->count > 0;

	hold->count += change;
	lock->count += change;
	Assert(hold->count >= 0 && lock->count >= hold->count);
	if (zkl_is_advisory(hold->scope))
		lock->advisory_count += change;
	if (lock->advisory_count == 0)
		zkl_drop_shadow(&lock->shadow);
	if (was_held == (lock->count > 0))
		return;
	if (was_held)
		dlist_delete(&lock->in_held);
	else
		dlist_push_tail(&zkl_held, &lock->in_held);
	zkl_nheld += was_held ? -1 : 1;
}

void
zkl_make_hold(Lock *lock, ZkScope scope)
{
	Hold	   *hold = MemoryContextAllocZero(hold_context, sizeof(Hold));

	hold->lock = lock;
	hold->scope = scope;
	hold->subid = GetCurrentSubTransactionId();
	dlist_push_tail(&lock->holds, &hold->in_lock);
	dlist_push_tail(&zkl_xact_holds, &hold->in_xact);
}

Hold *
zkl_find_hold(Lock *lock, ZkScope scope, SubTransactionId subid)
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
zkl_count_shown(const Lock *lock, int64 counts[ZK_SHOWN_SCOPES])
{
	dlist_iter	iter;

	counts[ZK_SCOPE_SESSION] = counts[ZK_SCOPE_TRANSACTION] = 0;
	dlist_foreach(iter, unconstify(dlist_head *, &lock->holds))
	{
		const Hold *hold = dlist_container(Hold, in_lock, iter.cur);

		counts[zkl_shown_scope(hold->scope)] += hold->count;
	}
}

Hold *
zkl_latest_hold(Lock *lock, int scopes)
{
	return latest_hold(lock, scopes, 1);
}

void
zkl_remove_hold(Hold *hold)
{
	zkl_count(hold, -hold->count);
	dlist_delete(&hold->in_lock);
	if (hold->subid != InvalidSubTransactionId)
		dlist_delete(&hold->in_xact);
	if (hold->claim != NULL)
		pfree(hold->claim);
	pfree(hold);
}

/*-------------------------------------------------------------------------
 * What the other backends of this server see
 *-------------------------------------------------------------------------
 */

StaticAssertDecl(lengthof(((ZkSlotLock *) 0)->counts) == ZK_SHOWN_SCOPES, "counts is indexed by ZkScope");

/* Returns its node if it is this session's, which then knows whether it is lost */
static ZkNode *
show_lock(ZkSlotLock *shown, Lock *lock)
{
	Lock	   *base = zkl_base(lock);

	shown->acquired_at = lock->acquired_at;
	zkb_slot_lock(shown, lock->key.mode, lock->key.path, lock->root_len);
	zkl_count_shown(lock, shown->counts);
	shown->lost = zkl_peek_session_of(base) == NULL || base->loss != ZK_NOT_LOST;
	shown->token = base != NULL ? base->grant.token : 0;
	return shown->lost ? NULL : base->grant.node;
}

/*
 * The slot has room for the oldest few; the rest is a number.  It is written
 * once for each call, and once at the end of a (sub)transaction, so this must
 * not depend on how many locks there are.
 */
void
zkl_show(void)
{
	ZkSlot	   *slot = zkb_begin_slot();
	ZkNode	   *nodes[ZKS_SHOWN_NODES];
	dlist_iter	iter;
	int			n = 0;

	if (slot == NULL)
		return;
	dlist_foreach(iter, &zkl_held)
	{
		if (n == ZKS_SHOWN_NODES)
			break;
		nodes[n] = show_lock(&slot->holds[n], dlist_container(Lock, in_held, iter.cur));
		n++;
	}
	slot->nholds = n;
	slot->more = zkl_nheld - n;
	if (zkb_peek() != NULL)
		zkn_show(zkb_peek(), nodes, n);
	zkb_end_slot(slot);
}

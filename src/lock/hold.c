/*-------------------------------------------------------------------------
 *
 * hold.c
 *	  What this backend holds: locks and holds, taking them, looking at them.
 *
 * A lock is one node in ZooKeeper; a hold is a reason to keep it: how often
 * it was taken, in which scope, in which subtransaction.  Equal holds are one
 * entry with a count, since a row trigger may take the same lock ten thousand
 * times.  The node goes when the last hold goes.  That alone gives re-entry,
 * both scopes, and exact partial rollback.
 *
 * A shared lock that is taken under the exclusive one of the same path stands
 * on that one's node, and inherits it when the exclusive one is given back:
 * nobody can get in between.  The other way round the exclusive lock gets a
 * node of its own, at the end of the queue.
 *
 * Holds taken in the current transaction are also in one list, the outermost
 * subtransaction's first, so that the end of a subtransaction has to look at
 * the tail only.  An entry whose count has come to zero by zk_unlock stays in
 * that list until the transaction ends: the transaction did rely on the lock.
 *
 * A subtransaction is known by its id.  Ids begin anew in each transaction,
 * so holds that outlive theirs lose it (InvalidSubTransactionId).  What
 * zk_unlock does to holds is in unlock.c, what transactions do in xact.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "backend/client.h"
#include "backend/encoding.h"
#include "backend/settings.h"
#include "hold_int.h"

static MemoryContext hold_context = NULL;
HTAB	   *zkh_locks = NULL;
dlist_head	zkh_xact_holds = DLIST_STATIC_INIT(zkh_xact_holds);
static int	nnodes = 0;

/*-------------------------------------------------------------------------
 * Locks
 *-------------------------------------------------------------------------
 */

/* A table of texts would have room for the longest in each entry: 2 kB */

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

Lock *
zkh_find_lock(const char *path, ZkpMode mode)
{
	LockKey		key = {.mode = (char) mode,.path = unconstify(char *, path)};

	if (zkh_locks == NULL)
		return NULL;
	return hash_search(zkh_locks, &key, HASH_FIND, NULL);
}

/* The lock of the same path in the other mode, or NULL */
Lock *
zkh_twin_of(Lock *lock)
{
	switch ((ZkpMode) lock->key.mode)
	{
		case ZKP_SHARED:
			return zkh_find_lock(lock->key.path, ZKP_EXCLUSIVE);
		case ZKP_EXCLUSIVE:
			return zkh_find_lock(lock->key.path, ZKP_SHARED);
		default:
			return NULL;
	}
}

Lock *
zkh_base(Lock *lock)
{
	Lock	   *twin;

	if (lock->taken)
		return lock;
	if (lock->key.mode != ZKP_SHARED)
		return NULL;
	twin = zkh_twin_of(lock);
	return twin != NULL && twin->taken ? twin : NULL;
}

/* path: as zkh_full_path has just given it */
static Lock *
enter_lock(const char *path, ZkpMode mode)
{
	Lock	   *lock = zkh_find_lock(path, mode);
	LockKey		key = {.mode = (char) mode};

	if (lock != NULL)
		return lock;
	key.path = MemoryContextStrdup(hold_context, path);
	lock = hash_search(zkh_locks, &key, HASH_ENTER, NULL);
	lock->root_len = zkpath_root_len(zklock_root);
	lock->taken = false;
	lock->ended = false;
	lock->loss = ZK_NOT_LOST;
	lock->count = 0;
	lock->guarded = 0;
	dlist_init(&lock->holds);
	return lock;
}

/* As zklock.root has it; palloc'ed */
static char *
root_of(const Lock *lock)
{
	return lock->root_len == 0 ? pstrdup("/") : pnstrdup(lock->key.path, lock->root_len);
}

char *
zkh_name(const Lock *lock)
{
	const char *path = zkpath_for_display(lock->key.path + lock->root_len);
	const char *root = root_of(lock);

	if (strcmp(root, zklock_root) == 0)
		return psprintf("\"%s\"", path);
	return psprintf("\"%s\" (under \"%s\")", path, zkpath_for_display(root));
}

/* What gives a session-scope hold of it back */
const char *
zkh_unlock_function(const Lock *lock)
{
	if (lock->key.mode == ZKP_SHARED)
		return "zk_unlock_shared";
	if (lock->key.mode == ZKP_SEMAPHORE)
		return "zk_semaphore_release";
	return "zk_unlock";
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
	ZkLoss		loss = ZK_NOT_LOST;
	int			lost;

	for (lost = 0; lost < n; lost++)
	{
		if (locks[lost]->loss != ZK_NOT_LOST)
			return lost;
		if (session == NULL || locks[lost]->generation != zkc_generation())
		{
			loss = zkc_last_loss();
			break;
		}
	}
	if (lost == n)
	{
		/* a process that was stopped learns it here before its keeper does */
		zks_expire(session);
		lost = zkn_first_lost(session, nodes, n, &loss);
	}
	if (lost >= 0)
		locks[lost]->loss = loss != ZK_NOT_LOST ? loss : ZK_LOST_SESSION;
	return lost;
}

bool
zkh_is_lost(Lock *lock)
{
	Lock	   *base = zkh_base(lock);

	return base != NULL && zkh_first_lost(&base, &base->grant.node, 1) == 0;
}

bool
zkh_leave_node(Lock *lock)
{
	Lock	   *heir = lock->key.mode == ZKP_EXCLUSIVE ? zkh_twin_of(lock) : NULL;

	if (heir != NULL && (heir->count == 0 || heir->taken))
		heir = NULL;
	if (heir != NULL)
	{
		heir->taken = true;
		heir->loss = lock->loss;
		heir->grant = lock->grant;
		heir->generation = lock->generation;
	}
	else
		nnodes--;
	lock->taken = false;
	lock->loss = ZK_NOT_LOST;
	lock->grant.node = NULL;
	return heir != NULL;
}

void
zkh_forget_if_unused(Lock *lock)
{
	char	   *path = lock->key.path;

	if (!dlist_is_empty(&lock->holds))
		return;
	hash_search(zkh_locks, &lock->key, HASH_REMOVE, NULL);
	pfree(path);
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

Hold *
zkh_latest_hold(Lock *lock, ZkScope scope)
{
	dlist_iter	iter;

	dlist_reverse_foreach(iter, &lock->holds)
	{
		Hold	   *hold = dlist_container(Hold, in_lock, iter.cur);

		if (hold->scope == scope && hold->count > 0)
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
	ctl.hash = hash_key;
	ctl.match = compare_keys;
	ctl.hcxt = hold_context;
	zkh_locks = hash_create("zklock locks", 16, &ctl,
							HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
}

static void
refuse_lost(Lock *lock)
{
	if (lock != NULL && lock->count > 0 && zkh_is_lost(lock))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the lock on %s was lost", zkh_name(lock)),
				 errdetail_internal("%s", zkc_loss_detail(zkh_base(lock)->loss)),
				 errhint("Call %s for it, or end the transaction that took it, and lock again.",
						 zkh_unlock_function(lock))));
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
	lock->loss = ZK_NOT_LOST;
	lock->acquired_at = GetCurrentTimestamp();
	nnodes++;
}

/* What a call wants, and the holds that it makes for it */
typedef struct Wanted
{
	Lock	   *lock;
	Hold	   *hold;
} Wanted;

static void
refuse_lost_bases(Wanted *held, int n)
{
	for (int i = 0; i < n; i++)
		refuse_lost(zkh_base(held[i].lock));
}

/* One more hold is granted only after the locks are known to be held */
static void
confirm(Wanted *held, int n, bool may_wait, ZkWait *wait)
{
	ZkNode	  **nodes = palloc(n * sizeof(ZkNode *));
	bool		proven;

	(void) zkc_connect(wait);
	if (!may_wait)
		zkwait_limit_try(wait);
	refuse_lost_bases(held, n);
	for (int i = 0; i < n; i++)
		nodes[i] = zkh_base(held[i].lock)->grant.node;
	proven = zkc_are_proven(nodes, n);
	refuse_lost_bases(held, n);
	if (proven)
	{
		pfree(nodes);
		return;
	}
	switch (zkc_prove(nodes, n, wait, zkwait_answer_due(wait)))
	{
		case ZKC_PROVEN:
		case ZKC_MISSING:
		case ZKC_OVER:
			refuse_lost_bases(held, n); /* what came with the answer counts, too */
			break;
		case ZKC_NO_ANSWER:
			zkc_raise_unanswered(wait);
	}
	pfree(nodes);
}

/* Does this session hold the lock, or one that includes it? */
static bool
is_held(Lock *lock)
{
	Lock	   *base = zkh_base(lock);

	return base != NULL && base->count > 0;
}

/* The node of the shared lock beside which the exclusive one is wanted */
static ZkNode *
own_shared_node(Lock *lock)
{
	Lock	   *twin = lock->key.mode == ZKP_EXCLUSIVE ? zkh_twin_of(lock) : NULL;

	return twin != NULL && twin->taken ? twin->grant.node : NULL;
}

static void
refuse_too_many(int n)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many ZooKeeper locks"),
			 errdetail("This session holds %d, and wants %d more.", nnodes, n),
			 errhint("You might need to increase zklock.max_locks.")));
}

/*
 * The first of these that was held when the call began, itself or in the other
 * mode, and is lost; or NULL.  While one waits for the rest that can happen.
 */
static Lock *
first_lost(Wanted *wanted, int n)
{
	for (int i = 0; i < n; i++)
	{
		Lock	   *lock = wanted[i].lock;
		Lock	   *twin = zkh_twin_of(lock);

		if (lock->count > 0 && zkh_is_lost(lock))
			return lock;
		if (twin != NULL && twin->count > 0 && zkh_is_lost(twin))
			return twin;
	}
	return NULL;
}

/*
 * All of wanted, or none; those in others are not held yet and have to be had
 * from ZooKeeper
 */
static bool
acquire(Wanted *wanted, int n, Wanted *others, int nothers, ZkpMode mode, int32 permits,
		bool may_wait, ZkWait *wait)
{
	ZkTarget   *targets;
	ZklOutcome	outcome;
	Lock	   *lost;

	if (nothers > zklock_max_locks - nnodes)
		refuse_too_many(nothers);
	targets = palloc0(nothers * sizeof(ZkTarget));
	for (int i = 0; i < nothers; i++)
	{
		targets[i].dir = others[i].lock->key.path;
		targets[i].path = targets[i].dir + zkpath_root_len(zklock_root);
		targets[i].own = own_shared_node(others[i].lock);
	}
	outcome = zkl_acquire(targets, nothers, mode, permits, may_wait, wait);
	if (outcome == ZKL_TAKEN)
		return false;

	/* from here to the return nothing may fail, once a lock is held */
	lost = first_lost(wanted, n);
	for (int i = 0; i < nothers && outcome == ZKL_HELD; i++)
	{
		if (lost == NULL)
			take_node(others[i].lock, &targets[i].grant);
		else if (zkc_peek() != NULL)
			(void) zkn_discard(zkc_peek(), targets[i].grant.node);
	}
	refuse_lost(lost);
	return outcome == ZKL_HELD;
}

/* All of them, or none */
static bool
obtain(Wanted *wanted, int n, ZkpMode mode, int32 permits, bool may_wait, ZkWait *wait)
{
	Wanted	   *held = palloc(n * sizeof(Wanted));
	Wanted	   *others = palloc(n * sizeof(Wanted));
	int			nheld = 0;
	int			nothers = 0;

	refuse_lost(first_lost(wanted, n));
	for (int i = 0; i < n; i++)
	{
		if (is_held(wanted[i].lock))
			held[nheld++] = wanted[i];
		else
			others[nothers++] = wanted[i];
	}
	if (nheld > 0)
		confirm(held, nheld, may_wait, wait);
	if (nothers > 0 &&
		!acquire(wanted, n, others, nothers, mode, permits, may_wait, wait))
		return false;
	for (int i = 0; i < nheld; i++)
	{
		/* taken under the exclusive lock */
		if (held[i].lock->count == 0)
			held[i].lock->acquired_at = GetCurrentTimestamp();
	}
	return true;
}

/*
 * ZooKeeper does not tell in which order nodes were made whose numbers have
 * run out.  We can do without (protocol.c), other clients cannot; so say it in
 * time, once for each path.
 */
static void
warn_if_high(Lock *lock)
{
	static List *warned = NIL;
	MemoryContext old;
	ListCell   *cell;

	if (!lock->taken || !zkl_is_high(lock->grant.name))
		return;
	foreach(cell, warned)
	{
		if (strcmp(lfirst(cell), lock->key.path) == 0)
			return;
	}
	old = MemoryContextSwitchTo(TopMemoryContext);
	warned = lappend(warned, pstrdup(lock->key.path));
	MemoryContextSwitchTo(old);
	ereport(WARNING,
			(errmsg("ZooKeeper's sequence numbers for lock path %s come to their end",
					zkh_name(lock)),
			 errdetail("Its latest node is \"%s\"; after 2147483647, other clients cannot tell any more who is first.",
					   zke_from_utf8_escaped(lock->grant.name, strlen(lock->grant.name), true)),
			 errhint("When nobody holds or awaits the lock, delete its directory in ZooKeeper, or leave the lock alone for a few minutes: ZooKeeper removes an empty one by itself. Numbers then begin at 0 again; fencing tokens go on rising.")));
}

/* In byte order, each once */
static int
sort_paths(char **paths, int n)
{
	int			count = 0;

	qsort(paths, n, sizeof(char *), pg_qsort_strcmp);
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || strcmp(paths[i], paths[count - 1]) != 0)
			paths[count++] = paths[i];
	}
	return count;
}

/* The entries that these are to be counted in */
static void
enter_wanted(Wanted *wanted, char **paths, int n, ZkpMode mode, ZkScope scope)
{
	SubTransactionId subid = GetCurrentSubTransactionId();

	for (int i = 0; i < n; i++)
	{
		Lock	   *lock = wanted[i].lock = enter_lock(zkh_full_path(paths[i]), mode);
		Hold	   *hold = zkh_find_hold(lock, scope, subid);

		wanted[i].hold = hold != NULL ? hold : make_hold(lock, scope);
	}
}

/* And what comes of it */
static void
leave_wanted(Wanted *wanted, int n, bool held)
{
	for (int i = 0; i < n && wanted[i].lock != NULL; i++)
	{
		Lock	   *lock = wanted[i].lock;
		Hold	   *hold = wanted[i].hold;

		if (held)
		{
			if (lock->count == 0)
				lock->root_len = zkpath_root_len(zklock_root);
			hold->count++;
			lock->count++;
			hold->used = true;
			hold->proven = false;
			continue;
		}
		if (hold != NULL && !hold->used)
			zkh_remove_hold(hold);
		zkh_forget_if_unused(lock);
	}
}

bool
zkh_lock(char **paths, int npaths, ZkpMode mode, int32 permits, ZkScope scope,
		 bool may_wait, ZkWait *wait)
{
	const int	n = sort_paths(paths, npaths);
	Wanted	   *wanted;
	volatile bool held = false;

	if (n == 0)
		return true;
	if (n > zklock_max_locks)
		refuse_too_many(n);		/* before there are as many entries */
	initialize();
	(void) zkc_session();		/* notice its end, if so */
	zkh_follow_settings();
	zkx_be_first_at_commit();

	wanted = palloc0(n * sizeof(Wanted));
	PG_TRY();
	{
		enter_wanted(wanted, paths, n, mode, scope);
		held = obtain(wanted, n, mode, permits, may_wait, wait);
	}
	PG_FINALLY();
	{
		leave_wanted(wanted, n, held);
	}
	PG_END_TRY();
	for (int i = 0; i < n && held; i++)
		warn_if_high(wanted[i].lock);
	pfree(wanted);
	return held;
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

	if (zkh_is_lost(lock))
		return ZKH_LOST;
	session = zkh_session_of(zkh_base(lock));
	if (session == NULL)		/* it ended just now */
		return ZKH_LOST;
	zks_info(session, &info);
	return zkc_is_fresh(&info) ? ZKH_HELD : ZKH_SUSPECT;
}

bool
zkh_token(const char *path, int64 *token)
{
	static const ZkpMode modes[] = {ZKP_EXCLUSIVE, ZKP_SHARED};
	const char *full = zkh_full_path(path);

	for (int i = 0; i < lengthof(modes); i++)
	{
		Lock	   *lock = zkh_find_lock(full, modes[i]);

		if (lock != NULL && lock->count > 0 && !zkh_is_lost(lock))
		{
			*token = zkh_base(lock)->grant.token;
			return true;
		}
	}
	return false;
}

/* Another name, if the holder of the exclusive lock has become a reader */
static void
refresh_name(Lock *lock)
{
	ZkSession  *session = zkh_session_of(lock);
	ZkNodeInfo	node;

	if (session == NULL)
		return;
	zkn_info(session, lock->grant.node, &node);
	strlcpy(lock->grant.name, node.name, sizeof(lock->grant.name));
}

int64
zkh_fencing_token(const char *path)
{
	Lock	   *lock = zkh_find_lock(zkh_full_path(path), ZKP_EXCLUSIVE);

	if (lock == NULL || lock->count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session does not hold the exclusive lock on \"%s\"",
						zkpath_for_display(path)),
				 errhint("Lock it first, or give the token of the program that holds it.")));
	if (zkh_is_lost(lock))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the lock on \"%s\" was lost", zkpath_for_display(path)),
				 errdetail_internal("%s", zkc_loss_detail(lock->loss)),
				 errhint(LOST_HINT(lock))));
	return lock->grant.token;
}

void
zkh_follow_settings(void)
{
	if (nnodes == 0)
		zkc_follow_settings();
	else
		zkc_refuse_another_ensemble();
}

char *
zkh_full_path(const char *path)
{
	zklock_refuse_dropped_settings();
	return zkpath_join(zklock_root, path);
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
			Lock	   *base = zkh_base(lock);

			if (counts[scope] == 0)
				continue;
			info.path = lock->key.path + lock->root_len;
			info.root = root_of(lock);
			info.mode = (ZkpMode) lock->key.mode;
			info.scope = (ZkScope) scope;
			info.count = counts[scope];
			info.state = state_of(lock);
			refresh_name(base);
			info.token = base->grant.token;
			info.node = base->grant.name;
			info.acquired_at = lock->acquired_at;
			callback(&info, arg);
		}
	}
}

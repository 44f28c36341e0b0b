/*-------------------------------------------------------------------------
 *
 * local_waits.c
 *	  Who on this server waits for PostgreSQL's own locks of this backend.
 *
 * GetBlockerStatusData() looks at one waiter at a time, each at another
 * instant; a cycle made of such edges may never have stood.  So all partitions
 * of the lock table are held at once, as pg_locks does, while we go from our own
 * locks to those who wait for them, from there to who waits for these, and so on.
 *
 * The edges are those of PostgreSQL's deadlock detector: a waiter waits for
 * each other party that holds the lock in a conflicting mode, and for each that
 * stands before it in the queue and wants a conflicting mode.  A party is a
 * lock group, that is a backend with its parallel workers.  Nothing is left
 * out.  A lock that is held for a moment only (to extend a relation, say) is
 * held by somebody who runs, so that no way to us goes through it; an
 * autovacuum worker has no lock in ZooKeeper, but a session may wait for one
 * that waits for us.
 *
 * Locks taken by the fast path are not looked at, since nobody waits for one:
 * who wants to wait moves it to the lock table first.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "backend/compat.h"
#include "backend/internals.h"
#include "local_waits.h"

typedef struct Look
{
	bool	   *found;			/* for each process that is a party: it is in
								 * the result, or us */
	ZkLocalWait *waits;
	int			n;
	int			most;
} Look;

static PROCLOCK *
next_own(const PGPROC *proc, int partition, PROCLOCK *own)
{
	return list_next_compat(&proc->myProcLocks[partition], own, offsetof(PROCLOCK, procLink));
}

static PGPROC *
next_waiter(const LOCK *lock, PGPROC *waiter)
{
	return list_next_compat(WAIT_QUEUE_COMPAT(lock), waiter, offsetof(PGPROC, WAIT_LINK_COMPAT));
}

/* Whether a lock of ours in a partition, which is locked, has a queue */
static bool
has_queue(int partition)
{
	PROCLOCK   *own = NULL;

	while ((own = next_own(MyProc, partition, own)) != NULL)
	{
		if (next_waiter(own->tag.myLock, NULL) != NULL)
			return true;
	}
	return false;
}

/* Whether we have parallel workers, or are one: any of them may hold something */
static bool
is_in_group(void)
{
	LWLock	   *lock;
	bool		found;

	if (MyProc->lockGroupLeader != MyProc)
		return MyProc->lockGroupLeader != NULL;

	/* who had workers once is a group from then on, mostly alone */
	lock = LockHashPartitionLockByProc(MyProc);
	LWLockAcquire(lock, LW_SHARED);
	found = dlist_has_next(&MyProc->lockGroupMembers, dlist_head_node(&MyProc->lockGroupMembers));
	LWLockRelease(lock);
	return found;
}

/*
 * Others add to our list only to wait for what we took by the fast path.  Who has not
 * done so yet begins to wait at this moment.  So a partition in which we have nothing
 * need not be locked.
 */
bool
zkl_blocks_somebody(void)
{
	bool		found = is_in_group();

	for (int i = 0; i < NUM_LOCK_PARTITIONS && !found; i++)
	{
		if (next_own(MyProc, i, NULL) == NULL)
			continue;
		LWLockAcquire(LockHashPartitionLockByIndex(i), LW_SHARED);
		found = has_queue(i);
		LWLockRelease(LockHashPartitionLockByIndex(i));
	}
	return found;
}

static PGPROC *
leader_of(PGPROC *proc)
{
	return proc->lockGroupLeader != NULL ? proc->lockGroupLeader : proc;
}

/*
 * Those who wait for this lock of a process, whose party has this place.  A wait that
 * has not noted its time yet is new: the next look sees it.  (It does so just after it
 * has begun.  If the wait before it was canceled, that one's time is still there
 * until then.)
 */
static void
search_queue(Look *look, const PGPROC *proc, const PROCLOCK *own, int place)
{
	const LOCK *lock = own->tag.myLock;
	const LOCKMASK *conflicts = GetLocksMethodTable(lock)->conflictTab;
	LOCKMASK	blocking = own->holdMask;
	PGPROC	   *waiter = NULL;

	while ((waiter = next_waiter(lock, waiter)) != NULL && look->n < look->most)
	{
		PGPROC	   *leader = leader_of(waiter);
		bool	   *found = &look->found[leader - ProcGlobal->allProcs];
		TimestampTz since = (TimestampTz) pg_atomic_read_u64(&waiter->waitStart);

		if (waiter == proc)
			blocking |= LOCKBIT_ON(waiter->waitLockMode);
		if (*found || since == 0 || !(conflicts[waiter->waitLockMode] & blocking))
			continue;
		*found = true;
		look->waits[look->n++] = (ZkLocalWait)
		{
			.leader = leader,.pid = leader->pid,.lock = lock->tag,.mode = waiter->waitLockMode,
				.since = since,.blocker = place
		};
	}
}

static void
search_process(Look *look, const PGPROC *proc, int place)
{
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
	{
		PROCLOCK   *own = NULL;

		while ((own = next_own(proc, i, own)) != NULL)
			search_queue(look, proc, own, place);
	}
}

static void
search_party(Look *look, PGPROC *leader, int place)
{
	dlist_iter	iter;

	if (leader->lockGroupLeader == NULL)
		search_process(look, leader, place);
	else
		dlist_foreach(iter, &leader->lockGroupMembers)
			search_process(look, dlist_container(PGPROC, lockGroupLink, iter.cur), place);
}

/*
 * Those who wait for us, then those who wait for them, and so on, at one instant.
 * The partitions are locked as by pg_locks, and by the deadlock detector, in this order.
 * Nothing here can fail or allocates: an error would leave with them locked.
 */
static void
take_look(Look *look)
{
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
		LWLockAcquire(LockHashPartitionLockByIndex(i), LW_SHARED);
	search_party(look, leader_of(MyProc), -1);
	for (int i = 0; i < look->n; i++)
		search_party(look, look->waits[i].leader, i);
	for (int i = NUM_LOCK_PARTITIONS - 1; i >= 0; i--)
		LWLockRelease(LockHashPartitionLockByIndex(i));
}

static char *
describe(const LOCKTAG *tag, LOCKMODE mode)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "%s on ", GetLockmodeName(tag->locktag_lockmethodid, mode));
	DescribeLockTag(&text, tag);
	return text.data;
}

int
zkl_local_waits(ZkLocalWait **waits, int most)
{
	Look		look = {.most = Min(most, ProcGlobal->allProcCount)};

	*waits = NULL;
	if (!zkl_blocks_somebody())
		return 0;
	look.found = palloc0(ProcGlobal->allProcCount * sizeof(bool));
	look.found[leader_of(MyProc) - ProcGlobal->allProcs] = true;
	*waits = look.waits = palloc(look.most * sizeof(ZkLocalWait));
	take_look(&look);
	for (int i = 0; i < look.n; i++)
	{
		ZkLocalWait *wait = &look.waits[i];
		TimestampTz started;

		/* who has ended meanwhile has no tag that anybody knows */
		if (!zkb_read_start(status_entry(wait->leader), wait->pid, &started))
			started = 0;
		zkb_tag(wait->tag, wait->pid, started);
		wait->what = describe(&wait->lock, wait->mode);
	}
	pfree(look.found);
	return look.n;
}

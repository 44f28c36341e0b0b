/*-------------------------------------------------------------------------
 *
 * local_waits.c
 *	  Who on this server waits for PostgreSQL's own locks of this backend.
 *
 * GetBlockerStatusData() looks at one waiter at a time, each at another
 * instant; a cycle made of such edges may never have stood.  So all partitions
 * of the lock table are held at once, as pg_locks does, while the queues are
 * copied; who waits for whom is worked out on the copy.
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

#include <limits.h>

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "backend/compat.h"
#include "backend/internals.h"
#include "local_waits.h"

/* Where a party is in the result; anything below these is an index */
#define US			(-1)
#define GONE		(INT_MAX - 1)	/* it has ended since */
#define NOT_FOUND	INT_MAX

typedef struct Party
{
	int			place;
	int			pid;			/* this and the next: only of who waits */
	const volatile PgBackendStatus *status;
} Party;

typedef struct Holder
{
	int			party;
	LOCKMASK	modes;
} Holder;

typedef struct Request
{
	int			party;
	LOCKMODE	mode;
	TimestampTz since;
} Request;

/* The queue of a lock, with indexes of its first holder and request */
typedef struct Queue
{
	LOCKTAG		tag;
	const LOCKMASK *conflicts;	/* of each mode */
	int			holders,
				n_holders;
	int			requests,
				n_requests;
	bool		exhausted;		/* all in it have been found */
} Queue;

/* A copy of all queues of the server; a party's number is its leader's */
typedef struct Look
{
	Party	   *parties;
	Holder	   *holders;
	Request    *requests;
	Queue	   *queues;
	int			n_parties;
	int			n_holders;
	int			n_requests;
	int			n_queues;
	int			max_holders;
} Look;

/* As pg_locks does, and the deadlock detector, in this order */
static void
lock_all_partitions(void)
{
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
		LWLockAcquire(LockHashPartitionLockByIndex(i), LW_SHARED);
}

static void
unlock_all_partitions(void)
{
	for (int i = NUM_LOCK_PARTITIONS - 1; i >= 0; i--)
		LWLockRelease(LockHashPartitionLockByIndex(i));
}

static PROCLOCK *
next_own(const PGPROC *proc, int partition, PROCLOCK *own)
{
	return list_next_compat(&proc->myProcLocks[partition], own, offsetof(PROCLOCK, procLink));
}

static PROCLOCK *
next_holder(const LOCK *lock, PROCLOCK *holder)
{
	return list_next_compat(&lock->procLocks, holder, offsetof(PROCLOCK, lockLink));
}

static PGPROC *
next_waiter(const LOCK *lock, PGPROC *waiter)
{
	return list_next_compat(WAIT_QUEUE_COMPAT(lock), waiter, offsetof(PGPROC, WAIT_LINK_COMPAT));
}

/* Whether a lock of this process in a partition, which is locked, has a queue */
static bool
has_queue(const PGPROC *proc, int partition)
{
	PROCLOCK   *own = NULL;

	while ((own = next_own(proc, partition, own)) != NULL)
	{
		if (next_waiter(own->tag.myLock, NULL) != NULL)
			return true;
	}
	return false;
}

/*
 * The members of our lock group, which change with its leader's partition locked; there
 * is room for all.  One that has ended since, or is another process by now, does no
 * harm: at worst we look in vain.
 */
static int
list_members(PGPROC **members)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;
	LWLock	   *lock = LockHashPartitionLockByProc(leader);
	int			n = 0;
	dlist_iter	iter;

	LWLockAcquire(lock, LW_SHARED);
	dlist_foreach(iter, &leader->lockGroupMembers)
		members[n++] = dlist_container(PGPROC, lockGroupLink, iter.cur);
	LWLockRelease(lock);
	return n;
}

/*
 * Others add to our list only to wait for what we took by the fast path.  Who has not
 * done so yet begins to wait at this moment.  So a partition in which we have nothing
 * need not be locked.
 */
static bool
partition_has_queue(PGPROC *const *members, int n, int partition)
{
	bool		found = false;

	for (int i = 0; i < n && !found; i++)
		found = next_own(members[i], partition, NULL) != NULL;
	if (!found)
		return false;
	found = false;
	LWLockAcquire(LockHashPartitionLockByIndex(partition), LW_SHARED);
	for (int i = 0; i < n && !found; i++)
		found = has_queue(members[i], partition);
	LWLockRelease(LockHashPartitionLockByIndex(partition));
	return found;
}

/* A session that had parallel workers once is a group of its own from then on */
bool
zkl_blocks_somebody(void)
{
	PGPROC	  **members = palloc((max_worker_processes + 1) * sizeof(PGPROC *));
	int			n = 1;
	bool		found = false;

	members[0] = MyProc;
	if (MyProc->lockGroupLeader != NULL)
		n = list_members(members);
	for (int i = 0; i < NUM_LOCK_PARTITIONS && !found; i++)
		found = partition_has_queue(members, n, i);
	pfree(members);
	return found;
}

static PGPROC *
leader_of(PGPROC *proc)
{
	return proc->lockGroupLeader != NULL ? proc->lockGroupLeader : proc;
}

/* Counts the holders that there is no room for */
static void
copy_holders(Look *look, Queue *queue, const LOCK *lock)
{
	PROCLOCK   *from = NULL;

	queue->holders = look->n_holders;
	while ((from = next_holder(lock, from)) != NULL)
	{
		int			party = from->groupLeader - ProcGlobal->allProcs;

		/* Prepared transactions come behind the processes, and never wait */
		if (from->holdMask == 0 || party >= look->n_parties)
			continue;
		if (look->n_holders < look->max_holders)
		{
			look->holders[look->n_holders].party = party;
			look->holders[look->n_holders].modes = from->holdMask;
		}
		look->n_holders++;
	}
	queue->n_holders = look->n_holders - queue->holders;
}

static void
copy_requests(Look *look, Queue *queue, const LOCK *lock)
{
	PGPROC	   *from = NULL;

	queue->requests = look->n_requests;
	while ((from = next_waiter(lock, from)) != NULL)
	{
		PGPROC	   *leader = leader_of(from);
		Request    *to = &look->requests[look->n_requests++];
		Party	   *party;

		to->party = leader - ProcGlobal->allProcs;
		to->mode = from->waitLockMode;
		to->since = (TimestampTz) pg_atomic_read_u64(&from->waitStart);
		party = &look->parties[to->party];
		party->pid = leader->pid;
		party->status = status_entry(leader);
	}
	queue->n_requests = look->n_requests - queue->requests;
}

/*
 * Copy all queues, at one instant.  Nothing here can fail or allocates: an
 * error would leave with the partitions locked.  False: there was no room for
 * all holders, and look->n_holders tells how many there were.
 */
static bool
copy_queues(Look *look)
{
	look->n_queues = look->n_holders = look->n_requests = 0;
	lock_all_partitions();
	for (int i = 0; i < look->n_parties; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		LOCK	   *lock = proc->waitLock;
		Queue	   *queue;

		/* Each queue once: when we meet the first in it */
		if (lock == NULL || next_waiter(lock, NULL) != proc)
			continue;
		queue = &look->queues[look->n_queues++];
		queue->tag = lock->tag;
		queue->conflicts = GetLocksMethodTable(lock)->conflictTab;
		queue->exhausted = false;
		copy_holders(look, queue, lock);
		copy_requests(look, queue, lock);
	}
	unlock_all_partitions();
	return look->n_holders <= look->max_holders;
}

static void
take_look(Look *look)
{
	int			n = ProcGlobal->allProcCount;

	look->n_parties = n;
	look->parties = palloc(n * sizeof(Party));
	for (int i = 0; i < n; i++)
		look->parties[i].place = NOT_FOUND;
	look->parties[leader_of(MyProc) - ProcGlobal->allProcs].place = US;

	/* A process waits in one queue at most, but may hold many locks */
	look->requests = palloc(n * sizeof(Request));
	look->queues = palloc(n * sizeof(Queue));
	look->max_holders = n;
	look->holders = palloc(look->max_holders * sizeof(Holder));
	while (!copy_queues(look))
	{
		look->max_holders = 2 * look->n_holders;
		pfree(look->holders);
		look->holders = palloc(look->max_holders * sizeof(Holder));
	}
}

static void
forget_look(Look *look)
{
	pfree(look->parties);
	pfree(look->holders);
	pfree(look->requests);
	pfree(look->queues);
}

/* Whether this party was found, with a place below this one, or is us */
static bool
is_found(const Look *look, int party, int below)
{
	return look->parties[party].place < below;
}

/* The place of who blocks this request: a holder if there is one */
static int
find_blocker(const Look *look, const Queue *queue, const Request *request, int below)
{
	LOCKMASK	conflicts = queue->conflicts[request->mode];
	const Holder *holder = &look->holders[queue->holders];
	const Request *ahead = &look->requests[queue->requests];

	for (int i = 0; i < queue->n_holders; i++, holder++)
	{
		if ((holder->modes & conflicts) && is_found(look, holder->party, below))
			return look->parties[holder->party].place;
	}
	while (!(LOCKBIT_ON(ahead->mode) & conflicts) || !is_found(look, ahead->party, below))
	{
		ahead++;
		Assert(ahead < request);
	}
	return look->parties[ahead->party].place;
}

/* The tag of who waits; false if it has ended meanwhile */
static bool
get_tag(char *tag, const Party *party)
{
	TimestampTz started;

	if (!zkb_read_start(party->status, party->pid, &started))
		return false;
	zkb_tag(tag, party->pid, started);
	return true;
}

static char *
describe(const Queue *queue, LOCKMODE mode)
{
	StringInfoData text;
	char	   *what;

	initStringInfo(&text);
	appendStringInfo(&text, "%s on ", GetLockmodeName(queue->tag.locktag_lockmethodid, mode));
	DescribeLockTag(&text, &queue->tag);
	what = pstrdup(text.data);
	pfree(text.data);
	return what;
}

/*
 * Add those of this queue who wait for a party with a place below this one, and
 * are in no place yet.  Returns how many there are now.
 */
static int
search_queue(Look *look, Queue *queue, int below, ZkLocalWait *waits, int n, int most)
{
	LOCKMASK	blocking = 0;

	for (int i = 0; i < queue->n_holders; i++)
	{
		const Holder *holder = &look->holders[queue->holders + i];

		if (is_found(look, holder->party, below))
			blocking |= holder->modes;
	}
	queue->exhausted = true;
	for (int i = 0; i < queue->n_requests && n < most; i++)
	{
		const Request *request = &look->requests[queue->requests + i];
		Party	   *party = &look->parties[request->party];
		ZkLocalWait *wait = &waits[n];

		if (party->place < below)
			blocking |= LOCKBIT_ON(request->mode);

		/*
		 * Those not found yet are of another party than who blocks them.  A
		 * wait that has not noted its time yet is new: the next look sees it.
		 * (It does so just after it has begun.  If the wait before it was
		 * canceled, that one's time is still there until then.)
		 */
		if (party->place != NOT_FOUND)
			continue;
		if (request->since == 0 || !(queue->conflicts[request->mode] & blocking))
			queue->exhausted = false;
		else if (!get_tag(wait->tag, party))
			party->place = GONE;
		else
		{
			wait->pid = party->pid;
			wait->since = request->since;
			wait->blocker = find_blocker(look, queue, request, below);
			wait->what = describe(queue, request->mode);
			party->place = n++;
		}
	}
	return n;
}

int
zkl_local_waits(ZkLocalWait **waits, int most)
{
	Look		look;
	int			n = 0,
				below;

	take_look(&look);
	most = Min(most, look.n_requests);
	*waits = palloc(most * sizeof(ZkLocalWait));

	/* Those who wait for us, then those who wait for them, and so on */
	do
	{
		below = n;
		for (int i = 0; i < look.n_queues && n < most; i++)
		{
			if (!look.queues[i].exhausted)
				n = search_queue(&look, &look.queues[i], below, *waits, n, most);
		}
	} while (n > below);
	forget_look(&look);
	return n;
}

/*-------------------------------------------------------------------------
 *
 * slots.c
 *	  What each backend of this server tells the others of its locks.
 *
 * In shared memory there is a slot for each backend, by the number of its
 * PGPROC.  Its owner writes it, and nobody else; anybody reads it without a
 * lock, as pg_stat_activity's entries: a counter is odd while the owner writes,
 * and what was copied meanwhile is copied again.  There is no critical section
 * around that: nothing in it can raise an error, and a handler that leaves the
 * process (bgworker_die) passes by our exit callback, which makes the counter
 * even again; within a critical section that would be a PANIC.
 *
 * A backend that idles does not notice what becomes of its session.  So the
 * session's thread writes that itself, into words of their own (ZkShown).  The
 * memory goes away when a backend exits, before the session is closed: from
 * then on nothing is told, and the slot is empty.
 *
 * No lock may fail because of all this: who cannot have a slot does without.
 * Since PostgreSQL 17 the memory is had by name.  Its name has the number of
 * the layout, so that backends with an older library have their own; a change of
 * ZkSlot needs a new number.  Having it made can fail in ways that only the end of a
 * (sub)transaction can repair.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/resowner.h"

#include "compat.h"
#include "internals.h"
#include "slots.h"

#define SEGMENT_NAME	"zklock slots 3"	/* the number is that of the
											 * layout */

#define CUT_MARK		"..."

ZkBackendCounters zkb_counters;

static ZkSlot *slots = NULL;	/* MaxBackends of them */
static ZkSlot *own_slot = NULL;
static ZkSession *shown_session = NULL; /* it writes into our slot */

/*-------------------------------------------------------------------------
 * The segment
 *-------------------------------------------------------------------------
 */

static size_t
segment_size(void)
{
	return (size_t) MaxBackends * sizeof(ZkSlot);
}

static void
init_segment(void *memory)
{
	memset(memory, 0, segment_size());
}

static shmem_request_hook_type next_shmem_request = NULL;
static shmem_startup_hook_type next_shmem_startup = NULL;

static void
shmem_request(void)
{
	if (next_shmem_request != NULL)
		next_shmem_request();
	RequestAddinShmemSpace(segment_size());
}

static void
shmem_startup(void)
{
	bool		found;

	if (next_shmem_startup != NULL)
		next_shmem_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	slots = ShmemInitStruct(SEGMENT_NAME, segment_size(), &found);
	if (!found)
		init_segment(slots);
	LWLockRelease(AddinShmemInitLock);
}

void
zkb_reserve_slots(void)
{
	if (SEGMENTS_HAVE_NAMES_COMPAT || !process_shared_preload_libraries_in_progress)
		return;
	next_shmem_request = shmem_request_hook;
	shmem_request_hook = shmem_request;
	next_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}

/*
 * Interrupts are held, so that what is caught is never a cancel, which must not
 * be swallowed.
 */
static void
attach_or_log(void)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		HOLD_INTERRUPTS();
		slots = named_segment_compat(SEGMENT_NAME, segment_size(), init_segment);
		RESUME_INTERRUPTS();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("zk_server_locks cannot show this session: %s", error->message)));
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

/*-------------------------------------------------------------------------
 * Our own slot
 *-------------------------------------------------------------------------
 */

/* As volatile, or the compiler might move what comes between */
static void
begin_changes(ZkSlot *slot)
{
	volatile uint32 *changes = &slot->changes;

	*changes |= 1;
	pg_write_barrier();
}

static void
end_changes(ZkSlot *slot)
{
	volatile uint32 *changes = &slot->changes;

	pg_write_barrier();
	*changes = (*changes | 1) + 1;
}

/* Make it nobody's, whatever state it is in */
static void
clear(ZkSlot *slot)
{
	begin_changes(slot);
	memset((char *) slot + offsetof(ZkSlot, pid), 0, sizeof(ZkSlot) - offsetof(ZkSlot, pid));
	end_changes(slot);
}

static void
stop_showing(void)
{
	if (shown_session != NULL)
		zks_unshow(shown_session);
	shown_session = NULL;
}

/* Before the memory goes away, and before the last transaction is aborted */
static void
leave_slot(int code, Datum arg)
{
	ZkSlot	   *slot = own_slot;

	own_slot = NULL;
	stop_showing();
	if (slot != NULL)
		clear(slot);
}

static void
take_slot(void)
{
	ptrdiff_t	number = MyProc - ProcGlobal->allProcs;

	if (number < 0 || number >= MaxBackends)
		return;
	before_shmem_exit(leave_slot, 0);
	own_slot = &slots[number];
	clear(own_slot);
	begin_changes(own_slot);
	own_slot->pid = MyProcPid;
	own_slot->database = MyDatabaseId;
	own_slot->role = MyBEEntry != NULL ? MyBEEntry->st_userid : InvalidOid;
	end_changes(own_slot);
}

void
zkb_show_session(ZkSession *session)
{
	static bool tried = false;

	/* in parallel mode there are no subtransactions: not yet then */
	if (!tried && MyProc != NULL && !IsInParallelMode())
	{
		tried = true;
		if (slots == NULL && SEGMENTS_HAVE_NAMES_COMPAT)
			attach_or_log();
		if (slots != NULL)
			take_slot();
	}
	if (own_slot == NULL)
		return;
	zks_show(session, &own_slot->session);
	shown_session = session;
}

ZkSlot *
zkb_begin_slot(void)
{
	if (own_slot == NULL)
		return NULL;
	begin_changes(own_slot);
	own_slot->counters = zkb_counters;
	return own_slot;
}

void
zkb_end_slot(ZkSlot *slot)
{
	if (slot != NULL)
		end_changes(slot);
}

/* What it had is lost, and must not look held when another session begins */
void
zkb_slot_session_ends(void)
{
	ZkSlot	   *slot;

	stop_showing();
	slot = zkb_begin_slot();
	if (slot == NULL)
		return;
	memset(&slot->session, 0, sizeof(slot->session));
	for (int i = 0; i < ZKS_SHOWN_NODES; i++)
		slot->holds[i].lost = true;
	zkb_end_slot(slot);
}

/* Not within a character */
static void
put_text(char *to, const char *utf8, int len)
{
	int			kept = len <= ZKB_SLOT_TEXT ? len :
	pg_encoding_mbcliplen(PG_UTF8, utf8, len, ZKB_SLOT_TEXT - strlen(CUT_MARK));

	memcpy(to, utf8, kept);
	strcpy(to + kept, kept < len ? CUT_MARK : "");
}

void
zkb_slot_lock(ZkSlotLock *lock, ZkpMode mode, const char *full, int root_len)
{
	lock->mode = (char) mode;
	put_text(lock->path, full + root_len, strlen(full + root_len));
	put_text(lock->root, root_len > 0 ? full : "/", Max(root_len, 1));
}

void
zkb_slot_waits(ZkpMode mode, int scope, const char *full, int root_len, int64 since)
{
	ZkSlot	   *slot = zkb_begin_slot();

	if (slot == NULL)
		return;
	memset(&slot->wait, 0, sizeof(slot->wait));
	slot->wait.counts[scope] = 1;
	slot->wait.since = since;
	zkb_slot_lock(&slot->wait, mode, full, root_len);
	zkb_end_slot(slot);
}

void
zkb_slot_waits_no_more(void)
{
	ZkSlot	   *slot;

	if (own_slot == NULL || own_slot->wait.since == 0)
		return;
	slot = zkb_begin_slot();
	slot->wait.since = 0;
	zkb_end_slot(slot);
}

/*-------------------------------------------------------------------------
 * Everybody's
 *-------------------------------------------------------------------------
 */

/* As pgstat reads an entry: until it has not changed within */
static void
copy_slot(ZkSlot *copy, const ZkSlot *slot)
{
	const volatile uint32 *changes = &slot->changes;
	uint32		before;

	do
	{
		CHECK_FOR_INTERRUPTS();
		before = *changes;
		pg_read_barrier();
		memcpy(copy, slot, sizeof(ZkSlot));
		pg_read_barrier();
	} while (before != *changes || before % 2 != 0);
}

void
zkb_each_slot(void (*callback) (const ZkSlot *slot, void *arg), void *arg)
{
	ZkSlot	   *copy = palloc(sizeof(ZkSlot));

	if (slots == NULL && !SEGMENTS_HAVE_NAMES_COMPAT)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("zk_server_locks requires shared memory that this server has not reserved"),
				 errhint("Add zklock to shared_preload_libraries, and restart the server.")));
	if (slots == NULL)
		slots = named_segment_compat(SEGMENT_NAME, segment_size(), init_segment);
	for (int i = 0; i < MaxBackends; i++)
	{
		if (((volatile ZkSlot *) &slots[i])->pid == 0)
			continue;
		copy_slot(copy, &slots[i]);
		if (copy->pid != 0)
			callback(copy, arg);
	}
	pfree(copy);
}

bool
zkb_slot_session(const ZkSlot *slot, ZkSessionInfo *info)
{
	const ZkShown *shown = &slot->session;
	uint32		state = shown->state & (ZKS_SHOWN_IN_DOUBT - 1);

	memset(info, 0, sizeof(*info));
	if (state == 0 || state - 1 == ZKS_OVER)
		return false;
	info->state = (ZkSessionState) (state - 1);
	info->gap_at = (shown->state & ZKS_SHOWN_IN_DOUBT) != 0 ? ZKS_NEVER : 0;
	info->timeout_ms = (int) shown->timeout_ms;
	info->session_id = shown->session_id;
	info->answered_at = shown->answered_at;
	info->requests = shown->requests;
	info->reconnections = shown->reconnections;
	info->losses = shown->losses;
	info->unreleased = (int) shown->unreleased;
	return true;
}

bool
zkb_slot_lost(const ZkSlot *slot, int i, const ZkSessionInfo *info)
{
	return slot->holds[i].lost || (slot->session.state & ZKS_SHOWN_LOST(i)) != 0 ||
		info->session_id == 0 || zks_now() > zks_lease_ends(info);
}

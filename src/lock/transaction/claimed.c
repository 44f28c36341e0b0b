/*-------------------------------------------------------------------------
 *
 * claimed.c
 *	  The claims of the current transaction, and their marks.
 *
 * A claim hangs on a hold of its lock, so that it ends with the subtransaction
 * that made it.  Its mark is written before the commit, and only there: what
 * writes it checks, in the same transaction of ZooKeeper, that our place in the
 * lock's queue still stands, and the version makes sure that no other claim has
 * come in between.  What can still fail after that takes the mark back when the
 * lock is released (zk/mark.c).
 *
 * The transaction's id is written if it has one; it gets none for this.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_control.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "backend/backend_session.h"
#include "backend/errors.h"
#include "backend/node_identity.h"
#include "backend/settings.h"
#include "claimed.h"
#include "commit_guard.h"
#include "lock/look/claim_record.h"

/* What a mark has before the identity, and the request beside paths and data */
#define MARK_EXTRA		512

Claim *
zkl_claim_of(Lock *lock)
{
	Claim	   *latest = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &lock->holds)
	{
		Claim	   *claim = dlist_container(Hold, in_lock, iter.cur)->claim;

		if (claim != NULL && (latest == NULL || claim->period > latest->period))
			latest = claim;
	}
	return latest;
}

static size_t
mark_bytes(const Lock *lock)
{
	return 2 * strlen(lock->key.path) + strlen(ZKP_CLAIMS) + ZKP_NAME_LEN + strlen(zkb_identity_lines()) + MARK_EXTRA;
}

void
zkl_refuse_too_many_claims(ZkSession *session, const Lock *lock)
{
	size_t		bytes = mark_bytes(lock);
	int			n = 1;
	dlist_iter	iter;

	dlist_foreach(iter, &zkl_xact_holds)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, iter.cur);

		if (hold->claim == NULL || hold->lock == lock)
			continue;
		bytes += mark_bytes(hold->lock);
		n++;
	}
	if (!zkn_marks_fit(session, n, bytes))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many claims in one transaction"),
				 errdetail("%d claims, with %zu bytes, are too many for one request.", n, bytes),
				 errhint("Claim in several transactions, or use shorter paths.")));
}

/*-------------------------------------------------------------------------
 * Before the commit
 *-------------------------------------------------------------------------
 */

/* What is written together */
typedef struct Marks
{
	ZkSession  *session;
	int			n;
	Lock	  **locks;
	Claim	  **claims;
	ZkMarking  *what;
	ZkMark	  **marks;
} Marks;

static void
make_id(char *id)
{
	uint64		random[2];

	if (!pg_strong_random(random, sizeof(random)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random id for a claim")));
	snprintf(id, ZKL_CLAIM_ID_LEN, "%016llx%016llx", (unsigned long long) random[0],
			 (unsigned long long) random[1]);
}

/*
 * After a crash an id that no WAL on disk has is used again, and then
 * pg_xact_status would tell of another transaction: so let there be some, before
 * anybody can read the id in the mark.
 */
static FullTransactionId
lasting_xid(void)
{
	FullTransactionId xid = GetTopFullTransactionIdIfAny();
	char		nothing = 0;

	if (FullTransactionIdIsValid(xid))
	{
		XLogBeginInsert();
		XLogRegisterData(&nothing, sizeof(nothing));
		XLogFlush(XLogInsert(RM_XLOG_ID, XLOG_NOOP));
	}
	return xid;
}

static void
add(Marks *m, Lock *lock, Claim *claim, FullTransactionId xid)
{
	ZkMarking  *what = &m->what[m->n];
	ZkClaimRecord record = {
		.period = claim->period,
		.since = GetCurrentTimestamp(),
		.system = GetSystemIdentifier(),
		.xid = xid,
		.identity = zkb_identity_lines()
	};

	make_id(record.id);
	what->node = lock->grant.node;
	what->path = zkl_mark_path(lock->key.path, claim->root_len);
	what->version = claim->version;
	what->before = claim->before;
	what->pending = zkl_write_claim(&record);
	record.done = true;
	what->done = zkl_write_claim(&record);
	m->locks[m->n] = lock;
	m->claims[m->n] = claim;
	m->n++;
}

static bool
is_to_be_written(const Claim *claim)
{
	return claim != NULL && claim->mark == NULL;
}

/* Raises if one of the locks is lost */
static void
collect(Marks *m)
{
	FullTransactionId xid;
	int			room = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &zkl_xact_holds)
		room += is_to_be_written(dlist_container(Hold, in_xact, iter.cur)->claim);
	m->n = 0;
	if (room == 0)
		return;
	xid = lasting_xid();
	m->locks = palloc(room * sizeof(Lock *));
	m->claims = palloc(room * sizeof(Claim *));
	m->what = palloc(room * sizeof(ZkMarking));
	m->marks = palloc(room * sizeof(ZkMark *));
	dlist_foreach(iter, &zkl_xact_holds)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, iter.cur);

		if (!is_to_be_written(hold->claim))
			continue;
		if (zkl_is_lost(hold->lock))
			zkl_raise_lost_at_commit(hold->lock, hold->lock->loss);
		add(m, hold->lock, hold->claim, xid);
	}
	m->session = zkb_peek();	/* not lost, so it is there */
}

static void
raise_not_known(const Lock *lock)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not commit: the claim of %s may not have been recorded", zkl_name(lock)),
			 errdetail("ZooKeeper did not confirm the claim within %d ms, or the connection was lost.", zklock_operation_timeout),
			 errhint("Retry the transaction.")));
}

static void
raise_refused(const Lock *lock, const ZkMarkInfo *info)
{
	if (info->node_gone && (info->rc == ZKS_NO_NODE || info->rc == ZKS_NO_AUTH))
		zkl_raise_lost_at_commit(lock, info->rc == ZKS_NO_NODE ? ZK_LOST_NODE : ZK_LOST_ACCESS);
	if (info->rc != ZKS_BAD_VERSION && info->rc != ZKS_NO_NODE)
		zkb_raise(info->rc, lock->key.path + lock->root_len);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not commit: the claim of %s is out of date", zkl_name(lock)),
			 errdetail("The claim was changed or removed in ZooKeeper by another client."),
			 errhint("Retry the transaction.")));
}

/* What was sent with the connection broken would be refused at once */
static void
await_connection(Marks *m, ZkPatience *patience)
{
	while (zks_info(m->session).state != ZKS_CONNECTED && zkb_wait_on(patience))
		;
	if (patience->waited == ZKB_SESSION_OVER)
		zkl_raise_lost_at_commit(m->locks[0], ZK_LOST_SESSION);
	if (patience->waited != ZKB_CAME)
		raise_not_known(m->locks[0]);
}

static void
write_all(Marks *m)
{
	if (!zkn_mark(m->session, m->what, m->n, m->marks))
		zkb_raise_no_memory();
	for (int i = 0; i < m->n; i++)
		m->claims[i]->mark = m->marks[i];
}

/* None of them was written, and they can be once more */
static void
unwrite_all(Marks *m)
{
	for (int i = 0; i < m->n; i++)
	{
		m->claims[i]->mark = NULL;
		zkn_decide_mark(m->marks[i], false);
	}
}

static void
raise_first_refused(Marks *m)
{
	for (int i = 0; i < m->n; i++)
	{
		ZkMarkInfo	info;

		zkn_mark_info(m->marks[i], &info);
		if (info.at_fault)
			raise_refused(m->locks[i], &info);
	}
	raise_not_known(m->locks[0]);
}

int64
zkl_write_marks(void)
{
	ZkPatience	patience = {.event = ZKB_WAIT_CHECK,.until = zkb_deadline(zklock_operation_timeout)};
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	ZkMarkInfo	info;
	ZkWait		wait;
	Marks		m;

	collect(&m);
	MemoryContextSwitchTo(old);
	if (m.n == 0)
		return 0;
	zkb_wait_begin(&wait, -1, false);
	patience.session = m.session;
	patience.wait = &wait;
	for (;;)
	{
		await_connection(&m, &patience);
		write_all(&m);
		do
			zkn_mark_info(m.marks[0], &info);
		while (info.state == ZKN_MARKING && zkb_wait_on(&patience));
		if (info.state != ZKN_MARK_REFUSED || !zks_is_busy(info.rc) || zks_now() >= patience.until)
			break;
		unwrite_all(&m);
		zkb_pause(&wait, m.session, patience.until, ZKB_WAIT_CHECK);
	}
	if (info.state == ZKN_MARK_REFUSED && !zks_is_busy(info.rc))
		raise_first_refused(&m);
	if (info.state != ZKN_MARKED)
		raise_not_known(m.locks[0]);
	return info.sent_at;
}

/*-------------------------------------------------------------------------
 * At the end
 *-------------------------------------------------------------------------
 */

bool
zkl_decide_marks(bool commit)
{
	bool		any = false;
	dlist_iter	iter;

	dlist_foreach(iter, &zkl_xact_holds)
	{
		Claim	   *claim = dlist_container(Hold, in_xact, iter.cur)->claim;

		if (claim == NULL || claim->mark == NULL)
			continue;
		zkn_decide_mark(claim->mark, commit);
		claim->mark = NULL;
		any = true;
	}
	return any;
}

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
#include "utils/timestamp.h"

#include "backend/backend_session.h"
#include "backend/errors.h"
#include "backend/node_identity.h"
#include "backend/settings.h"
#include "claim.h"
#include "commit_guard.h"

/* What a mark has before the identity, and the request beside paths and data */
#define MARK_EXTRA		512

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

/* The claims whose marks are to be written, by their holds; raises if one of the locks is lost */
static List *
collect(void)
{
	List	   *holds = NIL;
	dlist_iter	iter;

	dlist_foreach(iter, &zkl_xact_holds)
	{
		Hold	   *hold = dlist_container(Hold, in_xact, iter.cur);

		if (hold->claim == NULL || hold->claim->mark != NULL)
			continue;
		if (zkl_is_lost(hold->lock))
			zkl_raise_lost_at_commit(hold->lock, hold->lock->loss);
		holds = lappend(holds, hold);
	}
	return holds;
}

static ZkMarking *
describe(List *holds)
{
	FullTransactionId xid = lasting_xid();
	ZkMarking  *all = palloc(list_length(holds) * sizeof(ZkMarking));
	ZkMarking  *what = all;
	ListCell   *cell;

	foreach(cell, holds)
	{
		const Hold *hold = lfirst(cell);
		const Claim *claim = hold->claim;
		ZkClaimRecord record = {
			.period = claim->period,
			.since = GetCurrentTimestamp(),
			.system = GetSystemIdentifier(),
			.xid = xid,
			.identity = zkb_identity_lines()
		};

		make_id(record.id);
		what->node = hold->lock->grant.node;
		what->path = zkl_mark_path(hold->lock->key.path, claim->root_len);
		what->version = claim->version;
		what->before = claim->before;
		what->pending = zkl_write_claim(&record);
		record.done = true;
		what->done = zkl_write_claim(&record);
		what++;
	}
	return all;
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
await_connection(const Lock *lock, ZkPatience *patience)
{
	while (zks_info(patience->session).state != ZKS_CONNECTED && zkb_wait_on(patience))
		;
	if (patience->waited == ZKB_SESSION_OVER)
		zkl_raise_lost_at_commit(lock, ZK_LOST_SESSION);
	if (patience->waited != ZKB_CAME)
		raise_not_known(lock);
}

static void
write_all(ZkSession *session, List *holds, const ZkMarking *what)
{
	int			n = list_length(holds);
	ZkMark	  **marks = palloc(n * sizeof(ZkMark *));

	if (!zkn_mark(session, what, n, marks))
		zkb_raise_no_memory();
	for (int i = 0; i < n; i++)
		((Hold *) list_nth(holds, i))->claim->mark = marks[i];
}

static void
decide(Claim *claim, bool done)
{
	if (claim == NULL || claim->mark == NULL)
		return;
	zkn_decide_mark(claim->mark, done);
	claim->mark = NULL;
}

static void
raise_first_refused(List *holds)
{
	ListCell   *cell;

	foreach(cell, holds)
	{
		const Hold *hold = lfirst(cell);
		ZkMarkInfo	info;

		zkn_mark_info(hold->claim->mark, &info);
		if (info.at_fault)
			raise_refused(hold->lock, &info);
	}
	raise_not_known(((Hold *) linitial(holds))->lock);
}

int64
zkl_write_marks(void)
{
	ZkPatience	patience = {.event = ZKB_WAIT_CHECK,.until = zkb_deadline(zklock_operation_timeout)};
	List	   *holds = collect();
	const Hold *first;
	ZkMarking  *what;
	ZkMarkInfo	info;
	ZkWait		wait;

	if (holds == NIL)
		return 0;
	first = linitial(holds);
	what = describe(holds);
	zkb_wait_begin(&wait, -1, false);
	patience.session = zkb_peek();	/* no lock is lost, so it is there */
	patience.wait = &wait;
	for (;;)
	{
		ListCell   *cell;

		await_connection(first->lock, &patience);
		write_all(patience.session, holds, what);
		do
			zkn_mark_info(first->claim->mark, &info);
		while (info.state == ZKN_MARKING && zkb_wait_on(&patience));
		if (info.state != ZKN_MARK_REFUSED || !zks_is_busy(info.rc) || zks_now() >= patience.until)
			break;

		/* none of them was written, and they can be once more */
		foreach(cell, holds)
			decide(((Hold *) lfirst(cell))->claim, false);
		zkb_pause(&wait, patience.session, patience.until, ZKB_WAIT_CHECK);
	}
	if (info.state == ZKN_MARK_REFUSED && !zks_is_busy(info.rc))
		raise_first_refused(holds);
	if (info.state != ZKN_MARKED)
		raise_not_known(first->lock);
	return info.sent_at;
}

/*-------------------------------------------------------------------------
 * At the end
 *-------------------------------------------------------------------------
 */

void
zkl_decide_marks(bool commit)
{
	dlist_iter	iter;

	dlist_foreach(iter, &zkl_xact_holds)
		decide(dlist_container(Hold, in_xact, iter.cur)->claim, commit);
}

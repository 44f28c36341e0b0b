/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  At most one transaction anywhere commits a given period of a path.
 *
 * A claim takes the exclusive lock and reads the mark.  It does so on the
 * connection on which the lock was granted: so it sees what the one before it
 * wrote, since that was written when its node was deleted, or before.  Nothing
 * is written here but an empty mark where there is none, so that the commit
 * need not create any (claimed.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "backend/backend_session.h"
#include "backend/errors.h"
#include "backend/settings.h"
#include "claim.h"
#include "hold.h"
#include "lock/look/seen_queue.h"
#include "xact.h"

/*
 * A conversation about one mark.  Its steps return false if the connection broke, or the
 * mark has changed: then it begins anew.
 */
typedef struct Talk
{
	const char *path;			/* of the lock */
	char	   *mark;			/* in ZooKeeper */
	char	   *node;			/* of our lock; NULL: we only look */
	int			root_len;
	bool		written;		/* an empty mark was sent, which may have been
								 * carried out */
	ZkReader   *reader;

	/* the mark as it was read */
	ZkSeenContender seen;		/* rc: ZKS_OK, or ZKS_NO_NODE; without data
								 * there is no claim */
	bool		held;			/* and then our lock's node was still there */
	bool		sound;			/* there is no claim, or it could be read */
	ZkClaimRecord claim;
} Talk;

static void
begin_talk(Talk *talk, const char *path)
{
	memset(talk, 0, sizeof(*talk));
	talk->path = path;
	talk->root_len = zkb_root_len(zklock_root);
	talk->mark = zkl_mark_path(zkl_full_path(path), talk->root_len);
	talk->reader = palloc(sizeof(ZkReader));
}

/* A version below zero would mean any (zkn_mark, zks_write) */
static void
take_mark(Talk *talk, const ZkSeenContender *seen)
{
	if (seen->rc != ZKS_OK && seen->rc != ZKS_NO_NODE)
		zkb_raise(seen->rc, talk->path);
	talk->seen = *seen;
	if (seen->rc == ZKS_OK)
		seen->data[seen->data_len] = '\0';
	talk->sound = seen->stat.version >= 0 &&
		(seen->data_len == 0 || zkl_read_claim(seen->data, seen->data_len, &talk->claim));
}

/*
 * Under our lock its node is read behind the mark: if it has been deleted by
 * hand, another may have claimed since, and may still fail.  A claim of this session
 * before this one may not have been settled yet.
 */
static bool
read_mark(void *arg)
{
	static const ZkDepth one = {.first = 1,.most = 1};
	Talk	   *talk = arg;
	ZkPatience *patience = &talk->reader->patience;
	ZkSeenQueue nodes[2];

	while (zkn_mark_is_open(patience->session, talk->mark) && zkb_wait_on(patience))
		;
	if (patience->waited != ZKB_CAME)
		return false;
	zkl_take_name(&nodes[0], talk->mark, NULL);
	if (talk->node == NULL)
		nodes[0].list[0].fresh = true;
	else
	{
		zkl_take_name(&nodes[1], talk->node, NULL);
		nodes[1].list[0].keeps = 0;
		zks_gather(patience->session);
	}
	if (!zkl_read_queues(talk->reader, nodes, talk->node != NULL ? 2 : 1, &one))
		return false;
	take_mark(talk, nodes[0].list);
	talk->held = talk->node != NULL && nodes[1].list[0].rc == ZKS_OK;
	return true;
}

static void
refuse_unsound(const Talk *talk)
{
	if (talk->seen.stat.owner != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot record a claim of \"%s\"", zkb_path_for_display(talk->path)),
				 errdetail("Node \"%s\" is ephemeral; another program created it.",
						   zkb_path_for_display(talk->mark)),
				 errhint("Delete the node with a ZooKeeper client.")));
	if (!talk->sound)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not read the latest claim of \"%s\"", zkb_path_for_display(talk->path)),
				 errdetail("The data of node \"%s\" in ZooKeeper was not written by this version of zklock.",
						   zkb_path_for_display(talk->mark)),
				 errhint("Find out which program wrote it, then call zk_claim_forget().")));
}

/*
 * Make the mark's node, and those above it, below the root.  One that exists is
 * no error; of others the first counts.
 */
static bool
make_mark(Talk *talk)
{
	bool		closed = zklock_acl == ZKLOCK_ACL_CREATOR;
	int			rc = ZKS_OK;

	for (char *slash = strchr(talk->mark + talk->root_len + 1, '/');; slash = strchr(slash + 1, '/'))
	{
		if (slash != NULL)
			*slash = '\0';
		zkl_ask(talk->reader, zks_make(talk->reader->patience.session, talk->mark, closed), NULL);
		if (slash == NULL)
			break;
		*slash = '/';
	}
	while (talk->reader->n > 0)
	{
		ZkAnswer	answer;

		if (!zkl_await_oldest(talk->reader, &answer))
			return false;
		if (rc == ZKS_OK && answer.rc != ZKS_NODE_EXISTS)
			rc = answer.rc;
		zkl_drop_oldest(talk->reader);
	}
	if (rc != ZKS_OK)
		zkb_raise(rc, talk->path);
	return true;
}

/*-------------------------------------------------------------------------
 * Claiming
 *-------------------------------------------------------------------------
 */

static bool
read_or_make(void *arg)
{
	Talk	   *talk = arg;

	if (!read_mark(talk))
		return false;
	if (talk->seen.rc == ZKS_OK)
		return true;
	return make_mark(talk) && read_mark(talk) && talk->seen.rc == ZKS_OK;
}

/* The latest one of the current transaction under this lock, or NULL */
static Claim *
claim_of(Lock *lock)
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

/* Later claims of the same transaction replace it */
static void
keep_claim(Hold *hold, TimestampTz period, int version, const char *before)
{
	Claim	   *claim;

	if (hold->claim != NULL)
	{
		hold->claim->period = period;
		return;
	}
	claim = MemoryContextAlloc(TopMemoryContext, offsetof(Claim, before) + strlen(before) + 1);
	claim->period = period;
	claim->root_len = zkb_root_len(zklock_root);
	claim->version = version;
	claim->mark = NULL;
	strcpy(claim->before, before);
	hold->claim = claim;
}

/* One lock may have two names, but each has a mark of its own */
static void
refuse_another_root(const Claim *claim, const char *path)
{
	if (claim->root_len != zkb_root_len(zklock_root))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot claim \"%s\" under two roots in one transaction", zkb_path_for_display(path)),
				 errdetail("This transaction has already claimed the same lock under another value of zklock.root.")));
}

static void
refuse_too_late(const Claim *claim, const char *path)
{
	if (claim->mark != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot claim a later period of \"%s\" while the transaction commits",
						zkb_path_for_display(path))));
}

/* Whether this period is still to be had, under our lock */
static bool
claim_period(Lock *lock, Hold *hold, const char *path, TimestampTz period, ZkWait *wait)
{
	Claim	   *claim = claim_of(lock);
	ZkSession  *session;
	Talk		talk;

	if (claim != NULL)
	{
		refuse_another_root(claim, path);
		if (period <= claim->period)
			return period == claim->period;
		refuse_too_late(claim, path);
		keep_claim(hold, period, claim->version, claim->before);
		return true;
	}
	begin_talk(&talk, path);
	talk.node = psprintf("%s/%s", lock->key.path, lock->grant.name);
	zkl_read_in_rounds(talk.reader, wait, ZKB_WAIT_CHECK, read_or_make, &talk);
	session = zkl_peek_session_of(lock);
	if (!talk.held && session != NULL)
		(void) zkn_report_lost(session, lock->grant.node, ZK_LOST_NODE);
	zkl_refuse_lost(lock);
	refuse_unsound(&talk);
	if (talk.seen.data_len > 0 && period <= talk.claim.period)
		return false;
	zkl_refuse_too_many_claims(session, lock);
	keep_claim(hold, period, talk.seen.stat.version, talk.seen.data);
	return true;
}

/* A callback of another extension, registered before ours, runs after all of them */
static void
refuse_if_unmarked(void)
{
	if (zkl_too_late_to_claim())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot claim a period this late in commit processing"),
				 errdetail("The transaction's claims have already been recorded."),
				 errhint("List zklock in shared_preload_libraries, before the library whose commit callback makes the claim.")));
}

bool
zkl_claim(char *path, TimestampTz period, bool may_wait, ZkWait *wait)
{
	Lock	   *lock;
	Hold	   *hold;
	bool		result;

	refuse_if_unmarked();

	/* what writes the mark could not check that the node is still ours */
	zkl_refuse_single(zkl_find_lock(zkl_full_path(path), ZKP_EXCLUSIVE), "claims");
	if (!zkl_lock(&path, 1, ZKP_EXCLUSIVE, 0, ZK_SCOPE_TRANSACTION, may_wait, wait))
		return false;
	lock = zkl_find_lock(zkl_full_path(path), ZKP_EXCLUSIVE);
	hold = zkl_find_hold(lock, ZK_SCOPE_TRANSACTION, GetCurrentSubTransactionId());
	result = claim_period(lock, hold, path, period, wait);
	if (!result)
		zkl_take_back(hold);
	return result;
}

/*-------------------------------------------------------------------------
 * Looking, and forgetting
 *-------------------------------------------------------------------------
 */

/* Without a lock */
static void
talk_of(const char *path, bool (*step) (void *talk), Talk *talk)
{
	ZkWait		wait;

	zkb_wait_begin(&wait, -1, false);
	zkl_follow_settings();
	begin_talk(talk, path);
	zkl_read_in_rounds(talk->reader, &wait, ZKB_WAIT_CHECK, step, talk);
}

bool
zkl_last_claim(const char *path, ZkClaimRecord *claim)
{
	Talk		talk;

	talk_of(path, read_mark, &talk);
	refuse_unsound(&talk);
	*claim = talk.claim;
	return talk.seen.data_len > 0;
}

static void
tell_forgotten(const Talk *talk)
{
	ereport(LOG_SERVER_ONLY,
			(errmsg("forgetting the latest claim of \"%s\"", zkb_path_for_display(talk->path)),
			 talk->sound ?
			 errdetail("The claim is for period %s, %s, of system identifier " UINT64_FORMAT ".",
					   timestamptz_to_str(talk->claim.period), talk->claim.done ? "done" : "pending",
					   talk->claim.system) :
			 errdetail("The claim could not be read.")));
}

/* A mark that is empty after that was emptied by us */
static bool
empty_mark(void *arg)
{
	Talk	   *talk = arg;
	ZkAnswer	answer = {0};
	bool		answered;

	if (!read_mark(talk))
		return false;
	if (talk->seen.data_len == 0)
		return true;
	tell_forgotten(talk);
	answered = zkl_ask_apart(talk->reader, zks_write(talk->reader->patience.session, talk->mark, "", talk->seen.stat.version),
							 &answer);
	talk->written |= !zks_is_busy(answer.rc);
	if (!answered)
		return false;
	if (answer.rc != ZKS_OK && answer.rc != ZKS_BAD_VERSION && answer.rc != ZKS_NO_NODE)
		zkb_raise(answer.rc, talk->path);
	return answer.rc == ZKS_OK;
}

bool
zkl_forget_claim(const char *path)
{
	Talk		talk;

	talk_of(path, empty_mark, &talk);
	return talk.written;
}

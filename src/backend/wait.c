/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Waiting for ZooKeeper, in a way that can always be interrupted.
 *
 * Every wait for ZooKeeper inside a transaction is zkb_wait: for the session's
 * descriptor and the process latch, so that cancel, terminate,
 * statement_timeout and the postmaster's death end it at once.  What ZooKeeper
 * owes us is waited for by zkb_wait_on.  Only for a session (backend_session.c,
 * zkb_connect) and for a turn (blockers.c, zkl_await_turn) the limits depend on
 * what is seen meanwhile.
 *
 * What waits in another way: the end of a transaction, where no error is allowed
 * (xact.c, linger); a session that is closed, for its goodbye, as long as the
 * caller says (session.c, zks_closed); and half an answer, which gets 1 ms
 * (zks_awaited).
 *
 * lock_timeout needs help: PostgreSQL arms its timer only in its own lock
 * manager, so we track the limit here and raise PostgreSQL's own error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "errors.h"
#include "settings.h"
#include "wait.h"

/* How long a cancel may go unnoticed */
#define SOON_MS				2

/* How long zkb_pause is */
#define RETRY_MS			20

static const char *const event_names[] = {"ZklockConnect", "ZklockAcquire", "ZklockRelease", "ZklockCheck", "ZklockLook"};
static uint32 event_ids[lengthof(event_names)];

StaticAssertDecl(lengthof(event_names) == ZKB_WAIT_LOOK + 1, "event_names is indexed by ZkWaitEvent");

int64
zkb_deadline(int ms)
{
	return zks_now() + ms * ZKS_MS;
}

void
zkb_wait_begin(ZkWait *wait, int64 timeout_ms, bool use_lock_timeout)
{
	int64		now = zks_now();

	/* this may fail, which the end of a transaction must not */
	for (int i = 0; i < lengthof(event_ids); i++)
	{
		if (event_ids[i] == 0)
			event_ids[i] = wait_event_compat(event_names[i]);
	}

	wait->try_until = ZKS_NEVER;
	wait->tell = NULL;
	wait->said = ZKS_OK;

	/* a timeout that would overflow means no limit */
	if (timeout_ms < 0 || timeout_ms > (ZKS_NEVER - now) / ZKS_MS)
		wait->deadline = ZKS_NEVER;
	else
		wait->deadline = now + timeout_ms * ZKS_MS;

	if (use_lock_timeout && LockTimeout > 0)
		wait->lock_deadline = now + LockTimeout * ZKS_MS;
	else
		wait->lock_deadline = ZKS_NEVER;
}

void
zkb_wait_or_fail(ZkWait *wait)
{
	wait->lock_deadline = Min(wait->lock_deadline, wait->deadline);
	wait->deadline = ZKS_NEVER;
}

void
zkb_wait_limit_try(ZkWait *wait)
{
	wait->try_until = Min(wait->try_until, zkb_deadline(zklock_operation_timeout));
}

int64
zkb_wait_answer_due(const ZkWait *wait)
{
	return Min(zkb_deadline(zklock_operation_timeout), wait->try_until);
}

uint32
zkb_wait_event(ZkWaitEvent event)
{
	return event_ids[event];
}

/*
 * WaitLatchOrSocket creates an epoll set and throws it away, which is as much
 * work as the rest of a wait; most answers come too soon for that to be
 * worthwhile.  A sleep this short need not watch the latch; a signal that
 * interrupts the statement ends it.
 */
static int
sleep_until_something(ZkSession *session, int fd, int flags, long ms, uint32 event, bool answer_due)
{
	bool		came = false;

	if (answer_due && !MyLatch->is_set)
	{
		pgstat_report_wait_start(event);
		came = zks_doze(session, ms < 0 ? SOON_MS : (int) Min(ms, SOON_MS));
		pgstat_report_wait_end();
	}
	return came ? WL_SOCKET_READABLE : WaitLatchOrSocket(MyLatch, flags, fd, ms, event);
}

bool
zkb_wait(ZkWait *wait, ZkSession *session, int64 until, ZkWaitEvent event)
{
	int64		now = zks_now();
	int64		limit = Min(until, Min(wait->deadline, wait->lock_deadline));
	int			flags = WL_LATCH_SET | WL_SOCKET_READABLE | WL_EXIT_ON_PM_DEATH;
	long		ms = -1;
	volatile int happened = 0;

	CHECK_FOR_INTERRUPTS();
	if (now >= wait->lock_deadline)
	{
		char	   *detail = wait->tell != NULL ? wait->tell(wait->arg) : NULL;

		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout"),
				 detail != NULL ? errdetail_internal("%s", detail) : 0));
	}
	if (now >= limit)
		return false;
	if (limit != ZKS_NEVER)
	{
		flags |= WL_TIMEOUT;
		ms = (long) Min((limit - now + ZKS_MS - 1) / ZKS_MS, INT_MAX);
	}

	/* whoever looks into a catalog takes one, which stays */
	InvalidateCatalogSnapshot();
	PG_TRY();
	{
		bool		answer_due;
		int			fd = zks_await(session, &answer_due);

		happened = sleep_until_something(session, fd, flags, ms, event_ids[event], answer_due);
	}
	PG_FINALLY();
	{
		zks_awaited(session);
	}
	PG_END_TRY();
	if (happened & WL_LATCH_SET)
	{
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

bool
zkb_wait_on(ZkPatience *p)
{
	if (zks_info(p->session).state == ZKS_OVER)
		p->waited = ZKB_SESSION_OVER;
	else if (p->go_on != NULL && !p->go_on(p->arg))
		p->waited = ZKB_NO_REASON;
	else if (zkb_wait(p->wait, p->session, p->until, p->event))
		p->waited = ZKB_CAME;
	else if (p->raises)
		zkb_raise_unanswered(p->wait, p->session);
	else
		p->waited = ZKB_LATE;
	return p->waited == ZKB_CAME;
}

ZkWaited
zkb_await_answer(ZkPatience *p, ZkRequest *request, ZkAnswer *answer)
{
	p->waited = ZKB_CAME;
	while (!zks_answered(p->session, request, answer) && zkb_wait_on(p))
		;
	return p->waited;
}

ZkWaited
zkb_await_node(ZkPatience *p, ZkNode *node, ZkNodeInfo *info)
{
	p->waited = ZKB_CAME;
	do
	{
		zkn_info(p->session, node, info);
		if (info->state == ZKN_UNSURE)
			p->wait->said = info->rc;	/* until a look tells */
	} while ((info->state == ZKN_CREATING || info->state == ZKN_UNSURE) && zkb_wait_on(p));
	return p->waited;
}

void
zkb_sleep(ZkWait *wait, ZkSession *session, int64 until, ZkWaitEvent event)
{
	while (zkb_wait(wait, session, until, event))
		;
}

void
zkb_pause(ZkWait *wait, ZkSession *session, int64 until, ZkWaitEvent event)
{
	zkb_sleep(wait, session, Min(until, zkb_deadline(RETRY_MS)), event);
}

/*-------------------------------------------------------------------------
 *
 * request.c
 *	  A request to ZooKeeper, from its sending to its answer.
 *
 * A request is the context of its own completion.  It is freed only when the
 * library has answered it or is closed: the library can lose completions
 * (ZOOKEEPER-3868, ZOOKEEPER-2802), so what is left when the handle is closed
 * is failed here.  An owner that loses interest earlier forgets it.
 *
 * Everything is asynchronous: the synchronous calls abort() in this library.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include <zookeeper/proto.h>

#include "lease.h"
#include "request_private.h"

/*
 * This many small requests certainly fit into the socket's buffer
 * (connection.c sets its size).  Beyond that, the keeper must send what could
 * not be sent.
 */
#define SURELY_SENT		16

ZkRequest *
zkr_new_locked(ZkSession *s, ZkDone done, void *owner)
{
	ZkRequest  *r = calloc(1, sizeof(ZkRequest));

	zk_assert(zks_has_mutex(s));
	if (r == NULL)
		return NULL;
	r->session = s;
	r->listener = done != NULL ? LISTENER_NONE : LISTENER_OWNER;
	r->done = done;
	r->owner = owner;
	r->answer.epoch = s->info.epoch;
	return r;
}

/* Nobody wants to know.  The last of the two threads calls it without the mutex. */
static void
forget(ZkRequest *r)
{
	if (!r->answered)
	{
		r->listener = LISTENER_NONE;
		return;
	}
	if (r->listener != LISTENER_READ)
		TAILQ_REMOVE(&r->session->requests.answered, r, in_list);
	if (r->before != NULL)
		forget(r->before);
	for (int i = 0; i < r->answer.nchildren; i++)
		free(r->answer.children[i]);
	free(r->answer.children);
	for (int i = 0; i < r->answer.nstrangers; i++)
		free(r->answer.strangers[i]);
	for (int i = 0; i < r->nops; i++)
	{
		if (r->ops[i].type == ZOO_CREATE_OP)
			free(r->ops[i].create_op.buf);
	}
	free(r->ops);
	free(r->results);
	free(r->name);
	free(r->answer.data);
	free(r);
}

/*
 * The answer has arrived; the owner of the request is told.  Or it is not sent, for a
 * reason of ours: ZSYSTEMERROR, for want of memory
 */
void
zkr_answer_locked(ZkRequest *r, int rc)
{
	ZkSession  *s = r->session;

	zk_assert(zks_has_mutex(s));
	r->answered = true;
	r->answer.rc = rc;
	if (r->listener != LISTENER_READ)	/* that goes with its read */
		TAILQ_INSERT_TAIL(&s->requests.answered, r, in_list);
	if (r->done != NULL)
		r->done(r);
	if (r->listener == LISTENER_OWNER)
		s->notify = true;
	else if (r->listener == LISTENER_NONE)
		forget(r);
}

static void
no_longer_sent(ZkRequest *r)
{
	TAILQ_REMOVE(&r->session->requests.sent, r, in_list);
	r->session->requests.in_flight--;
}

/*
 * Whether only a session that lives gets this answer.  A server that throttles
 * or requires authentication answers by itself, whatever happened to the
 * session.
 */
static bool
is_answer(int rc)
{
	return rc == ZOK || rc == ZNONODE || rc == ZNODEEXISTS || rc == ZNOTEMPTY || rc == ZBADVERSION ||
		rc == ZNOAUTH || rc == ZNOCHILDRENFOREPHEMERALS || rc == ZNOWATCHER;
}

/* The session was alive when this request was sent, as far as whoever answered knew */
void
zkr_heard_locked(ZkSession *s, int64_t sent_at)
{
	int64_t		now = zks_now();

	zk_assert(zks_has_mutex(s));
	if (zks_lease_answered(&s->info, sent_at))
		zks_wakeup_wake_keeper(&s->wakeup); /* it sends a request to the
											 * quorum */
	s->info.heard_at = now;
	if (now - sent_at < zks_timeout(&s->info))
		s->info.forfeited = false;	/* what it creates from now on is not lost */
}

/* What was read proves nothing unless what went before was carried out */
static int
result_behind(const ZkRequest *before, int rc)
{
	if (!before->answered)
		return ZSYSTEMERROR;
	return before->answer.rc == ZOK ? rc : before->answer.rc;
}

void
zkr_complete(ZkRequest *r, int rc)
{
	ZkSession  *s = r->session;

	/*
	 * The handle is being closed, without the mutex: nothing may be touched.
	 * zkr_fail_all_locked does this after that.
	 */
	if (s->zh == NULL)
		return;
	if (r->too_large)
		rc = ZKS_TOO_LARGE;
	no_longer_sent(r);
	s->requests.replies++;
	if (r->before != NULL && (rc == ZOK || rc == ZNONODE))
		rc = result_behind(r->before, rc);
	if (is_answer(rc))
	{
		zkr_heard_locked(s, r->answer.sent_at);
		s->due.answer_by = 0;
		s->attempts.of_use = true;
		if (r->writes)
		{
			/* somebody may wait for the end of doubt */
			s->notify |= zks_in_doubt(&s->info);
			s->info.quorum_at = r->answer.sent_at;
		}
	}
	else if (zks_is_auth_failure(rc))
		zks_end_locked(s, rc);	/* it would get us no further, nor let us
								 * delete */
	else if (zks_is_busy(rc))
		zks_catch_up_soon_locked(s);
	zkr_answer_locked(r, rc);
}

/* Of an answer nothing but this counts */
void
zkr_on_code(int rc, const void *data)
{
	zkr_complete((ZkRequest *) data, rc);
}

/*
 * The library has taken the request, or has not (rc).
 *
 * A send that fails makes the library close its socket and leave the requests
 * without an answer; the keeper mends that (connection.c, zks_mend_locked).
 */
void
zkr_submitted_locked(ZkRequest *r, int rc)
{
	ZkSession  *s = r->session;

	zk_assert(zks_has_mutex(s));
	if (rc != ZOK)
	{
		zkr_answer_locked(r, rc);
		return;
	}
	TAILQ_INSERT_TAIL(&s->requests.sent, r, in_list);
	s->requests.in_flight++;
	s->info.requests++;
	if (!zks_usable_locked(s) || s->requests.in_flight > SURELY_SENT || r->nops > SURELY_SENT)
		zks_wakeup_wake_keeper(&s->wakeup);
}

/* Whether the request may be sent now; if not, it is answered at once */
bool
zkr_begin_locked(ZkRequest *r)
{
	ZkSession  *s = r->session;

	zk_assert(zks_has_mutex(s));
	r->answer.sent_at = zks_now();
	if (zks_usable_locked(s))
	{
		zks_cork_locked(s);
		return true;
	}
	zkr_answer_locked(r, ZCONNECTIONLOSS);
	return false;
}

/*
 * What goes before a read.  The two requests travel together, and answers come
 * in the order of the requests: if the first is refused (a sync by a server that
 * throttles, or has lost its leader), what is read behind it may be out of date,
 * so it fails with the same code.  Returns NULL if the read has failed already.
 */
ZkRequest *
zkr_new_before_locked(ZkRequest *r)
{
	ZkRequest  *before = zkr_new_locked(r->session, NULL, NULL);

	zk_assert(zks_has_mutex(r->session));
	r->before = before;
	if (before == NULL)
		zkr_answer_locked(r, ZSYSTEMERROR); /* which may free it */
	else
		before->listener = LISTENER_READ;
	return before;
}

/*
 * The handle is closed, so no completion will come: fail what is left, the
 * oldest first; a done function may add requests, which fail too.
 */
void
zkr_fail_all_locked(ZkSession *s, int rc)
{
	ZkRequest  *r;

	zk_assert(zks_has_mutex(s));
	while ((r = TAILQ_FIRST(&s->requests.sent)) != NULL)
	{
		no_longer_sent(r);
		zkr_answer_locked(r, rc);
	}
}

void
zkr_free_requests(ZkSession *s)
{
	while (!TAILQ_EMPTY(&s->requests.answered))
		forget(TAILQ_FIRST(&s->requests.answered));
}

/*
 * The operation of a multi that failed: those after it get
 * ZRUNTIMEINCONSISTENCY. The first, if they failed as a whole.
 */
int
zkr_failed_op(const ZkRequest *r)
{
	for (int i = 0; i < r->nops; i++)
	{
		if (r->results[i].err != ZOK && r->results[i].err != ZRUNTIMEINCONSISTENCY)
			return i;
	}
	return 0;
}

bool
zks_answered(ZkSession *s, ZkRequest *r, ZkAnswer *answer)
{
	const ZkRequest *before = r->before;
	bool		result;

	zks_enter(s);
	result = r->answered;
	if (result)
	{
		*answer = r->answer;
		if (before != NULL)
			answer->sent_at = before->answer.sent_at;
		if (before == NULL || before->answer.rc != ZOK)
			answer->missing = zkr_failed_op(before != NULL ? before : r);
	}
	zks_leave(s);
	return result;
}

void
zks_request_free(ZkSession *s, ZkRequest *r)
{
	zks_enter(s);
	forget(r);
	zks_leave(s);
}

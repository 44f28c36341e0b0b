/*-------------------------------------------------------------------------
 *
 * stop_signal.c
 *	  Asks the owner, by a signal, to stop what relies on a node that is lost.
 *
 * The owner may be computing for hours without a call of ours, so its thread is
 * sent a signal.  Whether it stops is its own decision: its handler asks
 * zks_stop_asked, and no request outlives the turn (mostly a transaction) for
 * which it was made.  A signal that arrives late, because it was blocked or on
 * its way, finds another turn, or none, and means nothing.
 *
 * All that is shared with the handler is atomic, since that may run while the
 * main thread has the mutex.
 *
 *-------------------------------------------------------------------------
 */
#include <limits.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid	/* before glibc 2.38 */
#endif

/* How often the owner is asked again */
#define AGAIN_MS			1000

static atomic_int wanted = ZKS_STOP_NEVER;	/* ZksStopWhen */
static atomic_uint turn;		/* 0: there is nothing to stop */
static atomic_uint asked;		/* a turn, and the reliance in the low bits */

/* The turn from which the current one was carried on; itself, if it was not */
static atomic_uint first_turn;

/* Whether the owner relies on what a session had that it closed in an earlier turn */
static atomic_bool closed_counts;

/* A turn in which the owner asks itself: see zks_stop_self */
static atomic_uint self_turn;

#define RELIANCE_BITS		2
#define LAST_TURN			(UINT_MAX >> RELIANCE_BITS)

/* The owner: its thread, and the signal that it handles */
static pthread_t owner;
static atomic_int owner_signal;

/* What was lost in that turn; of two sessions, one may have ended */
static pthread_mutex_t reason_mutex = PTHREAD_MUTEX_INITIALIZER;
static ZkStopReason reason;

/*
 * Without signals: bgworker_die would leave with the mutex, and then wait for the
 * session's thread, which may wait for it.
 */
static void
copy_reason(ZkStopReason *to, const ZkStopReason *from)
{
	sigset_t	all;
	sigset_t	before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_mutex_lock(&reason_mutex);
	*to = *from;
	pthread_mutex_unlock(&reason_mutex);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void
zks_stop_when(ZksStopWhen when)
{
	atomic_store(&wanted, when);
}

void
zks_stop_begin(int signal, bool carry_on)
{
	static unsigned int last_turn = 0;

	if (last_turn == 0)
		owner = pthread_self();
	last_turn = last_turn < LAST_TURN ? last_turn + 1 : 1;
	if (!carry_on)
		atomic_store(&first_turn, last_turn);
	atomic_store(&owner_signal, signal);
	atomic_store(&turn, last_turn);
}

void
zks_stop_end(void)
{
	atomic_store(&turn, 0);
}

bool
zks_stop_possible(void)
{
	return atomic_load(&turn) != 0;
}

ZkReliance
zks_stop_asked(void)
{
	unsigned int request = atomic_load(&asked);
	unsigned int now = atomic_load(&turn);

	if (now != 0 && atomic_load(&self_turn) == now && atomic_load(&wanted) != ZKS_STOP_NEVER)
		return ZKN_RELIED;
	if (now == 0 || request >> RELIANCE_BITS != now)
		return ZKN_NOT_RELIED;
	return (ZkReliance) (request & ((1 << RELIANCE_BITS) - 1));
}

/*-------------------------------------------------------------------------
 * The owner's own reason
 *-------------------------------------------------------------------------
 */

/*
 * No session's thread knows of it, and there may be none: so the signal comes from a
 * timer.  It is sent to the owner's thread only, since the process may have others that
 * are not ours.  If there can be no timer, the owner is not stopped.
 */
static timer_t timer;
static int	timer_signal = 0;	/* the one that it sends; 0: there is none */
static bool timer_runs = false;

static void
make_timer(void)
{
	int			signal = atomic_load(&owner_signal);
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID,.sigev_signo = signal};

	if (timer_signal == signal)
		return;
	if (timer_signal != 0)
		timer_delete(timer);
	event.sigev_notify_thread_id = gettid();
	timer_runs = false;
	timer_signal = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 ? signal : 0;
}

/* What runs already goes on, or it would never come to its end in a loop */
static void
run_timer(bool run)
{
	const struct timespec again = {.tv_sec = run ? AGAIN_MS / 1000 : 0};
	const struct itimerspec spec = {.it_value = again,.it_interval = again};

	if (timer_runs == run || timer_signal == 0)
		return;
	timer_runs = timer_settime(timer, 0, &spec, NULL) == 0 && run;
}

void
zks_stop_self(const ZkStopReason *why)
{
	atomic_store(&self_turn, why != NULL ? atomic_load(&turn) : 0);
	if (why != NULL)
	{
		copy_reason(&reason, why);
		make_timer();
	}
	run_timer(why != NULL);
}

/*-------------------------------------------------------------------------
 * Asking
 *-------------------------------------------------------------------------
 */

void
zks_stop_reason(ZkStopReason *result)
{
	copy_reason(result, &reason);
}

bool
zks_stop_heeds_doubt(void)
{
	return atomic_load(&wanted) == ZKS_STOP_DOUBT;
}

/*
 * Until when the session is not in doubt: a whole timeout in which the quorum was
 * asked, and nothing has proven that it lives.  Only the quorum's word counts.
 */
static int64_t
undoubted_until_locked(ZkSession *s)
{
	int64_t		since = s->info.quorum_at;

	zk_assert(zks_has_mutex(s));
	if (s->info.state == ZKS_CONNECTING || s->quorum_due_since == 0)
		return ZKS_NEVER;
	if (s->quorum_due_since > since)
		since = s->quorum_due_since;
	return since + s->info.timeout_ms * ZKS_MS;
}

void
zks_stop_closes(ZkSession *s)
{
	atomic_store(&s->closed_turn, atomic_load(&turn));
	atomic_store(&closed_counts, true);
}

bool
zks_stop_closed_counts(void)
{
	return atomic_load(&closed_counts);
}

void
zks_stop_closed(bool counts)
{
	atomic_store(&closed_counts, counts);
}

/*
 * How much the owner may rely on what the session has.  When it has closed the
 * session, since it was lost, the transaction still relies on it: it may have
 * noticed the loss, and have closed the session, before this thread could ask.  Later
 * ones may rely on the locks that it has not given back.
 */
static ZkReliance
most_reliance(ZkSession *s, unsigned int this_turn)
{
	unsigned int closed_turn;

	if (!atomic_load(&s->closing))
		return ZKN_RELIED;
	closed_turn = atomic_load(&s->closed_turn);
	if (this_turn != 0 && closed_turn >= atomic_load(&first_turn) && closed_turn <= this_turn)
		return ZKN_RELIED;
	return atomic_load(&closed_counts) ? ZKN_RELIED_IF_WRITTEN : ZKN_NOT_RELIED;
}

/*
 * Ask, if it is time for that.  Returns when to look again: a turn may begin, and the
 * setting change, at any time, without a word to this thread.
 */
int64_t
zks_stop_locked(ZkSession *s, int64_t now)
{
	ZksStopWhen when = (ZksStopWhen) atomic_load(&wanted);
	unsigned int this_turn = atomic_load(&turn);
	ZkStopReason why;
	ZkReliance	most = most_reliance(s, this_turn);
	ZkReliance	reliance;

	zk_assert(zks_has_mutex(s));
	if (most == ZKN_NOT_RELIED)
		return ZKS_NEVER;
	if (when == ZKS_STOP_NEVER)
		/* for now; a session that is over has no heartbeats to look again */
		return s->info.state == ZKS_OVER && zkn_is_relied_locked(s) ? now + AGAIN_MS * ZKS_MS : ZKS_NEVER;
	why.doubt = when == ZKS_STOP_DOUBT && now > undoubted_until_locked(s);
	reliance = zkn_reliance_locked(s, when == ZKS_STOP_DOUBT, &why);
	if (reliance == ZKN_NOT_RELIED)
	{
		int64_t		until = undoubted_until_locked(s);

		return when == ZKS_STOP_DOUBT && zkn_is_relied_locked(s) && until != ZKS_NEVER ? until + 1 : ZKS_NEVER;
	}
	if (this_turn == 0)
		return now + AGAIN_MS * ZKS_MS;
	if (this_turn == s->stop_turn && now < s->stop_at)
		return s->stop_at;

	s->stop_turn = this_turn;
	s->stop_at = now + AGAIN_MS * ZKS_MS;
	copy_reason(&reason, &why);
	if (reliance > most)
		reliance = most;
	atomic_store(&asked, this_turn << RELIANCE_BITS | reliance);

	/* that thread ends only with the process, and the handler is always there */
	(void) pthread_kill(owner, atomic_load(&owner_signal));
	return s->stop_at;
}

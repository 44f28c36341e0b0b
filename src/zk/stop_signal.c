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
 * Whether its process is to end is asked by the same signal, in turns that are not a
 * transaction's: lives.
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

#include "lease.h"
#include "proof.h"
#include "session_private.h"
#include "stop_signal.h"
#include "stop_signal_private.h"

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

/* The same of its process, without a reliance */
static atomic_uint life;		/* 0: it is not to end now */
static atomic_uint life_asked;
static atomic_uint self_life;

#define RELIANCE_BITS		2
#define LAST_TURN			(UINT_MAX >> RELIANCE_BITS)

/* The owner: its thread, and the signal that it handles */
static pthread_t owner;
static atomic_int owner_signal;

/* What was lost in that turn; of two sessions, one may have ended */
static pthread_mutex_t reason_mutex = PTHREAD_MUTEX_INITIALIZER;
static ZkStopReason reason;
static ZkStopReason last_reason;	/* for which the process is to end */

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

static void
remember_owner(int signal)
{
	static bool known = false;

	if (!known)
		owner = pthread_self();
	known = true;
	atomic_store(&owner_signal, signal);
}

/* That thread ends only with the process, and the handler is always there */
static void
signal_owner(void)
{
	(void) pthread_kill(owner, atomic_load(&owner_signal));
}

void
zks_stop_begin(int signal, bool carry_on)
{
	static unsigned int last_turn = 0;

	remember_owner(signal);
	last_turn = last_turn < LAST_TURN ? last_turn + 1 : 1;
	if (!carry_on)
		atomic_store(&first_turn, last_turn);
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

static void run_timer(void);

void
zks_terminate_begin(int signal, ZkSession *s)
{
	static unsigned int last_life = 0;

	remember_owner(signal);
	last_life = last_life < UINT_MAX ? last_life + 1 : 1;
	atomic_store(&life, last_life);
	if (s == NULL || atomic_load(&wanted) != ZKS_STOP_TERMINATE)
		return;

	/* what was lost since the last one ended need not wait for its thread */
	zks_enter(s);
	(void) zks_stop_locked(s, zks_now());
	zks_leave(s);
}

void
zks_terminate_end(void)
{
	atomic_store(&life, 0);
	if (atomic_load(&self_life) == 0)
		return;
	atomic_store(&self_life, 0);
	run_timer();
}

bool
zks_terminate_possible(void)
{
	return atomic_load(&life) != 0;
}

bool
zks_terminate_asked(void)
{
	unsigned int now = atomic_load(&life);

	return now != 0 && atomic_load(&wanted) == ZKS_STOP_TERMINATE &&
		(atomic_load(&life_asked) == now || atomic_load(&self_life) == now);
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
run_timer(void)
{
	bool		run = atomic_load(&self_turn) != 0 || atomic_load(&self_life) != 0;
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
	run_timer();
}

void
zks_terminate_self(const ZkStopReason *why)
{
	if (atomic_load(&wanted) != ZKS_STOP_TERMINATE)
		why = NULL;
	if (why != NULL)
	{
		copy_reason(&last_reason, why);
		make_timer();
	}
	atomic_store(&self_life, why != NULL ? atomic_load(&life) : 0);
	run_timer();
	if (why != NULL)
		signal_owner();
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

void
zks_terminate_reason(ZkStopReason *result)
{
	copy_reason(result, &last_reason);
}

static bool
heeds_doubt(ZksStopWhen when)
{
	return when == ZKS_STOP_DOUBT || when == ZKS_STOP_TERMINATE;
}

bool
zks_stop_heeds_doubt(void)
{
	return heeds_doubt((ZksStopWhen) atomic_load(&wanted));
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
	return since + zks_timeout(&s->info);
}

void
zks_stop_closes(ZkSession *s)
{
	atomic_store(&s->closed_turn, atomic_load(&turn));
	atomic_store(&s->closed_life, atomic_load(&life));
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

static int64_t
ask_to_stop_locked(ZkSession *s, int64_t now)
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
	why.doubt = heeds_doubt(when) && now > undoubted_until_locked(s);
	reliance = zkn_reliance_locked(s, heeds_doubt(when), false, &why);
	if (reliance == ZKN_NOT_RELIED)
	{
		int64_t		until = undoubted_until_locked(s);

		return heeds_doubt(when) && zkn_is_relied_locked(s) && until != ZKS_NEVER ? until + 1 : ZKS_NEVER;
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
	signal_owner();
	return s->stop_at;
}

/*
 * What a session had that the owner has closed counts as long as the life goes on in
 * which it did that: then it looks itself.
 */
static int64_t
ask_to_terminate_locked(ZkSession *s, int64_t now)
{
	unsigned int this_life = atomic_load(&life);
	ZkStopReason why;

	zk_assert(zks_has_mutex(s));
	if (atomic_load(&wanted) != ZKS_STOP_TERMINATE ||
		(atomic_load(&s->closing) && (this_life == 0 || atomic_load(&s->closed_life) != this_life)))
		return ZKS_NEVER;
	why.doubt = now > undoubted_until_locked(s);
	if (zkn_reliance_locked(s, true, true, &why) == ZKN_NOT_RELIED)
		return ZKS_NEVER;
	if (this_life == 0)
		return now + AGAIN_MS * ZKS_MS;
	if (this_life == s->end_life && now < s->end_at)
		return s->end_at;

	s->end_life = this_life;
	s->end_at = now + AGAIN_MS * ZKS_MS;
	copy_reason(&last_reason, &why);
	atomic_store(&life_asked, this_life);
	signal_owner();
	return s->end_at;
}

/*
 * Ask, if it is time for that.  Returns when to look again: a turn may begin, and the
 * setting change, at any time, without a word to this thread.
 */
int64_t
zks_stop_locked(ZkSession *s, int64_t now)
{
	int64_t		at = ask_to_terminate_locked(s, now);	/* before a cancel that
														 * it makes needless */

	return zks_earlier(at, ask_to_stop_locked(s, now));
}

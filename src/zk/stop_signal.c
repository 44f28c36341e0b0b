/*-------------------------------------------------------------------------
 *
 * stop_signal.c
 *	  Asks the owner, by a signal, to stop what relies on a node that is lost.
 *
 * The owner may be computing for hours without a call of ours, so its thread is
 * sent a signal.  Whether it stops is its own decision: its handler asks
 * zks_stop_asked, and no request outlives the span (mostly a transaction) for
 * which it was made.  A signal that arrives late, because it was blocked or on
 * its way, finds another span, or none, and means nothing.  Whether its process is to
 * end is asked in the same way, in other spans.
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
#include "nodes.h"
#include "session_private.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid	/* before glibc 2.38 */
#endif

/* How often the owner is asked again */
#define AGAIN_MS			1000

static atomic_int wanted = ZKS_STOP_NEVER;	/* ZksStopWhen */

typedef struct Span
{
	unsigned int last;
	atomic_uint now;			/* 0: there is nothing to stop */
	atomic_uint asked;			/* in which one, and the reliance in the low
								 * bits */
	atomic_uint self;			/* the same, of what the owner asks itself */
	_Atomic int64_t again_at;	/* when a session's thread asks again */
	ZkStopReason reason;		/* what was lost then */
} Span;

static Span spans[ZKS_STOP_KINDS];

#define RELIANCE_BITS		2
#define LAST_SPAN			(UINT_MAX >> RELIANCE_BITS)

/* The owner: its thread, and the signal that it handles */
static pthread_t owner;
static atomic_int owner_signal;

/* Of two sessions one may have ended, and both ask */
static pthread_mutex_t reason_mutex = PTHREAD_MUTEX_INITIALIZER;

/*
 * Without signals: bgworker_die would leave with the mutex, and then wait for the
 * session's thread, which may wait for it.
 */
static void
copy_reason(ZkStopReason *to, const ZkStopReason *from)
{
	sigset_t	before;

	zks_block_signals(&before);
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

/* That thread ends only with the process, and the handler is always there */
static void
signal_owner(void)
{
	(void) pthread_kill(owner, atomic_load(&owner_signal));
}

void
zks_stop_begin(ZksStopWhat what, int signal)
{
	static bool known = false;
	Span	   *t = &spans[what];

	if (!known)
		owner = pthread_self();
	known = true;
	atomic_store(&owner_signal, signal);
	t->last = t->last < LAST_SPAN ? t->last + 1 : 1;
	atomic_store(&t->now, t->last);
}

bool
zks_stop_possible(ZksStopWhat what)
{
	return atomic_load(&spans[what].now) != 0;
}

static bool
is_wanted(ZksStopWhat what)
{
	return atomic_load(&wanted) >= (what == ZKS_STOP_PROCESS ? ZKS_STOP_TERMINATE : ZKS_STOP_LOST);
}

/* What one of these says of this span */
static ZkReliance
reliance_now(ZksStopWhat what, atomic_uint * request)
{
	unsigned int span = atomic_load(&spans[what].now);
	unsigned int value = atomic_load(request);

	return span != 0 && value >> RELIANCE_BITS == span ?
		(ZkReliance) (value & ((1 << RELIANCE_BITS) - 1)) : ZKN_NOT_RELIED;
}

ZkReliance
zks_stop_asked(ZksStopWhat what)
{
	ZkReliance	asked = reliance_now(what, &spans[what].asked);
	ZkReliance	self = reliance_now(what, &spans[what].self);

	return !is_wanted(what) ? ZKN_NOT_RELIED : asked > self ? asked : self;
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
	bool		run = reliance_now(ZKS_STOP_STATEMENT, &spans[ZKS_STOP_STATEMENT].self) != ZKN_NOT_RELIED ||
	reliance_now(ZKS_STOP_PROCESS, &spans[ZKS_STOP_PROCESS].self) != ZKN_NOT_RELIED;
	const struct timespec again = {.tv_sec = run ? AGAIN_MS / 1000 : 0};
	const struct itimerspec spec = {.it_value = again,.it_interval = again};

	if (timer_runs == run || timer_signal == 0)
		return;
	timer_runs = timer_settime(timer, 0, &spec, NULL) == 0 && run;
}

void
zks_stop_self(ZksStopWhat what, ZkReliance reliance, const ZkStopReason *why)
{
	Span	   *t = &spans[what];

	if (what == ZKS_STOP_PROCESS && !is_wanted(what))
		reliance = ZKN_NOT_RELIED;
	if (reliance > reliance_now(what, &t->self))
	{
		copy_reason(&t->reason, why);
		make_timer();
		atomic_store(&t->self, atomic_load(&t->now) << RELIANCE_BITS | reliance);
	}
	run_timer();
	if (reliance != ZKN_NOT_RELIED && what == ZKS_STOP_PROCESS)
		signal_owner();
}

void
zks_stop_end(ZksStopWhat what)
{
	atomic_store(&spans[what].now, 0);
	run_timer();
}

void
zks_stop_closes(ZkSession *s)
{
	zks_enter(s);
	if (s->info.state == ZKS_OVER)
		zkn_over_locked(s);
	for (int what = 0; what < ZKS_STOP_KINDS; what++)
	{
		ZkStopReason why = {.doubt = true};
		ZkReliance	reliance = zkn_reliance_locked(s, true, what == ZKS_STOP_PROCESS, &why);

		why.doubt = false;
		zks_stop_self(what, reliance, &why);
	}
	zks_leave(s);
}

/*-------------------------------------------------------------------------
 * Asking
 *-------------------------------------------------------------------------
 */

void
zks_stop_reason(ZksStopWhat what, ZkStopReason *result)
{
	copy_reason(result, &spans[what].reason);
}

bool
zks_stop_heeds_doubt(void)
{
	return atomic_load(&wanted) >= ZKS_STOP_DOUBT;
}

/*
 * Until when the session is not in doubt: a whole timeout in which the quorum was
 * asked, and nothing has proven that it lives.  Only the quorum's word counts.
 */
static int64_t
undoubted_until_locked(ZkSession *s)
{
	int64_t		since = s->info.quorum_at;

	if (s->info.state == ZKS_CONNECTING || s->due.quorum_since == 0)
		return ZKS_NEVER;
	if (s->due.quorum_since > since)
		since = s->due.quorum_since;
	return since + zks_timeout(&s->info);
}

/* When to look again, if nothing is lost yet */
static int64_t
look_again_locked(ZkSession *s, int64_t now)
{
	int64_t		until = undoubted_until_locked(s);

	if (s->nodes.nrelied == 0)
		return ZKS_NEVER;
	/* a session that is over has no heartbeats to look again */
	if (!is_wanted(ZKS_STOP_STATEMENT))
		return s->info.state == ZKS_OVER ? now + AGAIN_MS * ZKS_MS : ZKS_NEVER;
	return zks_stop_heeds_doubt() && until != ZKS_NEVER ? until + 1 : ZKS_NEVER;
}

static int64_t
ask_locked(ZkSession *s, ZksStopWhat what, int64_t now)
{
	Span	   *t = &spans[what];
	unsigned int this_span = atomic_load(&t->now);
	bool		heeds_doubt = zks_stop_heeds_doubt();
	ZkStopReason why = {.doubt = heeds_doubt && now > undoubted_until_locked(s)};
	ZkReliance	reliance = ZKN_NOT_RELIED;

	if (is_wanted(what))
		reliance = zkn_reliance_locked(s, heeds_doubt, what == ZKS_STOP_PROCESS, &why);
	if (reliance == ZKN_NOT_RELIED)
		return what == ZKS_STOP_STATEMENT ? look_again_locked(s, now) : ZKS_NEVER;
	if (this_span == 0)
		return now + AGAIN_MS * ZKS_MS;
	if (reliance_now(what, &t->asked) == ZKN_NOT_RELIED || now >= atomic_load(&t->again_at))
	{
		atomic_store(&t->again_at, now + AGAIN_MS * ZKS_MS);
		copy_reason(&t->reason, &why);
		atomic_store(&t->asked, this_span << RELIANCE_BITS | reliance);
		signal_owner();
	}
	return atomic_load(&t->again_at);
}

/*
 * Ask, if it is time for that.  Returns when to look again: a span may begin, and the
 * setting change, at any time, without a word to this thread.
 */
int64_t
zks_stop_locked(ZkSession *s, int64_t now)
{
	int64_t		at;

	zk_assert(zks_has_mutex(s));
	if (atomic_load(&s->closing))
		return ZKS_NEVER;		/* what it had is the owner's own reason now */

	/* before a cancel that it makes needless */
	at = ask_locked(s, ZKS_STOP_PROCESS, now);
	return zks_earlier(at, ask_locked(s, ZKS_STOP_STATEMENT, now));
}

void
zks_stop_look(ZkSession *s)
{
	if (!is_wanted(ZKS_STOP_PROCESS))
		return;
	zks_enter(s);
	(void) zks_stop_locked(s, zks_now());
	zks_leave(s);
}

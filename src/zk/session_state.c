/*-------------------------------------------------------------------------
 *
 * session_state.c
 *	  What all files of this room stand on: the clock, the mutex, and the
 *	  session's state.
 *
 * It calls none of them but wakeup's.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "session_private.h"

int64_t
zks_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* For a poll() */
int
zks_ms_until(int64_t until, int64_t now)
{
	int64_t		ms = (until - now + ZKS_MS - 1) / ZKS_MS;

	return ms < 0 ? 0 : ms < INT_MAX ? (int) ms : INT_MAX;
}

/* A name that nothing else has; false if the system has no random numbers */
bool
zks_make_uuid(char *text)
{
	unsigned char b[16];

	if (getrandom(b, sizeof(b), 0) != (ssize_t) sizeof(b))
		return false;
	b[6] = (b[6] & 0x0f) | 0x40;	/* version 4 */
	b[8] = (b[8] & 0x3f) | 0x80;
	snprintf(text, ZKP_UUID_LEN,
			 "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
			 b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return true;
}

/*
 * Below n; 0 if the system has no random numbers.  The process's own, random(),
 * belongs to whoever has seeded it.
 */
uint32_t
zks_random(uint32_t n)
{
	uint32_t	random;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != (ssize_t) sizeof(random))
		return 0;
	return random % n;
}

/*-------------------------------------------------------------------------
 * The mutex, and what goes out when it is free again
 *-------------------------------------------------------------------------
 */

/*
 * The library sends each request in two pieces, with TCP_NODELAY.  What is sent
 * under one hold of the mutex, or while the owner gathers, goes out together
 * when that ends: one packet, and one wake-up of the server, for create and list.
 * (Should nobody end it, the kernel does, after 200 ms.)
 */
void
zks_cork_locked(ZkSession *s)
{
	int			on = 1;

	zk_assert(zks_has_mutex(s));
	if (!s->corked && s->wire == NULL)	/* with TLS the socket is no TCP */
		s->corked = setsockopt(s->sock, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0;
}

/* The socket may have been closed meanwhile, and the number be another's: harmless */
void
zks_uncork_locked(ZkSession *s)
{
	int			off = 0;

	zk_assert(zks_has_mutex(s));
	if (s->corked)
		(void) setsockopt(s->sock, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
	s->corked = false;
}

static __thread ZkSession *entered;

ZkSession *
zks_entered(void)
{
	return entered;
}

bool
zks_has_mutex(ZkSession *s)
{
	return entered == s;
}

void
zks_lock(ZkSession *s)
{
	pthread_mutex_lock(&s->mutex);
	entered = s;
}

void
zks_unlock(ZkSession *s)
{
	bool		notify = s->notify;

	if (!atomic_load(&s->gathering))
		zks_uncork_locked(s);
	s->notify = false;
	entered = NULL;
	pthread_mutex_unlock(&s->mutex);
	if (notify)
		zks_wakeup_tell_owner(&s->wakeup);
}

/* The caller puts before back */
void
zks_block_signals(sigset_t *before)
{
	sigset_t	all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
}

void
zks_enter(ZkSession *s)
{
	sigset_t	before;

	if (!s->options.handlers_return)
		zks_block_signals(&before);
	zks_lock(s);
	if (!s->options.handlers_return)
		s->owner_mask = before;
}

void
zks_leave(ZkSession *s)
{
	bool		blocked = !s->options.handlers_return;
	sigset_t	before = s->owner_mask;

	zks_unlock(s);
	if (blocked)
		pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* A thread inherits its creator's mask: signals are not for it.  False, with errno */
bool
zks_start_thread(pthread_t *thread, size_t stack, void *(*run) (void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t	before;
	int			rc = pthread_attr_init(&attr);

	if (rc == 0)
	{
		pthread_attr_setstacksize(&attr, stack);
		zks_block_signals(&before);
		rc = pthread_create(thread, &attr, run, arg);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		pthread_attr_destroy(&attr);
	}
	errno = rc;
	return rc == 0;
}

/*-------------------------------------------------------------------------
 * The session's state
 *-------------------------------------------------------------------------
 */

/* Whether a request can be sent; it cannot after a send that failed, see request.c */
bool
zks_usable_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	return s->zh != NULL && s->info.state == ZKS_CONNECTED && zoo_state(s->zh) == ZOO_CONNECTED_STATE;
}

void
zks_set_state_locked(ZkSession *s, ZkSessionState state)
{
	zk_assert(zks_has_mutex(s));
	if (state == ZKS_SUSPENDED && s->info.state == ZKS_CONNECTED)
		s->info.suspended_at = zks_now();
	s->info.state = state;
	s->notify = true;
}

/* What it had is lost */
void
zks_count_loss_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	s->info.losses++;
	s->texts.at_loss = s->texts.troubles;
	atomic_fetch_add(&s->news, 1);
}

/* The session is over: what it made is gone, or counts as gone */
void
zks_end_locked(ZkSession *s, int error)
{
	zk_assert(zks_has_mutex(s));
	if (s->info.state == ZKS_OVER)
		return;
	if (error != ZCLOSING && s->info.epoch > 0 && !s->info.forfeited)
		zks_count_loss_locked(s);
	s->info.error = error;
	zks_set_state_locked(s, ZKS_OVER);
}

/*
 * ZooKeeper has answered "not now", or what leaves everything open.  What this thread
 * does by itself goes on after a pause, and not at the next heartbeat only.  Until then
 * each pause is twice as long as the last.
 */
#define FIRST_PAUSE_MS		16
#define LONGEST_PAUSE_MS	1024

void
zks_catch_up_soon_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	if (s->due.catch_up_at != 0)
		return;
	if (s->due.catch_up_ms == 0)
		s->due.catch_up_ms = FIRST_PAUSE_MS;
	else if (s->due.catch_up_ms < LONGEST_PAUSE_MS)
		s->due.catch_up_ms *= 2;
	s->due.catch_up_at = zks_now() + s->due.catch_up_ms * ZKS_MS;
	zks_wakeup_wake_keeper(&s->wakeup);
}

/* What kind of fault it is that a connection failed with this */
ZksTrouble
zks_errno_trouble(int code)
{
	switch (code)
	{
		case EPIPE:
		case ECONNRESET:
			return ZKS_TROUBLE_CLOSED;
		case ECONNREFUSED:
			return ZKS_TROUBLE_REFUSED;
		case EHOSTUNREACH:
		case ENETUNREACH:
		case EADDRNOTAVAIL:		/* such as ::1, on a machine without IPv6 */
		case EAFNOSUPPORT:
			return ZKS_TROUBLE_NO_WAY;
	}
	return ZKS_TROUBLE_OTHER;
}

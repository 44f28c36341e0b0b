/*-------------------------------------------------------------------------
 *
 * session.c
 *	  The ZooKeeper session of a process, as its main thread sees it: opened,
 *	  waited for, closed.
 *
 * Between these calls keeper_thread.c has it.  While the main thread has the mutex,
 * its signals are blocked where a handler may leave the process (bgworker_die
 * does), and exit comes back here.  Elsewhere that would be a tenth of all that the
 * backend does for a lock.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "connection.h"
#include "nodes.h"
#include "session.h"
#include "session_private.h"
#include "tls_private.h"

/* The most frames that are read with signals blocked */
#define AT_ONCE				64

ZkSession *
zks_open(const ZkOptions *options)
{
	ZkSession  *s = calloc(1, sizeof(ZkSession));

	if (s == NULL)
	{
		zks_tls_free(options->tls);
		return NULL;
	}
	TAILQ_INIT(&s->nodes.all);
	TAILQ_INIT(&s->turns);
	s->sock = -1;
	TAILQ_INIT(&s->requests.sent);
	TAILQ_INIT(&s->requests.answered);
	s->servers.n = 1;
	s->info.timeout_ms = options->timeout_ms;
	s->info.state = ZKS_CONNECTING;
	s->idle.in_use = true;
	s->idle.since = zks_now();
	atomic_init(&s->owners, 2);
	pthread_mutex_init(&s->mutex, NULL);
	pthread_mutex_init(&s->shown.mutex, NULL);
	s->wakeup.bell_fd = s->wakeup.keeper_fd = s->wakeup.owner_fd = -1;

	if (!zks_copy_options(s, options) || !zks_wakeup_open(&s->wakeup) || !zks_start_keeper(s))
	{
		int			save_errno = errno;

		zks_tls_free(s->options.tls);	/* the thread's, had it started */
		atomic_store(&s->owners, 1);
		zks_disown(s);
		errno = save_errno;
		return NULL;
	}
	return s;
}

bool
zks_use(ZkSession *s)
{
	zks_enter(s);
	s->idle.in_use = !atomic_load(&s->idle.retired);
	zks_leave(s);
	return !atomic_load(&s->idle.retired);
}

void
zks_rest(ZkSession *s, int idle_ms, bool worked)
{
	zks_enter(s);
	if (!atomic_load(&s->idle.retired))
	{
		s->idle.in_use = false;
		if (worked)
			s->idle.since = zks_now();
		if (s->idle.ms != idle_ms)
			zks_wakeup_wake_keeper(&s->wakeup); /* its sleep may be too long */
		s->idle.ms = idle_ms;
	}
	zks_leave(s);
}

/* The descriptors of one that has retired are the keeper's, and perhaps closed */
static void
wait_for_keeper(ZkSession *s, int ms)
{
	bool		retired = atomic_load(&s->idle.retired);
	struct pollfd fd = {.fd = retired ? -1 : s->wakeup.owner_fd,.events = POLLIN};

	poll(&fd, 1, retired ? 1 : ms);
	if (!retired)
		(void) zks_wakeup_owner_woken(&s->wakeup, 0);
}

bool
zks_closed(ZkSession *s, int bound_ms)
{
	int64_t		until = zks_now() + bound_ms * ZKS_MS;
	int64_t		now;

	/* without the mutex, which who left from within a wait may have */
	atomic_store(&s->closing, true);
	if (!atomic_load(&s->idle.retired))
		zks_wakeup_wake_keeper(&s->wakeup);

	while (!atomic_load(&s->keeper_done) && (now = zks_now()) < until)
		wait_for_keeper(s, zks_ms_until(until, now));
	return atomic_load(&s->keeper_done);
}

void
zks_close(ZkSession *s, int bound_ms, ZkMarks *left)
{
	if (left != NULL)
		zks_stop_closes(s);
	(void) zks_closed(s, bound_ms);
	if (left != NULL)
	{
		zks_enter(s);
		zkn_give_marks_locked(s, left);
		zks_leave(s);
	}
	if (atomic_load(&s->keeper_done))
		pthread_join(s->keeper, NULL);
	else
		pthread_detach(s->keeper);	/* it frees the session when it ends */
	zks_disown(s);
}

ZkSessionInfo
zks_info(ZkSession *s)
{
	ZkSessionInfo info;

	zks_enter(s);
	info = s->info;
	zks_leave(s);
	return info;
}

void
zks_texts(ZkSession *s, ZkSessionTexts *texts)
{
	zks_enter(s);
	*texts = s->texts;
	zks_leave(s);
}

unsigned
zks_news(ZkSession *s)
{
	return atomic_load(&s->news);
}

void
zks_show(ZkSession *s, ZkShown *shown)
{
	zks_enter(s);
	pthread_mutex_lock(&s->shown.mutex);
	s->shown.memory = shown;
	pthread_mutex_unlock(&s->shown.mutex);
	zkn_show_locked(s);
	zks_leave(s);
}

/* Who left from within a wait may have the other mutex */
void
zks_unshow(ZkSession *s)
{
	pthread_mutex_lock(&s->shown.mutex);
	s->shown.memory = NULL;
	pthread_mutex_unlock(&s->shown.mutex);
}

void
zks_expire(ZkSession *s)
{
	zks_enter(s);
	if (s->info.epoch > 0 && zks_now() > zks_lease_ends(&s->info))
		zks_forfeit_locked(s);
	zkn_show_locked(s);
	zks_leave(s);
}

void
zks_gather(ZkSession *s)
{
	atomic_store(&s->gathering, true);
}

void
zks_send(ZkSession *s)
{
	if (!atomic_load(&s->gathering))
		return;
	atomic_store(&s->gathering, false);
	zks_enter(s);
	zks_leave(s);
}

/*
 * What has arrived while the owner waited.  Each answer that was there is read,
 * so that a list need not be waited for when its create was answered.
 */
static ZkFrameVerdict
read_as_owner_locked(ZkSession *s)
{
	ZkFrameVerdict verdict = FRAME_READ;
	int			timeout_ms = s->info.timeout_ms;

	for (int i = 0; verdict == FRAME_READ && i < AT_ONCE; i++)
	{
		verdict = zks_process_locked(s, EPOLLIN);
		if (!zks_usable_locked(s) || s->sock < 0 || !s->frame.followed ||
			s->frame.long_at == s->requests.replies)
			break;
	}
	/* connecting is its own business; or its sleep is too long */
	if (!zks_usable_locked(s) || s->info.timeout_ms < timeout_ms)
		zks_wakeup_wake_keeper(&s->wakeup);
	return verdict;
}

int
zks_await(ZkSession *s, bool *answer_due)
{
	atomic_store(&s->gathering, false);
	zks_enter(s);
	if (answer_due != NULL)
		*answer_due = s->requests.in_flight > 0;
	s->awaited = true;
	if (zks_usable_locked(s) || zks_greeted_locked(s))
		zks_wakeup_lend_locked(&s->wakeup, s->sock);
	else
		zks_wakeup_wake_keeper(&s->wakeup); /* its pause may be too long */
	zks_leave(s);
	return s->wakeup.owner_fd;
}

bool
zks_doze(ZkSession *s, int ms)
{
	return zks_wakeup_owner_wait(&s->wakeup, ms);
}

void
zks_awaited(ZkSession *s)
{
	ZkFrameVerdict verdict = FRAME_NONE;

	zks_enter(s);
	s->awaited = false;
	if (zks_wakeup_owner_woken(&s->wakeup, s->wakeup.generation) &&
		(zks_usable_locked(s) || zks_greeted_locked(s)))
	{
		verdict = read_as_owner_locked(s);
		(void) zks_stop_locked(s, zks_now());	/* the keeper has seen none of
												 * it */
	}
	/* not before: what is unread would wake the keeper */
	zks_wakeup_take_back_locked(&s->wakeup, s->sock);
	s->notify = false;			/* whoever waited looks again anyway */
	zkn_show_locked(s);
	zks_leave(s);
	if (verdict == FRAME_WAIT)
		poll(NULL, 0, 1);
}

/*-------------------------------------------------------------------------
 *
 * keeper_thread.c
 *	  The thread that keeps a session: heartbeats, expiry, handles one after the
 *	  other.
 *
 * A backend spends most of its life where no code of ours runs, so a thread
 * sends the heartbeats: the keeper.  It drives the single-threaded client
 * library; the main thread sends its own requests, under the same mutex, and
 * reads the answers for as long as it waits for them (wakeup.c), the keeper all
 * others.  (The multi-threaded library would do the first half, but answers a
 * failed pthread_create with abort(), takes signals that belong to the main
 * thread, and can block where it is closed.)
 *
 * The keeper calls nothing of PostgreSQL, takes no signal, and touches only
 * malloc'ed memory, and what zks_show was given.  The first steps of the first
 * handle may be the owner's (go_ahead).
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "connection.h"
#include "lease.h"
#include "nodes.h"
#include "tls_private.h"
#include "watch_private.h"

/*
 * getaddrinfo loads the modules of the site's nsswitch.conf, of which some want
 * more than a little; and what the process keeps for each thread is taken from it,
 * too.  What is not touched costs no memory.
 */
#define KEEPER_STACK		(1024 * 1024)

/* How long a session that is cut off when it is closed tries to say goodbye */
#define LINGER_MS			500

/*
 * The most threads of sessions that were given up and still wait for a silent
 * resolver
 */
#define MAX_KEEPERS			16

/* However short the session's timeout is */
#define HEARTBEAT_MIN_MS	10

/*-------------------------------------------------------------------------
 * What is due
 *-------------------------------------------------------------------------
 */

/*
 * The library's own ping would come after a third of the timeout.  That is a
 * server's word; where it says 1 ms, we would do nothing else.
 */
static int64_t
heartbeat_interval(ZkSession *s)
{
	int64_t		interval = zks_beat_after(&s->info);

	return interval > HEARTBEAT_MIN_MS * ZKS_MS ? interval : HEARTBEAT_MIN_MS * ZKS_MS;
}

/*
 * Whether heartbeats ask the quorum, where each is a write, though it changes
 * nothing: only those on which somebody relies all the time.  That is who is next in
 * line, so that its turn need not be confirmed by another round trip, and who is to
 * stop when the quorum is silent.
 */
static bool
asks_quorum_locked(ZkSession *s, int64_t now)
{
	bool		asks = zkn_expects_turn_locked(s) || (zks_stop_heeds_doubt() && s->nodes.nrelied > 0);

	if (!asks)
		s->due.quorum_since = 0;
	else if (s->due.quorum_since == 0)

		/*
		 * what was asked a moment ago, with the lock, was a question, too,
		 * whose silence counts already
		 */
		s->due.quorum_since = now - s->info.quorum_at < zks_missed_after(&s->info) ?
			s->info.quorum_at : now;
	return asks;
}

/* Whether the owner has something under way */
static bool
owner_asks_locked(ZkSession *s)
{
	ZkRequest  *r;
	ZkWatch    *w;

	if (!TAILQ_EMPTY(&s->requests.answered))
		return true;			/* it has not taken note of them */
	TAILQ_FOREACH(r, &s->requests.sent, in_list)
	{
		if (r->listener == LISTENER_OWNER)
			return true;
	}
	LIST_FOREACH(w, &s->watches.all, in_list)
	{
		if (!w->dropped)
			return true;
	}
	return false;
}

/*
 * Heartbeats are requests of our own, not the library's pings: of those one
 * learns neither when they were sent nor when they were answered, and none is
 * sent while a request is outstanding.  They go out on time whatever else
 * does, and what has to be done now and then is done with them.
 *
 * They read by way of the leader, so that the session leaves a server that is cut
 * off from that, even if it has nothing to lose: there it would expire.  Nothing is
 * written by that.  The quorum's word, which is, is asked for by whoever is to
 * rely on it; a session whose answers came so late that it may be over asks for it
 * at once.
 */
static void
heartbeat_locked(ZkSession *s, int64_t now)
{
	bool		in_doubt = zks_in_doubt(&s->info);
	bool		at_once = in_doubt && s->due.heartbeat_at < s->info.gap_at;
	bool		quorum = asks_quorum_locked(s, now) || in_doubt;

	if (!zks_usable_locked(s) || s->due.close_by != 0 ||
		(!at_once && now - s->due.heartbeat_at < heartbeat_interval(s)))
		return;
	s->due.heartbeat_at = now;
	s->due.catch_up_at = s->due.catch_up_ms = 0;
	if (zkn_only_refused_locked(s) && !owner_asks_locked(s))
	{
		zks_end_locked(s, ZCLOSING);
		return;
	}
	zkn_beat_locked(s, quorum);
	zkn_heartbeat_locked(s);
}

/* Go on before the next heartbeat with what was throttled, or is in doubt */
static void
beat_early_locked(ZkSession *s, int64_t now)
{
	if (s->due.catch_up_at == 0 || now < s->due.catch_up_at)
		return;
	s->due.catch_up_at = 0;
	if (zks_usable_locked(s))
		zkn_heartbeat_locked(s);
}

/*
 * Nobody tells a client that is cut off that its session has expired.  After
 * a whole session timeout without a word it most likely has, and doubt counts
 * as lost.  One that a server has accepted since, and that is not answered, is not
 * renewed any more, so that it does expire.  But if nobody has accepted it for so
 * long, it is not ended: a server that accepts it later was down until then, and the
 * deletions must be sent to it.
 */
static void
expire_locked(ZkSession *s, int64_t now)
{
	if (s->due.close_by != 0)
		return;
	if (s->info.state == ZKS_SUSPENDED && now > zks_lease_ends(&s->info))
	{
		s->due.answer_by = 0;
		zks_forfeit_locked(s);
	}
	else if (s->info.state == ZKS_CONNECTED && s->due.answer_by != 0 && now > s->due.answer_by)
	{
		zks_forfeit_locked(s);
		zks_end_locked(s, ZSESSIONEXPIRED);
	}
}

/*
 * Where the names of the servers lead may have changed since they were looked
 * up; and see zks_suspend_locked.
 */
static int64_t
renewal_due(ZkSession *s)
{
	int64_t		attempt_until = s->attempts.at + zks_timeout(&s->info);

	/*
	 * an attempt that is under way may still succeed; the library ends it
	 * sooner
	 */
	return s->sock >= 0 && attempt_until > s->due.renew_at ? attempt_until : s->due.renew_at;
}

static bool
needs_renewal_locked(ZkSession *s)
{
	return s->info.state == ZKS_SUSPENDED && s->info.forfeited && s->due.close_by == 0 &&
		zks_now() >= renewal_due(s);
}

/*
 * A session that has nothing costs its server a connection, and this process a
 * thread.  While the owner does not use it, which it says (zks_use), nobody but this
 * thread can see that it has been idle for too long.  An answer under way is awaited,
 * such as that of a delete, or of a heartbeat; a server that is silent is given up
 * sooner or later.
 */
static int64_t
retirement_due_locked(ZkSession *s)
{
	if (s->idle.in_use || s->idle.ms == 0 || s->due.close_by != 0 || s->requests.in_flight > 0 ||
		zkn_any_locked(s))
		return ZKS_NEVER;
	return s->idle.since + s->idle.ms * ZKS_MS;
}

static void
retire_locked(ZkSession *s, int64_t now)
{
	if (s->info.state == ZKS_OVER || now < retirement_due_locked(s))
		return;
	atomic_store(&s->idle.retired, true);
	zks_end_locked(s, ZCLOSING);
	s->notify = false;
}

/*-------------------------------------------------------------------------
 * While a handle lives
 *-------------------------------------------------------------------------
 */

static bool
finished_locked(ZkSession *s)
{
	if (s->info.state == ZKS_OVER)
		return true;
	if (!atomic_load(&s->closing))
		return false;
	if (s->due.close_by == 0)
	{
		s->due.close_by = zks_now() + LINGER_MS * ZKS_MS;
		s->attempts.next_at = 0;	/* a pause would outlast that */
	}
	if (zks_now() >= s->due.close_by)
		return true;

	/*
	 * The library closes its socket as soon as anything arrives after its
	 * goodbye.  With an answer still unread that makes the kernel reset the
	 * connection, and the server may lose the goodbye.
	 */
	if (s->info.state == ZKS_CONNECTED)
		return s->requests.in_flight == 0;
	/* closing needs a connection, so wait for one a little */
	return s->info.state != ZKS_SUSPENDED || !zkn_any_locked(s);
}

/* Before the wait.  Returns how long it may take, in ms. */
static int
prepare_locked(ZkSession *s)
{
	int64_t		now = zks_now();
	int64_t		until;

	zks_mend_locked(s);
	retire_locked(s, now);
	heartbeat_locked(s, now);
	beat_early_locked(s, now);
	until = zks_earlier(zks_prepare_locked(s, now), zks_earlier(retirement_due_locked(s), zks_stop_locked(s, now)));
	if (s->due.catch_up_at != 0)
		until = zks_earlier(until, s->due.catch_up_at);
	if (s->info.state == ZKS_CONNECTED && s->due.close_by == 0)
		until = zks_earlier(until, s->due.heartbeat_at + heartbeat_interval(s));
	else if (zks_greeted_locked(s))
		until = zks_earlier(until, now + heartbeat_interval(s));	/* the owner may connect */
	if (s->due.close_by != 0)
		until = zks_earlier(until, s->due.close_by);
	else if (s->info.state == ZKS_SUSPENDED)
		until = zks_earlier(until, s->info.forfeited ? renewal_due(s) : zks_lease_ends(&s->info));
	else if (s->info.state == ZKS_CONNECTED && s->due.answer_by != 0)
		until = zks_earlier(until, s->due.answer_by + 1);
	return zks_ms_until(until, now);
}

static void
keep(ZkSession *s)
{
	while (!finished_locked(s) && !needs_renewal_locked(s))
	{
		int			wait = prepare_locked(s);
		uint32_t	generation = s->wakeup.generation;
		uint32_t	happened;

		if (finished_locked(s))
			break;
		zkn_show_locked(s);
		zks_unlock(s);
		happened = zks_wakeup_wait(&s->wakeup, generation, wait);
		zks_lock(s);

		/*
		 * Not if the main thread has had the socket closed meanwhile.  If
		 * nothing happened, look all the same: after a SIGSTOP the library
		 * would take what is unread for silence, and drop the connection.
		 */
		if (happened == 0 && zks_usable_locked(s))
			happened = EPOLLIN;
		if (happened != 0 && s->sock >= 0 && (s->info.state != ZKS_CONNECTED || zks_usable_locked(s)) &&
			zks_process_locked(s, happened) == FRAME_WAIT)
		{
			zks_unlock(s);
			poll(NULL, 0, 1);
			zks_lock(s);
		}
		expire_locked(s, zks_now());
	}
}

/*-------------------------------------------------------------------------
 * From its beginning to its end
 *-------------------------------------------------------------------------
 */

/*
 * The client library has buffers that are the process's, not the handle's.  A
 * session that is still closing, on a server that does not answer, must have
 * ended before the next one begins; that takes no more than 4.5 s.  A semaphore,
 * since the owner may take it, and the keeper gives it back.
 */
static sem_t library;

/* How often to look whether it is free, and still wanted */
#define LIBRARY_MS				5

static atomic_int nkeepers;

static bool
take_library(ZkSession *s)
{
	while (sem_trywait(&library) != 0)
	{
		if (atomic_load(&s->closing))
			return false;
		poll(NULL, 0, LIBRARY_MS);
	}
	return true;
}

/* The session ends with the last of its owners: who opened it, and the thread. */
void
zks_disown(ZkSession *s)
{
	if (atomic_fetch_sub(&s->owners, 1) > 1)
		return;
	zkn_free_all(s);
	zkr_free_requests(s);
	zkr_free_watches(s);
	zks_wakeup_close(&s->wakeup);
	pthread_mutex_destroy(&s->shown.mutex);
	pthread_mutex_destroy(&s->mutex);
	zks_free_options(s);
	free(s->servers.addresses);
	free(s->servers.names);
	free(s);
}

/*
 * Takes the library and the mutex and opens a handle, unless the owner has.  False:
 * there is no need.
 */
static bool
begin(ZkSession *s)
{
	char		error[ZKS_TROUBLE_LEN];

	if (s->zh != NULL)
	{
		zks_lock(s);
		return true;
	}
	/* as before, if that cannot be found out this time */
	(void) zks_resolve(s->options.hosts, false, &s->servers, error, sizeof(error));
	if (!take_library(s))
		return false;
	zks_lock(s);
	s->attempts.nfaults = 0;	/* the addresses may be others now */
	if (error[0] != '\0')
		zks_trouble_locked(s, ZKS_TROUBLE_NAME, error);
	if (s->servers.addresses == NULL)
		zks_end_locked(s, ZBADARGUMENTS);
	else if (!zks_open_handle_locked(s))
	{
		zks_trouble_locked(s, ZKS_TROUBLE_OTHER, strerror(errno));
		zks_end_locked(s, ZSYSTEMERROR);
	}
	return true;
}

/*
 * One handle of the library, from its beginning to its end.  True: the session is
 * to be taken up again by another one.
 */
static bool
attend(ZkSession *s)
{
	bool		again = false;

	if (!begin(s))
		return false;
	if (s->zh != NULL)
	{
		keep(s);
		zkn_show_locked(s);
		again = needs_renewal_locked(s);
		zks_close_handle_locked(s);
	}
	s->due.renew_at = zks_now() + zks_timeout(&s->info);
	zkr_fail_all_locked(s, again ? ZCONNECTIONLOSS : s->info.error == 0 ? ZCLOSING : s->info.error);
	zkr_free_left_locked(s);
	zkn_show_locked(s);
	zks_unlock(s);
	sem_post(&library);
	return again;
}

/*
 * The session is over, and what the owner does may still rely on it.  So ask it
 * to stop until it has closed the session.
 */
static void
linger_locked(ZkSession *s)
{
	int64_t		until;

	while ((until = zks_stop_locked(s, zks_now())) != ZKS_NEVER)
	{
		s->notify = true;
		zks_unlock(s);
		(void) zks_wakeup_wait(&s->wakeup, 0, zks_ms_until(until, zks_now()));
		zks_lock(s);
	}
}

static void *
keeper_main(void *arg)
{
	ZkSession  *s = arg;

	while (attend(s))
		;
	if (s->options.tls != NULL)
	{
		zks_tls_free(s->options.tls);
		zks_tls_thread_ends();
	}
	zks_lock(s);
	s->options.tls = NULL;
	zks_end_locked(s, ZCLOSING);
	zkn_over_locked(s);
	zkn_show_locked(s);
	linger_locked(s);
	s->notify = !atomic_load(&s->idle.retired);
	if (!s->notify)
		zks_wakeup_close(&s->wakeup);
	atomic_fetch_sub(&nkeepers, 1);
	atomic_store(&s->keeper_done, true);
	zks_unlock(s);
	zks_disown(s);
	return NULL;
}

/* The last thread could not be made */
static bool threadless;

/*
 * The owner's first steps, so that a server on this machine makes the session
 * while the kernel makes the thread: as far as they need no wait.  What does not
 * succeed, the keeper does anew, and says what is wrong.  Where there may be no
 * thread, none: each greeting would leave a session at the server.
 */
static void
go_ahead(ZkSession *s)
{
	char		error[ZKS_TROUBLE_LEN];
	struct pollfd fd = {.events = POLLOUT};

	if (threadless || s->options.tls != NULL || sem_trywait(&library) != 0)
		return;
	zks_enter(s);
	if (zks_resolve(s->options.hosts, true, &s->servers, error, sizeof(error)) && zks_open_handle_locked(s))
	{
		(void) prepare_locked(s);
		fd.fd = s->sock;
		if (poll(&fd, 1, 0) > 0 && fd.revents == POLLOUT)
		{
			(void) zks_process_locked(s, EPOLLOUT);
			(void) prepare_locked(s);	/* the keeper need not be woken to
										 * write */
		}
	}
	else
		sem_post(&library);
	zks_leave(s);
}

/* There is no thread */
static void
go_back(ZkSession *s)
{
	if (s->zh == NULL)
		return;
	zks_enter(s);
	zks_close_handle_locked(s);
	zks_leave(s);
	sem_post(&library);
}

bool
zks_start_keeper(ZkSession *s)
{
	static bool library_made;
	int			save_errno;

	if (atomic_load(&nkeepers) >= MAX_KEEPERS)
	{
		errno = EAGAIN;
		return false;
	}
	if (!library_made)
		library_made = sem_init(&library, 0, 1) == 0;
	go_ahead(s);
	atomic_fetch_add(&nkeepers, 1);
	threadless = !zks_start_thread(&s->keeper, KEEPER_STACK, keeper_main, s);
	if (threadless)
	{
		save_errno = errno;
		atomic_fetch_sub(&nkeepers, 1);
		go_back(s);
		errno = save_errno;
	}
	return !threadless;
}

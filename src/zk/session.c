/*-------------------------------------------------------------------------
 *
 * session.c
 *	  The ZooKeeper session of a process, and the thread that keeps it.
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
 * malloc'ed memory.
 *
 * While the main thread holds the mutex, its signals are blocked where a
 * handler may leave the process (bgworker_die does), and exit comes back here.
 * Elsewhere that would be a tenth of all that the backend does for a lock.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define KEEPER_STACK		(256 * 1024)

/* How long a session that is cut off when it is closed tries to say goodbye */
#define LINGER_MS			500

/* Of a certificate; the names in one rarely have more than 250 bytes */
#define LONGEST_SUBJECT		1024

/*
 * The most threads of sessions that were given up and still wait for a silent
 * resolver
 */
#define MAX_KEEPERS			16

/* However short the session's timeout is */
#define HEARTBEAT_MIN_MS	10

/* The most frames that are read with signals blocked */
#define AT_ONCE				64

/*-------------------------------------------------------------------------
 * Small tools
 *-------------------------------------------------------------------------
 */

/*
 * The library's own ping would come after a third of the timeout.  That is a
 * server's word; where it says 1 ms, we would do nothing else.
 */
static int64_t
heartbeat_interval(ZkSession *s)
{
	int64_t		interval = s->info.timeout_ms * ZKS_MS / 4;

	return interval > HEARTBEAT_MIN_MS * ZKS_MS ? interval : HEARTBEAT_MIN_MS * ZKS_MS;
}

/*-------------------------------------------------------------------------
 * What the library tells us
 *-------------------------------------------------------------------------
 */

/*
 * The library's messages are the only place where it says why a connection
 * failed: "...errno=111(Connection refused): ...".  Keep that for DETAIL;
 * nothing is written to a log, which a dead ensemble would flood.  The
 * callback is not told whose message it is, so who lets the library read says it
 * beforehand.
 */
static __thread ZkSession *logging;

static void
on_log(const char *message)
{
	const char *text = strstr(message, "errno=");
	int			code;

	if (logging == NULL || text == NULL)
		return;
	code = atoi(text + strlen("errno="));
	if (code == EINPROGRESS)
		return;					/* left over from a connect() that is under
								 * way */

	/* the library says EHOSTDOWN for the end of the stream */
	zks_trouble_locked(logging, code == EHOSTDOWN ?
					   "server closed the connection" : strerror(code));
}

static void
on_session_event(zhandle_t *zh, int type, int state, const char *path, void *context)
{
	ZkSession  *s = (ZkSession *) context;

	(void) path;
	if (type != ZOO_SESSION_EVENT || s->info.state == ZKS_OVER)
		return;
	if (state == ZOO_CONNECTED_STATE)
	{
		const clientid_t *id = zoo_client_id(zh);
		int			timeout = zoo_recv_timeout(zh);

		s->connected_now = true;
		s->info.session_id = id->client_id;
		s->id = *id;
		s->info.timeout_ms = timeout;
	}
	else if (state == ZOO_EXPIRED_SESSION_STATE || state == ZOO_AUTH_FAILED_STATE)
		zks_end_locked(s, state == ZOO_AUTH_FAILED_STATE ? ZAUTHFAILED : ZSESSIONEXPIRED);
	else if (s->info.state == ZKS_CONNECTED)
		zks_suspend_locked(s);
}

/*
 * Heartbeats are requests of our own, not the library's pings: of those one
 * learns neither when they were sent nor when they were answered, and none is
 * sent while a request is outstanding.  They go out on time whatever else
 * does, and what has to be done now and then is done with them.
 *
 * A read is enough to keep a session that has nothing to lose.  One that has
 * asks the quorum; so does one whose answers came so late that it may be over,
 * at once.
 */
static void
heartbeat_locked(ZkSession *s, int64_t now)
{
	bool		at_once = s->info.in_doubt && s->heartbeat_at < s->info.late_at;
	ZkRequest  *r;

	zk_assert(zks_has_mutex(s));
	if (!zks_usable_locked(s) || s->close_by != 0 ||
		(!at_once && now - s->heartbeat_at < heartbeat_interval(s)))
		return;
	s->heartbeat_at = now;
	if (zkn_only_refused_locked(s) && !zkr_owner_asks_locked(s))
	{
		zks_end_locked(s, ZCLOSING);
		return;
	}
	if (!zkn_prove_locked(s) && (r = zkr_new_locked(s, NULL, NULL)) != NULL)
	{
		r->listener = LISTENER_NONE;
		if (s->info.in_doubt)
			zkr_prove_locked(r);
		else
			zkr_stat_locked(r, "/");
	}
	zkn_heartbeat_locked(s);
}

/* Until when what was last heard proves that the session lives */
static int64_t
proven_until(ZkSession *s)
{
	return s->info.proven_at + s->info.timeout_ms * ZKS_MS;
}

/*
 * Nobody tells a client that is cut off that its session has expired.  After
 * a whole session timeout without a word it most likely has, and doubt counts
 * as lost.
 */
static void
expire_locked(ZkSession *s, int64_t now)
{
	zk_assert(zks_has_mutex(s));
	if (s->info.state == ZKS_SUSPENDED && s->close_by == 0 && now > proven_until(s))
		zks_forfeit_locked(s);
}

/*
 * Where the names of the servers lead may have changed since they were looked
 * up; and see zks_suspend_locked.
 */
static int64_t
renewal_due(ZkSession *s)
{
	int64_t		attempt_until = s->attempt_at + s->info.timeout_ms * ZKS_MS;

	/*
	 * an attempt that is under way may still succeed; the library ends it
	 * sooner
	 */
	return s->sock >= 0 && attempt_until > s->renew_at ? attempt_until : s->renew_at;
}

static bool
needs_renewal_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	return s->info.state == ZKS_SUSPENDED && s->info.forfeited && s->close_by == 0 &&
		zks_now() >= renewal_due(s);
}

/*-------------------------------------------------------------------------
 * The keeper
 *-------------------------------------------------------------------------
 */

static bool
finished_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	if (s->info.state == ZKS_OVER)
		return true;
	if (!atomic_load(&s->closing))
		return false;
	if (s->close_by == 0)
	{
		s->close_by = zks_now() + LINGER_MS * ZKS_MS;
		s->connect_at = 0;		/* a pause would outlast that */
	}
	if (zks_now() >= s->close_by)
		return true;
	switch (s->info.state)
	{
		case ZKS_CONNECTED:

			/*
			 * The library closes its socket as soon as anything arrives after
			 * its goodbye.  With an answer still unread that makes the kernel
			 * reset the connection, and the server may lose the goodbye.
			 */
			return s->in_flight == 0;
		case ZKS_SUSPENDED:
			/* closing needs a connection, so wait for one a little */
			return !zkn_any_locked(s);
		default:
			return true;
	}
}

static int
ms_until(int64_t until, int64_t now)
{
	int64_t		ms = (until - now + ZKS_MS - 1) / ZKS_MS;

	return ms < 0 ? 0 : ms < INT_MAX ? (int) ms : INT_MAX;
}

/* Before the wait.  Returns how long it may take, in ms. */
static int
prepare_locked(ZkSession *s)
{
	int64_t		now = zks_now();
	int64_t		until;

	zk_assert(zks_has_mutex(s));
	zks_mend_locked(s);
	heartbeat_locked(s, now);
	until = zks_prepare_locked(s, now);
	if (s->info.state == ZKS_CONNECTED && s->close_by == 0)
		until = zks_earlier(until, s->heartbeat_at + heartbeat_interval(s));
	if (s->close_by != 0)
		until = zks_earlier(until, s->close_by);
	else if (s->info.state == ZKS_SUSPENDED)
		until = zks_earlier(until, s->info.forfeited ? renewal_due(s) : proven_until(s));
	return ms_until(until, now);
}

static void
wait_for_the_rest(void)
{
	poll(NULL, 0, 1);
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
		if (happened != 0 && s->sock >= 0 && !s->broken &&
			zks_process_locked(s, happened) == FRAME_WAIT)
		{
			zks_unlock(s);
			wait_for_the_rest();
			zks_lock(s);
		}
		expire_locked(s, zks_now());
	}
}

/*
 * What has arrived while the owner waited.  Each answer that was there is read,
 * so that a list need not be waited for when its create was answered.
 */
static ZkFrameVerdict
read_as_owner_locked(ZkSession *s)
{
	ZkFrameVerdict verdict = FRAME_READ;
	uint64_t	replies;

	zk_assert(zks_has_mutex(s));
	logging = s;
	for (int i = 0; verdict == FRAME_READ && i < AT_ONCE; i++)
	{
		replies = s->replies;
		verdict = zks_process_locked(s, EPOLLIN);
		if (!zks_usable_locked(s) || s->sock < 0 || !s->frame.followed ||
			(s->frame.in_long_frame && s->replies == replies))
			break;
	}
	logging = NULL;
	if (!zks_usable_locked(s) || zoo_state(s->zh) != ZOO_CONNECTED_STATE)
		zks_wake_keeper(s);		/* connecting is its own business */
	return verdict;
}

static char *
wipe(char *secret)
{
	if (secret != NULL)
		explicit_bzero(secret, strlen(secret));
	free(secret);
	return NULL;
}

static void
free_credentials(ZkSession *s)
{
	for (int i = 0; s->credentials != NULL && i < s->ncredentials; i++)
	{
		free(s->credentials[i].scheme);
		(void) wipe(s->credentials[i].secret);
	}
	free(s->credentials);
	s->credentials = NULL;
}

static bool
copy_credentials(ZkSession *s, const ZkOptions *options)
{
	s->credentials = calloc(options->ncredentials + 1, sizeof(ZkCredential));
	if (s->credentials == NULL)
		return false;
	s->ncredentials = options->ncredentials;
	s->closed_acl_bytes = ZKR_ACL_BYTES;

	/* the subject of a certificate is an id, too */
	if (options->tls != NULL)
		s->closed_acl_bytes += ZKR_ACL_BYTES + LONGEST_SUBJECT;
	for (int i = 0; i < s->ncredentials; i++)
	{
		s->credentials[i].scheme = strdup(options->credentials[i].scheme);
		s->credentials[i].secret = strdup(options->credentials[i].secret);
		if (s->credentials[i].scheme == NULL || s->credentials[i].secret == NULL)
			return false;
		s->closed_acl_bytes += ZKR_ACL_BYTES + strlen(s->credentials[i].scheme) +
			strlen(s->credentials[i].secret);
	}
	return true;
}

/*
 * Before the first connection of a handle, so that they go before any request; the
 * library sends them again on each.
 */
static bool
add_credentials(ZkSession *s)
{
	bool		added = true;

	for (int i = 0; added && i < s->ncredentials; i++)
	{
		const ZkCredential *c = &s->credentials[i];

		added = zoo_add_auth(s->zh, c->scheme, c->secret, (int) strlen(c->secret),
							 NULL, NULL) == ZOK;
	}
	return added;
}

static bool
begin_locked(ZkSession *s)
{
	zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
	zoo_deterministic_conn_order(1);	/* resolve.c has shuffled; this would
										 * reseed the process's random() */
	s->zh = zookeeper_init2(s->addresses, on_session_event, s->wanted_timeout_ms,
							s->info.epoch > 0 ? &s->id : NULL, s,
							ZOO_NO_LOG_CLIENTENV, on_log);
	if (s->zh == NULL)
		return false;
	zoo_set_servers_resolution_delay(s->zh, -1);
	if (add_credentials(s))
		return true;

	zk_assert(zks_has_mutex(s));
	/* never without: what we make would be open, or another's */
	zookeeper_close(s->zh);
	s->zh = NULL;
	errno = ENOMEM;
	return false;
}

static void
release(ZkSession *s)
{
	if (atomic_fetch_sub(&s->owners, 1) > 1)
		return;
	zkn_free_all(s);
	zkr_free_all(s);
	zks_wakeup_close(&s->wakeup);
	pthread_mutex_destroy(&s->mutex);
	free_credentials(s);
	free(s->addresses);
	free(s->names);
	free(s->hosts);
	free(s);
}

/*
 * The client library has buffers that are the process's, not the handle's.  A
 * session that is still closing, on a server that does not answer, must have
 * ended before the next one begins; that takes no more than 4.5 s.
 */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

/* How often to look, while waiting for it, whether it is still wanted */
#define TURN_MS				100

static atomic_int nkeepers;

static bool
take_turn(ZkSession *s)
{
	struct timespec until;

	do
	{
		if (atomic_load(&s->closing))
			return pthread_mutex_trylock(&turn) == 0;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += TURN_MS * ZKS_MS;
		until.tv_sec += until.tv_nsec / INT64_C(1000000000);
		until.tv_nsec %= INT64_C(1000000000);
	} while (pthread_mutex_timedlock(&turn, &until) != 0);
	return true;
}

/*
 * Where the servers are; as before, if that cannot be found out this time.  False,
 * with the reason, if it never could.
 */
static bool
find_servers(ZkSession *s, char *error, int errlen)
{
	char	   *names;
	int			nservers;
	char	   *addresses = zks_resolve(s->hosts, &nservers, &names, error, errlen);

	if (addresses == NULL)
		return s->addresses != NULL;
	free(s->addresses);
	free(s->names);
	s->addresses = addresses;
	s->names = names;
	s->nservers = nservers;
	return true;
}

/*
 * Sends what is queued, says goodbye if there is a connection, and waits for the
 * server's answer: for seconds, if that is silent, so without the mutex.  Nobody
 * uses the handle meanwhile: it is no longer the session's.  What it still
 * calls back is not heeded (request.c, complete).
 */
static void
close_handle_locked(ZkSession *s)
{
	zhandle_t  *zh = s->zh;
	ZkWire	   *wire = s->wire;

	zk_assert(zks_has_mutex(s));
	zks_uncork_locked(s);
	s->zh = NULL;
	s->wire = NULL;
	s->sock = -1;
	logging = NULL;
	zks_unlock(s);
	zookeeper_close(zh);
	if (atomic_load(&s->closing))
		zks_wire_finish(wire);	/* the goodbye must still get out */
	else
		zks_wire_cut(wire);
	zks_lock(s);
}

/*
 * One handle of the library, from its beginning to its end.  True: the session is
 * to be taken up again by another one.
 */
static bool
attend(ZkSession *s)
{
	char		error[sizeof(s->info.trouble)];
	bool		found = find_servers(s, error, sizeof(error));
	bool		again = false;

	if (!take_turn(s))
		return false;
	zks_lock(s);
	logging = s;
	if (!found)
	{
		zks_trouble_locked(s, error);
		zks_end_locked(s, ZBADARGUMENTS);
	}
	else if (!begin_locked(s))
	{
		zks_trouble_locked(s, strerror(errno));
		zks_end_locked(s, ZSYSTEMERROR);
	}
	if (s->zh != NULL)
	{
		keep(s);
		again = needs_renewal_locked(s);
		close_handle_locked(s);
	}
	s->renew_at = zks_now() + s->info.timeout_ms * ZKS_MS;
	zkr_fail_all_locked(s, again ? ZCONNECTIONLOSS : s->info.error == 0 ? ZCLOSING : s->info.error);
	logging = NULL;
	zks_unlock(s);
	pthread_mutex_unlock(&turn);
	return again;
}

static void *
keeper_main(void *arg)
{
	ZkSession  *s = arg;

	while (attend(s))
		;
	if (s->tls != NULL)
	{
		zks_tls_free(s->tls);
		zks_tls_thread_ends();
	}
	zks_lock(s);
	s->tls = NULL;
	zkr_fail_all_locked(s, s->info.error == 0 ? ZCLOSING : s->info.error);
	zks_end_locked(s, ZCLOSING);
	zkn_over_locked(s);
	s->notify = true;
	atomic_fetch_sub(&nkeepers, 1);
	atomic_store(&s->keeper_done, true);
	zks_unlock(s);
	release(s);
	return NULL;
}

/*-------------------------------------------------------------------------
 * What the owner calls
 *-------------------------------------------------------------------------
 */

static bool
start_keeper(ZkSession *s)
{
	pthread_attr_t attr;
	sigset_t	all;
	sigset_t	saved;
	int			rc;

	if (atomic_load(&nkeepers) >= MAX_KEEPERS)
	{
		errno = EAGAIN;
		return false;
	}
	rc = pthread_attr_init(&attr);
	if (rc == 0)
	{
		pthread_attr_setstacksize(&attr, KEEPER_STACK);

		/* a thread inherits its creator's mask: signals are not for it */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &saved);
		atomic_fetch_add(&nkeepers, 1);
		rc = pthread_create(&s->keeper, &attr, keeper_main, s);
		if (rc != 0)
			atomic_fetch_sub(&nkeepers, 1);
		pthread_sigmask(SIG_SETMASK, &saved, NULL);
		pthread_attr_destroy(&attr);
	}
	errno = rc;
	return rc == 0;
}

ZkSession *
zks_open(const ZkOptions *options)
{
	ZkSession  *s = calloc(1, sizeof(ZkSession));

	if (s == NULL)
	{
		zks_tls_free(options->tls);
		return NULL;
	}
	s->tls = options->tls;
	s->sock = -1;
	s->nservers = 1;
	s->wanted_timeout_ms = options->timeout_ms;
	s->info.timeout_ms = options->timeout_ms;
	s->handlers_return = options->handlers_return;
	s->info.state = ZKS_CONNECTING;
	atomic_init(&s->closing, false);
	atomic_init(&s->keeper_done, false);
	atomic_init(&s->owners, 2);
	atomic_init(&s->gathering, false);
	pthread_mutex_init(&s->mutex, NULL);
	s->hosts = strdup(options->hosts);
	s->wakeup.bell_fd = s->wakeup.keeper_fd = s->wakeup.owner_fd = -1;

	if (s->hosts == NULL || !copy_credentials(s, options) ||
		!zks_wakeup_open(&s->wakeup) || !start_keeper(s))
	{
		int			save_errno = errno;

		zks_wakeup_close(&s->wakeup);
		pthread_mutex_destroy(&s->mutex);
		free_credentials(s);
		zks_tls_free(options->tls);
		free(s->hosts);
		free(s);
		errno = save_errno;
		return NULL;
	}
	return s;
}

void
zks_close(ZkSession *s, int bound_ms)
{
	int64_t		until = zks_now() + bound_ms * ZKS_MS;
	int64_t		now;

	/* without the mutex, which who left from within a wait may have */
	atomic_store(&s->closing, true);
	zks_wake_keeper(s);

	while (!atomic_load(&s->keeper_done) && (now = zks_now()) < until)
	{
		struct pollfd fd = {.fd = s->wakeup.owner_fd,.events = POLLIN};

		poll(&fd, 1, ms_until(until, now));
		(void) zks_wakeup_owner_woken(&s->wakeup, 0);
	}
	if (atomic_load(&s->keeper_done))
		pthread_join(s->keeper, NULL);
	else
		pthread_detach(s->keeper);	/* it frees the session when it ends */
	release(s);
}

void
zks_info(ZkSession *s, ZkSessionInfo *info)
{
	zks_enter(s);
	*info = s->info;
	zks_leave(s);
}

void
zks_expire(ZkSession *s)
{
	zks_enter(s);
	if (s->info.epoch > 0 && zks_now() > proven_until(s))
		zks_forfeit_locked(s);
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

int
zks_await(ZkSession *s, bool *answer_due)
{
	atomic_store(&s->gathering, false);
	zks_enter(s);
	if (answer_due != NULL)
		*answer_due = s->in_flight > 0;
	s->awaited = true;
	if (zks_usable_locked(s))
		zks_wakeup_lend_locked(&s->wakeup, s->sock);
	else if (zks_hurry_locked(s))
		zks_wake_keeper(s);
	zks_leave(s);
	return s->wakeup.owner_fd;
}

void
zks_awaited(ZkSession *s)
{
	ZkFrameVerdict verdict = FRAME_NONE;

	zks_enter(s);
	s->awaited = false;
	if (zks_wakeup_owner_woken(&s->wakeup, s->wakeup.generation) && zks_usable_locked(s))
		verdict = read_as_owner_locked(s);
	/* not before: what is unread would wake the keeper */
	zks_wakeup_take_back_locked(&s->wakeup, s->sock);
	s->notify = false;			/* whoever waited looks again anyway */
	zks_leave(s);
	if (verdict == FRAME_WAIT)
		wait_for_the_rest();
}

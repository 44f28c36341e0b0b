/*
 * The floor, as a subject of dev/bench: the least that a lock of this kind can
 * cost on ZooKeeper's own client library.  It creates a sequential node and
 * lists the directory, sending both at once; then it deletes the node.
 *
 *   floor-mt, floor-st, floor-corked, floor-bare HOSTS SESSION_TIMEOUT_MS
 *
 * This is the source of four programs: with THREADED it uses libzookeeper_mt,
 * whose threads do the sending and receiving, otherwise libzookeeper_st, whose
 * caller does (like zklock).  The library sends a request in two pieces, its
 * length and the rest; with CORKED the kernel sends related pieces at once,
 * which spares the server some wakeups.  With BARE it does not list the
 * directory, which leaves two writes.  There is no other contender, no search
 * for its own node after a lost connection, nothing to check and nothing to
 * clean up: it is not a lock, and does not wait for one.
 *
 * ./runner describes the commands.
 */
#ifdef CORKED
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#endif
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crew.h"

#ifdef BARE
#define LISTS false
#else
#define LISTS true
#endif

/* as long as the names of Curator and zklock */
#define NAME "_c_00000000-0000-4000-8000-000000000000-lock-"

struct Client
{
	zhandle_t  *zh;
	int			rc;				/* the first error since begin() */
	int			pending;		/* answers that are missing */
	char		node[1024];		/* the node that was created last */
	int			children;		/* in the last list */
	int			sock;			/* of libzookeeper_st; -1: none */
#ifdef THREADED
	sem_t		done;
	sem_t		connected;
#endif
};

struct Lock
{
	Client	   *client;
	char		dir[1024];
	char		prefix[1024 + sizeof NAME];
};

static void
must(int rc, const char *what)
{
	if (rc != ZOK)
		fail("%s: %s", what, zerror(rc));
}

/* ------------------------------------------------------------------- waiting */

static void
begin(Client *c, int answers)
{
	c->rc = ZOK;
	__atomic_store_n(&c->pending, answers, __ATOMIC_RELEASE);
}

/* an answer has arrived */
static void
have(Client *c, int rc)
{
	if (rc != ZOK && c->rc == ZOK)
		c->rc = rc;
	if (__atomic_sub_fetch(&c->pending, 1, __ATOMIC_ACQ_REL) == 0)
	{
#ifdef THREADED
		sem_post(&c->done);
#endif
	}
}

#ifdef THREADED

static void
await(Client *c)
{
	while (sem_wait(&c->done) != 0)
		;
}

static void
await_session(Client *c)
{
	while (sem_wait(&c->connected) != 0)
		;
}

/* the library's threads do the work */
static void
client_idle(Client *c, int fd)
{
	(void) c;
	(void) fd;
}

#else

/* Do what can be done, or wait for something to do, or for fd (-1: none). */
static bool
turn(Client *c, int other)
{
	struct pollfd fd[2] = {{.fd = -1}, {.fd = other,.events = POLLIN}};
	struct timeval tv;
	int			interest = 0,
				events;

	/* its errors are reported by later calls, or are temporary */
	(void) zookeeper_interest(c->zh, &fd[0].fd, &interest, &tv);
	c->sock = fd[0].fd;
	fd[0].events = (interest & ZOOKEEPER_READ ? POLLIN : 0) | (interest & ZOOKEEPER_WRITE ? POLLOUT : 0);
	if (poll(fd, other < 0 ? 1 : 2, tv.tv_sec * 1000 + (tv.tv_usec + 999) / 1000) < 0)
		return false;
	events = (fd[0].revents & (POLLIN | POLLHUP | POLLERR) ? ZOOKEEPER_READ : 0) |
		(fd[0].revents & POLLOUT ? ZOOKEEPER_WRITE : 0);
	(void) zookeeper_process(c->zh, events);
	return other >= 0 && fd[1].revents != 0;
}

static void
await(Client *c)
{
	while (c->pending > 0)
		turn(c, -1);
}

static void
await_session(Client *c)
{
	while (zoo_state(c->zh) != ZOO_CONNECTED_STATE && !is_unrecoverable(c->zh))
		turn(c, -1);
}

static void
client_idle(Client *c, int fd)
{
	while (!turn(c, fd))
		;
}

#endif

/* What is sent between cork(c, 1) and cork(c, 0) leaves together. */
static void
cork(Client *c, int on)
{
#ifdef CORKED
	if (c->sock >= 0)
		(void) setsockopt(c->sock, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
#else
	(void) c;
	(void) on;
#endif
}

/* ------------------------------------------------------------------- answers */

static void
on_created(int rc, const char *name, const void *data)
{
	Client	   *c = (Client *) data;

	if (rc == ZOK)
		snprintf(c->node, sizeof c->node, "%s", name);
	have(c, rc);
}

/* the directory may exist */
static void
on_directory(int rc, const char *name, const void *data)
{
	(void) name;
	have((Client *) data, rc == ZNODEEXISTS ? ZOK : rc);
}

static void
on_listed(int rc, const struct String_vector *names, const void *data)
{
	Client	   *c = (Client *) data;

	if (rc == ZOK)
		c->children = names->count;
	have(c, rc);
}

static void
on_deleted(int rc, const void *data)
{
	have((Client *) data, rc);
}

static void
on_event(zhandle_t *zh, int type, int state, const char *path, void *data)
{
	(void) zh;
	(void) path;
	(void) data;
#ifdef THREADED
	if (type == ZOO_SESSION_EVENT && state == ZOO_CONNECTED_STATE)
		sem_post(&((Client *) data)->connected);
#else
	(void) type;
	(void) state;
#endif
}

/* ---------------------------------------------------------------- the subject */

static Client *
client_open(const char *hosts, int session_timeout, bool wait)
{
	Client	   *c = allocate(sizeof *c);

	c->sock = -1;
#ifdef THREADED
	sem_init(&c->done, 0, 0);
	sem_init(&c->connected, 0, 0);
#endif
	c->zh = zookeeper_init(hosts, on_event, session_timeout, NULL, c, 0);
	if (!c->zh)
		fail("zookeeper_init failed");
	/* the library sends early requests as soon as there is a session */
	if (wait)
		await_session(c);
	return c;
}

static void
client_close(Client *c)
{
	zookeeper_close(c->zh);
	free(c);
}

static void
make_directory(void *client, const char *dir)
{
	Client	   *c = client;

	begin(c, 1);
	must(zoo_acreate(c->zh, dir, NULL, -1, &ZOO_OPEN_ACL_UNSAFE, 0, on_directory, c), dir);
	await(c);
	must(c->rc, dir);
}

static Lock *
lock_new(Client *c, const char *path, bool make)
{
	Lock	   *lock = allocate(sizeof *lock);

	lock->client = c;
	snprintf(lock->dir, sizeof lock->dir, "%s", path);
	snprintf(lock->prefix, sizeof lock->prefix, "%s/" NAME, path);
	if (make)
		split_path(path, make_directory, c);
	return lock;
}

static void
lock_forget(Lock *lock)
{
	free(lock);
}

static void
lock_acquire(Lock *lock)
{
	Client	   *c = lock->client;

	begin(c, LISTS ? 2 : 1);
	cork(c, 1);
	must(zoo_acreate(c->zh, lock->prefix, NULL, -1, &ZOO_OPEN_ACL_UNSAFE,
					 ZOO_EPHEMERAL | ZOO_SEQUENCE, on_created, c), "create");
	if (LISTS)
		must(zoo_aget_children(c->zh, lock->dir, 0, on_listed, c), "getChildren");
	cork(c, 0);
	await(c);
	must(c->rc, "acquire");
	if (LISTS && c->children != 1)
		fail("%d nodes in %s", c->children, lock->dir);
}

static void
lock_release(Lock *lock)
{
	Client	   *c = lock->client;

	begin(c, 1);
	cork(c, 1);
	must(zoo_adelete(c->zh, c->node, -1, on_deleted, c), "delete");
	cork(c, 0);
	await(c);
	must(c->rc, "release");
}

const Subject subject = {
#ifdef THREADED
	.version = "libzookeeper_mt " ZOO_VERSION,
#elif defined(BARE)
	.version = "libzookeeper_st " ZOO_VERSION ", TCP_CORK, no list",
#elif defined(CORKED)
	.version = "libzookeeper_st " ZOO_VERSION ", TCP_CORK",
#else
	.version = "libzookeeper_st " ZOO_VERSION,
#endif
	.open = client_open,
	.close = client_close,
	.idle = client_idle,
	.lock = lock_new,
	.forget = lock_forget,
	.acquire = lock_acquire,
	.release = lock_release,
};

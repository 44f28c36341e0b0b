/*
 * The lock for C among the recipes in ZooKeeper's source, as a subject of
 * dev/bench.  No package has it: ./fetch.sh gets its source, zoo_lock.c.
 *
 *   recipe HOSTS SESSION_TIMEOUT_MS
 *
 * Notes on it (3.8):
 *
 * - zkr_lock_lock does not wait.  It enters the queue, and a callback is called
 *   when it is our turn, perhaps before it returns.
 * - It checks that the directory exists, lists it (does this session have a
 *   node already?), creates its node, and lists again.
 * - If the predecessor vanishes between the list and the watch, it takes that
 *   for an error, deletes its node, and starts again at the end of the queue.
 *   After the fourth time it gives up, and only reports that it has released.
 *   The code here then does what a user would have to do: ask again.
 * - There is no try; zkr_lock_lock followed by zkr_lock_isowner and
 *   zkr_lock_unlock can serve as one.
 *
 * ./runner describes the commands.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zoo_lock.h>

#include "crew.h"

struct Client
{
	zhandle_t  *zh;
	sem_t		connected;
};

struct Lock
{
	Client	   *client;
	zkr_lock_mutex_t mutex;
	char	   *path;
	sem_t		told;			/* it is our turn, or it has left the queue */
	bool		ours;
};

static void
on_event(zhandle_t *zh, int type, int state, const char *path, void *data)
{
	(void) zh;
	(void) path;
	if (type == ZOO_SESSION_EVENT && state == ZOO_CONNECTED_STATE)
		sem_post(&((Client *) data)->connected);
}

static Client *
client_open(const char *hosts, int session_timeout, bool wait)
{
	Client	   *c = allocate(sizeof *c);

	sem_init(&c->connected, 0, 0);
	c->zh = zookeeper_init(hosts, on_event, session_timeout, NULL, c, 0);
	if (!c->zh)
		fail("zookeeper_init failed");
	/* always wait: the prefix of its nodes is the session id */
	(void) wait;
	while (sem_wait(&c->connected) != 0)
		;
	return c;
}

static void
client_close(Client *c)
{
	zookeeper_close(c->zh);
	sem_destroy(&c->connected);
	free(c);
}

/* the library's threads keep it alive */
static void
client_idle(Client *c, int fd)
{
	(void) c;
	(void) fd;
}

/* Called with the recipe's mutex locked, by its own thread or by ours */
static void
on_told(int rc, void *data)
{
	Lock	   *lock = data;

	if (rc == 0)
		__atomic_store_n(&lock->ours, true, __ATOMIC_RELEASE);
	sem_post(&lock->told);
}

static void
make_directory(void *client, const char *dir)
{
	int			rc = zoo_create(((Client *) client)->zh, dir, NULL, -1, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);

	if (rc != ZOK && rc != ZNODEEXISTS)
		fail("%s: %s", dir, zerror(rc));
}

static Lock *
lock_new(Client *c, const char *path, bool make)
{
	Lock	   *lock = allocate(sizeof *lock);

	lock->client = c;
	lock->path = strdup(path);
	sem_init(&lock->told, 0, 0);
	if (zkr_lock_init_cb(&lock->mutex, c->zh, lock->path, &ZOO_OPEN_ACL_UNSAFE, on_told, lock) != 0)
		fail("zkr_lock_init_cb failed");
	if (make)
		split_path(path, make_directory, c);
	return lock;
}

/* may be called after its client was closed */
static void
lock_forget(Lock *lock)
{
	zkr_lock_destroy(&lock->mutex);
	sem_destroy(&lock->told);
	free(lock->path);
	free(lock);
}

static void
enter_queue(Lock *lock)
{
	int			rc = zkr_lock_lock(&lock->mutex);

	if (rc != 0)
		fail("zkr_lock_lock: %s", zerror(rc));
}

static bool
in_queue(Lock *lock)
{
	bool		yes;

	/* held while another thread works on the lock */
	pthread_mutex_lock(&lock->mutex.pmutex);
	yes = lock->mutex.id != NULL;
	pthread_mutex_unlock(&lock->mutex.pmutex);
	return yes;
}

static void
lock_acquire(Lock *lock)
{
	while (sem_trywait(&lock->told) == 0)
		;						/* discard signals from the last release */
	__atomic_store_n(&lock->ours, false, __ATOMIC_RELEASE);
	enter_queue(lock);
	while (!__atomic_load_n(&lock->ours, __ATOMIC_ACQUIRE))
	{
		while (sem_wait(&lock->told) != 0)
			;
		if (!__atomic_load_n(&lock->ours, __ATOMIC_ACQUIRE) && !in_queue(lock))
			enter_queue(lock);
	}
}

static void
lock_release(Lock *lock)
{
	int			rc = zkr_lock_unlock(&lock->mutex);

	if (rc != 0)
		fail("zkr_lock_unlock: %s", zerror(rc));
}

static bool
lock_try(Lock *lock)
{
	enter_queue(lock);
	if (zkr_lock_isowner(&lock->mutex))
		return true;
	lock_release(lock);
	return false;
}

const Subject subject = {
	.version = "zoo_lock.c of ZooKeeper " ZOO_VERSION,
	.open = client_open,
	.close = client_close,
	.idle = client_idle,
	.lock = lock_new,
	.forget = lock_forget,
	.acquire = lock_acquire,
	.release = lock_release,
	.try = lock_try,
	.is_lock = true,
};

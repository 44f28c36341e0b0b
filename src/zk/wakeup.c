/*-------------------------------------------------------------------------
 *
 * wakeup.c
 *	  Who is woken when the server sends something: the keeper, or the owner.
 *
 * Usually the keeper.  But an owner that waits for an answer need not be woken
 * by another thread: while it waits, the socket is lent to it, and the keeper
 * sleeps on.  With the mutex either may read at any time; only the wake-up is
 * lent.  If the connection breaks, both are woken.
 *
 * Each of the two waits on an epoll descriptor, which contains the socket and
 * a bell.  There is one bell for both, an eventfd that is always readable:
 * ringing means to have it reported once.
 *
 * The socket is reported only once, too.  If a child that was forked without
 * our knowledge (in PL/Python, say) has it as well, the kernel keeps it in the
 * two sets after we have closed it, and it can never be removed.  It is
 * reported once more, at most, and its generation distinguishes it from the
 * next one, which may have the same number.
 *
 *-------------------------------------------------------------------------
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "wakeup.h"

#define BELL	0				/* its generation, as it is no socket */

/* To be reported once */
static bool
set(int epoll_fd, int op, int fd, uint32_t generation, uint32_t events)
{
	struct epoll_event event = {
		.events = events | EPOLLONESHOT,.data = {.u32 = generation}
	};

	return epoll_ctl(epoll_fd, op, fd, &event) == 0;
}

/* Fails with errno; what is open then, zks_wakeup_close closes */
bool
zks_wakeup_open(ZkWakeup *e)
{
	e->bell_fd = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
	e->keeper_fd = epoll_create1(EPOLL_CLOEXEC);
	e->owner_fd = epoll_create1(EPOLL_CLOEXEC);
	return e->bell_fd >= 0 && e->keeper_fd >= 0 && e->owner_fd >= 0 &&
		set(e->keeper_fd, EPOLL_CTL_ADD, e->bell_fd, BELL, 0) &&
		set(e->owner_fd, EPOLL_CTL_ADD, e->bell_fd, BELL, 0);
}

void
zks_wakeup_close(ZkWakeup *e)
{
	if (e->bell_fd >= 0)
		close(e->bell_fd);
	if (e->keeper_fd >= 0)
		close(e->keeper_fd);
	if (e->owner_fd >= 0)
		close(e->owner_fd);
	e->bell_fd = e->keeper_fd = e->owner_fd = -1;
}

void
zks_wakeup_wake_keeper(ZkWakeup *e)
{
	(void) set(e->keeper_fd, EPOLL_CTL_MOD, e->bell_fd, BELL, EPOLLIN);
}

void
zks_wakeup_tell_owner(ZkWakeup *e)
{
	(void) set(e->owner_fd, EPOLL_CTL_MOD, e->bell_fd, BELL, EPOLLIN);
}

/*
 * Adds a new socket; a closed one leaves by itself, or is ignored.  Fails,
 * with errno, if the kernel has no room for it.
 */
bool
zks_wakeup_adopt_locked(ZkWakeup *e, int sock)
{
	e->wanted = e->watched = 0;
	e->lent = false;
	if (++e->generation == BELL)
		e->generation++;
	return set(e->keeper_fd, EPOLL_CTL_ADD, sock, e->generation, 0) &&
		set(e->owner_fd, EPOLL_CTL_ADD, sock, e->generation, 0);
}

/* The events of the socket for which the keeper is to be woken */
static void
watch_locked(ZkWakeup *e, int sock)
{
	uint32_t	events = e->lent ? e->wanted & EPOLLOUT : e->wanted;

	if (events == e->watched)
		return;
	e->watched = events;

	/* if it fails, the library has closed it; the keeper will find that out */
	(void) set(e->keeper_fd, EPOLL_CTL_MOD, sock, e->generation, events);
}

void
zks_wakeup_want_locked(ZkWakeup *e, int sock, uint32_t events)
{
	e->wanted = events;
	e->watched = 0;				/* after a report it is no longer watched */
	watch_locked(e, sock);
}

/*
 * The keeper's first: in the other order an answer in between would wake both
 */
void
zks_wakeup_lend_locked(ZkWakeup *e, int sock)
{
	e->lent = true;
	watch_locked(e, sock);
	(void) set(e->owner_fd, EPOLL_CTL_MOD, sock, e->generation, EPOLLIN | EPOLLRDHUP);
}

void
zks_wakeup_take_back_locked(ZkWakeup *e, int sock)
{
	e->lent = false;
	watch_locked(e, sock);
}

/* Of the socket of this generation */
static uint32_t
socket_events(const struct epoll_event *events, int n, uint32_t generation)
{
	uint32_t	happened = 0;

	for (int i = 0; i < n; i++)
	{
		if (events[i].data.u32 == generation)
			happened |= events[i].events;
	}
	return happened;
}

/* The keeper sleeps.  Returns the events of the socket of this generation. */
uint32_t
zks_wakeup_wait(ZkWakeup *e, uint32_t generation, int ms)
{
	struct epoll_event events[ZKS_EVENTS];
	int			n = epoll_wait(e->keeper_fd, events, ZKS_EVENTS, ms);

	return socket_events(events, n, generation);
}

/*
 * The owner sleeps.  Returns whether something woke it; zks_wakeup_owner_woken tells
 * what.
 */
bool
zks_wakeup_owner_wait(ZkWakeup *e, int ms)
{
	e->ntold = epoll_wait(e->owner_fd, e->told, ZKS_EVENTS, ms);
	return e->ntold > 0;
}

/*
 * Clears what woke the owner, here or in a poll() of its descriptor; true if it was
 * the socket of this generation
 */
bool
zks_wakeup_owner_woken(ZkWakeup *e, uint32_t generation)
{
	int			n = e->ntold > 0 ? e->ntold : epoll_wait(e->owner_fd, e->told, ZKS_EVENTS, 0);

	e->ntold = 0;
	return socket_events(e->told, n, generation) != 0;
}

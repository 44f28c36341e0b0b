/*-------------------------------------------------------------------------
 *
 * wakeup.h
 *	  Who is woken by what.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WAKEUP_H
#define ZKLOCK_WAKEUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#define ZKS_EVENTS	4			/* at once: a bell, a socket, closed ones */

typedef struct ZkWakeup
{
	int			bell_fd;
	int			keeper_fd;
	int			owner_fd;

	/* the owner's: what woke it */
	struct epoll_event told[ZKS_EVENTS];
	int			ntold;

	/* under the mutex: of the socket */
	uint32_t	generation;		/* which one; 0: none yet */
	uint32_t	wanted;			/* by the keeper */
	uint32_t	watched;		/* what it would be woken for */
	bool		lent;
} ZkWakeup;

/* Without the mutex, except those that end in _locked */
extern bool zks_wakeup_open(ZkWakeup *e);
extern void zks_wakeup_close(ZkWakeup *e);
extern void zks_wakeup_wake_keeper(ZkWakeup *e);
extern void zks_wakeup_tell_owner(ZkWakeup *e);
extern bool zks_wakeup_adopt_locked(ZkWakeup *e, int sock);
extern void zks_wakeup_want_locked(ZkWakeup *e, int sock, uint32_t events);
extern void zks_wakeup_lend_locked(ZkWakeup *e, int sock);
extern void zks_wakeup_take_back_locked(ZkWakeup *e, int sock);
extern uint32_t zks_wakeup_wait(ZkWakeup *e, uint32_t generation, int ms);
extern bool zks_wakeup_owner_wait(ZkWakeup *e, int ms);
extern bool zks_wakeup_owner_woken(ZkWakeup *e, uint32_t generation);

#endif							/* ZKLOCK_WAKEUP_H */

/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Whether a wait in a queue is part of a cycle, and breaking that.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_DEADLOCK_H
#define ZKLOCK_DEADLOCK_H

#include "lock/look/wait_log.h"

/* The wait of one contender */
typedef struct ZkSearch ZkSearch;

typedef struct ZkSearchFor
{
	ZkPatience	patience;		/* of its reads, which do not raise; goes on
								 * while the wait lasts */
	ZkNode	   *node;			/* the contender; NULL: of a single node,
								 * whose cycles are not looked for */
	const char *dir;			/* where it waits */
	int			root_len;		/* of the root in that */
	const ZkpWant *want;
	ZkWaitLog  *log;
	bool		holds;			/* this session holds something, so that
								 * others may wait for it */
} ZkSearchFor;

/* The wait begins; what for points to must last as long */
extern ZkSearch *zkl_begin_search(const ZkSearchFor *for_what);

/* When zkl_search is to be called next: after deadlock_timeout, then again and again */
extern int64 zkl_search_due(const ZkSearch *search);

/*
 * Look once, and log that we still wait.  If we are certain to be in a cycle, our contender is deleted,
 * and this raises 40P01.  Otherwise look at the queue again: time has passed.
 */
extern void zkl_search(ZkSearch *search);

/*
 * The wait is over, if there was one, and what was published about it goes; call this
 * before the contender is given up.  Does not fail.
 */
extern void zkl_end_search(ZkSearch **search);

#endif							/* ZKLOCK_DEADLOCK_H */

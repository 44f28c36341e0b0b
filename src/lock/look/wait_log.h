/*-------------------------------------------------------------------------
 *
 * wait_log.h
 *	  What log_lock_waits has to say of a wait in a queue.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WAIT_LOG_H
#define ZKLOCK_WAIT_LOG_H

#include "reader.h"
#include "zk/lock_protocol.h"

typedef struct ZkWaitLog
{
	int64		began_at;		/* the wait; 0: none has begun */
	char	   *what;			/* is waited for, once that was logged */
} ZkWaitLog;

/*
 * What a waiter waits for, as PostgreSQL would say it: 'ExclusiveLock on lock
 * path "/a"'; the path is in UTF-8, whoever wrote it.  palloc'ed.
 */
extern char *zkl_describe_wait(ZkpMode mode, const char *path);

/*
 * If log_lock_waits is on, and it was not logged yet, log that we still wait,
 * and for whom: this reads the queue.  dir: of the lock, with a root of so many
 * bytes.  The reader is to be ended by the caller, in case of an error, too.
 */
extern void zkl_log_still_waiting(ZkWaitLog *log, ZkReader *reader, const char *dir, int root_len, ZkpMode mode);

/* If that was logged, log how the wait ended */
extern void zkl_log_end_of_wait(ZkWaitLog *log, bool acquired);

#endif							/* ZKLOCK_WAIT_LOG_H */

/*-------------------------------------------------------------------------
 *
 * client.h
 *	  This backend's ZooKeeper session: one at a time, opened when needed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_CLIENT_H
#define ZKLOCK_CLIENT_H

#include "wait.h"

typedef struct ZkClientCounters
{
	int64		waits;			/* calls that found the lock taken and waited */
	int64		timeouts;		/* of those, given up */
	int64		losses;			/* sessions that ended without our doing */
	int64		requests;		/* of sessions before this one */
	int64		reconnections;
} ZkClientCounters;

extern ZkClientCounters zkc_counters;

/*
 * The session if there is one that is not over, else NULL.  Notices the end
 * of the one there was.
 */
extern ZkSession *zkc_session(void);

/*
 * Counts the sessions: what was made in an earlier one is gone.  Only valid
 * after zkc_session or zkc_connect.
 */
extern uint32 zkc_generation(void);

/* The root in force: that of the session, else that of the settings */
extern const char *zkc_root(void);

/*
 * With nothing held, other settings than the session was opened with take
 * effect: end it, so that the next call opens another.
 */
extern void zkc_follow_settings(void);

/*
 * A session that is connected and whose life is proven recently, opened if
 * need be.  Waits no longer than connect_timeout for a new one and
 * operation_timeout for one that is cut off.  Raises 55000, 53xxx, 58000,
 * 58030.
 */
extern ZkSession *zkc_connect(ZkWait *wait);

/*
 * Was the session's life proven so recently that what ZooKeeper last said of
 * its nodes can be believed?
 */
extern bool zkc_is_fresh(const ZkSessionInfo *info);

/*
 * Make sure of that through the leader and a quorum, unless that was done
 * within a third of the session timeout.  For the session of zkc_connect;
 * false: it was cut off meanwhile.  Raises 58030 when there is no answer.
 */
extern bool zkc_prove(ZkWait *wait);

/* Has nothing proven its life for a whole session timeout?  Doubt counts. */
extern bool zkc_may_have_expired(const ZkSessionInfo *info);

/* What a ZooKeeper code means, for DETAIL */
extern const char *zkc_explain(int rc);

/* The one place where a ZooKeeper code becomes an error; path: of the lock */
extern void zkc_raise(int rc, const char *path) pg_attribute_noreturn();
extern void zkc_raise_cut_off(const ZkSessionInfo *info) pg_attribute_noreturn();
extern void zkc_raise_no_answer(ZkWait *wait) pg_attribute_noreturn();

#endif							/* ZKLOCK_CLIENT_H */

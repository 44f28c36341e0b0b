/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  Until when our session, and its nodes, are proven.
 *
 * ZooKeeper ends a session that it has not heard for the session timeout, T.  What we
 * know of that are four times.  An answer counts from its question, so that one that
 * has lain unread proves nothing.
 *
 * answered_at: when the last question that was answered was asked.  Heartbeats keep
 * this younger than about T/4.  After 2T/3 what ZooKeeper said last is not believed
 * any more; after T without a connection all is lost.
 *
 * quorum_at: the same of those that only a quorum can answer, since a leader that has
 * lost its followers answers the others.  It proves each node that the question was
 * about, or whose watch would have told of its end; a node's own create or check may
 * prove it, too.  A proof is good for T/3, and COMMIT is to be over within 2T/3 of it.
 * One that is older is asked for again, and its node is not lost.
 *
 * gap_at: when an answer last came after a silence of more than 2T/3.  The session
 * may have been over by then, so what was asked before proves nothing: until a quorum
 * has been asked again, the session is in doubt, and nothing is granted.
 *
 * told_by: when the leader must have been told that the session is active again.  An
 * answer does not prolong it; the follower's next report to the leader does, which
 * comes within half a tickTime, or T/4.  So COMMIT relies on nothing that was asked
 * less than T/3 after the gap.  A handshake is answered by the leader, and renews the
 * session: what is asked behind it will do.
 *
 * models/guard.pml verifies this, and t/c/lease_test.c tries it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_LEASE_H
#define ZKLOCK_LEASE_H

#include "session.h"

/* After this much silence the session may be over, and what it had is lost */
static inline int64_t
zks_timeout(const ZkSessionInfo *info)
{
	return info->timeout_ms * ZKS_MS;
}

/* After this much an answer is too old to rely on: ZooKeeper may be about to act */
static inline int64_t
zks_stale_after(const ZkSessionInfo *info)
{
	return zks_timeout(info) / 3 * 2;
}

/*
 * A silence of the quorum that is no longer than this counts from the last question:
 * one more, and its answer, fit into what is left
 */
static inline int64_t
zks_missed_after(const ZkSessionInfo *info)
{
	return zks_timeout(info) / 2;
}

/*
 * After this much a proof is asked for again before something is to rely on it, the
 * leader has been told, and an outage is worth telling
 */
static inline int64_t
zks_late_after(const ZkSessionInfo *info)
{
	return zks_timeout(info) / 3;
}

/* Heartbeats come this often */
static inline int64_t
zks_beat_after(const ZkSessionInfo *info)
{
	return zks_timeout(info) / 4;
}

/* When it is over, and what it had is lost, if nothing else is heard */
static inline int64_t
zks_lease_ends(const ZkSessionInfo *info)
{
	return info->answered_at + zks_timeout(info);
}

/* Only a quorum can tell whether the session lives */
static inline bool
zks_in_doubt(const ZkSessionInfo *info)
{
	return info->quorum_at < info->gap_at;
}

/* Whether what ZooKeeper last said about our nodes can be believed */
static inline bool
zks_is_fresh(const ZkSessionInfo *info)
{
	return info->state == ZKS_CONNECTED && !zks_in_doubt(info) &&
		zks_now() - info->answered_at < zks_stale_after(info);
}

/* What relies on a node */
typedef enum ZkUse
{
	ZKS_GRANT,					/* what relies on it comes later */
	ZKS_COMMIT					/* cannot be undone */
} ZkUse;

/* When a quorum must have been asked about a node, at the earliest */
static inline int64_t
zks_proof_since(const ZkSessionInfo *info, ZkUse use)
{
	int64_t		since = zks_now() - zks_late_after(info) + 1;
	int64_t		least = use == ZKS_COMMIT ? info->told_by : info->gap_at + 1;

	if (use == ZKS_COMMIT ? info->state == ZKS_OVER : info->state != ZKS_CONNECTED)
		return ZKS_NEVER;
	return since > least ? since : least;
}

/* An answer has come to what was asked at this time.  True: after a gap */
static inline bool
zks_lease_answered(ZkSessionInfo *info, int64_t asked_at)
{
	int64_t		now = zks_now();
	bool		gap = now - info->answered_at > zks_stale_after(info);

	if (gap)
	{
		info->gap_at = now;
		info->told_by = now + zks_late_after(info);
	}
	info->answered_at = asked_at;
	return gap;
}

/* The answer was a handshake's */
static inline void
zks_lease_renewed(ZkSessionInfo *info)
{
	int64_t		now = zks_now();

	if (info->told_by > now)
		info->told_by = now;
}

#endif							/* ZKLOCK_LEASE_H */

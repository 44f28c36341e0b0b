/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  For how long an answer proves that a session lives.
 *
 * ZooKeeper ends a session that it has not heard for the session timeout.  These are
 * all parts of that by which we judge, in ns.  Whoever asks about an age says since
 * when: of the last answer (proven_at), of the last that only a quorum could give
 * (quorum_at), or of a node's own proof.
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

/* After this much somebody may be waiting for a sign of life */
static inline int64_t
zks_missed_after(const ZkSessionInfo *info)
{
	return zks_timeout(info) / 2;
}

/*
 * After this much an answer comes late; a proof is asked for again before something
 * is to rely on it; and an outage is worth telling
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

#endif							/* ZKLOCK_LEASE_H */

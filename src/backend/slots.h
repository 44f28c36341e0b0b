/*-------------------------------------------------------------------------
 *
 * slots.h
 *	  What each backend of this server tells the others of its locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SLOTS_H
#define ZKLOCK_SLOTS_H

#include "datatype/timestamp.h"

#include "zk/lease.h"
#include "zk/lock_protocol.h"

/* What this backend has counted; its slot has a copy, as of the last change */
typedef struct ZkBackendCounters
{
	int64		waits;			/* calls that found the lock taken and waited */
	int64		timeouts;		/* of those, calls that timed out */
	int64		deadlock_checks;	/* how often a wait was looked at */
	int64		deadlocks;		/* calls that failed since they were part of a
								 * cycle */
	int64		losses;			/* sessions that lost what they had */
	int64		requests;		/* of sessions before this one */
	int64		reconnections;
} ZkBackendCounters;

extern ZkBackendCounters zkb_counters;

/* How many bytes of a path or root are kept; one that is cut ends with "..." */
#ifndef ZKB_SLOT_TEXT			/* t/089 builds a library with another layout */
#define ZKB_SLOT_TEXT	256
#endif

/* One lock that the backend holds, or waits for */
typedef struct ZkSlotLock
{
	char		mode;			/* ZkpMode */
	bool		lost;			/* as its owner knows; but see zkb_slot_lost */
	int64		counts[2];		/* by scope; of a wait, 1 for its own */
	int64		token;
	TimestampTz acquired_at;
	int64		since;			/* zks_now() when the wait began; or 0 */
	char		path[ZKB_SLOT_TEXT + 1];
	char		root[ZKB_SLOT_TEXT + 1];
} ZkSlotLock;

typedef struct ZkSlot
{
	uint32		changes;		/* odd while its owner writes */
	int			pid;			/* 0: nobody's */
	Oid			database;
	Oid			role;			/* as in pg_stat_activity */
	ZkShown		session;
	ZkBackendCounters counters;
	int			nholds;
	int			more;			/* locks that have no room here */
	ZkSlotLock	holds[ZKS_SHOWN_NODES]; /* the oldest first */
	ZkSlotLock	wait;			/* with since 0: for nothing */
} ZkSlot;

/* In _PG_init: before PostgreSQL 17 the memory has to be reserved */
extern void zkb_reserve_slots(void);

/*
 * The session of this backend begins, or is about to be closed.  The first gives it a
 * slot, if it can have one, which is tried once.  Never fails, but is only for places
 * where an error would be allowed.
 */
extern void zkb_show_session(ZkSession *session);
extern void zkb_slot_session_ends(void);

/*
 * To be called around all changes of our own slot; NULL if there is none.
 * Nothing in between may fail, or take long.
 */
extern ZkSlot *zkb_begin_slot(void);
extern void zkb_end_slot(ZkSlot *slot);

/* Write which lock it is; full is what zkl_full_path returned */
extern void zkb_slot_lock(ZkSlotLock *lock, ZkpMode mode, const char *full, int root_len);

/* This backend waits in that queue since then, or no longer */
extern void zkb_slot_waits(ZkpMode mode, int scope, const char *full, int root_len, int64 since);
extern void zkb_slot_waits_no_more(void);

/*
 * Call back with a copy of each slot of a live backend.  Raises 0A000 if this server
 * has no slots.
 */
extern void zkb_each_slot(void (*callback) (const ZkSlot *slot, void *arg), void *arg);

/* What the copy says of the session; false: there is none */
extern bool zkb_slot_session(const ZkSlot *slot, ZkSessionInfo *info);

/* Whether its i-th hold is lost: by now it counts as that for its owner, too */
extern bool zkb_slot_lost(const ZkSlot *slot, int i, const ZkSessionInfo *info);

#endif							/* ZKLOCK_SLOTS_H */

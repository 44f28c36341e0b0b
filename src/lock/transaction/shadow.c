/*-------------------------------------------------------------------------
 *
 * shadow.c
 *	  PostgreSQL's own advisory lock, held beside one in ZooKeeper, so that
 *	  pg_locks shows it.
 *
 * It grants nothing: it is taken without waiting when the lock in ZooKeeper is
 * held, and where it cannot be had, that one counts.  It is released before
 * ZooKeeper is told, or the next holder on this server would not get it.
 *
 * It is always the session's, whatever the scope of the lock: PostgreSQL would
 * release a transaction's after the callbacks of COMMIT, by which ZooKeeper is
 * told, and would let us release it only under the resource owner that took it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"

#include "backend/compat.h"
#include "shadow.h"

static dlist_head missing = DLIST_STATIC_INIT(missing);

/* Where it is not to raise, a full lock table is one more reason for not getting it */
static bool
obtain(ZkShadow *shadow, bool raise)
{
	if (lock_without_waiting_compat(&shadow->tag, shadow->mode, raise) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	shadow->state = ZKL_SHADOW_TAKEN;
	return true;
}

static void
obtain_missing(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &missing)
	{
		ZkShadow   *shadow = dlist_container(ZkShadow, in_missing, iter.cur);

		if (obtain(shadow, false))
			dlist_delete(&shadow->in_missing);
	}
}

/* The lock in ZooKeeper has been taken: a cancel must not end the call here */
static void
tell_missing(const ZkShadow *shadow)
{
	StringInfoData text;

	HOLD_INTERRUPTS();
	initStringInfo(&text);
	DescribeLockTag(&text, &shadow->tag);
	ereport(LOG,
			(errmsg("could not take PostgreSQL's own %s on %s",
					GetLockmodeName(shadow->tag.locktag_lockmethodid, shadow->mode), text.data),
			 errdetail("This session holds the lock in ZooKeeper, but pg_locks does not show it, because another session of this server holds PostgreSQL's lock or waits for it."),
			 errhint("Look for that session in pg_locks. It might not use zklock_advisory, might have lost its lock in ZooKeeper, or might have another zklock.root or zklock.advisory_space.")));
	pfree(text.data);
	RESUME_INTERRUPTS();
}

void
zkl_take_shadow(ZkShadow *shadow, const LOCKTAG *tag, LOCKMODE mode)
{
	bool		is_new = shadow->state == ZKL_NO_SHADOW;

	obtain_missing();
	if (is_new)
	{
		shadow->tag = *tag;
		shadow->mode = mode;
	}
	else if (shadow->state == ZKL_SHADOW_MISSING || lock_held_by_me_compat(tag, mode))
		return;
	if (obtain(shadow, is_new))
		return;
	shadow->state = ZKL_SHADOW_MISSING;
	dlist_push_tail(&missing, &shadow->in_missing);
	tell_missing(shadow);
}

/*
 * Without a look, LockRelease would warn of what DISCARD ALL, or PostgreSQL's
 * own functions, have released already.  It still warns where the transaction
 * has the same lock by these, and a warning lets a cancel in: not here, where the
 * hold is gone and its node is not.
 */
void
zkl_drop_shadow(ZkShadow *shadow)
{
	HOLD_INTERRUPTS();
	if (shadow->state == ZKL_SHADOW_MISSING)
		dlist_delete(&shadow->in_missing);
	else if (shadow->state == ZKL_SHADOW_TAKEN && lock_held_by_me_compat(&shadow->tag, shadow->mode))
		(void) LockRelease(&shadow->tag, shadow->mode, true);
	shadow->state = ZKL_NO_SHADOW;
	RESUME_INTERRUPTS();
}

/*-------------------------------------------------------------------------
 *
 * local_waits.h
 *	  Who on this server waits for PostgreSQL's own locks of this backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_LOCAL_WAITS_H
#define ZKLOCK_LOCAL_WAITS_H

#include "datatype/timestamp.h"
#include "storage/lock.h"

#include "backend/node_identity.h"

typedef struct ZkLocalWait
{
	int			pid;			/* of who waits; a parallel worker's is its
								 * leader's */
	char		tag[ZKP_TAG_LEN];	/* zkb_tag of that backend */
	TimestampTz since;			/* when this wait began: it is the same wait
								 * as long as this is the same */
	int			blocker;		/* whom it waits for on a shortest way to us:
								 * an index in the array, always a lower one;
								 * -1: for us */
	char	   *what;			/* "ShareLock on transaction 742", in the
								 * server's encoding */

	/* on this server: of what the rest was told once nothing was locked */
	struct PGPROC *leader;
	LOCKTAG		lock;
	LOCKMODE	mode;
} ZkLocalWait;

/*
 * Whether anybody may wait for a lock that we have, or one of our parallel
 * workers.  It is cheap, and exaggerates: who waits there may do so only for
 * others.
 */
extern bool zkl_blocks_somebody(void);

/*
 * Who waits for us, directly or through others, all at one instant, nearest
 * first, but no more than this; a backend with parallel workers is one.
 * Returns how many; array and texts are palloc'ed, and best freed with their
 * context.
 */
extern int	zkl_local_waits(ZkLocalWait **waits, int most);

#endif							/* ZKLOCK_LOCAL_WAITS_H */

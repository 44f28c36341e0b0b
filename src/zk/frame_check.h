/*-------------------------------------------------------------------------
 *
 * frame_check.h
 *	  A look at what a server sent, before the library trusts it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_FRAME_CHECK_H
#define ZKLOCK_FRAME_CHECK_H

#include "session.h"

/* What is known about the frame that the client library is to read next. */
typedef struct ZkFrame
{
	uint64_t	long_at;		/* a long one is being read, as long as there
								 * were this many replies */
	bool		followed;		/* more data was there after it */
	bool		unsound;		/* what was read cannot come from ZooKeeper */
} ZkFrame;

typedef enum ZkFrameVerdict
{
	FRAME_READ,					/* let the library read */
	FRAME_NONE,					/* nothing has arrived */
	FRAME_WAIT,					/* more must arrive first */
	FRAME_REJECT,				/* this is not ZooKeeper */
	FRAME_TOO_LARGE				/* it is, but we do not want to read it */
} ZkFrameVerdict;

extern ZkFrameVerdict zks_check_frame_locked(ZkSession *s);

#endif							/* ZKLOCK_FRAME_CHECK_H */

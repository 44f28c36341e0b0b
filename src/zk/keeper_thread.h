/*-------------------------------------------------------------------------
 *
 * keeper_thread.h
 *	  The thread that keeps a session.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_KEEPER_THREAD_H
#define ZKLOCK_KEEPER_THREAD_H

#include "session.h"

extern bool zks_start_keeper(ZkSession *s);
extern void zks_disown(ZkSession *s);

#endif							/* ZKLOCK_KEEPER_THREAD_H */

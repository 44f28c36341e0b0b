/*-------------------------------------------------------------------------
 *
 * stop_signal_private.h
 *	  The owner is asked to stop.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_STOP_SIGNAL_PRIVATE_H
#define ZKLOCK_STOP_SIGNAL_PRIVATE_H

#include "stop_signal.h"

extern int64_t zks_stop_locked(ZkSession *s, int64_t now);
extern bool zks_stop_heeds_doubt(void);

/* From here on its thread does not ask: what the session had is lost */
extern void zks_stop_closes(ZkSession *s);

#endif							/* ZKLOCK_STOP_SIGNAL_PRIVATE_H */

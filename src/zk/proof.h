/*-------------------------------------------------------------------------
 *
 * proof.h
 *	  Whether our nodes are still there, and what relies on that.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_PROOF_H
#define ZKLOCK_PROOF_H

#include "stop_signal.h"

extern bool zkn_expects_turn_locked(ZkSession *s);
extern void zkn_beat_locked(ZkSession *s, bool quorum);
extern void zkn_heartbeat_locked(ZkSession *s);
extern void zkn_show_locked(ZkSession *s);
extern ZkReliance zkn_reliance_locked(ZkSession *s, bool doubt_counts, bool only_by_session,
									  ZkStopReason *why);

#endif							/* ZKLOCK_PROOF_H */

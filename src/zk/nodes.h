/*-------------------------------------------------------------------------
 *
 * nodes.h
 *	  All nodes of a session: what becomes of them (node.c), whether they are still
 *	  there, and what relies on that (proof.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_NODES_H
#define ZKLOCK_NODES_H

#include "stop_signal.h"

/* node.c */
extern void zkn_catch_up_locked(ZkSession *s);
extern void zkn_forfeit_locked(ZkSession *s);
extern void zkn_over_locked(ZkSession *s);
extern bool zkn_only_refused_locked(ZkSession *s);
extern bool zkn_any_locked(ZkSession *s);
extern void zkn_free_all(ZkSession *s);
extern void zkn_give_marks_locked(ZkSession *s, ZkMarks *list);

/* proof.c */
extern bool zkn_expects_turn_locked(ZkSession *s);
extern void zkn_beat_locked(ZkSession *s, bool quorum);
extern void zkn_heartbeat_locked(ZkSession *s);
extern void zkn_show_locked(ZkSession *s);
extern ZkReliance zkn_reliance_locked(ZkSession *s, bool doubt_counts, bool only_by_session,
									  ZkStopReason *why);

#endif							/* ZKLOCK_NODES_H */

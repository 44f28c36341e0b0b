/*-------------------------------------------------------------------------
 *
 * nodes.h
 *	  What becomes of all nodes of a session (node.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_NODES_H
#define ZKLOCK_NODES_H

#include "session.h"

extern void zkn_catch_up_locked(ZkSession *s);
extern void zkn_forfeit_locked(ZkSession *s);
extern void zkn_over_locked(ZkSession *s);
extern bool zkn_only_refused_locked(ZkSession *s);
extern bool zkn_any_locked(ZkSession *s);
extern void zkn_free_all(ZkSession *s);
extern void zkn_give_marks_locked(ZkSession *s, ZkMarks *list);

#endif							/* ZKLOCK_NODES_H */

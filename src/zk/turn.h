/*-------------------------------------------------------------------------
 *
 * turn.h
 *	  Our last turn in each queue.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_TURN_H
#define ZKLOCK_TURN_H

#include "session.h"

/*
 * An exclusive node is granted, and alone in its queue; it was deleted
 * by us, or somehow else; its holder has become a reader.
 */
extern void zkn_turn_granted_locked(ZkSession *s, const char *dir, const char *name, int64_t czxid);
extern void zkn_turn_ended_locked(ZkSession *s, const char *dir, int64_t czxid, bool deleted);
extern void zkn_turn_shared_locked(ZkSession *s, const char *dir);

/*
 * A node is created, or, with name NULL, is not: whether nobody is before it,
 * since it comes right after the last one
 */
extern bool zkn_turn_created_locked(ZkSession *s, const char *dir, const char *name, int64_t czxid);
extern void zkn_free_turns(ZkSession *s);

#endif							/* ZKLOCK_TURN_H */

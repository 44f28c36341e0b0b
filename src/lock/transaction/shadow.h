/*-------------------------------------------------------------------------
 *
 * shadow.h
 *	  PostgreSQL's own advisory lock, held beside one in ZooKeeper.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SHADOW_H
#define ZKLOCK_SHADOW_H

#include "lib/ilist.h"
#include "storage/lock.h"

typedef enum ZkShadowState
{
	ZKL_NO_SHADOW,
	ZKL_SHADOW_MISSING,			/* it could not be had */
	ZKL_SHADOW_TAKEN			/* unless PostgreSQL's own functions have
								 * given it back */
} ZkShadowState;

typedef struct ZkShadow
{
	ZkShadowState state;
	LOCKTAG		tag;
	LOCKMODE	mode;
	dlist_node	in_missing;		/* while it is missing */
} ZkShadow;

/*
 * Take it, unless it is there, and all that are missing.  Raises 53200 if
 * PostgreSQL's lock table is full, and it has not been missing before.
 */
extern void zkl_take_shadow(ZkShadow *shadow, const LOCKTAG *tag, LOCKMODE mode);

/* Give it back, or want it no longer.  Does not fail. */
extern void zkl_drop_shadow(ZkShadow *shadow);

#endif							/* ZKLOCK_SHADOW_H */

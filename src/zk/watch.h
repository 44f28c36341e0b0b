/*-------------------------------------------------------------------------
 *
 * watch.h
 *	  Watches of the owner.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WATCH_H
#define ZKLOCK_WATCH_H

#include "request.h"

/*
 * Watches on the deletion of a node (proof.c has its own for what we hold), or
 * on the children of a directory
 */
typedef enum ZkWatchState
{
	ZKR_WATCH_PENDING,			/* ZooKeeper has not answered yet */
	ZKR_WATCH_ARMED,
	ZKR_WATCH_FIRED,			/* the node is gone, or was when we asked */
	ZKR_WATCH_CHANGED,			/* its data, or the list of its children,
								 * changed: no longer armed */
	ZKR_WATCH_FAILED			/* not armed: the connection broke */
} ZkWatchState;

#define ZKS_WATCHED_KEPT	512

typedef struct ZkWatchInfo
{
	ZkWatchState state;
	int			rc;				/* why it failed */
	uint32_t	epoch;			/* the connection on which it was set */
	ZkStat		stat;			/* of the node, when it was set */
	int			data_len;
	char	   *data;			/* what the node held then, its beginning;
								 * valid until zks_unwatch */
} ZkWatchInfo;

extern ZkWatch *zks_watch(ZkSession *session, const char *path);

/*
 * Like zks_list; the watch fires when the list is out of date.  *watch is NULL, or that
 * of an earlier list of this directory, which is set once more, or dropped.
 */
extern ZkRequest *zks_list_and_watch(ZkSession *session, const char *dir, bool fresh,
									 ZkWatch **watch);
extern void zks_watch_info(ZkSession *session, ZkWatch *watch, ZkWatchInfo *info);

/* leave: it is of a directory where a node of ours is, or is being deleted */
extern void zks_unwatch(ZkSession *session, ZkWatch *watch, bool leave);

#endif							/* ZKLOCK_WATCH_H */

/*-------------------------------------------------------------------------
 *
 * operation.h
 *	  What a request asks for, if it is one operation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_OPERATION_H
#define ZKLOCK_OPERATION_H

#include "request_private.h"

/*
 * Written into the directories that we create, since ZooKeeper does not tell a
 * client which nodes are containers
 */
#define CONTAINER_MARK	"zklock"

extern const struct ACL_vector *zkr_acl(bool closed);
extern void zkr_create_locked(ZkRequest *r, const char *path, int flags, const char *data,
							  bool closed);
extern void zkr_list_locked(ZkRequest *r, const char *dir);
extern void zkr_stat_locked(ZkRequest *r, const char *path);
extern void zkr_get_locked(ZkRequest *r, const char *path);
extern void zkr_delete_locked(ZkRequest *r, const char *path, int version);
extern void zkr_set_locked(ZkRequest *r, const char *path, const char *data, int version);
extern void zkr_prove_locked(ZkRequest *r);
extern void zkr_remove_watches_locked(ZkRequest *r, const char *path, bool of_children);

#endif							/* ZKLOCK_OPERATION_H */

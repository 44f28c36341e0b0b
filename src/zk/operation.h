/*-------------------------------------------------------------------------
 *
 * operation.h
 *	  What a request asks for, if it is one operation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_OPERATION_H
#define ZKLOCK_OPERATION_H

#include <zookeeper/proto.h>

#include "request_private.h"

/*
 * Written into the directories that we create, since ZooKeeper does not tell a
 * client which nodes are containers
 */
#define CONTAINER_MARK	"zklock"

typedef struct ZkOp
{
	int			type;			/* of proto.h; of a read only the path counts */
	const char *path;
	int			flags;			/* of a create; of watches: their kind */
	const char *data;			/* of a create or set; NULL: none */
	bool		closed;			/* of a create: as in ZkpWant */
	int			version;		/* of a check, delete or set; -1: any */
} ZkOp;

extern const struct ACL_vector *zkr_acl(bool closed);
extern void zkr_send_locked(ZkRequest *r, const ZkOp *op);
extern void zkr_read_locked(ZkRequest *r, int type, const char *path);

#endif							/* ZKLOCK_OPERATION_H */

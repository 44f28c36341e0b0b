/*-------------------------------------------------------------------------
 *
 * node_identity.h
 *	  What our nodes say about their session: who holds or waits for a lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_NODE_IDENTITY_H
#define ZKLOCK_NODE_IDENTITY_H

#include "datatype/timestamp.h"
#include "utils/backend_status.h"

#include "compat.h"
#include "zk/lock_protocol.h"

/* The tag comes first; then, in this order, the columns of what shows a node */
typedef enum ZkField
{
	ZKB_FIELD_TAG,
	ZKB_FIELD_HOST,
	ZKB_FIELD_PORT,
	ZKB_FIELD_CLUSTER_NAME,
	ZKB_FIELD_PID,
	ZKB_FIELD_DATABASE,
	ZKB_FIELD_USER,
	ZKB_FIELD_APPLICATION_NAME,
	ZKB_FIELDS
} ZkField;

/* The names that precede the values */
extern const char *const zkb_field_names[ZKB_FIELDS];

/*
 * This backend's current lines, in UTF-8; only that of the tag if
 * publish_identity is off.  palloc'ed.
 */
extern char *zkb_identity_lines(void);

/*
 * When the process of this entry of pg_stat_activity started; false if it is no
 * longer that of this process, or NULL.
 */
extern bool zkb_read_start(const volatile PgBackendStatus *status, int pid, TimestampTz *started);

/*
 * What stands for a backend of this server in ZooKeeper: ZKP_TAG_LEN - 1 hex
 * digits that no other backend has, here or elsewhere, and that say nothing to who does not
 * know its pid and the time when it started.
 */
extern void zkb_tag(char *tag, int pid, TimestampTz started);

/* This backend's */
extern const char *zkb_own_tag(void);

/*
 * Parse such lines, whoever wrote them.  Each field is palloc'ed and in the
 * server's encoding, or NULL.  A port and a pid are numbers that fit into an
 * int32, and a tag is one that zkb_tag might have written; what is not is NULL.
 */
extern void zkb_read_identity(const char *lines, int len, char *fields[ZKB_FIELDS]);

/*
 * "process 742 on db1:5432" from such lines, for messages; or, where they do not
 * tell, "ZooKeeper session 0x..."; palloc'ed.  pid: of another process of that
 * server; 0: the one that the lines tell of.
 */
extern char *zkb_who(const char *lines, int len, int pid, int64 session);

#endif							/* ZKLOCK_NODE_IDENTITY_H */

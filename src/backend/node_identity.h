/*-------------------------------------------------------------------------
 *
 * node_identity.h
 *	  What our nodes tell of their session: who holds or waits for a lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_NODE_IDENTITY_H
#define ZKLOCK_NODE_IDENTITY_H

typedef enum ZkField
{
	ZKB_FIELD_HOST,
	ZKB_FIELD_PID,
	ZKB_FIELD_DATABASE,
	ZKB_FIELD_USER,
	ZKB_FIELD_APPLICATION_NAME,
	ZKB_FIELDS
} ZkField;

/* As they stand before the values */
extern const char *const zkb_field_names[ZKB_FIELDS];

/*
 * This backend's lines, in UTF-8, as they are now; "" with publish_identity
 * off.  In memory of its own, until the next call.
 */
extern const char *zkb_identity_lines(void);

/*
 * Read such lines, of whoever wrote them.  Each field is palloc'ed and in the
 * server's encoding, or NULL.
 */
extern void zkb_read_identity(const char *lines, int len, char *fields[ZKB_FIELDS]);

#endif							/* ZKLOCK_NODE_IDENTITY_H */

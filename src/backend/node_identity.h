/*-------------------------------------------------------------------------
 *
 * node_identity.h
 *	  What our nodes tell of their session: who holds or waits for a lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_NODE_IDENTITY_H
#define ZKLOCK_NODE_IDENTITY_H

typedef enum ZkiField
{
	ZKI_HOST,
	ZKI_PID,
	ZKI_DATABASE,
	ZKI_USER,
	ZKI_APPLICATION_NAME,
	ZKI_FIELDS
} ZkiField;

/* As they stand before the values */
extern const char *const zki_names[ZKI_FIELDS];

/*
 * This backend's lines, in UTF-8, as they are now; "" with publish_identity
 * off.  In memory of its own, until the next call.
 */
extern const char *zki_lines(void);

/*
 * Read such lines, of whoever wrote them.  Each field is palloc'ed and in the
 * server's encoding, or NULL.
 */
extern void zki_read(const char *lines, int len, char *fields[ZKI_FIELDS]);

#endif							/* ZKLOCK_NODE_IDENTITY_H */

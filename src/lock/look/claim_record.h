/*-------------------------------------------------------------------------
 *
 * claim_record.h
 *	  What a claim's mark in ZooKeeper says.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_CLAIM_RECORD_H
#define ZKLOCK_CLAIM_RECORD_H

#include "access/transam.h"
#include "datatype/timestamp.h"

/* The hex digits of a claim's id, and a terminator */
#define ZKL_CLAIM_ID_LEN	33

typedef struct ZkClaimRecord
{
	bool		done;			/* else it is pending */
	TimestampTz period;
	TimestampTz since;			/* by the clock of its server */
	char		id[ZKL_CLAIM_ID_LEN];	/* no other write has the same */
	uint64		system;			/* the server's identifier */
	FullTransactionId xid;		/* invalid: it has written nothing there */
	const char *identity;		/* lines, as in our other nodes */
} ZkClaimRecord;

/* Where in ZooKeeper the mark of this lock is; palloc'ed */
extern char *zkl_mark_path(const char *full, int root_len);

/* The text of a mark; palloc'ed */
extern char *zkl_write_claim(const ZkClaimRecord *claim);

/* False: it is not such a text.  The identity is palloc'ed. */
extern bool zkl_read_claim(const char *data, int len, ZkClaimRecord *claim);

#endif							/* ZKLOCK_CLAIM_RECORD_H */

/*-------------------------------------------------------------------------
 *
 * wait_record.h
 *	  What a record on the board says: who waits where, and who waits for him.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WAIT_RECORD_H
#define ZKLOCK_WAIT_RECORD_H

#include "local_waits.h"

/* In the place of a tag: of one who does not count himself */
#define ZKL_NO_TAG		"----------------"

typedef struct ZkRecord
{
	const char *dir;			/* where the author waits */
	const char *node;			/* its node there */
	const char *identity;		/* of the author */
	ZkLocalWait *waits;			/* who waits for one of PostgreSQL's locks of
								 * the author, as the record says; a pid of 0
								 * and an empty text are not told */
	int			n;
} ZkRecord;

/* Make room for one more in an array of this many, which has what is a power of two */
extern void *zkl_grow(void *array, int n, size_t size);

/* The board of the root under which this directory is; palloc'ed */
extern char *zkl_board(const char *dir, int root_len);

/*
 * Who waits for us on this server, for a record of our own.  One that is too young
 * counts only for those that wait for it; if all are, there is none.  Returns when
 * the first of these will count, or ZKS_NEVER.
 */
extern int64 zkl_find_waits(ZkRecord *record);

/*
 * The lines of a record of our own, without the first, which all nodes have;
 * palloc'ed.  What exceeds ZKS_RECORD_KEPT bytes is left out, the farthest
 * first.
 */
extern char *zkl_record_lines(const ZkRecord *record);

/*
 * Read the data of any node on the board; false if that is no record.  All
 * is copied.
 */
extern bool zkl_read_record(const char *data, int len, ZkRecord *record);

#endif							/* ZKLOCK_WAIT_RECORD_H */

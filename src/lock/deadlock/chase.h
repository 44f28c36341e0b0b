/*-------------------------------------------------------------------------
 *
 * chase.h
 *	  Following waits from queue to queue, to see whether they form a cycle.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_CHASE_H
#define ZKLOCK_CHASE_H

#include "lock/look/reader.h"
#include "wait_record.h"

/* From where */
typedef struct ZkChaseFrom
{
	const ZkRecord *says;		/* where we wait, and who waits for us on this
								 * server */
	int			root_len;		/* of the root in the directory */
	const char *record;			/* our own on the board, without its path */
	const struct ZkCycle *later;	/* take another one, if there is; or NULL */
} ZkChaseFrom;

/*
 * A cycle that we are part of: as long as these nodes, at these versions, our
 * own and these local waits stand
 */
typedef struct ZkCycle
{
	ZkCheck    *checks;			/* nodes; then local waits, as texts */
	int			nrecords;		/* the first ones are of records that tell of
								 * local waits */
	int			nchecks;		/* these are nodes */
	int			n;
	char	   *detail;			/* a line for each wait */
	char	   *queries;		/* a line for each process of this server, for
								 * the server's log */
	bool		read_twice;		/* the caller's */
} ZkCycle;

/*
 * Whether this is the cycle that was read before, and each record that it rests
 * on has been written at least so often since.  Others may have changed the order in
 * which its parts were found.
 */
extern bool zkl_is_same_cycle(const ZkCycle *before, const ZkCycle *now, int written);

/*
 * True: all was read, and cycle is NULL if we are in none; listed: our
 * record was still there.  Everything is
 * palloc'ed in the current context, which is the cycle's.  The reader is to be ended by the caller,
 * in case of an error, too.
 */
extern bool zkl_chase(ZkReader *reader, const ZkChaseFrom *from, ZkCycle **cycle, bool *listed);

#endif							/* ZKLOCK_CHASE_H */

/*-------------------------------------------------------------------------
 *
 * reader.h
 *	  Many questions to ZooKeeper at a time, about what others did there.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_READER_H
#define ZKLOCK_READER_H

#include "backend/wait.h"

/*
 * The number of questions under way: enough for nearly every queue to take
 * two round trips, and not so many that the session's heartbeats, or a cancel,
 * must wait for long.
 */
#define ZKL_WINDOW		1000

typedef struct ZkReader
{
	ZkPatience	patience;		/* for the next answer; each gives the one
								 * after it time */
	ZkRequest  *requests[ZKL_WINDOW];	/* a ring buffer, from first on */
	void	   *about[ZKL_WINDOW];	/* the same, as the caller says */
	int			first;
	int			n;
	int64		last_round;		/* when the last one may begin; 0: one begins */
} ZkReader;

/* The time for the first answer begins now, whatever the patience says */
extern void zkl_begin_reading(ZkReader *reader, ZkPatience patience);

/*
 * Read in rounds until one returns true: each begins on a connection, and ends with
 * it, and none begins later than the first may last.  A round that has got on for good
 * sets last_round to 0, so that the next one counts as the first.
 */
extern void zkl_read_in_rounds(ZkReader *reader, ZkWait *wait, ZkWaitEvent event,
							   bool (*round) (void *arg), void *arg);

/*
 * A question while no other is under way; the answer lasts until the next one.  This, like
 * all that reads, is false if there is none: the connection broke, or ZooKeeper has not
 * really answered, so that all of it is to be asked again; or there is no reason to wait
 * for it, or it did not come in time, for a reader that does not raise.
 */
extern bool zkl_ask_apart(ZkReader *reader, ZkRequest *request, ZkAnswer *answer);

/*
 * The questions that are answered in the order in which they were asked.  There
 * must be room for another; the oldest is dropped, with its answer.
 */
extern void zkl_ask(ZkReader *reader, ZkRequest *request, void *about);
extern bool zkl_await_oldest(ZkReader *reader, ZkAnswer *answer);
extern void zkl_drop_oldest(ZkReader *reader);

/* Drop all of them; does not fail */
extern void zkl_end_reading(ZkReader *reader);

#endif							/* ZKLOCK_READER_H */

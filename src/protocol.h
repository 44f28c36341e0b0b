/*-------------------------------------------------------------------------
 *
 * protocol.h
 *	  The names of lock nodes, their order, and who blocks whom.
 *
 * Plain C: no PostgreSQL, no ZooKeeper, no I/O, so that the rules on which
 * mutual exclusion rests can be tested alone (t/c/protocol_test.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_PROTOCOL_H
#define ZKLOCK_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

/* A UUID in text form, with its terminator */
#define ZKP_UUID_LEN		37

/* Room for "_c_<uuid>-shared-lock-" and its terminator */
#define ZKP_PREFIX_LEN		64

/* Room for a prefix and the number that ZooKeeper appends */
#define ZKP_NAME_LEN		(ZKP_PREFIX_LEN + 12)

typedef enum ZkpMode
{
	ZKP_NONE,					/* not a lock node */
	ZKP_SHARED,
	ZKP_EXCLUSIVE
} ZkpMode;

typedef struct ZkpContender
{
	ZkpMode		mode;
	int32_t		seq;			/* the number that ZooKeeper appended */
} ZkpContender;

/*
 * What a list of children says about one contender.  The names point into
 * the list that was given.
 */
typedef struct ZkpView
{
	bool		self_seen;		/* our own node is in the list */
	int			nblockers;		/* nodes that must go before we hold */
	const char *nearest;		/* the blocker just before us, or NULL */
	const char *second;			/* the one before that, or NULL */
	bool		next;			/* once nearest is deleted, we hold */
} ZkpView;

/* Is this child a contender for a lock, of whichever client? */
extern bool zkp_parse(const char *name, ZkpContender *contender);

/*
 * Does a part of a user's path look like a node that zklock or another
 * client makes for itself?  A lock there could not be told from a contender.
 */
extern bool zkp_is_reserved(const char *part, int len);

/* The name of a new node, up to the number; prefix has ZKP_PREFIX_LEN bytes */
extern void zkp_prefix(char *prefix, const char *uuid, ZkpMode mode);

/* Does the number a come before b?  Right across the wrap at 2^31. */
extern bool zkp_seq_before(int32_t a, int32_t b);

/*
 * Whom must a contender of this mode wait for?  self is its node's name, or
 * NULL for one who has none yet and would stand behind everybody.
 */
extern void zkp_look(char *const *names, int nnames, const char *self,
					 ZkpMode mode, ZkpView *view);

#endif							/* ZKLOCK_PROTOCOL_H */

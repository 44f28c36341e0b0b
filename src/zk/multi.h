/*-------------------------------------------------------------------------
 *
 * multi.h
 *	  Several operations in one transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_MULTI_H
#define ZKLOCK_MULTI_H

#include "operation.h"

/*
 * A multi's answer must be in the socket's buffer as a whole before the library
 * may read it (frame_check.c), so this is what its results may need; or a third of
 * the buffer, if the kernel allows us less: it counts its own bookkeeping, too.
 */
#define ZKN_MULTI_BYTES		(112 * 1024)

/*
 * Of the result of a create: its header, and the length of the path that
 * follows
 */
#define ZKR_RESULT_BYTES	13

/* The number in a sequential node's name, with its sign */
#define ZKR_NUMBER_LEN		11

/* A create in a multi without its path, its data, and its ACL */
#define ZKR_CREATE_BYTES	32

/*
 * One entry of an ACL.  The server replaces "creator" by all ids of the
 * session before it writes the transaction; for a digest, "user:" and 28
 * characters.
 */
#define ZKR_ACL_BYTES		48

extern void zkr_multi_locked(ZkRequest *r, const ZkOp *ops, int n);

#endif							/* ZKLOCK_MULTI_H */

/*-------------------------------------------------------------------------
 *
 * inspect.h
 *	  Removing a contender for a lock, whosever it is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_INSPECT_H
#define ZKLOCK_INSPECT_H

/*
 * Delete the node of this name, and tell the user and the server's log whose
 * it was.  False if it was already gone.  Raises 22023 unless it is a
 * contender's name.
 */
extern bool zkl_break(const char *full, const char *node);

#endif							/* ZKLOCK_INSPECT_H */

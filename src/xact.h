/*-------------------------------------------------------------------------
 *
 * xact.h
 *	  What transactions and locks do to each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_XACT_H
#define ZKLOCK_XACT_H

/*
 * The commit guard ahead of time, for a statement that cannot be undone once
 * it has been carried out.  Raises 40001.
 */
extern void zkx_guard_statement(void);

#endif							/* ZKLOCK_XACT_H */

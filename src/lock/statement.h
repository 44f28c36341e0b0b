/*-------------------------------------------------------------------------
 *
 * statement.h
 *	  The statements that the session's locks must know of.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_STATEMENT_H
#define ZKLOCK_STATEMENT_H

/* When the library is loaded */
extern void zkl_install_hooks(void);

/* Before a session's first lock: one that never takes any is not to notice */
extern void zkl_watch_queries(void);

#endif							/* ZKLOCK_STATEMENT_H */

/*-------------------------------------------------------------------------
 *
 * statement_hooks.h
 *	  Statements that matter to the session's locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_STATEMENT_HOOKS_H
#define ZKLOCK_STATEMENT_HOOKS_H

/* Called when the library is loaded */
extern void zkl_install_hooks(void);

/* Called before a session's first lock, so that others pay nothing for it */
extern void zkl_watch_queries(void);

#endif							/* ZKLOCK_STATEMENT_HOOKS_H */

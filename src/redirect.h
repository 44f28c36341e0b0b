/*-------------------------------------------------------------------------
 *
 * redirect.h
 *	  Calls of PostgreSQL's own advisory lock functions: zklock.advisory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_REDIRECT_H
#define ZKLOCK_REDIRECT_H

/* Called when the library is loaded */
extern void zk_watch_calls(void);

#endif							/* ZKLOCK_REDIRECT_H */

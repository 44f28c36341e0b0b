/*-------------------------------------------------------------------------
 *
 * redirect.h
 *	  Calls of PostgreSQL's own advisory lock functions: zklock.advisory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_REDIRECT_H
#define ZKLOCK_REDIRECT_H

#include "nodes/nodes.h"

/* Called when the library is loaded */
extern void zk_watch_calls(void);

/* Called before each statement that is not planned */
extern void zk_see_statement(const Node *statement);

#endif							/* ZKLOCK_REDIRECT_H */

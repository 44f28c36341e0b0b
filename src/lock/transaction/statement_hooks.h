/*-------------------------------------------------------------------------
 *
 * statement_hooks.h
 *	  Statements that matter to the session's locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_STATEMENT_HOOKS_H
#define ZKLOCK_STATEMENT_HOOKS_H

#include "nodes/nodes.h"

/*
 * Called when the library is loaded; see is called first for each statement that is not
 * planned
 */
extern void zkl_install_hooks(void (*see) (const Node *statement));

#endif							/* ZKLOCK_STATEMENT_HOOKS_H */

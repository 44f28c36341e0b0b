/*-------------------------------------------------------------------------
 *
 * statement_hooks.c
 *	  Statements that matter to the session's locks.
 *
 * PostgreSQL offers no hook for what we want to know, but two through which
 * each statement passes, even inside a function: ExecutorFinish for queries,
 * and ProcessUtility for all others.  A session that holds no lock when a
 * statement begins needs nothing from here: its transaction relies on locks
 * that it takes later in any case.  So we first check whether there is a lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "executor/executor.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/rel.h"

#include "backend/compat.h"
#include "commit_guard.h"
#include "hold.h"
#include "stop.h"
#include "xact.h"

/* The next one behind each of ours, or PostgreSQL's own function */
static ExecutorStart_hook_type next_ExecutorStart;
static ExecutorFinish_hook_type next_ExecutorFinish;
static ProcessUtility_hook_type next_ProcessUtility;
static void (*see_statement) (const Node *statement);

/*-------------------------------------------------------------------------
 * Writing that leaves no transaction id
 *-------------------------------------------------------------------------
 */

/*
 * A transaction that has an id has written; but a foreign table gives it none
 */
static bool
any_is_foreign(const List *result_relations)
{
	ListCell   *cell;

	foreach(cell, result_relations)
	{
		const ResultRelInfo *target = lfirst(cell);

		if (target->ri_RelationDesc->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
			return true;
	}
	return false;
}

/* A statement that looks into pg_locks is not to see what is known to be lost */
static void
drop_lost_shadows(void)
{
	if (zkl_nheld > 0)
		zkl_tell_losses();
}

static void
executor_start_hook(QueryDesc *queryDesc, int eflags)
{
	drop_lost_shadows();
	next_ExecutorStart(queryDesc, eflags);
}

/*
 * Once a query is finished, it is known to which partitions its rows went.
 * (It is always finished before its transaction commits, and EXPLAIN finishes
 * only what it has executed.)
 */
static void
executor_finish_hook(QueryDesc *queryDesc)
{
	next_ExecutorFinish(queryDesc);
	if (has_targets_compat(queryDesc->plannedstmt) && zkl_has_locks() &&
		(any_is_foreign(queryDesc->estate->es_opened_result_relations) ||
		 any_is_foreign(queryDesc->estate->es_tuple_routing_result_relations)))
		zkl_writes_elsewhere();
}

/*-------------------------------------------------------------------------
 * All other statements
 *-------------------------------------------------------------------------
 */

/*
 * Whether the statement removes or copies files, or a slot of another server,
 * before it commits.  A guard at COMMIT comes too late for these: the catalog
 * would go back to what no longer exists.
 */
static bool
cannot_be_undone(const Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_AlterDatabaseStmt:
		case T_CreateTableSpaceStmt:
		case T_DropTableSpaceStmt:
		case T_CreateSubscriptionStmt:
		case T_AlterSubscriptionStmt:
		case T_DropSubscriptionStmt:
			return true;
		default:
			return false;
	}
}

/* One that does not tell whether it has written elsewhere counts as if it had */
static void
note_statement(const Node *statement, NodeTag tag)
{
	switch (tag)
	{
		case T_CopyStmt:
			if (!((const CopyStmt *) statement)->is_from)
				break;
			pg_fallthrough;
		case T_TruncateStmt:
		case T_NotifyStmt:		/* but not the function pg_notify */
			zkl_writes_elsewhere();
			break;
		case T_DropStmt:		/* of the extension, or of its schema */
		case T_DropOwnedStmt:
			zkl_deeds.dropped_something = true;
			break;
		default:
			break;
	}
}

/* As COMMIT does when its guard has passed, but these have no guard */
static bool
waits_for_standby(const Node *statement)
{
	const TransactionStmt *transaction = (const TransactionStmt *) statement;

	return IsA(statement, TransactionStmt) &&
		(transaction->kind == TRANS_STMT_COMMIT_PREPARED ||
		 transaction->kind == TRANS_STMT_ROLLBACK_PREPARED);
}

static void
utility_hook(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			 ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	bool		has_locks = zkl_has_locks();

	/*
	 * A statement that ends the transaction, as CALL may, may be freed then;
	 * none whose content note_statement reads does
	 */
	NodeTag		tag = nodeTag(statement);
	bool		discard_all = (IsA(statement, DiscardStmt) &&
							   ((DiscardStmt *) statement)->target == DISCARD_ALL);

	see_statement(statement);
	drop_lost_shadows();
	if (has_locks && cannot_be_undone(statement))
		zkl_guard_statement();
	if (has_locks && waits_for_standby(statement))
		zkl_terminate_now_or_later();
	next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	if (discard_all)
		(void) zkl_unlock_all(ZKL_SESSION_SCOPES);
	else if (has_locks)
		note_statement(statement, tag);
}

void
zkl_install_hooks(void (*see) (const Node *statement))
{
	see_statement = see;
	next_ExecutorStart = ExecutorStart_hook != NULL ? ExecutorStart_hook : standard_ExecutorStart;
	ExecutorStart_hook = executor_start_hook;
	next_ExecutorFinish = ExecutorFinish_hook != NULL ? ExecutorFinish_hook : standard_ExecutorFinish;
	ExecutorFinish_hook = executor_finish_hook;
	next_ProcessUtility = ProcessUtility_hook != NULL ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = utility_hook;
}

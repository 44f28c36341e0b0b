/*-------------------------------------------------------------------------
 *
 * redirect.c
 *	  Calls of PostgreSQL's own advisory lock functions: zklock.advisory.
 *
 * A program calls pg_advisory_lock, and search_path decides which one that is; but
 * many programs set search_path themselves.  So the call is changed where its
 * statement is planned: by then views and rules have been expanded, and names no
 * longer matter.  What is evaluated without the planner is told to object_access_hook
 * before it is executed, and fails there: it never takes the lock that only this
 * server knows.
 *
 * Two roads pass neither hook, and so get checks of their own.  The planner calls the
 * function of an operator to estimate how many rows it selects.  And an SQL function
 * may be inlined after our hook has seen the statement that calls it; one that might
 * contain such a call is not inlined, so that its own statements are planned.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_language.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planner.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "backend/compat.h"
#include "backend/settings.h"
#include "redirect.h"

static planner_hook_type next_planner = NULL;
static object_access_hook_type next_object_access = NULL;
static needs_fmgr_hook_type next_needs_fmgr = NULL;
static fmgr_hook_type next_fmgr = NULL;

/*-------------------------------------------------------------------------
 * PostgreSQL's functions, and ours
 *-------------------------------------------------------------------------
 */

/* PostgreSQL's have two ranges of OIDs, which no release may change */
#define FIRST_SINCE_8_2		F_PG_ADVISORY_LOCK_INT8
#define LAST_SINCE_8_2		F_PG_ADVISORY_UNLOCK_ALL
#define FIRST_SINCE_9_1		F_PG_ADVISORY_XACT_LOCK_INT8
#define LAST_SINCE_9_1		F_PG_TRY_ADVISORY_XACT_LOCK_SHARED_INT4_INT4
#define NSINCE_8_2			(LAST_SINCE_8_2 - FIRST_SINCE_8_2 + 1)
#define NFUNCTIONS			(NSINCE_8_2 + LAST_SINCE_9_1 - FIRST_SINCE_9_1 + 1)

StaticAssertDecl(NFUNCTIONS == 21, "PostgreSQL has 21 functions for advisory locks");

/* What their C functions' names begin with */
static const char *const prefixes[] = {"pg_advisory_", "pg_try_advisory_"};

/* The functions of zklock_advisory that take their place */
static Oid	targets[NFUNCTIONS];
static bool targets_are_known = false;

/* Whether there is an operator that is made of one of PostgreSQL's */
static bool operators_exist;
static bool operators_are_known = false;

static bool catalogs_changed;	/* perhaps while we read them */

/* The number of one of PostgreSQL's, or -1 for any other function */
static int
number_of(Oid function)
{
	if (function >= FIRST_SINCE_8_2 && function <= LAST_SINCE_8_2)
		return function - FIRST_SINCE_8_2;
	if (function >= FIRST_SINCE_9_1 && function <= LAST_SINCE_9_1)
		return NSINCE_8_2 + function - FIRST_SINCE_9_1;
	return -1;
}

static Oid
function_of(int number)
{
	return number < NSINCE_8_2 ? FIRST_SINCE_8_2 + number : FIRST_SINCE_9_1 + number - NSINCE_8_2;
}

static void
forget(Datum arg, int cacheid, uint32 hashvalue)
{
	targets_are_known = false;
	operators_are_known = false;
	catalogs_changed = true;
}

/* To be called before they are read */
static void
watch_catalogs(void)
{
	static bool watching = false;

	catalogs_changed = false;
	if (watching)
		return;
	CacheRegisterSyscacheCallback(PROCOID, forget, (Datum) 0);
	CacheRegisterSyscacheCallback(OPEROID, forget, (Datum) 0);
	watching = true;
}

static bool
have_equal_signatures(Form_pg_proc a, Form_pg_proc b)
{
	return strcmp(NameStr(a->proname), NameStr(b->proname)) == 0 &&
		a->pronargs == b->pronargs &&
		memcmp(a->proargtypes.values, b->proargtypes.values, a->pronargs * sizeof(Oid)) == 0;
}

/* A function of the extension: in whose place? */
static void
note_target(Oid member)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(member));

	if (!HeapTupleIsValid(tuple))
		return;
	for (int i = 0; i < NFUNCTIONS; i++)
	{
		HeapTuple	other = SearchSysCache1(PROCOID, ObjectIdGetDatum(function_of(i)));

		if (!HeapTupleIsValid(other))
			continue;
		if (have_equal_signatures((Form_pg_proc) GETSTRUCT(tuple), (Form_pg_proc) GETSTRUCT(other)))
			targets[i] = member;
		ReleaseSysCache(other);
	}
	ReleaseSysCache(tuple);
}

/*
 * By membership of the extension: whoever may create a schema could give it any name,
 * and what a superuser calls there would run with a superuser's rights.
 */
static void
find_targets(void)
{
	Oid			extension = get_extension_oid("zklock_advisory", true);
	Relation	depend;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	memset(targets, 0, sizeof(targets));
	if (!OidIsValid(extension))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"zklock_advisory\" is not installed in this database"),
				 errdetail("zklock.advisory is \"redirect\", so that calls of PostgreSQL's advisory lock functions become calls of that extension's."),
				 errhint("Have an administrator create the extension, or reset zklock.advisory for this role and database.")));
	depend = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(ExtensionRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(depend, DependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend dependency = (Form_pg_depend) GETSTRUCT(tuple);

		if (dependency->deptype == DEPENDENCY_EXTENSION && dependency->classid == ProcedureRelationId)
			note_target(dependency->objid);
	}
	systable_endscan(scan);
	table_close(depend, AccessShareLock);
}

static Oid
target_of(int number)
{
	zklock_refuse_dropped_settings();
	if (!targets_are_known)
	{
		watch_catalogs();
		find_targets();
		targets_are_known = !catalogs_changed;
	}
	if (!OidIsValid(targets[number]))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"zklock_advisory\" has no function for %s",
						format_procedure(function_of(number))),
				 errhint("Have an administrator update the extension.")));
	return targets[number];
}

/*-------------------------------------------------------------------------
 * Calls that are not redirected
 *-------------------------------------------------------------------------
 */

/*
 * An administrator's value that was replaced by an option of the connection does not
 * mean "off".
 */
static bool
is_watching(void)
{
	return zklock_advisory != ZKLOCK_ADVISORY_OFF || zklock_is_dropped("zklock.advisory");
}

static void
refuse(Oid function)
{
	zklock_refuse_dropped_settings();
	if (zklock_advisory == ZKLOCK_ADVISORY_STRICT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot call %s in this session", format_procedure_qualified(function)),
				 errdetail("zklock.advisory is \"strict\", and that lock would be known to this server only."),
				 errhint("Put the schema zklock_advisory before pg_catalog in search_path, and do not qualify the call.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot redirect the call of %s to ZooKeeper", format_procedure_qualified(function)),
			 errdetail("Calls are redirected where a statement is planned. This one is evaluated without that, or belongs to an operator or an aggregate."),
			 errhint("Put the call into a PL/pgSQL or SQL function.")));
}

static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (access == OAT_FUNCTION_EXECUTE && number_of(objectId) >= 0 && is_watching())
		refuse(objectId);
	if (next_object_access)
		next_object_access(access, classId, objectId, subId, arg);
}

/*-------------------------------------------------------------------------
 * Statements
 *-------------------------------------------------------------------------
 */

typedef struct Walk
{
	bool		only_looks;
	bool		found;
} Walk;

static void
see_operator(Oid function, Walk *walk)
{
	if (number_of(function) < 0)
		return;
	walk->found = true;
	if (!walk->only_looks)
		refuse(function);
}

static bool
see_calls(Node *node, Walk *walk)
{
	ListCell   *cell;

	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_Query:
			return query_tree_walker((Query *) node, see_calls, walk, 0);
		case T_FuncExpr:
			{
				FuncExpr   *call = (FuncExpr *) node;
				int			number = number_of(call->funcid);

				if (number < 0)
					break;
				walk->found = true;

				/* with "strict" it fails when it is executed */
				if (!walk->only_looks && zklock_advisory == ZKLOCK_ADVISORY_REDIRECT)
					call->funcid = target_of(number);
				break;
			}
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			set_opfuncid((OpExpr *) node);
			see_operator(((OpExpr *) node)->opfuncid, walk);
			break;
		case T_ScalarArrayOpExpr:
			set_sa_opfuncid((ScalarArrayOpExpr *) node);
			see_operator(((ScalarArrayOpExpr *) node)->opfuncid, walk);
			break;
		case T_RowCompareExpr:
			foreach(cell, ((RowCompareExpr *) node)->opnos)
				see_operator(get_opcode(lfirst_oid(cell)), walk);
			break;
		default:
			break;
	}
	return expression_tree_walker(node, see_calls, walk);
}

/* The planner may change the tree that it is given, and so may we */
static PlannedStmt *
plan(Query *parse, const char *query_string, int cursorOptions,
	 ParamListInfo boundParams PLANNER_MORE_PARAMS_COMPAT)
{
	if (is_watching())
	{
		Walk		walk = {false, false};

		(void) see_calls((Node *) parse, &walk);
	}
	return (next_planner ? next_planner : standard_planner) (parse, query_string, cursorOptions,
															 boundParams PLANNER_MORE_ARGS_COMPAT);
}

/*-------------------------------------------------------------------------
 * Functions
 *-------------------------------------------------------------------------
 */

/* Made by a superuser of PostgreSQL's C function, under an OID that nobody knows */
static bool
is_alias(HeapTuple function)
{
	bool		is_null;
	Oid			language = ((Form_pg_proc) GETSTRUCT(function))->prolang;
	char	   *source;

	if (language != INTERNALlanguageId && language != ClanguageId)
		return false;
	source = TextDatumGetCString(SysCacheGetAttr(PROCOID, function, Anum_pg_proc_prosrc, &is_null));
	for (int i = 0; i < lengthof(prefixes); i++)
	{
		if (strncmp(source, prefixes[i], strlen(prefixes[i])) == 0)
			return true;
	}
	return false;
}

static bool
any_operator(void)
{
	Relation	operators;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (operators_are_known)
		return operators_exist;
	watch_catalogs();
	operators_exist = false;
	operators = table_open(OperatorRelationId, AccessShareLock);
	scan = systable_beginscan(operators, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		operators_exist |= number_of(((Form_pg_operator) GETSTRUCT(tuple))->oprcode) >= 0;
	systable_endscan(scan);
	table_close(operators, AccessShareLock);
	operators_are_known = !catalogs_changed;
	return operators_exist;
}

/*
 * Whether an SQL function may contain a call.  Its text is not parsed for that: what
 * spells the name in another way is inlined, and fails.
 */
static bool
may_call(HeapTuple function)
{
	Walk		walk = {true, false};
	bool		is_null;
	Datum		body = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_prosqlbody, &is_null);
	char	   *source;

	if (!is_null)
	{
		(void) see_calls(stringToNode(TextDatumGetCString(body)), &walk);
		return walk.found;
	}
	source = TextDatumGetCString(SysCacheGetAttr(PROCOID, function, Anum_pg_proc_prosrc, &is_null));
	for (char *c = source; *c != '\0'; c++)
		*c = pg_tolower((unsigned char) *c);
	return strstr(source, "advisory") != NULL || any_operator();
}

/* No function is pinned that contains a call, or is an alias */
static bool
is_of_interest(Oid function, bool (*contains) (HeapTuple function))
{
	HeapTuple	tuple;
	bool		result;

	if (function < FirstUnpinnedObjectId || !is_watching())
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return false;
	result = contains(tuple);
	ReleaseSysCache(tuple);
	return result;
}

static bool
is_alias_or_may_call(HeapTuple function)
{
	if (((Form_pg_proc) GETSTRUCT(function))->prolang == SQLlanguageId)
		return may_call(function);
	return is_alias(function);
}

static bool
needs_fmgr(Oid function)
{
	return (next_needs_fmgr && next_needs_fmgr(function)) ||
		is_of_interest(function, is_alias_or_may_call);
}

static void
fmgr(FmgrHookEventType event, FmgrInfo *flinfo, Datum *arg)
{
	if (event == FHET_START && is_of_interest(flinfo->fn_oid, is_alias))
		refuse(flinfo->fn_oid);
	if (next_fmgr)
		next_fmgr(event, flinfo, arg);
}

void
zk_watch_calls(void)
{
	next_planner = planner_hook;
	planner_hook = plan;
	next_object_access = object_access_hook;
	object_access_hook = object_access;
	next_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = needs_fmgr;
	next_fmgr = fmgr_hook;
	fmgr_hook = fmgr;
}

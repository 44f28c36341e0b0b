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
 * Some roads pass neither hook, and so get checks of their own.  The planner calls the
 * function of an operator to estimate how many rows it selects, also where it will put
 * its negator or commutator.  What a superuser has put into an operator family or an
 * implicit cast is called by indexes and foreign keys; then every statement fails.  And
 * an SQL function may be inlined after our hook has seen the statement that calls it;
 * one that might contain such a call is not inlined, so that its own statements are
 * planned.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_language.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planner.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
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

/* The functions of zklock_advisory that take their place, as far as they are known */
static Oid	targets[NFUNCTIONS];

/*
 * Whether there is an operator that is made of one of PostgreSQL's; and one of those, if
 * it is called where no hook can see it
 */
static bool operators_exist;
static Oid	unseen;
static bool objects_are_known = false;

static unsigned int changes = 0;	/* of catalogs, perhaps while we read them */

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

static void
forget(Datum arg, int cacheid, uint32 hashvalue)
{
	objects_are_known = false;
	changes++;
	memset(targets, 0, sizeof(targets));
}

/* To be called before they are read; returns how often they have changed */
static unsigned int
watch_catalogs(void)
{
	static bool watching = false;

	if (watching)
		return changes;
	CacheRegisterSyscacheCallback(PROCOID, forget, (Datum) 0);
	CacheRegisterSyscacheCallback(OPEROID, forget, (Datum) 0);
	CacheRegisterSyscacheCallback(AMOPOPID, forget, (Datum) 0);
	CacheRegisterSyscacheCallback(CASTSOURCETARGET, forget, (Datum) 0);
	watching = true;
	return changes;
}

/*
 * The function that takes the place of this one, or InvalidOid.  It is a member of the
 * extension: whoever may create a schema could give it any name, and what a superuser
 * calls there would run with a superuser's rights.  And it is in C, in which only
 * superusers make functions: others may have become the owners of ours, or of the
 * extension (REASSIGN OWNED), and could replace them.
 */
static Oid
find_target(Oid function, Oid extension)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc theirs = (Form_pg_proc) GETSTRUCT(tuple);
	CatCList   *others = SearchSysCacheList2(PROCNAMEARGSNSP, NameGetDatum(&theirs->proname),
											 PointerGetDatum(&theirs->proargtypes));
	Oid			target = InvalidOid;

	for (int i = 0; i < others->n_members; i++)
	{
		Form_pg_proc ours = (Form_pg_proc) GETSTRUCT(&others->members[i]->tuple);

		if (ours->prorettype == theirs->prorettype && ours->prolang == ClanguageId &&
			getExtensionOfObject(ProcedureRelationId, ours->oid) == extension)
			target = ours->oid;
	}
	ReleaseSysCacheList(others);
	ReleaseSysCache(tuple);
	return target;
}

static Oid
target_of(Oid function)
{
	int			number = number_of(function);
	unsigned int before = watch_catalogs();
	Oid			target = targets[number];
	Oid			extension;

	zklock_refuse_dropped_settings();
	if (OidIsValid(target))
		return target;
	extension = get_extension_oid("zklock_advisory", true);
	if (!OidIsValid(extension))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"zklock_advisory\" is not installed in this database"),
				 errdetail("zklock.advisory is \"redirect\", so that calls of PostgreSQL's advisory lock functions become calls of the functions of that extension."),
				 errhint("Have an administrator create the extension, or reset zklock.advisory for this role and database.")));
	target = find_target(function, extension);
	if (!OidIsValid(target))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"zklock_advisory\" has no function for %s",
						format_procedure(function)),
				 errhint("Have an administrator update the extension.")));
	if (changes == before)
		targets[number] = target;
	return target;
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
	return zklock_advisory != ZKLOCK_ADVISORY_OFF || zklock_first_dropped("zklock.advisory") != NULL;
}

static void
refuse(Oid function)
{
	zklock_refuse_dropped_settings();
	if (zklock_advisory == ZKLOCK_ADVISORY_STRICT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot call %s in this session", format_procedure_qualified(function)),
				 errdetail("zklock.advisory is \"strict\", and PostgreSQL's own lock would be known to this server only."),
				 errhint("Put the schema zklock_advisory before pg_catalog in search_path, and do not qualify the call.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot redirect the call of %s to ZooKeeper", format_procedure_qualified(function)),
			 errdetail("Calls are redirected where a statement is planned. This call is evaluated without planning, or belongs to an operator or an aggregate."),
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
 * Objects that are made of PostgreSQL's functions
 *-------------------------------------------------------------------------
 */

/*
 * What is not volatile may be the predicate of an index, which is estimated with any
 * query of its table
 */
static void
note_operator(HeapTuple tuple)
{
	Form_pg_operator operator = (Form_pg_operator) GETSTRUCT(tuple);
	CatCList   *families;

	if (number_of(operator->oprcode) < 0)
		return;
	operators_exist = true;
	families = SearchSysCacheList1(AMOPOPID, ObjectIdGetDatum(operator->oid));
	if (families->n_members > 0 || func_volatile(operator->oprcode) != PROVOLATILE_VOLATILE)
		unseen = operator->oprcode;
	ReleaseSysCacheList(families);
}

/* Where its types differ, a foreign key calls the cast.  That of a domain is never used */
static void
note_cast(HeapTuple tuple)
{
	Form_pg_cast cast = (Form_pg_cast) GETSTRUCT(tuple);

	if (number_of(cast->castfunc) >= 0 && cast->castcontext == COERCION_CODE_IMPLICIT &&
		get_typtype(cast->castsource) != TYPTYPE_DOMAIN)
		unseen = cast->castfunc;
}

static void
each_row(Oid catalog, void (*note) (HeapTuple tuple))
{
	Relation	relation = table_open(catalog, AccessShareLock);
	SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		note(tuple);
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
}

static void
look_for_objects(void)
{
	unsigned int before;

	if (objects_are_known)
		return;
	before = watch_catalogs();
	operators_exist = false;
	unseen = InvalidOid;
	each_row(OperatorRelationId, note_operator);
	each_row(CastRelationId, note_cast);
	objects_are_known = changes == before;
}

static bool
any_operator(void)
{
	look_for_objects();
	return operators_exist;
}

static void
refuse_unseen(void)
{
	look_for_objects();
	if (!OidIsValid(unseen))
		return;
	zklock_refuse_dropped_settings();
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot detect all calls of %s", format_procedure_qualified(unseen)),
			 errdetail("The function belongs to an implicit cast, to a member of an operator family, or to an operator although it is not volatile."),
			 errhint("Have an administrator drop the object, or reset zklock.advisory for this role and database.")));
}

/*-------------------------------------------------------------------------
 * Statements
 *-------------------------------------------------------------------------
 */

/* The planner, and what it calls, may put an operator's negator and commutator for it */
static Oid
made_of(Oid operator, int steps)
{
	Oid			function;

	if (!OidIsValid(operator))
		return InvalidOid;
	function = get_opcode(operator);
	if (number_of(function) >= 0 || steps == 0)
		return number_of(function) >= 0 ? function : InvalidOid;
	function = made_of(get_negator(operator), steps - 1);
	return OidIsValid(function) ? function : made_of(get_commutator(operator), steps - 1);
}

static void
see_operator(Oid operator)
{
	Oid			function = any_operator() ? made_of(operator, 2) : InvalidOid;

	if (OidIsValid(function))
		refuse(function);
}

static bool see_calls(Node *node, void *context);

static pg_noinline bool
see_calls_in(Node *node, void *context)
{
	ListCell   *cell;

	switch (nodeTag(node))
	{
		case T_Query:
			return query_tree_walker((Query *) node, see_calls, context, 0);
		case T_FuncExpr:
			{
				FuncExpr   *call = (FuncExpr *) node;

				/* with "strict" it fails when it is executed */
				if (number_of(call->funcid) >= 0 && zklock_advisory == ZKLOCK_ADVISORY_REDIRECT)
					call->funcid = target_of(call->funcid);
				break;
			}
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			see_operator(((OpExpr *) node)->opno);
			break;
		case T_ScalarArrayOpExpr:
			see_operator(((ScalarArrayOpExpr *) node)->opno);
			break;
		case T_RowCompareExpr:
			foreach(cell, ((RowCompareExpr *) node)->opnos)
				see_operator(lfirst_oid(cell));
			break;
		default:
			break;
	}
	return expression_tree_walker(node, see_calls, context);
}

/* Most are nothing, or a leaf: every statement pays for these */
static bool
see_calls(Node *node, void *context)
{
	if (node == NULL || IsA(node, Var) || IsA(node, Const) || IsA(node, Param))
		return false;
	return see_calls_in(node, context);
}

/* The planner may change the tree that it is given, and so may we */
static PlannedStmt *
plan(Query *parse, const char *query_string, int cursorOptions,
	 ParamListInfo boundParams PLANNER_MORE_PARAMS_COMPAT)
{
	if (is_watching())
	{
		refuse_unseen();
		(void) see_calls((Node *) parse, NULL);
	}
	return (next_planner ? next_planner : standard_planner) (parse, query_string, cursorOptions,
															 boundParams PLANNER_MORE_ARGS_COMPAT);
}

/* COPY, CREATE INDEX; but not what is allowed in an aborted transaction, nor SET */
void
zk_see_statement(const Node *statement)
{
	if (is_watching() && !IsA(statement, TransactionStmt) && !IsA(statement, VariableSetStmt))
		refuse_unseen();
}

/*-------------------------------------------------------------------------
 * Functions
 *-------------------------------------------------------------------------
 */

/*
 * Whether the function's source has this text, in whatever case, at its beginning or
 * anywhere.  It is asked in each statement that calls the function, so nothing is copied.
 */
static bool
source_has(HeapTuple function, const char *what, bool anywhere)
{
	bool		is_null;
	Datum		datum = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_prosrc, &is_null);
	text	   *source = DatumGetTextPP(datum);
	const char *start = VARDATA_ANY(source);
	int			length = strlen(what);
	int			room = (int) VARSIZE_ANY_EXHDR(source) - length;
	bool		found = false;

	for (int i = 0; i <= (anywhere ? room : Min(room, 0)) && !found; i++)
		found = (start[i] | 0x20) == what[0] && pg_strncasecmp(start + i, what, length) == 0;
	if ((Pointer) source != DatumGetPointer(datum))
		pfree(source);
	return found;
}

/* Made by a superuser of PostgreSQL's C function, under an OID that nobody knows */
static bool
is_alias(HeapTuple function)
{
	Oid			language = ((Form_pg_proc) GETSTRUCT(function))->prolang;

	return (language == INTERNALlanguageId || language == ClanguageId) &&
		(source_has(function, "pg_advisory_", false) || source_has(function, "pg_try_advisory_", false));
}

/*
 * Whether an SQL function may contain a call.  It is not parsed for that.  What spells the
 * name in another way is inlined, and fails; BEGIN ATOMIC is stored as a tree, in which
 * functions have their OIDs.
 */
static bool
may_call(HeapTuple function)
{
	bool		is_null;
	Datum		datum = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_prosqlbody, &is_null);
	char	   *tree;
	bool		found = false;

	if (is_null)
		return source_has(function, "advisory", true) || any_operator();
	tree = TextDatumGetCString(datum);
	for (char *c = tree; !found && (c = strstr(c, ":funcid ")) != NULL; c++)
		found = number_of(strtoul(c + strlen(":funcid "), NULL, 10)) >= 0;
	pfree(tree);
	return found || any_operator();
}

static bool
is_so(Oid function, bool (*contains) (HeapTuple function))
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		result;

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
	return (next_needs_fmgr && next_needs_fmgr(function)) || (is_watching() && is_so(function, is_alias_or_may_call));
}

static void
fmgr(FmgrHookEventType event, FmgrInfo *flinfo, Datum *arg)
{
	if (event == FHET_START && is_watching() && is_so(flinfo->fn_oid, is_alias))
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

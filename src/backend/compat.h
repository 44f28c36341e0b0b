/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between PostgreSQL 14 and 18, and nothing else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_COMPAT_H
#define ZKLOCK_COMPAT_H

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"				/* was in postgres.h */
#endif

#if PG_VERSION_NUM < 140000
#error "zklock needs PostgreSQL 14 or later"
#endif

/* pg_get_loaded_modules() shows this (18) */
#if PG_VERSION_NUM >= 180000
#define MODULE_MAGIC_COMPAT() PG_MODULE_MAGIC_EXT(.name = "zklock", .version = ZKLOCK_VERSION)
#else
#define MODULE_MAGIC_COMPAT() PG_MODULE_MAGIC
#endif

/* Goes before a declaration (18), where some compilers demand it */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* Reserve the prefix of our settings: a misspelt one is an error */
static inline void
reserve_guc_prefix_compat(const char *prefix)
{
#if PG_VERSION_NUM >= 150000
	MarkGUCPrefixReserved(prefix);
#else
	EmitWarningsOnPlaceholders(prefix);
#endif
}

/* All settings of the server */
static inline struct config_generic **
guc_variables_compat(int *n)
{
#if PG_VERSION_NUM >= 160000
	return get_guc_variables(n);
#else
	*n = GetNumConfigOptions();
	return get_guc_variables();
#endif
}

/* For what a check hook hands to its assign hook (16) */
static inline void *
guc_malloc_compat(size_t size)
{
#if PG_VERSION_NUM >= 160000
	return guc_malloc(LOG, size);
#else
	return malloc(size);
#endif
}

static inline void
guc_free_compat(void *p)
{
#if PG_VERSION_NUM >= 160000
	guc_free(p);
#else
	free(p);
#endif
}

/*
 * A wait event of our own (17), or "Extension".  Not to be called in _PG_init:
 * the postmaster has no shared memory then.
 */
static inline uint32
wait_event_compat(const char *name)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	(void) name;
	return PG_WAIT_EXTENSION;
#endif
}

/* The local id of this backend's current transaction */
static inline LocalTransactionId
lxid_compat(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProc->vxid.lxid;
#else
	return MyProc->lxid;
#endif
}

/*
 * Have the running statement canceled, as if its client had asked for that, or
 * take it back, all but what the client has asked for.  For a signal handler.
 * True if that changed anything.
 *
 * There is no hook for a reason of one's own.  But PostgreSQL only tests the
 * flag, and sets it to true, which is 1: so our value tells our cancel from all
 * others, even if one arrives after it.
 */
#define OUR_CANCEL_COMPAT	2

static inline bool
cancel_statement_compat(bool cancel)
{
	sig_atomic_t before = cancel ? false : OUR_CANCEL_COMPAT;

	if (!__atomic_compare_exchange_n(&QueryCancelPending, &before, cancel ? OUR_CANCEL_COMPAT : false,
									 false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return false;
	if (cancel)
	{
		InterruptPending = true;
		SetLatch(MyLatch);
	}
	return true;
}

/*
 * Whether the transaction is a single statement that cannot run in a
 * transaction block.  Servers before 14.5 do not tell, and "no" does no harm.
 */
static inline bool
is_sole_statement_compat(void)
{
#ifdef XACT_FLAGS_NEEDIMMEDIATECOMMIT
	return (MyXactFlags & XACT_FLAGS_NEEDIMMEDIATECOMMIT) != 0;
#else
	return false;
#endif
}

/*
 * Which callbacks may be unregistered while those of the end of a transaction
 * run: the running one (16), or only those that are yet to run.
 */
#define CALLBACK_MAY_LEAVE_COMPAT (PG_VERSION_NUM >= 160000)

/* Prepare a function to return a set, all of it at once */
static inline void
init_srf_compat(FunctionCallInfo fcinfo)
{
#if PG_VERSION_NUM >= 150000
	InitMaterializedSRF(fcinfo, 0);
#else
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext old;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("set-valued function called in context that cannot accept a set")));
	old = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	if (get_call_result_type(fcinfo, NULL, &rsinfo->setDesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult = tuplestore_begin_heap(true, false, work_mem);
	MemoryContextSwitchTo(old);
#endif
}

/*
 * The list element after this one, or the first one after NULL; NULL at the
 * end.  In shared memory lists are dlists since 16.
 */
#if PG_VERSION_NUM >= 160000
typedef dlist_head ListCompat;
#define WAIT_QUEUE_COMPAT(lock) (&(lock)->waitProcs.dlist)
#else
typedef SHM_QUEUE ListCompat;
#define WAIT_QUEUE_COMPAT(lock) (&(lock)->waitProcs.links)
#endif

static inline void *
list_next_compat(const ListCompat *list, void *element, size_t link)
{
#if PG_VERSION_NUM >= 160000
	const dlist_node *node = element != NULL ? (dlist_node *) ((char *) element + link) : &list->head;

	return node->next != &list->head ? (char *) node->next - link : NULL;
#else
	return SHMQueueNext(list, element != NULL ? (SHM_QUEUE *) ((char *) element + link) : list, link);
#endif
}

/*
 * The entry of a process in what pg_stat_activity shows, or NULL; it may be of
 * another process by now.  What pgstat offers is a copy of all entries, which
 * is slow, and renewing it would change what the user's transaction sees.  All
 * entries are one array, and our own is known.
 */
static inline const volatile PgBackendStatus *
status_entry_compat(const PGPROC *proc)
{
	int			number = proc - ProcGlobal->allProcs;
	int			own = MyProc - ProcGlobal->allProcs;

#if PG_VERSION_NUM < 170000
	/* of the auxiliary processes only this one waits for locks */
	number = number < MaxBackends ? proc->backendId - 1 : MaxBackends + StartupProcess;
	own = MyProc->backendId - 1;
	if (own < 0)
		return NULL;
#endif
	return number >= 0 ? MyBEEntry + (number - own) : NULL;
}

#endif							/* ZKLOCK_COMPAT_H */

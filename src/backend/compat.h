/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between PostgreSQL 15 and 19, and nothing else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_COMPAT_H
#define ZKLOCK_COMPAT_H

#include "miscadmin.h"
#include "nodes/plannodes.h"
#include "parser/analyze.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/wait_event.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"				/* was in postgres.h */
#endif

#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#endif

#if PG_VERSION_NUM < 150000
#error "zklock needs PostgreSQL 15 or later"
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

/* A comment no longer tells the compiler (19) */
#ifndef pg_fallthrough
#define pg_fallthrough __attribute__((fallthrough))
#endif

/* What post_parse_analyze_hook gets (19) */
#if PG_VERSION_NUM >= 190000
typedef const JumbleState JumbleStateCompat;
#else
typedef JumbleState JumbleStateCompat;
#endif

/* Whether the statement is an INSERT, UPDATE, DELETE or MERGE, or contains one */
static inline bool
has_targets_compat(const PlannedStmt *statement)
{
#if PG_VERSION_NUM >= 190000
	return !bms_is_empty(statement->resultRelationRelids);
#else
	return statement->resultRelations != NIL;
#endif
}

/* What planner_hook gets besides (19) */
#if PG_VERSION_NUM >= 190000
#define PLANNER_MORE_PARAMS_COMPAT , struct ExplainState *es
#define PLANNER_MORE_ARGS_COMPAT , es
#else
#define PLANNER_MORE_PARAMS_COMPAT
#define PLANNER_MORE_ARGS_COMPAT
#endif

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

/*
 * Take one of PostgreSQL's locks for the session, or LOCKACQUIRE_NOT_AVAIL; that
 * includes a full lock table, unless raise is set.  (18 can log who has it.)
 */
static inline LockAcquireResult
lock_without_waiting_compat(const LOCKTAG *tag, LOCKMODE mode, bool raise)
{
#if PG_VERSION_NUM >= 180000
	return LockAcquireExtended(tag, mode, true, true, raise, NULL, false);
#else
	return LockAcquireExtended(tag, mode, true, true, raise, NULL);
#endif
}

/* Whether this backend has it, for the session or a transaction (17) */
static inline bool
lock_held_by_me_compat(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
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
#if PG_VERSION_NUM >= 190000
#define WAIT_LINK_COMPAT waitLink
#else
#define WAIT_LINK_COMPAT links
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
 * Shared memory can be had by name at any time (17), or only by a library in
 * shared_preload_libraries.  Raises an error if there is none, or if what has
 * that name is of another size.
 */
#define SEGMENTS_HAVE_NAMES_COMPAT (PG_VERSION_NUM >= 170000)

#if PG_VERSION_NUM >= 190000
/* The callback gets an argument there, by which it is told what to call */
static inline void
init_segment_compat(void *memory, void *init)
{
	(*(void (**) (void *)) init) (memory);
}
#endif

static inline void *
named_segment_compat(const char *name, size_t size, void (*init) (void *))
{
#if PG_VERSION_NUM >= 170000
	bool		found;

#if PG_VERSION_NUM >= 190000
	return GetNamedDSMSegment(name, size, init_segment_compat, &found, &init);
#else
	return GetNamedDSMSegment(name, size, init, &found);
#endif
#else
	return NULL;
#endif
}

#endif							/* ZKLOCK_COMPAT_H */

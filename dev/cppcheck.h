/*
 * For cppcheck, which reads the sources without the headers of others: these
 * macros leave the function, or contain braces.
 */
#define PG_VERSION_NUM 150000
#define NULL ((void *) 0)
#define ERROR 21
#define FATAL 22
#define ereport(level, ...) do { if ((level) >= ERROR) abort(); } while (0)
#define elog(level, ...) do { if ((level) >= ERROR) abort(); } while (0)
#define PG_RE_THROW() abort()
#define PG_TRY() if (rand()) {
#define PG_CATCH() } else {
#define PG_FINALLY() } {
#define PG_END_TRY() }
#define TAILQ_FOREACH(item, head, link) for ((item) = first_of(head); (item) != NULL; (item) = next_of(item))
#define foreach(cell, list) for ((cell) = first_of(list); (cell) != NULL; (cell) = next_of(cell))
#define dlist_foreach(iter, head) for ((iter).cur = first_of(head); (iter).cur != NULL; (iter).cur = next_of((iter).cur))
#define dlist_reverse_foreach(iter, head) dlist_foreach(iter, head)
#define dlist_foreach_modify(iter, head) dlist_foreach(iter, head)
#define LIST_FOREACH(var, head, field) for ((var) = first_of(head); (var) != NULL; (var) = next_of(var))
#define TAILQ_FOREACH(var, head, field) LIST_FOREACH(var, head, field)

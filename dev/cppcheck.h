/*
 * For cppcheck, which reads the sources without PostgreSQL's headers: these
 * macros leave the function, or hide braces.
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

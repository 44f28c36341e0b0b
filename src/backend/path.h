/*-------------------------------------------------------------------------
 *
 * path.h
 *	  The paths of locks, from what a user typed to what ZooKeeper gets.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_PATH_H
#define ZKLOCK_PATH_H

#include "fmgr.h"

/*
 * The maximum number of bytes of a path, or of a root, in UTF-8, and of its
 * parts.  Each part is a directory that the first contender creates in
 * ZooKeeper, and that stays in memory there as long as somebody is below it.
 */
#define ZK_PATH_MAX		1000
#define ZK_PATH_PARTS	32

/*
 * A lock's path in UTF-8, checked; palloc'ed.  Raises 22023 if it is invalid,
 * 22021 if it cannot be converted to UTF-8.
 */
extern char *zkb_path_from_text(text *path);

/* Raises 22004 if this argument is null */
extern void zkb_refuse_null(bool is_null, const char *what);

/* The lock's path that is the first argument; raises 22004 if that is null */
extern char *zkb_path_argument(FunctionCallInfo fcinfo);

/*
 * The part of a path that stands for a name in the server's encoding, which may
 * be anything: in UTF-8, as it is, but with what a path may not have as %XX;
 * palloc'ed.  No two names have the same.  For one as PostgreSQL's objects have,
 * it is shorter than 600 bytes.
 */
extern char *zkb_name_as_part(const char *name);

/* What is wrong with this path, which may be anything; NULL: zkb_path_from_text may return it */
extern const char *zkb_check_path(const char *path);

/*
 * A node's name in UTF-8, from what zk_lock_queue shows; not checked;
 * palloc'ed.  Raises 22021 if it cannot be converted, 22023 if it is too long
 * for any node.
 */
extern char *zkb_name_from_text(text *name);

/*
 * A checked path in the server's encoding, for messages and views.  Outside of a
 * valid transaction it does not fail, and is escaped.
 */
extern char *zkb_path_for_display(const char *path);

/* The root followed by the path; palloc'ed */
extern char *zkb_join_path(const char *root, const char *path);

/* Where the path begins in the result of zkb_join_path with this root */
extern int	zkb_root_len(const char *root);

/*
 * What is wrong with this root, or NULL.  "/" stands for no root.  Does not
 * raise, since it checks a setting.
 */
extern const char *zkb_check_root(const char *root);

#endif							/* ZKLOCK_PATH_H */

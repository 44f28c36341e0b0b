/*-------------------------------------------------------------------------
 *
 * path.h
 *	  The paths of locks: from what a user typed to what ZooKeeper gets.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_PATH_H
#define ZKLOCK_PATH_H

#include "fmgr.h"

/*
 * Bytes of a path, or of a root, in UTF-8, and its parts: each is a directory
 * that the first who comes makes in ZooKeeper, in memory there for as long as
 * somebody is below it.
 */
#define ZK_PATH_MAX		1000
#define ZK_PATH_PARTS	32

/*
 * A lock's path in UTF-8, checked; palloc'ed.  Raises 22023 for a bad one,
 * 22021 for one that has no form in UTF-8.
 */
extern char *zkb_path_from_text(text *path);

/*
 * A node's name in UTF-8, from what zk_lock_queue shows; not checked; palloc'ed.  Raises 22021, and 22023 for one
 * that is too long for any.
 */
extern char *zkb_name_from_text(text *name);

/* A path of ours in the server's encoding, for messages and views */
extern char *zkb_path_for_display(const char *path);

/* root and path in one; palloc'ed */
extern char *zkb_join_path(const char *root, const char *path);

/* Where the path begins in what zkb_join_path makes of this root */
extern int	zkb_root_len(const char *root);

/*
 * What is wrong with this root, or NULL.  "/" stands for none.  Does not
 * raise: settings are checked with it.
 */
extern const char *zkb_check_root(const char *root);

#endif							/* ZKLOCK_PATH_H */

/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings (GUC variables) of zklock; zklock.c defines them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SETTINGS_H
#define ZKLOCK_SETTINGS_H

/* read when a ZooKeeper session opens, and in force until it ends */
extern char *zklock_hosts;
extern char *zklock_root;
extern int	zklock_session_timeout; /* ms */
extern int	zklock_node_style;	/* ZkpStyle */

/* in force at once; ms */
extern int	zklock_connect_timeout;
extern int	zklock_operation_timeout;
extern int	zklock_release_timeout;

extern int	zklock_max_locks;

typedef enum ZklockGuard
{
	ZKLOCK_GUARD_OFF,
	ZKLOCK_GUARD_ON,
	ZKLOCK_GUARD_STRICT
} ZklockGuard;

extern int	zklock_commit_guard;	/* ZklockGuard */

#endif							/* ZKLOCK_SETTINGS_H */

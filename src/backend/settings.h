/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings (GUC variables) of zklock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SETTINGS_H
#define ZKLOCK_SETTINGS_H

#include "zk/tls.h"

/* read when a ZooKeeper session opens, and in effect until it ends */
extern const char *zklock_servers(void);	/* zklock.hosts, as hosts.h makes
											 * it; "" for none; palloc'ed */
extern int	zklock_session_timeout; /* ms */
extern char *zklock_auth_file;	/* "" for none */
extern char *zklock_tls_ca_file;	/* not empty: TLS */
extern char *zklock_tls_cert_file;
extern char *zklock_tls_key_file;
extern char *zklock_tls_crl_file;
extern bool zklock_tls_verify_host;

/* in effect at once */
extern char *zklock_root;
extern int	zklock_node_style;	/* ZkpStyle */
extern char *zklock_advisory_space; /* "": the database's name */

typedef enum ZklockAdvisory
{
	ZKLOCK_ADVISORY_OFF,
	ZKLOCK_ADVISORY_STRICT,
	ZKLOCK_ADVISORY_REDIRECT
} ZklockAdvisory;

extern int	zklock_advisory;	/* ZklockAdvisory */

typedef enum ZklockAcl
{
	ZKLOCK_ACL_WORLD,
	ZKLOCK_ACL_CREATOR
} ZklockAcl;

extern int	zklock_acl;			/* ZklockAcl */

/* ms */
extern int	zklock_connect_timeout;
extern int	zklock_operation_timeout;
extern int	zklock_release_timeout;
extern int	zklock_idle_timeout;

extern int	zklock_max_locks;
extern bool zklock_publish_identity;

typedef enum ZklockGuard
{
	ZKLOCK_GUARD_OFF,
	ZKLOCK_GUARD_ON,
	ZKLOCK_GUARD_STRICT
} ZklockGuard;

extern int	zklock_commit_guard;	/* ZklockGuard */
extern int	zklock_cancel_on_loss;	/* ZksStopWhen */

/*
 * What zklock.tls_* ask for, with the files read; NULL: no TLS.  Raises an error if that
 * cannot be satisfied, rather than use an unencrypted connection.
 */
extern ZkTls *zkb_tls(void);

/* Called when the library is loaded */
extern void zklock_define_settings(void);

/*
 * Raises 42501 if a superuser's setting has lost the value that it was given
 * before the library was loaded.
 */
extern void zklock_refuse_dropped_settings(void);

/*
 * The first one that has, of all or with this name, where nothing else is in effect by
 * now; or NULL
 */
extern const char *zklock_first_dropped(const char *wanted);

#endif							/* ZKLOCK_SETTINGS_H */

/*-------------------------------------------------------------------------
 *
 * tls_private.h
 *	  What a connection with TLS needs of OpenSSL.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_TLS_PRIVATE_H
#define ZKLOCK_TLS_PRIVATE_H

#include "session.h"

#ifdef ZKLOCK_HAVE_TLS

#include <stdatomic.h>
#include <sys/stat.h>

#include "tls.h"

struct ZkTls
{
	ZkTlsFiles	files;			/* copies */
	struct ssl_ctx_st *ctx;		/* with the gate */
	struct stat seen[ZKS_TLS_NFILES];	/* the files when ctx was made */
	atomic_bool renewing;		/* a wire looks at the files, and sets these */
	atomic_int	owners;			/* the session, and each wire */
};

/* For the last of the owners.  NULL: nothing */
extern void zks_tls_free(ZkTls *tls);

/*
 * For a new connection, with what the files hold now.  Reading them may take any
 * time.  NULL: out of memory
 */
struct ssl_st;
extern struct ssl_st *zks_tls_connection(ZkTls *tls);

/*
 * To be held at each call to OpenSSL; signals are blocked meanwhile.  Once the process
 * exits, nobody gets it any more.
 */
extern void zks_lock_tls(void);
extern void zks_unlock_tls(void);

/* What OpenSSL says of its latest error */
extern const char *zks_tls_reason(void);

/* To be called at the end of each thread that may have used it */
extern void zks_tls_thread_ends(void);

#else							/* then zks_tls makes none */
#define zks_tls_free(tls)	((void) (tls))
#define zks_tls_thread_ends()	((void) 0)
#endif							/* ZKLOCK_HAVE_TLS */

#endif							/* ZKLOCK_TLS_PRIVATE_H */

/*-------------------------------------------------------------------------
 *
 * tls.h
 *	  What TLS is to be done with.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_TLS_H
#define ZKLOCK_TLS_H

#include "session.h"

/*
 * Prepares TLS, or returns NULL with an explanation, a sentence that names no
 * file; without ZKLOCK_HAVE_TLS always that.  If descriptors or memory were
 * missing, errno is EMFILE, ENFILE or ENOMEM.  All but ca may be empty.
 */
typedef struct ZkTlsFiles
{
	const char *ca;
	const char *cert;
	const char *key;
	const char *crl;			/* the CRLs of the authorities */
	bool		verify_host;	/* the server's certificate must name it */
} ZkTlsFiles;

extern ZkTls *zks_tls(const ZkTlsFiles *files, char *error, int errlen);

#endif							/* ZKLOCK_TLS_H */

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
 * missing, errno is EMFILE, ENFILE or ENOMEM.  All but that of the authorities may be empty.
 */
typedef enum ZksTlsFile
{
	ZKS_TLS_CA,
	ZKS_TLS_CRL,				/* the CRLs of the authorities */
	ZKS_TLS_CERT,
	ZKS_TLS_KEY
} ZksTlsFile;

#define ZKS_TLS_NFILES		4

typedef struct ZkTlsFiles
{
	const char *name[ZKS_TLS_NFILES];
	bool		verify_host;	/* the server's certificate must name it */
} ZkTlsFiles;

extern ZkTls *zks_tls(const ZkTlsFiles *files, char *error, int errlen);

#endif							/* ZKLOCK_TLS_H */

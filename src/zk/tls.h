/*-------------------------------------------------------------------------
 *
 * tls.h
 *	  What TLS is to be done with.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_TLS_H
#define ZKLOCK_TLS_H

#include <sys/stat.h>
#include <unistd.h>

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

/*
 * NULL, or what is wrong with a file.  For one with secrets PostgreSQL's own rule for the
 * key of its server: it belongs either to the server's user and nobody else may read it,
 * or to root, who may let the server's group read it.
 */
static inline const char *
zks_check_file(const struct stat *st, bool secret)
{
	bool		own = st->st_uid == geteuid();

	if (!S_ISREG(st->st_mode))
		return "is not a regular file";
	if (secret && !own && st->st_uid != 0)
		return "is owned neither by the server's user nor by root";
	if (secret && (st->st_mode & (own ? S_IRWXG | S_IRWXO : S_IWGRP | S_IXGRP | S_IRWXO)) != 0)
		return "has group or world access";
	return NULL;
}

#endif							/* ZKLOCK_TLS_H */

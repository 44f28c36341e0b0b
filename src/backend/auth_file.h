/*-------------------------------------------------------------------------
 *
 * auth_file.h
 *	  The file of credentials, zklock.auth_file.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_AUTH_FILE_H
#define ZKLOCK_AUTH_FILE_H

#include "zk/session.h"

typedef struct ZkAuthFile
{
	int			n;
	ZkCredential *list;			/* points into text */
	char	   *text;
	int			len;
} ZkAuthFile;

/*
 * Read the file; NULL or "" has none.  Raises F0000 when it cannot be read, is
 * open to others, or has a bad line, without a word of what stands in it.
 */
extern void zkb_read_auth_file(const char *file, ZkAuthFile *credentials);

/* To be called as soon as a session has them */
extern void zkb_wipe_credentials(ZkAuthFile *credentials);

#endif							/* ZKLOCK_AUTH_FILE_H */

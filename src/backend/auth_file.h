/*-------------------------------------------------------------------------
 *
 * auth_file.h
 *	  Reads the file of credentials, zklock.auth_file.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_AUTH_FILE_H
#define ZKLOCK_AUTH_FILE_H

#include "zk/session.h"

typedef struct ZkAuthFile
{
	int			n;
	ZkCredential *list;			/* points into contents */
	char	   *contents;
	int			len;
} ZkAuthFile;

/*
 * Read the file; "" stands for no credentials.  Raises F0000, without
 * revealing anything of its contents, if it cannot be read, is open to others,
 * or has an invalid line.  The caller wipes the contents, after an error, too.
 */
extern void zkb_read_auth_file(const char *file, ZkAuthFile *credentials);

#endif							/* ZKLOCK_AUTH_FILE_H */

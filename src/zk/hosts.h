/*-------------------------------------------------------------------------
 *
 * hosts.h
 *	  The list of an ensemble's servers: its form, and two of them compared.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_HOSTS_H
#define ZKLOCK_HOSTS_H

#include <stdbool.h>

/* Where none is given, as for ZooKeeper's other clients */
#define ZKHOSTS_PORT		2181

/* Room for what zkhosts_check makes of a list of so many bytes */
#define ZKHOSTS_ROOM(len)	(7 * (len) + 64)

/*
 * What is wrong with this list, a sentence, or NULL.  Then servers has it as
 * session.h takes it: "host:port,...", in small letters, each with its port,
 * without blanks; "" for none.  Nothing is looked up, and nothing can fail:
 * settings are checked with it.
 */
extern const char *zkhosts_check(const char *list, char *servers);

/* Have two lists, as zkhosts_check makes them, a server in common? */
extern bool zkhosts_share(const char *servers, const char *others);

#endif							/* ZKLOCK_HOSTS_H */

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
#define ZKS_HOSTS_PORT		2181

/* Room for what zks_check_hosts makes of a list of this many bytes */
#define ZKS_HOSTS_ROOM(len)	(7 * (len) + 64)

/*
 * What is wrong with this list, a sentence, or NULL.  Then servers has it as
 * session.h takes it: "host:port,...", in small letters, each with its port,
 * without blanks; "" for none.  Nothing is looked up, and nothing can fail:
 * settings are checked with it.
 */
extern const char *zks_check_hosts(const char *list, char *servers);

/* Whether two lists, as zks_check_hosts makes them, have a server in common */
extern bool zks_hosts_share(const char *servers, const char *others);

#endif							/* ZKLOCK_HOSTS_H */

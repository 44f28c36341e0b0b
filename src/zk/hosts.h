/*-------------------------------------------------------------------------
 *
 * hosts.h
 *	  The list of an ensemble's servers: checking and comparing it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_HOSTS_H
#define ZKLOCK_HOSTS_H

#include <stdbool.h>

/* The default, as for ZooKeeper's other clients */
#define ZKS_HOSTS_PORT		2181

/* Room for the result of zks_check_hosts for a list of this many bytes */
#define ZKS_HOSTS_ROOM(len)	(7 * (len) + 64)

/*
 * Returns what is wrong with this list, as a sentence, or NULL.  In that case
 * servers gets it in the form that session.h takes: "host:port,...", in lower
 * case, each with its port, without blanks; "" for none.  Nothing is looked
 * up, and nothing can fail: this is used to check settings.
 */
extern const char *zks_check_hosts(const char *list, char *servers);

/* Whether two lists, as zks_check_hosts makes them, have a server in common */
extern bool zks_hosts_share(const char *servers, const char *others);

#endif							/* ZKLOCK_HOSTS_H */

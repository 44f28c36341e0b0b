/*-------------------------------------------------------------------------
 *
 * resolve.h
 *	  Host names to numeric addresses.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_RESOLVE_H
#define ZKLOCK_RESOLVE_H

#include "session_private.h"

extern bool zks_resolve(const char *hosts, bool only_numeric, ZkServers *servers, char *error, int errlen);

#endif							/* ZKLOCK_RESOLVE_H */

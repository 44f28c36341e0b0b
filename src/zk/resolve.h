/*-------------------------------------------------------------------------
 *
 * resolve.h
 *	  Host names to numeric addresses.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_RESOLVE_H
#define ZKLOCK_RESOLVE_H

#include "session.h"

extern char *zks_resolve(const char *hosts, bool only_numeric, int *naddresses, char **names,
						 char *error, int errlen);

#endif							/* ZKLOCK_RESOLVE_H */

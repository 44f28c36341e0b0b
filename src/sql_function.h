/*-------------------------------------------------------------------------
 *
 * sql_function.h
 *	  For C functions behind SQL functions that differ in an argument, or are one call.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SQL_FUNCTION_H
#define ZKLOCK_SQL_FUNCTION_H

#include "fmgr.h"

#define SQL_FUNCTION(name, body) \
PG_FUNCTION_INFO_V1(name); \
Datum \
name(PG_FUNCTION_ARGS) \
{ \
	return body; \
} \
extern int	no_such_variable

#endif							/* ZKLOCK_SQL_FUNCTION_H */

/*-------------------------------------------------------------------------
 *
 * codes.h
 *	  ZooKeeper's codes, with which requests are answered and sessions end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_CODES_H
#define ZKLOCK_CODES_H

#include <stdbool.h>

/*
 * Those of ZooKeeper's codes that matter above the wall, under names of ours
 * (its header is only for files below), and two of our own.
 */
typedef enum ZksCode
{
	ZKS_OK = 0,
	ZKS_BAD_ARGUMENTS = -8,
	ZKS_NO_NODE = -101,
	ZKS_NO_AUTH = -102,
	ZKS_BAD_VERSION = -103,
	ZKS_NO_CHILDREN = -108,		/* nodes below an ephemeral one */
	ZKS_NODE_EXISTS = -110,
	ZKS_NOT_EMPTY = -111,
	ZKS_SESSION_EXPIRED = -112,
	ZKS_INVALID_ACL = -114,
	ZKS_LOCAL_SESSION = -120,	/* which can have no ephemeral nodes */
	ZKS_QUOTA_EXCEEDED = -125,
	ZKS_THROTTLED = -127,
	ZKS_TOO_LARGE = -10001,		/* an answer of more than 8 MB was not read */
	ZKS_IN_DOUBT = -10002		/* was not sent, since it could be confused
								 * with others that may still be carried out */
} ZksCode;

/* The library's text for a code */
extern const char *zks_code_text(int rc);

/* It leaves open whether the request was carried out */
extern bool zks_is_doubtful(int rc);

/* "Not now": the request was not carried out, and will be if it is sent again */
extern bool zks_is_busy(int rc);

/* Nothing of that is an answer: what was asked must be asked again */
static inline bool
zks_is_open(int rc)
{
	return zks_is_doubtful(rc) || zks_is_busy(rc);
}

/* ZooKeeper does not accept our identity: the session ends with this code */
extern bool zks_is_auth_failure(int rc);

#endif							/* ZKLOCK_CODES_H */

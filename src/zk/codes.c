/*-------------------------------------------------------------------------
 *
 * codes.c
 *	  ZooKeeper's codes: what they mean for whoever asked.
 *
 *-------------------------------------------------------------------------
 */
#include <zookeeper/zookeeper.h>

#include "codes.h"

_Static_assert((int) ZKS_OK == ZOK && (int) ZKS_BAD_ARGUMENTS == ZBADARGUMENTS &&
			   (int) ZKS_NO_NODE == ZNONODE && (int) ZKS_NO_AUTH == ZNOAUTH &&
			   (int) ZKS_BAD_VERSION == ZBADVERSION && (int) ZKS_NODE_EXISTS == ZNODEEXISTS &&
			   (int) ZKS_NO_CHILDREN == ZNOCHILDRENFOREPHEMERALS &&
			   (int) ZKS_NOT_EMPTY == ZNOTEMPTY && (int) ZKS_INVALID_ACL == ZINVALIDACL,
			   "ZksCode has ZooKeeper's numbers (old libraries do not know the last ones)");

const char *
zks_code_text(int rc)
{
	switch (rc)
	{
		case ZKS_QUOTA_EXCEEDED:
			return "quota exceeded";
		case ZKS_THROTTLED:
			return "request throttled";
		case ZKS_IN_DOUBT:
			return "too many requests of this session are still in doubt";
		case ZKS_LOCAL_SESSION:
			return "a local session cannot create ephemeral nodes";
		default:
			return zerror(rc);
	}
}

bool
zks_is_doubtful(int rc)
{
	/*
	 * ZooKeeper's session moved (another server has us now) counts here: the
	 * request was refused, but an earlier copy may not have been.
	 */
	return rc == ZCONNECTIONLOSS || rc == ZOPERATIONTIMEOUT ||
		rc == ZRUNTIMEINCONSISTENCY || rc == ZSYSTEMERROR ||
		rc == ZCLOSING || rc == ZSESSIONEXPIRED || rc == ZINVALIDSTATE ||
		rc == ZMARSHALLINGERROR || rc == ZSESSIONMOVED;
}

/*
 * ZooKeeper 3.8's server has no other such code: REQUESTTIMEOUT is its Java
 * client's, and a server without a quorum closes its connections.
 */
bool
zks_is_busy(int rc)
{
	return rc == ZKS_THROTTLED || rc == ZKS_IN_DOUBT;
}

bool
zks_is_auth_failure(int rc)
{
	return rc == ZAUTHFAILED || rc == ZSESSIONCLOSEDREQUIRESASLAUTH;
}

/*-------------------------------------------------------------------------
 *
 * errors.c
 *	  Errors of ZooKeeper, as PostgreSQL reports them.
 *
 * This is the one place where ZooKeeper's codes become SQLSTATEs.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "errors.h"
#include "path.h"
#include "settings.h"

static const char *const trouble_hints[] = {
	[ZKS_TROUBLE_NAME] = "Check the host names in zklock.hosts, and this machine's name resolution.",
	[ZKS_TROUBLE_REFUSED] = "Check that ZooKeeper is running on the hosts and ports of zklock.hosts.",
	[ZKS_TROUBLE_CLOSED] = "A ZooKeeper server closes connections while it has no quorum, when one host opens more than maxClientCnxns, and when a client does not use TLS on a TLS port.",
	[ZKS_TROUBLE_CROWDED] = "A ZooKeeper server does this when one host opens more connections than its maxClientCnxns. Raise that limit, or lower zklock.idle_timeout: a session that holds no lock keeps its connection for that long.",
	[ZKS_TROUBLE_FOREIGN] = "Check the ports in zklock.hosts: another program answers there, or ZooKeeper with TLS.",
	[ZKS_TROUBLE_TLS] = "Check the zklock.tls_* settings, and that the ports in zklock.hosts are TLS ports.",
};

const char *
zkb_trouble_hint(ZksTrouble kind, const char *otherwise)
{
	return trouble_hints[kind] != NULL ? trouble_hints[kind] : otherwise;
}

void
zkb_raise_no_memory(void)
{
	ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
}

ZkRequest *
zkb_sent(ZkRequest *request)
{
	if (request == NULL)
		zkb_raise_no_memory();
	return request;
}

void
zkb_raise_unreachable(const ZkSessionTexts *texts)
{
	const ZkTroubles *last = &texts->troubles;

	ereport(ERROR,
			(errcode(ERRCODE_SYSTEM_ERROR),
			 errmsg("could not connect to ZooKeeper"),
			 last->text[0] != '\0' ?
			 errdetail_plural("The last attempt failed: %s.", "The last attempts failed: %s.",
							  last->n, last->text) :
			 errdetail("No server answered in time."),
			 errhint("%s", zkb_trouble_hint(last->kind, "Check the addresses in zklock.hosts, and whether a firewall blocks them."))));
}

void
zkb_raise_cut_off(ZkSession *session)
{
	ZkSessionTexts texts;

	zks_texts(session, &texts);
	ereport(ERROR,
			(errcode(ERRCODE_IO_ERROR),
			 errmsg("lost connection to ZooKeeper"),
			 texts.troubles.text[0] != '\0' ?
			 errdetail_plural("The last attempt to reconnect failed: %s.",
							  "The last attempts to reconnect failed: %s.",
							  texts.troubles.n, texts.troubles.text) : 0,
			 errhint("%s Locks of this session are suspect until the connection is restored; see zk_locks.",
					 zkb_trouble_hint(texts.troubles.kind, ZKB_CUT_OFF_HINT))));
}

#define LOCAL_SESSIONS_HINT	"If localSessionsEnabled is set, localSessionsUpgradingEnabled must be set, too, on all servers."

static int
detail_of_what_was_said(const ZkWait *wait)
{
	return wait->said != ZKS_OK ? errdetail("ZooKeeper reported: %s.", zks_code_text(wait->said)) : 0;
}

void
zkb_raise_no_use(ZkWait *wait)
{
	ereport(ERROR,
			(errcode(ERRCODE_IO_ERROR),
			 errmsg("ZooKeeper gave no usable answer within %d ms", zklock_operation_timeout),
			 wait->said != ZKS_OK ? detail_of_what_was_said(wait) :
			 errdetail("ZooKeeper's answers about the lock's nodes kept changing or contradicting each other."),
			 wait->said == ZKS_SESSION_EXPIRED ?
			 errhint("%s", LOCAL_SESSIONS_HINT) :
			 errhint("Check the ensemble, or raise zklock.operation_timeout.")));
}

void
zkb_raise_no_answer(ZkWait *wait)
{
	if (zks_now() >= wait->deadline)
		ereport(ERROR,
				(errcode(ERRCODE_IO_ERROR),
				 errmsg("timeout expired before ZooKeeper answered"),
				 detail_of_what_was_said(wait),
				 errhint("It is not known whether the lock is free. Check the ensemble, or give the call more time.")));
	if (wait->said != ZKS_OK)
		zkb_raise_no_use(wait);
	ereport(ERROR,
			(errcode(ERRCODE_IO_ERROR),
			 errmsg("ZooKeeper did not answer within %d ms", zklock_operation_timeout),
			 errhint("Check the ensemble, or raise zklock.operation_timeout.")));
}

void
zkb_raise_unanswered(ZkWait *wait, ZkSession *session)
{
	if (zks_info(session).state == ZKS_SUSPENDED)
		zkb_raise_cut_off(session);
	zkb_raise_no_answer(wait);
}

static const struct
{
	int			rc;
	int			sqlstate;
	const char *message;
	const char *hint;
}			faults[] =
{
	{ZKS_NO_AUTH, ERRCODE_INSUFFICIENT_PRIVILEGE,
		"permission denied by ZooKeeper for lock path \"%s\"",
	"An ACL of the path, of one of its parents, or of a node there denies access to this session. Check zklock.auth_file."},
	{ZKS_INVALID_ACL, ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION,
		"ZooKeeper refused the ACL of a node at lock path \"%s\"",
	"With zklock.acl \"creator\", zklock.auth_file must contain credentials of a scheme that ZooKeeper accepts in an ACL, such as digest."},
	{ZKS_NO_CHILDREN, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
		"lock path \"%s\" is or lies under an ephemeral node",
	"The node is a lock, taken with zklock.node_style \"single\" or by another program. Use that style to take it, or choose another path: nothing can be locked below it."},
	{ZKS_NOT_EMPTY, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
		"lock path \"%s\" is a directory that is in use",
	"With zklock.node_style \"single\", the lock is a node at the path itself. It cannot be taken while there are locks of another style at the path, or other nodes below it."},
	{ZKS_TOO_LARGE, ERRCODE_PROGRAM_LIMIT_EXCEEDED,
		"ZooKeeper's answer about lock path \"%s\" is larger than 8 MB",
	"There are too many nodes, or one has too much data. Inspect the path with a ZooKeeper client and remove what does not belong there, or choose another path."},
	{ZKS_QUOTA_EXCEEDED, ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
		"lock path \"%s\" would exceed a ZooKeeper quota",
	"Run \"listquota\" in ZooKeeper's shell for the path and for each path above it."},
	{ZKS_LOCAL_SESSION, ERRCODE_IO_ERROR,
		"could not lock \"%s\": ZooKeeper created no ephemeral node for this session",
	LOCAL_SESSIONS_HINT},
	{ZKS_BAD_ARGUMENTS, ERRCODE_INVALID_PARAMETER_VALUE,
	"ZooKeeper refused lock path \"%s\"", NULL},
};

void
zkb_raise_not_accepted(int rc)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
			 errmsg("ZooKeeper does not accept this session"),
			 errdetail("ZooKeeper reported: %s.", zks_code_text(rc)),
			 errhint("Check zklock.auth_file and the authentication schemes that the servers support and require.")));
}

void
zkb_raise(int rc, const char *path)
{
	if (zks_is_auth_failure(rc))
		zkb_raise_not_accepted(rc);
	for (int i = 0; i < lengthof(faults); i++)
	{
		if (faults[i].rc == rc)
			ereport(ERROR,
					(errcode(faults[i].sqlstate),
					 errmsg(faults[i].message, zkb_path_for_display(path)),
					 faults[i].hint != NULL ? errhint("%s", faults[i].hint) : 0));
	}
	ereport(ERROR,
			(errcode(ERRCODE_IO_ERROR),
			 errmsg("could not use lock path \"%s\": %s",
					zkb_path_for_display(path), zks_code_text(rc))));
}

static const char *const loss_details[] = {
	[ZK_NOT_LOST] = "ZooKeeper ended the session that held it.",
	[ZK_LOST_NODE] = "Its node in ZooKeeper was deleted.",
	[ZK_LOST_ACCESS] = "ZooKeeper no longer lets this session see the lock's node.",
	[ZK_LOST_CONTACT] = "Nothing was heard from ZooKeeper for the whole session timeout, so another client might hold the lock by now.",
	[ZK_LOST_SESSION] = "ZooKeeper ended the session that held it.",
	[ZK_LOST_IDENTITY] = "ZooKeeper no longer accepts the session that held it.",
};

const char *
zkb_loss_detail(ZkLoss loss)
{
	return loss_details[loss];
}

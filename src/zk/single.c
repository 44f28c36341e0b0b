/*-------------------------------------------------------------------------
 *
 * single.c
 *	  Which node is ours, at a path where others create theirs.
 *
 * A single node stands at a path where other programs create theirs.  That it is
 * there proves nothing, nor does a check: which node it is, only a read tells, by
 * the session that owns it and the transaction that created it.  So each create
 * and each check has a read behind it.  No operation of ZooKeeper deletes a node
 * on condition of these; but one can on condition of the version.  So ours are
 * created with one that they hardly share with another's: its data is set a random
 * number of times in the transaction that creates it.  What others create has
 * version 0; and another zklock avoids that of the node that it has waited for.
 * Requests that were not answered may be carried out late.  While they may, the node
 * that they were meant for stays in the list, and their versions are not used again at
 * its path: they cannot hit a later node of ours, and we know its create from theirs.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "node_private.h"

/*
 * The versions of single nodes, up to ZKN_MOST_VERSION.  Each costs as many operations
 * as it says, in one request.
 */
#define LEAST_VERSION		1

/* A request that depends on its version may still be carried out */
void
zkn_doubt_locked(ZkNode *n)
{
	zk_assert(zks_has_mutex(n->session));
	n->stale_until = zks_now() + STALE_MS * ZKS_MS;
	if (n->single.version >= 0 && n->single.version <= ZKN_MOST_VERSION)
		n->single.versions |= UINT32_C(1) << n->single.version;
}

/* At random; -1: requests that depend on each of them may still be carried out */
int
zkn_new_version_locked(const ZkNode *n, int seen)
{
	uint32_t	doubted = 0;
	int			free_versions[ZKN_MOST_VERSION + 1] = {0};
	int			nfree = 0;

	zk_assert(zks_has_mutex(n->session));
	for (const ZkNode *other = TAILQ_FIRST(&n->session->nodes.all);
		 other != NULL && !zkn_is_wanted(other); other = TAILQ_NEXT(other, link))
	{
		if (zks_now() < other->stale_until && strcmp(other->dir, n->dir) == 0)
			doubted |= other->single.versions;
	}
	for (int version = LEAST_VERSION; version <= ZKN_MOST_VERSION; version++)
	{
		if (version != seen && (doubted & (UINT32_C(1) << version)) == 0)
			free_versions[nfree++] = version;
	}
	return nfree > 0 ? free_versions[zks_random(nfree)] : -1;
}

/* It may be there, and which one it is is not known */
static bool
is_unknown(const ZkNode *n)
{
	return n->czxid == 0 && (n->state != ZKN_ABSENT || zks_now() < n->stale_until);
}

/*
 * Whether what was read is another one of ours, or may be.  Right behind its create,
 * which has succeeded, none that is held can be there; of these there may be thousands,
 * and the others come first.
 */
static bool
is_another(const ZkNode *n, const ZkRequest *r)
{
	const ZkNode *other;

	TAILQ_FOREACH(other, &n->session->nodes.all, link)
	{
		if (n->state == ZKN_CREATING && zkn_is_wanted(other))
			break;
		if (other != n && other->single.at_path && strcmp(other->dir, n->dir) == 0 &&
			(is_unknown(other) ? other->single.version == r->answer.stat.version : other->czxid == r->answer.stat.czxid))
			return true;
	}
	return false;
}

/*
 * Whether what was read is this node, whose create was sent: another one of ours
 * may be at its path, if it is a single one.
 */
bool
zkn_is_ours_locked(const ZkNode *n, const ZkRequest *r)
{
	zk_assert(zks_has_mutex(n->session));
	if (r->answer.rc != ZOK || r->answer.stat.owner != n->session->info.session_id)
		return false;
	if (!n->single.at_path)
		return true;

	/* without a czxid it could not be meant */
	return r->answer.stat.czxid > 0 && !is_another(n, r);
}

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
 * Requests that were not answered may be carried out late, so while they may, their
 * versions are used no more: they cannot hit a later node of ours, and we know its
 * create from theirs.
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

/* A version that is doubted at one path can be used at another */
static ZkDoubt *
doubt_at(ZkSession *s, const char *path)
{
	uint32_t	hash = 0;

	for (; *path != '\0'; path++)
		hash = hash * 31 + (unsigned char) *path;
	return &s->doubts[hash % ZK_DOUBTS];
}

/* A request that depends on this version may still be carried out */
void
zkn_doubt_version_locked(ZkNode *n)
{
	ZkDoubt    *doubt;

	zk_assert(zks_has_mutex(n->session));
	if (!n->single || n->version < 0 || n->version > ZKN_MOST_VERSION)
		return;
	doubt = doubt_at(n->session, n->dir);
	doubt->versions |= UINT32_C(1) << n->version;
	doubt->until = zks_now() + STALE_MS * ZKS_MS;
}

/* At random; -1: requests that depend on each of them may still be carried out */
int
zkn_new_version_locked(const ZkNode *n, int seen)
{
	ZkDoubt    *doubt = doubt_at(n->session, n->dir);
	int			free_versions[ZKN_MOST_VERSION + 1] = {0};
	int			nfree = 0;

	zk_assert(zks_has_mutex(n->session));
	if (zks_now() >= doubt->until)
		doubt->versions = 0;
	for (int version = LEAST_VERSION; version <= ZKN_MOST_VERSION; version++)
	{
		if (version != seen && (doubt->versions & (UINT32_C(1) << version)) == 0)
			free_versions[nfree++] = version;
	}
	return nfree > 0 ? free_versions[zks_random(nfree)] : -1;
}

/* It may be there, and which one it is is not known */
static bool
is_unknown(const ZkNode *n)
{
	return n->single && (n->state == ZKN_CREATING || n->state == ZKN_UNSURE);
}

/*
 * Whether what was read is another one of ours, or may be.  At most one create at
 * its path is wanted, so others that are unknown are among those that nobody wants.
 * They come first; of the rest there may be thousands, of which hardly ever one needs to be
 * looked at: what was created after all that are known is none of these.
 */
static bool
is_another(const ZkNode *n, const ZkRequest *r)
{
	const ZkSession *s = n->session;

	for (const ZkNode *other = s->nodes; other != NULL; other = other->next)
	{
		if (zkn_is_wanted(other) && r->stat.czxid > s->newest_single)
			return false;
		if (other != n && other->single && strcmp(other->dir, n->dir) == 0 &&
			(is_unknown(other) ? other->version == r->stat.version : other->czxid == r->stat.czxid))
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
	if (r->rc != ZOK || r->stat.owner != n->session->info.session_id)
		return false;
	if (!n->single)
		return true;

	/* without a czxid it could not be meant */
	return r->stat.czxid > 0 && !is_another(n, r);
}

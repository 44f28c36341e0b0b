/*-------------------------------------------------------------------------
 *
 * unwanted.c
 *	  What is asked about nodes of ours that nobody here wants any longer, as long
 *	  as they may exist.  node.c deletes them.
 *
 * They come first in the list of a session's nodes.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "node_private.h"

/* Whether this is its name, even if it does not know yet that it is */
static bool
goes_by(const ZkNode *n, const char *name)
{
	char		shared[ZKP_NAME_LEN];

	if (n->single)
		return false;			/* it is in no queue */
	if (n->name[0] == '\0')
		return strncmp(name, n->prefix, strlen(n->prefix)) == 0;
	return strcmp(name, n->name) == 0 ||
		(zkn_is_telling(n) && zkp_shared_name(shared, n->name) && strcmp(name, shared) == 0);
}

/* Nobody wants it, and it may exist */
static bool
may_be_left(const ZkNode *n)
{
	return !zkn_is_wanted(n) && n->state != ZKN_ABSENT && n->state != ZKN_PRUNING && n->state != ZKN_DELETED;
}

int
zkn_leftovers(ZkSession *s, const char *dir)
{
	int			count = 0;

	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL && !zkn_is_wanted(n); n = n->next)
		count += may_be_left(n) && !n->deleting && strcmp(n->dir, dir) == 0;
	zks_leave(s);
	return count;
}

/* A quorum has said that it does not exist; only a late create could change that */
static bool
was_denied(const ZkNode *n)
{
	return n->state == ZKN_UNSURE && n->look_at != 0;
}

bool
zkn_is_settled(ZkSession *s, const char *path, int *refused)
{
	bool		result = true;

	*refused = ZOK;
	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL && !zkn_is_wanted(n); n = n->next)
	{
		if (strcmp(n->dir, path) != 0 || !may_be_left(n) || was_denied(n))
			continue;
		result = false;
		if (n->refused != ZOK)
			*refused = n->refused;
	}
	zks_leave(s);
	return result;
}

bool
zkn_any_unwanted(ZkSession *s)
{
	bool		result = false;

	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL && !zkn_is_wanted(n) && !result; n = n->next)
		result = may_be_left(n) && !was_denied(n);
	zks_leave(s);
	return result;
}

int
zkn_leave_out_unwanted(ZkSession *s, const char *dir, ZkpContender *queue, int n)
{
	zks_enter(s);
	for (ZkNode *node = s->nodes; node != NULL && !zkn_is_wanted(node); node = node->next)
	{
		int			left = 0;

		if (strcmp(node->dir, dir) != 0)
			continue;
		for (int i = 0; i < n; i++)
		{
			if (!goes_by(node, queue[i].name))
				queue[left++] = queue[i];
		}
		n = left;
	}
	zks_leave(s);
	return n;
}

bool
zkn_gone(ZkSession *s, uint64_t first, uint64_t last, int *refused)
{
	bool		result = true;

	/*
	 * until the first that waits; one that is refused counts when no other
	 * waits
	 */
	*refused = 0;
	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL && (result || *refused != 0); n = n->next)
	{
		if (n->ticket < first || n->ticket > last)
			continue;
		result = false;
		*refused = n->refused;
	}
	zks_leave(s);
	return result;
}

/* The path of one that ZooKeeper refuses to delete, or "" */
void
zkn_refused_path(ZkSession *s, char *path, int size)
{
	NodePath	refused;

	path[0] = '\0';
	zks_enter(s);
	for (ZkNode *n = s->nodes; n != NULL; n = n->next)
	{
		if (n->refused != ZOK)
			snprintf(path, size, "%s", zkn_node_path(n, n->name, &refused));
	}
	zks_leave(s);
}

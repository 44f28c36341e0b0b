/*-------------------------------------------------------------------------
 *
 * unwanted.c
 *	  What is asked about nodes of ours that nobody here wants any longer, as long
 *	  as they may exist.  node.c deletes them; they come first in the list.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "node_private.h"

/* Whether this is its name, even if it does not know yet that it is */
static bool
goes_by(const ZkNode *n, const char *name)
{
	if (n->single.at_path)
		return false;			/* it is in no queue */
	return strncmp(name, n->name, strlen(n->name)) == 0 ||
		(zkn_is_renaming(n) && strcmp(name, n->shared_name) == 0);
}

int
zkn_leftovers(ZkSession *s, const char *dir)
{
	int			count = 0;

	zks_enter(s);
	for (ZkNode *n = TAILQ_FIRST(&s->nodes.all); n != NULL && !zkn_is_wanted(n); n = TAILQ_NEXT(n, link))
		count += zkn_may_stand(n) && !n->deleting && strcmp(n->dir, dir) == 0;
	zks_leave(s);
	return count;
}

bool
zkn_unwanted(ZkSession *s, const char *path, int *refused)
{
	bool		result = false;

	if (refused != NULL)
		*refused = ZOK;
	zks_enter(s);
	for (ZkNode *n = TAILQ_FIRST(&s->nodes.all); n != NULL && !zkn_is_wanted(n); n = TAILQ_NEXT(n, link))
	{
		if (!zkn_may_stand(n) || (path != NULL && strcmp(n->dir, path) != 0))
			continue;
		result = true;
		if (n->refused != ZOK && refused != NULL)
			*refused = n->refused;
	}
	zks_leave(s);
	return result;
}

int
zkn_leave_out_unwanted(ZkSession *s, const char *dir, ZkpContender *queue, int n)
{
	zks_enter(s);
	for (ZkNode *node = TAILQ_FIRST(&s->nodes.all); node != NULL && !zkn_is_wanted(node); node = TAILQ_NEXT(node, link))
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
	ZkNode	   *n;

	/*
	 * until the first that waits; one that is refused counts when no other
	 * waits
	 */
	*refused = 0;
	zks_enter(s);
	TAILQ_FOREACH(n, &s->nodes.all, link)
	{
		if (n->ticket < first || n->ticket > last)
			continue;
		result = false;
		*refused = n->refused;
		if (n->refused == ZOK)
			break;
	}
	zks_leave(s);
	return result;
}

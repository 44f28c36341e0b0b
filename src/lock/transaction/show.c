/*-------------------------------------------------------------------------
 *
 * show.c
 *	  Shows the other backends of this server what this one holds.
 *
 * The slot has room for the oldest few; the rest is a number.  It is written
 * once for each call, and once at the end of a (sub)transaction, so this must
 * not depend on how many locks there are.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "backend/backend_session.h"
#include "backend/slots.h"
#include "hold_table.h"
#include "show.h"

StaticAssertDecl(lengthof(((ZkSlotHold *) 0)->counts) == ZK_SHOWN_SCOPES, "counts is indexed by ZkScope");

/* Returns its node if it is this session's, which then knows whether it is lost */
static ZkNode *
show_lock(ZkSlotHold *shown, Lock *lock)
{
	Lock	   *base = zkl_base(lock);

	shown->mode = lock->key.mode;
	shown->acquired_at = lock->acquired_at;
	zkb_slot_path(shown->path, shown->root, lock->key.path, lock->root_len);
	zkl_count_shown(lock, shown->counts);
	shown->lost = zkl_peek_session_of(base) == NULL || base->loss != ZK_NOT_LOST;
	shown->token = base != NULL ? base->grant.token : 0;
	return shown->lost ? NULL : base->grant.node;
}

void
zkl_show(void)
{
	ZkSlot	   *slot = zkb_begin_slot();
	ZkNode	   *nodes[ZKS_SHOWN_NODES];
	dlist_iter	iter;
	int			n = 0;

	if (slot == NULL)
		return;
	dlist_foreach(iter, &zkl_held)
	{
		if (n == ZKS_SHOWN_NODES)
			break;
		nodes[n] = show_lock(&slot->holds[n], dlist_container(Lock, in_held, iter.cur));
		n++;
	}
	slot->nholds = n;
	slot->more = zkl_nheld - n;
	if (zkb_peek() != NULL)
		zkn_show(zkb_peek(), nodes, n);
	zkb_end_slot(slot);
}

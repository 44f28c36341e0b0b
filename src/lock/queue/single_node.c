/*-------------------------------------------------------------------------
 *
 * single_node.c
 *	  Taking a lock that is a single node.
 *
 * A single node (zklock.node_style) has no queue.  Whoever could create it holds;
 * everybody else watches it, and tries again when it is gone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "backend/errors.h"
#include "backend/path.h"
#include "place.h"

static void
warn_of_no_lock(Call *c, Place *p)
{
	if (!c->warned)
		ereport(WARNING,
				(errmsg("node at lock path \"%s\" is not a lock", zkb_path_for_display(p->target->path)),
				 errdetail("The node is not ephemeral, so it will not disappear when its creator does."),
				 errhint("Delete the node with a ZooKeeper client to make the lock available.")));
	c->warned = true;
}

/* A directory of ours that nobody uses any longer is in the way */
static void
remove_directory(Call *c, Place *p, int version)
{
	ZkPatience	patience = zkl_patience(c, NULL);
	ZkAnswer	answer;

	zkl_drop_list(c, p);
	p->list = zkb_sent(zks_delete_directory(c->session, p->target->dir, version));
	if (zkb_await_answer(&patience, p->list, &answer) != ZKB_CAME)
		return;
	zkl_drop_list(c, p);
	if (answer.rc == ZKS_NO_AUTH)
		zkb_raise(answer.rc, p->target->path);
}

/*
 * There is a node, which is not ours: TAKEN, or LIST_AGAIN if it has been removed, or
 * was meant to be.
 */
static Verdict
judge_occupant(Call *c, Place *p, const ZkStat *node)
{
	if (node->owner != 0)
		return TAKEN;
	if (node->nbelow > 0)
		zkb_raise(ZKS_NOT_EMPTY, p->target->path);
	if (!node->is_our_directory)
	{
		warn_of_no_lock(c, p);
		return TAKEN;
	}
	remove_directory(c, p, node->version);
	zkl_ask_again(c, MOST_DOUBLINGS);
	return LIST_AGAIN;
}

/*
 * Watch the node that is there, and find out what it is: TAKEN, or LIST_AGAIN if
 * it is gone.
 */
static Verdict
watch_occupant(Call *c, Place *p)
{
	ZkPatience	patience = zkl_patience(c, p);
	ZkWatchInfo watch;

	p->nblockers = 1;
	zkl_set_watch(c, p, &p->blockers[0]);
	do
		zks_watch_info(c->session, p->blockers[0].watch, &watch);
	while (watch.state == ZKR_WATCH_PENDING && zkb_wait_on(&patience));
	if (patience.waited != ZKB_CAME)
		return patience.waited == ZKB_NO_REASON ? TAKEN : START_AGAIN;
	p->list_epoch = watch.epoch;
	if (watch.state == ZKR_WATCH_FAILED)
	{
		zkl_must_be_open(c, p, watch.rc);
		if (!zkl_await_fresh(c, patience.until))
			return START_AGAIN;
		zkl_ask_again(c, MOST_DOUBLINGS);
		return LIST_AGAIN;
	}
	if (watch.state != ZKR_WATCH_ARMED)
	{
		zkl_ask_again(c, FEW_DOUBLINGS);	/* the others are faster */
		return LIST_AGAIN;
	}

	/*
	 * Its owner may delete it by the version that it was created with, though
	 * somebody has written to it since, such as zk_lock_break.
	 */
	if (watch.stat.owner != 0 && watch.stat.owner != zks_info(c->session).session_id &&
		watch.stat.czxid != c->seen_czxid)
	{
		c->want.seen_version = watch.stat.version;
		c->seen_czxid = watch.stat.czxid;
	}
	return judge_occupant(c, p, &watch.stat);
}

/* Somebody else's node is there: wait until it is gone */
static Verdict
await_occupant(Call *c)
{
	Place	   *p = &c->places[0];
	ZkWatchInfo watch;

	do
	{
		Verdict		outcome = watch_occupant(c, p);

		if (outcome != TAKEN || zks_now() >= c->wait->deadline)
			return outcome;
		c->in_vain = 0;
		p->view = (ZkpView)
		{
			.need = 1
		};
		zkl_begin_to_wait(c, 0);
		outcome = zkl_await_turn(c, p);
		if (outcome != LIST_AGAIN)
			return outcome;
		zks_watch_info(c->session, p->blockers[0].watch, &watch);
	} while (watch.state != ZKR_WATCH_FIRED);
	return LIST_AGAIN;
}

Verdict
zkl_take_single(Call *c)
{
	Place	   *p = &c->places[0];
	Verdict		outcome;

	do
	{
		CHECK_FOR_INTERRUPTS();
		outcome = zkl_await_settled(c, p);
		if (outcome == GRANTED)
			outcome = zkl_join_queues(c, 0);
		if (outcome == GRANTED)
			outcome = zkl_confirm_turn(c, 0, 1);
		else if (outcome == TAKEN && c->may_wait && !zkl_is_too_late(c, p))
			outcome = await_occupant(c);
		if (outcome == LIST_AGAIN && zkl_is_too_late(c, p))
			outcome = TAKEN;
	} while (outcome == LIST_AGAIN);
	zkl_end_turn(c, p, outcome);
	return outcome;
}

Verdict
zkl_look_at_single(Call *c, Place *p, const ZkStat *node)
{
	if (node->owner == zks_info(c->session).session_id)
		return START_AGAIN;		/* of an earlier create, which came late */
	return judge_occupant(c, p, node);
}

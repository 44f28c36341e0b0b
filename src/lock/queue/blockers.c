/*-------------------------------------------------------------------------
 *
 * blockers.c
 *	  Those before us in a queue: they are watched, and waited for.
 *
 * We watch the two nearest ones and our own node.  When the farther one goes,
 * the list is read again while the nearer one still stands; so when that one
 * goes, we mostly know already that nobody else is left, and hold the lock
 * without asking: numbers only grow, so nobody can have come in before us.  (To
 * watch the nearest alone, and to list when it goes, is two requests less, and
 * slower even where a round trip is short: see dev/goals.md.)
 *
 * Three things make that last step unsafe (besides what lock_protocol.c knows about
 * the numbers), and then the list is read again: a reconnection (missed events
 * are replayed in no particular order), a watch on our own node that is not
 * armed (an armed one would have shown an expiry first, on the same
 * connection), and a process that was stopped (what it reads then is old).
 *
 * A reader's turn can come in one more way: the writer before it stays, but
 * its data changes to say that it is a reader now.  The watch tells when the
 * data changes, and brings the data when it is set anew.
 *
 * A semaphore is the same queue with more holders.  The first waiter watches
 * the directory itself, since anyone who leaves makes room for it; each other
 * waiter watches the one right before it, which says in its node's data when
 * it is granted its place.  So a freed place wakes one waiter, and then the
 * next one, which takes over watching the directory.  If a waiter says so
 * while we see others before it, it has nothing more to tell, and we watch the
 * directory instead.  A waiter that says nothing may be on a machine that has
 * stalled, and a directory's event may be kept back: so each looks by itself
 * now and then, the sooner the nearer it is to its turn.  If the numbers of
 * places differ, the waiters of each number are such a chain of their own: see
 * look_at_semaphore.  So whoever leaves is seen by one of each number, and four
 * requests hand a place on: the delete, the list of the first waiter, its word that
 * it has the place, and the list of the next one.
 *
 * Of a single node, the only one before us is whoever has it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"

#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/node_identity.h"
#include "backend/settings.h"
#include "backend/slots.h"
#include "place.h"

void
zkl_drop_blockers(Call *c, Place *p)
{
	for (int i = 0; i < p->nblockers; i++)
	{
		if (p->blockers[i].watch != NULL)
			zks_unwatch(c->session, p->blockers[i].watch, false);
		if (p->blockers[i].name != NULL)
			pfree(p->blockers[i].name);
	}
	memset(p->blockers, 0, sizeof(p->blockers));
	p->nblockers = 0;
}

/*
 * ZooKeeper has said this, which is no answer, so that it is asked again; or it is one:
 * it refuses.  "Not now" is as good as no word.  One that leaves everything open, again and
 * again while the connection stands, will not end.
 */
void
zkl_must_be_open(Call *c, Place *p, int rc)
{
	ZkSessionInfo info;

	if (!zks_is_open(rc))
		zkb_raise(rc, p->target->path);
	c->wait->said = rc;
	info = zks_info(c->session);
	if (!zks_is_doubtful(rc) || info.state != ZKS_CONNECTED)
		return;
	if (c->unclear_since == 0 || c->unclear_epoch != info.epoch)
		c->unclear_since = zks_now();
	c->unclear_epoch = info.epoch;
}

/*-------------------------------------------------------------------------
 * The watches
 *-------------------------------------------------------------------------
 */

/*
 * Whether this watch can still tell us what we want to know, or has done so:
 * the event often comes right after the list that still shows the node.
 */
static bool
is_of_use(Call *c, const Blocker *blocker)
{
	ZkSessionInfo info;
	ZkWatchInfo watch;

	if (blocker->watch == NULL)
		return false;
	zks_watch_info(c->session, blocker->watch, &watch);
	info = zks_info(c->session);
	return watch.state == ZKR_WATCH_PENDING ||
		((watch.state == ZKR_WATCH_ARMED || watch.state == ZKR_WATCH_FIRED) &&
		 watch.epoch == info.epoch);
}

void
zkl_set_watch(Call *c, Place *p, Blocker *blocker)
{
	char	   *path = zkl_is_single(c) ? pstrdup(p->target->dir) :
	psprintf("%s/%s", p->target->dir, blocker->name);
	ZkWatch    *old = blocker->watch;

	/*
	 * set the new one first: then the old one need not be removed at the
	 * server
	 */
	blocker->watch = zks_watch(c->session, path);
	if (old != NULL)
		zks_unwatch(c->session, old, false);
	pfree(path);
	if (blocker->watch == NULL)
		zkb_raise_no_memory();
}

/*
 * Watch those whom the view names, and our own node.  Who was watched before keeps
 * the watch, if it is still of use.
 */
void
zkl_watch_queue(Call *c, Place *p)
{
	int			n = p->by_changes ? 0 : p->view.nwatch;
	Blocker		blockers[ZKP_MOST_WATCHED] = {0};

	for (int i = 0; i < n; i++)
		blockers[i].name = pstrdup(p->nearest[i]);
	for (int i = 0; i < n * p->nblockers; i++)
	{
		Blocker    *old = &p->blockers[i / n];

		if (strcmp(blockers[i % n].name, old->name) != 0)
			continue;
		blockers[i % n].watch = old->watch;
		old->watch = NULL;
	}
	zkl_drop_blockers(c, p);
	memcpy(p->blockers, blockers, sizeof(blockers));
	p->nblockers = n;
	zkn_watch(c->session, p->node);
	for (int i = 0; i < n; i++)
	{
		if (!is_of_use(c, &p->blockers[i]))
			zkl_set_watch(c, p, &p->blockers[i]);
	}
}

/*-------------------------------------------------------------------------
 * What they say
 *-------------------------------------------------------------------------
 */

/*
 * One of those before us is gone or no longer blocks us, and the last list
 * showed nobody else to wait for.  Whether we hold the lock for certain.
 */
static bool
is_our_turn(Call *c, Place *p)
{
	ZkNodeInfo	node;
	ZkSessionInfo info;

	/* read the session last: if it has reconnected meanwhile, the epoch tells */
	zkn_info(c->session, p->node, &node);
	info = zks_info(c->session);
	return node.state == ZKN_PRESENT && node.watch == ZKR_WATCH_ARMED &&
		node.watch_epoch == info.epoch && p->list_epoch == info.epoch &&
		zks_is_fresh(&info);
}

/*
 * Look at what the watches on those before us say now, and renew those that
 * have to be.  GRANTED means that, with what the list showed, we know that it is
 * our turn.  Whether that is certain is asked last, since it must not be older than
 * what they say.  Raises if ZooKeeper refused a watch.
 */
static Verdict
look_at_blockers(Call *c, Place *p, uint32 epoch)
{
	const ZkpView *view = &p->view;
	Verdict		outcome = WAIT_ON;
	bool		has_place = false;	/* the waiter for a place of a semaphore
									 * that is before us; or it is gone */

	for (int i = 0; i < p->nblockers; i++)
	{
		Blocker    *blocker = &p->blockers[i];
		ZkWatchInfo watch;

		zks_watch_info(c->session, blocker->watch, &watch);
		switch (watch.state)
		{
			case ZKR_WATCH_ARMED:
				if (view->may_soften && watch.stat.says_shared && watch.epoch == epoch && is_our_turn(c, p))
					return GRANTED;
				has_place = view->ahead > 0 && watch.stat.says_granted;
				break;
			case ZKR_WATCH_FIRED:
				if (view->next && watch.epoch == epoch && is_our_turn(c, p))
					return GRANTED;
				has_place = view->ahead == 1;
				outcome = LIST_AGAIN;
				break;
			case ZKR_WATCH_FAILED:
				zkl_must_be_open(c, p, watch.rc);
				outcome = LIST_AGAIN;
				break;
			case ZKR_WATCH_CHANGED:

				/* who waits for a place says only that it has it */
				has_place = view->ahead > 0;
				if (has_place || zkl_is_single(c))
				{
					outcome = LIST_AGAIN;	/* a single one may be another */
					break;
				}
				zkl_set_watch(c, p, blocker);	/* that tells what is new */
				pg_fallthrough;
			case ZKR_WATCH_PENDING:
				outcome = Max(outcome, WAIT_FOR_ANSWER);
		}
	}

	/*
	 * Mostly that makes us the first; from now on we watch the directory,
	 * which works even if it does not.
	 */
	p->by_changes |= has_place;
	return has_place ? LIST_AGAIN : outcome;
}

static Verdict
look_at_changes(Call *c, Place *p)
{
	ZkWatchInfo watch;

	zks_watch_info(c->session, p->changes, &watch);
	return watch.state == ZKR_WATCH_ARMED ? WAIT_ON : LIST_AGAIN;
}

/*
 * What has happened in the queue since the list, as far as our watches tell.
 * The session was looked at before: what they say can only be newer.
 */
static Verdict
look_at_watches(Call *c, Place *p, const ZkSessionInfo *info)
{
	ZkNodeInfo	node = {.state = ZKN_ABSENT,.watch = ZKR_WATCH_ARMED};	/* a single one */
	Verdict		outcome;

	if (p->node != NULL)
		zkn_info(c->session, p->node, &node);
	if (info->state == ZKS_OVER || node.state == ZKN_LOST)
		return START_AGAIN;
	if (info->state != ZKS_CONNECTED)
		return WAIT_ON;
	if (info->epoch != p->list_epoch)
		return LIST_AGAIN;
	outcome = p->by_changes ? look_at_changes(c, p) : look_at_blockers(c, p, info->epoch);
	if (outcome != WAIT_ON && outcome != WAIT_FOR_ANSWER)
		return outcome;
	if (node.watch == ZKR_WATCH_FAILED || node.watch == ZKR_WATCH_CHANGED)
		return LIST_AGAIN;
	return node.watch == ZKR_WATCH_PENDING ? WAIT_FOR_ANSWER : outcome;
}

/*-------------------------------------------------------------------------
 * The wait
 *-------------------------------------------------------------------------
 */

static bool
is_waiting(Verdict outcome)
{
	return outcome == WAIT_ON || outcome == WAIT_FOR_ANSWER;
}

/* Once something has happened, that is kept: to look may change the watches */
static bool
still_waits(void *arg)
{
	Place	   *p = arg;
	ZkSessionInfo info = zks_info(p->call->session);

	if (is_waiting(p->seen))
		p->seen = look_at_watches(p->call, p, &info);
	return is_waiting(p->seen) && info.state == ZKS_CONNECTED;
}

/*
 * Sleep until something happens in the queue that the list has shown.
 */
Verdict
zkl_await_turn(Call *c, Place *p)
{
	int64		armed_by = zkb_deadline(zklock_operation_timeout);
	int64		began_at = zks_now();

	for (;;)
	{
		ZkSessionInfo info = zks_info(c->session);
		Verdict		outcome;
		int64		until = ZKS_NEVER;
		int64		look_at = ZKS_NEVER;

		outcome = look_at_watches(c, p, &info);
		if (!is_waiting(outcome))
			return outcome;
		if (info.state != ZKS_CONNECTED)
		{
			if (!zkb_wait(c->wait, c->session, info.suspended_at + zklock_operation_timeout * ZKS_MS, ZKB_WAIT_ACQUIRE))
				zkb_raise_cut_off(c->session);
			continue;
		}
		if (zks_now() >= zkl_search_due(p->search))
		{
			p->seen = outcome;
			zkl_search(p->search);
			zkb_end_slot(zkb_begin_slot()); /* what was counted */
			if (!is_waiting(p->seen))
				return p->seen;
			continue;			/* what came with its last answer woke nobody
								 * else */
		}

		if (outcome == WAIT_FOR_ANSWER)
			until = armed_by;
		else
		{
			armed_by = zkb_deadline(zklock_operation_timeout);
			c->unclear_since = 0;
		}

		/*
		 * The one that would tell us may be unable to; and who may not read a
		 * directory at the moment of its change is never told (ZooKeeper
		 * 3.8.4, 3.9.2).
		 */
		if (p->by_changes)
			look_at = began_at + zks_timeout(&info);
		else if (p->view.ahead > 0)
			look_at = began_at + p->view.ahead * zks_beat_after(&info);

		if (zkb_wait(c->wait, c->session, Min(Min(until, look_at), zkl_search_due(p->search)), ZKB_WAIT_ACQUIRE))
			continue;
		if (zks_now() >= c->wait->deadline)
			return TAKEN;
		if (zks_now() >= look_at)
			return LIST_AGAIN;
		if (zks_now() < until)
			continue;			/* time to search */
		zkb_raise_no_answer(c->wait);
	}
}

/* Others are before us: we wait here now, if we did not before */
void
zkl_begin_to_wait(Call *c, int at)
{
	Place	   *p = &c->places[at];
	ZkSearchFor what = {
		.patience = {.session = c->session,.wait = c->wait,.event = ZKB_WAIT_ACQUIRE,.go_on = still_waits,.arg = p},
		.node = p->node,.dir = p->target->dir,.root_len = p->target->path - p->target->dir,
		.want = &c->want,.log = &c->log,.holds = c->holds || at > 0
	};

	if (!c->waited)
		zkb_counters.waits++;
	c->waited = true;
	if (c->log.began_at == 0)
		c->log.began_at = zks_now();
	if (c->waiting != p)
		zkb_slot_waits(c->want.mode, zkl_shown_scope(p->target->scope), p->target->dir,
					   p->target->path - p->target->dir, c->log.began_at);
	c->waiting = p;
	if (p->search == NULL)
		p->search = zkl_begin_search(&what);
}

/* The wait is over, in one way or another */
void
zkl_end_turn(Call *c, Place *p, Verdict outcome)
{
	c->waiting = NULL;
	zkb_slot_waits_no_more();
	if (outcome != GRANTED)
		return;
	c->in_vain = 0;				/* we get on, however many are left */
	c->unclear_since = 0;
	zkl_end_search(&p->search);
	zkl_log_end_of_wait(&c->log, true);
	c->log.began_at = 0;
}

/*
 * Who holds us up, as far as our watches have read it, for an error that ends the
 * wait; or NULL.  Asks nothing.
 */
char *
zkl_tell_blockers(void *arg)
{
	Call	   *c = arg;
	Place	   *p = c->waiting;
	StringInfoData text;

	if (p == NULL)
		return NULL;
	initStringInfo(&text);
	for (int i = 0; i < p->nblockers; i++)
	{
		ZkWatchInfo watch;
		ZkpData		says;

		if (p->blockers[i].watch == NULL)
			continue;
		zks_watch_info(c->session, p->blockers[i].watch, &watch);
		if (watch.stat.owner == 0)
			continue;
		zkp_read_data(watch.data, watch.data_len, &says);
		appendStringInfo(&text, "%s%s", text.len > 0 ? ", " : "",
						 zkb_who(says.identity, says.identity_len, 0, watch.stat.owner));
	}
	if (text.len == 0)
		return NULL;
	return psprintf(p->view.need == 1 ? "It is held by %s." : "Before this session in the queue, among others: %s.", text.data);
}

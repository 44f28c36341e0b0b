/*-------------------------------------------------------------------------
 *
 * watch.c
 *	  Watches: on a node, or on the children of a directory.
 *
 * Those on a node are data watches: one set through exists() on a node that
 * is never created would stay forever.  The library keeps all of them across
 * a reconnection.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "operation.h"
#include "watch_private.h"

/* At a path; the next ones in the chain may be at others */
static struct ZkWatchList *
chain_of(ZkSession *s, const char *path)
{
	uint32_t	hash = 2166136261u; /* FNV-1a */

	for (const char *c = path; *c != '\0'; c++)
		hash = (hash ^ (unsigned char) *c) * 16777619u;
	return &s->watches.chains[hash % ZKR_CHAINS];
}

static void
free_watch(ZkWatch *w)
{
	ZkSession  *s = w->session;

	LIST_REMOVE(w, in_list);
	LIST_REMOVE(w, in_chain);
	s->watches.bytes -= ZKR_STRING_BYTES + strlen(w->path);
	free(w->info.data);
	free(w);
}

/* Whether they do not fit into one packet, or would not if optional ones went on */
bool
zkr_watches_exceed_locked(ZkSession *s, bool optional)
{
	zk_assert(zks_has_mutex(s));
	if (s->options.ncredentials > 1)
		return s->watches.bytes > (optional ? ZKR_WATCH_BYTES_ENOUGH : ZKR_WATCH_BYTES_SURELY_SENT);
	return s->watches.bytes > (optional ? ZKN_PATHS_MAX + ZKR_WATCH_BYTES_LEFT : ZKR_WATCH_BYTES_MAX);
}

static void
fire(ZkWatch *w)
{
	w->info.state = ZKR_WATCH_FIRED;
	if (w->of_ours && !w->dropped)
		w->session->nodes.some_lost = true;
}

/* Whether the event is for watches of this kind, too */
static bool
concerns(int type, const ZkWatch *w)
{
	if (type == ZOO_CHILD_EVENT)
		return w->of_children;
	return (type != ZOO_CHANGED_EVENT && type != ZOO_CREATED_EVENT) || !w->of_children;
}

/*
 * The server says it once for all watches of a path, and so does the library, since
 * they are all the same to it.  (Were they not, it would compare each with each when
 * it tells them of a connection.)  One whose request has not been answered is
 * skipped: the event came before the server set it.
 */
static void
on_watch(zhandle_t *zh, int type, int state, const char *path, void *context)
{
	ZkSession  *s = (ZkSession *) zoo_get_context(zh);

	if (type == ZOO_SESSION_EVENT)
		return;					/* it is said to every watch; library_handle.c
								 * handles it */
	for (ZkWatch *next,
		 *w = LIST_FIRST(chain_of(s, path)); w != NULL; w = next)
	{
		next = LIST_NEXT(w, in_chain);
		if (w->info.state == ZKR_WATCH_PENDING || !concerns(type, w) || strcmp(w->path, path) != 0)
			continue;
		w->astray = false;
		if (type == ZOO_DELETED_EVENT)
			fire(w);
		else if (w->info.state == ZKR_WATCH_ARMED)
			w->info.state = ZKR_WATCH_CHANGED;
		if (!w->dropped)
			s->notify = true;
		else if (!w->in_flight)
			free_watch(w);
	}
}

/* Whether anybody else is still interested in this path */
static bool
watched_by_another(ZkWatch *w)
{
	ZkWatch    *other;

	LIST_FOREACH(other, chain_of(w->session, w->path), in_chain)
	{
		if (other != w && !other->dropped && other->of_children == w->of_children &&
			strcmp(other->path, w->path) == 0 &&
			(other->info.state == ZKR_WATCH_ARMED || other->in_flight))
			return true;
	}
	return false;
}

/* Those that were left, and that the library has forgotten with its handle */
void
zkr_free_left_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkWatch *next,
		 *w = LIST_FIRST(&s->watches.all); w != NULL; w = next)
	{
		next = LIST_NEXT(w, in_list);
		if (w->left && !w->in_flight)
			free_watch(w);
	}
}

/* Those of this kind at a path, which would be awaited as long as the session lives */
static void
free_left_at(ZkSession *s, const char *path, bool of_children)
{
	for (ZkWatch *next,
		 *w = LIST_FIRST(chain_of(s, path)); w != NULL; w = next)
	{
		next = LIST_NEXT(w, in_chain);
		if (w->left && !w->in_flight && w->of_children == of_children && strcmp(w->path, path) == 0)
			free_watch(w);
	}
}

/*
 * Nobody wants it, and its request has been answered.  An armed one is removed at the
 * server, too; if that fails, it goes with its node or with the session.  Or it is left;
 * not one of an earlier connection: if that belonged to an earlier handle, this one knows
 * nothing of it.
 */
static void
let_go(ZkWatch *w)
{
	ZkOp		op = {
		.type = ZOO_REMOVE_WATCHES,.path = w->path,.flags = w->of_children ? ZWATCHTYPE_CHILD : ZWATCHTYPE_DATA
	};
	ZkRequest  *r;

	if (w->left && w->info.state == ZKR_WATCH_ARMED && !w->astray && w->info.epoch == w->session->info.epoch)
		return;
	if ((w->info.state == ZKR_WATCH_ARMED || w->astray) && !watched_by_another(w) &&
		(r = zkr_new_locked(w->session, NULL, NULL)) != NULL)
	{
		r->listener = LISTENER_NONE;
		zkr_send_locked(r, &op);
	}
	free_watch(w);
}

static void
on_watch_set(ZkRequest *r)
{
	ZkWatch    *w = r->owner;

	w->in_flight = false;
	if (r->meant != 0 && r->answer.stat.czxid != 0 && r->answer.stat.czxid != r->meant)
		w->astray = true;
	w->info.data = r->answer.data;
	w->info.data_len = r->answer.data != NULL ? r->answer.data_len : 0;
	w->info.stat = r->answer.stat;
	r->answer.data = NULL;
	if (w->info.state == ZKR_WATCH_PENDING || r->answer.rc == ZOK)
	{
		w->info.epoch = r->answer.epoch;
		w->info.rc = r->answer.rc;
		w->info.state = r->answer.rc == ZOK ? ZKR_WATCH_ARMED : ZKR_WATCH_FAILED;
		if (r->answer.rc == ZNONODE)
			fire(w);
	}
	w->session->notify = true;
	if (w->dropped)
		let_go(w);
}

/* In flight, until the answer to a request that has it */
static ZkWatch *
new_watch_locked(ZkSession *s, const char *path, bool of_children)
{
	ZkWatch    *w = calloc(1, sizeof(ZkWatch) + strlen(path) + 1);

	if (w == NULL)
		return NULL;
	w->session = s;
	w->of_children = of_children;
	w->in_flight = true;
	strcpy(w->path, path);
	LIST_INSERT_HEAD(&s->watches.all, w, in_list);
	LIST_INSERT_HEAD(chain_of(s, path), w, in_chain);
	s->watches.bytes += ZKR_STRING_BYTES + strlen(path);
	return w;
}

/* One that finds another node than the one that is meant has fired */
ZkWatch *
zkr_new_watch_locked(ZkSession *s, const char *path, int64_t meant, int keeps_data)
{
	ZkWatch    *w = new_watch_locked(s, path, false);
	ZkRequest  *r;

	zk_assert(zks_has_mutex(s));
	if (w == NULL)
		return NULL;
	r = zkr_new_locked(s, on_watch_set, w);
	if (r == NULL)
	{
		free_watch(w);
		return NULL;
	}
	r->watcher = on_watch;
	r->meant = meant;
	r->keeps_data = keeps_data;
	zkr_read_locked(r, ZOO_GETDATA_OP, path);
	return w;
}

void
zkr_drop_watch_locked(ZkWatch *w)
{
	zk_assert(zks_has_mutex(w->session));
	w->dropped = true;
	if (w->in_flight)
		return;					/* on_watch_set continues */
	let_go(w);
}

/*
 * ... where it fires soon by itself, since what it watches is about to be deleted, or
 * a node in the directory that it watches.  The event is less work than a request to
 * remove it, for us and for the server.  But a directory may stay as it is for as long as
 * we hold what we waited for there, so not many of them are left.
 */
void
zkr_leave_watch_locked(ZkWatch *w)
{
	zk_assert(zks_has_mutex(w->session));
	w->left = !w->of_children || w->session->watches.bytes <= ZKR_WATCH_BYTES_LEFT;
	zkr_drop_watch_locked(w);
}

/*
 * The server has said that the node is gone, and before that to each watch: one that
 * was left there and has not fired never will.
 */
void
zkr_node_is_gone_locked(ZkSession *s, const char *path, const char *dir)
{
	zk_assert(zks_has_mutex(s));
	free_left_at(s, path, false);
	free_left_at(s, dir, true);
}

ZkWatch *
zks_watch(ZkSession *s, const char *path)
{
	ZkWatch    *w;

	zks_enter(s);
	w = zkr_new_watch_locked(s, path, 0, ZKS_WATCHED_KEPT);
	zks_leave(s);
	return w;
}

/*
 * An armed watch is set once more: another one at each look of who waits long, while
 * nothing changes, would stay.
 */
ZkRequest *
zks_list_and_watch(ZkSession *s, const char *dir, bool fresh, ZkWatch **watch)
{
	ZkWatch    *old = *watch;
	ZkWatch    *w = old;
	ZkRequest  *r = NULL;

	zk_assert(old == NULL || (old->of_children && strcmp(old->path, dir) == 0));
	zks_enter(s);
	if (old == NULL || old->in_flight || old->info.state != ZKR_WATCH_ARMED)
		w = new_watch_locked(s, dir, true);
	if (w != NULL)
		r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
	{
		*watch = w;
		w->in_flight = true;
		r->done = on_watch_set;
		r->owner = w;
		r->watcher = on_watch;
		r->sync_path = fresh ? dir : NULL;
		zkr_read_locked(r, ZOO_GETCHILDREN_OP, dir);
	}
	else if (w != NULL && w != old)
		free_watch(w);
	if (r != NULL && old != NULL && w != old)
		zkr_drop_watch_locked(old); /* this does not affect the new one */
	zks_leave(s);
	return r;
}

void
zks_watch_info(ZkSession *s, ZkWatch *w, ZkWatchInfo *info)
{
	zks_enter(s);
	*info = w->info;
	zks_leave(s);
}

void
zks_unwatch(ZkSession *s, ZkWatch *w, bool leave)
{
	zks_enter(s);
	if (leave)
		zkr_leave_watch_locked(w);
	else
		zkr_drop_watch_locked(w);
	zks_leave(s);
}

void
zkr_free_watches(ZkSession *s)
{
	while (!LIST_EMPTY(&s->watches.all))
		free_watch(LIST_FIRST(&s->watches.all));
}

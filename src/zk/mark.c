/*-------------------------------------------------------------------------
 *
 * mark.c
 *	  The marks of claims: written by a transaction, final or undone after it.
 *
 * A mark is a node that stays.  Who claims sets its data, by version, together
 * with a check of its lock's node (create.c, zkn_mark): then it is pending.
 * Once its owner has decided, it is set once more, by the next version: to what
 * says that it is done, or to what was there before.  That goes with the
 * deletion of the lock's node, in one transaction, since the next in the queue
 * reads the mark (node.c, get_rid_of); or alone, where there is no such node
 * any longer, or it stays.  A mark that somebody has changed meanwhile is left
 * alone.
 *
 *	           write     write    write not  read:   read:    set
 *	           answered  refused  answered   ours    not ours answered
 *	MARKING    MARKED    REFUSED  UNSURE
 *	UNSURE                                   MARKED  SETTLED
 *	MARKED                                                    SETTLED
 *
 * A write that was not answered may still be carried out.  So if the mark turns
 * out to be as it was before, with the version at which it would have been
 * written, it is set all the same: after that the write is refused.
 *
 * When a session ends before its marks are settled, the owner takes them to its
 * next one, of the same ensemble.  For ZooKeeper the old one need not be over (a
 * setting has changed while it was cut off): then its node still stands, and its
 * write may be carried out as late as any (models/claim.pml).
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mark_private.h"
#include "operation.h"

typedef enum Decision
{
	UNDECIDED,
	DONE,
	UNDONE
} Decision;

struct ZkMark
{
	LIST_ENTRY(ZkMark) in_list;
	ZkSession  *session;		/* NULL: between two sessions */
	ZkMarkInfo	info;
	Decision	decision;
	bool		asking;			/* a request is under way that reads or sets
								 * it */
	ZkRequest  *request;		/* that one, unless its carrier has sent it */
	bool		was_read;		/* its version is known by that only */
	int			base;			/* the version before that */
	int			version;		/* after it, once it is MARKED */
	ZkNode	   *carrier;		/* the lock's node, or NULL */
	void		(*tell_carrier) (ZkNode *n, int refused);
	char	   *pending;		/* what it says, in each case */
	char	   *done;
	char	   *before;
	char		path[];
};

bool
zkn_mark_over(const ZkMark *m)
{
	return m->info.state == ZKN_MARK_REFUSED || m->info.state == ZKN_MARK_SETTLED;
}

/* Decided, so that its owner has it no more, and not settled */
static bool
is_open(const ZkMark *m)
{
	return !zkn_mark_over(m) && m->decision != UNDECIDED;
}

/* Nobody needs it any longer? */
static void
free_if_done(ZkMark *m)
{
	if (!zkn_mark_over(m) || m->decision == UNDECIDED || m->carrier != NULL || m->asking)
		return;
	LIST_REMOVE(m, in_list);
	free(m);
}

/* Not in the session's list, and without carrier, until zkn_begin_mark_locked */
ZkMark *
zkn_new_mark(const ZkMarking *what)
{
	size_t		path_size = strlen(what->path) + 1;
	size_t		pending_size = strlen(what->pending) + 1;
	size_t		done_size = strlen(what->done) + 1;
	ZkMark	   *m = calloc(1, sizeof(ZkMark) + path_size + pending_size + done_size + strlen(what->before) + 1);

	if (m == NULL)
		return NULL;
	m->info.state = ZKN_MARKING;
	m->base = what->version;
	m->pending = strcpy(m->path + path_size, what->pending);
	m->done = strcpy(m->pending + pending_size, what->done);
	m->before = strcpy(m->done + done_size, what->before);
	strcpy(m->path, what->path);
	return m;
}

void
zkn_begin_mark_locked(ZkSession *s, ZkMark *m, ZkNode *carrier,
					  void (*tell_carrier) (ZkNode *n, int refused))
{
	zk_assert(zks_has_mutex(s));
	LIST_INSERT_HEAD(&s->marks, m, in_list);
	m->session = s;
	m->carrier = carrier;
	m->tell_carrier = tell_carrier;
}

/* Writes it, or, once that is answered, settles it */
void
zkn_mark_op(ZkMark *m, ZkOp *op)
{
	memset(op, 0, sizeof(ZkOp));
	op->type = ZOO_SETDATA_OP;
	op->path = m->path;
	if (m->info.state == ZKN_MARKING)
	{
		op->data = m->pending;
		op->version = m->base;
		return;
	}
	m->asking = true;
	op->data = m->decision == DONE ? m->done : m->before;
	op->version = m->version;
}

/* The answer to its write, which failed because of it, or of its carrier, or not */
void
zkn_mark_written_locked(ZkMark *m, int rc, int64_t sent_at, bool at_fault, bool node_gone)
{
	zk_assert(zks_has_mutex(m->session));
	if (m->info.state != ZKN_MARKING)
		return;
	m->info.sent_at = sent_at;
	m->info.rc = rc;
	m->info.at_fault = at_fault;
	m->info.node_gone = at_fault && node_gone;
	m->info.state = rc == ZOK ? ZKN_MARKED : zks_is_doubtful(rc) && !at_fault ? ZKN_MARK_UNSURE : ZKN_MARK_REFUSED;
	m->version = m->base + 1;
	m->session->notify = true;
}

/* Without a carrier; either may free it, a request that fails at once, too */
static void
advance_or_free(ZkMark *m)
{
	if (zkn_mark_over(m))
		free_if_done(m);
	else
		zkn_advance_mark_locked(m);
}

/* The carrier is gone, or has another mark now */
void
zkn_leave_mark_locked(ZkMark *m)
{
	zk_assert(zks_has_mutex(m->session));
	m->carrier = NULL;
	if (m->info.state == ZKN_MARKING)
		m->info.state = ZKN_MARK_UNSURE;
	advance_or_free(m);
}

/*
 * Settling
 */

/* Whether it may be set now, by whoever calls this */
bool
zkn_mark_can_be_set(const ZkMark *m)
{
	return m->info.state == ZKN_MARKED && m->decision != UNDECIDED && !m->asking;
}

/*
 * The answer to that.  ZOK: it is settled, or has to be read again; else it is
 * to be tried again.  A second try whose first was carried out finds another
 * version, too.
 */
int
zkn_mark_set_answered_locked(ZkMark *m, int rc)
{
	zk_assert(zks_has_mutex(m->session));
	m->asking = false;
	if (rc == ZOK)
		m->info.state = ZKN_MARK_SETTLED;
	else if (rc == ZBADVERSION || rc == ZNONODE)
		m->info.state = m->was_read ? ZKN_MARK_UNSURE : ZKN_MARK_SETTLED;
	else
		return rc;
	m->session->notify = true;
	return ZOK;
}

/* Something about it has changed, so go on */
static void
go_on(ZkMark *m)
{
	if (m->carrier != NULL)
		m->tell_carrier(m->carrier, ZOK);
	else
		advance_or_free(m);
}

/* For the log of the server, whose encoding we do not know here */
static void
tell_unsettled(const ZkMark *m, int rc)
{
	ZkSessionInfo *info = &m->session->info;
	char	   *shown = m->session->texts.unsettled_mark;

	info->unsettled++;
	info->unsettled_rc = rc;
	snprintf(shown, sizeof(m->session->texts.unsettled_mark), "%s", m->path);
	for (; *shown != '\0'; shown++)
	{
		if (*shown < ' ' || *shown > '~')
			*shown = '?';
	}
	atomic_fetch_add(&m->session->news, 1);
}

/* ZooKeeper refuses: it stays as it is, unless somebody carries it, who tells that */
static void
refused(ZkMark *m, int rc)
{
	if (m->carrier != NULL)
	{
		m->tell_carrier(m->carrier, rc);
		return;
	}
	m->info.state = ZKN_MARK_SETTLED;
	tell_unsettled(m, rc);
	free_if_done(m);
}

static void
on_set(ZkRequest *r)
{
	ZkMark	   *m = (ZkMark *) r->owner;
	int			rc = zkn_mark_set_answered_locked(m, r->answer.rc);

	m->request = NULL;
	if (rc == ZOK)
		go_on(m);
	else if (!zks_is_open(rc))
		refused(m, rc);
}

/* Whether this is what was read */
static bool
was_read(const ZkRequest *r, const char *data)
{
	int			len = r->answer.data_len > 0 ? r->answer.data_len : 0;

	return r->answer.rc == ZOK && len == (int) strlen(data) && (len == 0 || memcmp(r->answer.data, data, len) == 0);
}

static void
on_read(ZkRequest *r)
{
	ZkMark	   *m = (ZkMark *) r->owner;

	m->request = NULL;
	m->asking = false;
	if (r->answer.rc != ZOK && r->answer.rc != ZNONODE)
	{
		if (!zks_is_open(r->answer.rc))
			refused(m, r->answer.rc);
		return;
	}
	if (r->answer.stat.version >= 0 && (was_read(r, m->pending) || (r->answer.stat.version == m->base && was_read(r, m->before))))
	{
		m->info.state = ZKN_MARKED;
		m->version = r->answer.stat.version;
		m->was_read = true;
	}
	else
		m->info.state = ZKN_MARK_SETTLED;
	m->session->notify = true;
	go_on(m);
}

/* Do what can be done without its carrier, if anything: set it, or read it first */
void
zkn_advance_mark_locked(ZkMark *m)
{
	ZkSession  *s = m->session;
	ZkRequest  *r;

	zk_assert(zks_has_mutex(s));
	if (!is_open(m) || m->info.state == ZKN_MARKING || m->asking || !zks_usable_locked(s))
		return;
	r = zkr_new_locked(s, m->info.state == ZKN_MARKED ? on_set : on_read, m);
	if (r == NULL)
		return;					/* at the next heartbeat */
	m->request = r;
	if (m->info.state == ZKN_MARKED)
	{
		ZkOp		op;

		zkn_mark_op(m, &op);
		zkr_send_locked(r, &op);
	}
	else
	{
		m->asking = true;
		r->keeps_data = ZKS_DATA_KEPT;
		r->sync_path = m->path;
		zkr_read_locked(r, ZOO_GETDATA_OP, m->path);
	}
}

/* Go on with all of them, with their carriers or without */
void
zkn_advance_marks_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkMark *next,
		 *m = LIST_FIRST(&s->marks); m != NULL; m = next)
	{
		next = LIST_NEXT(m, in_list);
		go_on(m);
	}
}

void
zkn_settle(ZkSession *s)
{
	zks_enter(s);
	zkn_advance_marks_locked(s);
	zks_leave(s);
}

/* Whether one with this path waits to be settled, or, with NULL, any */
bool
zkn_any_mark_locked(ZkSession *s, const char *path)
{
	ZkMark	   *m;

	zk_assert(zks_has_mutex(s));
	LIST_FOREACH(m, &s->marks, in_list)
	{
		if (is_open(m) && (path == NULL || strcmp(m->path, path) == 0))
			return true;
	}
	return false;
}

/*
 * From session to session
 */

/* Their carriers have forgotten them; they are put into this list */
void
zkn_take_marks_locked(ZkSession *s, ZkMarks *list)
{
	zk_assert(zks_has_mutex(s));
	while (!LIST_EMPTY(&s->marks))
	{
		ZkMark	   *m = LIST_FIRST(&s->marks);

		LIST_REMOVE(m, in_list);
		if (m->request != NULL)
			m->request->done = NULL;
		m->request = NULL;
		m->asking = false;
		m->session = NULL;
		m->carrier = NULL;
		if (m->info.state == ZKN_MARKED || m->info.state == ZKN_MARKING)
			m->info.state = ZKN_MARK_UNSURE;
		LIST_INSERT_HEAD(list, m, in_list);
	}
}

void
zkn_adopt_marks(ZkSession *s, ZkMarks *list)
{
	zks_enter(s);
	while (!LIST_EMPTY(list))
	{
		ZkMark	   *m = LIST_FIRST(list);

		LIST_REMOVE(m, in_list);
		LIST_INSERT_HEAD(&s->marks, m, in_list);
		m->session = s;
	}
	zkn_advance_marks_locked(s);
	zks_leave(s);
}

const char *
zkn_unsettled_path(const ZkMarks *list)
{
	const ZkMark *m;

	LIST_FOREACH(m, list, in_list)
	{
		if (!zkn_mark_over(m))
			return m->path;
	}
	return NULL;
}

void
zkn_free_marks(ZkSession *s)
{
	while (!LIST_EMPTY(&s->marks))
	{
		ZkMark	   *m = LIST_FIRST(&s->marks);

		LIST_REMOVE(m, in_list);
		free(m);
	}
}

/*
 * What the owner may ask
 */

void
zkn_mark_info(ZkMark *m, ZkMarkInfo *info)
{
	if (m->session != NULL)
		zks_enter(m->session);
	*info = m->info;
	if (m->session != NULL)
		zks_leave(m->session);
}

/*
 * Between two sessions nothing is freed here: zkn_adopt_marks does.  It is not settled
 * yet: its carrier is usually deleted next, and zkn_settle comes after that.
 */
void
zkn_decide_mark(ZkMark *m, bool done)
{
	ZkSession  *s = m->session;

	if (s != NULL)
		zks_enter(s);
	m->decision = done ? DONE : UNDONE;
	if (s != NULL)
	{
		free_if_done(m);
		zks_leave(s);
	}
}

bool
zkn_mark_is_open(ZkSession *s, const char *path)
{
	bool		result;

	zks_enter(s);
	result = zkn_any_mark_locked(s, path);
	zks_leave(s);
	return result;
}

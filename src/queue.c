/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  Everyone at a lock: seeing them, and putting one out.
 *
 * For people, who look at what is going on and help where it has stopped; no
 * lock is ever granted by what is seen here.  The list is the leader's, so that
 * nobody is missing who was there when the call began; who goes while their
 * nodes are read is left out.  Other clients are shown whatever they have
 * written.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <zookeeper/zookeeper.h>

#include "lib/stringinfo.h"
#include "miscadmin.h"

#include "client.h"
#include "encoding.h"
#include "hold.h"
#include "identity.h"
#include "path.h"
#include "queue.h"
#include "settings.h"

typedef struct Look
{
	const char *path;			/* of the lock */
	char	   *dir;			/* the same in ZooKeeper */
	ZkSession  *session;
	ZkWait		wait;
	int64		until;
	ZkRequest **requests;		/* what an error must free */
	int			nrequests;
} Look;

static void
begin_look(Look *look, const char *path)
{
	memset(look, 0, sizeof(*look));
	look->path = path;
	zkwait_begin(&look->wait, -1, false);
	look->until = zkwait_after(zklock_operation_timeout);
	zkh_follow_settings();
}

/* The session, and what depends on it */
static void
begin_round(Look *look)
{
	CHECK_FOR_INTERRUPTS();
	look->session = zkc_connect(&look->wait);
	look->dir = zkpath_join(zkc_root(), look->path);
	if (zks_now() >= look->until)
		zkc_raise_unanswered(&look->wait);	/* it breaks again and again */
}

static void
make_room(Look *look, int n)
{
	look->requests = palloc_extended(n * sizeof(ZkRequest *), MCXT_ALLOC_HUGE);
}

static void
add_request(Look *look, ZkRequest *request)
{
	if (request == NULL)
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	look->requests[look->nrequests++] = request;
}

static void
end_round(Look *look)
{
	while (look->nrequests > 0)
		zks_request_free(look->session, look->requests[--look->nrequests]);
}

/* False: the connection broke, so ask again */
static bool
await_answer(Look *look, ZkRequest *request, ZkAnswer *answer)
{
	while (!zks_answered(look->session, request, answer))
	{
		ZkSessionInfo info;

		zks_info(look->session, &info);
		if (info.state == ZKS_OVER)
			return false;
		if (!zkwait(&look->wait, look->session, look->until, ZKWAIT_LOOK))
			zkc_raise_unanswered(&look->wait);
	}
	return !zks_is_doubtful(answer->rc);
}

/*-------------------------------------------------------------------------
 * Seeing
 *-------------------------------------------------------------------------
 */

typedef void (*Callback) (const ZkqContender *contender, void *arg);

/* Those of one kind, in their order */
typedef struct Queue
{
	ZkpContender *contenders;
	int			n;
	ZkAnswer   *answers;		/* contenders[i].tag says which */
} Queue;

/*
 * What their nodes say.  Those that are gone are left out, and those that say
 * so are readers.  False: the connection broke.
 */
static bool
read_answers(Look *look, ZkRequest **requests, Queue *queue)
{
	int			left = 0;

	queue->answers = palloc_extended(Max(queue->n, 1) * sizeof(ZkAnswer), MCXT_ALLOC_HUGE);
	for (int i = 0; i < queue->n; i++)
	{
		ZkpContender *contender = &queue->contenders[left];
		ZkAnswer   *answer = &queue->answers[i];
		ZkpData		says;

		if (!await_answer(look, requests[i], answer))
			return false;
		if (answer->rc == ZNONODE)
			continue;
		if (answer->rc != ZOK && answer->rc != ZNOAUTH)
			zkc_raise(answer->rc, look->path);
		*contender = queue->contenders[i];
		contender->tag = i;
		left++;
		if (answer->rc != ZOK)
			continue;
		zkp_read_data(answer->data, answer->data_len, &says);
		if (says.ours)
			contender->owner = answer->owner;
		if (says.shared && contender->mode == ZKP_EXCLUSIVE)
			contender->mode = ZKP_SHARED;
	}
	queue->n = left;
	return true;
}

/* Where numbers do not tell the order, the transactions do */
static void
put_in_order(Look *look, Queue *queue)
{
	if (!zkp_needs_czxids(queue->contenders, queue->n))
		return;
	for (int i = 0; i < queue->n; i++)
	{
		const ZkAnswer *answer = &queue->answers[queue->contenders[i].tag];

		if (answer->rc != ZOK)
			zkc_raise(answer->rc, look->path);
		queue->contenders[i].czxid = answer->czxid;
	}
	zkp_sort(queue->contenders, queue->n);
}

static void
show(const Queue *queue, Callback callback, void *arg)
{
	bool	   *granted = palloc_extended(Max(queue->n, 1) * sizeof(bool), MCXT_ALLOC_HUGE);

	zkp_granted(queue->contenders, queue->n, granted);
	for (int i = 0; i < queue->n; i++)
	{
		const ZkpContender *contender = &queue->contenders[i];
		const ZkAnswer *answer = &queue->answers[contender->tag];
		ZkqContender row = {
			.position = i + 1,
			.mode = contender->mode,
			.granted = granted[i],
			.node = contender->name,
			.readable = answer->rc == ZOK,
		};

		if (row.readable)
		{
			ZkpData		says;

			row.token = answer->czxid;
			row.session = answer->owner;
			row.since_ms = answer->made_at_ms;
			zkp_read_data(answer->data, answer->data_len, &says);
			row.ours = says.ours;
			row.data = says.ours ? says.identity : answer->data;
			row.data_len = says.ours ? says.identity_len : answer->data_len;
		}
		callback(&row, arg);
	}
}

/* False: the connection broke, and nothing was shown */
static bool
look_at_all(Look *look, Callback callback, void *arg)
{
	ZkRequest  *list;
	ZkAnswer	answer;
	Queue		queues[2];
	int			first = 1;

	make_room(look, 1);
	add_request(look, zks_list(look->session, look->dir, true));
	list = look->requests[0];
	if (!await_answer(look, list, &answer))
		return false;
	if (answer.rc == ZNONODE)
		return true;			/* nobody was ever here */
	if (answer.rc != ZOK)
		zkc_raise(answer.rc, look->path);

	make_room(look, 1 + answer.nchildren);
	look->requests[0] = list;
	for (int kind = 0; kind < 2; kind++)
	{
		Queue	   *queue = &queues[kind];

		queue->contenders = palloc_extended(Max(answer.nchildren, 1) * sizeof(ZkpContender),
											MCXT_ALLOC_HUGE);
		queue->n = zkp_queue(answer.children, answer.nchildren,
							 kind == 0 ? ZKP_EXCLUSIVE : ZKP_SEMAPHORE, queue->contenders);
		for (int i = 0; i < queue->n; i++)
		{
			char	   *node = psprintf("%s/%s", look->dir, queue->contenders[i].name);

			add_request(look, zks_read(look->session, node));
			pfree(node);
		}
	}
	for (int kind = 0; kind < 2; kind++)
	{
		int			n = queues[kind].n;

		if (!read_answers(look, look->requests + first, &queues[kind]))
			return false;
		put_in_order(look, &queues[kind]);
		first += n;
	}
	for (int kind = 0; kind < 2; kind++)
		show(&queues[kind], callback, arg);
	return true;
}

static bool
show_all(Look *look, Callback callback, void *arg)
{
	volatile bool shown = false;

	begin_round(look);
	PG_TRY();
	{
		shown = look_at_all(look, callback, arg);
	}
	PG_FINALLY();
	{
		end_round(look);
	}
	PG_END_TRY();
	return shown;
}

void
zkq_each(const char *path, Callback callback, void *arg)
{
	Look		look;

	begin_look(&look, path);
	while (!show_all(&look, callback, arg))
		;
}

/*-------------------------------------------------------------------------
 * Helping out
 *-------------------------------------------------------------------------
 */

typedef enum Outcome
{
	BROKEN,
	GONE,
	NOT_KNOWN					/* the connection broke */
} Outcome;

typedef struct Break
{
	const char *node;
	bool		sent;			/* the delete may have been carried out */
	char	   *owner;			/* a sentence */
} Break;

static char *
whose(const ZkAnswer *answer)
{
	StringInfoData text;
	ZkpData		says;
	char	   *fields[ZKI_FIELDS];

	initStringInfo(&text);
	if (answer->rc != ZOK)
		appendStringInfoString(&text, "It was closed to us.");
	else if (answer->owner == 0)
		appendStringInfoString(&text, "It belonged to no ZooKeeper session.");
	else
	{
		appendStringInfo(&text, "It belonged to ZooKeeper session 0x%llx",
						 (unsigned long long) answer->owner);
		zkp_read_data(answer->data, answer->data_len, &says);
		zki_read(says.identity, says.identity_len, fields);
		for (int i = 0; i < ZKI_FIELDS; i++)
		{
			if (fields[i] != NULL)
				appendStringInfo(&text, ", %s \"%s\"", zki_names[i], fields[i]);
		}
		appendStringInfoChar(&text, '.');
	}
	return text.data;
}

/*
 * Whose it is, and then its end.  If an earlier delete was perhaps carried out,
 * that it is gone is our doing.
 */
static Outcome
delete_node(Look *look, Break *b)
{
	char	   *path = psprintf("%s/%s", look->dir, b->node);
	ZkAnswer	answer;

	make_room(look, 2);
	if (!b->sent)
	{
		add_request(look, zks_read(look->session, path));
		if (!await_answer(look, look->requests[0], &answer))
			return NOT_KNOWN;
		if (answer.rc == ZNONODE)
			return GONE;
		if (answer.rc != ZOK && answer.rc != ZNOAUTH)
			zkc_raise(answer.rc, look->path);
		b->owner = whose(&answer);
	}

	/* the event comes before the answer, so that we do not outlive our own lock */
	zkn_watch_named(look->session, look->dir, b->node);
	add_request(look, zks_delete(look->session, path));
	if (!await_answer(look, look->requests[look->nrequests - 1], &answer))
	{
		b->sent = true;
		return NOT_KNOWN;
	}
	if (answer.rc == ZNONODE)
		return b->sent ? BROKEN : GONE;
	if (answer.rc == ZNOTEMPTY)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" of lock path \"%s\" has children",
						zkpath_for_display(b->node), zkpath_for_display(look->path)),
				 errhint("Another program made them; delete them with a ZooKeeper client.")));
	if (answer.rc != ZOK)
		zkc_raise(answer.rc, look->path);
	return BROKEN;
}

static Outcome
break_once(Look *look, Break *b)
{
	volatile	Outcome outcome = NOT_KNOWN;

	begin_round(look);
	PG_TRY();
	{
		outcome = delete_node(look, b);
	}
	PG_FINALLY();
	{
		end_round(look);
	}
	PG_END_TRY();
	return outcome;
}

bool
zkq_break(const char *path, const char *node)
{
	Look		look;
	Break		b = {.node = node};
	ZkpContender contender;
	Outcome		outcome;

	if (strchr(node, '/') != NULL || !zkp_parse(node, &contender))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not the name of a lock node", zkpath_for_display(node)),
				 errhint("Use what zk_lock_queue shows as \"node\".")));
	begin_look(&look, path);
	do
		outcome = break_once(&look, &b);
	while (outcome == NOT_KNOWN);
	if (outcome != BROKEN)
		return false;

	/* the one for whoever asks later who did it, the other for who does it */
	for (int i = 0; i < 2; i++)
		ereport(i == 0 ? LOG_SERVER_ONLY : NOTICE,
				(errmsg("removed node \"%s\" from the queue of lock path \"%s\"",
						zkpath_for_display(node), zkpath_for_display(path)),
				 errdetail_internal("%s", b.owner)));
	return true;
}

/*-------------------------------------------------------------------------
 *
 * chase.c
 *	  Following waits from queue to queue, to see whether they form a cycle.
 *
 * From our own place in a queue we go to those who hold up that queue, by the
 * tags of their nodes to the records that say where they wait themselves, from
 * there to the next queue, and so on.  A backend blocked on one of
 * PostgreSQL's own locks cannot publish; its blocker's record lists it.
 *
 * Only what holds is read, since whoever waits in a queue leaves it through
 * those that hold.  wait_graph.c judges what was found.
 *
 * A node and a record have one author only if they belong to one session of
 * ZooKeeper: after an outage the nodes of an old session still stand, and in a
 * record anybody can write any tag.
 *
 * What cannot be read, or exceeds the limits here, counts as one that waits for
 * nobody.  So a cycle may be overlooked, but none is invented.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/backend_status.h"

#include "chase.h"
#include "lock/look/seen_queue.h"
#include "lock/look/wait_log.h"
#include "wait_graph.h"

/*
 * What is read at most: nodes, names in the lists of queues, bytes of records,
 * and what follows from them
 */
#define MOST_NODES		20000
#define MOST_NAMES		200000
#define MOST_BYTES		(8 * 1024 * 1024)
#define MOST_PARTIES	2000
#define MOST_LOCALS		100000

/*
 * So many records are asked for at a time: each may be as long as is kept, and
 * together they are a quarter of the bytes at most
 */
#define MOST_AHEAD		(MOST_BYTES / 4 / ZKS_RECORD_KEPT)

typedef struct Record
{
	char	   *name;			/* comes first: they are sorted by it */
	ZkpRecordName says_name;
	bool		asked;
	bool		valid;			/* it was read, and is a record of a session */
	ZkStat		stat;
	ZkRecord	says;
} Record;

/* The first one says what we know ourselves, as ours would if it could be read at this instant */
#define OWN_RECORD		0

/* A session: a backend, as one session of ZooKeeper */
typedef struct Party
{
	char		tag[ZKP_TAG_LEN];
	int64		owner;
	int			record;			/* index; -1: none */
	const char *identity;
} Party;

typedef struct Chase
{
	ZkReader   *reader;
	const ZkChaseFrom *from;
	char	   *board;
	Record	   *records;		/* the first: see OWN_RECORD */
	int			nrecords;
	bool		hears_others;	/* what they say of waits on other servers
								 * counts */
	ZkSeenQueue *queues;
	int			nqueues;
	Party	   *parties;		/* the first: ourselves */
	int			nlocals;
	ZkGraph		g;				/* has parties and local waits from the
								 * beginning, and queues in the end */
	int			nread;			/* nodes */
	int			nnames;			/* in queues */
	size_t		bytes;			/* of records */
} Chase;

/*-------------------------------------------------------------------------
 * The board
 *-------------------------------------------------------------------------
 */

static bool
list_board(Chase *c, bool *listed)
{
	ZkAnswer	answer;
	int			n;

	if (!zkl_ask_apart(c->reader, zks_list(c->reader->patience.session, c->board, false, true), &answer))
		return false;
	*listed = false;
	n = answer.rc == ZKS_OK ? answer.nchildren : 0;
	c->records = palloc_extended((n + 1) * sizeof(Record), MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE);
	c->records[OWN_RECORD] = (Record)
	{
		.asked = true,.valid = true,.says_name.names_others = true,
			.stat.owner = c->parties[0].owner,.says = *c->from->says
	};
	strlcpy(c->records[OWN_RECORD].says_name.tag, c->parties[0].tag, ZKP_TAG_LEN);
	c->nrecords = OWN_RECORD + 1;
	for (int i = 0; i < n; i++)
	{
		Record	   *record = &c->records[c->nrecords];

		if (!zkp_parse_record(answer.children[i], &record->says_name))
			continue;
		c->nrecords++;
		record->name = pstrdup(answer.children[i]);
		record->asked = strcmp(record->says_name.tag, c->parties[0].tag) == 0;
		*listed |= strcmp(record->name, c->from->record) == 0;
	}
	qsort(c->records + 1, c->nrecords - 1, sizeof(Record), pg_qsort_strcmp);
	return true;
}

/*
 * Read these records that were not read yet: those of a tag, or, if that is NULL,
 * those that name others.  These leave half of the room to the former, so that
 * many of them hide no cycle of waits in ZooKeeper alone.
 */
static bool
read_records(Chase *c, const char *tag)
{
	static const ZkDepth whole = {.first = 1,.most = 1};
	int			most_nodes = tag == NULL ? MOST_NODES / 2 : MOST_NODES;
	size_t		most_bytes = tag == NULL ? MOST_BYTES / 2 : MOST_BYTES;

	for (int at = 0; at < c->nrecords && c->bytes < most_bytes;)
	{
		ZkSeenQueue nodes[MOST_AHEAD];
		Record	   *asked[MOST_AHEAD];
		int			n = 0;

		for (; at < c->nrecords && n < MOST_AHEAD && c->nread < most_nodes; at++)
		{
			Record	   *record = &c->records[at];

			if (record->asked || (tag == NULL ? !record->says_name.names_others : strcmp(record->says_name.tag, tag) != 0))
				continue;
			zkl_take_name(&nodes[n], c->board, record->name);
			nodes[n].list[0].keeps = ZKS_RECORD_KEPT;
			record->asked = true;
			c->nread++;
			asked[n++] = record;
		}
		if (n == 0)
			break;
		if (!zkl_read_queues(c->reader, nodes, n, &whole))
			return false;
		for (int i = 0; i < n; i++)
		{
			const ZkSeenContender *node = &nodes[i].list[0];

			/* a persistent node is nobody's */
			asked[i]->stat = node->stat;
			asked[i]->valid = node->stat.owner != 0 && zkl_read_record(node->data, node->data_len, &asked[i]->says);
			c->bytes += node->data_len;
		}
	}
	return true;
}

/*-------------------------------------------------------------------------
 * Queues
 *-------------------------------------------------------------------------
 */

/* The index of this queue, read if it was not yet; -1: there are too many */
static bool
get_queue(Chase *c, const char *dir, bool semaphore, int *at)
{
	ZkDepth		depth = {.holders = true,.most = MOST_NODES - c->nread};
	bool		answered;

	for (*at = 0; *at < c->nqueues; (*at)++)
	{
		if (c->queues[*at].semaphore == semaphore && strcmp(c->queues[*at].dir, dir) == 0)
			return true;
	}
	if (c->nnames > MOST_NAMES)
	{
		*at = -1;
		return true;
	}
	c->queues = zkl_grow(c->queues, c->nqueues, sizeof(ZkSeenQueue));
	answered = zkl_read_queue(c->reader, dir, semaphore, &depth, &c->queues[c->nqueues++]);
	c->nnames += c->queues[*at].n;
	for (int i = 0; i < c->queues[*at].n; i++)
		c->nread += c->queues[*at].list[i].read;
	return answered;
}

/*-------------------------------------------------------------------------
 * Parties
 *-------------------------------------------------------------------------
 */

/* -1: none */
static int
find_party(const Chase *c, const char *tag, int64 owner)
{
	for (int i = 0; i < c->g.nparties; i++)
	{
		if (c->parties[i].owner == owner && strcmp(c->parties[i].tag, tag) == 0)
			return i;
	}
	return -1;
}

/* The same, but one that was not known yet is added, if there is room */
static int
get_party(Chase *c, const char *tag, int64 owner, const char *identity, int identity_len)
{
	int			n = c->g.nparties;
	int			found = find_party(c, tag, owner);

	if (found >= 0 || n >= MOST_PARTIES)
		return found;
	c->g.parties = zkl_grow(c->g.parties, n, sizeof(ZkGraphParty));
	c->g.parties[n].queue = -1;
	c->parties = zkl_grow(c->parties, n, sizeof(Party));
	c->parties[n] = (Party)
	{
		.owner = owner,.record = -1,.identity = pnstrdup(identity, identity_len)
	};
	strlcpy(c->parties[n].tag, tag, ZKP_TAG_LEN);
	return c->g.nparties++;
}

static void
add_local(Chase *c, int waiter, int holder, int record, int wait)
{
	if (holder < 0 || (record != OWN_RECORD && c->nlocals >= MOST_LOCALS))
		return;
	c->g.locals = zkl_grow(c->g.locals, c->nlocals, sizeof(ZkGraphLocal));
	c->g.locals[c->nlocals++] = (ZkGraphLocal)
	{
		.waiter = waiter,.holder = holder,.record = record,.wait = wait
	};
}

/*
 * Whom this one waits for on its server, as these records say.  We ourselves wait for
 * nothing else, whatever they say.
 */
static void
follow_told(Chase *c, int at, int first, int end)
{
	for (int i = first; at > 0 && i < end; i++)
	{
		const Record *record = &c->records[i];

		for (int k = 0; record->valid && record->says_name.names_others && k < record->says.n; k++)
		{
			if (strcmp(record->says.waits[k].tag, c->parties[at].tag) == 0)
				add_local(c, at, get_party(c, record->says_name.tag, record->stat.owner, record->says.identity,
										   strlen(record->says.identity)), i, k);
		}
	}
}

/* The directory where this party waits, and its node there; NULL if nowhere */
static const char *
find_wait(Chase *c, int at, const char **node)
{
	Party	   *party = &c->parties[at];

	for (int i = 0; i < c->nrecords; i++)
	{
		const Record *record = &c->records[i];

		if (!record->valid || record->stat.owner != party->owner || strcmp(record->says_name.tag, party->tag) != 0 ||
			strncmp(record->says.dir, c->from->says->dir, c->from->root_len) != 0 ||
			record->says.dir[c->from->root_len] != '/')
			continue;
		party->record = i;
		*node = record->says.node;
		return record->says.dir;
	}
	return NULL;
}

/* Those who hold the queue up */
static void
reach_holders(Chase *c, const ZkSeenQueue *queue, int end)
{
	for (int i = 0; i < end; i++)
	{
		const ZkSeenContender *contender = &queue->list[i];

		if (contender->fields[ZKB_FIELD_TAG] != NULL && contender->name.owner != 0)
			(void) get_party(c, contender->fields[ZKB_FIELD_TAG], contender->name.owner, contender->says.identity,
							 contender->says.identity_len);
	}
}

static bool
follow_to_queue(Chase *c, int at)
{
	const char *node = NULL;
	const char *dir;
	ZkpContender name;
	int			q;

	if (c->g.parties[at].queue >= 0)
		return true;
	if (at > 0 && !read_records(c, c->parties[at].tag))
		return false;
	dir = find_wait(c, at, &node);
	if (dir == NULL || !zkp_parse(node, &name))
		return true;
	if (!get_queue(c, dir, name.mode == ZKP_SEMAPHORE, &q))
		return false;
	for (int i = 0; q >= 0 && i < c->queues[q].n; i++)
	{
		int64		owner = 0;

		if (strcmp(c->queues[q].list[i].name.name, node) != 0)
			continue;

		/* anybody may say that he waits there */
		if (!zkl_read_owner(c->reader, &c->queues[q], i, &owner))
			return false;
		if (owner != c->parties[at].owner)
			break;
		c->g.parties[at].queue = q;
		c->g.parties[at].at = i;
		reach_holders(c, &c->queues[q], i);
		break;
	}
	return true;
}

/* All whom we wait for, directly or through others */
static bool
follow_all(Chase *c)
{
	if (c->hears_others && !read_records(c, NULL))
		return false;
	c->nlocals = 0;				/* what we know ourselves is looked at last */
	for (int at = 0; at < c->g.nparties; at++)
	{
		CHECK_FOR_INTERRUPTS();
		if (c->reader->patience.go_on != NULL && !c->reader->patience.go_on(c->reader->patience.arg))
			return false;
		if (!follow_to_queue(c, at))
			return false;
		if (c->hears_others)
			follow_told(c, at, OWN_RECORD + 1, c->nrecords);
	}
	return true;
}

/*-------------------------------------------------------------------------
 * What was found
 *-------------------------------------------------------------------------
 */

static void
make_graph_queue(const Chase *c, const ZkSeenQueue *queue, ZkGraphQueue *result)
{
	int64		rank = 0;

	result->semaphore = queue->semaphore;
	result->n = queue->n;
	result->contenders = palloc_extended((queue->n + 1) * sizeof(ZkGraphContender), MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE);
	for (int i = 0; i < queue->n; i++)
	{
		const ZkpContender *name = &queue->list[i].name;
		const char *tag = queue->list[i].fields[ZKB_FIELD_TAG];
		ZkGraphContender *contender = &result->contenders[i];

		/* a number that two have tells nothing */
		if (i > 0 && (name->czxid != 0 || name->seq != queue->list[i - 1].name.seq))
			rank++;
		contender->party = name->owner == 0 || tag == NULL ? -1 : find_party(c, tag, name->owner);
		contender->granted = queue->list[i].granted;
		contender->shared = name->mode == ZKP_SHARED;
		contender->permits = name->permits;
		contender->owner = name->ours ? name->owner : 0;
		contender->rank = rank;
	}
}

static void
make_queues(Chase *c)
{
	c->g.nqueues = c->nqueues;
	c->g.queues = palloc0((c->nqueues + 1) * sizeof(ZkGraphQueue));
	for (int i = 0; i < c->nqueues; i++)
		make_graph_queue(c, &c->queues[i], &c->g.queues[i]);
	for (int i = 0; i < c->g.nparties; i++)
	{
		const ZkGraphParty *party = &c->g.parties[i];

		if (party->queue >= 0)
		{
			ZkGraphContender *own = &c->g.queues[party->queue].contenders[party->at];

			own->party = i;
			own->owner = c->parties[i].owner;
		}
	}
}

/* Whether it is told by a record of from->later */
static bool
is_later(const Chase *c, const ZkGraphLocal *local)
{
	const ZkCycle *later = c->from->later;

	for (int i = 0; later != NULL && local->record != OWN_RECORD && i < later->nrecords; i++)
	{
		if (strcmp(strrchr(later->checks[i].path, '/') + 1, c->records[local->record].name) == 0)
			return true;
	}
	return false;
}

static char *
who(const Chase *c, int at, int pid)
{
	const Party *party = &c->parties[at];

	if (at == 0 && pid == 0)
		pid = MyProcPid;
	return zkb_who(party->identity, strlen(party->identity), pid, party->owner);
}

static void
put_line(StringInfo lines, const char *waiter, const char *what, const char *blocker)
{
	if (lines->len > 0)
		appendStringInfoChar(lines, '\n');
	appendStringInfo(lines, "%c%s waits for %s; blocked by %s.",
					 pg_toupper((unsigned char) waiter[0]), waiter + 1, what, blocker);
}

static void
put_query(StringInfo queries, int pid)
{
	appendStringInfo(queries, "%sProcess %d: %s", queries->len > 0 ? "\n" : "", pid,
					 pgstat_get_backend_current_activity(pid, false));
}

/* The waits from one party to another on the same server */
static void
tell_local(const Chase *c, const ZkGraphLocal *local, StringInfo lines, StringInfo queries)
{
	const ZkLocalWait *waits = c->records[local->record].says.waits;

	for (int at = local->wait; at >= 0; at = waits[at].blocker)
	{
		int			blocker = waits[at].blocker;

		put_line(lines, at == local->wait ? who(c, local->waiter, 0) : who(c, local->holder, waits[at].pid),
				 waits[at].what[0] != '\0' ? waits[at].what : "a lock of PostgreSQL's",
				 who(c, local->holder, blocker < 0 ? 0 : waits[blocker].pid));
		if (local->record == OWN_RECORD)
			put_query(queries, waits[at].pid);
	}
}

/* The pid of another party of this server; or 0 */
static int
pid_here(const Chase *c, int at)
{
	char	   *own[ZKB_FIELDS];
	char	   *fields[ZKB_FIELDS];

	zkb_read_identity(c->parties[0].identity, strlen(c->parties[0].identity), own);
	zkb_read_identity(c->parties[at].identity, strlen(c->parties[at].identity), fields);
	for (int i = ZKB_FIELD_HOST; i <= ZKB_FIELD_PORT; i++)
	{
		if (own[i] == NULL || fields[i] == NULL || strcmp(own[i], fields[i]) != 0)
			return 0;
	}
	return at > 0 && fields[ZKB_FIELD_PID] != NULL ? atoi(fields[ZKB_FIELD_PID]) : 0;
}

/* The waits of the cycle, and the queries of those in it that are this server's */
static void
tell_cycle(const Chase *c, ZkCycle *cycle)
{
	StringInfoData lines;
	StringInfoData queries;
	int			at = 0;

	initStringInfo(&lines);
	initStringInfo(&queries);
	put_query(&queries, MyProcPid);
	do
	{
		const ZkGraphParty *party = &c->g.parties[at];
		const ZkGraphLocal *local = party->node.reason->kind == ZKL_LOCAL ? (const ZkGraphLocal *) party->node.reason : NULL;

		if (local != NULL)
			tell_local(c, local, &lines, &queries);
		else
		{
			const ZkSeenQueue *queue = &c->queues[party->queue];

			put_line(&lines, who(c, at, 0),
					 zkl_describe_wait(queue->list[party->at].name.mode, queue->dir + c->from->root_len),
					 who(c, party->waits_for, 0));
		}
		if ((local == NULL || local->record != OWN_RECORD) && pid_here(c, at) != 0)
			put_query(&queries, pid_here(c, at));
		at = party->waits_for;
	} while (at > 0);
	cycle->detail = lines.data;
	cycle->queries = queries.data;
}

static int
find_part(const ZkCycle *cycle, const char *text)
{
	int			i = 0;

	CHECK_FOR_INTERRUPTS();		/* there may be as many as others like */
	while (i < cycle->n && strcmp(cycle->checks[i].path, text) != 0)
		i++;
	return i;
}

static void
add_part(ZkCycle *cycle, const char *text, int version)
{
	if (find_part(cycle, text) < cycle->n)
		return;
	cycle->checks = zkl_grow(cycle->checks, cycle->n, sizeof(ZkCheck));
	cycle->checks[cycle->n].path = text;

	cycle->checks[cycle->n++].version = version;
}

bool
zkl_is_same_cycle(const ZkCycle *before, const ZkCycle *now, int written)
{
	if (before->nrecords != now->nrecords || before->nchecks != now->nchecks || before->n != now->n)
		return false;
	for (int i = 0; i < now->n; i++)
	{
		int			k = find_part(before, now->checks[i].path);
		int			since = k < before->n ? now->checks[i].version - before->checks[k].version : -1;

		if (i < now->nrecords ? since < written : since != 0)
			return false;
	}
	return true;
}

/* From a party to another on its server: whose wait the first is, and when each began */
static void
add_locals(const Chase *c, const ZkGraphLocal *local, ZkCycle *cycle)
{
	const Record *record = &c->records[local->record];
	const ZkLocalWait *waits = record->says.waits;

	for (int at = local->wait; at >= 0; at = waits[at].blocker)
		add_part(cycle, psprintf("%s %s " INT64_FORMAT, record->name != NULL ? record->name : "",
								 at == local->wait ? waits[at].tag : "", waits[at].since), 0);
}

static ZkCycle *
make_cycle(const Chase *c)
{
	const ZkGraph *g = &c->g;
	ZkCycle    *cycle = palloc0(sizeof(ZkCycle));

	for (int i = 0; i < g->nlocals; i++)
	{
		const Record *record = &c->records[g->locals[i].record];

		if (g->locals[i].node.evidence && record != &c->records[OWN_RECORD])
			add_part(cycle, psprintf("%s/%s", c->board, record->name), record->stat.version);
	}
	cycle->nrecords = cycle->n;
	for (int q = 0; q < c->nqueues; q++)
	{
		for (int i = 0; i < c->queues[q].n; i++)
		{
			const ZkSeenContender *contender = &c->queues[q].list[i];

			/* our own place is given up by the same transaction */
			if (!g->queues[q].contenders[i].node.evidence || (g->parties[0].queue == q && g->parties[0].at == i))
				continue;

			/* who waits has nothing to change, and its data was not read */
			add_part(cycle, psprintf("%s/%s", c->queues[q].dir, contender->name.name),
					 contender->granted ? contender->stat.version : -1);
		}
	}

	/* a record goes before the node whose wait it tells of does */
	for (int i = 1; i < g->nparties; i++)
	{
		if (g->parties[i].node.evidence && c->parties[i].record >= 0)
			add_part(cycle, psprintf("%s/%s", c->board, c->records[c->parties[i].record].name), -1);
	}
	cycle->nchecks = cycle->n;
	for (int i = 0; i < g->nlocals; i++)
	{
		if (g->locals[i].node.evidence)
			add_locals(c, &g->locals[i], cycle);
	}
	tell_cycle(c, cycle);
	return cycle;
}

/*
 * NULL if there is none.  Who waits for us on this server is looked at now, when all
 * else was read, so that it stands at the same moment; it leads to nobody but us.
 *
 * One that gets certain must not be hidden by one that rests on
 * a record that nobody writes any more.
 */
static ZkCycle *
find_cycle(Chase *c)
{
	ZkGraph    *g = &c->g;
	bool		found;

	if (g->nparties == 1)
		return NULL;
	(void) zkl_find_waits(&c->records[OWN_RECORD].says);
	for (int at = 0; at < g->nparties; at++)
		follow_told(c, at, OWN_RECORD, OWN_RECORD + 1);
	make_queues(c);
	g->breathe = ProcessInterrupts;
	g->nlocals = 0;
	for (int i = 0; i < c->nlocals; i++)
	{
		ZkGraphLocal local = g->locals[i];

		if (is_later(c, &local))
			continue;
		g->locals[i] = g->locals[g->nlocals];
		g->locals[g->nlocals++] = local;
	}
	found = zkl_find_cycle(g, 0);
	if (!found && g->nlocals < c->nlocals)
	{
		g->nlocals = c->nlocals;
		found = zkl_find_cycle(g, 0);
	}
	return found ? make_cycle(c) : NULL;
}

bool
zkl_chase(ZkReader *reader, const ZkChaseFrom *from, ZkCycle **cycle, bool *listed)
{
	Chase		c = {.reader = reader,.from = from};
	ZkSessionInfo before;
	bool		all_read;

	*cycle = NULL;
	*listed = true;
	before = zks_info(reader->patience.session);
	c.board = zkl_board(from->says->dir, from->root_len);
	(void) get_party(&c, zkb_own_tag(), before.session_id, from->says->identity, strlen(from->says->identity));
	all_read = list_board(&c, listed);

	/*
	 * The word of other servers may be that of thousands.  It is asked for
	 * only where we do not know enough without it.  So a cycle that does not
	 * need it is certain at once, and not hidden by one that does.
	 */
	for (int i = 0; i < 2 && all_read && *cycle == NULL; i++)
	{
		c.hears_others = i > 0 && c.g.nparties > 1;
		all_read = follow_all(&c);
		if (all_read)
			*cycle = find_cycle(&c);
	}

	/* another server may have shown an earlier state */
	all_read = all_read && before.epoch == zks_info(reader->patience.session).epoch;
	if (!all_read)
		*cycle = NULL;
	return all_read;
}

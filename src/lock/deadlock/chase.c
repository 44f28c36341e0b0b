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

#include "backend/encoding.h"
#include "backend/node_identity.h"
#include "chase.h"
#include "lock/look/seen_queue.h"
#include "lock/look/wait_log.h"
#include "wait_graph.h"
#include "wait_record.h"

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
	char	   *name;			/* comes first: see first_with_tag */
	ZkpRecordName says_name;
	bool		asked;
	bool		valid;			/* it was read, and is a record of a session */
	ZkStat		stat;
	ZkRecord	says;
} Record;

/* A session: a backend, as one session of ZooKeeper */
typedef struct Party
{
	char		tag[ZKP_TAG_LEN];
	int64		owner;
	int			record;			/* index; -1: none */
	int			queue;			/* where it waits; -1: nowhere in ZooKeeper */
	int			at;
	const char *identity;
	int			identity_len;
} Party;

typedef struct Local
{
	int			waiter;			/* parties */
	int			holder;
	int			record;			/* that tells of it; -1: our own look */
	int			wait;			/* index there */
} Local;

/* Who waits on another server, as a record tells */
typedef struct Told
{
	const char *tag;			/* comes first: see first_with_tag */
	int			record;
	int			wait;			/* index there */
} Told;

typedef struct Chase
{
	ZkReader   *reader;
	const ZkChaseFrom *from;
	char	   *board;
	Record	   *records;		/* sorted by name, and so by tag */
	int			nrecords;
	bool		others_read;	/* the records that name others */
	Told	   *told;			/* what they say, by tag */
	int			ntold;
	ZkSeenQueue *queues;
	int			nqueues;
	Party	   *parties;		/* the first: ourselves */
	int			nparties;
	int			nfollowed;		/* of these */
	Local	   *locals;
	int			nlocals;
	int			nread;			/* nodes */
	int			nnames;			/* in queues */
	size_t		bytes;			/* of records */
} Chase;

/* Make room for one more in an array whose room is a power of two */
static void *
grow(void *array, int n, size_t size)
{
	if (array == NULL)
		return palloc_extended(8 * size, MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE);
	if (n < 8 || (n & (n - 1)) != 0)
		return array;
	return repalloc_huge(array, 2 * n * size);
}

/*
 * The index of the first that does not come before this tag, in an array whose
 * elements begin with a pointer to a tag, or to what begins with one, and are sorted
 * by that
 */
static int
first_with_tag(const void *array, int n, size_t size, const char *tag)
{
	int			first = 0;

	for (int end = n; first < end;)
	{
		int			middle = first + (end - first) / 2;
		const char *of_middle = *(const char *const *) ((const char *) array + middle * size);

		if (strncmp(of_middle, tag, ZKP_TAG_LEN - 1) < 0)
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

/*-------------------------------------------------------------------------
 * The board
 *-------------------------------------------------------------------------
 */

static int
compare_records(const void *left, const void *right)
{
	return strcmp(((const Record *) left)->name, ((const Record *) right)->name);
}

static ZkReading
list_board(Chase *c)
{
	ZkAnswer	answer;
	ZkReading	reading;

	zkl_ask(c->reader, zks_list_records(c->reader->patience.session, c->board));
	reading = zkl_await_oldest(c->reader, &answer);
	if (reading != ZKL_READ)
		return reading;
	if (answer.rc == ZKS_OK)
	{
		c->nrecords = answer.nchildren;
		c->records = palloc_extended((c->nrecords + 1) * sizeof(Record), MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE);
		for (int i = 0; i < c->nrecords; i++)
		{
			c->records[i].name = pstrdup(answer.children[i]);
			(void) zkp_parse_record(c->records[i].name, &c->records[i].says_name);
		}
		qsort(c->records, c->nrecords, sizeof(Record), compare_records);
	}
	zkl_drop_oldest(c->reader);
	return ZKL_READ;
}

/* A persistent node is nobody's */
static void
take_record(Chase *c, Record *record, const ZkAnswer *answer)
{
	if (answer->rc != ZKS_OK)
		return;
	c->bytes += answer->data_len;
	if (answer->stat.owner == 0)
		return;
	record->stat = answer->stat;
	record->valid = zkl_read_record(answer->data, answer->data_len, &record->says);
}

/*
 * Read these records that were not read yet: those of a tag, or, if that is NULL,
 * those that name others.  These leave half of the room to the former, so that
 * many of them hide no cycle of waits in ZooKeeper alone.
 */
static ZkReading
read_records(Chase *c, const char *tag)
{
	int			first = 0;
	int			last = c->nrecords;
	int			next;
	int		   *wanted;
	int			n = 0;
	int			most_nodes = tag == NULL ? MOST_NODES / 2 : MOST_NODES;
	size_t		most_bytes = tag == NULL ? MOST_BYTES / 2 : MOST_BYTES;

	if (tag != NULL)
	{
		first = first_with_tag(c->records, c->nrecords, sizeof(Record), tag);
		for (last = first; last < c->nrecords && strcmp(c->records[last].says_name.tag, tag) == 0;)
			last++;
	}
	wanted = palloc_extended((last - first + 1) * sizeof(int), MCXT_ALLOC_HUGE);
	for (int i = first; i < last && c->nread < most_nodes; i++)
	{
		Record	   *record = &c->records[i];

		if (record->asked || (tag == NULL && !record->says_name.names_others) ||
			strcmp(record->says_name.tag, c->parties[0].tag) == 0)
			continue;
		record->asked = true;
		c->nread++;
		wanted[n++] = i;
	}
	next = 0;
	for (int i = 0; i < n; i++)
	{
		ZkAnswer	answer;
		ZkReading	reading;

		for (; next < n && next < i + MOST_AHEAD && c->bytes < most_bytes; next++)
		{
			char	   *path = psprintf("%s/%s", c->board, c->records[wanted[next]].name);

			zkl_ask(c->reader, zks_read_record(c->reader->patience.session, path));
			pfree(path);
		}
		if (i == next)
			break;
		reading = zkl_await_oldest(c->reader, &answer);
		if (reading != ZKL_READ)
			return reading;
		take_record(c, &c->records[wanted[i]], &answer);
		zkl_drop_oldest(c->reader);
	}
	pfree(wanted);
	return ZKL_READ;
}

/*-------------------------------------------------------------------------
 * Queues
 *-------------------------------------------------------------------------
 */

/* The index of this queue, read if it was not yet */
static ZkReading
get_queue(Chase *c, const char *dir, bool semaphore, int *at)
{
	ZkDepth		depth = {.holders = true,.most = MOST_NODES - c->nread};
	ZkReading	reading;

	for (*at = 0; *at < c->nqueues; (*at)++)
	{
		if (c->queues[*at].semaphore == semaphore && strcmp(c->queues[*at].dir, dir) == 0)
			return ZKL_READ;
	}
	c->queues = grow(c->queues, c->nqueues, sizeof(ZkSeenQueue));
	if (c->nnames > MOST_NAMES)
	{
		/* as in zkl_read_queue: nobody is there */
		c->queues[*at] = (ZkSeenQueue)
		{
			.dir = pstrdup(dir),.semaphore = semaphore
		};
		c->nqueues++;
		return ZKL_READ;
	}
	reading = zkl_read_queue(c->reader, dir, semaphore, &depth, &c->queues[*at]);
	c->nqueues++;
	c->nnames += c->queues[*at].n;
	for (int i = 0; i < c->queues[*at].n; i++)
		c->nread += c->queues[*at].list[i].read;
	return reading;
}

/*-------------------------------------------------------------------------
 * Parties
 *-------------------------------------------------------------------------
 */

static int
get_party(Chase *c, const char *tag, int64 owner, const char *identity, int identity_len)
{
	Party	   *party;

	for (int i = 0; i < c->nparties; i++)
	{
		if (c->parties[i].owner == owner && strcmp(c->parties[i].tag, tag) == 0)
			return i;
	}
	if (c->nparties >= MOST_PARTIES)
		return -1;
	c->parties = grow(c->parties, c->nparties, sizeof(Party));
	party = &c->parties[c->nparties];
	memset(party, 0, sizeof(*party));
	strlcpy(party->tag, tag, sizeof(party->tag));
	party->owner = owner;
	party->record = party->queue = -1;
	party->identity = identity;
	party->identity_len = identity_len;
	return c->nparties++;
}

static void
add_local(Chase *c, int waiter, int holder, int record, int wait)
{
	if (holder < 0)
		return;
	c->locals = grow(c->locals, c->nlocals, sizeof(Local));
	c->locals[c->nlocals++] = (Local)
	{
		waiter, holder, record, wait
	};
}

static int
compare_told(const void *left, const void *right)
{
	const Told *a = left;
	const Told *b = right;
	int			result = strcmp(a->tag, b->tag);

	if (result == 0)
		result = a->record - b->record;
	return result != 0 ? result : a->wait - b->wait;
}

/* In the records that name others, which may name very many */
static void
sort_told(Chase *c)
{
	int			n = 0;

	for (int i = 0; i < c->nrecords; i++)
		n += c->records[i].says.n;
	c->told = palloc_extended((n + 1) * sizeof(Told), MCXT_ALLOC_HUGE);
	for (int i = 0; i < c->nrecords; i++)
	{
		const Record *record = &c->records[i];

		for (int k = 0; record->valid && record->says_name.names_others && k < record->says.n; k++)
			c->told[c->ntold++] = (Told)
		{
			record->says.waits[k].tag, i, k
		};
	}
	qsort(c->told, c->ntold, sizeof(Told), compare_told);
}

/* Whom this one waits for here, as we saw ourselves */
static void
follow_here(Chase *c, int at)
{
	for (int i = 0; i < c->from->nwaits; i++)
	{
		if (strcmp(c->from->waits[i].tag, c->parties[at].tag) == 0)
			add_local(c, at, 0, -1, i);
	}
}

/* Whom this one waits for on its server, as they say */
static void
follow_told(Chase *c, int at)
{
	int			first = first_with_tag(c->told, c->ntold, sizeof(Told), c->parties[at].tag);
	int			holder = -1;

	for (int i = first; i < c->ntold && strcmp(c->told[i].tag, c->parties[at].tag) == 0; i++)
	{
		const Record *record = &c->records[c->told[i].record];

		if (c->nlocals >= MOST_LOCALS)
			break;
		if (i == first || c->told[i].record != c->told[i - 1].record)
			holder = get_party(c, record->says_name.tag, record->stat.owner, record->says.identity,
							   record->says.identity_len);
		add_local(c, at, holder, c->told[i].record, c->told[i].wait);
	}
}

/* The directory where this party waits, and its node there; NULL if nowhere */
static const char *
find_wait(Chase *c, int at, const char **node)
{
	Party	   *party = &c->parties[at];

	if (at == 0)
	{
		*node = c->from->node;
		return c->from->dir;
	}
	for (int i = 0; i < c->nrecords; i++)
	{
		const Record *record = &c->records[i];

		if (!record->valid || record->stat.owner != party->owner || strcmp(record->says_name.tag, party->tag) != 0 ||
			strncmp(record->says.dir, c->from->dir, c->from->root_len) != 0 ||
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

		if (contender->read && contender->tag[0] != '\0' && contender->name.owner != 0)
			(void) get_party(c, contender->tag, contender->name.owner, contender->says.identity,
							 contender->says.identity_len);
	}
}

static ZkReading
follow_to_queue(Chase *c, int at)
{
	const char *node = NULL;
	const char *dir;
	ZkpContender name;
	ZkReading	reading = ZKL_READ;
	int			q;

	if (at > 0)
		reading = read_records(c, c->parties[at].tag);
	if (reading != ZKL_READ)
		return reading;
	dir = find_wait(c, at, &node);
	if (dir == NULL || !zkp_parse(node, &name))
		return ZKL_READ;
	reading = get_queue(c, dir, name.mode == ZKP_SEMAPHORE, &q);
	for (int i = 0; reading == ZKL_READ && i < c->queues[q].n; i++)
	{
		int64		owner = 0;

		if (strcmp(c->queues[q].list[i].name.name, node) != 0)
			continue;

		/* anybody may say that he waits there */
		reading = zkl_read_owner(c->reader, &c->queues[q], i, &owner);
		if (reading != ZKL_READ || owner != c->parties[at].owner)
			break;
		c->parties[at].queue = q;
		c->parties[at].at = i;
		reach_holders(c, &c->queues[q], i);
		break;
	}
	return reading;
}

/*
 * All whom we wait for, directly or through others.  This goes on where it ended
 * before.
 */
static ZkReading
follow_all(Chase *c)
{
	for (; c->nfollowed < c->nparties; c->nfollowed++)
	{
		int			at = c->nfollowed;
		ZkReading	reading;

		CHECK_FOR_INTERRUPTS();
		if (c->reader->patience.go_on != NULL && !c->reader->patience.go_on(c->reader->patience.arg))
			return ZKL_LATE;
		reading = follow_to_queue(c, at);
		if (reading != ZKL_READ)
			return reading;

		/* we ourselves wait for nothing else, whatever a record says */
		if (at == 0)
			continue;
		follow_here(c, at);
		if (c->others_read)
			follow_told(c, at);
	}
	return ZKL_READ;
}

/* What the waits are on other servers, and all that follows from these */
static ZkReading
follow_others(Chase *c)
{
	ZkReading	reading = read_records(c, NULL);

	if (reading != ZKL_READ)
		return reading;
	sort_told(c);
	c->others_read = true;
	for (int at = 1; at < c->nfollowed; at++)
		follow_told(c, at);
	return follow_all(c);
}

/*-------------------------------------------------------------------------
 * What was found
 *-------------------------------------------------------------------------
 */

/* A party that does not exist there yet is nobody whom we know */
static int
find_party(const Chase *c, const ZkSeenContender *contender)
{
	if (contender->name.owner == 0)
		return -1;
	for (int i = 0; i < c->nparties; i++)
	{
		if (c->parties[i].owner == contender->name.owner &&
			strcmp(c->parties[i].tag, contender->tag) == 0)
			return i;
	}
	return -1;
}

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
		ZkGraphContender *contender = &result->contenders[i];

		/* a number that two have tells nothing */
		if (i > 0 && (name->czxid != 0 || name->seq != queue->list[i - 1].name.seq))
			rank++;
		contender->party = find_party(c, &queue->list[i]);
		contender->granted = queue->list[i].granted;
		contender->shared = name->mode == ZKP_SHARED;
		contender->permits = name->permits;
		contender->owner = name->ours ? name->owner : 0;
		contender->rank = rank;
	}
}

typedef enum Word
{
	OUR_OWN,
	OF_OTHERS,
	LATER						/* those of from->later */
} Word;

static Word
whose_word(const Chase *c, const Local *local)
{
	const ZkCycle *later = c->from->later;

	if (local->record < 0)
		return OUR_OWN;
	for (int i = 0; later != NULL && i < later->nchecks; i++)
	{
		if (later->of_record[i] && strcmp(strrchr(later->checks[i].path, '/') + 1, c->records[local->record].name) == 0)
			return LATER;
	}
	return OF_OTHERS;
}

/* Move those with this word to the front, behind the first ones; how many are there then */
static int
put_first(Chase *c, int first, Word word)
{
	for (int i = first; i < c->nlocals; i++)
	{
		Local		local = c->locals[i];

		if (whose_word(c, &local) != word)
			continue;
		c->locals[i] = c->locals[first];
		c->locals[first++] = local;
	}
	return first;
}

/* With so many of the local waits */
static ZkGraph *
make_graph(const Chase *c, int nlocals)
{
	ZkGraph    *g = palloc0(sizeof(ZkGraph));

	g->nparties = c->nparties;
	g->parties = palloc0((c->nparties + 1) * sizeof(ZkGraphParty));
	g->nqueues = c->nqueues;
	g->queues = palloc0((c->nqueues + 1) * sizeof(ZkGraphQueue));
	g->nlocals = nlocals;
	g->locals = palloc_extended((nlocals + 1) * sizeof(ZkGraphLocal), MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE);
	for (int i = 0; i < c->nqueues; i++)
		make_graph_queue(c, &c->queues[i], &g->queues[i]);
	for (int i = 0; i < c->nparties; i++)
	{
		g->parties[i].queue = c->parties[i].queue;
		g->parties[i].at = c->parties[i].at;
		if (c->parties[i].queue >= 0)
		{
			ZkGraphContender *own = &g->queues[c->parties[i].queue].contenders[c->parties[i].at];

			own->party = i;
			own->owner = c->parties[i].owner;
		}
	}
	for (int i = 0; i < nlocals; i++)
	{
		g->locals[i].waiter = c->locals[i].waiter;
		g->locals[i].holder = c->locals[i].holder;
	}
	return g;
}

static char *
who(const Chase *c, int at, int pid)
{
	const Party *party = &c->parties[at];

	if (at == 0 && pid == 0)
		pid = MyProcPid;
	return zkb_who(party->identity, party->identity_len, pid, party->owner);
}

static void
put_line(StringInfo lines, const char *waiter, const char *what, const char *blocker)
{
	if (lines->len > 0)
		appendStringInfoChar(lines, '\n');
	appendStringInfo(lines, "%c%s waits for %s; blocked by %s.",
					 pg_toupper((unsigned char) waiter[0]), waiter + 1, what, blocker);
}

/* A wait in ZooKeeper */
static void
describe_wait(const Chase *c, const ZkGraph *g, int at, StringInfo lines)
{
	const ZkSeenQueue *queue = &c->queues[c->parties[at].queue];

	put_line(lines, who(c, at, 0),
			 zkl_describe_wait(queue->list[c->parties[at].at].name.mode, queue->dir + c->from->root_len),
			 who(c, g->parties[at].waits_for, 0));
}

/*
 * The waits from one party to another on the same server, each as evidence, too
 */
static void
follow_chain(const Chase *c, const Local *local, int check, ZkCycle *cycle, StringInfo lines)
{
	const Record *record = local->record >= 0 ? &c->records[local->record] : NULL;

	for (int at = local->wait; at >= 0;)
	{
		ZkLocalEvidence *evidence;
		int			pid = record != NULL ? record->says.waits[at].pid : c->from->waits[at].pid;
		int			blocker = record != NULL ? record->says.waits[at].blocker : c->from->waits[at].blocker;
		int			blocker_pid = blocker < 0 ? 0 :
		record != NULL ? record->says.waits[blocker].pid : c->from->waits[blocker].pid;
		const char *what = record != NULL ?
		zkb_from_utf8_escaped(record->says.waits[at].what, strlen(record->says.waits[at].what), false) :
		c->from->waits[at].what;

		cycle->locals = grow(cycle->locals, cycle->nlocals, sizeof(ZkLocalEvidence));
		evidence = &cycle->locals[cycle->nlocals++];
		evidence->check = check;
		if (at == local->wait)
			strlcpy(evidence->tag, c->parties[local->waiter].tag, ZKP_TAG_LEN);
		else
			evidence->tag[0] = '\0';
		evidence->since = record != NULL ? record->says.waits[at].since : c->from->waits[at].since;
		if (lines != NULL)
			put_line(lines, at == local->wait ? who(c, local->waiter, 0) : who(c, local->holder, pid),
					 what[0] != '\0' ? what : "a lock of PostgreSQL's", who(c, local->holder, blocker_pid));
		at = blocker;
	}
}

static int
add_check(ZkCycle *cycle, const char *dir, const char *name, int version, bool of_record)
{
	char	   *path = psprintf("%s/%s", dir, name);

	for (int i = 0; i < cycle->nchecks; i++)
	{
		if (strcmp(cycle->checks[i].path, path) == 0)
			return i;
	}
	cycle->of_record = grow(cycle->of_record, cycle->nchecks, sizeof(bool));
	cycle->checks = grow(cycle->checks, cycle->nchecks, sizeof(ZkCheck));
	cycle->of_record[cycle->nchecks] = of_record;
	cycle->checks[cycle->nchecks].path = path;
	cycle->checks[cycle->nchecks].version = version;
	return cycle->nchecks++;
}

/* The queries of those in the cycle that are this server's */
static void
put_query(StringInfo queries, int pid)
{
	appendStringInfo(queries, "%sProcess %d: %s", queries->len > 0 ? "\n" : "", pid,
					 pgstat_get_backend_current_activity(pid, false));
}

static char *
list_queries(const Chase *c, const ZkGraph *g)
{
	StringInfoData queries;
	char	   *own[ZKB_FIELDS];
	char	   *fields[ZKB_FIELDS];
	int			at = 0;

	initStringInfo(&queries);
	zkb_read_identity(c->parties[0].identity, c->parties[0].identity_len, own);
	put_query(&queries, MyProcPid);
	do
	{
		const Party *party = &c->parties[at];

		if (g->parties[at].local >= 0 && c->locals[g->parties[at].local].record < 0)
		{
			for (int i = c->locals[g->parties[at].local].wait; i >= 0; i = c->from->waits[i].blocker)
				put_query(&queries, c->from->waits[i].pid);
		}
		else if (at > 0)
		{
			zkb_read_identity(party->identity, party->identity_len, fields);
			if (own[ZKB_FIELD_HOST] != NULL && fields[ZKB_FIELD_HOST] != NULL &&
				strcmp(own[ZKB_FIELD_HOST], fields[ZKB_FIELD_HOST]) == 0 &&
				own[ZKB_FIELD_PORT] != NULL && fields[ZKB_FIELD_PORT] != NULL &&
				strcmp(own[ZKB_FIELD_PORT], fields[ZKB_FIELD_PORT]) == 0 && fields[ZKB_FIELD_PID] != NULL)
				put_query(&queries, atoi(fields[ZKB_FIELD_PID]));
		}
		at = g->parties[at].waits_for;
	} while (at > 0);
	return queries.data;
}

static ZkCycle *
make_cycle(const Chase *c, const ZkGraph *g)
{
	ZkCycle    *cycle = palloc0(sizeof(ZkCycle));
	StringInfoData lines;
	int			at = 0;

	for (int q = 0; q < c->nqueues; q++)
	{
		for (int i = 0; i < c->queues[q].n; i++)
		{
			const ZkSeenContender *contender = &c->queues[q].list[i];

			/* our own place is given up by the same transaction */
			if (!g->queues[q].contenders[i].evidence || (c->parties[0].queue == q && c->parties[0].at == i))
				continue;

			/* who waits has nothing to change, and its data was not read */
			(void) add_check(cycle, c->queues[q].dir, contender->name.name,
							 contender->granted ? contender->stat.version : -1, false);
		}
	}
	for (int i = 0; i < g->nlocals; i++)
	{
		const Local *local = &c->locals[i];

		if (!g->locals[i].evidence)
			continue;
		follow_chain(c, local, local->record < 0 ? -1 :
					 add_check(cycle, c->board, c->records[local->record].name,
							   c->records[local->record].stat.version, true),
					 cycle, NULL);
	}

	/* a record goes before the node whose wait it tells of does */
	for (int i = 1; i < c->nparties; i++)
	{
		if (g->parties[i].evidence && c->parties[i].record >= 0)
			(void) add_check(cycle, c->board, c->records[c->parties[i].record].name, -1, false);
	}

	initStringInfo(&lines);
	do
	{
		ZkCycle		ignored = {0};

		if (g->parties[at].local >= 0)
			follow_chain(c, &c->locals[g->parties[at].local], -1, &ignored, &lines);
		else
			describe_wait(c, g, at, &lines);
		at = g->parties[at].waits_for;
	} while (at > 0);
	cycle->detail = lines.data;
	cycle->queries = list_queries(c, g);
	return cycle;
}

static bool
is_listed(const Chase *c, const char *name)
{
	for (int i = 0; i < c->nrecords; i++)
	{
		if (strcmp(c->records[i].name, name) == 0)
			return true;
	}
	return false;
}

/*
 * NULL if there is none.  A cycle that needs no word of another server can be
 * proven at once, and must not be hidden by one that cannot; nor must one that gets
 * proven by one that rests on a record that nobody writes any more.
 */
static ZkCycle *
find_cycle(Chase *c)
{
	ZkGraph    *g;
	int			n = 0;

	if (c->nparties == 1)
		return NULL;
	for (Word word = OUR_OWN; word <= LATER; word++)
	{
		int			before = n;

		n = put_first(c, n, word);
		if (word != OUR_OWN && n == before)
			continue;
		g = make_graph(c, n);
		if (zkl_find_cycle(g, 0))
			return make_cycle(c, g);
	}
	return NULL;
}

ZkReading
zkl_chase(ZkReader *reader, const ZkChaseFrom *from, ZkCycle **cycle, bool *listed)
{
	Chase		c = {.reader = reader,.from = from};
	ZkSessionInfo before;
	ZkSessionInfo after;
	ZkReading	reading;
	char	   *identity = pstrdup(zkb_identity_lines());

	*cycle = NULL;
	zks_info(reader->patience.session, &before);
	c.board = zkl_board(from->dir, from->root_len);
	(void) get_party(&c, zkb_own_tag(), before.session_id, identity, strlen(identity));
	reading = list_board(&c);
	*listed = reading != ZKL_READ || is_listed(&c, from->record);
	if (reading == ZKL_READ)
		reading = follow_all(&c);

	/*
	 * The word of other servers may be that of thousands.  It is asked for
	 * only where we do not know enough without it.
	 */
	if (reading == ZKL_READ)
		*cycle = find_cycle(&c);
	if (reading == ZKL_READ && *cycle == NULL && c.nparties > 1)
	{
		reading = follow_others(&c);
		if (reading == ZKL_READ)
			*cycle = find_cycle(&c);
	}

	/* another server may have shown an earlier state */
	zks_info(reader->patience.session, &after);
	if (reading == ZKL_READ && before.epoch != after.epoch)
		reading = ZKL_BROKEN;
	if (reading != ZKL_READ)
		*cycle = NULL;
	return reading;
}

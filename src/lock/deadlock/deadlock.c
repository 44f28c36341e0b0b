/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Whether a wait in a queue is part of a cycle, and breaking that.
 *
 * There is no daemon.  A backend that has waited for deadlock_timeout and may
 * block others publishes its wait: an ephemeral record on a board in
 * ZooKeeper, which also names those who wait for one of PostgreSQL's locks
 * behind it on its server.  Then it follows the waits of others (chase.c).  Of
 * the records of a cycle one is the last, and its author sees all.  Whoever
 * finds itself in a cycle gives up its place in the queue by a transaction of
 * ZooKeeper that checks all the rest of the cycle; so of two who try only one
 * succeeds, and nobody fails for what no longer is.  It raises its own error:
 * nobody else is interrupted.
 *
 * That all waits stood at one moment is known in three ways.  A wait in a queue
 * stands as long as its node and the one before it do, in the versions that were
 * read, and the transaction checks these.  Waits for PostgreSQL's locks on this
 * server are looked at, all at one instant, after the others were read.  Those on
 * other servers we know only by a record, which its author writes anew after each
 * of its own looks; once it has been written twice since we had read the whole
 * cycle, and still names the same waits, they stood at that time.
 *
 * The record is there while its author waits, and no longer: it goes before the
 * contender does (or right after it, if that is deleted to break the cycle, by a
 * transaction that checks all it relies on), and is not made while a node that we no longer want may still
 * stand somewhere, since that would look like a lock that we hold while we wait.
 * Who waits for one of PostgreSQL's locks cannot take such care, so its wait counts
 * only after some time.
 *
 * models/deadlock.pml shows that each of these rules is needed.
 *
 * A backend that holds nothing and blocks nobody skips all of this.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "backend/backend_session.h"
#include "backend/node_identity.h"
#include "backend/slots.h"
#include "chase.h"
#include "deadlock.h"

/* Looks after the first are at least so far apart */
#define SHORTEST_PAUSE_MS	10

/* Checks in a transaction are at most this many, and of this size */
#define MOST_CHECKS			(ZKN_CHECK_MAX - 1)
#define MOST_CHECK_BYTES	(256 * 1024)

/* A cycle that has changed meanwhile is looked for again at once, so often */
#define AT_ONCE				3

/* Who was told that nothing has changed looks at the board again, now and then */
#define QUIET_LOOKS			10

struct ZkSearch
{
	ZkSearchFor what;
	int64		due;
	ZkNode	   *record;			/* published; or NULL */
	ZkRecord	says;			/* what it says; lasts for a look */
	uint64		seen;			/* what stands for all that it says */
	int64		grows_up;		/* when one of those that do not count yet
								 * will */
	int			quiet;			/* looks since the board was last read; -1: it
								 * must be read */
	ZkCycle    *candidates[2];	/* not certain yet: see end_cycle; or NULL */
	int			first_at;		/* neither hides the other: the one that is
								 * looked for first */
	ZkReader	reader;
};

ZkSearch *
zkl_begin_search(const ZkSearchFor *for_what)
{
	ZkSearch   *s = palloc0(sizeof(ZkSearch));

	s->what = *for_what;
	s->due = zkb_deadline(DeadlockTimeout);
	s->quiet = -1;
	s->grows_up = ZKS_NEVER;
	return s;
}

int64
zkl_search_due(const ZkSearch *s)
{
	return s->due;
}

/*
 * So many times each deadlock_timeout; a little less than that, so that those who
 * began together do not go on together
 */
static void
look_again(ZkSearch *s, int times)
{
	int			ms = DeadlockTimeout / times;

	ms -= (int) ((zks_now() / 1000) % (ms / 4 + 1));
	s->due = zkb_deadline(Max(ms, SHORTEST_PAUSE_MS));
	s->due = Min(s->due, Max(s->grows_up, zkb_deadline(SHORTEST_PAUSE_MS)));
}

static void
retract(ZkSearch *s)
{
	if (s->record != NULL)
		(void) zkn_discard(s->what.patience.session, s->record);
	s->record = NULL;
}

static void
forget(ZkCycle **kept)
{
	if (*kept != NULL)
		MemoryContextDelete(GetMemoryChunkContext(*kept));
	*kept = NULL;
}

static void
forget_candidates(ZkSearch *s)
{
	for (int i = 0; i < lengthof(s->candidates); i++)
		forget(&s->candidates[i]);
}

static bool
has_candidate(const ZkSearch *s)
{
	return s->candidates[0] != NULL || s->candidates[1] != NULL;
}

void
zkl_end_search(ZkSearch **search)
{
	ZkSearch   *s = *search;

	if (s == NULL)
		return;
	zkl_end_reading(&s->reader);
	retract(s);
	forget_candidates(s);
	pfree(s);
	*search = NULL;
}

/*-------------------------------------------------------------------------
 * Publishing
 *-------------------------------------------------------------------------
 */

static bool
create_record(ZkSearch *s, const char *lines, bool names_others)
{
	char	   *board = zkl_board(s->what.dir, s->what.root_len);
	char	   *tag = psprintf("%s%s", zkb_own_tag(), names_others ? "+" : "");
	ZkpWant		want = {.record = tag,.identity = lines,.closed = s->what.want->closed};

	retract(s);
	for (int parents = 0; parents <= 1; parents++)
	{
		ZkNodeInfo	info;

		if (!zkn_create(s->what.patience.session, &board, 1, &want, parents, &s->record))
		{
			s->record = NULL;
			return false;
		}
		zkl_begin_reading(&s->reader, s->what.patience);
		(void) zkb_await_node(&s->reader.patience, s->record, &info);
		if (info.state == ZKN_PRESENT)
			return true;
		retract(s);
		if (info.state != ZKN_ABSENT || info.rc != ZKS_NO_NODE)
			return false;
	}
	return false;
}

static bool
rewrite_record(ZkSearch *s, const char *name, const char *lines)
{
	ZkpData		says = {.identity = lines};
	char	   *data = palloc(strlen(lines) + ZKP_DATA_EXTRA);
	char	   *path = psprintf("%s/%s", zkl_board(s->what.dir, s->what.root_len), name);
	ZkAnswer	answer;
	bool		answered;

	zkp_write_data(data, &says);
	zkl_begin_reading(&s->reader, s->what.patience);
	answered = zkl_ask_apart(&s->reader, zks_write(s->what.patience.session, path, data, -1), &answer);
	zkl_end_reading(&s->reader);
	return answered && answer.rc == ZKS_OK;
}

/* Publish where we wait, and who waits for us.  False if that could not be done. */
static bool
publish(ZkSearch *s)
{
	ZkNodeInfo	node;
	ZkNodeInfo	record = {.state = ZKN_ABSENT};
	bool		names_others = s->says.n > 0;
	char	   *lines;
	uint64		seen;
	bool		done;

	zkn_info(s->what.patience.session, s->what.node, &node);
	s->says.dir = s->what.dir;
	s->says.node = pstrdup(node.name);
	s->says.identity = pstrdup(zkb_identity_lines());
	lines = zkl_record_lines(&s->says);
	seen = hash_bytes_extended((unsigned char *) lines, (int) strlen(lines), 0);
	if (seen != s->seen)
		s->quiet = -1;
	s->seen = seen;
	if (s->record != NULL)
		zkn_info(s->what.patience.session, s->record, &record);
	if (record.state == ZKN_PRESENT && (record.name[ZKP_TAG_LEN - 1] == '+') == names_others)
		done = !names_others || rewrite_record(s, record.name, lines);
	else
	{
		s->quiet = -1;
		done = create_record(s, lines, names_others);
	}
	if (!done)
		retract(s);
	return done;
}

/*-------------------------------------------------------------------------
 * Breaking
 *-------------------------------------------------------------------------
 */

static void
raise_deadlock(const ZkCycle *cycle)
{
	zkb_counters.deadlocks++;
	pgstat_report_deadlock();
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail_internal("%s", cycle->detail),
			 errdetail_log("%s\n%s", cycle->detail, cycle->queries),
			 errhint("Release the session-scope locks that this session still holds, then retry the transaction. See server log for query details.")));
}

/* The candidate that this cycle is, or will be */
static ZkCycle **
candidate_of(ZkSearch *s, const ZkCycle *cycle)
{
	for (int i = 0; i < lengthof(s->candidates); i++)
	{
		if (s->candidates[i] != NULL && zkl_is_same_cycle(s->candidates[i], cycle, 0))
			return &s->candidates[i];
	}
	forget(&s->candidates[s->first_at]);
	return &s->candidates[s->first_at];
}

static bool
is_too_large(const ZkCycle *cycle)
{
	size_t		bytes = 0;

	for (int i = 0; i < cycle->nchecks; i++)
		bytes += strlen(cycle->checks[i].path);
	return cycle->nchecks > MOST_CHECKS || bytes > MOST_CHECK_BYTES;
}

/*
 * Give up our place if the cycle stands.  Returns false if it has changed; true
 * if there is nothing more to do now.  If the answer is lost, we look again: either our
 * place is still there, or we queue again, and the cycle is a new one.
 */
static bool
give_way(ZkSearch *s, ZkCycle *cycle)
{
	ZkNodeInfo	node;
	ZkAnswer	answer = {0};
	ZkRequest  *request;

	if (is_too_large(cycle))
		return true;
	zkn_info(s->what.patience.session, s->what.node, &node);
	if (node.state != ZKN_PRESENT)
		return true;

	/* whatever happens now, it is better to know what became of it */
	s->reader.patience.go_on = NULL;
	request = zks_delete_if(s->what.patience.session, psprintf("%s/%s", s->what.dir, node.name),
							cycle->checks, cycle->nchecks);
	if (!zkl_ask_apart(&s->reader, request, &answer))
	{
		s->quiet = -1;
		return true;
	}
	if (answer.rc == ZKS_OK)
		raise_deadlock(cycle);
	return answer.missing == cycle->nchecks;	/* our own node is gone */
}

/*
 * End the cycle if there was a moment at which all of its waits stood, supposed that
 * what it checks still stands.  Returns false if it must be read again at once.  One
 * with waits on other servers is kept until that is known; its memory is then the
 * search's.
 *
 * It is read twice before we count what is written: a first reading takes a while,
 * and what stood when it began may have gone before it saw the rest
 * (models/deadlock.pml, MUTANT_FIRST_READING).
 */
static bool
end_cycle(ZkSearch *s, ZkCycle *cycle)
{
	if (cycle->nrecords > 0)
	{
		ZkCycle   **candidate = candidate_of(s, cycle);
		bool		is_new = *candidate == NULL;
		bool		counts = !is_new && (*candidate)->read_twice;

		if (!counts)
		{
			cycle->read_twice = !is_new;
			forget(candidate);
			*candidate = cycle;
		}
		if (is_new)
			return false;
		if (!counts || !zkl_is_same_cycle(*candidate, cycle, 2))
		{
			s->first_at = 1 - s->first_at;	/* others must write their records
											 * before */
			return true;
		}
	}
	return give_way(s, cycle);
}

/*-------------------------------------------------------------------------
 * Looking
 *-------------------------------------------------------------------------
 */

/*
 * Read where everybody waits.  Returns false if that must be done again at once,
 * since the cycle that was found has changed meanwhile, or to be sure.
 */
static bool
chase_once(ZkSearch *s)
{
	/* a cycle outlives the look that has found it, with all its memory */
	MemoryContext context = AllocSetContextCreate(GetMemoryChunkContext(s), "zklock deadlock search", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	ZkNodeInfo	record;
	ZkChaseFrom from = {
		.says = &s->says,.root_len = s->what.root_len,.record = record.name,
		.later = s->candidates[1 - s->first_at]
	};
	ZkCycle    *cycle;
	bool		listed;
	bool		done = true;

	zkn_info(s->what.patience.session, s->record, &record);
	zkl_begin_reading(&s->reader, s->what.patience);
	s->quiet = 0;
	if (!zkl_chase(&s->reader, &from, &cycle, &listed))
		s->quiet = -1;
	else if (cycle == NULL)
		forget_candidates(s);
	else
		done = end_cycle(s, cycle);
	zkl_end_reading(&s->reader);
	if (!listed)
		retract(s);				/* somebody deleted it: the next look makes
								 * another */
	MemoryContextSwitchTo(old);
	if (cycle == NULL || (cycle != s->candidates[0] && cycle != s->candidates[1]))
		MemoryContextDelete(context);
	return done;
}

static void
look(ZkSearch *s)
{
	s->grows_up = zkl_find_waits(&s->says);
	if (!s->what.holds && s->says.n == 0)
	{
		retract(s);
		forget_candidates(s);
		look_again(s, 1);
		return;
	}
	if (zkn_unwanted(s->what.patience.session, NULL, NULL) || !publish(s))
	{
		look_again(s, 2);
		return;
	}
	if (s->quiet < 0 || has_candidate(s) || ++s->quiet >= QUIET_LOOKS)
	{
		int			tries = 1;

		while (!chase_once(s) && s->record != NULL)
		{
			if (++tries > AT_ONCE)
			{
				s->quiet = -1;
				break;
			}
		}
	}
	/* who waits for others to write must not lose much time after they did */
	look_again(s, has_candidate(s) ? 4 : s->says.n > 0 || s->quiet < 0 ? 2 : 1);
}

/* A wait may last for days, so a look leaves nothing behind but what it keeps */
void
zkl_search(ZkSearch *s)
{
	MemoryContext context;
	MemoryContext old;

	zkl_begin_reading(&s->reader, s->what.patience);
	zkl_log_still_waiting(s->what.log, &s->reader, s->what.dir, s->what.root_len, s->what.want->mode);
	zkl_end_reading(&s->reader);
	if (s->what.node == NULL)
	{
		look_again(s, 1);
		return;
	}
	zkb_counters.deadlock_checks++;
	context = AllocSetContextCreate(CurrentMemoryContext, "zklock deadlock look", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	look(s);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

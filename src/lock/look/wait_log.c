/*-------------------------------------------------------------------------
 *
 * wait_log.c
 *	  What log_lock_waits has to say of a wait in a queue.
 *
 * The words are those of PostgreSQL's lock manager, with a host for each
 * process.  Only this reads the queue on behalf of somebody who holds nothing,
 * and only if log_lock_waits is on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/proc.h"

#include "backend/encoding.h"
#include "seen_queue.h"
#include "wait_log.h"

/* How many of a queue are named, and how many holders are read, at most */
#define MOST_NAMED		20
#define MOST_READ		1000

char *
zkl_describe_wait(ZkpMode mode, const char *path)
{
	static const char *const formats[] = {
		"%s", "ShareLock on lock path \"%s\"", "ExclusiveLock on lock path \"%s\"", "a place of semaphore \"%s\""
	};

	StaticAssertStmt(lengthof(formats) == ZKP_SEMAPHORE + 1, "formats is indexed by ZkpMode");
	return psprintf(formats[mode], zkb_from_utf8_escaped(path, strlen(path), false));
}

/* "process 742 on db1:5432, process 9 on db2:5432, and 3 more"; or "" */
static char *
name_some(const ZkSeenQueue *queue, bool granted)
{
	StringInfoData text;
	int			n = 0;

	initStringInfo(&text);
	for (int i = 0; i < queue->n; i++)
	{
		const ZkSeenContender *contender = &queue->list[i];

		if (contender->granted != granted)
			continue;
		if (n++ >= MOST_NAMED || !contender->read)
			continue;
		appendStringInfo(&text, "%s%s", text.len > 0 ? ", " : "",
						 zkb_who(contender->says.identity, contender->says.identity_len, 0, contender->name.owner));
	}
	if (n > MOST_NAMED)
		appendStringInfo(&text, ", and %d more", n - MOST_NAMED);
	return text.data;
}

void
zkl_log_still_waiting(ZkWaitLog *log, ZkReader *reader, const char *dir, int root_len, ZkpMode mode)
{
	static const ZkDepth depth = {.holders = true,.first = MOST_NAMED,.most = MOST_READ};
	ZkSeenQueue queue;
	bool		answered;
	int64		waited;

	if (!log_lock_waits || log->what != NULL)
		return;
	answered = zkl_read_queue(reader, dir, mode == ZKP_SEMAPHORE, &depth, &queue);
	if (answered && queue.n == 0)
	{
		zkl_take_name(&queue, dir, NULL);
		answered = zkl_read_queues(reader, &queue, 1, &depth);
	}
	if (!answered || (queue.single && !queue.list[0].granted))
		queue.n = 0;
	log->what = zkl_describe_wait(mode, dir + root_len);
	waited = zks_now() - log->began_at;
	ereport(LOG,
			(errmsg("process %d still waiting for %s after %.3f ms", MyProcPid, log->what,
					(double) waited / ZKS_MS),
			 queue.n > 0 ? errdetail_log("Held by: %s. Wait queue: %s.", name_some(&queue, true), name_some(&queue, false)) : 0));
}

void
zkl_log_end_of_wait(ZkWaitLog *log, bool acquired)
{
	int64		waited = zks_now() - log->began_at;

	if (log->what == NULL)
		return;

	/* canceled in here, the caller would still have its nodes */
	HOLD_INTERRUPTS();
	ereport(LOG,
			acquired ?
			errmsg("process %d acquired %s after %.3f ms", MyProcPid, log->what, (double) waited / ZKS_MS) :
			errmsg("process %d failed to acquire %s after %.3f ms", MyProcPid, log->what, (double) waited / ZKS_MS));
	RESUME_INTERRUPTS();
	log->what = NULL;
}

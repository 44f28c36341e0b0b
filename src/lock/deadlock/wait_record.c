/*-------------------------------------------------------------------------
 *
 * wait_record.c
 *	  What a record on the board says: who waits where, and who waits for him.
 *
 * After the lines that all of our nodes have (node_identity.c) come
 *
 *	node <path of the author's node in a queue>
 *	waiter <tag> <since> <pid> <blocker> <what it waits for>
 *
 * the second for each backend of the author's server that waits for it there.
 * With publish_identity off the pid is 0, and what it waits for is left out.
 * Reading believes nothing: anybody may write there.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "backend/encoding.h"
#include "backend/settings.h"
#include "backend/wait.h"
#include "wait_record.h"
#include "zk/request.h"

#define NODE			"node "
#define WAITER			"waiter "

/* A wait on this server counts after deadlock_timeout, but not before */
#define YOUNG_MS		100

/* A record names this many waiters at most */
#define MOST_WAITS		1000

/* "what" is cut off after this many bytes */
#define LONGEST_WHAT	200

void *
zkl_grow(void *array, int n, size_t size)
{
	if (array == NULL)
		return palloc_extended(8 * size, MCXT_ALLOC_HUGE);
	if (n < 8 || (n & (n - 1)) != 0)
		return array;
	return repalloc_huge(array, 2 * n * size);
}

char *
zkl_board(const char *dir, int root_len)
{
	return psprintf("%.*s%s", root_len, dir, ZKP_BOARD);
}

/*
 * Whether a wait for one of PostgreSQL's locks is too young to count, and for how
 * many ms yet.  What that session gave back before may still stand in ZooKeeper, and
 * it runs no code that could say so.  A clock that was set back tells nothing.
 */
static bool
is_young(const ZkLocalWait *wait, TimestampTz now, int *ms)
{
	int64		age = (now - wait->since) / 1000;
	int			grown_up = Max(DeadlockTimeout, YOUNG_MS);

	*ms = (int) (grown_up - age);
	return age >= 0 && age < grown_up;
}

int64
zkl_find_waits(ZkRecord *record)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		grows_up = ZKS_NEVER;
	int			count = 0;
	int			ms;

	record->n = zkl_local_waits(&record->waits, MOST_WAITS);
	for (int i = 0; i < record->n; i++)
	{
		if (is_young(&record->waits[i], now, &ms))
		{
			strlcpy(record->waits[i].tag, ZKL_NO_TAG, ZKP_TAG_LEN);
			grows_up = Min(grows_up, zkb_deadline(ms));
		}
		else
			count++;
	}
	if (count == 0)
		record->n = 0;
	return grows_up;
}

static void
put_waiter(StringInfo lines, const ZkLocalWait *wait)
{
	char	   *what = zkb_to_utf8_escaped(wait->what, strlen(wait->what), false);
	int			len = pg_encoding_mbcliplen(PG_UTF8, what, strlen(what), LONGEST_WHAT);

	appendStringInfo(lines, WAITER "%s " INT64_FORMAT " %d %d %.*s\n", wait->tag, (int64) wait->since,
					 zklock_publish_identity ? wait->pid : 0, wait->blocker,
					 zklock_publish_identity ? len : 0, what);
	pfree(what);
}

char *
zkl_record_lines(const ZkRecord *record)
{
	StringInfoData lines;

	initStringInfo(&lines);
	appendStringInfo(&lines, "%s" NODE "%s/%s\n", record->identity, record->dir, record->node);
	for (int i = 0; i < record->n; i++)
	{
		int			before = lines.len;

		put_waiter(&lines, &record->waits[i]);
		if (lines.len + ZKP_DATA_EXTRA > ZKS_RECORD_KEPT)
		{
			/* half a line would be none */
			lines.data[before] = '\0';
			break;
		}
	}
	return lines.data;
}

/* Both parts are as long as a path can be that we make */
static bool
read_node(const char *path, ZkRecord *record)
{
	const char *slash = strrchr(path, '/');
	ZkpContender ignored;

	if (path[0] != '/' || slash == path || strlen(path) >= ZKS_PATH_LEN || !zkp_parse(slash + 1, &ignored))
		return false;
	record->dir = pnstrdup(path, slash - path);
	record->node = pstrdup(slash + 1);
	return true;
}

static bool
read_waiter(char *line, ZkLocalWait *wait, int at)
{
	long long	numbers[3];
	char	   *end = line + ZKP_TAG_LEN;

	if (strnlen(line, ZKP_TAG_LEN) < ZKP_TAG_LEN || line[ZKP_TAG_LEN - 1] != ' ')
		return false;
	for (int i = 0; i < lengthof(numbers); i++)
	{
		char	   *number = end;

		errno = 0;
		numbers[i] = strtoll(number, &end, 10);
		if (errno != 0 || end == number || *end++ != ' ')
			return false;
	}
	strlcpy(wait->tag, line, sizeof(wait->tag));
	wait->since = numbers[0];
	wait->pid = numbers[1] < 0 || numbers[1] > PG_INT32_MAX ? 0 : (int) numbers[1];
	wait->blocker = numbers[2] < -1 || numbers[2] >= at ? -1 : (int) numbers[2];
	wait->what = zkb_from_utf8_escaped(end, strnlen(end, LONGEST_WHAT), false);
	return true;
}

/*
 * A line of a waiter that cannot be read still counts, since others name it by
 * its place.
 */
bool
zkl_read_record(const char *data, int len, ZkRecord *record)
{
	ZkpData		says;
	char	   *text;
	char	   *line;

	memset(record, 0, sizeof(*record));
	zkp_read_data(data, len, &says);
	if (!says.ours)
		return false;
	text = pnstrdup(says.identity, says.identity_len);	/* up to a NUL */

	record->identity = pstrdup(text);
	while ((line = strsep(&text, "\n")) != NULL)
	{
		if (record->dir == NULL && strncmp(line, NODE, strlen(NODE)) == 0 && !read_node(line + strlen(NODE), record))
			return false;
		if (strncmp(line, WAITER, strlen(WAITER)) == 0)
		{
			ZkLocalWait *wait;

			record->waits = zkl_grow(record->waits, record->n, sizeof(ZkLocalWait));
			wait = &record->waits[record->n];
			memset(wait, 0, sizeof(*wait));
			wait->blocker = -1;
			wait->what = "";
			(void) read_waiter(line + strlen(WAITER), wait, record->n++);
		}
	}
	return record->dir != NULL;
}

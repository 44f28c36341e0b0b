/*-------------------------------------------------------------------------
 *
 * node_identity.c
 *	  What our nodes say about their session: who holds or waits for a lock.
 *
 * Each line of UTF-8 is a name, a space, and a value, so that any ZooKeeper
 * client can show them.  A control character in a value is written as \xNN, a
 * backslash as \\.  Nothing here may fail because of the name of a cluster, a database, a
 * role, or an application: that would keep them from the lock.
 *
 * The first line is the tag, whatever publish_identity says: others recognize
 * a backend by it, and learn nothing else from it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "common/hashfn.h"
#include "common/string.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "encoding.h"
#include "node_identity.h"
#include "settings.h"

const char *const zkb_field_names[ZKB_FIELDS] = {
	"tag", "host", "port", "cluster_name", "pid", "database", "user", "application_name"
};

/* A value is cut off after this many bytes, between two characters */
#define LONGEST_VALUE		256

/* Each with its name and its line feed; the tag and the two numbers are shorter */
StaticAssertDecl(5 * (LONGEST_VALUE + 20) + 3 * 32 < ZKP_IDENTITY_LEN,
				 "all lines fit into a node's data");

static void
put_line(StringInfo lines, ZkField field, const char *value)
{
	char	   *utf8;

	if (value == NULL || value[0] == '\0')
		return;
	utf8 = zkb_to_utf8_escaped(value, strlen(value), true);
	appendStringInfo(lines, "%s %.*s\n", zkb_field_names[field],
					 pg_encoding_mbcliplen(PG_UTF8, utf8, strlen(utf8), LONGEST_VALUE), utf8);
	pfree(utf8);
}

/* As pgstat reads an entry: until it has not changed within */
bool
zkb_read_start(const volatile PgBackendStatus *status, int pid, TimestampTz *started)
{
	int			found,
				before,
				after;

	if (status == NULL || pid == 0)
		return false;
	for (;;)
	{
		pgstat_begin_read_activity(status, before);
		found = status->st_procpid;
		*started = status->st_proc_start_timestamp;
		pgstat_end_read_activity(status, after);
		if (pgstat_read_activity_complete(before, after))
			break;
		CHECK_FOR_INTERRUPTS();
	}
	return found == pid;
}

void
zkb_tag(char *tag, int pid, TimestampTz started)
{
	const uint64 parts[] = {GetSystemIdentifier(), (uint64) PgStartTime, (uint64) pid, (uint64) started};

	snprintf(tag, ZKP_TAG_LEN, "%016llx",
			 (unsigned long long) hash_bytes_extended((const unsigned char *) parts, sizeof(parts), 0));
}

const char *
zkb_own_tag(void)
{
	static char tag[ZKP_TAG_LEN];

	if (tag[0] == '\0')
		zkb_tag(tag, MyProcPid, MyStartTimestamp);
	return tag;
}

char *
zkb_identity_lines(void)
{
	StringInfoData lines;

	initStringInfo(&lines);
	put_line(&lines, ZKB_FIELD_TAG, zkb_own_tag());
	if (zklock_publish_identity)
	{
		char		host[256] = "";

		(void) gethostname(host, sizeof(host) - 1);
		put_line(&lines, ZKB_FIELD_HOST, host);
		put_line(&lines, ZKB_FIELD_PORT, psprintf("%d", PostPortNumber));
		put_line(&lines, ZKB_FIELD_CLUSTER_NAME, cluster_name);
		put_line(&lines, ZKB_FIELD_PID, psprintf("%d", MyProcPid));
		put_line(&lines, ZKB_FIELD_DATABASE, OidIsValid(MyDatabaseId) ? get_database_name(MyDatabaseId) : NULL);
		put_line(&lines, ZKB_FIELD_USER, GetUserNameFromId(GetSessionUserId(), true));
		put_line(&lines, ZKB_FIELD_APPLICATION_NAME, application_name);
	}
	return lines.data;
}

/* The value of a line, with its backslashes no longer doubled */
static char *
read_value(const char *value, int len)
{
	char	   *plain = palloc(len + 1);
	int			n = 0;

	for (int i = 0; i < len; i++)
	{
		plain[n++] = value[i];
		if (value[i] == '\\' && i + 1 < len && value[i + 1] == '\\')
			i++;
	}
	return zkb_from_utf8_escaped(plain, n, false);
}

static bool
is_int32(const char *value)
{
	char	   *end;

	errno = 0;
	(void) strtoint(value, &end, 10);
	return end != value && *end == '\0' && errno == 0;
}

static bool
is_tag(const char *value)
{
	return strlen(value) == ZKP_TAG_LEN - 1 && strspn(value, "0123456789abcdef") == ZKP_TAG_LEN - 1;
}

static void
forget_unless(bool (*has_form) (const char *), char **value)
{
	if (*value != NULL && !has_form(*value))
		*value = NULL;
}

void
zkb_read_identity(const char *lines, int len, char *fields[ZKB_FIELDS])
{
	memset(fields, 0, ZKB_FIELDS * sizeof(char *));
	while (len > 0)
	{
		const char *end = memchr(lines, '\n', len);
		int			line_len = end != NULL ? (int) (end - lines) : len;

		for (int i = 0; i < ZKB_FIELDS; i++)
		{
			int			name_len = strlen(zkb_field_names[i]);

			if (fields[i] == NULL && line_len > name_len && lines[name_len] == ' ' &&
				memcmp(lines, zkb_field_names[i], name_len) == 0)
				fields[i] = read_value(lines + name_len + 1, line_len - name_len - 1);
		}
		if (end == NULL)
			break;
		lines += line_len + 1;
		len -= line_len + 1;
	}
	forget_unless(is_tag, &fields[ZKB_FIELD_TAG]);
	forget_unless(is_int32, &fields[ZKB_FIELD_PORT]);
	forget_unless(is_int32, &fields[ZKB_FIELD_PID]);
}

char *
zkb_who(const char *lines, int len, int pid, int64 session)
{
	char	   *fields[ZKB_FIELDS];
	const char *port;

	zkb_read_identity(lines, len, fields);
	if (pid == 0 && fields[ZKB_FIELD_PID] != NULL)
		pid = atoi(fields[ZKB_FIELD_PID]);
	port = fields[ZKB_FIELD_PORT];
	if (pid <= 0)
		return psprintf("ZooKeeper session 0x%llx", (unsigned long long) session);
	if (fields[ZKB_FIELD_HOST] == NULL)
		return psprintf("process %d", pid);
	return psprintf("process %d on %s%s%s", pid, fields[ZKB_FIELD_HOST], port != NULL ? ":" : "", port != NULL ? port : "");
}

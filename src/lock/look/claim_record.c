/*-------------------------------------------------------------------------
 *
 * claim_record.c
 *	  What a claim's mark in ZooKeeper says.
 *
 *	zklock claim 1
 *	state pending, or: state done
 *	period <microseconds since 2000-01-01 00:00 UTC>
 *	since <the same>
 *	claim <32 hex digits>
 *	system <identifier of the PostgreSQL cluster>
 *	xid <full transaction id>; only if there is one
 *
 * and then the lines that all of our nodes have (node_identity.c).  Anybody may
 * write there who can reach ZooKeeper.  So a mark is believed only if it is what
 * we would have written, to the byte, up to those lines.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"

#include "claim_record.h"
#include "zk/lock_protocol.h"
#include "zk/request.h"

char *
zkl_mark_path(const char *full, int root_len)
{
	return psprintf("%.*s%s%s", root_len, full, ZKP_CLAIMS, full + root_len);
}

char *
zkl_write_claim(const ZkClaimRecord *claim)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "zklock claim 1\nstate %s\nperiod " INT64_FORMAT "\nsince " INT64_FORMAT
					 "\nclaim %s\nsystem " UINT64_FORMAT "\n", claim->done ? "done" : "pending",
					 (int64) claim->period, (int64) claim->since, claim->id, claim->system);
	if (FullTransactionIdIsValid(claim->xid))
		appendStringInfo(&text, "xid " UINT64_FORMAT "\n", U64FromFullTransactionId(claim->xid));
	appendStringInfoString(&text, claim->identity);
	return text.data;
}

/* The value of the next line, if that begins with this word; else "" */
static const char *
value_of(const char **rest, const char *word)
{
	const char *value = *rest + strlen(word);
	const char *end = strchr(*rest, '\n');

	if (end == NULL || strncmp(*rest, word, strlen(word)) != 0)
		return "";
	*rest = end + 1;
	return value;
}

/*
 * Whatever is read wrongly here is found when it is written again.
 */
bool
zkl_read_claim(const char *data, int len, ZkClaimRecord *claim)
{
	char	   *copy;
	const char *text;

	memset(claim, 0, sizeof(*claim));
	if (len <= 0 || len >= ZKS_DATA_KEPT || memchr(data, '\0', len) != NULL)
		return false;
	text = copy = pnstrdup(data, len);

	(void) value_of(&text, "zklock claim ");
	claim->done = strncmp(value_of(&text, "state "), "done", 4) == 0;
	claim->period = strtoll(value_of(&text, "period "), NULL, 10);
	claim->since = strtoll(value_of(&text, "since "), NULL, 10);
	strlcpy(claim->id, value_of(&text, "claim "), sizeof(claim->id));
	claim->system = strtoull(value_of(&text, "system "), NULL, 10);
	claim->xid = FullTransactionIdFromU64(strtoull(value_of(&text, "xid "), NULL, 10));
	claim->identity = text;

	return strcmp(zkl_write_claim(claim), copy) == 0 &&
		IS_VALID_TIMESTAMP(claim->period) && IS_VALID_TIMESTAMP(claim->since) &&
		strspn(claim->id, "0123456789abcdef") == ZKL_CLAIM_ID_LEN - 1;
}

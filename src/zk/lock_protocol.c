/*-------------------------------------------------------------------------
 *
 * lock_protocol.c
 *	  The names of lock nodes, their order, and who blocks whom.
 *
 * A lock is a directory in ZooKeeper; each who wants it makes an ephemeral,
 * sequential node there, and the lowest number holds.  Clients differ in how
 * they name such nodes, but all have a marker before the number.  We write
 * the names of Curator or kazoo, as zklock.node_style says, and read
 * everyone's, so that they and we stand in one queue; a child without a known
 * marker is somebody's data or a lock below this one ("/a" and "/a/b" can both
 * be locks), and does not count.
 *
 * A semaphore is a queue of its own in the same directory.  The name carries
 * the permits, so that a list alone tells who holds.  Curator and kazoo do not
 * take it for a lock: the one sorts it behind all numbers, the other's pattern
 * does not match.  (go-zk and ZooKeeper's recipes do.)
 *
 * A single node is no such queue: it stands at the path itself, and whoever could
 * create it holds.
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lock_protocol.h"

#define SEMAPHORE			"-semaphore-"
#define HEX_DIGITS			"0123456789abcdef"

/* The longer of two markers that end alike comes first */
static const struct
{
	const char *marker;
	ZkpMode		mode;
	const char *shared;			/* what becomes of it when its holder turns
								 * reader */
}			markers[] =
{
	{"-shared-lock-", ZKP_SHARED, NULL},	/* zklock, shared */
	{"lock-", ZKP_EXCLUSIVE, NULL}, /* Curator's mutex, go-zk, Menagerie,
									 * zklock */
	{"__lock__", ZKP_EXCLUSIVE, "__rlock__"},	/* kazoo Lock and WriteLock */
	{"__rlock__", ZKP_SHARED, NULL},	/* kazoo ReadLock */
	{"__WRIT__", ZKP_EXCLUSIVE, "__READ__"},	/* Curator's read-write lock */
	{"__READ__", ZKP_SHARED, NULL},
};

#define NMARKERS	((int) (sizeof(markers) / sizeof(markers[0])))

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/*
 * Split the number off the end of a name.  ZooKeeper prints it with %010d:
 * ten digits, or, once the counter has wrapped, a minus sign and nine or ten.
 * Returns the length of what stands before it, or -1.
 */
static int
split_number(const char *name, int len, bool negative, int32_t *seq)
{
	int			ndigits = 0;
	int64_t		value = 0;
	int			start;

	while (ndigits < len && is_digit(name[len - 1 - ndigits]))
		ndigits++;
	if (negative ? (ndigits < 9 || ndigits > 10) : ndigits < 10)
		return -1;
	if (!negative)
		ndigits = 10;
	start = len - ndigits;
	for (int i = start; i < len; i++)
		value = value * 10 + (name[i] - '0');
	if (negative)
	{
		if (start == 0 || name[start - 1] != '-')
			return -1;
		start--;
		value = -value;
	}
	if (value > INT32_MAX || value < INT32_MIN)
		return -1;
	*seq = (int32_t) value;
	return start;
}

static bool
ends_with(const char *name, int len, const char *marker)
{
	int			mlen = (int) strlen(marker);

	return len >= mlen && memcmp(name + len - mlen, marker, mlen) == 0;
}

/* "x-<session id>-", as the ZooKeeper recipes write it (hex in C, decimal in Java) */
static bool
is_recipe_prefix(const char *name, int len)
{
	const char *id = name + (len > 3 && name[2] == '-' ? 3 : 2);

	return len >= 4 && memcmp(name, "x-", 2) == 0 && name[len - 1] == '-' &&
		id + strspn(id, HEX_DIGITS "ABCDEF") >= name + len - 1;
}

static int
find_marker(const char *name, int len)
{
	for (int i = 0; i < NMARKERS; i++)
	{
		if (ends_with(name, len, markers[i].marker))
			return i;
	}
	return -1;
}

/* "_c_<uuid>-", with which Curator protects its nodes, and we ours */
static bool
has_protection(const char *name, int len)
{
	return len >= 3 + ZKP_UUID_LEN && memcmp(name, "_c_", 3) == 0 &&
		name[3 + ZKP_UUID_LEN - 1] == '-';
}

/* "_c_<uuid>-semaphore-<permits>-"; returns the permits, or 0 */
static int32_t
semaphore_permits(const char *name, int len)
{
	int			start = 3 + ZKP_UUID_LEN - 1 + (int) strlen(SEMAPHORE);
	long long	permits;
	char	   *end;

	if (!has_protection(name, len) || len < start + 2 || name[len - 1] != '-' ||
		!ends_with(name, start, SEMAPHORE) || name[start] == '0' || !is_digit(name[start]))
		return 0;
	permits = strtoll(name + start, &end, 10);
	return end == name + len - 1 && permits <= INT32_MAX ? (int32_t) permits : 0;
}

/* What the part of a name before the number says */
static ZkpMode
prefix_mode(const char *name, int len, int32_t *permits)
{
	int			marker = find_marker(name, len);

	if (marker >= 0)
		return markers[marker].mode;
	*permits = semaphore_permits(name, len);
	if (*permits > 0)
		return ZKP_SEMAPHORE;
	return is_recipe_prefix(name, len) ? ZKP_EXCLUSIVE : ZKP_NONE;
}

/* before: the length of what stands before the number */
static bool
parse(const char *name, int len, ZkpContender *contender, int *before)
{
	memset(contender, 0, sizeof(ZkpContender));
	contender->name = name;

	/*
	 * "lock--000000001" is minus one, so a negative number is tried first; a
	 * positive one follows its marker directly, and no marker but the
	 * negative's own would end in two dashes.
	 */
	for (int negative = 1; negative >= 0; negative--)
	{
		*before = split_number(name, len, negative, &contender->seq);
		if (*before < 0)
			continue;
		contender->mode = prefix_mode(name, *before, &contender->permits);
		if (contender->mode != ZKP_NONE)
			return true;
	}
	return false;
}

bool
zkp_parse(const char *name, ZkpContender *contender)
{
	int			before;

	return parse(name, (int) strlen(name), contender, &before);
}

bool
zkp_is_reserved(const char *part, int len)
{
	ZkpContender ignored;
	int			before;

	return has_protection(part, len) || parse(part, len, &ignored, &before);
}

bool
zkp_may_be_stranger(const char *name)
{
	size_t		len = strlen(name);
	ZkpContender ignored;
	int32_t		number;

	return len <= ZKP_STRANGER_MAX && split_number(name, (int) len, false, &number) >= 0 &&
		!zkp_parse(name, &ignored);
}

bool
zkp_is_own_dir(const char *part, int len)
{
	return len >= (int) strlen(ZKP_OWN_DIRS) && memcmp(part, ZKP_OWN_DIRS, strlen(ZKP_OWN_DIRS)) == 0;
}

/* "<tag>-<uuid>-<number>", or with "+" behind the tag */
bool
zkp_parse_record(const char *name, ZkpRecordName *record)
{
	int			tag_len = ZKP_TAG_LEN - 1;
	int32_t		number;
	int			before = split_number(name, (int) strlen(name), false, &number);

	if ((int) strspn(name, HEX_DIGITS) < tag_len)
		return false;
	memcpy(record->tag, name, tag_len);
	record->tag[tag_len] = '\0';
	record->names_others = name[tag_len] == '+';
	return before == tag_len + record->names_others + 1 + ZKP_UUID_LEN &&
		name[before - 1] == '-' && name[before - ZKP_UUID_LEN - 1] == '-';
}

void
zkp_prefix(char *prefix, const char *uuid, const ZkpWant *want)
{
	bool		shared = want->mode == ZKP_SHARED;

	if (want->record != NULL)
		snprintf(prefix, ZKP_PREFIX_LEN, "%.*s-%s-", ZKP_TAG_LEN, want->record, uuid);
	else if (want->mode == ZKP_SEMAPHORE)
		snprintf(prefix, ZKP_PREFIX_LEN, "_c_%s" SEMAPHORE "%d-", uuid, want->permits);
	else if (want->style == ZKP_CURATOR_RW)
		snprintf(prefix, ZKP_PREFIX_LEN, "_c_%s-%s", uuid, shared ? "__READ__" : "__WRIT__");
	else if (want->style == ZKP_KAZOO)
	{
		/* kazoo writes a UUID without its dashes */
		for (; *uuid != '\0'; uuid++)
		{
			if (*uuid != '-')
				*prefix++ = *uuid;
		}
		strcpy(prefix, shared ? "__rlock__" : "__lock__");
	}
	else
		snprintf(prefix, ZKP_PREFIX_LEN, "_c_%s%s", uuid, shared ? "-shared-lock-" : "-lock-");
}

bool
zkp_shared_name(char *name, const char *exclusive)
{
	ZkpContender ignored;
	int			before;
	int			marker = -1;

	if (parse(exclusive, (int) strlen(exclusive), &ignored, &before))
		marker = find_marker(exclusive, before);
	if (marker < 0 || markers[marker].shared == NULL)
		return false;
	snprintf(name, ZKP_NAME_LEN, "%.*s%s%s",
			 before - (int) strlen(markers[marker].marker), exclusive,
			 markers[marker].shared, exclusive + before);
	return true;
}

#define SINGLE				"single-"

void
zkp_single_name(char *name, int64_t czxid)
{
	snprintf(name, ZKP_NAME_LEN, SINGLE "%" PRId64, czxid);
}

bool
zkp_parse_single(const char *name, int64_t *czxid)
{
	char		canonical[ZKP_NAME_LEN];
	int64_t		number;

	if (strncmp(name, SINGLE, strlen(SINGLE)) != 0)
		return false;
	number = strtoll(name + strlen(SINGLE), NULL, 10);
	zkp_single_name(canonical, number);
	if (number <= 0 || strcmp(name, canonical) != 0)
		return false;
	*czxid = number;
	return true;
}

#define FIRST_LINE			"zklock\n"
#define SHARED				"shared\n"
#define GRANTED				"granted\n"
#define IN_PLACE_OF			"czxid "

void
zkp_write_data(char *data, const ZkpData *says)
{
	char		in_place_of[32] = "";

	if (says->czxid != 0)
		snprintf(in_place_of, sizeof(in_place_of), IN_PLACE_OF "%" PRId64 "\n", says->czxid);
	sprintf(data, FIRST_LINE "%s%s%s%s", says->shared ? SHARED : "",
			says->granted ? GRANTED : "", in_place_of,
			says->identity != NULL ? says->identity : "");
}

/* Reads this text, and returns true, if the data goes on with it */
static bool
skip(const char **data, int *len, const char *text)
{
	int			text_len = (int) strlen(text);

	if (*len < text_len || memcmp(*data, text, text_len) != 0)
		return false;
	*data += text_len;
	*len -= text_len;
	return true;
}

void
zkp_read_data(const char *data, int len, ZkpData *says)
{
	memset(says, 0, sizeof(*says));
	says->ours = skip(&data, &len, FIRST_LINE);
	if (!says->ours)
		return;
	says->shared = skip(&data, &len, SHARED);
	says->granted = skip(&data, &len, GRANTED);
	if (skip(&data, &len, IN_PLACE_OF))
	{
		while (len > 0 && is_digit(*data) && says->czxid < INT64_MAX / 10 - 1)
		{
			says->czxid = says->czxid * 10 + (*data++ - '0');
			len--;
		}
		(void) skip(&data, &len, "\n");
	}
	says->identity = data;
	says->identity_len = len;
}

/*
 * From here on ZooKeeper's counter may stick at 2^31 - 1 or wrap, and a later
 * node need not have a greater number.
 */
static bool
near_wrap(int32_t seq)
{
	return seq < 0 || seq > INT32_MAX - (1 << 20);
}

/*
 * The numbers must be of one incarnation of the directory.  Another one, counted
 * up to s + 1, took a transaction that deleted the last node, one that removed
 * the directory and made it again, perhaps with its node 0, and one for each of
 * the nodes 1 to s, all of them between the last node and this one: so this one
 * is s + 3 transactions later, at least; unless one client makes several nodes
 * of one directory in one multi, which nobody has a reason to do.  A new epoch
 * of the ensemble does not tell how many there were, since it begins with 0.
 */
bool
zkp_comes_next(const char *last, int64_t last_czxid, const char *name, int64_t czxid)
{
	ZkpContender a;
	ZkpContender b;

	return zkp_parse(last, &a) && zkp_parse(name, &b) &&
		a.mode == ZKP_EXCLUSIVE && b.mode == ZKP_EXCLUSIVE &&
		a.seq >= 0 && !near_wrap(b.seq) && b.seq == a.seq + 1 &&
		last_czxid > 0 && czxid > last_czxid &&
		last_czxid >> 32 == czxid >> 32 &&
		czxid - last_czxid < (int64_t) a.seq + 3;
}

/*
 * Nobody who waits for a semaphore takes over a number, so two that have the same were
 * made by hand.  (Those of a lock each let the other go first: see count_before.)
 */
bool
zkp_needs_czxids(const ZkpContender *queue, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (near_wrap(queue[i].seq) ||
			(i > 0 && queue[i].mode == ZKP_SEMAPHORE && queue[i].seq == queue[i - 1].seq))
			return true;
	}
	return false;
}

/*
 * By number; where a number does not tell, by the transaction that made the
 * node.  All czxids are known then, or none.
 */
int
zkp_compare(const void *left, const void *right)
{
	const ZkpContender *a = left;
	const ZkpContender *b = right;

	if (a->czxid != b->czxid)
		return a->czxid < b->czxid ? -1 : 1;
	if (a->seq != b->seq)
		return a->seq < b->seq ? -1 : 1;
	return strcmp(a->name, b->name);
}

int
zkp_queue(char *const *names, int n, ZkpMode mode, ZkpContender *queue)
{
	int			count = 0;

	for (int i = 0; i < n; i++)
	{
		if (zkp_parse(names[i], &queue[count]) &&
			(queue[count].mode == ZKP_SEMAPHORE) == (mode == ZKP_SEMAPHORE))
			count++;
	}
	qsort(queue, count, sizeof(ZkpContender), zkp_compare);
	return count;
}

static int
find_name(const ZkpContender *queue, int n, const char *name)
{
	for (int i = 0; name != NULL && i < n; i++)
	{
		if (strcmp(queue[i].name, name) == 0)
			return i;
	}
	return -1;
}

/*
 * How many stand before us.  Equal numbers do occur (Curator's downgrade
 * takes over a number), and do not define an order; we yield, so there is never
 * a second holder.
 */
static int
count_before(const ZkpContender *queue, int n, int self)
{
	int			before = self;

	if (self < 0)
		return n;
	while (queue[self].czxid == 0 && before + 1 < n &&
		   queue[before + 1].seq == queue[self].seq)
		before++;
	return before == self ? self : before + 1;
}

/*
 * Whether anybody behind us waits to be told that we hold.  Whoever is not there
 * yet sees in its own list that we do: its list is younger than its node, and its
 * node is younger than the list by which we hold, unless ours was several looks
 * in one.
 */
static bool
is_waited_for(const ZkpContender *queue, int n, int self, int32_t permits)
{
	if (permits == 1 || self < 0)
		return false;
	for (int i = self + 1; i < n; i++)
	{
		if (queue[i].permits == permits)
			return true;
	}
	return zkp_needs_czxids(queue, n);
}

/*
 * A place is free once fewer than permits are before us.
 *
 * A waiter before us with the same number waits for fewer to go than we do.  So
 * as long as it waits, we do, whatever numbers the others say; and it is enough to
 * watch the nearest of these waiters, which is gone at last, or says that it holds.
 * Only the first one of each number looks at each change of the directory.  So one
 * who goes is seen by one for each number, and by no more, however many wait.
 *
 * Who is granted tells those behind it that its list shows.  Whoever is not there
 * yet is younger than that list, and its own list does not show a waiter there:
 * those before only get fewer.
 *
 * Of a single place we do not hold as long as the one right before us stands, which
 * has nobody to tell.
 */
static void
look_at_semaphore(const ZkpContender *queue, int n, int before, int self, int32_t permits,
				  ZkpView *view)
{
	if (before < permits)
	{
		view->tell = is_waited_for(queue, n, self, permits);
		return;
	}
	view->need = before - permits + 1;
	if (permits == 1)
	{
		view->nwatch = 1;
		view->watch[0] = before - 1;
		view->next = view->need == 1;
		return;
	}
	for (int i = permits; i < before; i++)
	{
		if (queue[i].permits != permits)
			continue;
		view->nwatch = 1;
		view->watch[0] = i;
		view->ahead++;
	}
}

/*
 * The nearest is watched, and the one before that, so that its going is seen
 * while the nearest still holds us up.
 */
static void
look_at_lock(const ZkpContender *queue, int before, int self, int own, ZkpMode mode,
			 ZkpView *view)
{
	const char *nearest;

	for (int i = before - 1; i >= 0; i--)
	{
		if (i == self || i == own)
			continue;
		if (queue[i].mode == ZKP_SHARED && mode == ZKP_SHARED)
			continue;

		/*
		 * A writer between our two nodes waits for the first of them.  (One
		 * before both has become a reader, or we would not hold ours.)
		 */
		if (own >= 0 && i > own && queue[i].mode == ZKP_EXCLUSIVE)
			view->stuck = true;
		view->need++;
		if (view->nwatch < ZKP_MOST_WATCHED)
			view->watch[view->nwatch++] = i;
	}
	if (view->need != 1)
		return;
	nearest = queue[view->watch[0]].name;

	/*
	 * Numbers only grow, so nobody comes in before us; but when the holder of
	 * Curator's or kazoo's write lock becomes a reader, a node with the
	 * writer's number takes its place.
	 */
	view->next = mode == ZKP_SHARED ||
		(strstr(nearest, "__WRIT__") == NULL && strstr(nearest, "__lock__") == NULL);
	view->may_soften = mode == ZKP_SHARED && strstr(nearest, "-lock-") != NULL &&
		has_protection(nearest, (int) strlen(nearest));
}

void
zkp_look(const ZkpContender *queue, int n, const char *self, const char *own,
		 const ZkpWant *want, ZkpView *view)
{
	int			at = find_name(queue, n, self);
	int			before = count_before(queue, n, at);

	memset(view, 0, sizeof(*view));
	view->self_seen = at >= 0;
	if (want->mode == ZKP_SEMAPHORE)
		look_at_semaphore(queue, n, before, at, want->permits, view);
	else
		look_at_lock(queue, before, at, find_name(queue, n, own), want->mode, view);
	if (zkp_needs_czxids(queue, n))
		view->next = false;
}

/*
 * Whether one who stands before another, or at the same place, holds it up.  Only
 * nodes of one session of zklock do not; of other clients, whose sessions have many
 * threads, only a reader that has a writer's number holds for the same, when Curator
 * downgrades.
 */
static bool
holds_up(const ZkpContender *other, const ZkpContender *self)
{
	bool		one_session = other->owner != 0 && other->owner == self->owner;

	if (other->mode == ZKP_SHARED && self->mode == ZKP_SHARED)
		return false;
	if (one_session && other->ours && self->ours)
		return false;
	return !one_session || other->czxid != 0 || other->seq != self->seq || other->mode == self->mode;
}

/*
 * Those of several who stand in the queue that are enough to tell whether any of
 * them holds another up: of each kind the first two, and the first of another session
 * than the first
 */
typedef struct Some
{
	const ZkpContender *kind[4][3]; /* by whether shared, and ours */
} Some;

static void
add(Some *some, const ZkpContender *c)
{
	const ZkpContender **kind = some->kind[2 * (c->mode == ZKP_SHARED) + c->ours];

	if (kind[0] == NULL)
		kind[0] = c;
	else if (kind[1] == NULL)
		kind[1] = c;
	if (kind[2] == NULL && c->owner != kind[0]->owner)
		kind[2] = c;
}

static bool
is_held_up(const Some *some, const ZkpContender *c)
{
	for (int i = 0; i < 4 * 3; i++)
	{
		const ZkpContender *other = some->kind[i / 3][i % 3];

		if (other != NULL && other != c && holds_up(other, c))
			return true;
	}
	return false;
}

/*
 * By the rules of zkp_look.  Of equal numbers each lets the others go first; a czxid
 * tells them apart.  Nobody is compared with each of those before: a queue may have
 * hundreds of thousands, of one number.
 */
void
zkp_granted(const ZkpContender *queue, int n, bool *granted)
{
	Some		before = {0};

	for (int i = 0, end = 0; i < n; i++)
	{
		const ZkpContender *c = &queue[i];

		for (; end <= i || (end < n && c->czxid == 0 && queue[end].seq == c->seq); end++)
			add(&before, &queue[end]);
		granted[i] = c->mode == ZKP_SEMAPHORE ? end - 1 < c->permits : !is_held_up(&before, c);
	}
}

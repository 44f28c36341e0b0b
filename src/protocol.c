/*-------------------------------------------------------------------------
 *
 * protocol.c
 *	  The names of lock nodes, their order, and who blocks whom.
 *
 * A lock is a directory in ZooKeeper; each who wants it makes an ephemeral,
 * sequential node there, and the lowest number holds.  Clients differ in how
 * they name such nodes, but all have a marker before the number.  We write
 * the names of Curator's InterProcessMutex and read everyone's, so that they
 * and we stand in one queue; a child without a known marker is somebody's
 * data or a lock below this one ("/a" and "/a/b" can both be locks), and is
 * not looked at.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "protocol.h"

/* The longer of two markers that end alike comes first */
static const struct
{
	const char *marker;
	ZkpMode		mode;
}			markers[] =
{
	{"-shared-lock-", ZKP_SHARED},	/* zklock, shared */
	{"lock-", ZKP_EXCLUSIVE},	/* Curator's mutex, go-zk, Menagerie, zklock */
	{"__lock__", ZKP_EXCLUSIVE},	/* kazoo Lock and WriteLock */
	{"__rlock__", ZKP_SHARED},	/* kazoo ReadLock */
	{"__WRIT__", ZKP_EXCLUSIVE},	/* Curator's read-write lock */
	{"__READ__", ZKP_SHARED},
};

#define NMARKERS	((int) (sizeof(markers) / sizeof(markers[0])))

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool
is_hex(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
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
	if (len < 4 || name[0] != 'x' || name[1] != '-' || name[len - 1] != '-')
		return false;
	for (int i = 2; i < len - 1; i++)
	{
		if (!is_hex(name[i]) && !(i == 2 && name[i] == '-'))
			return false;
	}
	return true;
}

static ZkpMode
marker_mode(const char *name, int len)
{
	for (int i = 0; i < NMARKERS; i++)
	{
		if (ends_with(name, len, markers[i].marker))
			return markers[i].mode;
	}
	return is_recipe_prefix(name, len) ? ZKP_EXCLUSIVE : ZKP_NONE;
}

static bool
parse(const char *name, int len, ZkpContender *contender)
{
	/*
	 * "lock--000000001" is minus one, so a negative number is tried first;
	 * a positive one follows its marker directly, and no marker but the
	 * negative's own would end in two dashes.
	 */
	for (int negative = 1; negative >= 0; negative--)
	{
		int			before = split_number(name, len, negative, &contender->seq);

		if (before < 0)
			continue;
		contender->mode = marker_mode(name, before);
		if (contender->mode != ZKP_NONE)
			return true;
	}
	contender->mode = ZKP_NONE;
	return false;
}

bool
zkp_parse(const char *name, ZkpContender *contender)
{
	return parse(name, (int) strlen(name), contender);
}

bool
zkp_is_reserved(const char *part, int len)
{
	ZkpContender ignored;

	/* Curator's prefix of protected nodes, which all of ours have */
	if (len >= 3 + ZKP_UUID_LEN && memcmp(part, "_c_", 3) == 0 &&
		part[3 + ZKP_UUID_LEN - 1] == '-')
		return true;
	return parse(part, len, &ignored);
}

void
zkp_prefix(char *prefix, const char *uuid, ZkpMode mode)
{
	snprintf(prefix, ZKP_PREFIX_LEN, "_c_%s%s", uuid,
			 mode == ZKP_SHARED ? "-shared-lock-" : "-lock-");
}

bool
zkp_seq_before(int32_t a, int32_t b)
{
	/*
	 * Serial-number arithmetic: right as long as those who stand in one queue
	 * are less than 2^31 numbers apart.
	 */
	return (int32_t) ((uint32_t) a - (uint32_t) b) < 0;
}

/*
 * Must one of this mode, with this number, wait for the other?
 *
 * Equal numbers do occur (ZooKeeper's counter sticks at 2^31 - 1; Curator's
 * downgrade reuses a number).  Who of two is first then, the name cannot
 * say, so each waits: never two holders.
 */
static bool
blocks(const ZkpContender *other, const ZkpContender *self)
{
	if (other->mode == ZKP_SHARED && self->mode == ZKP_SHARED)
		return false;
	return !zkp_seq_before(self->seq, other->seq);
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
 * Is the deletion of the last blocker all there is to wait for?  Numbers only
 * grow, so nobody comes in before us; but when the holder of Curator's write
 * lock downgrades, a reader with the writer's number takes its place.
 */
static bool
is_next(const ZkpView *view, const ZkpContender *me)
{
	return view->nblockers == 1 && !near_wrap(me->seq) &&
		strstr(view->nearest, "__WRIT__") == NULL;
}

void
zkp_look(char *const *names, int nnames, const char *self, ZkpMode mode,
		 ZkpView *view)
{
	ZkpContender me = {mode, 0};
	int32_t		nearest_seq = 0;
	int32_t		second_seq = 0;

	memset(view, 0, sizeof(*view));
	if (self != NULL)
	{
		(void) zkp_parse(self, &me);
		me.mode = mode;
	}

	for (int i = 0; i < nnames; i++)
	{
		ZkpContender other;

		if (self != NULL && strcmp(names[i], self) == 0)
		{
			view->self_seen = true;
			continue;
		}
		if (!zkp_parse(names[i], &other))
			continue;
		if (self == NULL)
		{
			/* whoever is there now is before us */
			if (mode == ZKP_SHARED && other.mode == ZKP_SHARED)
				continue;
		}
		else if (!blocks(&other, &me))
			continue;

		view->nblockers++;
		if (view->nearest == NULL || zkp_seq_before(nearest_seq, other.seq))
		{
			view->second = view->nearest;
			second_seq = nearest_seq;
			view->nearest = names[i];
			nearest_seq = other.seq;
		}
		else if (view->second == NULL || zkp_seq_before(second_seq, other.seq))
		{
			view->second = names[i];
			second_seq = other.seq;
		}
	}
	view->next = is_next(view, &me);
}

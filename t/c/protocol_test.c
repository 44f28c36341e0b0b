/*-------------------------------------------------------------------------
 *
 * protocol_test.c
 *	  Names, order, and who blocks whom, without a server.  Prints TAP.
 *
 *-------------------------------------------------------------------------
 */
#include <limits.h>
#include <regex.h>
#include <string.h>
#include <time.h>

#include "unit.h"
#include "zk/lock_protocol.h"

#define UUID "0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1"

static void
parses(const char *name, ZkpMode mode, int32_t seq)
{
	ZkpContender c;
	bool		found = zkp_parse(name, &c);

	ok(found && c.mode == mode && c.seq == seq, "%s is %s", name, mode == ZKP_SHARED ? "shared" : "exclusive");
}

/* %010d of a negative number has nine or ten digits */
static void
makes(ZkpMode mode, ZkpStyle style, int permits, const char *expected)
{
	ZkpWant		want = {.mode = mode,.style = style,.permits = permits};
	char		prefix[ZKP_PREFIX_LEN];
	char		name[ZKP_NAME_LEN];
	ZkpContender c;

	memset(prefix, 'x', sizeof(prefix));
	zkp_prefix(prefix, UUID, &want);
	ok(strcmp(prefix, expected) == 0, "a node of ours is called %s", expected);
	for (int i = 0; i < 3; i++)
	{
		int32_t		seq = i == 0 ? 7 : i == 1 ? INT32_MIN : -1;

		snprintf(name, sizeof(name), "%s%010d", prefix, seq);
		ok(zkp_parse(name, &c) && c.mode == mode && c.seq == seq && c.permits == permits &&
		   zkp_is_reserved(name, (int) strlen(name)), "and understood: %s", name);
	}
}

static void
becomes(const char *exclusive, const char *shared)
{
	char		name[ZKP_NAME_LEN] = "";
	bool		renamed = zkp_shared_name(name, exclusive);

	ok(shared == NULL ? !renamed : renamed && strcmp(name, shared) == 0,
	   "%s turned shared: %s", exclusive, shared == NULL ? "its data tells" : shared);
}

static void
says(const char *data, bool ours, bool shared, int64_t czxid, const char *identity)
{
	ZkpData		said;

	zkp_read_data(data, (int) strlen(data), &said);
	ok(said.ours == ours && said.shared == shared && said.czxid == czxid &&
	   said.identity_len == (int) strlen(identity) &&
	   (said.identity_len == 0 || memcmp(said.identity, identity, said.identity_len) == 0),
	   "data of %d bytes: %s, %s, czxid %lld, %d bytes of whose it is", (int) strlen(data),
	   ours ? "ours" : "not ours", shared ? "shared" : "not shared", (long long) czxid,
	   (int) strlen(identity));
}

/* tag: NULL if that is no record's name */
static void
is_record(const char *name, const char *tag, bool names_others)
{
	ZkpRecordName record;
	ZkpContender c;
	bool		is = zkp_parse_record(name, &record);

	ok(is == (tag != NULL) && (!is || (strcmp(record.tag, tag) == 0 && record.names_others == names_others)),
	   "%s is %s", name, tag == NULL ? "no record" : names_others ? "a record that names others" : "a record");
	ok(!is || !zkp_parse(name, &c), "and no contender");
}

static void
test_records(void)
{
	char		prefix[ZKP_PREFIX_LEN];
	char		name[ZKP_NAME_LEN];

	for (int i = 0; i < 2; i++)
	{
		zkp_prefix(prefix, UUID, &(ZkpWant) {.record = i == 0 ? "0123456789abcdef" : "0123456789abcdef+"});
		snprintf(name, sizeof(name), "%s0000000012", prefix);
		is_record(name, "0123456789abcdef", i == 1);
	}
	is_record("0123456789abcdef-" UUID "-2147483647", "0123456789abcdef", false);
	is_record("0123456789abcdef-" UUID "-000000001", NULL, false);
	is_record("0123456789abcdef-" UUID "0000000001", NULL, false);
	is_record("0123456789abcdef-" UUID "0-0000000001", NULL, false);
	is_record("0123456789abcdef++" UUID "-0000000001", NULL, false);
	is_record("0123456789ABCDEF-" UUID "-0000000001", NULL, false);
	is_record("0123456789abcde", NULL, false);
	is_record("", NULL, false);
	is_record("_c_" UUID "-lock-0000000001", NULL, false);
	ok(zkp_is_own_dir(ZKP_BOARD + 1, (int) strlen(ZKP_BOARD) - 1), "the board is a directory of zklock's own");
	ok(!zkp_is_own_dir("__zklock", 8), "a shorter name is not");
}

static void
test_names(void)
{
	static const char *const not[] = {
		"_c_" UUID "-semaphore-0-0000000001", "_c_" UUID "-semaphore-03-0000000001",
		"_c_" UUID "-semaphore-2147483648-0000000001", "_c_" UUID "-semaphore--0000000001", "semaphore-3-0000000001",
		"lock-2147483648", "b", "", "0000000001", "lock-",
		"lock-1", "lock-000000001", "lock-0000000001x", "_c_" UUID "-lease-0000000001", "-0000000001",
		"x-0000000001"
	};
	ZkpContender c;
	ZkpData		said;
	char		name[ZKP_STRANGER_MAX + 2];
	char		data[ZKP_IDENTITY_LEN + ZKP_DATA_EXTRA];

	makes(ZKP_EXCLUSIVE, ZKP_CURATOR, 0, "_c_" UUID "-lock-");
	makes(ZKP_SHARED, ZKP_CURATOR, 0, "_c_" UUID "-shared-lock-");
	makes(ZKP_EXCLUSIVE, ZKP_CURATOR_RW, 0, "_c_" UUID "-__WRIT__");
	makes(ZKP_SHARED, ZKP_CURATOR_RW, 0, "_c_" UUID "-__READ__");
	makes(ZKP_EXCLUSIVE, ZKP_KAZOO, 0, "0f5dd2a68e264f8e9e0c3a4be1f6a4d1__lock__");
	makes(ZKP_SHARED, ZKP_KAZOO, 0, "0f5dd2a68e264f8e9e0c3a4be1f6a4d1__rlock__");
	for (ZkpStyle style = ZKP_CURATOR; style <= ZKP_KAZOO; style++)
		makes(ZKP_SEMAPHORE, style, 1, "_c_" UUID "-semaphore-1-");
	makes(ZKP_SEMAPHORE, ZKP_CURATOR, INT32_MAX, "_c_" UUID "-semaphore-2147483647-");

	becomes("_c_" UUID "-__WRIT__0000000004", "_c_" UUID "-__READ__0000000004");
	becomes("_c_" UUID "-__WRIT__-000000004", "_c_" UUID "-__READ__-000000004");
	becomes("0f5d__lock__-2147483648", "0f5d__rlock__-2147483648");
	becomes("_c_" UUID "-lock-0000000004", NULL);
	becomes("_c_" UUID "-lock--000000004", NULL);
	says("zklock\n", true, false, 0, "");
	says("zklock\nshared\n", true, true, 0, "");
	says("zklock\nshared\nhost a\n", true, true, 0, "host a\n");
	says("zklock\nshared\nczxid 42\n", true, true, 42, "");
	says("zklock\nshared\nczxid 99999999999999999999999", true, true, INT64_C(999999999999999999), "99999");
	says("zklock\nhost shared\n", true, false, 0, "host shared\n");
	says("zklock\nhost a\nshared\n", true, false, 0, "host a\nshared\n");
	says("zklock\nsharedx", true, false, 0, "sharedx");
	says("", false, false, 0, "");
	says("zklock", false, false, 0, "");
	says("shared\n", false, false, 0, "");
	says("__REVOKE__", false, false, 0, "");
	zkp_write_data(data, &(ZkpData) {.shared = true,.czxid = INT64_MAX / 100,.identity = "host a\n"});
	says(data, true, true, INT64_MAX / 100, "host a\n");
	zkp_write_data(data, &(ZkpData) {.granted = true,.identity = "host a\n"});
	says(data, true, false, 0, "host a\n");
	zkp_read_data(data, (int) strlen(data), &said);
	ok(said.granted && strcmp(data, "zklock\ngranted\nhost a\n") == 0, "and that its place is granted");
	zkp_read_data("zklock\nhost a\ngranted\n", 22, &said);
	ok(!said.granted, "the identity cannot claim that");

	parses("lock-0000000012", ZKP_EXCLUSIVE, 12);	/* Menagerie */
	parses("_c_0f5dd2a68e264f8e9e0c3a4be1f6a4d1-lock-0000000001", ZKP_EXCLUSIVE, 1);	/* go-zk */
	parses("x-00000234abcdef01-0000000006", ZKP_EXCLUSIVE, 6);	/* ZooKeeper's recipe in C */
	parses("x-72057645343932416-0000000006", ZKP_EXCLUSIVE, 6);	/* and in Java */
	parses("x--72057645343932416-0000000006", ZKP_EXCLUSIVE, 6);
	parses("lock-2147483647", ZKP_EXCLUSIVE, INT32_MAX);

	for (int i = 0; i < (int) (sizeof(not) / sizeof(not[0])); i++)
		ok(!zkp_parse(not[i], &c), "%s is not a contender", not[i]);

	ok(zkp_is_reserved("_c_" UUID "-anything", 3 + 36 + 9), "a protected node's form is reserved");
	ok(!zkp_is_reserved("nightly", 7), "an ordinary part is not");
	ok(!zkp_is_reserved("lock-5", 6), "nor is lock-5");
	ok(!zkp_is_reserved("single-4294967301", 17), "nor is what a single node is called");
	ok(!zkp_parse("a/lock-0000000001x", &c), "parsing needs the whole name");

	ok(zkp_may_be_stranger("_c_" UUID "-latch-0000000001"), "a leader latch may be a stranger");
	ok(zkp_may_be_stranger("ex0000000001"), "so may a node of zk-ruby");
	ok(zkp_may_be_stranger("1234567890"), "and a number alone");
	ok(!zkp_may_be_stranger("_c_" UUID "-lock-0000000001"), "a contender is none");
	ok(!zkp_may_be_stranger("ex000000001"), "nor is a node without a whole number");
	snprintf(name, sizeof(name), "%0*d", ZKP_STRANGER_MAX, 1);
	ok(zkp_may_be_stranger(name), "and one of the longest");
	snprintf(name, sizeof(name), "%0*d", ZKP_STRANGER_MAX + 1, 1);
	ok(!zkp_may_be_stranger(name), "nor is one that is longer");
	ok(!zkp_may_be_stranger(""), "nor is nothing");
	ok(zkp_compare(&(ZkpContender) {.name = "a",.seq = 1}, &(ZkpContender) {.name = "b",.seq = 1}) < 0,
	   "of two with one number, the name tells which comes first");
}

static void
test_single(void)
{
	static const char *const not[] = {
		"", "single-", "single-0", "single-01", "single--1", "single-1 ", "single- 1", "single-1x", "singles-1", "Single-1",
		"single-9223372036854775808", "single-99999999999999999999", "single-1lock-0000000001", NULL
	};
	static const int64_t czxids[] = {1, 42, INT64_C(4294967301), INT64_MAX};
	ZkpContender c;

	for (int i = 0; i < (int) (sizeof(czxids) / sizeof(czxids[0])); i++)
	{
		char		name[ZKP_NAME_LEN];
		int64_t		czxid = 0;

		zkp_single_name(name, czxids[i]);
		ok(zkp_parse_single(name, &czxid) && czxid == czxids[i], "%s is a single node's name", name);
		ok(!zkp_parse(name, &c), "and no contender's");
	}
	for (int i = 0; not[i] != NULL; i++)
	{
		int64_t		czxid = -7;

		ok(!zkp_parse_single(not[i], &czxid) && czxid == -7, "\"%s\" is not", not[i]);
	}
}

static void
test_equal_numbers(void)
{
	static char *const equal[] = {"_c_" UUID "-semaphore-1-0000000007", "_c_" UUID "-semaphore-2-0000000007",
	"a__WRIT__0000000007", "b__READ__0000000007"};
	ZkpContender queue[2];

	ok(zkp_needs_czxids(queue, zkp_queue(equal, 2, ZKP_SEMAPHORE, queue)), "two of a semaphore with one number tell no order");
	ok(!zkp_needs_czxids(queue, zkp_queue(equal + 2, 2, ZKP_EXCLUSIVE, queue)), "of a lock each lets the other go first");
}

/* Node s, of transaction 0x500000100, and the next one that we get */
static bool
comes_next(const char *last, const char *name, int64_t transactions)
{
	return zkp_comes_next(last, INT64_C(0x500000100), name, INT64_C(0x500000100) + transactions);
}

static void
test_comes_next(void)
{
	ok(comes_next("a-lock-0000000009", "b-lock-0000000010", 2), "the next number, and only a delete before it");
	ok(comes_next("a-lock-0000000009", "b-lock-0000000010", 11), "few transactions of others");
	ok(!comes_next("a-lock-0000000009", "b-lock-0000000010", 12), "enough to make the directory again");
	ok(comes_next("a-lock-0000000000", "b-lock-0000000001", 2) && !comes_next("a-lock-0000000000", "b-lock-0000000001", 3),
	   "the same of the first node");
	ok(!comes_next("a-lock-0000000009", "b-lock-0000000011", 3), "somebody came in between");
	ok(!comes_next("a-lock-0000000009", "b-lock-0000000009", 3) && !comes_next("a-lock-0000000009", "b-lock-0000000008", 3),
	   "another directory");
	ok(!comes_next("a-lock-0000000009", "b-lock-0000000010", 0) && !comes_next("a-lock-0000000009", "b-lock-0000000010", -2),
	   "an earlier transaction");
	ok(!zkp_comes_next("a-lock-2000000001", INT64_C(0x4ffffffff), "b-lock-2000000002", INT64_C(0x500000001)),
	   "another epoch");
	ok(!zkp_comes_next("a-lock-0000000009", 0, "b-lock-0000000010", 2), "a transaction that is not known");
	ok(comes_next("a-lock-2146435070", "b-lock-2146435071", 2) && !comes_next("a-lock-2146435071", "b-lock-2146435072", 2) &&
	   !comes_next("a-lock-2147483646", "b-lock-2147483647", 2) && !comes_next("a-lock-2147483647", "b-lock--2147483648", 2) &&
	   !comes_next("a-lock--000000001", "b-lock-0000000000", 2) && !comes_next("a-lock--000000009", "b-lock--000000008", 2),
	   "not near the wrap");
	ok(comes_next("x__WRIT__0000000009", "y__lock__0000000010", 2), "whatever they are called");
	ok(!comes_next("x__READ__0000000009", "y__WRIT__0000000010", 2) && !comes_next("x__WRIT__0000000009", "y__READ__0000000010", 2) &&
	   !comes_next("x", "y-lock-0000000010", 2) && !comes_next("x-lock-0000000009", "y", 2), "only exclusive ones");
}

/*-------------------------------------------------------------------------
 * Random tests, against slow and obvious models
 *
 *		protocol_test [SEED]
 *-------------------------------------------------------------------------
 */

#define CROWD		12

/*
 * Of failures in random tests only the first of each kind is reported, since
 * one cause has thousands of effects.
 */
static bool
once(bool *told, bool passed, const char *what, const ZkpContender *queue, int n, int self)
{
	if (passed || *told)
		return passed;
	*told = true;
	printf("# %s:\n", what);
	for (int i = 0; i < n; i++)
		printf("#   %s%s, czxid %lld\n", i == self ? "-> " : "   ", queue[i].name,
			   (long long) queue[i].czxid);
	return false;
}

#define FORMS	10

/* A contender of any client, or a node that is none */
static void
random_name(char *name, size_t size, int numbers, bool near_end)
{
	static const char *const forms[FORMS] = {
		"_c_%s-lock-", "_c_%s-shared-lock-", "_c_%s-__WRIT__", "_c_%s-__READ__",
		"%s__lock__", "%s__rlock__", "x-%.8s-", "_c_%s-semaphore-", "%s-lock-",
		"other-%s-"
	};
	char		uuid[ZKP_UUID_LEN];
	char		prefix[ZKP_PREFIX_LEN];
	int			form = below(FORMS);
	int32_t		seq = below(numbers);

	snprintf(uuid, sizeof(uuid), "%08x-0000-4000-8000-%012x", (unsigned) below(INT_MAX),
			 (unsigned) below(INT_MAX));
	if (near_end && below(2) == 0)
		seq = below(2) == 0 ? INT32_MAX - below(3) : INT32_MIN + below(3);
	snprintf(prefix, sizeof(prefix), forms[form], uuid);
	if (form == 7)
		snprintf(prefix + strlen(prefix), sizeof(prefix) - strlen(prefix), "%d-", 1 + below(4));
	snprintf(name, size, "%s%010d", prefix, seq);
}

/*
 * Is a before b?  If their order cannot be told, each has to assume that the
 * other is first.
 */
static bool
is_before(const ZkpContender *a, const ZkpContender *b)
{
	return a->czxid != 0 ? a->czxid < b->czxid : a->seq <= b->seq;
}

/* Whether one blocks the other, by comparing the pair only */
static bool
holds_up(const ZkpContender *other, const ZkpContender *self)
{
	bool		one_session = other->owner != 0 && other->owner == self->owner;

	if (other->mode == ZKP_SHARED && self->mode == ZKP_SHARED)
		return false;
	if (one_session && other->ours && self->ours)
		return false;
	return !(one_session && other->czxid == 0 && other->seq == self->seq &&
			 other->mode != self->mode);
}

/* How many does self wait for?  it: itself, or NULL */
static int
need_of(const ZkpContender *queue, int n, const ZkpContender *it, const ZkpWant *want, int *blockers)
{
	ZkpContender nobody = {.mode = want->mode,.owner = 1,.ours = true};
	int			count = 0;

	for (int i = 0; i < n; i++)
	{
		if (&queue[i] == it || (it != NULL && !is_before(&queue[i], it)))
			continue;
		if (want->mode != ZKP_SEMAPHORE && !holds_up(&queue[i], it != NULL ? it : &nobody))
			continue;
		if (blockers != NULL)
			blockers[count] = i;
		count++;
	}
	if (want->mode != ZKP_SEMAPHORE)
		return count;
	return count < want->permits ? 0 : count - want->permits + 1;
}

static bool
is_granted(const ZkpContender *queue, int n, int self)
{
	ZkpWant		want = {.mode = queue[self].mode,.permits = queue[self].permits};

	return need_of(queue, n, &queue[self], &want, NULL) == 0;
}

static bool
look_at_random(const ZkpContender *queue, int n, int self, int own, const ZkpWant *want)
{
	static bool told[16];
	bool		good = true;
	bool		semaphore = want->mode == ZKP_SEMAPHORE;
	bool		chain = semaphore && want->permits > 1;
	int			ahead = 0;
	bool		tell = chain && self >= 0 && zkp_needs_czxids(queue, n);
	bool		stuck = false;
	bool		some[CROWD];
	int			blockers[CROWD];
	int			nblockers;
	int			need;
	const ZkpContender *it = self < 0 ? NULL : &queue[self];
	ZkpView		view;
	const int  *watch = view.watch;

	zkp_look(queue, n, self < 0 ? (below(2) ? NULL : "none") : queue[self].name,
			 own < 0 ? NULL : queue[own].name, want, &view);

	memset(some, false, sizeof(some));
	need = need_of(queue, n, it, want, blockers);
	nblockers = want->mode != ZKP_SEMAPHORE ? need : need == 0 ? 0 : need + want->permits - 1;

	for (int b = 0; b < nblockers; b++)
		ahead += queue[blockers[b]].permits == want->permits && blockers[b] >= want->permits;
	chain &= need > 0;
	for (int i = 0; self >= 0 && i < n; i++)
		tell |= want->mode == ZKP_SEMAPHORE && want->permits > 1 && i > self && queue[i].permits == want->permits;

#define IS(i, what, condition) \
	good &= once(&told[i], (condition), what, queue, n, self)

	IS(0, "how many must leave", view.need == need);
	IS(1, "self is seen", view.self_seen == (self >= 0));
	IS(2, "how many are watched",
	   view.nwatch == (need == 0 ? 0 : chain ? ahead > 0 : semaphore || need < 2 ? 1 : 2));
	IS(13, "who looks at each change", view.ahead == (chain ? ahead : 0));
	IS(14, "who has to tell", view.tell == (tell && need == 0));
	if (!good)
		return false;

	for (int i = 0; i < view.nwatch; i++)
	{
		bool		is_blocker = false;

		for (int b = 0; b < nblockers; b++)
			is_blocker |= blockers[b] == watch[i];
		IS(3, "a watched one blocks", is_blocker && !some[watch[i]]);
		some[watch[i]] = true;

		for (int b = 0; b < nblockers; b++)
			IS(4, "the nearest first", chain || some[blockers[b]] || blockers[b] < watch[i]);
	}

	if (view.ahead > 0)
	{
		ZkpView		its;

		zkp_look(queue, n, queue[watch[0]].name, NULL, want, &its);
		IS(15, "who is watched waits, too, for fewer",
		   queue[watch[0]].permits == want->permits && its.need > 0 && its.need <= need);
	}
	/* a writer may leave a reader with its number behind */
	IS(7, "whether it is our turn once the watched one is gone", view.next ==
	   (need == 1 && !chain && !zkp_needs_czxids(queue, n) &&
		(want->mode != ZKP_EXCLUSIVE || (strstr(queue[watch[0]].name, "__WRIT__") == NULL &&
										 strstr(queue[watch[0]].name, "__lock__") == NULL))));

	/* if that one became a reader, nothing would be in the way */
	IS(10, "who may become shared", view.may_soften ==
	   (want->mode == ZKP_SHARED && need == 1 && strncmp(queue[watch[0]].name, "_c_", 3) == 0 &&
		strstr(queue[watch[0]].name, "-lock-") != NULL));

	for (int b = 0; b < nblockers && own >= 0; b++)
		stuck |= blockers[b] > own && queue[blockers[b]].mode == ZKP_EXCLUSIVE;
	IS(11, "whether one before us waits for us", view.stuck == stuck);
#undef IS
	return good;
}

static void
test_random_queues(void)
{
	char		names[CROWD][ZKP_NAME_LEN];
	char	   *list[CROWD];
	ZkpContender queue[CROWD];
	bool		good = true;
	bool		judged = true;
	bool		told = false;
	bool		granted[CROWD];

	for (int round = 0; round < 20000; round++)
	{
		int			nnames = below(CROWD + 1);
		bool		near_end = below(3) == 0;
		int			numbers = 1 + below(20);
		ZkpMode		mode = below(3) == 0 ? ZKP_SEMAPHORE : ZKP_EXCLUSIVE;
		int			n;

		for (int i = 0; i < nnames; i++)
		{
			random_name(names[i], sizeof(names[i]), numbers, near_end);
			list[i] = names[i];
		}
		n = zkp_queue(list, nnames, mode, queue);
		if (zkp_needs_czxids(queue, n))
		{
			/* each another one, in any order */
			for (int i = 0; i < n; i++)
				queue[i].czxid = 1 + i + CROWD * below(100);
			qsort(queue, n, sizeof(ZkpContender), zkp_compare);
		}
		for (int i = 1; i < n; i++)
			good &= is_before(&queue[i - 1], &queue[i]);

		/* who holds, of random sessions */
		for (int sessions = 1; sessions < 9; sessions++)
		{
			for (int i = 0; i < n; i++)
			{
				queue[i].owner = below(sessions);
				queue[i].ours = below(3) > 0;
			}
			zkp_granted(queue, n, granted);
			for (int i = 0; i < n; i++)
				judged &= once(&told, granted[i] == is_granted(queue, n, i), "whether it holds", queue, n, i);
		}

		for (int self = -1; self < n; self++)
		{
			int			others = self < 0 ? n : self;
			int			own = others > 0 && below(2) == 0 ? below(others) : -1;
			ZkpWant		want = {.mode = mode};

			if (mode == ZKP_SEMAPHORE)
			{
				want.permits = self < 0 ? 1 + below(4) : queue[self].permits;
				own = -1;
			}
			else if (self < 0 ? below(2) == 0 : queue[self].mode == ZKP_SHARED)
			{
				want.mode = ZKP_SHARED;
				own = -1;
			}
			for (int i = 0; i < n; i++)
			{
				queue[i].owner = i == own || i == self;
				queue[i].ours = true;
			}
			good &= look_at_random(queue, n, self, own, &want);
		}
	}
	ok(good, "random queues, seen by each contender: as the model says");
	ok(judged, "and the holders are those that comparing all pairs gives");
}

#define MANY	240000

/* The worst that a server may send; it must not take noticeable time */
static void
test_many_of_one_number(void)
{
	ZkpContender *queue = calloc(MANY, sizeof(ZkpContender));
	bool	   *granted = malloc(MANY);
	clock_t		begin = clock();
	int			ngranted = 0;

	for (int mode = ZKP_SHARED; mode <= ZKP_SEMAPHORE; mode++)
	{
		for (int i = 0; i < MANY; i++)
			queue[i] = (ZkpContender) {.name = "",.seq = 7,.owner = 1,.ours = true,.permits = 1,.mode = mode};
		zkp_granted(queue, MANY, granted);
		ngranted += granted[0];
	}
	ok(clock() - begin < CLOCKS_PER_SEC, "%d contenders with one number take no noticeable time", MANY);
	ok(ngranted == 2, "and all those of one session hold, except of a semaphore");
	free(queue);
	free(granted);
}

/*
 * The contenders of a lock or a semaphore, each at a server of its own, which may
 * lag behind as far as ZooKeeper allows: it has seen an initial part of the
 * history that includes the contender's own create.  They do what acquire.c and
 * blockers.c do: list, set watches, react to what fires; and join, leave, upgrade, and
 * become readers.  Whoever is granted must not be held up by those who stand before
 * it.  When all servers are up to date and nothing is under way, all others must be.
 */
#define NEVER	INT_MAX
#define EVERYBODY	30

typedef struct Actor
{
	char		name[ZKP_NAME_LEN];
	ZkpWant		want;			/* a writer that became a reader wants that */
	int			own;			/* its session's shared node, which it upgrades, or -1 */
	int			place;			/* when it was made, or the node that it replaces */
	int			made;			/* these three: when, in the history; or NEVER */
	int			gone;
	int			told;			/* that it is granted, or shared */
	int			seen;			/* how much of the history */
	bool		holds;
	bool		tells;			/* the write is under way */
	bool		looks;			/* it has to list the queue */
	bool		by_changes;
	bool		armed;			/* its watch on the directory is set */
	ZkpView		view;			/* of its last list; the watches of that are set */
	int			watched[ZKP_MOST_WATCHED];
} Actor;

static Actor actors[EVERYBODY];
static int	nactors;
static int	now;				/* the end of the history */
static int64_t first_number;
static long ngrants,
			nbare,
			nsoft,
			nturned,
			nabove,
			nstuck;

static Actor *
actor_named(const char *name)
{
	Actor	   *a = actors;

	while (strcmp(a->name, name) != 0)
		a++;
	return a;
}

static void
comes(ZkpMode mode, ZkpStyle style, int32_t permits, int own)
{
	char		prefix[ZKP_PREFIX_LEN];
	char		uuid[ZKP_UUID_LEN];
	int64_t		number = first_number + nactors;
	Actor	   *a = &actors[nactors++];

	*a = (Actor) {.want = {.mode = mode,.style = style,.permits = permits},.own = own,
			.place = now,.made = now,.gone = NEVER,.told = NEVER,.seen = now + 1,.looks = true};
	now++;
	snprintf(uuid, sizeof(uuid), "%08x-0000-4000-8000-000000000000", (unsigned) nactors);
	zkp_prefix(prefix, uuid, &a->want);
	/* ZooKeeper's counter stops at its maximum */
	snprintf(a->name, sizeof(a->name), "%s%010d", prefix, (int) (number < INT32_MAX ? number : INT32_MAX));
}

/* The upgrade that this one's session asks for, or NULL */
static Actor *
upgrade_of(const Actor *a)
{
	for (int i = 0; i < nactors; i++)
	{
		if (actors[i].own == a - actors && actors[i].gone == NEVER)
			return &actors[i];
	}
	return NULL;
}

static void
goes(Actor *a)
{
	Actor	   *upgrade = upgrade_of(a);

	if (upgrade != NULL)
		upgrade->gone = now++;
	a->gone = now++;
}

/* An exclusive holder becomes a reader */
static void
turns(Actor *a)
{
	char		name[ZKP_NAME_LEN];

	nturned++;
	a->want.mode = ZKP_SHARED;
	if (!zkp_shared_name(name, a->name))
	{
		a->told = now++;
		return;
	}
	/* the data of the new node names the one that it replaces */
	actors[nactors] = *a;
	strcpy(actors[nactors].name, name);
	actors[nactors++].made = now;
	a->gone = now++;
}

/* Whether nobody who stands before it holds it up */
static bool
is_free(const Actor *a)
{
	int			before = 0;

	for (const Actor *b = actors; b < actors + nactors; b++)
		before += b->gone == NEVER && b->place < a->place &&
			(a->want.mode != ZKP_SHARED || b->want.mode == ZKP_EXCLUSIVE) && a->own != b - actors && b->own != a - actors;
	return before == 0 || before < a->want.permits;
}

/* Returns whether it may */
static bool
takes(Actor *a)
{
	a->holds = true;
	ngrants++;
	nabove += a->own >= 0;
	return is_free(a);
}

/* A node that it watches is gone, or says that it is granted, or shared */
static bool
notices(Actor *a)
{
	for (int i = 0; i < a->view.nwatch && !a->by_changes; i++)
	{
		const Actor *it = &actors[a->watched[i]];
		bool		gone = it->gone < a->seen;

		if (!gone && (it->told >= a->seen || (a->view.ahead == 0 && !a->view.may_soften)))
			continue;
		if (gone ? a->view.next : a->view.may_soften)
		{
			nbare += gone;
			nsoft += !gone;
			return takes(a);
		}
		a->looks = true;
		a->by_changes = !gone || a->view.ahead == 1;
		return true;
	}
	return true;
}

static void
server_goes_on(Actor *a)
{
	a->seen += below(now - a->seen + 1);
}

static bool
looks(Actor *a)
{
	ZkpContender queue[EVERYBODY];
	char	   *names[EVERYBODY];
	int			n = 0;

	server_goes_on(a);
	for (Actor *b = actors; b < actors + nactors; b++)
	{
		if (b->made < a->seen && b->gone >= a->seen)
			names[n++] = b->name;
	}
	n = zkp_queue(names, n, a->want.mode, queue);
	if (zkp_needs_czxids(queue, n))
	{
		for (int i = 0; i < n; i++)
			queue[i].czxid = actor_named(queue[i].name)->place + 1;
		qsort(queue, n, sizeof(ZkpContender), zkp_compare);
	}
	zkp_look(queue, n, a->name, a->own < 0 ? NULL : actors[a->own].name, &a->want, &a->view);
	a->tells = a->view.tell;
	a->armed = a->by_changes;
	a->by_changes |= a->view.nwatch == 0;
	a->looks = a->by_changes && !a->armed;
	if (a->view.need == 0)
		return takes(a);
	if (a->view.stuck)
	{
		/* it would wait forever, and gives up */
		nstuck++;
		goes(a);
	}
	else if (!a->by_changes)
	{
		for (int i = 0; i < a->view.nwatch; i++)
			a->watched[i] = (int) (actor_named(queue[a->view.watch[i]].name) - actors);
		server_goes_on(a);
		return notices(a);
	}
	return true;
}

/* Its server learns of the next event */
static bool
hears(Actor *a)
{
	int			what = a->seen++;

	for (int i = 0; i < nactors; i++)
		a->looks |= a->armed && (actors[i].made == what || actors[i].gone == what);
	return a->looks || notices(a);
}

static bool
has_to_do(const Actor *a)
{
	return a->gone == NEVER && (a->tells || (!a->holds && (a->looks || a->seen < now)));
}

static bool
goes_on(Actor *a)
{
	if (a->tells)
	{
		a->tells = false;
		a->told = now++;
		return true;
	}
	return a->looks ? looks(a) : hears(a);
}

/* One of them does something, or another one comes.  Returns false if that may not be. */
static bool
anything_happens(bool semaphore, int32_t permits, bool mixed)
{
	int			what = below(20);
	Actor	   *who = &actors[below(nactors + 1)];
	bool		room = nactors < EVERYBODY;

	if (what == 0 && room)
		comes(semaphore ? ZKP_SEMAPHORE : below(2) ? ZKP_SHARED : ZKP_EXCLUSIVE, (ZkpStyle) below(3),
			  !semaphore ? 0 : mixed ? 1 + below(4) : permits, -1);
	else if (who == actors + nactors || who->gone < NEVER)
		return true;
	else if (what == 1)
		goes(who);
	else if (what == 2 && room && who->holds && who->want.mode == ZKP_EXCLUSIVE && who->own < 0)
		turns(who);
	else if (what == 3 && room && who->holds && who->want.mode == ZKP_SHARED && upgrade_of(who) == NULL)
		comes(ZKP_EXCLUSIVE, who->want.style, 0, (int) (who - actors));
	else if (what > 3 && has_to_do(who))
		return goes_on(who);
	return true;
}

/* Until nothing more happens by itself */
static bool
settles(void)
{
	bool		good = true;
	bool		busy = true;

	while (busy)
	{
		busy = false;
		for (Actor *a = actors; a < actors + nactors; a++)
		{
			busy |= has_to_do(a);
			if (has_to_do(a) && below(2) == 0)
				good &= goes_on(a);
		}
	}
	return good;
}

static void
test_servers_that_lag(void)
{
	/* near the wrap, or near where numbers count as such */
	static const int64_t starts[] = {
		0, INT32_MAX - 20, INT32_MAX - (1 << 20) - 10, INT32_MAX - (1 << 21) - 10
	};
	bool		good = true;
	bool		alive = true;
	long		rounds = 0;

	for (int round = 0; round < 4000 && good && alive; round++)
	{
		int32_t		permits = 1 + below(4);
		bool		mixed = below(2) == 0;
		int			left = EVERYBODY;

		nactors = now = 0;
		first_number = starts[below(4)];
		for (; left > 0 && good && alive; rounds++)
		{
			/* a crowd arrives at once, and some leave meanwhile */
			for (int step = below(200); step > 0; step--)
				good &= anything_happens(round % 2 == 0, permits, mixed);
			good &= settles();
			left = EVERYBODY - nactors;
			for (const Actor *a = actors; a < actors + nactors; a++)
			{
				left += a->gone == NEVER;
				alive &= a->gone < NEVER || a->holds == is_free(a);
			}
		}
	}
	ok(good, "on servers that lag behind, nobody is granted who is held up");
	ok(alive, "and whenever nothing is under way, nobody else waits");
	printf("# quiet %ld times; %ld grants, %ld by an event alone, %ld turned reader, %ld were told, "
		   "%ld above their own, %ld could not\n", rounds, ngrants, nbare, nturned, nsoft, nabove, nstuck);
	ok(ngrants > 10000 && nbare > 1000 && nturned > 1000 && nsoft > 100 && nabove > 100 && nstuck > 100,
	   "of all kinds");
}

/* Names that are almost valid, in memory that ends exactly where they do. */
static regex_t name_regex;

#define NUMBER	"([0-9]{10}|-[0-9]{9,10})$"

static bool
model_parse(const char *name, ZkpContender *c)
{
	regmatch_t	m[8];
	long long	seq;
	long long	permits = 0;

	memset(c, 0, sizeof(*c));
	if (regexec(&name_regex, name, 8, m, 0) != 0)
		return false;
	/* the sequence number is the last group */
	seq = atoll(name + m[7].rm_so);
	if (m[6].rm_so >= 0)
		permits = m[6].rm_eo - m[6].rm_so > 10 ? LLONG_MAX : atoll(name + m[6].rm_so);
	c->seq = (int32_t) seq;
	c->permits = (int32_t) permits;
	c->mode = permits > 0 ? ZKP_SEMAPHORE : m[2].rm_so >= 0 ? ZKP_SHARED : ZKP_EXCLUSIVE;
	return seq <= INT32_MAX && seq >= INT32_MIN && permits <= INT32_MAX;
}

static void
test_garbage(void)
{
	static const char *const pieces[] = {
		"_c_" UUID, "-lock-", "-shared-lock-", "__lock__", "__rlock__", "__WRIT__", "__READ__",
		"x-", "x--12", "-semaphore-", "-semaphore-3-", "-semaphore-2147483647-", "12ab-", "0000000001",
		"2147483647", "2147483648", "-2147483648", "-2147483649", "-000000001", "-00000000001", "-", "1", "0", "f", "\xc3\xa4", "", "\xff"
	};
	bool		good = true;
	int			valid = 0;

	if (regcomp(&name_regex,
				"((-shared-lock-|__rlock__|__READ__)|lock-|__lock__|__WRIT__|(^x-(-|-?[0-9a-fA-F]+)-)|"
				"(^_c_.{36}-semaphore-([1-9][0-9]*)-))" NUMBER, REG_EXTENDED) != 0)
	{
		ok(false, "the model's pattern");
		return;
	}
	for (int round = 0; round < 200000; round++)
	{
		char		text[400] = "";
		char	   *name;
		char		shared[ZKP_NAME_LEN];
		int			npieces = 1 + below(4);
		int			len;
		ZkpData		says;
		ZkpContender c;
		ZkpContender expected;
		bool		found;

		for (int i = 0; i < npieces; i++)
			strcat(text, pieces[below((int) (sizeof(pieces) / sizeof(pieces[0])))]);
		if (below(2) == 0)
			sprintf(text + strlen(text), "%010d", below(2) == 0 ? below(100) : -below(INT_MAX));
		len = (int) strlen(text);
		for (int i = below(3); i > 0 && len > 0; i--)
		{
			int			at = below(len);

			if (below(2) == 0)
				text[at] = (char) (1 + below(255));
			else
			{
				memmove(text + at, text + at + 1, len - at);
				len--;
			}
		}
		name = malloc(len + 1);
		memcpy(name, text, len + 1);
		found = zkp_parse(name, &c);
		valid += found;
		if (found != model_parse(name, &expected) ||
			(found && (c.mode != expected.mode || c.seq != expected.seq ||
					   c.permits != expected.permits || c.name != name || c.czxid != 0)))
		{
			if (good)
				printf("# %s: %d, mode %d, %d, %d, not %d, %d, %d\n", name, found, c.mode, c.seq,
					   c.permits, expected.mode, expected.seq, expected.permits);
			good = false;
		}
		memset(shared, 'x', sizeof(shared));
		if (zkp_shared_name(shared, name) && len < ZKP_NAME_LEN - 1)
		{
			ZkpContender r;

			if (!found || c.mode != ZKP_EXCLUSIVE || !zkp_parse(shared, &r) ||
				r.mode != ZKP_SHARED || r.seq != c.seq)
			{
				if (good)
					printf("# %s turned %s\n", name, shared);
				good = false;
			}
		}
		free(name);

		/* a part of a path is not NUL-terminated */
		name = malloc(len + (len == 0));
		memcpy(name, text, len);
		if (found && !zkp_is_reserved(name, len))
			good = false;
		zkp_read_data(name, len, &says);
		free(name);
	}
	regfree(&name_regex);
	ok(good, "garbage near valid names, as the model says");
	ok(valid > 10000, "%d of them valid", valid);
}

int
main(int argc, char **argv)
{
	begin_tests(argc, argv);
	test_names();
	test_single();
	test_records();
	test_equal_numbers();
	test_comes_next();
	test_random_queues();
	test_many_of_one_number();
	test_servers_that_lag();
	test_garbage();
	return end_tests();
}

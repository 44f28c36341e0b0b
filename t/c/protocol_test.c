/*-------------------------------------------------------------------------
 *
 * protocol_test.c
 *	  Names, order, and who blocks whom, without a server.  Prints TAP.
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "protocol.h"

#define UUID "0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1"

static int	ntests = 0;
static int	nfailed = 0;

static void ok(bool passed, const char *format,...) __attribute__((format(printf, 2, 3)));

static void
ok(bool passed, const char *format,...)
{
	va_list		args;

	printf("%sok %d - ", passed ? "" : "not ", ++ntests);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	nfailed += !passed;
}

static void
parses(const char *name, ZkpMode mode, int32_t seq)
{
	ZkpContender c;
	bool		found = zkp_parse(name, &c);

	ok(mode == ZKP_NONE ? !found : found && c.mode == mode && c.seq == seq,
	   "%s is %s", name,
	   mode == ZKP_NONE ? "not a contender" : mode == ZKP_SHARED ? "shared" : "exclusive");
}

#define MAX_NAMES	16

typedef struct Looked
{
	ZkpContender queue[MAX_NAMES];
	int			n;
	int			watch[MAX_NAMES];
	ZkpView		view;
} Looked;

static void
queue_of(char *const *names, ZkpMode mode, Looked *l)
{
	int			n = 0;

	while (names[n] != NULL)
		n++;
	l->n = zkp_queue(names, n, mode, l->queue);
}

static ZkpView *
look(Looked *l, const char *self, const char *own, ZkpMode mode, int permits)
{
	ZkpWant		want = {mode, ZKP_CURATOR, permits};

	l->view.watch = l->watch;
	zkp_look(l->queue, l->n, self, own, &want, &l->view);
	return &l->view;
}

static const char *
watched(const Looked *l, int i)
{
	return i < l->view.nwatch ? l->queue[l->watch[i]].name : "";
}

/* a list, who we are, how many must go before us, and the first two watched */
static void
looks(const char *what, char *const *names, const char *self, ZkpMode mode,
	  int need, const char *nearest, const char *second)
{
	Looked		l;

	queue_of(names, mode, &l);
	look(&l, self, NULL, mode, 0);
	ok(l.view.need == need && strcmp(watched(&l, 0), nearest == NULL ? "" : nearest) == 0 &&
	   strcmp(watched(&l, 1), second == NULL ? "" : second) == 0 &&
	   l.view.self_seen == (self != NULL), "%s", what);
}

static void
makes(ZkpMode mode, ZkpStyle style, int permits, const char *expected)
{
	ZkpWant		want = {mode, style, permits};
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
says(const char *data, bool shared, int64_t czxid)
{
	int64_t		said;

	ok(zkp_says_shared(data, (int) strlen(data), &said) == shared && said == czxid,
	   "\"%.*s\" with czxid %lld says %s", (int) strcspn(data, "\n"), data,
	   (long long) czxid, shared ? "shared" : "nothing");
}

static void
test_names(void)
{
	ZkpContender c;
	char		data[ZKP_DATA_LEN];

	makes(ZKP_EXCLUSIVE, ZKP_CURATOR, 0, "_c_" UUID "-lock-");
	makes(ZKP_SHARED, ZKP_CURATOR, 0, "_c_" UUID "-shared-lock-");
	makes(ZKP_EXCLUSIVE, ZKP_CURATOR_RW, 0, "_c_" UUID "-__WRIT__");
	makes(ZKP_SHARED, ZKP_CURATOR_RW, 0, "_c_" UUID "-__READ__");
	makes(ZKP_EXCLUSIVE, ZKP_KAZOO, 0, "0f5dd2a68e264f8e9e0c3a4be1f6a4d1__lock__");
	makes(ZKP_SHARED, ZKP_KAZOO, 0, "0f5dd2a68e264f8e9e0c3a4be1f6a4d1__rlock__");
	for (ZkpStyle style = ZKP_CURATOR; style <= ZKP_KAZOO; style++)
		makes(ZKP_SEMAPHORE, style, 1, "_c_" UUID "-semaphore-1-");
	makes(ZKP_SEMAPHORE, ZKP_CURATOR, INT32_MAX, "_c_" UUID "-semaphore-2147483647-");
	parses("_c_" UUID "-semaphore-0-0000000001", ZKP_NONE, 0);
	parses("_c_" UUID "-semaphore-03-0000000001", ZKP_NONE, 0);
	parses("_c_" UUID "-semaphore-2147483648-0000000001", ZKP_NONE, 0);
	parses("_c_" UUID "-semaphore--0000000001", ZKP_NONE, 0);
	parses("semaphore-3-0000000001", ZKP_NONE, 0);

	becomes("_c_" UUID "-__WRIT__0000000004", "_c_" UUID "-__READ__0000000004");
	becomes("_c_" UUID "-__WRIT__-000000004", "_c_" UUID "-__READ__-000000004");
	becomes("0f5d__lock__-2147483648", "0f5d__rlock__-2147483648");
	becomes("_c_" UUID "-lock-0000000004", NULL);
	becomes("_c_" UUID "-lock--000000004", NULL);
	says("shared", true, 0);
	says("shared\nmore", true, 0);
	says("shared\nczxid 42\nmore", true, 42);
	says("shared\nczxid 99999999999999999999999", true, INT64_C(999999999999999999));
	says("", false, 0);
	says("share", false, 0);
	says("sharedx", false, 0);
	says("__REVOKE__", false, 0);
	zkp_shared_data(data, 0);
	says(data, true, 0);
	zkp_shared_data(data, INT64_MAX / 100);
	says(data, true, INT64_MAX / 100);

	parses("lock-0000000012", ZKP_EXCLUSIVE, 12);	/* Menagerie */
	parses("_c_0f5dd2a68e264f8e9e0c3a4be1f6a4d1-lock-0000000001", ZKP_EXCLUSIVE, 1);	/* go-zk */
	parses("0f5dd2a68e264f8e9e0c3a4be1f6a4d1__lock__0000000003", ZKP_EXCLUSIVE, 3);
	parses("0f5dd2a68e264f8e9e0c3a4be1f6a4d1__rlock__0000000003", ZKP_SHARED, 3);
	parses("_c_" UUID "-__WRIT__0000000004", ZKP_EXCLUSIVE, 4);
	parses("_c_" UUID "-__READ__0000000005", ZKP_SHARED, 5);
	parses("x-00000234abcdef01-0000000006", ZKP_EXCLUSIVE, 6);	/* ZooKeeper's recipe in C */
	parses("x-72057645343932416-0000000006", ZKP_EXCLUSIVE, 6);	/* and in Java */
	parses("x--72057645343932416-0000000006", ZKP_EXCLUSIVE, 6);

	/* %010d of a negative number has nine digits or ten */
	parses("lock--2147483648", ZKP_EXCLUSIVE, INT32_MIN);
	parses("lock--000000001", ZKP_EXCLUSIVE, -1);
	parses("0f5d__lock__-000000017", ZKP_EXCLUSIVE, -17);
	parses("lock-2147483647", ZKP_EXCLUSIVE, INT32_MAX);
	parses("lock-2147483648", ZKP_NONE, 0);

	parses("b", ZKP_NONE, 0);
	parses("", ZKP_NONE, 0);
	parses("0000000001", ZKP_NONE, 0);
	parses("lock-", ZKP_NONE, 0);
	parses("lock-1", ZKP_NONE, 0);
	parses("lock-000000001", ZKP_NONE, 0);
	parses("lock-0000000001x", ZKP_NONE, 0);
	parses("_c_" UUID "-lease-0000000001", ZKP_NONE, 0);
	parses("-0000000001", ZKP_NONE, 0);
	parses("x-0000000001", ZKP_NONE, 0);

	ok(zkp_is_reserved("lock-0000000001", 15), "a part in a lock node's form is reserved");
	ok(zkp_is_reserved("_c_" UUID "-anything", 3 + 36 + 9), "a protected node's form is reserved");
	ok(!zkp_is_reserved("nightly", 7), "an ordinary part is not");
	ok(!zkp_is_reserved("lock-5", 6), "nor is lock-5");
	ok(!zkp_parse("a/lock-0000000001x", &c), "parsing needs the whole name");
}

static void
test_queue(void)
{
	static char *const empty[] = {NULL};
	static char *const strangers[] = {"b", "config", "latch-0000000000", NULL};
	static char *const mixed[] = {
		"_c_" UUID "-lock-0000000009",
		"ab__lock__0000000003",
		"b",
		"_c_" UUID "-shared-lock-0000000005",
		"_c_" UUID "-__READ__0000000007",
		"x-12ab-0000000001",
		NULL
	};
	static char *const tie[] = {"_c_a-lock-0000000007", "_c_b-lock-0000000007", NULL};

	looks("an empty directory blocks nobody", empty, NULL, ZKP_EXCLUSIVE, 0, NULL, NULL);
	looks("other children do not either", strangers, NULL, ZKP_EXCLUSIVE, 0, NULL, NULL);
	looks("a newcomer stands behind everybody", mixed, NULL, ZKP_EXCLUSIVE, 5,
		  mixed[0], mixed[4]);
	looks("a writer waits for all before it, of any client", mixed, mixed[0],
		  ZKP_EXCLUSIVE, 4, mixed[4], mixed[3]);
	looks("a reader waits for the writers before it only", mixed, mixed[4],
		  ZKP_SHARED, 2, mixed[1], mixed[5]);
	looks("the lowest holds", mixed, mixed[5], ZKP_EXCLUSIVE, 0, NULL, NULL);
	looks("equal numbers: each waits, neither holds", tie, tie[0], ZKP_EXCLUSIVE, 1, tie[1], NULL);
	looks("and so does the other", tie, tie[1], ZKP_EXCLUSIVE, 1, tie[0], NULL);
	{
		static char *const plain[] = {"lock-0000000001", "lock-0000000002", NULL};
		static char *const writer[] = {"_c_a-__WRIT__0000000001", "lock-0000000002", NULL};
		static char *const kazoo[] = {"ab__lock__0000000001", "lock-0000000002", NULL};
		static char *const ours[] = {"_c_" UUID "-lock-0000000001", "_c_" UUID "-shared-lock-0000000002", NULL};
		static char *const behind[] = {"a__rlock__0000000000", "_c_" UUID "-lock-0000000001", "_c_" UUID "-shared-lock-0000000002", NULL};
		Looked		l;

		queue_of(plain, ZKP_EXCLUSIVE, &l);
		ok(look(&l, plain[1], NULL, ZKP_EXCLUSIVE, 0)->next, "behind one holder, its going is enough");
		ok(!look(&l, plain[0], NULL, ZKP_EXCLUSIVE, 0)->next, "a holder is not next");
		ok(!look(&l, "_c_x-lock-0000000001", NULL, ZKP_EXCLUSIVE, 0)->self_seen, "a list without us says so");
		ok(!look(&l, plain[1], NULL, ZKP_SHARED, 0)->may_soften, "another client's node does not turn shared by its data");
		queue_of(mixed, ZKP_EXCLUSIVE, &l);
		ok(!look(&l, mixed[0], NULL, ZKP_EXCLUSIVE, 0)->next, "one behind several is not next");
		queue_of(writer, ZKP_EXCLUSIVE, &l);
		ok(!look(&l, writer[1], NULL, ZKP_EXCLUSIVE, 0)->next, "a Curator writer may leave a reader behind");
		ok(look(&l, writer[1], NULL, ZKP_SHARED, 0)->next, "which a reader need not mind");
		queue_of(kazoo, ZKP_EXCLUSIVE, &l);
		ok(!look(&l, kazoo[1], NULL, ZKP_EXCLUSIVE, 0)->next, "nor does one with kazoo's name go for certain");
		queue_of(ours, ZKP_SHARED, &l);
		ok(look(&l, ours[1], NULL, ZKP_SHARED, 0)->may_soften && l.view.may_be_soft, "the data of a node with our name may say that it is shared");
		queue_of(behind, ZKP_SHARED, &l);
		ok(look(&l, behind[2], NULL, ZKP_SHARED, 0)->may_soften && !l.view.may_be_soft, "not yet while somebody is before it");
	}
}

static void
test_upgrade(void)
{
	static char *const readers[] = {"a__rlock__0000000001", "b__rlock__0000000002", "a__lock__0000000003", NULL};
	static char *const waiter[] = {"a__rlock__0000000001", "b__lock__0000000002", "a__lock__0000000003", NULL};
	static char *const turned[] = {"_c_" UUID "-lock-0000000001", "a__rlock__0000000002", "a__lock__0000000003", NULL};
	static char *const later[] = {"a__rlock__0000000001", "a__lock__0000000003", "b__lock__0000000004", NULL};
	Looked		l;

	queue_of(readers, ZKP_EXCLUSIVE, &l);
	ok(look(&l, readers[2], readers[0], ZKP_EXCLUSIVE, 0)->need == 1 && !l.view.stuck &&
	   strcmp(watched(&l, 0), readers[1]) == 0, "an own reader is no obstacle, another is");
	queue_of(waiter, ZKP_EXCLUSIVE, &l);
	ok(look(&l, waiter[2], waiter[0], ZKP_EXCLUSIVE, 0)->stuck, "a writer between the own two waits for ever");
	ok(!look(&l, waiter[2], NULL, ZKP_EXCLUSIVE, 0)->stuck, "without an own reader he does not");
	queue_of(turned, ZKP_EXCLUSIVE, &l);
	ok(look(&l, turned[2], turned[1], ZKP_EXCLUSIVE, 0)->need == 1 && !l.view.stuck,
	   "one before the own reader has turned shared: it will go");
	queue_of(later, ZKP_EXCLUSIVE, &l);
	ok(look(&l, later[1], later[0], ZKP_EXCLUSIVE, 0)->need == 0, "who comes later does not matter");
}

#define SEM(permits, n) "_c_" UUID "-semaphore-" #permits "-" #n

static void
test_semaphore(void)
{
	static char *const three[] = {SEM(2, 0000000003), SEM(2, 0000000001), SEM(2, 0000000002), "lock-0000000000", NULL};
	static char *const mixed[] = {SEM(1, 0000000001), SEM(3, 0000000002), SEM(1, 0000000003), SEM(3, 0000000004), SEM(2, 0000000005), NULL};
	Looked		l;

	queue_of(three, ZKP_SEMAPHORE, &l);
	ok(l.n == 3, "a lock is not in the semaphore's queue");
	ok(look(&l, three[2], NULL, ZKP_SEMAPHORE, 2)->need == 0, "the second of two places is free");
	ok(look(&l, three[0], NULL, ZKP_SEMAPHORE, 2)->need == 1 && l.view.next && l.view.nwatch == 2,
	   "the third waits for either");
	ok(look(&l, NULL, NULL, ZKP_SEMAPHORE, 3)->need == 1, "one who comes now has three before him");
	queue_of(three, ZKP_EXCLUSIVE, &l);
	ok(l.n == 1, "and a semaphore not in the lock's");

	queue_of(mixed, ZKP_SEMAPHORE, &l);
	ok(look(&l, mixed[3], NULL, ZKP_SEMAPHORE, 3)->need == 1 && l.view.nwatch == 3 && l.view.next,
	   "with three places, the fourth waits");
	ok(look(&l, mixed[4], NULL, ZKP_SEMAPHORE, 2)->need == 3 && l.view.nwatch == 2 && !l.view.next &&
	   strcmp(watched(&l, 0), mixed[3]) == 0 && strcmp(watched(&l, 1), mixed[2]) == 0,
	   "of those before it, one watches as many as there are places, the waiters first");
	ok(look(&l, mixed[2], NULL, ZKP_SEMAPHORE, 1)->need == 2 && l.view.nwatch == 1,
	   "with a single place it is a lock");
}

static void
test_wrap(void)
{
	static char *const names[] = {"a-lock-2147483647", "b-lock--2147483648", "c-lock-2147483647", NULL};
	static char *const low[] = {"a-lock-0000000001", "b-lock-2000000001", NULL};
	Looked		l;

	queue_of(low, ZKP_EXCLUSIVE, &l);
	ok(!zkp_needs_czxids(l.queue, l.n), "far from the wrap, numbers tell the order");
	queue_of(names, ZKP_EXCLUSIVE, &l);
	ok(l.n == 3 && zkp_needs_czxids(l.queue, l.n), "near it they do not");
	for (int i = 0; i < l.n; i++)
		l.queue[i].czxid = l.queue[i].name[0] - 'a' + 1;
	zkp_sort(l.queue, l.n);
	ok(look(&l, names[0], NULL, ZKP_EXCLUSIVE, 0)->need == 0, "the first transaction is first");
	ok(look(&l, names[2], NULL, ZKP_EXCLUSIVE, 0)->need == 2 && strcmp(watched(&l, 0), names[1]) == 0,
	   "and the last is last, with the same number");
	ok(look(&l, names[1], NULL, ZKP_EXCLUSIVE, 0)->need == 1 && !l.view.next,
	   "numbers promise nothing of who comes in between");
}

int
main(void)
{
	test_names();
	test_queue();
	test_upgrade();
	test_semaphore();
	test_wrap();
	printf("1..%d\n", ntests);
	return nfailed != 0;
}

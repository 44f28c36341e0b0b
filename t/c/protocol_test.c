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

/* a list, who we are, how many stand before us, and the two nearest */
static void
looks(const char *what, char *const *names, const char *self, ZkpMode mode,
	  int nblockers, const char *nearest, const char *second)
{
	ZkpView		view;
	int			n = 0;

	while (names[n] != NULL)
		n++;
	zkp_look(names, n, self, mode, &view);
	ok(view.nblockers == nblockers &&
	   (nearest == NULL ? view.nearest == NULL : view.nearest != NULL && strcmp(view.nearest, nearest) == 0) &&
	   (second == NULL ? view.second == NULL : view.second != NULL && strcmp(view.second, second) == 0) &&
	   view.self_seen == (self != NULL), "%s", what);
}

static void
test_names(void)
{
	char		prefix[ZKP_PREFIX_LEN];
	char		name[ZKP_NAME_LEN];
	ZkpContender c;

	zkp_prefix(prefix, UUID, ZKP_EXCLUSIVE);
	ok(strcmp(prefix, "_c_" UUID "-lock-") == 0, "our exclusive node is named as Curator's mutex names it");
	snprintf(name, sizeof(name), "%s%010d", prefix, 7);
	parses(name, ZKP_EXCLUSIVE, 7);
	zkp_prefix(prefix, UUID, ZKP_SHARED);
	snprintf(name, sizeof(name), "%s%010d", prefix, INT32_MIN);
	parses(name, ZKP_SHARED, INT32_MIN);

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
test_order(void)
{
	ok(zkp_seq_before(1, 2) && !zkp_seq_before(2, 1), "1 comes before 2");
	ok(!zkp_seq_before(5, 5), "equal numbers have no order");
	ok(zkp_seq_before(INT32_MAX, INT32_MIN), "the order goes on across the wrap");
	ok(!zkp_seq_before(INT32_MIN, INT32_MAX), "and not back");
	ok(zkp_seq_before(-1, 0), "-1 comes before 0");
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
	static char *const tie[] = {"_c_a-lock-2147483647", "_c_b-lock-2147483647", NULL};
	static char *const wrapped[] = {"lock--2147483648", "lock-2147483647", "lock--2147483647", NULL};

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
	looks("order across the wrap", wrapped, wrapped[2], ZKP_EXCLUSIVE, 2, wrapped[0], wrapped[1]);
	looks("the last before the wrap is first", wrapped, wrapped[1], ZKP_EXCLUSIVE, 0, NULL, NULL);

	{
		static char *const plain[] = {"lock-0000000001", "lock-0000000002", NULL};
		static char *const writer[] = {"_c_a-__WRIT__0000000001", "lock-0000000002", NULL};
		static char *const late[] = {"lock-2147483646", "lock-2147483647", NULL};
		ZkpView		view;

		zkp_look(plain, 2, plain[1], ZKP_EXCLUSIVE, &view);
		ok(view.next, "behind one holder, its going is enough");
		zkp_look(plain, 2, plain[0], ZKP_EXCLUSIVE, &view);
		ok(!view.next, "a holder is not next");
		zkp_look(mixed, 6, mixed[0], ZKP_EXCLUSIVE, &view);
		ok(!view.next, "nor is one behind several");
		zkp_look(writer, 2, writer[1], ZKP_EXCLUSIVE, &view);
		ok(!view.next, "a Curator writer may leave a reader behind");
		zkp_look(late, 2, late[1], ZKP_EXCLUSIVE, &view);
		ok(!view.next, "near the wrap, numbers promise nothing");

		zkp_look(strangers, 3, "_c_x-lock-0000000001", ZKP_EXCLUSIVE, &view);
		ok(!view.self_seen, "a list without us says so");
	}
}

int
main(void)
{
	test_names();
	test_order();
	test_queue();
	printf("1..%d\n", ntests);
	return nfailed != 0;
}

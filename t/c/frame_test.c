/*-------------------------------------------------------------------------
 *
 * frame_test.c
 *	  Answers of every kind, sound and damaged, without a server.  Prints TAP.
 *
 *		frame_test [SEED]
 *
 * What frame_check.c accepts is read here the way the client library reads it: that
 * must neither go beyond the end of the answer nor fail one of its assertions.
 *
 *-------------------------------------------------------------------------
 */
#include "unit.h"
#include "zk/frame_check.c"

#define MAX_OPS		6
#define MAX_FRAME	1024

/* The requested name of a created node, which gets a number appended */
#define ASKED		"/zklock/a/_c_0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1-lock-"
#define CREATED		ASKED "0000000017"

bool
zks_has_mutex(ZkSession *s)
{
	(void) s;
	return true;
}

static char asked_name[] = ASKED;
static unsigned char frame[MAX_FRAME];
static int	end;

static void
put(int32_t number)
{
	number = (int32_t) htonl((uint32_t) number);
	memcpy(frame + end, &number, 4);
	end += 4;
}

static void
put_header(int32_t type, bool done, int32_t error)
{
	put(type);
	frame[end++] = done;
	put(error);
}

static void
put_length(void)
{
	int			all = end;

	end = 0;
	put(all - 4);
	end = all;
}

static void
put_string(const char *string)
{
	int			length = (int) strlen(string);

	put(length);
	memcpy(frame + end, string, length);
	end += length;
}

static void
put_stat(void)
{
	for (int i = 0; i < STAT_BYTES / 4; i++)
		put(i);
}

static void
put_reply_header(int32_t error)
{
	end = 4;
	put(77);
	put(0);
	put(78);
	put(error);
}

/* ZooKeeper's answer that all was done, or that one operation was refused */
static void
put_multi(const ZkRequest *r, int refused)
{
	put_reply_header(ZOK);
	for (int i = 0; i < r->nops; i++)
	{
		if (refused >= 0)
		{
			int32_t		error = i < refused ? ZOK : i > refused ? ZRUNTIMEINCONSISTENCY : ZNONODE;

			put_header(-1, false, error);
			put(error);
			continue;
		}
		put_header(r->ops[i].type, false, 0);
		if (r->ops[i].type == ZOO_CREATE_OP)
			put_string(CREATED);
		else if (r->ops[i].type == ZOO_SETDATA_OP)
			put_stat();
	}
	put_header(-1, true, -1);
	put_length();
}

/* An answer as the library reads it, which trusts what it reads */
typedef struct Reader
{
	const unsigned char *bytes;
	int			size;
	int			at;
	int32_t		n;				/* the last number */
} Reader;

static bool
take(Reader *r)
{
	if (r->at + 4 > r->size)
		return false;
	memcpy(&r->n, r->bytes + r->at, 4);
	r->n = (int32_t) ntohl((uint32_t) r->n);
	r->at += 4;
	return true;
}

static bool
take_bytes(Reader *r, int n)
{
	r->at += n;
	return n >= 0 && r->at <= r->size;
}

static bool
take_string(Reader *r)
{
	return take(r) && r->n <= r->size - r->at && take_bytes(r, r->n);
}

/* False where it would read beyond the end of a multi's answer, or fail an assertion */
static bool
library_survives(Reader *in, const ZkRequest *r)
{
	int			entries = 0;

	in->at = 16;
	if (!take(in))
		return false;
	if (in->n != 0)
		return true;			/* it reads no further */
	for (;;)
	{
		int32_t		type;

		if (!take(in))
			return false;
		type = in->n;
		if (!take_bytes(in, 1))
			return false;
		if (in->bytes[in->at - 1] != 0)
			return take(in) && entries == r->nops;	/* otherwise some stay unanswered */
		if (!take(in) || entries == r->nops)
			return false;
		if (type == -1 ? !take(in) :
			r->ops[entries].type == ZOO_CREATE_OP ? !take_string(in) :
			r->ops[entries].type == ZOO_SETDATA_OP && !take_bytes(in, STAT_BYTES))
			return false;
		entries++;
	}
}

/*
 * The same for an answer to one request: false where the library would use
 * uninitialized data, or return an impossible name
 */
static bool
library_can_read(Reader *in, const ZkRequest *r)
{
	in->at = BODY_AT;
	switch (r->op)
	{
		case ZOO_EXISTS_OP:
		case ZOO_SETDATA_OP:
			return take_bytes(in, STAT_BYTES);
		case ZOO_CREATE2_OP:
			return take_string(in) && in->n >= (int32_t) strlen(ASKED) &&
				memcmp(in->bytes + in->at - in->n, ASKED, strlen(ASKED)) == 0 && take_bytes(in, STAT_BYTES);
		case ZOO_CREATE_CONTAINER_OP:
		case ZOO_SYNC_OP:
			return take_string(in);
		case ZOO_GETDATA_OP:
			return take(in) && (in->n == -1 || (in->n <= in->size - in->at && take_bytes(in, in->n))) &&
				take_bytes(in, STAT_BYTES);
		case ZOO_GETCHILDREN_OP:
			if (!take(in))
				return false;
			for (int32_t left = in->n; left > 0; left--)
			{
				if (!take_string(in) || in->n == 0)
					return false;
			}
			return true;
		default:
			return true;
	}
}

/* The answer is in memory that ends exactly where it does */
static bool
passes(const ZkRequest *r, bool *survives)
{
	unsigned char *bytes = malloc(end > 0 ? end : 1);
	Reader		in = {.bytes = bytes,.size = end};
	bool		multi = r->op == ZOO_MULTI_OP;
	bool		result;

	memcpy(bytes, frame, end);
	result = multi ? walk_multi(bytes, end, r) : is_sound_answer(bytes, end, r);
	*survives = multi ? library_survives(&in, r) : library_can_read(&in, r);
	free(bytes);
	return result;
}

static void
damage(void)
{
	int			at = 4 + below(end - 4);
	int			n;

	switch (below(7))
	{
		case 0:
			frame[at] = (unsigned char) below(256);
			break;
		case 1:
			frame[at] ^= 1 << below(8);
			break;
		case 2:					/* truncated */
			end = at;
			break;
		case 3:					/* extended */
			for (n = 1 + below(20); n > 0; n--)
				frame[end++] = (unsigned char) (below(2) == 0 ? 0 : below(256));
			break;
		case 4:					/* something removed */
			n = 1 + below(20);
			if (at + n > end)
				n = end - at;
			memmove(frame + at, frame + at + n, end - at - n);
			end -= n;
			break;
		case 5:					/* something repeated */
			n = 1 + below(20);
			if (at + n > end)
				n = end - at;
			memmove(frame + at + n, frame + at, end - at);
			end += n;
			break;
		case 6:					/* a number changed */
			if (at + 4 > end)
				break;
			n = end;
			end = at;
			put(below(3) == 0 ? -1 : below(2) == 0 ? INT32_MAX : below(64));
			end = n;
			break;
	}
}

/*
 * Answers to one request
 */

static const int kinds[] = {
	ZOO_EXISTS_OP, ZOO_SETDATA_OP, ZOO_CREATE2_OP, ZOO_CREATE_CONTAINER_OP, ZOO_SYNC_OP,
	ZOO_GETDATA_OP, ZOO_GETCHILDREN_OP, ZOO_DELETE_OP, ZOO_REMOVE_WATCHES
};

#define NKINDS	((int) (sizeof(kinds) / sizeof(kinds[0])))

static void
put_one(int op)
{
	put_reply_header(ZOK);
	switch (op)
	{
		case ZOO_CREATE2_OP:
			put_string(CREATED);
			put_stat();
			break;
		case ZOO_CREATE_CONTAINER_OP:
		case ZOO_SYNC_OP:
			put_string(ASKED);
			break;
		case ZOO_GETDATA_OP:
			put_string("hello");
			put_stat();
			break;
		case ZOO_GETCHILDREN_OP:
			put(3);
			put_string("a");
			put_string("b");
			put_string("c");
			break;
		case ZOO_EXISTS_OP:
		case ZOO_SETDATA_OP:
			put_stat();
			break;
	}
	put_length();
}

static zoo_op_t ops[MAX_OPS];
static ZkRequest multi = {.op = ZOO_MULTI_OP,.ops = ops};

/* As many of multis as of all others */
static void
test_damaged(void)
{
	static const int types[] = {ZOO_CREATE_OP, ZOO_DELETE_OP, ZOO_CHECK_OP, ZOO_SETDATA_OP};
	bool		accepted = true;
	bool		safe = true;
	bool		survives;
	long		npassed = 0;

	for (int round = 0; round < 600000; round++)
	{
		ZkRequest	one = {.op = kinds[below(NKINDS)],.name = asked_name};
		ZkRequest  *r = round % 2 == 0 ? &multi : &one;

		if (r == &multi)
		{
			multi.nops = 1 + below(MAX_OPS);
			for (int i = 0; i < multi.nops; i++)
				ops[i] = (zoo_op_t)
				{
					.type = types[below(4)],.create_op = {.buf = asked_name}
				};
			put_multi(&multi, below(2) == 0 ? below(multi.nops) : -1);
		}
		else
			put_one(one.op);
		accepted &= passes(r, &survives) && survives;
		for (int i = 1 + below(3); i > 0 && end > 24 && end < MAX_FRAME - 100; i--)
			damage();
		if (r == &one && end < BODY_AT)
			continue;
		put_length();
		if (passes(r, &survives))
		{
			npassed++;
			safe &= survives;
		}
	}
	ok(accepted, "ZooKeeper's answers are accepted");
	ok(safe, "damaged ones that the library cannot read are not");
	printf("# %ld damaged answers passed\n", npassed);
}

/* Overwrites what was put there with this number */
static void
set(int at, int32_t number)
{
	int			saved = end;

	end = at;
	put(number);
	end = saved;
}

static void
test_names(void)
{
	static const char *const names[] = {
		ASKED, CREATED, ASKED "-2147483648", NULL,
		"", "/", "/zklock/a/x", "/zklock/b/_c_lock-0000000017", "x" CREATED,
		CREATED "00", ASKED "0000 00017", ASKED "00000000\n7", ASKED "17/x", NULL
	};
	ZkRequest	r = {.op = ZOO_CREATE2_OP,.name = asked_name};
	bool		good = true;
	bool		survives;
	bool		expected = true;

	for (int i = 0; names[i] != NULL || expected; i++)
	{
		if (names[i] == NULL)
		{
			expected = false;
			continue;
		}
		put_reply_header(ZOK);
		put_string(names[i]);
		put_stat();
		put_length();
		good &= passes(&r, &survives) == expected;
	}
	ok(good, "a created node has the requested name and a number");
}

static void
test_numbers(void)
{
	ZkRequest	list = {.op = ZOO_GETCHILDREN_OP};
	ZkRequest	data = {.op = ZOO_GETDATA_OP};
	bool		good = true;
	bool		survives;

	for (int32_t n = -3; n < 100; n++)
	{
		put_one(ZOO_GETCHILDREN_OP);
		set(BODY_AT, n);
		good &= passes(&list, &survives) == (n >= 0 && n <= 3);
		put_one(ZOO_GETCHILDREN_OP);
		set(BODY_AT + 4, n);
		good &= passes(&list, &survives) == (n == 1);
		put_one(ZOO_GETDATA_OP);
		set(BODY_AT, n);
		good &= passes(&data, &survives) == (n >= -1 && n <= 5);
	}
	ok(good, "impossible counts and lengths are refused");
}

/* Of a long answer only the head is present */
static void
test_long(void)
{
	static const struct
	{
		int			op;
		int32_t		length;
		int32_t		error;
		int32_t		n;
		ZkFrameVerdict verdict;
	}			cases[] =
	{
		{ZOO_GETCHILDREN_OP, 8000, ZOK, (8000 - 20) / 4, FRAME_READ},
		{ZOO_GETCHILDREN_OP, 8000, ZOK, (8000 - 20) / 4 + 1, FRAME_REJECT},
		{ZOO_GETCHILDREN_OP, 8000, ZOK, -1, FRAME_REJECT},
		{ZOO_GETCHILDREN_OP, 8000, ZOK, INT32_MAX, FRAME_REJECT},
		{ZOO_GETCHILDREN_OP, 8000, ZNONODE, 1, FRAME_REJECT},
		{ZOO_GETCHILDREN_OP, LONGEST_ANSWER, ZOK, 1000, FRAME_READ},
		{ZOO_GETCHILDREN_OP, LONGEST_ANSWER + 1, ZOK, 1000, FRAME_TOO_LARGE},
		{ZOO_GETDATA_OP, 8000, ZOK, 8000 - 16 - 4 - 68, FRAME_READ},
		{ZOO_GETDATA_OP, 8000, ZOK, 8000 - 16 - 4 - 67, FRAME_REJECT},
		{ZOO_GETDATA_OP, 8000, ZOK, -1, FRAME_READ},
		{ZOO_GETDATA_OP, 8000, ZOK, -2, FRAME_REJECT},
		{ZOO_GETDATA_OP, LONGEST_FRAME, ZOK, 8000, FRAME_TOO_LARGE},
		{ZOO_CREATE2_OP, 8000, ZOK, 100, FRAME_REJECT},
		{ZOO_EXISTS_OP, 8000, ZOK, 100, FRAME_REJECT},
		{ZOO_DELETE_OP, 8000, ZOK, 100, FRAME_REJECT},
	};
	bool		good = true;

	for (int i = 0; i < (int) (sizeof(cases) / sizeof(cases[0])); i++)
	{
		ZkRequest	r = {.op = cases[i].op};
		ZkFrameVerdict verdict;

		put_reply_header(cases[i].error);
		put(cases[i].n);
		verdict = check_long_answer(frame, cases[i].length, end, &r);
		good &= verdict == cases[i].verdict && r.too_large == (verdict == FRAME_TOO_LARGE);
		good &= check_long_answer(frame, cases[i].length, end - 1, &r) !=
			(cases[i].op == ZOO_GETCHILDREN_OP || cases[i].op == ZOO_GETDATA_OP ? FRAME_READ : FRAME_WAIT);
	}
	ok(good, "a long answer is judged by its head, once that is there");
}

static void
test_multi(void)
{
	bool		vague = false;
	bool		survives;

	/* a correct refusal: only the header */
	put_reply_header(ZSESSIONMOVED);
	put_length();
	ok(passes(&multi, &survives), "an error for the whole multi");
	put_header(-1, true, -1);
	put_length();
	ok(!passes(&multi, &survives), "but not with anything after it");

	/* the library would take it for success */
	multi.nops = 2;
	ops[0].type = ops[1].type = ZOO_DELETE_OP;
	for (int i = 0; i < 3; i++)
	{
		int32_t		error = i == 0 ? ZRUNTIMEINCONSISTENCY : i == 1 ? ZOK : ZNONODE;

		put_reply_header(ZOK);
		if (i < 2)
		{
			put_header(-1, false, error);
			put(error);
		}
		else
			put_header(ZOO_DELETE_OP, false, 0);
		put_header(-1, false, error);
		put(error);
		put_header(-1, true, -1);
		put_length();
		vague |= passes(&multi, &survives);
	}
	ok(!vague, "no refusal without a reason, and no partial one");
}

int
main(int argc, char **argv)
{
	begin_tests(argc, argv);
	test_damaged();
	test_names();
	test_numbers();
	test_long();
	test_multi();
	return end_tests();
}

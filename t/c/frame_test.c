/*-------------------------------------------------------------------------
 *
 * frame_test.c
 *	  Answers of every kind, sound and damaged, without a server.  Prints TAP.
 *
 *		frame_test [SEED]
 *
 * Each is read here the way the client library reads it.  frame_check.c must accept
 * those, and only those, with which that neither goes beyond the end of the answer nor
 * fails one of the library's assertions nor returns what cannot be.
 *
 *-------------------------------------------------------------------------
 */
#include "unit.h"
#include "zk/frame_check.c"

#define MAX_OPS		6
#define MAX_FRAME	1024

/* The requested name of a created node, which gets a number appended */
#define ASKED		"/zklock/a/_c_0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1-lock-"

/*
 * What an answer has: a Stat, the name of a node that was created, another string,
 * data, or a list.  Those of multis come first.
 */
static const struct
{
	int			op;
	const char *parts;
}			kinds[] =
{
	{ZOO_CREATE_OP, "n"},
	{ZOO_CHECK_OP, ""},
	{ZOO_DELETE_OP, ""},
	{ZOO_SETDATA_OP, "S"},
	{ZOO_EXISTS_OP, "S"},
	{ZOO_CREATE2_OP, "nS"},
	{ZOO_CREATE_CONTAINER_OP, "s"},
	{ZOO_SYNC_OP, "s"},
	{ZOO_GETDATA_OP, "dS"},
	{ZOO_GETCHILDREN_OP, "l"},
	{ZOO_REMOVE_WATCHES, ""},
};

#define NKINDS	((int) (sizeof(kinds) / sizeof(kinds[0])))
#define NMULTI	4

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

/* ZooKeeper appends ten digits, or a minus sign and nine or ten */
static void
put_name(void)
{
	static const char *const wrong[] = {
		"", "/", "/zklock/a/x", "/zklock/b/_c_lock-0000000017", "x" ASKED "0000000017", ASKED "000000001700",
		ASKED "0000 00017", ASKED "00000000\n7", ASKED "17/x", ASKED "0-00000017"
	};
	char		name[sizeof(ASKED) + 12];

	snprintf(name, sizeof(name), ASKED "%010d", (int) random_state);
	put_string(below(3) > 0 ? name : wrong[below((int) (sizeof(wrong) / sizeof(wrong[0])))]);
}

static void
put_parts(const char *parts)
{
	for (; *parts != '\0'; parts++)
	{
		if (*parts == 'n')
			put_name();
		else if (*parts == 'l')
		{
			int			n = below(4);

			put(n);
			while (n-- > 0)
				put_string("abc" + below(3));
		}
		else if (*parts != 'S')
			put_string("hello");
		for (int i = 0; *parts == 'S' && i < STAT_BYTES / 4; i++)
			put(i);
	}
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

static zoo_op_t ops[MAX_OPS];

/*
 * ZooKeeper's answer to a multi is that all was done, or that one operation was
 * refused.  Here it may also be a mixture, or without a reason, which the library would
 * take for success; or only an error in its header.
 */
static void
put_multi(ZkRequest *r)
{
	static const int32_t errors[] = {ZRUNTIMEINCONSISTENCY, ZOK, ZNONODE};
	int			way = below(5);
	int			refused;

	r->nops = 1 + below(MAX_OPS);
	refused = below(r->nops);
	put_reply_header(way == 0 ? ZSESSIONMOVED : ZOK);
	if (way == 0 && below(2) == 0)
		return;
	for (int i = 0; i < r->nops; i++)
	{
		int			kind = below(NMULTI);
		int32_t		error = way == 1 ? errors[below(3)] : i < refused ? ZOK : i > refused ? ZRUNTIMEINCONSISTENCY : ZNONODE;

		ops[i] = (zoo_op_t)
		{
			.type = kinds[kind].op,.create_op = {.buf = asked_name}
		};
		if (way == 4 || (way == 3 && below(2) == 0))
		{
			put_header(ops[i].type, false, 0);
			put_parts(kinds[kind].parts);
			continue;
		}
		put_header(-1, false, error);
		put(error);
	}
	put_header(-1, true, -1);
}

/* An answer as the library reads it */
typedef struct Reader
{
	const unsigned char *bytes;
	int			size;
	int			at;
	int32_t		n;				/* the last number */
} Reader;

static bool
take_bytes(Reader *r, int n)
{
	if (n < 0 || n > r->size - r->at)
		return false;
	r->at += n;
	return true;
}

static bool
take(Reader *r)
{
	if (!take_bytes(r, 4))
		return false;
	memcpy(&r->n, r->bytes + r->at - 4, 4);
	r->n = (int32_t) ntohl((uint32_t) r->n);
	return true;
}

static bool
take_string(Reader *r)
{
	return take(r) && r->n > 0 && take_bytes(r, r->n);
}

/* The requested name, and a number */
static bool
take_name(Reader *r)
{
	char		name[MAX_FRAME] = "";
	const char *number = name + strlen(ASKED);

	if (!take_string(r))
		return false;
	memcpy(name, r->bytes + r->at - r->n, r->n);
	if (strncmp(name, ASKED, strlen(ASKED)) != 0 || (int) strlen(name) != r->n || strlen(number) > ZKR_NUMBER_LEN)
		return false;
	number += *number == '-';
	return number[strspn(number, "0123456789")] == '\0';
}

static bool
take_parts(Reader *in, int op)
{
	const char *parts = "";

	for (int i = 0; i < NKINDS; i++)
	{
		if (kinds[i].op == op)
			parts = kinds[i].parts;
	}
	for (; *parts != '\0'; parts++)
	{
		if (*parts == 'n' ? !take_name(in) :
			*parts == 's' ? !take_string(in) :
			*parts == 'd' ? !take(in) || (in->n != -1 && !take_bytes(in, in->n)) :
			*parts == 'S' ? !take_bytes(in, STAT_BYTES) :
			!take(in) || in->n < 0)
			return false;
		for (int32_t left = *parts == 'l' ? in->n : 0; left > 0; left--)
		{
			if (!take_string(in))
				return false;
		}
	}
	return true;
}

/* A multi's.  Where one operation was not done none was, and one says why. */
static bool
take_multi(Reader *in, const ZkRequest *r)
{
	int			nerrors = 0;
	bool		reason = false;

	in->at = ERROR_AT;
	(void) take(in);
	for (int i = 0; in->n == 0 && i <= r->nops; i++)
	{
		int32_t		type;

		if (!take(in))
			return false;
		type = in->n;
		if (!take_bytes(in, 1) || (in->bytes[in->at - 1] != 0) != (i == r->nops) || !take(in))
			return false;
		if (i == r->nops)
			break;
		if (type == -1)
		{
			if (!take(in))
				return false;
			nerrors++;
			reason |= in->n != ZOK && in->n != ZRUNTIMEINCONSISTENCY;
			in->n = 0;
		}
		else if (type != r->ops[i].type || !take_parts(in, type))
			return false;
		in->n = 0;
	}
	return in->at == in->size && (nerrors == 0 || (nerrors == r->nops && reason));
}

/* Whether it is accepted if that may be, and only then; it is in memory that ends exactly where it does */
static bool
is_judged(const ZkRequest *r, bool *accepted)
{
	unsigned char *bytes = malloc(end);
	Reader		in = {.bytes = bytes,.size = end,.at = BODY_AT};
	bool		multi = r->op == ZOO_MULTI_OP;

	memcpy(bytes, frame, end);
	*accepted = multi ? walk_multi(bytes, end, r) : is_sound_answer(bytes, end, r);
	free(bytes);
	in.bytes = frame;
	return *accepted == (multi ? take_multi(&in, r) : take_parts(&in, r->op));
}

static void
damage(void)
{
	int			at = 4 + below(end - 4);
	int			left = end - at;
	int			n = 1 + below(20);

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
			for (; n > 0; n--)
				frame[end++] = (unsigned char) (below(2) == 0 ? 0 : below(256));
			break;
		case 4:					/* something removed */
			n = n < left ? n : left;
			memmove(frame + at, frame + at + n, left - n);
			end -= n;
			break;
		case 5:					/* something repeated */
			n = n < left ? n : left;
			memmove(frame + at + n, frame + at, left);
			end += n;
			break;
		case 6:					/* a number changed */
			if (left < 4)
				break;
			end = at;
			put(below(3) == 0 ? -1 : below(2) == 0 ? INT32_MAX : below(64));
			end = at + left;
			break;
	}
}

/* As many of multis as of all others */
static void
test_damaged(void)
{
	bool		good[2] = {true, true};
	long		naccepted[2] = {0, 0};

	for (int round = 0; round < 600000; round++)
	{
		int			kind = below(NKINDS - 1) + 1;
		ZkRequest	r = {.op = kinds[kind].op,.name = asked_name,.ops = ops};
		bool		accepted;

		if (round % 2 == 0)
		{
			r.op = ZOO_MULTI_OP;
			put_multi(&r);
		}
		else
		{
			put_reply_header(ZOK);
			put_parts(kinds[kind].parts);
		}
		for (int damaged = 0; damaged < 2; damaged++)
		{
			for (int i = damaged * (1 + below(3)); i > 0 && end > 24 && end < MAX_FRAME - 100; i--)
				damage();
			if (end < BODY_AT)
				continue;
			put_length();
			good[damaged] &= is_judged(&r, &accepted);
			naccepted[damaged] += accepted;
		}
	}
	ok(good[0], "answers are accepted that ZooKeeper may give, and the library can read");
	ok(good[1], "and damaged ones if it can read them");
	printf("# %ld accepted, and %ld damaged\n", naccepted[0], naccepted[1]);
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

int
main(int argc, char **argv)
{
	begin_tests(argc, argv);
	test_damaged();
	test_long();
	return end_tests();
}

/*-------------------------------------------------------------------------
 *
 * frame_test.c
 *	  Answers to a multi, sound and damaged, without a server.  Prints TAP.
 *
 *		frame_test [SEED]
 *
 * What frame.c lets pass is read here as the client library reads it: that
 * may neither go beyond the answer's end nor come to one of its assertions.
 *
 *-------------------------------------------------------------------------
 */
#include "frame.c"

#include <stdio.h>

#define MAX_OPS		6
#define MAX_FRAME	1024

const ZkRequest *
zkr_next_locked(ZkSession *s)
{
	(void) s;
	return NULL;
}

static uint32_t seed = 2463534242u;

static int
below(int n)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	seed ^= seed << 5;
	return (int) (seed % (unsigned) n);
}

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

/* As ZooKeeper says that all was done, or that one was refused */
static void
put_answer(const ZkRequest *r, int refused)
{
	end = 4;
	put(77);
	put(0);
	put(78);
	put(0);
	for (int i = 0; i < r->nops; i++)
	{
		if (refused >= 0)
		{
			int32_t		error = i < refused ? ZOK : i > refused ? ZRUNTIMEINCONSISTENCY : ZNONODE;

			put_header(-1, false, error);
			put(error);
			continue;
		}
		put_header(r->op_types[i], false, 0);
		if (r->op_types[i] == ZOO_CREATE_OP)
		{
			int			length = below(30);

			put(length);
			for (int k = 0; k < length; k++)
				frame[end++] = 'a';
		}
	}
	put_header(-1, true, -1);
	put_length();
}

/*
 * As the library does it, which believes all: false where it would read what
 * is not there, or assert
 */
static bool
library_survives(const unsigned char *bytes, int size, const ZkRequest *r)
{
	int			at = 20;
	int			entries = 0;
	int32_t		n;

#define TAKE() \
	(at + 4 > size ? 0 : (memcpy(&n, bytes + at, 4), n = (int32_t) ntohl((uint32_t) n), at += 4, 1))
	at = 16;
	if (!TAKE())
		return false;
	if (n != 0)
		return true;			/* it looks no further */
	for (;;)
	{
		int32_t		type;

		if (!TAKE())
			return false;
		type = n;
		if (at >= size)
			return false;
		if (bytes[at++] != 0)
			return TAKE() && entries == r->nops;	/* or some stay unanswered */
		if (!TAKE() || entries == r->nops)
			return false;
		if (type == -1)
		{
			if (!TAKE())
				return false;
		}
		else if (r->op_types[entries] == ZOO_CREATE_OP)
		{
			if (!TAKE() || n < 0 || n > size - at)
				return false;
			at += n;
		}
		entries++;
	}
#undef TAKE
}

/* in memory that ends where the answer does */
static bool
passes(const ZkRequest *r, bool *survives)
{
	unsigned char *bytes = malloc(end > 0 ? end : 1);
	bool		result;

	memcpy(bytes, frame, end);
	result = walk_multi(bytes, end, r);
	*survives = library_survives(bytes, end, r);
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
		case 2:					/* cut */
			end = at;
			break;
		case 3:					/* longer */
			for (n = 1 + below(20); n > 0; n--)
				frame[end++] = (unsigned char) (below(2) == 0 ? 0 : below(256));
			break;
		case 4:					/* something is missing */
			n = 1 + below(20);
			if (at + n > end)
				n = end - at;
			memmove(frame + at, frame + at + n, end - at - n);
			end -= n;
			break;
		case 5:					/* something is there twice */
			n = 1 + below(20);
			if (at + n > end)
				n = end - at;
			memmove(frame + at + n, frame + at, end - at);
			end += n;
			break;
		case 6:					/* a number is a lie */
			if (at + 4 > end)
				break;
			n = end;
			end = at;
			put(below(3) == 0 ? -1 : below(2) == 0 ? INT32_MAX : below(64));
			end = n;
			break;
	}
}

static int	ntests;
static int	nfailed;

static void
ok(bool passed, const char *what)
{
	printf("%sok %d - %s\n", passed ? "" : "not ", ++ntests, what);
	nfailed += !passed;
}

int
main(int argc, char **argv)
{
	static const int types[] = {ZOO_CREATE_OP, ZOO_DELETE_OP, ZOO_CHECK_OP};
	int			op_types[MAX_OPS];
	ZkRequest	r = {.op_types = op_types};
	bool		accepted = true;
	bool		safe = true;
	bool		vague = false;
	bool		survives;
	long		npassed = 0;

	if (argc > 1)
		seed = (uint32_t) atoi(argv[1]) * 2654435761u | 1;
	for (int round = 0; round < 300000; round++)
	{
		r.nops = 1 + below(MAX_OPS);
		for (int i = 0; i < r.nops; i++)
			op_types[i] = types[below(3)];
		put_answer(&r, below(2) == 0 ? below(r.nops) : -1);
		accepted &= passes(&r, &survives) && survives;

		for (int i = 1 + below(3); i > 0 && end > 24 && end < MAX_FRAME - 100; i--)
			damage();
		put_length();
		if (passes(&r, &survives))
		{
			npassed++;
			safe &= survives;
		}
	}
	ok(accepted, "what ZooKeeper says is accepted");
	ok(safe, "what the library would not survive is not");
	printf("# %ld of the damaged were let pass\n", npassed);

	/* a whole refusal: nothing but the header */
	end = 4;
	put(77);
	put(0);
	put(78);
	put(ZSESSIONMOVED);
	put_length();
	ok(passes(&r, &survives), "an error for all of it");
	put_header(-1, true, -1);
	put_length();
	ok(!passes(&r, &survives), "but nothing after it");

	/* the library would take it for success */
	r.nops = 2;
	op_types[0] = op_types[1] = ZOO_DELETE_OP;
	for (int error = ZRUNTIMEINCONSISTENCY; error <= ZOK; error += -ZRUNTIMEINCONSISTENCY)
	{
		put_answer(&r, 0);
		end = 20;
		for (int i = 0; i < 2; i++)
		{
			put_header(-1, false, error);
			put(error);
		}
		put_header(-1, true, -1);
		put_length();
		vague |= passes(&r, &survives);
	}
	put_answer(&r, -1);
	end = 20;
	put_header(ZOO_DELETE_OP, false, 0);
	put_header(-1, false, ZNONODE);
	put(ZNONODE);
	put_header(-1, true, -1);
	put_length();
	vague |= passes(&r, &survives);
	ok(!vague, "no refusal without a reason, nor in part");
	printf("1..%d\n", ntests);
	return nfailed != 0;
}

/*-------------------------------------------------------------------------
 *
 * frame_check.c
 *	  Checks what a server sent before the client library reads it.
 *
 * The library trusts its peer: it takes any 41 bytes for an answer to its
 * handshake, allocates whatever a length says (and spins when that fails), and
 * reacts to an unexpected reply with assert(), which would take the whole
 * PostgreSQL cluster through crash recovery.  A wrong port in zklock.hosts is
 * enough.  So the first bytes of each frame are peeked at, and a peer that
 * does not speak ZooKeeper's protocol is dropped.
 *
 * Nor does it check whether it could read an answer: one that is too short
 * leaves it with uninitialized pointers, which it passes to us and frees.  So
 * the answer to each kind of request must be as long as it needs; newer
 * servers may send more.  An answer with an error in its header is read no
 * further.
 *
 * The library reads at most one frame in a call.  A short frame is held back
 * until it is complete, so that after the call we are between two frames
 * again. A long one can only be the answer to a request, and those are
 * counted.  The answer to a multi is checked throughout once it is complete,
 * since the library has assertions for that, too.
 *
 * Only lists and data may be longer than what is held back, and their heads
 * tell whether the library may read them.  Data has a length, and what follows
 * it has a fixed one.  The count of a list must be possible; damage further
 * down leaves NULL in place of a name (operation.c checks that).  Checking all
 * of it while it arrives would not help: the library may read more in one call
 * than we have seen before.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <zookeeper/proto.h>

#include "frame_check.h"
#include "multi.h"

/*
 * The answer to a handshake, in its old and new form, has a length in this
 * range
 */
#define HANDSHAKE_MIN		36
#define HANDSHAKE_MAX		37

#define REPLY_HEADER		16	/* xid, zxid, error */
#define EVENT_HEADER		(REPLY_HEADER + 12) /* type, state, length of the
												 * path */
#define SHORT_FRAME			4096
#define MULTI_HEADER		9	/* type, done, error */
#define MULTI_ERROR			(-1)	/* the type of a result that is an error */
#define MULTI_MAX			(REPLY_HEADER + MULTI_HEADER + ZKN_MULTI_BYTES)

/* The longest accepted answer; the library would allocate all of it at once */
#define LONGEST_ANSWER		(8 * 1024 * 1024)
#define LONGEST_FRAME		(64 * 1024 * 1024)

/* Offsets in a frame, including its length */
#define ERROR_AT			(4 + REPLY_HEADER - 4)
#define BODY_AT				(4 + REPLY_HEADER)

#define STAT_BYTES			68
#define SHORTEST_STRING		4	/* only its length */

/* Frames that answer no request */
#define XID_WATCH_EVENT		(-1)
#define XID_PING			(-2)
#define XID_AUTH			(-4)
#define XID_SET_WATCHES		(-8)

static ZkFrameVerdict
check_handshake(int32_t length, int available)
{
	if (length < HANDSHAKE_MIN || length > HANDSHAKE_MAX)
		return FRAME_REJECT;
	return available >= length + 4 ? FRAME_READ : FRAME_WAIT;
}

/* The number at this offset, or -1 if the answer ends before */
static int32_t
number_at(const unsigned char *frame, int at, int end)
{
	int32_t		number;

	if (at + (int) sizeof(number) > end)
		return -1;
	memcpy(&number, frame + at, sizeof(number));
	return (int32_t) ntohl((uint32_t) number);
}

/* Whether a complete one tells of a watch; events of the session are the library's own */
static bool
is_sound_event(const unsigned char *frame, int32_t length)
{
	int			end = length + 4;
	int32_t		path_length = number_at(frame, EVENT_HEADER, end);

	return number_at(frame, EVENT_HEADER - 8, end) > 0 &&
		path_length > 0 && path_length == length - EVENT_HEADER;
}

/*
 * Where the string at this offset ends, or -1 if it has fewer than this many
 * bytes
 */
static int
string_end(const unsigned char *frame, int at, int end, int shortest)
{
	int32_t		length = number_at(frame, at, end);

	return length >= shortest && length <= end - at - 4 ? at + 4 + length : -1;
}

/*
 * Where the path of a created node ends that begins at this offset, or -1 if it is
 * not the requested one, with the number that ZooKeeper appends to a sequential
 * node's name.
 */
static int
created_end(const unsigned char *frame, int at, int end, const char *asked)
{
	int			asked_len = (int) strlen(asked);
	int			number = at + 4 + asked_len;
	int			path_end = string_end(frame, at, end, 1);

	if (path_end < number || memcmp(frame + at + 4, asked, asked_len) != 0 ||
		path_end - number > ZKR_NUMBER_LEN)
		return -1;
	for (int i = number; i < path_end; i++)
	{
		if ((frame[i] < '0' || frame[i] > '9') && !(frame[i] == '-' && i == number))
			return -1;
	}
	return path_end;
}

/* Where data ends, with what follows it; that of a node without any has the length -1 */
static int
data_end(const unsigned char *frame, int at, int end)
{
	int			data = number_at(frame, at, end) == -1 ? at + 4 : string_end(frame, at, end, 0);

	return data > 0 ? data + STAT_BYTES : -1;
}

static bool
is_possible_list(const unsigned char *frame, int end)
{
	int32_t		count = number_at(frame, BODY_AT, end);

	return count >= 0 && count <= (end - BODY_AT - 4) / SHORTEST_STRING;
}

/* Of a list that is complete */
static int
list_end(const unsigned char *frame, int end)
{
	int			at = is_possible_list(frame, end) ? BODY_AT + 4 : -1;

	for (int32_t left = number_at(frame, BODY_AT, end); left > 0 && at > 0; left--)
		at = string_end(frame, at, end, 1);
	return at;
}

/*
 * Where the result of such an operation ends that begins at this offset, as the
 * library assumes, which may be behind the answer's end; or -1 if it cannot be one.
 * asked: the path of what was to be created
 */
static int
result_end(const unsigned char *frame, int at, int end, int op, const char *asked)
{
	switch (op)
	{
		case ZOO_EXISTS_OP:
		case ZOO_SETDATA_OP:
			return at + STAT_BYTES;
		case ZOO_CREATE_OP:
			return created_end(frame, at, end, asked);
		case ZOO_CREATE2_OP:
			at = created_end(frame, at, end, asked);
			return at > 0 ? at + STAT_BYTES : -1;
		case ZOO_CREATE_CONTAINER_OP:
		case ZOO_SYNC_OP:
			return string_end(frame, at, end, 1);
		case ZOO_GETDATA_OP:
			return data_end(frame, at, end);
		case ZOO_GETCHILDREN_OP:
			return list_end(frame, end);
		case ZOO_CHECK_OP:
		case ZOO_DELETE_OP:
		case ZOO_REMOVE_WATCHES:
			return at;
		default:
			return -1;			/* we make no other requests */
	}
}

/* Whether the answer to this request, without error, is as long as that */
static bool
is_sound_answer(const unsigned char *frame, int end, const ZkRequest *r)
{
	int			needed = result_end(frame, BODY_AT, end, r->op, r->name);

	return needed > 0 && needed <= end;
}

/*
 * Whether the answer to a multi has the requested results.  An error in the
 * header stands for all of them.  Otherwise either everything was done, or
 * nothing was, and one of the results gives the reason: without that the
 * library would report success.
 */
static bool
walk_multi(const unsigned char *frame, int end, const ZkRequest *r)
{
	int			at = BODY_AT;
	int			nerrors = 0;
	bool		has_reason = false;

	if (number_at(frame, ERROR_AT, end) != 0)
		return at == end;
	for (int i = 0; i <= r->nops; i++)
	{
		int32_t		type = number_at(frame, at, end);

		if (at + MULTI_HEADER > end || (frame[at + 4] != 0) != (i == r->nops))
			return false;
		at += MULTI_HEADER;
		if (i == r->nops)
			break;
		if (type == MULTI_ERROR)
		{
			int32_t		error = number_at(frame, at, end);

			nerrors++;
			has_reason |= error != ZOK && error != ZRUNTIMEINCONSISTENCY;
			at += 4;
		}
		else
			at = type == r->ops[i].type ? result_end(frame, at, end, type, r->ops[i].create_op.buf) : -1;
		if (at < 0)
			return false;
	}
	return at == end && (nerrors == 0 || (nerrors == r->nops && has_reason));
}

static ZkFrameVerdict
check_multi(int sock, const unsigned char *frame, int32_t length, const ZkRequest *r)
{
	int			end = length + 4;
	unsigned char *whole;
	ZkFrameVerdict verdict = FRAME_REJECT;

	if (length > MULTI_MAX)
		return FRAME_REJECT;
	if (length <= SHORT_FRAME)
		return walk_multi(frame, end, r) ? FRAME_READ : FRAME_REJECT;
	whole = malloc(end);
	if (whole == NULL)
		return FRAME_REJECT;	/* there may be memory for the next connection */
	if (recv(sock, whole, end, MSG_PEEK | MSG_DONTWAIT) < end)
		verdict = FRAME_WAIT;
	else if (walk_multi(whole, end, r))
		verdict = FRAME_READ;
	free(whole);
	return verdict;
}

/* A list or data that is not held back: judged by its head */
static ZkFrameVerdict
check_long_answer(const unsigned char *frame, int32_t length, int available, ZkRequest *r)
{
	int			end = length + 4;

	if (r->op != ZOO_GETCHILDREN_OP && r->op != ZOO_GETDATA_OP)
		return FRAME_REJECT;
	if (available < BODY_AT + 4)
		return FRAME_WAIT;
	if (number_at(frame, ERROR_AT, available) != 0)
		return FRAME_REJECT;	/* nothing may follow an error */
	if (r->op == ZOO_GETDATA_OP ? !is_sound_answer(frame, end, r) : !is_possible_list(frame, end))
		return FRAME_REJECT;
	if (length <= LONGEST_ANSWER)
		return FRAME_READ;
	r->too_large = true;
	return FRAME_TOO_LARGE;
}

static ZkFrameVerdict
check_answer(ZkSession *s, const unsigned char *frame, int32_t length, int available)
{
	ZkRequest  *r = TAILQ_FIRST(&s->requests.sent);
	ZkFrameVerdict verdict;

	if (r == NULL)
		return FRAME_REJECT;	/* an answer that was not requested */
	if (r->op == ZOO_MULTI_OP)
		return check_multi(s->sock, frame, length, r);
	if (length <= SHORT_FRAME)
		return number_at(frame, ERROR_AT, available) != 0 ||
			is_sound_answer(frame, length + 4, r) ? FRAME_READ : FRAME_REJECT;
	verdict = check_long_answer(frame, length, available, r);
	if (verdict == FRAME_READ)
		s->frame.long_at = s->requests.replies;
	return verdict;
}

/*
 * Frames that answer no request come first.  Other negative numbers are those of
 * requests: the library counts from the time of day, which exceeds 31 bits in 2038, or
 * after some hundred million requests.  (It would fail on an answer to an auth packet if
 * it sent none.)
 */
static ZkFrameVerdict
check_frame(ZkSession *s, const unsigned char *frame, int32_t length, int available)
{
	bool		sound;

	switch (number_at(frame, 4, available))
	{
		case XID_WATCH_EVENT:
			sound = length <= SHORT_FRAME && is_sound_event(frame, length);
			break;
		case XID_AUTH:
			sound = length == REPLY_HEADER && s->options.ncredentials > 0;
			break;
		case XID_PING:
		case XID_SET_WATCHES:
			sound = length == REPLY_HEADER;
			break;
		default:
			return check_answer(s, frame, length, available);
	}
	return sound ? FRAME_READ : FRAME_REJECT;
}

ZkFrameVerdict
zks_check_frame_locked(ZkSession *s)
{
	unsigned char frame[4 + SHORT_FRAME];	/* or its beginning */
	int32_t		length;
	int			available;
	int			state = zoo_state(s->zh);

	zk_assert(zks_has_mutex(s));
	if (state == ZOO_CONNECTING_STATE)
		return FRAME_READ;		/* only the end of connect() is awaited */

	if (s->frame.long_at == s->requests.replies)
		return FRAME_READ;

	available = (int) recv(s->sock, frame, sizeof(frame), MSG_PEEK | MSG_DONTWAIT);
	if (available < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return FRAME_NONE;
	if (available <= 0)
		return FRAME_READ;		/* the library reports the error */
	if (available < 8)
		return FRAME_WAIT;
	length = number_at(frame, 0, available);
	s->frame.followed = available > 4 && available - 4 > length;

	if (state == ZOO_ASSOCIATING_STATE)
		return check_handshake(length, available);

	if (length < REPLY_HEADER || length > LONGEST_FRAME)
		return FRAME_REJECT;
	if (length <= SHORT_FRAME && available < length + 4)
		return FRAME_WAIT;
	return check_frame(s, frame, length, available);
}

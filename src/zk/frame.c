/*-------------------------------------------------------------------------
 *
 * frame.c
 *	  A look at what a server sent, before the client library reads it.
 *
 * The library believes its peer: it takes any 41 bytes for an answer to its
 * handshake, allocates what a length says (and spins when that fails), and
 * answers a reply to nothing with assert(), which would take the whole
 * PostgreSQL cluster through crash recovery.  A wrong port in zklock.hosts is
 * enough.  So each frame's first bytes are peeked at, and a peer that does
 * not speak ZooKeeper is dropped.
 *
 * Nor does it look whether it could read an answer: what was too short leaves
 * it with pointers that it never set, hands to us, and frees.  So the answer to
 * each kind of request must be as long as it needs; more may come from newer
 * servers.  With an error in its header it is read no further.
 *
 * The library reads at most one frame a call.  A short frame is held back
 * until it has arrived whole, so that after the call we stand between two
 * frames again.  A long one can only be the answer to a request, and those
 * are counted.  The answer to a multi is walked through once it is there in
 * full: the library does so with assert(), too.
 *
 * Only lists and data may be longer than what is held back, and their heads tell
 * whether the library may read them.  Data has a length, and what follows has a
 * fixed one.  Of a list the count must be possible; what is wrong further down
 * leaves NULL in the place of a name (request.c looks).  To walk through it
 * while it arrives would not do: what the library reads in one call may be more
 * than what we have seen before it.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <zookeeper/proto.h>

#include "internal.h"

/* Between these lie the lengths of a handshake's answer, old and new */
#define HANDSHAKE_MIN		36
#define HANDSHAKE_MAX		37

#define REPLY_HEADER		16	/* xid, zxid, error */
#define EVENT_HEADER		(REPLY_HEADER + 12) /* type, state, length of the
												 * path */
#define SHORT_FRAME			4096
#define MULTI_HEADER		9	/* type, done, error */
#define MULTI_ERROR			(-1)	/* the type of a result that is an error */
#define MULTI_MAX			(REPLY_HEADER + MULTI_HEADER + ZKN_MULTI_BYTES)

/* What servers may send; the library would take memory for all of it at once */
#define LONGEST_ANSWER		(8 * 1024 * 1024)
#define LONGEST_FRAME		(64 * 1024 * 1024)

/* Places in a frame, behind its length */
#define ERROR_AT			(4 + REPLY_HEADER - 4)
#define BODY_AT				(4 + REPLY_HEADER)

#define STAT_BYTES			68
#define SHORTEST_STRING		4	/* its length alone */

/* Frames that answer no request */
#define XID_WATCH_EVENT		(-1)
#define XID_PING			(-2)
#define XID_AUTH			(-4)
#define XID_SET_WATCHES		(-8)

void
zks_reset_frame(ZkFrame *frame)
{
	frame->in_long_frame = false;
}

static ZkFrameVerdict
check_handshake(int32_t length, int available)
{
	if (length < HANDSHAKE_MIN || length > HANDSHAKE_MAX)
		return FRAME_REJECT;
	return available >= length + 4 ? FRAME_READ : FRAME_WAIT;
}

/*
 * Other numbers below 0 are those of requests: the library counts from the
 * time of day, which leaves 31 bits in 2038, or after some hundred million
 * requests.
 */
static bool
is_unasked(int32_t xid)
{
	return xid == XID_WATCH_EVENT || xid == XID_PING || xid == XID_AUTH ||
		xid == XID_SET_WATCHES;
}

/* The number at this place, or -1 if the answer ends before */
static int32_t
number_at(const unsigned char *frame, int at, int end)
{
	int32_t		number;

	if (at + (int) sizeof(number) > end)
		return -1;
	memcpy(&number, frame + at, sizeof(number));
	return (int32_t) ntohl((uint32_t) number);
}

/*
 * Whether a frame that answers no request, and is there in full, is what it
 * says.
 * (The library would trip over an answer to an auth packet if it sent none.)
 */
static bool
is_sound_event(const ZkSession *s, const unsigned char *frame, int32_t length, int32_t xid)
{
	int			end = length + 4;
	int32_t		path_length;

	if (xid == XID_PING || xid == XID_SET_WATCHES)
		return length == REPLY_HEADER;
	if (xid == XID_AUTH)
		return length == REPLY_HEADER && s->ncredentials > 0;
	path_length = number_at(frame, EVENT_HEADER, end);
	/* one of the session is the library's own to make */
	return number_at(frame, EVENT_HEADER - 8, end) > 0 &&
		path_length > 0 && path_length == length - EVENT_HEADER;
}

/* Where the string at this place ends, if it has at least this many bytes; or -1 */
static int
string_end(const unsigned char *frame, int at, int end, int shortest)
{
	int32_t		length = number_at(frame, at, end);

	return length >= shortest && length <= end - at - 4 ? at + 4 + length : -1;
}

/*
 * Whether the path of what was created, at this place, is what was asked for,
 * with the number that ZooKeeper appends to a sequential node's name.
 */
static bool
is_path_asked_for(const unsigned char *frame, int at, int path_end, const char *asked)
{
	int			asked_len = (int) strlen(asked);
	int			number = at + 4 + asked_len;

	if (path_end < number || memcmp(frame + at + 4, asked, asked_len) != 0 ||
		path_end - number > ZKR_NUMBER_LEN)
		return false;
	for (int i = number; i < path_end; i++)
	{
		if ((frame[i] < '0' || frame[i] > '9') && !(frame[i] == '-' && i == number))
			return false;
	}
	return true;
}

static bool
is_sound_create2(const unsigned char *frame, int end, const ZkRequest *r)
{
	int			path_end = string_end(frame, BODY_AT, end, 1);

	return path_end > 0 && end - path_end >= STAT_BYTES &&
		is_path_asked_for(frame, BODY_AT, path_end, r->name);
}

/* Those of a node that has none have the length -1 */
static bool
is_sound_data(const unsigned char *frame, int end)
{
	int			room = end - BODY_AT - 4 - STAT_BYTES;

	return room >= 0 && number_at(frame, BODY_AT, end) >= -1 &&
		number_at(frame, BODY_AT, end) <= room;
}

static bool
is_possible_list(const unsigned char *frame, int end)
{
	int32_t		count = number_at(frame, BODY_AT, end);

	return count >= 0 && count <= (end - BODY_AT - 4) / SHORTEST_STRING;
}

/* One that is there in full */
static bool
is_sound_list(const unsigned char *frame, int end)
{
	int			at = BODY_AT + 4;

	if (!is_possible_list(frame, end))
		return false;
	for (int32_t left = number_at(frame, BODY_AT, end); left > 0 && at > 0; left--)
		at = string_end(frame, at, end, 1);
	return at > 0;
}

/* Whether an answer without error, there in full, is as long as the library believes */
static bool
is_sound_answer(const unsigned char *frame, int end, const ZkRequest *r)
{
	switch (r->op)
	{
		case ZOO_EXISTS_OP:
		case ZOO_SETDATA_OP:
			return end - BODY_AT >= STAT_BYTES;
		case ZOO_CREATE2_OP:
			return is_sound_create2(frame, end, r);
		case ZOO_CREATE_CONTAINER_OP:
		case ZOO_SYNC_OP:
			return string_end(frame, BODY_AT, end, 1) > 0;
		case ZOO_GETDATA_OP:
			return is_sound_data(frame, end);
		case ZOO_GETCHILDREN_OP:
			return is_sound_list(frame, end);
		case ZOO_DELETE_OP:
		case ZOO_REMOVE_WATCHES:
			return true;
		default:
			return false;		/* there is nothing else that we ask */
	}
}

/*
 * Whether the answer to a multi holds the results that it was asked for.  An
 * error in the header stands for all of them.  Otherwise all was done, or nothing
 * was, for a reason that one of them gives: without that the library would report
 * success.
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
		else if (type != r->op_types[i])
			return false;
		else if (type == ZOO_CREATE_OP)
		{
			int			path_end = string_end(frame, at, end, 1);

			if (path_end < 0 || !is_path_asked_for(frame, at, path_end, r->op_names[i]))
				return false;
			at = path_end;
		}
		else if (type == ZOO_SETDATA_OP)
			at += STAT_BYTES;
	}
	return at == end && (nerrors == 0 || (nerrors == r->nops && has_reason));
}

static bool
is_sound_long_multi(int sock, int32_t length, const ZkRequest *r)
{
	int			end = length + 4;
	unsigned char *frame = malloc(end);
	bool		sound;

	if (frame == NULL)
		return false;			/* another connection may find memory */
	sound = recv(sock, frame, end, MSG_PEEK | MSG_DONTWAIT) == end &&
		walk_multi(frame, end, r);
	free(frame);
	return sound;
}

static ZkFrameVerdict
check_multi(int sock, const unsigned char *frame, int32_t length, const ZkRequest *r)
{
	int			available;

	if (length > MULTI_MAX)
		return FRAME_REJECT;
	if (length <= SHORT_FRAME)
		return walk_multi(frame, length + 4, r) ? FRAME_READ : FRAME_REJECT;
	if (ioctl(sock, FIONREAD, &available) < 0)
		return FRAME_READ;
	if (available < length + 4)
		return FRAME_WAIT;
	return is_sound_long_multi(sock, length, r) ? FRAME_READ : FRAME_REJECT;
}

/* A list or data that is not held back: what its head says of it */
static ZkFrameVerdict
check_long_answer(const unsigned char *frame, int32_t length, int available, ZkRequest *r)
{
	int			end = length + 4;

	if (r->op != ZOO_GETCHILDREN_OP && r->op != ZOO_GETDATA_OP)
		return FRAME_REJECT;
	if (available < BODY_AT + 4)
		return FRAME_WAIT;
	if (number_at(frame, ERROR_AT, available) != 0)
		return FRAME_REJECT;	/* an error has nothing more to say */
	if (r->op == ZOO_GETDATA_OP ? !is_sound_data(frame, end) : !is_possible_list(frame, end))
		return FRAME_REJECT;
	if (length <= LONGEST_ANSWER)
		return FRAME_READ;
	r->too_large = true;
	return FRAME_TOO_LARGE;
}

static ZkFrameVerdict
check_answer(ZkSession *s, const unsigned char *frame, int32_t length, int available)
{
	ZkRequest  *r = zkr_next_locked(s);
	ZkFrameVerdict verdict;

	if (r == NULL)
		return FRAME_REJECT;	/* an answer that nobody asked for */
	if (r->op == ZOO_MULTI_OP)
		return check_multi(s->sock, frame, length, r);
	if (length <= SHORT_FRAME)
		return number_at(frame, ERROR_AT, available) != 0 ||
			is_sound_answer(frame, length + 4, r) ? FRAME_READ : FRAME_REJECT;
	verdict = check_long_answer(frame, length, available, r);
	if (verdict == FRAME_READ)
	{
		s->frame.in_long_frame = true;
		s->frame.replies_before = s->replies;
	}
	return verdict;
}

ZkFrameVerdict
zks_check_frame_locked(ZkSession *s)
{
	unsigned char frame[4 + SHORT_FRAME];	/* or its beginning */
	int32_t		length;
	int32_t		xid;
	int			available;
	int			state = zoo_state(s->zh);

	zk_assert(zks_has_mutex(s));
	if (state == ZOO_CONNECTING_STATE)
		return FRAME_READ;		/* only the end of connect() is awaited */

	if (s->frame.in_long_frame)
	{
		if (s->replies == s->frame.replies_before)
			return FRAME_READ;
		s->frame.in_long_frame = false;
	}

	available = (int) recv(s->sock, frame, sizeof(frame), MSG_PEEK | MSG_DONTWAIT);
	if (available < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return FRAME_NONE;
	if (available <= 0)
		return FRAME_READ;		/* the library reports the error */
	if (available < 8)
		return FRAME_WAIT;
	length = number_at(frame, 0, available);
	s->frame.followed = available > 4 && available - 4 > length;
	xid = number_at(frame, 4, available);

	if (state == ZOO_ASSOCIATING_STATE)
		return check_handshake(length, available);

	if (length < REPLY_HEADER || length > LONGEST_FRAME)
		return FRAME_REJECT;
	if (length <= SHORT_FRAME && available < length + 4)
		return FRAME_WAIT;
	if (is_unasked(xid))
		return length <= SHORT_FRAME && is_sound_event(s, frame, length, xid) ?
			FRAME_READ : FRAME_REJECT;
	return check_answer(s, frame, length, available);
}

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
 * The library reads at most one frame a call.  A short frame is held back
 * until it has arrived whole, so that after the call we stand between two
 * frames again.  A long one can only be the answer to a request, and those
 * are counted.  The answer to a multi is walked through once it is there in
 * full: the library does so with assert(), too.
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

#include "session_int.h"

/* Between these lie the lengths of a handshake's answer, old and new */
#define HANDSHAKE_MIN		36
#define HANDSHAKE_MAX		37

#define REPLY_HEADER		16	/* xid, zxid, error */
#define EVENT_HEADER		(REPLY_HEADER + 12) /* type, state, length of the path */
#define SHORT_FRAME			4096
#define MULTI_HEADER		9		/* type, done, error */
#define MULTI_ERROR			(-1)	/* the type of a result that is an error */
#define MULTI_MAX			(REPLY_HEADER + MULTI_HEADER + ZKN_MULTI_BYTES)
#define LONGEST_FRAME		(64 * 1024 * 1024)

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
 * A frame that answers no request and is there in full: is it what it says?
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

/*
 * Does the answer to a multi hold the results that it was asked for?  An error
 * in the header stands for all of them.  Else all was done, or nothing was for
 * a reason that one of them gives: without one the library would report success.
 */
static bool
walk_multi(const unsigned char *frame, int end, const ZkRequest *r)
{
	int			at = 4 + REPLY_HEADER;
	int			nerrors = 0;
	bool		has_reason = false;

	if (number_at(frame, at - 4, end) != 0)
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
			int32_t		length = number_at(frame, at, end);

			if (length < 0 || length > end - at - 4)
				return false;
			at += 4 + length;
		}
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

ZkFrameVerdict
zks_check_frame_locked(ZkSession *s)
{
	unsigned char frame[4 + SHORT_FRAME];	/* or its beginning */
	int32_t		length;
	int32_t		xid;
	int			available;
	int			state = zoo_state(s->zh);
	const ZkRequest *next;

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
	next = zkr_next_locked(s);
	if (next == NULL)
		return FRAME_REJECT;	/* an answer that nobody asked for */
	if (next->nops > 0)
	{
		if (length > MULTI_MAX)
			return FRAME_REJECT;
		if (length <= SHORT_FRAME)
			return walk_multi(frame, length + 4, next) ? FRAME_READ : FRAME_REJECT;
		if (ioctl(s->sock, FIONREAD, &available) < 0)
			return FRAME_READ;
		if (available < length + 4)
			return FRAME_WAIT;
		return is_sound_long_multi(s->sock, length, next) ? FRAME_READ : FRAME_REJECT;
	}
	if (length > SHORT_FRAME)
	{
		s->frame.in_long_frame = true;
		s->frame.replies_before = s->replies;
	}
	return FRAME_READ;
}

/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  The connection of the session to a server: one attempt after another,
 *	  how long each may take, what may be read from it, and how it ends.
 *
 * The client library opens and closes its sockets by itself, without telling
 * us.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "connection.h"
#include "lease.h"
#include "nodes.h"
#include "watch_private.h"

/* See SURELY_SENT in request.c */
#define SEND_BUFFER			(256 * 1024)

/* See ZKN_MULTI_BYTES in multi.h; the kernel usually allows less */
#define RECEIVE_BUFFER		(1024 * 1024)

/*
 * A server may demand a longer timeout than we asked for, but not days: HTTP
 * servers do
 */
#define LONGEST_TIMEOUT_MS	(60 * 60 * 1000)

/*
 * Pauses between two rounds through the servers: the first one, doubled each
 * time; the longest while the session may be resumed or somebody waits for it;
 * the longest once the session must have expired but its nodes may still block
 * others; and the longest when it has no nodes.  The first two are shorter for
 * short timeouts.
 */
#define PAUSE_MS			50
#define PAUSE_ALIVE_MS		1000
#define PAUSE_LATE_MS		5000
#define PAUSE_IDLE_MS		10000

/* Longest pause while closing the session: see LINGER_MS in keeper_thread.c */
#define PAUSE_CLOSING_MS	100

/*
 * Successful connections that break are not repeated more often than this,
 * either
 */
#define APART_MS			20

/*
 * How long to wait at first for a server's answer while another one may be
 * faster. A call waits only zklock.connect_timeout for all of them, however
 * long the session timeout is.
 */
#define FIRST_LOOK_MS		1000

/*
 * A server closes connections beyond its maxClientCnxns before it has read
 * anything.  Who has said something by then cannot tell that from a server that
 * does not want us, such as one without a quorum.  So after an attempt that was
 * answered by nothing but the end, the next one there first listens for so long.
 */
#define LISTEN_MS			50

/*-------------------------------------------------------------------------
 * The fate of the session
 *-------------------------------------------------------------------------
 */

/*
 * Where the latest attempt went.  The library is asked as soon as it has begun: after
 * a fault it has already chosen the next one.
 */
static const char *
address_locked(ZkSession *s)
{
	if (s->attempts.address[0] == '\0' && s->zh != NULL)
		snprintf(s->attempts.address, sizeof(s->attempts.address), "%s", zoo_get_current_server(s->zh));
	return s->attempts.address;
}

static ZkFault *
fault_at_locked(ZkSession *s, const char *address)
{
	for (int i = 0; i < s->attempts.nfaults; i++)
	{
		if (strcmp(s->attempts.faults[i].address, address) == 0)
			return &s->attempts.faults[i];
	}
	return NULL;
}

/* False if it does not fit */
static bool
add_fault(char *text, int size, const ZkFault *fault, bool with_address)
{
	int			len = strlen(text);
	int			added = snprintf(text + len, size - len, "%s%s%s%s", len > 0 ? "; " : "",
								 with_address ? fault->address : "",
								 with_address && fault->address[0] != '\0' ? ": " : "", fault->what);

	if (added < size - len)
		return true;
	text[len] = '\0';
	return false;
}

/*
 * What each address said, since the last one to be tried is only by chance the one
 * that matters: "localhost" often has two, of which one refuses.
 */
static void
tell_faults_locked(ZkSession *s)
{
	char	   *text = s->texts.troubles.text;
	const int	size = ZKS_TROUBLES_LEN - sizeof("; ...");
	bool		fits = true;

	text[0] = '\0';
	s->texts.troubles.n = s->attempts.nfaults;
	s->texts.troubles.kind = s->attempts.nfaults > 0 ? s->attempts.faults[0].kind : ZKS_TROUBLE_NO_WAY;
	for (int i = 0; fits && i < s->attempts.nfaults; i++)
		fits = add_fault(text, size, &s->attempts.faults[i], s->attempts.nfaults > 1);
	if (!fits)
		strcat(text, "; ...");
}

/*
 * They are kept in the order in which they are told: the most telling first, and of
 * these the newest.  Without room the last one goes, which may be the new one.
 */
static void
note_fault_locked(ZkSession *s, const char *address, ZksTrouble kind, const char *what)
{
	ZkFault    *old = fault_at_locked(s, address);
	ZkFault		noted = {.kind = kind,.to_listen = old != NULL && old->to_listen};
	int			at = 0;

	snprintf(noted.address, sizeof(noted.address), "%s", address);
	snprintf(noted.what, sizeof(noted.what), "%s", what);
	if (old != NULL)
		memmove(old, old + 1, (s->attempts.faults + --s->attempts.nfaults - old) * sizeof(ZkFault));
	while (at < s->attempts.nfaults && s->attempts.faults[at].kind > kind)
		at++;
	if (at == ZKS_FAULTS)
		return;
	if (s->attempts.nfaults == ZKS_FAULTS)
		s->attempts.nfaults--;
	memmove(s->attempts.faults + at + 1, s->attempts.faults + at, (s->attempts.nfaults++ - at) * sizeof(ZkFault));
	s->attempts.faults[at] = noted;
	tell_faults_locked(s);
}

/*
 * The fault of the latest attempt, or of a connection.  A wire knows the reason
 * better than those who only see that it broke
 */
void
zks_trouble_locked(ZkSession *s, ZksTrouble kind, const char *what)
{
	ZksTrouble	wire_kind;
	const char *wire_fault = zks_wire_fault(s->wire, &wire_kind);
	const char *address = kind == ZKS_TROUBLE_NAME ? "" : address_locked(s);	/* a name is no server's */
	ZkFault    *before = fault_at_locked(s, address);

	zk_assert(zks_has_mutex(s));
	/* this one is told from the other only by those who listen long enough */
	if (wire_fault == NULL && kind == ZKS_TROUBLE_CLOSED && before != NULL &&
		before->kind == ZKS_TROUBLE_CROWDED)
		return;
	note_fault_locked(s, address, wire_fault != NULL ? wire_kind : kind, wire_fault != NULL ? wire_fault : what);
}

/*
 * What the session had counts as lost.  The session is not ended: if all
 * servers were down, ZooKeeper restarts its timeout when they are back, and
 * until then its nodes would block everybody.  So it is resumed, and they are
 * deleted first.  Without nodes there is no reason to come back.
 */
void
zks_forfeit_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	if (s->info.forfeited || s->info.state == ZKS_OVER)
		return;
	if (!zkn_any_locked(s))
	{
		zks_end_locked(s, ZSESSIONEXPIRED);
		return;
	}
	s->info.forfeited = true;
	zks_count_loss_locked(s);
	s->due.renew_at = zks_now() + zks_timeout(&s->info);
	s->notify = true;
	zkn_forfeit_locked(s);
}

/*
 * Cut off: the session may still live, if it can be resumed; with a new
 * handle, which has no watches, if they are too many for one packet.
 */
void
zks_suspend_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	zks_set_state_locked(s, ZKS_SUSPENDED);
	if (zkr_watches_exceed_locked(s, false))
	{
		zks_forfeit_locked(s);

		/* not at once: a commit that has passed the guard may be under way */
		s->due.renew_at = zks_now() + zks_late_after(&s->info);
	}
}

/*-------------------------------------------------------------------------
 * Attempts
 *-------------------------------------------------------------------------
 */

/*
 * Make the library notice that its connection is dead.  Unread data is
 * discarded: the library would read that before it sees the end.
 */
static void
drop_locked(ZkSession *s, ZksTrouble kind, const char *why)
{
	char		junk[4096];

	if (why != NULL)
		zks_trouble_locked(s, kind, why);
	if (s->sock < 0)
		return;
	shutdown(s->sock, SHUT_RDWR);
	while (recv(s->sock, junk, sizeof(junk), MSG_DONTWAIT) > 0)
		;
	(void) zookeeper_process(s->zh, ZOOKEEPER_READ | ZOOKEEPER_WRITE);
	s->sock = -1;

	/*
	 * the library's own reason would only be that we shut the connection down
	 */
	if (why != NULL)
		zks_trouble_locked(s, kind, why);
}

/*
 * What the library wants next.  Without a connection that is a new one; if the
 * library would pause before that, our own pause is over by now.
 *
 * The library makes its socket without SOCK_CLOEXEC, and no code of ours runs
 * before connect() has begun.  So there is a moment, some microseconds long,
 * in which the main thread may start a program that inherits it (COPY TO
 * PROGRAM; popen() calls no pthread_atfork handlers).  That keeps the
 * connection open while the program runs, but nothing else: sessions are
 * closed by a request, and end by their timeout.  What we open ourselves is
 * close-on-exec from the beginning.  OpenSSL's descriptors are not while it
 * reads the files of TLS, which anybody who may start programs here could read
 * as well.
 */
static int
ask_library_locked(ZkSession *s, int *sock, int *interest, struct timeval *tv)
{
	int			rc;

	*sock = -1;
	if (s->sock < 0)
		s->attempts.address[0] = '\0';
	rc = zookeeper_interest(s->zh, sock, interest, tv);
	if (rc == ZOK && *sock < 0)
	{
		s->attempts.address[0] = '\0';
		rc = zookeeper_interest(s->zh, sock, interest, tv);
	}
	if (rc != ZOK)
		*sock = -1;
	else if (*sock != s->sock)
		(void) fcntl(*sock, F_SETFD, FD_CLOEXEC);
	return rc;
}

/*
 * A send in the main thread failed.  The library has then closed its socket,
 * but tells nobody and keeps the unanswered requests for the next connection.
 * The only way to make it fail them is to let it open a connection and drop
 * that.
 */
void
zks_mend_locked(ZkSession *s)
{
	int			interest;
	struct timeval tv;

	zk_assert(zks_has_mutex(s));
	if (s->info.state != ZKS_CONNECTED || zks_usable_locked(s))
		return;
	zks_suspend_locked(s);
	s->sock = -1;
	if (ask_library_locked(s, &s->sock, &interest, &tv) == ZOK)
		drop_locked(s, ZKS_TROUBLE_OTHER, NULL);
}

/*
 * Put a wire between the library and the server, if TLS is used.  The library
 * must not have sent anything yet; it does when the connection is established,
 * which takes longer than it takes us to get here.
 */
static bool
lay_wire_locked(ZkSession *s, int *library_end)
{
	if (s->options.tls == NULL)
		return true;
	if (zoo_state(s->zh) != ZOO_CONNECTING_STATE)
		drop_locked(s, ZKS_TROUBLE_OTHER, "connected before TLS was ready");
	else if ((s->wire = zks_wire_lay(s->options.tls, s->sock, s->servers.names, library_end)) == NULL)
		drop_locked(s, ZKS_TROUBLE_OTHER, strerror(errno));
	return s->sock >= 0;
}

static void
adopt_locked(ZkSession *s, int sock)
{
	int			send_size = SEND_BUFFER;
	int			receive_size = RECEIVE_BUFFER;
	socklen_t	len = sizeof(s->receive_buffer);
	int			receiver = sock;
	int			option;

	s->sock = sock;
	if (sock < 0)
		return;
	s->frame.long_at = UINT64_MAX;
	if (!lay_wire_locked(s, &receiver))
		return;
	/* in a socket pair, the sender's buffer limits both */
	option = s->wire != NULL ? SO_SNDBUF : SO_RCVBUF;
	setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &send_size, sizeof(send_size));
	setsockopt(receiver, SOL_SOCKET, option, &receive_size, sizeof(receive_size));
	if (getsockopt(receiver, SOL_SOCKET, option, &s->receive_buffer, &len) < 0)
		s->receive_buffer = 0;
	if (!zks_wakeup_adopt_locked(&s->wakeup, sock))
		drop_locked(s, ZKS_TROUBLE_OTHER, strerror(errno));
}

/*
 * After this many attempts each server has been tried: the library's list has
 * an odd length, see resolve.c.
 */
static int
round_length(const ZkSession *s)
{
	return s->servers.n | 1;
}

/*
 * When the attempt is given up.  The library waits for a silent server for two
 * thirds of the session timeout; two silent ones of three outlast the session.
 * So while there is another server to try in this round, all of them together
 * get a third of it.  If none was fast enough, each gets twice as long in the
 * next round: servers that are only slow (an election, a remote network) must
 * be reached eventually.
 *
 * Giving up leaves something behind: a server may create a session whose
 * answer nobody reads.  So a single server, or the last of a round in which all
 * others were silent, gets all the time that the library grants it.  But one that
 * failed at once may be back at any moment: when the leader's machine is gone, the
 * others have no quorum until they have elected another.
 */
static int64_t
attempt_until(const ZkSession *s)
{
	int64_t		ms = zks_late_after(&s->info) / ZKS_MS / s->servers.n;
	int			others = round_length(s) - 1;
	int			rounds;

	if (others == 0 || (s->attempts.tries % round_length(s) == others && !s->attempts.refused))
		return ZKS_NEVER;
	rounds = s->attempts.ntimeouts / others;
	ms = ms < 100 ? 100 : zks_earlier(ms, FIRST_LOOK_MS);
	return s->attempts.at + (ms * ZKS_MS << (rounds < 8 ? rounds : 8));
}

static bool
attempting_locked(ZkSession *s)
{
	int			state = zoo_state(s->zh);

	return s->sock >= 0 && (state == ZOO_CONNECTING_STATE ||
							state == ZOO_ASSOCIATING_STATE);
}

static int64_t
longest_pause(ZkSession *s, int64_t now)
{
	bool		alive = s->info.epoch > 0 && now - s->info.heard_at < zks_timeout(&s->info);

	if (s->due.close_by != 0)
		return PAUSE_CLOSING_MS * ZKS_MS;
	if (s->awaited || alive)
		return zks_earlier(PAUSE_ALIVE_MS * ZKS_MS, zks_late_after(&s->info) / 2);
	if (zkn_any_locked(s))
		return zks_earlier(PAUSE_LATE_MS * ZKS_MS, zks_late_after(&s->info));
	return PAUSE_IDLE_MS * ZKS_MS;
}

/*
 * Between half of the pause and all of it, so that clients that have lost the
 * same server do not all come back at once.
 */
static int64_t
jitter(int64_t pause)
{
	return pause / 2 + zks_random((uint32_t) (pause / 2 / 1000) + 1) * INT64_C(1000);
}

/* Each server is tried once without a pause; then the pauses grow */
static void
back_off_locked(ZkSession *s, int64_t now)
{
	int			rounds = ++s->attempts.tries / round_length(s);
	bool		round_ends = s->attempts.tries % round_length(s) == 0;
	int64_t		pause = PAUSE_MS * ZKS_MS << (rounds < 9 ? rounds : 9) >> 1;

	s->attempts.next_at = now;
	if (round_ends)
		s->attempts.refused = false;
	if (rounds == 0)
		return;
	pause = zks_earlier(pause, longest_pause(s, now));
	if (pause < PAUSE_MS * ZKS_MS)
		pause = PAUSE_MS * ZKS_MS;	/* that timeout came from a server */
	s->attempts.next_at += jitter(pause / round_length(s));
}

/*
 * An attempt has failed, or a connection has ended.  It was of use if it
 * brought an answer, not only a handshake, and nothing that ZooKeeper would
 * not send.
 */
static void
count_locked(ZkSession *s, int64_t now)
{
	ZkFault    *fault;

	if (!s->attempts.trying)
		return;
	s->attempts.trying = false;
	if (s->attempts.of_use)
	{
		s->attempts.tries = 0;
		s->attempts.refused = false;
		s->attempts.next_at = s->attempts.at + APART_MS * ZKS_MS;
		return;
	}
	if (now >= attempt_until(s))
		s->attempts.ntimeouts++;
	else
		s->attempts.refused = true;
	if ((fault = fault_at_locked(s, address_locked(s))) != NULL)
		fault->to_listen = fault->kind == ZKS_TROUBLE_CLOSED || fault->kind == ZKS_TROUBLE_CROWDED;
	back_off_locked(s, now);
}

/* Nothing has been sent, and nothing should be yet; TLS speaks for itself */
static bool
listens_locked(ZkSession *s, int64_t now)
{
	const ZkFault *before = fault_at_locked(s, address_locked(s));

	return before != NULL && before->to_listen && s->wire == NULL && now < s->attempts.at + LISTEN_MS * ZKS_MS &&
		attempting_locked(s) && zoo_state(s->zh) == ZOO_CONNECTING_STATE;
}

/*
 * The server has closed a connection in which we have not said anything: by FIN,
 * or by RST.  A port where nobody listens answers SYN by RST: then there is no
 * round-trip time.  (SO_ERROR would tell, but is gone once it has been read, and
 * the library wants to read it.)
 */
static bool
turned_away_locked(ZkSession *s, uint32_t happened)
{
	struct tcp_info info = {0};
	socklen_t	len = sizeof(info);
	char		c;

	if (s->wire != NULL || s->sock < 0 || (happened & EPOLLRDHUP) == 0 ||
		zoo_state(s->zh) != ZOO_CONNECTING_STATE)
		return false;
	if ((happened & EPOLLERR) == 0)
		return recv(s->sock, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
	return getsockopt(s->sock, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_rtt != 0;
}

/* A peer that sends this is not a ZooKeeper server */
static void
reject_locked(ZkSession *s)
{
	drop_locked(s, ZKS_TROUBLE_FOREIGN, "the server does not speak ZooKeeper's protocol");
	s->attempts.of_use = false;
}

/*
 * The library closes its socket by itself after any fault.  Forget it at once:
 * the next one may well get the same number.
 */
static void
forget_closed_socket_locked(ZkSession *s, int64_t now)
{
	if (zoo_state(s->zh) == ZOO_CONNECTED_STATE || attempting_locked(s))
		return;
	s->sock = -1;
	count_locked(s, now);
	zks_wire_end(s->wire, false);
	s->wire = NULL;
}

/*
 * A handshake renews the session, and is not life: servers may go on accepting us,
 * and answer no request, while everybody waits for what we have.  So that is given a
 * session timeout since the last request that was answered (or made the session), but
 * a third of it at least where the connection was restored so late.
 */
static void
expect_answer_locked(ZkSession *s)
{
	if (s->due.answer_by != 0)
		return;
	s->due.answer_by = zks_now() + zks_late_after(&s->info);
	if (s->due.answer_by < zks_lease_ends(&s->info))
		s->due.answer_by = zks_lease_ends(&s->info);
}

/* The handshake is done */
static void
connected_locked(ZkSession *s)
{
	int64_t		now = zks_now();

	s->id = *zoo_client_id(s->zh);
	s->info.session_id = s->id.client_id;
	s->info.timeout_ms = zoo_recv_timeout(s->zh);
	if (s->info.timeout_ms <= 0 || s->info.timeout_ms > LONGEST_TIMEOUT_MS ||
		s->info.session_id == 0)
	{
		s->info.timeout_ms = s->options.timeout_ms;
		reject_locked(s);
		return;
	}
	if (s->info.epoch > 0)
	{
		/*
		 * The leader says that the session lives, and has begun its timeout
		 * anew; a quorum may know better.
		 */
		int64_t		outage = now - s->info.suspended_at;

		s->info.reconnections++;
		if (outage > zks_late_after(&s->info) && !s->info.forfeited)
		{
			s->info.outages++;
			s->info.outage_ms = (int) (outage / ZKS_MS);
			s->texts.at_outage = s->texts.troubles;
			atomic_fetch_add(&s->news, 1);
		}
		expect_answer_locked(s);
		zkr_heard_locked(s, s->attempts.at);
		zks_lease_renewed(&s->info);
	}
	else
	{
		/* creating a session is a transaction */
		s->info.quorum_at = s->attempts.at;
		s->info.answered_at = s->attempts.at;
		s->info.heard_at = now;
		expect_answer_locked(s);
	}
	s->info.epoch++;
	if (s->info.timeout_ms != s->options.timeout_ms)
		atomic_fetch_add(&s->news, 1);
	s->attempts.ntimeouts = 0;
	s->due.heartbeat_at = s->info.epoch > 1 ? 0 : now;	/* at once after a
														 * reconnection */
	s->attempts.nfaults = 0;
	tell_faults_locked(s);
	snprintf(s->texts.server, sizeof(s->texts.server), "%s", address_locked(s));
	zks_set_state_locked(s, ZKS_CONNECTED);
	zkn_catch_up_locked(s);
}

/* The library opens a connection, or says what it needs of the existing one */
static bool
go_on_locked(ZkSession *s, int *interest, struct timeval *tv)
{
	int			sock;

	if (s->sock < 0)
	{
		s->attempts.trying = true;
		s->attempts.of_use = false;
		s->attempts.at = zks_now();
	}
	if (ask_library_locked(s, &sock, interest, tv) != ZOK)
		s->sock = -1;
	else if (sock != s->sock)
		adopt_locked(s, sock);
	return s->sock >= 0;
}

/*
 * A new session's server has been greeted, so that nothing but its answer, or the
 * end, can come.  Where the owner waits for that, it reads it itself: the keeper
 * would only wake it.
 */
bool
zks_greeted_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	return s->zh != NULL && s->sock >= 0 && s->info.epoch == 0 &&
		zoo_state(s->zh) == ZOO_ASSOCIATING_STATE;
}

/*
 * Before a wait: let the library do what is due.  Returns when it wants to be
 * called again, if nothing happens before.
 */
int64_t
zks_prepare_locked(ZkSession *s, int64_t now)
{
	uint32_t	events = 0;
	struct timeval tv = {0, 0};
	int			interest = 0;
	int64_t		until;

	zk_assert(zks_has_mutex(s));
	if (attempting_locked(s) && now >= attempt_until(s))
		drop_locked(s, ZKS_TROUBLE_OTHER, "connection attempt timed out");
	forget_closed_socket_locked(s, now);
	if (s->awaited && s->attempts.next_at > now + longest_pause(s, now))
		s->attempts.next_at = now + jitter(longest_pause(s, now));
	if (s->sock < 0 && now < s->attempts.next_at)
		return s->attempts.next_at;
	if (!go_on_locked(s, &interest, &tv))
	{
		forget_closed_socket_locked(s, now);
		return s->attempts.trying ? now + APART_MS * ZKS_MS : s->attempts.next_at;
	}
	if (interest & ZOOKEEPER_READ)
		events |= EPOLLIN | EPOLLRDHUP;
	if ((interest & ZOOKEEPER_WRITE) && !listens_locked(s, now))
		events |= EPOLLOUT;
	if (s->due.close_by != 0)
		s->wakeup.lent = false; /* the owner has left its wait by an exit */
	zks_wakeup_want_locked(&s->wakeup, s->sock, events);
	if (s->awaited && s->due.close_by == 0 && zks_greeted_locked(s))
		zks_wakeup_lend_locked(&s->wakeup, s->sock);

	until = now + tv.tv_sec * 1000 * ZKS_MS + tv.tv_usec * INT64_C(1000);
	if (listens_locked(s, now))
		until = zks_earlier(until, s->attempts.at + LISTEN_MS * ZKS_MS);
	return attempting_locked(s) ? zks_earlier(until, attempt_until(s)) : until;
}

/*-------------------------------------------------------------------------
 * Reading
 *-------------------------------------------------------------------------
 */

/* Lets the library read a frame, or send, whichever is possible */
ZkFrameVerdict
zks_process_locked(ZkSession *s, uint32_t happened)
{
	ZkFrameVerdict verdict = FRAME_NONE;
	int			events = 0;

	zk_assert(zks_has_mutex(s));
	if (turned_away_locked(s, happened))
	{
		drop_locked(s, ZKS_TROUBLE_CROWDED, "server closed the connection at once");
		return FRAME_NONE;
	}
	if (happened & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
	{
		verdict = zks_check_frame_locked(s);
		if (verdict == FRAME_REJECT)
		{
			reject_locked(s);
			return FRAME_NONE;
		}
		if (verdict == FRAME_TOO_LARGE ||
			(verdict == FRAME_WAIT && (happened & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0))
		{
			/*
			 * the request fails; the session lives, and continues.  Or the
			 * rest will never arrive.
			 */
			drop_locked(s, ZKS_TROUBLE_OTHER, verdict == FRAME_TOO_LARGE ?
						"an answer is too large" : "server closed the connection");
			return FRAME_NONE;
		}
		if (verdict == FRAME_READ)
			events |= ZOOKEEPER_READ;
	}
	if (happened & (EPOLLOUT | EPOLLHUP | EPOLLERR))
		events |= ZOOKEEPER_WRITE;
	/* after a fault the library has dropped the connection by itself */
	if (events != 0)
		(void) zookeeper_process(s->zh, events);
	if (s->frame.unsound)
	{
		s->frame.unsound = false;
		reject_locked(s);
	}
	if (zoo_state(s->zh) == ZOO_CONNECTED_STATE &&
		(s->info.state == ZKS_CONNECTING || s->info.state == ZKS_SUSPENDED))
		connected_locked(s);
	else if (zoo_state(s->zh) != ZOO_CONNECTED_STATE && !attempting_locked(s))
		s->sock = -1;			/* another thread may get this number as soon
								 * as we leave */
	return verdict;
}

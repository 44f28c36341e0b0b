/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  What is between the session and a server: one attempt after the other,
 *	  how long each may take, what may be read of it, and how it ends.
 *
 * The client library makes its sockets and closes them by itself, and says
 * nothing about either.
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
#include <arpa/inet.h>

#include "session_int.h"

/* See SURELY_SENT in request.c */
#define SEND_BUFFER			(256 * 1024)

/* See ZKN_MULTI_BYTES in session_int.h; what the kernel allows is less, mostly */
#define RECEIVE_BUFFER		(1024 * 1024)

/* A server may ask for more than we did, but not for days: HTTP servers do */
#define LONGEST_TIMEOUT_MS	(60 * 60 * 1000)

/* Nor try the servers more often than this after a fault */
#define BACKOFF_MS			20

/*-------------------------------------------------------------------------
 * Sending
 *-------------------------------------------------------------------------
 */

/*
 * The library sends each request in two pieces, with TCP_NODELAY.  What is sent
 * under one hold of the mutex, or while the owner gathers, goes out together
 * when that ends: one packet, and one wake-up of the server, for create and list.
 * (Should nobody end it, the kernel does, after 200 ms.)
 */
void
zkcn_cork_locked(ZkSession *s)
{
	int			on = 1;

	if (!s->corked && s->wire == NULL)	/* with TLS the socket is no TCP */
		s->corked = setsockopt(s->sock, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0;
}

/* The socket may have been closed meanwhile, and the number be another's: harmless */
void
zkcn_uncork_locked(ZkSession *s)
{
	int			off = 0;

	if (s->corked)
		(void) setsockopt(s->sock, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
	s->corked = false;
}

/*-------------------------------------------------------------------------
 * Attempts
 *-------------------------------------------------------------------------
 */

/*
 * Make the library see that its connection is dead.  What is still unread is
 * thrown away: it would be read before the end is.
 */
static void
drop_locked(ZkSession *s, const char *why)
{
	char		junk[4096];

	if (why != NULL)
		zks_trouble_locked(s, why);
	if (s->sock < 0)
		return;
	shutdown(s->sock, SHUT_RDWR);
	while (recv(s->sock, junk, sizeof(junk), MSG_DONTWAIT) > 0)
		;
	(void) zookeeper_process(s->zh, ZOOKEEPER_READ | ZOOKEEPER_WRITE);
	s->sock = -1;

	/* its own reason is only that we shut the connection */
	if (why != NULL)
		zks_trouble_locked(s, why);
}

/*
 * A send in the main thread failed.  The library has then closed its socket,
 * but tells nobody and keeps the unanswered requests, whose turn would come
 * on the next connection.  The only way to make it fail them is to let it
 * open a connection and drop that.
 */
void
zkcn_mend_locked(ZkSession *s)
{
	int			interest;
	struct timeval tv;

	if (!s->broken)
		return;
	s->broken = false;
	if (zoo_state(s->zh) == ZOO_CONNECTED_STATE)
		return;
	if (s->info.state == ZKS_CONNECTED)
		zks_suspend_locked(s);
	if (zookeeper_interest(s->zh, &s->sock, &interest, &tv) == ZOK)
		drop_locked(s, NULL);
}

/*
 * Between the library and the server, if there is to be TLS.  The library must
 * not have sent anything yet; it does when the connection is made, and that
 * takes longer than it takes us to get here.
 */
static bool
lay_wire_locked(ZkSession *s)
{
	if (s->tls == NULL)
		return true;
	if (zoo_state(s->zh) != ZOO_CONNECTING_STATE)
		drop_locked(s, "connected before TLS was ready");
	else if ((s->wire = zkt_lay(s->tls, s->sock, s->names)) == NULL)
		drop_locked(s, strerror(errno));
	return s->sock >= 0;
}

/* The socket is the library's, made without SOCK_CLOEXEC */
static void
adopt_locked(ZkSession *s, int sock)
{
	int			send_size = SEND_BUFFER;
	int			receive_size = RECEIVE_BUFFER;
	socklen_t	len = sizeof(s->receive_buffer);
	int			receiver = sock;
	int			option = SO_RCVBUF;

	s->sock = sock;
	if (sock < 0)
		return;
	s->attempt_at = zks_now();
	zks_reset_frame(&s->frame);
	fcntl(sock, F_SETFD, FD_CLOEXEC);
	if (!lay_wire_locked(s))
		return;
	if (s->wire != NULL)
	{
		/* of a socket pair, the sender's buffer is that of both */
		receiver = zkt_library_end(s->wire);
		option = SO_SNDBUF;
	}
	setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &send_size, sizeof(send_size));
	setsockopt(receiver, SOL_SOCKET, option, &receive_size, sizeof(receive_size));
	if (getsockopt(receiver, SOL_SOCKET, option, &s->receive_buffer, &len) < 0)
		s->receive_buffer = 0;
	if (!zkev_adopt_locked(&s->events, sock))
		drop_locked(s, strerror(errno));
}

/*
 * The library gives a server that does not answer two thirds of the session
 * timeout; of three servers, two such outlast the session.  A third of it for
 * all of them together leaves the last one time.  Where none was fast enough,
 * each gets twice as long in the next round: servers that are only slow (an
 * election, a far network) must be reached in the end.
 */
static int64_t
attempt_limit(ZkSession *s)
{
	int64_t		ms = s->info.timeout_ms / (3 * s->nservers);
	int			rounds = s->ntimeouts / s->nservers;

	return (ms < 100 ? 100 : ms) * ZKS_MS << (rounds < 8 ? rounds : 8);
}

static bool
attempting_locked(ZkSession *s)
{
	int			state = zoo_state(s->zh);

	return s->sock >= 0 && (state == ZOO_CONNECTING_STATE ||
							state == ZOO_ASSOCIATING_STATE);
}

/* The next attempt not at once, and later each time, until one is of use */
static void
back_off_locked(ZkSession *s)
{
	s->connect_at = zks_now() +
		(BACKOFF_MS * ZKS_MS << (s->nrejects < 6 ? s->nrejects : 6));
	s->nrejects++;
	s->unanswered = false;
}

/*
 * The library closes its socket by itself after any fault.  Forget it at
 * once: the next one may well get the same number.  A server that takes us and
 * drops us before it has answered anything would make us spin.
 */
static void
forget_closed_socket_locked(ZkSession *s)
{
	if (zoo_state(s->zh) == ZOO_CONNECTED_STATE || attempting_locked(s))
		return;
	s->sock = -1;
	if (s->unanswered || zkt_is_insecure(s->wire))
		back_off_locked(s);
	zkt_cut(s->wire);
	s->wire = NULL;
}

static void
describe_server_locked(ZkSession *s)
{
	struct sockaddr_storage addr;
	socklen_t	len = sizeof(addr);
	char		host[INET6_ADDRSTRLEN] = "";
	int			port = 0;

	s->info.server[0] = '\0';
	if (getpeername(s->wire != NULL ? zkt_server_socket(s->wire) : s->sock,
					(struct sockaddr *) &addr, &len) != 0)
		return;
	if (addr.ss_family == AF_INET)
	{
		struct sockaddr_in *in = (struct sockaddr_in *) &addr;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		port = ntohs(in->sin_port);
	}
	else
	{
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *) &addr;

		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		port = ntohs(in6->sin6_port);
	}
	snprintf(s->info.server, sizeof(s->info.server), "%s:%d", host, port);
}

/* The handshake is done */
static void
connected_locked(ZkSession *s)
{
	int64_t		now = zks_now();

	s->connected_now = false;
	if (s->info.timeout_ms <= 0 || s->info.timeout_ms > LONGEST_TIMEOUT_MS ||
		s->info.session_id == 0)
	{
		s->info.timeout_ms = s->wanted_timeout_ms;
		drop_locked(s, "the server does not speak ZooKeeper's protocol");
		return;
	}
	if (s->info.epoch > 0)
	{
		/* the leader says that the session lives; a quorum may know better */
		s->info.reconnections++;
		zkr_heard_locked(s, s->attempt_at);
	}
	else
	{
		/* a session is made by a transaction */
		s->info.quorum_at = s->attempt_at;
		s->info.proven_at = s->attempt_at;
		s->info.heard_at = now;
	}
	s->info.epoch++;
	s->ntimeouts = 0;
	s->unanswered = true;
	s->heartbeat_at = s->info.epoch > 1 ? 0 : now;	/* what has become of us? */
	s->info.trouble[0] = '\0';
	describe_server_locked(s);
	zks_set_state_locked(s, ZKS_CONNECTED);
	zkn_connected_locked(s);
}

/*
 * Before a wait: let the library do what is due.  Returns when it wants to be
 * called again, if nothing happens before.
 */
int64_t
zkcn_prepare_locked(ZkSession *s, int64_t now)
{
	uint32_t	events = 0;
	struct timeval tv = {0, 0};
	int			sock = -1;
	int			interest = 0;
	int64_t		until = now + BACKOFF_MS * ZKS_MS;

	if (attempting_locked(s) && now - s->attempt_at > attempt_limit(s))
	{
		s->ntimeouts++;
		drop_locked(s, "connection attempt timed out");
	}

	forget_closed_socket_locked(s);
	if (s->sock < 0 && now < s->connect_at)
		return zks_earlier(until, s->connect_at);
	if (zookeeper_interest(s->zh, &sock, &interest, &tv) != ZOK)
	{
		s->sock = -1;
		return until;
	}
	if (sock != s->sock)
	{
		adopt_locked(s, sock);
		if (s->sock < 0)
			return until;
	}
	if (interest & ZOOKEEPER_READ)
		events |= EPOLLIN | EPOLLRDHUP;
	if (interest & ZOOKEEPER_WRITE)
		events |= EPOLLOUT;
	if (s->close_by != 0)
		s->events.lent = false; /* the owner has left its wait by an exit */
	zkev_want_locked(&s->events, s->sock, events);

	until = now + tv.tv_sec * 1000 * ZKS_MS + tv.tv_usec * INT64_C(1000);
	return attempting_locked(s) ? zks_earlier(until, s->attempt_at + attempt_limit(s)) : until;
}

/*-------------------------------------------------------------------------
 * Reading
 *-------------------------------------------------------------------------
 */

/* Lets the library read a frame, or send, if that is what there is to do */
ZkFrameVerdict
zkcn_process_locked(ZkSession *s, uint32_t happened)
{
	ZkFrameVerdict verdict = FRAME_NONE;
	int			events = 0;

	if (happened & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
	{
		verdict = zks_check_frame_locked(s);
		switch (verdict)
		{
			case FRAME_READ:
				events |= ZOOKEEPER_READ;
				break;
			case FRAME_NONE:
				break;
			case FRAME_WAIT:
				if (happened & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
				{
					/* the rest will never arrive */
					drop_locked(s, "server closed the connection");
					return FRAME_NONE;
				}
				break;
			case FRAME_REJECT:
				drop_locked(s, "the server does not speak ZooKeeper's protocol");
				back_off_locked(s);
				return FRAME_NONE;
		}
	}
	if (happened & (EPOLLOUT | EPOLLHUP | EPOLLERR))
		events |= ZOOKEEPER_WRITE;
	/* after a fault the library has dropped the connection by itself */
	if (events != 0)
		(void) zookeeper_process(s->zh, events);
	if (s->connected_now)
		connected_locked(s);
	else if (zoo_state(s->zh) != ZOO_CONNECTED_STATE && !attempting_locked(s))
		s->sock = -1;			/* the number may be another's as soon as we leave */
	return verdict;
}

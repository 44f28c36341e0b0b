/*
 * A relay before one ZooKeeper server that counts frames and bytes by kind.
 * Unlike t/lib/ZkProxy.pm, it is fast enough not to distort the measurement,
 * and can handle thousands of connections.
 *
 *   count ADDRESS:PORT
 *
 * One line in, one line out; "ready" comes first:
 *
 *   port        ok PORT    where it listens
 *   clear       ok
 *   counts      ok KIND:SENT:BYTES:ANSWERS:BYTES ...
 *
 * KIND: create, delete, exists, getData, list, multi, sync, unwatch (a watch
 * is removed), other; heartbeat (a ping, exists of "/", sync of "/" and the read
 * behind it, and a multi that begins with a check); session (handshakes and closes);
 * event (watch events: answers only); own (those that come right before the answer to
 * the client's own delete).  Bytes include the length of the frame.
 *
 * Data is passed on at once; of each frame only the head is examined.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD 24					/* bytes of a frame, without its length */
#define CHUNK 65536

enum
{
	CREATE, DELETE, EXISTS, GET_DATA, LIST, MULTI, SYNC, UNWATCH, OTHER, HEARTBEAT, SESSION, EVENT, OWN, N_KINDS
};

static const char *const kind_names[N_KINDS] = {
	"create", "delete", "exists", "getData", "list", "multi", "sync", "unwatch", "other", "heartbeat", "session", "event", "own"
};

typedef struct Count
{
	uint64_t	sent;
	uint64_t	sent_bytes;
	uint64_t	answers;
	uint64_t	answer_bytes;
} Count;

typedef struct Way				/* one direction of a connection */
{
	int			from;
	bool		first;			/* the handshake has not passed yet */
	bool		up;				/* to the server */
	uint8_t		length[4];
	unsigned	length_has;
	uint8_t		head[HEAD];
	unsigned	head_has;
	uint32_t	left;			/* bytes of the frame still to come */

	char	   *out;			/* what the other end has not taken yet */
	size_t		out_size;
	size_t		out_has;

	struct Connection *conn;
	struct Way *other;			/* writes to the socket that this one reads from */
} Way;

typedef struct Connection
{
	Way			up;
	Way			down;
	bool		closed;
	bool		beats;			/* the next read belongs to a heartbeat */
	struct Connection *next_closed;

	/*
	 * kinds of the requests without an answer yet; answers come in this order
	 */
	uint8_t    *asked;
	size_t		asked_size;
	size_t		asked_first;
	size_t		asked_end;
} Connection;

static Count counts[N_KINDS];
static int	poller;
static int	port;
static struct sockaddr_in target;
static Connection *closed;		/* freed when nobody can refer to them any longer */

static void *
grown(void *p, size_t size)
{
	p = realloc(p, size);
	if (!p)
	{
		perror("count");
		exit(1);
	}
	return p;
}

static int32_t
number(const uint8_t *p)
{
	return (int32_t) ((uint32_t) p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]);
}

static int
kind_of(const Way *w)
{
	const uint8_t *head = w->head;

	if (w->head_has < 8)
		return OTHER;
	switch (number(head + 4))
	{
		case 1:
		case 15:				/* create2 */
		case 19:				/* of a container */
		case 21:				/* with a TTL */
			return CREATE;
		case 2:
		case 20:
			return DELETE;
		case 3:
			return w->head_has >= 13 && number(head + 8) == 1 && head[12] == '/' ? HEARTBEAT : EXISTS;
		case 4:
			if (!w->conn->beats)
				return GET_DATA;
			w->conn->beats = false;
			return HEARTBEAT;
		case 8:
		case 12:
			return LIST;
		case 9:
			w->conn->beats = w->head_has >= 13 && number(head + 8) == 1 && head[12] == '/';
			return w->conn->beats ? HEARTBEAT : SYNC;
		case 18:
			return UNWATCH;
		case 14:
			return w->head_has >= 12 && number(head + 8) == 13 ? HEARTBEAT : MULTI;
		case 11:
			return HEARTBEAT;
		case -11:
			return SESSION;
		default:
			return OTHER;
	}
}

static void
remember(Connection *c, int kind)
{
	if (c->asked_first == c->asked_end)
		c->asked_first = c->asked_end = 0;
	if (c->asked_end == c->asked_size)
	{
		c->asked_size = c->asked_size ? 2 * c->asked_size : 64;
		c->asked = grown(c->asked, c->asked_size);
	}
	c->asked[c->asked_end++] = kind;
}

/* The head of a frame has been read */
static void
count_frame(Way *w, uint32_t bytes)
{
	Connection *c = w->conn;
	int			kind;
	int32_t		xid = w->head_has >= 4 ? number(w->head) : 0;

	if (w->first)
	{
		w->first = false;
		kind = SESSION;
	}
	else if (w->up)
	{
		kind = kind_of(w);
		if (xid >= 0)
			remember(c, kind);
	}
	else if (xid == -1)
		kind = c->asked_first < c->asked_end && c->asked[c->asked_first] == DELETE ? OWN : EVENT;
	else if (xid == -2)
		kind = HEARTBEAT;
	else if (xid >= 0 && c->asked_first < c->asked_end)
		kind = c->asked[c->asked_first++];
	else
		kind = OTHER;

	if (w->up)
	{
		counts[kind].sent++;
		counts[kind].sent_bytes += bytes;
	}
	else
	{
		counts[kind].answers++;
		counts[kind].answer_bytes += bytes;
	}
}

static void
look(Way *w, const uint8_t *p, size_t n)
{
	while (n > 0)
	{
		size_t		part;

		if (w->length_has < 4)
		{
			w->length[w->length_has++] = *p++;
			n--;
			if (w->length_has == 4)
			{
				w->left = (uint32_t) number(w->length);
				w->head_has = 0;
				if (w->left == 0)
					w->length_has = 0;
			}
			continue;
		}
		part = n < w->left ? n : w->left;
		for (size_t i = 0; i < part && w->head_has < HEAD; i++)
			w->head[w->head_has++] = p[i];
		p += part;
		n -= part;
		w->left -= part;
		if (w->left == 0)
		{
			count_frame(w, 4 + (uint32_t) number(w->length));
			w->length_has = 0;
		}
	}
}

static void
close_connection(Connection *c)
{
	if (c->closed)
		return;
	c->closed = true;
	close(c->up.from);
	close(c->down.from);
	c->next_closed = closed;
	closed = c;
}

static void
free_closed(void)
{
	while (closed)
	{
		Connection *c = closed;

		closed = c->next_closed;
		free(c->up.out);
		free(c->down.out);
		free(c->asked);
		free(c);
	}
}

static void
want(Way *w, uint32_t events, int how)
{
	struct epoll_event event = {.events = events, .data.ptr = w};

	epoll_ctl(poller, how, w->from, &event);
}

/* Pass on what is left of w; false on an error */
static bool
flush(Way *w)
{
	int			to = w->other->from;
	size_t		done = 0;

	while (done < w->out_has)
	{
		ssize_t		n = send(to, w->out + done, w->out_has - done, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			return false;
		if (n < 0)
			break;
		done += n;
	}
	memmove(w->out, w->out + done, w->out_has - done);
	w->out_has -= done;
	want(w->other, EPOLLIN | (w->out_has ? EPOLLOUT : 0), EPOLL_CTL_MOD);
	return true;
}

static void
arrived(Way *w)
{
	static char buffer[CHUNK];
	ssize_t		n = recv(w->from, buffer, sizeof buffer, 0);
	ssize_t		sent = 0;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0)
	{
		if (w->out_has)
			flush(w);
		close_connection(w->conn);
		return;
	}
	look(w, (uint8_t *) buffer, n);
	if (!w->out_has)
	{
		sent = send(w->other->from, buffer, n, MSG_NOSIGNAL);
		if (sent < 0)
			sent = 0;			/* flush() will see the error */
	}
	if (sent == n)
		return;
	if (w->out_size < w->out_has + (n - sent))
		w->out = grown(w->out, w->out_size = 2 * (w->out_has + (n - sent)));
	memcpy(w->out + w->out_has, buffer + sent, n - sent);
	w->out_has += n - sent;
	if (!flush(w))
		close_connection(w->conn);
}

static void
accept_one(int listener)
{
	int			one = 1;
	int			client = accept(listener, NULL, NULL);
	int			server;
	Connection *c;

	if (client < 0)
		return;
	server = socket(AF_INET, SOCK_STREAM, 0);
	if (server < 0 || connect(server, (struct sockaddr *) &target, sizeof target) != 0)
	{
		close(client);
		if (server >= 0)
			close(server);
		return;
	}
	c = grown(NULL, sizeof *c);
	memset(c, 0, sizeof *c);
	c->up = (Way) {.from = client, .first = true, .up = true, .conn = c, .other = &c->down};
	c->down = (Way) {.from = server, .first = true, .conn = c, .other = &c->up};
	for (int i = 0; i < 2; i++)
	{
		Way		   *w = i ? &c->down : &c->up;

		setsockopt(w->from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		fcntl(w->from, F_SETFL, O_NONBLOCK);
		want(w, EPOLLIN, EPOLL_CTL_ADD);
	}
}

/* false: end of input */
static bool
command(void)
{
	static char line[100];
	static size_t has;
	ssize_t		n = read(0, line + has, sizeof line - has - 1);
	char	   *end;

	if (n <= 0)
		return n < 0 && errno == EINTR;
	has += n;
	line[has] = '\0';
	end = strchr(line, '\n');
	if (!end)
		return has < sizeof line - 1;
	*end = '\0';
	has = 0;
	if (strcmp(line, "clear") == 0)
	{
		memset(counts, 0, sizeof counts);
		printf("ok\n");
	}
	else if (strcmp(line, "counts") == 0)
	{
		printf("ok");
		for (int i = 0; i < N_KINDS; i++)
			printf(" %s:%llu:%llu:%llu:%llu", kind_names[i],
				   (unsigned long long) counts[i].sent, (unsigned long long) counts[i].sent_bytes,
				   (unsigned long long) counts[i].answers, (unsigned long long) counts[i].answer_bytes);
		printf("\n");
	}
	else if (strcmp(line, "port") == 0)
		printf("ok %d\n", port);
	else if (strcmp(line, "quit") == 0)
		return false;
	else
		printf("error no such command\n");
	fflush(stdout);
	return true;
}

int
main(int argc, char **argv)
{
	char	   *colon = argc == 2 ? strrchr(argv[1], ':') : NULL;
	struct rlimit files;
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t	size = sizeof own;
	int			listener = socket(AF_INET, SOCK_STREAM, 0);
	Way			ask = {.from = 0};
	Way			come = {.from = listener};

	if (colon)
		*colon = '\0';
	target = (struct sockaddr_in) {.sin_family = AF_INET, .sin_port = htons(colon ? atoi(colon + 1) : 0)};
	if (!colon || inet_pton(AF_INET, argv[1], &target.sin_addr) != 1)
	{
		fprintf(stderr, "usage: count ADDRESS:PORT\n");
		return 2;
	}
	if (getrlimit(RLIMIT_NOFILE, &files) == 0)
	{
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	poller = epoll_create1(0);
	if (bind(listener, (struct sockaddr *) &own, sizeof own) != 0 || listen(listener, 4096) != 0 ||
		getsockname(listener, (struct sockaddr *) &own, &size) != 0 || poller < 0)
	{
		perror("count");
		return 1;
	}
	want(&ask, EPOLLIN, EPOLL_CTL_ADD);
	want(&come, EPOLLIN, EPOLL_CTL_ADD);
	port = ntohs(own.sin_port);
	printf("ready\n");
	fflush(stdout);

	for (;;)
	{
		struct epoll_event events[256];
		int			n = epoll_wait(poller, events, 256, -1);

		for (int i = 0; i < n; i++)
		{
			Way		   *w = events[i].data.ptr;

			if (w == &ask)
			{
				if (!command())
					return 0;
			}
			else if (w == &come)
				accept_one(listener);
			else
			{
				if (!w->conn->closed && events[i].events & EPOLLOUT && !flush(w->other))
					close_connection(w->conn);
				if (!w->conn->closed && events[i].events & ~EPOLLOUT)
					arrived(w);
			}
		}
		free_closed();
	}
}

/*
 * A slow network before some servers: data is passed on after a fixed delay,
 * in each direction, however much is under way.
 *
 *   delay HOST:PORT[,HOST:PORT...]
 *
 * t/lib/ZkProxy.pm can do that too, and much more, but takes some hundred
 * microseconds for each frame, which would distort the benchmark.
 *
 * One line in, one line out, "ready" first; it ends at end of input.
 *
 *   ports       ok PORT ...    of 127.0.0.1, in the order of the servers
 *   delay MS    ok             from now on; 0 at first
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_SERVERS 8
#define MAX_LINKS 2048

typedef struct Chunk
{
	struct Chunk *next;
	int64_t		due;
	size_t		length;
	size_t		written;
	char		bytes[];
} Chunk;

/* data on its way from one socket to another */
typedef struct Way
{
	int			from;
	int			to;
	Chunk	   *first;
	Chunk	   *last;
	bool		ended;			/* end of input */
} Way;

typedef struct Link
{
	Way			up;
	Way			down;
} Link;

static struct sockaddr_in servers[MAX_SERVERS];
static int	listeners[MAX_SERVERS];
static int	n_servers;
static Link links[MAX_LINKS];
static int	n_links;
static int64_t delay;			/* ns */

static int64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void
die(const char *what)
{
	perror(what);
	exit(1);
}

static void
listen_for(char *server)
{
	char	   *port = strrchr(server, ':');
	struct sockaddr_in address = {.sin_family = AF_INET};
	int			i = n_servers++;

	if (!port || i == MAX_SERVERS)
		die(server);
	*port++ = '\0';
	servers[i].sin_family = AF_INET;
	servers[i].sin_port = htons(atoi(port));
	if (inet_pton(AF_INET, server, &servers[i].sin_addr) != 1)
		die(server);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listeners[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (bind(listeners[i], (struct sockaddr *) &address, sizeof address) != 0 || listen(listeners[i], 512) != 0)
		die("listen");
}

static void
prepare(int fd)
{
	int			on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static void
accept_all(int i)
{
	int			client;

	while ((client = accept4(listeners[i], NULL, NULL, SOCK_CLOEXEC)) >= 0)
	{
		int			server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (n_links == MAX_LINKS || connect(server, (struct sockaddr *) &servers[i], sizeof servers[i]) != 0)
		{
			close(server);
			close(client);
			continue;
		}
		prepare(client);
		prepare(server);
		links[n_links++] = (Link){{.from = client,.to = server}, {.from = server,.to = client}};
	}
}

static void
read_some(Way *way)
{
	static char buffer[1 << 18];
	ssize_t		n = read(way->from, buffer, sizeof buffer);
	Chunk	   *chunk;

	if (n <= 0)
	{
		way->ended = n == 0 || (errno != EAGAIN && errno != EINTR);
		return;
	}
	chunk = malloc(sizeof *chunk + n);
	if (!chunk)
		die("malloc");
	*chunk = (Chunk){.due = now() + delay,.length = n};
	memcpy(chunk->bytes, buffer, n);
	if (way->last)
		way->last->next = chunk;
	else
		way->first = chunk;
	way->last = chunk;
}

static void
forget_first(Way *way)
{
	Chunk	   *chunk = way->first;

	way->first = chunk->next;
	if (!way->first)
		way->last = NULL;
	free(chunk);
}

/* false: the connection is closed */
static bool
write_due(Way *way, int64_t t)
{
	while (way->first && way->first->due <= t)
	{
		Chunk	   *chunk = way->first;
		ssize_t		n = write(way->to, chunk->bytes + chunk->written, chunk->length - chunk->written);

		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		chunk->written += n;
		if (chunk->written < chunk->length)
			return true;
		forget_first(way);
	}
	return way->first || !way->ended;
}

static void
command(char *line)
{
	double		ms;

	if (sscanf(line, "delay %lf", &ms) == 1)
	{
		delay = (int64_t) (ms * 1e6);
		printf("ok\n");
	}
	else if (strncmp(line, "ports", 5) == 0)
	{
		printf("ok");
		for (int i = 0; i < n_servers; i++)
		{
			struct sockaddr_in address;
			socklen_t	length = sizeof address;

			getsockname(listeners[i], (struct sockaddr *) &address, &length);
			printf(" %d", ntohs(address.sin_port));
		}
		printf("\n");
	}
	else
		printf("error no such command\n");
	fflush(stdout);
}

/* Wait until something can be read or is due. */
static void
wait_and_read(void)
{
	static struct pollfd polled[1 + MAX_SERVERS + 2 * MAX_LINKS];
	int			n = 0;
	int			had_links = n_links;
	int64_t		t = now();
	int64_t		wake = INT64_MAX;
	struct timespec timeout;

	polled[n++] = (struct pollfd){.fd = 0,.events = POLLIN};
	for (int i = 0; i < n_servers; i++)
		polled[n++] = (struct pollfd){.fd = listeners[i],.events = POLLIN};
	for (int i = 0; i < n_links; i++)
	{
		for (int k = 0; k < 2; k++)
		{
			Way		   *way = k ? &links[i].down : &links[i].up;

			/* a socket whose buffer is full is tried again after a ms */
			if (way->first)
			{
				int64_t		due = way->first->due > t ? way->first->due : t + 1000000;

				wake = due < wake ? due : wake;
			}
			polled[n++] = (struct pollfd){.fd = way->ended ? -1 : way->from,.events = POLLIN};
		}
	}
	if (wake != INT64_MAX)
	{
		timeout.tv_sec = (wake - t) / 1000000000;
		timeout.tv_nsec = (wake - t) % 1000000000;
	}
	if (ppoll(polled, n, wake == INT64_MAX ? NULL : &timeout, NULL) <= 0)
		return;

	if (polled[0].revents)
	{
		char		line[100];
		ssize_t		length = read(0, line, sizeof line - 1);

		if (length <= 0)
			exit(0);
		line[length] = '\0';
		command(line);
	}
	for (int i = 0; i < had_links; i++)
	{
		if (polled[1 + n_servers + 2 * i].revents)
			read_some(&links[i].up);
		if (polled[1 + n_servers + 2 * i + 1].revents)
			read_some(&links[i].down);
	}
	for (int i = 0; i < n_servers; i++)
	{
		if (polled[1 + i].revents)
			accept_all(i);
	}
}

int
main(int argc, char **argv)
{
	if (argc != 2)
	{
		fprintf(stderr, "usage: delay HOST:PORT[,HOST:PORT...]\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_TIMERSLACK, 1);
	for (char *server = strtok(argv[1], ","); server; server = strtok(NULL, ","))
		listen_for(server);
	printf("ready\n");
	fflush(stdout);

	for (;;)
	{
		int64_t		t;

		wait_and_read();
		t = now();
		for (int i = 0; i < n_links; i++)
		{
			Link	   *link = &links[i];

			/* write both, even if the first fails */
			bool		up = write_due(&link->up, t);
			bool		down = write_due(&link->down, t);

			if (up && down)
				continue;
			close(link->up.from);
			close(link->down.from);
			while (link->up.first)
				forget_first(&link->up);
			while (link->down.first)
				forget_first(&link->down);
			links[i--] = links[--n_links];
		}
	}
}

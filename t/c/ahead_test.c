/*-------------------------------------------------------------------------
 *
 * ahead_test.c
 *	  What the owner of a session does before its thread exists.
 *
 * Listens as a server would, and looks whether a client has come by the time at
 * which its thread is made.  Prints how many of the sessions did.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "zk/mark.h"
#include "zk/stop_signal.h"
#include "zk/tls.h"

#define NSESSIONS	20

static int	listener;
static int	client = -1;
static int	ngreeted;
static bool threads = true;

/* Instead of the C library's */
int
pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start) (void *), void *arg)
{
	int			(*real) (pthread_t *, const pthread_attr_t *, void *(*) (void *), void *) =
		dlsym(RTLD_NEXT, "pthread_create");
	struct pollfd fd = {.fd = listener,.events = POLLIN};
	char		greeting[64];

	if (poll(&fd, 1, 0) > 0)
	{
		client = accept(listener, NULL, NULL);
		if (recv(client, greeting, sizeof(greeting), MSG_DONTWAIT) > 0)
			ngreeted++;
	}
	return threads ? real(thread, attr, start, arg) : EAGAIN;
}

/* Each has a port of its own, where no thread of the one before arrives late */
static void
open_sessions(const char *what, const char *host)
{
	int			nopen = 0;

	ngreeted = 0;
	for (int i = 0; i < NSESSIONS; i++)
	{
		struct sockaddr_in address = {.sin_family = AF_INET,.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		socklen_t	len = sizeof(address);
		char		hosts[64];
		ZkSession  *session;

		listener = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(listener, (struct sockaddr *) &address, len) != 0 || listen(listener, 1) != 0 ||
			getsockname(listener, (struct sockaddr *) &address, &len) != 0)
			exit(2);
		snprintf(hosts, sizeof(hosts), "%s:%d", host, ntohs(address.sin_port));
		session = zks_open(&(ZkOptions) {.hosts = hosts,.timeout_ms = 6000});
		if (session != NULL)
		{
			nopen++;
			zks_close(session, 5000, NULL);
		}
		if (client >= 0)
			close(client);
		client = -1;
		close(listener);
	}
	printf("%s: %d opened, %d greeted\n", what, nopen, ngreeted);
}

int
main(void)
{
	open_sessions("address", "127.0.0.1");
	open_sessions("name", "localhost");
	threads = false;
	open_sessions("no thread", "127.0.0.1");
	threads = true;
	open_sessions("threads again", "127.0.0.1");
	return 0;
}

/*-------------------------------------------------------------------------
 *
 * fork_test.c
 *	  A process that forks while it has a session, as Python's multiprocessing
 *	  does in a PL/Python function: the child inherits the socket.
 *
 *	  fork_test hosts
 *
 * Prints "forked", then loses its connection; a line on stdin says that this
 * has happened.  When it has reconnected, prints how many ms of CPU time it
 * used in a second.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "zk/mark.h"
#include "zk/stop_signal.h"
#include "zk/tls.h"

static bool
wait_for_connection(ZkSession *session, int number)
{
	int64_t		until = zks_now() + 20000 * ZKS_MS;

	while (zks_now() < until)
	{
		ZkSessionInfo info;
		struct pollfd fd = {.fd = zks_await(session, NULL),.events = POLLIN};

		poll(&fd, 1, 10);
		zks_awaited(session);
		info = zks_info(session);
		if (info.state == ZKS_CONNECTED && info.epoch >= number)
			return true;
	}
	return false;
}

static long
cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int
main(int argc, char **argv)
{
	ZkSession  *session = argc == 2 ?
		zks_open(&(ZkOptions) {.hosts = argv[1],.timeout_ms = 6000}) : NULL;
	bool		done = false;
	pid_t		child;
	long		before;

	if (session == NULL || !wait_for_connection(session, 1))
		return 2;
	child = fork();
	if (child == 0)
	{
		pause();
		_exit(0);
	}
	if (child < 0)
		return 2;
	puts("forked");
	fflush(stdout);
	getchar();					/* not a wait of ours: only the keeper works meanwhile */
	if (wait_for_connection(session, 2))
	{
		before = cpu_ms();
		poll(NULL, 0, 1000);
		printf("%ld ms\n", cpu_ms() - before);
		done = true;
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	zks_close(session, 1000, NULL);
	return !done;
}

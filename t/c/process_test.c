/*-------------------------------------------------------------------------
 *
 * process_test.c
 *	  What the process of a session does at a bad moment, for t/040_sanitizers.pl.
 *
 *		process_test exit HOSTS CA_FILE N
 *
 * Each of N children opens a session, sends a request, and exits a moment
 * later, with its session closed in a hurry or not at all.  exit() shuts
 * OpenSSL down: a thread still using it would crash, and a crash of a backend
 * restarts all of PostgreSQL.
 *
 *		process_test signal N
 *
 * Each child asks for the reason of a stop again and again, until a signal's
 * handler does so, too, and exits, as a background worker's may.
 *
 *		process_test fork HOSTS
 *
 * It forks while it has a session, as Python's multiprocessing does in a
 * PL/Python function: the child inherits the socket.  Prints "forked", then loses
 * its connection; a line on stdin says that this has happened.  When it has
 * reconnected, prints how many ms of CPU time it used in a second.
 *
 *		process_test ahead
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
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "zk/mark.h"
#include "zk/stop_signal.h"
#include "zk/tls.h"

#define NSESSIONS	20

/*-------------------------------------------------------------------------
 * Children that exit
 *-------------------------------------------------------------------------
 */

static void
leave_with_tls(char **args, int number)
{
	ZkTlsFiles	files = {.name = {args[1], "", "", ""},.verify_host = true};
	char		error[256];
	ZkOptions	options = {.hosts = args[0],.timeout_ms = 2000};
	ZkSession  *session;

	srand(number);
	options.tls = zks_tls(&files, error, sizeof(error));
	if (options.tls == NULL || (session = zks_open(&options)) == NULL)
		_exit(2);
	usleep(rand() % 30000);
	for (int i = rand() % 40; i > 0; i--)
		(void) zks_list(session, "/", false, false);
	if (rand() % 2)
		zks_close(session, rand() % 2, NULL);
	exit(0);
}

static void
leave(int signal)
{
	static ZkStopReason why;
	sigset_t	none;

	(void) signal;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	alarm(2);					/* it would wait for itself */
	zks_stop_reason(ZKS_STOP_STATEMENT, &why);
	_exit(0);
}

static void
leave_from_handler(char **args, int number)
{
	static ZkStopReason why;
	struct itimerval soon = {.it_value = {.tv_usec = 1000 + 37 * number % 1000}};

	(void) args;
	signal(SIGVTALRM, leave);
	setitimer(ITIMER_VIRTUAL, &soon, NULL);
	for (;;)
		zks_stop_reason(ZKS_STOP_STATEMENT, &why);
}

static void
children(void (*child) (char **args, int number), char **args, int n)
{
	int			bad = 0;

	for (int i = 0; i < n; i++)
	{
		pid_t		pid = fork();
		int			status;

		if (pid == 0)
			child(args, i);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			bad++;
	}
	printf("%d of %d ended badly\n", bad, n);
}

/*-------------------------------------------------------------------------
 * One that inherits the socket
 *-------------------------------------------------------------------------
 */

static bool
wait_for_connection(ZkSession *session, uint32_t epoch)
{
	int64_t		until = zks_now() + 20000 * ZKS_MS;

	while (zks_now() < until)
	{
		ZkSessionInfo info;
		struct pollfd fd = {.fd = zks_await(session, NULL),.events = POLLIN};

		poll(&fd, 1, 10);
		zks_awaited(session);
		info = zks_info(session);
		if (info.state == ZKS_CONNECTED && info.epoch >= epoch)
			return true;
	}
	return false;
}

static void
forks(const char *hosts)
{
	ZkSession  *session = zks_open(&(ZkOptions) {.hosts = hosts,.timeout_ms = 6000});
	pid_t		child;
	clock_t		before;

	if (session == NULL || !wait_for_connection(session, 1))
		exit(2);
	child = fork();
	if (child == 0)
	{
		pause();
		_exit(0);
	}
	if (child < 0)
		exit(2);
	puts("forked");
	fflush(stdout);
	getchar();					/* not a wait of ours: only the keeper works meanwhile */
	if (wait_for_connection(session, 2))
	{
		before = clock();
		poll(NULL, 0, 1000);
		printf("%ld ms\n", (clock() - before) / (CLOCKS_PER_SEC / 1000));
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	zks_close(session, 1000, NULL);
}

/*-------------------------------------------------------------------------
 * Before the thread exists
 *-------------------------------------------------------------------------
 */

static int	listener = -1;
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

	if (listener >= 0 && poll(&fd, 1, 0) > 0)
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

static void
greets_ahead(void)
{
	open_sessions("address", "127.0.0.1");
	open_sessions("name", "localhost");
	threads = false;
	open_sessions("no thread", "127.0.0.1");
	threads = true;
	open_sessions("threads again", "127.0.0.1");
}

int
main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (strcmp(what, "exit") == 0 && argc == 5)
		children(leave_with_tls, argv + 2, atoi(argv[4]));
	else if (strcmp(what, "signal") == 0 && argc == 3)
		children(leave_from_handler, argv + 2, atoi(argv[2]));
	else if (strcmp(what, "fork") == 0 && argc == 3)
		forks(argv[2]);
	else if (strcmp(what, "ahead") == 0)
		greets_ahead();
	else
		return 2;
	return 0;
}

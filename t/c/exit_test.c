/*-------------------------------------------------------------------------
 *
 * exit_test.c
 *	  Processes that exit while TLS is at work in another thread, or from within
 *	  a signal handler.
 *
 *	  exit_test hosts ca_file n
 *	  exit_test n
 *
 * Each of n children opens a session, sends a request, and exits a moment
 * later, with its session closed in a hurry or not at all.  exit() shuts
 * OpenSSL down: a thread still using it would crash, and a crash of a backend
 * restarts all of PostgreSQL.
 *
 * Without hosts each child asks for the reason of a stop again and again, until a
 * signal's handler does so, too, and exits, as a background worker's may.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "zk/mark.h"
#include "zk/stop_signal.h"
#include "zk/tls.h"

static void
child(const char *hosts, const char *ca_file, int number)
{
	ZkTlsFiles	files = {.name = {ca_file, "", "", ""},.verify_host = true};
	char		error[256];
	ZkOptions	options = {.hosts = hosts,.timeout_ms = 2000};
	ZkSession  *session;

	srand(number);
	options.tls = zks_tls(&files, error, sizeof(error));
	if (options.tls == NULL || (session = zks_open(&options)) == NULL)
		_exit(2);
	usleep(rand() % 30000);
	for (int i = rand() % 40; i > 0; i--)
		(void) zks_list(session, "/", false);
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
leave_from_handler(int number)
{
	static ZkStopReason why;
	struct itimerval soon = {.it_value = {.tv_usec = 1000 + 37 * number % 1000}};

	signal(SIGVTALRM, leave);
	setitimer(ITIMER_VIRTUAL, &soon, NULL);
	for (;;)
		zks_stop_reason(ZKS_STOP_STATEMENT, &why);
}

int
main(int argc, char **argv)
{
	int			n = argc == 4 ? atoi(argv[3]) : argc == 2 ? atoi(argv[1]) : 0;
	int			bad = 0;

	for (int i = 0; i < n; i++)
	{
		pid_t		pid = fork();
		int			status;

		if (pid == 0 && argc == 2)
			leave_from_handler(i);
		if (pid == 0)
			child(argv[1], argv[2], i);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			bad++;
	}
	printf("%d of %d ended badly\n", bad, n);
	return n == 0 || bad != 0;
}

/*-------------------------------------------------------------------------
 *
 * exit_test.c
 *	  Processes that exit while TLS is at work in another thread.
 *
 *	  exit_test hosts ca_file n
 *
 * Each of n children opens a session, sends a request, and exits a moment
 * later, with its session closed in a hurry or not at all.  exit() shuts
 * OpenSSL down: a thread still using it would crash, and a crash of a backend
 * restarts all of PostgreSQL.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "zk/session.h"

static void
child(const char *hosts, const char *ca_file, int number)
{
	ZkTlsFiles	files = {.ca = ca_file,.cert = "",.key = "",.crl = "",.verify_host = true};
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

int
main(int argc, char **argv)
{
	int			n = argc == 4 ? atoi(argv[3]) : 0;
	int			bad = 0;

	for (int i = 0; i < n; i++)
	{
		pid_t		pid = fork();
		int			status;

		if (pid == 0)
			child(argv[1], argv[2], i);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			bad++;
	}
	printf("%d of %d ended badly\n", bad, n);
	return n == 0 || bad != 0;
}

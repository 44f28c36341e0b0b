/*
 * What a test does to a process that no signal can:
 *
 *	strike thread PID NAME		stops the first of its threads, other than the main one,
 *								whose name begins like this, until our own input ends
 *								or the thread does; prints "stopped" when it has
 *	strike connections PID		cuts a backend's TCP connections, which are those to
 *								ZooKeeper
 *
 * With an empty name it stops a backend's keeper, which sends its session's heartbeats, and
 * is older than a connection's thread for TLS.
 *
 * A signal that stops, stops all threads; only a debugger stops one, and only a
 * debugger may use another process's sockets.  If this one is killed, the thread goes
 * on.  Prints "done" when it has been done, or else why not.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The numbers in a folder of /proc, one after the other; the caller opens and closes it */
static int
next_number(DIR *dir)
{
	struct dirent *entry;

	while ((entry = readdir(dir)) != NULL)
	{
		if (entry->d_name[0] != '.')
			return atoi(entry->d_name);
	}
	return -1;
}

static DIR *
folder(pid_t pid, const char *what)
{
	char		name[64];

	snprintf(name, sizeof(name), "/proc/%d/%s", pid, what);
	return opendir(name);
}

static pid_t
thread_named(pid_t pid, const char *name)
{
	DIR		   *dir = folder(pid, "task");
	pid_t		tid,
				found = 0;

	while (dir != NULL && (tid = next_number(dir)) > 0)
	{
		char		path[64];
		char		comm[32] = "";
		FILE	   *file;

		snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", pid, tid);
		file = fopen(path, "r");
		if (file == NULL)
			continue;			/* it has ended */
		if (fgets(comm, sizeof(comm), file) != NULL && strncmp(comm, name, strlen(name)) == 0 &&
			tid != pid && (found == 0 || tid < found))
			found = tid;
		fclose(file);
	}
	if (dir != NULL)
		closedir(dir);
	return found;
}

static const char *
stop_thread(pid_t pid, const char *name)
{
	pid_t		tid = thread_named(pid, name);
	struct pollfd end = {.fd = STDIN_FILENO,.events = POLLIN};
	int			status;

	if (tid == 0)
		return "it has no such thread";
	if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0 || ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0 ||
		waitpid(tid, &status, __WALL) != tid)
		return errno == EPERM ? "it may not be debugged, or another one does" : strerror(errno);
	puts("stopped");
	fflush(stdout);

	/*
	 * A process that is killed, or exits, is gone only when its debugger has been
	 * told of each thread.
	 */
	while (poll(&end, 1, 10) == 0 && (waitpid(tid, &status, __WALL | WNOHANG) == 0 || WIFSTOPPED(status)))
		;
	ptrace(PTRACE_DETACH, tid, NULL, NULL);
	return "done";
}

static const char *
cut_connections(pid_t pid)
{
	DIR		   *dir = folder(pid, "fd");
	int			process = syscall(SYS_pidfd_open, pid, 0),
				fd;
	const char *result = "it has none";

	if (dir == NULL || process < 0)
		return strerror(errno);
	while ((fd = next_number(dir)) >= 0)
	{
		int			own = syscall(SYS_pidfd_getfd, process, fd, 0);
		struct sockaddr_storage peer;
		socklen_t	len = sizeof(peer);

		if (own < 0 && errno == EBADF)
			continue;			/* closed meanwhile */
		if (own < 0)
			return strerror(errno);
		if (getpeername(own, (struct sockaddr *) &peer, &len) == 0 && peer.ss_family == AF_INET &&
			shutdown(own, SHUT_RDWR) == 0)
			result = "done";
		close(own);
	}
	closedir(dir);
	return result;
}

int
main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "thread") == 0)
		puts(stop_thread(atoi(argv[2]), argv[3]));
	else if (argc == 3 && strcmp(argv[1], "connections") == 0)
		puts(cut_connections(atoi(argv[2])));
	else
		return 2;
	return 0;
}

/*
 * Preloaded into a server (LD_PRELOAD), makes it see what is wrong with its host.  The
 * file that BAD_HOST names says what: three numbers of 8 bytes, which a test may change
 * at any time.
 *
 *	sync	how long fsync takes, in ms, without syncing; 0: as long as it does, -1: no time
 *	full	1: what is written to a file of ZooKeeper's data fails with ENOSPC
 *	clock	by how many seconds the clock of the day is wrong.  (A wait until a time of
 *			that clock would not notice.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef struct
{
	int64_t		sync,
				full,
				clock;
} Host;

static Host healthy;
static volatile Host *host = &healthy;

__attribute__((constructor))
static void
look(void)
{
	const char *name = getenv("BAD_HOST");
	int			fd = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
	void	   *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(Host), PROT_READ, MAP_SHARED, fd, 0);

	if (page != MAP_FAILED)
		host = page;
	if (fd >= 0)
		close(fd);
}

static int
sync_with(long number, int fd)
{
	int64_t		ms = host->sync;

	if (ms == 0)
		return syscall(number, fd);
	if (ms > 0)
		nanosleep(&(struct timespec) {ms / 1000, ms % 1000 * 1000000}, NULL);
	return 0;
}

int			fsync(int fd) { return sync_with(SYS_fsync, fd); }
int			fdatasync(int fd) { return sync_with(SYS_fdatasync, fd); }

static int
is_full(int fd)
{
	char		link[64],
				path[4096];
	ssize_t		len;

	if (!host->full)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len < 0)
		return 0;
	path[len] = '\0';
	if (strstr(path, "/version-2/") == NULL)
		return 0;
	errno = ENOSPC;
	return 1;
}

ssize_t
write(int fd, const void *data, size_t len)
{
	return is_full(fd) ? -1 : syscall(SYS_write, fd, data, len);
}

ssize_t
pwrite64(int fd, const void *data, size_t len, off64_t at)
{
	return is_full(fd) ? -1 : syscall(SYS_pwrite64, fd, data, len, at);
}

int
clock_gettime(clockid_t clock, struct timespec *t)
{
	int			result = syscall(SYS_clock_gettime, clock, t);

	if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += host->clock;
	return result;
}

int
gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *t)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (t != NULL)
		*t = now.tv_sec;
	return now.tv_sec;
}

/*
 * For LD_PRELOAD: stops the time of day.  PostgreSQL reports its statistics
 * about once a second, so that two runs of the same statements would otherwise
 * not take the same number of instructions.
 */
#include <stddef.h>
#include <sys/time.h>

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	(void) tz;
	tv->tv_sec = 1700000000;
	tv->tv_usec = 0;
	return 0;
}

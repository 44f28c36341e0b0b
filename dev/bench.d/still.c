/*
 * To be preloaded (LD_PRELOAD): the time of day stands still.  PostgreSQL hands
 * its statistics in when a second is over, so that two runs of the same statements
 * would not be the same number of instructions.
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

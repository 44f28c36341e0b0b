/*-------------------------------------------------------------------------
 *
 * unit.h
 *	  What the tests without a server share: TAP, and random numbers.
 *
 * Included once, by the program itself, which begins with begin_tests() and ends
 * with what end_tests() returns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_UNIT_H
#define ZKLOCK_UNIT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int	ntests = 0;
static int	nfailed = 0;
static uint32_t random_state = 2463534242u;

static void ok(bool passed, const char *format,...) __attribute__((format(printf, 2, 3)));

static void
ok(bool passed, const char *format,...)
{
	va_list		args;

	printf("%sok %d - ", passed ? "" : "not ", ++ntests);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	nfailed += !passed;
}

/* 0 to n - 1; with the same seed the same sequence on every platform */
static int
below(int n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 17;
	random_state ^= random_state << 5;
	return (int) (random_state % (unsigned) n);
}

/* The first argument, if there is one, is the seed */
static void
begin_tests(int argc, char **argv)
{
	if (argc < 2)
		return;
	printf("# seed %s\n", argv[1]);
	random_state = (uint32_t) strtoul(argv[1], NULL, 10) * 2654435761u | 1;
}

/* Returns the exit status */
static int
end_tests(void)
{
	printf("1..%d\n", ntests);
	return nfailed != 0;
}

#endif							/* ZKLOCK_UNIT_H */

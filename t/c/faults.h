/*-------------------------------------------------------------------------
 *
 * faults.h
 *	  The calls that memory_test.c makes fail, in our own files only.
 *
 * The compiler includes this first (-include): the calls below then go through
 * memory_test.c, which counts them; in other programs they do not fail.  The client
 * library's own calls do not, either.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FAULTS_H
#define FAULTS_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <zookeeper/zookeeper.h>

/*
 * Is this call the one that fails?  "memory" is a system allocation, "library"
 * a call of the client library, "send" a system call of the network.
 */
typedef enum FaultKind
{
	FAULT_NONE,
	FAULT_MEMORY,
	FAULT_LIBRARY,
	FAULT_SEND,
	FAULT_KINDS
} FaultKind;

extern int	fault_now(FaultKind kind) __attribute__((weak));
#define FAULT_NOW(kind)		(fault_now != NULL && fault_now(kind))

/* Of node_private.h: a walk waits until the last look */
#define STALE_MS	400

/* The kernel gives less than requested, as most are configured to do */
extern int	meagre_setsockopt(int sock, int level, int name, const void *value, socklen_t len) __attribute__((weak));

#ifndef NO_FAULTS

#define OR_FAIL(kind, errno_, failed, call) \
	(FAULT_NOW(kind) ? (errno = (errno_), (failed)) : (call))

#include <errno.h>

#define malloc(size)		OR_FAIL(FAULT_MEMORY, ENOMEM, NULL, malloc(size))
#define calloc(n, size)		OR_FAIL(FAULT_MEMORY, ENOMEM, NULL, calloc(n, size))
#undef strdup
#define strdup(text)		OR_FAIL(FAULT_MEMORY, ENOMEM, NULL, strdup(text))
#define eventfd(n, flags)	OR_FAIL(FAULT_MEMORY, EMFILE, -1, eventfd(n, flags))
#define getrandom(p, n, f)	OR_FAIL(FAULT_MEMORY, ENOSYS, -1, getrandom(p, n, f))
#define pthread_attr_init(a) \
	(FAULT_NOW(FAULT_MEMORY) ? ENOMEM : pthread_attr_init(a))
#define pthread_create(t, a, f, x) \
	(FAULT_NOW(FAULT_MEMORY) ? EAGAIN : pthread_create(t, a, f, x))
#define zookeeper_init2(...) \
	OR_FAIL(FAULT_MEMORY, ENOMEM, NULL, zookeeper_init2(__VA_ARGS__))

#define setsockopt(s, level, name, value, len) \
	(meagre_setsockopt != NULL ? meagre_setsockopt : setsockopt) (s, level, name, value, len)

/* these report that memory for a request has run out */
#define REFUSED(call)		(FAULT_NOW(FAULT_LIBRARY) ? ZSYSTEMERROR : (call))

#define zoo_acreate(...)	REFUSED(zoo_acreate(__VA_ARGS__))
#define zoo_acreate2(...)	REFUSED(zoo_acreate2(__VA_ARGS__))
#define zoo_adelete(...)	REFUSED(zoo_adelete(__VA_ARGS__))
#define zoo_aexists(...)	REFUSED(zoo_aexists(__VA_ARGS__))
#define zoo_aset(...)		REFUSED(zoo_aset(__VA_ARGS__))
#define zoo_async(...)		REFUSED(zoo_async(__VA_ARGS__))
#define zoo_awget(...)		REFUSED(zoo_awget(__VA_ARGS__))
#define zoo_aget_children(...)	REFUSED(zoo_aget_children(__VA_ARGS__))
#define zoo_amulti(...)		REFUSED(zoo_amulti(__VA_ARGS__))
#define zoo_aremove_all_watches(...) \
	REFUSED(zoo_aremove_all_watches(__VA_ARGS__))

#endif							/* NO_FAULTS */

#endif							/* FAULTS_H */

/*
 * What floor.c and recipe.c have in common: the commands that ./runner
 * describes, and clients that are processes of their own.
 *
 * The first process has no session.  It forks the clients before it starts any
 * thread, and tells them what to do through pipes.
 */
#ifndef CREW_H
#define CREW_H

#include <stdbool.h>
#include <stdint.h>

#include <zookeeper/zookeeper.h>

typedef struct Client Client;	/* a session */
typedef struct Lock Lock;		/* a lock as seen by one session */

/* The functions of a subject.  On an error they call fail(). */
typedef struct Subject
{
	const char *version;

	/* connect; with wait, until there is a session */
	Client	   *(*open) (const char *hosts, int session_timeout, bool wait);
	void		(*close) (Client *client);

	/* return when fd is readable, and keep the session alive until then */
	void		(*idle) (Client *client, int fd);

	/* also makes the directory, if this lock is new to the client */
	Lock	   *(*lock) (Client *client, const char *path, bool make_directory);
	void		(*forget) (Lock *lock);

	void		(*acquire) (Lock *lock);
	void		(*release) (Lock *lock);
	bool		(*try) (Lock *lock);	/* NULL: not supported */

	bool		is_lock;		/* acquire waits for our turn */
} Subject;

extern const Subject subject;

/* Fails the current command with this text; does not return */
extern void fail(const char *format,...) __attribute__((format(printf, 1, 2), noreturn));

extern void *allocate(size_t size);

/*
 * calls each() for every directory of this path, from the top, and for the
 * path itself
 */
extern void split_path(const char *path, void (*each) (void *arg, const char *dir), void *arg);

#endif

/*
 * What floor.c and recipe.c share: the lines that ./runner describes, and clients
 * that are processes of their own.
 *
 * The first process has no session.  It forks the clients, before any thread is
 * there, and tells them what to do through pipes.
 */
#ifndef CREW_H
#define CREW_H

#include <stdbool.h>
#include <stdint.h>

#include <zookeeper/zookeeper.h>

typedef struct Client Client;	/* a session */
typedef struct Lock Lock;		/* a lock as one session knows it */

/* What a subject is made of.  Whatever fails calls fail(). */
typedef struct Subject
{
	const char *version;

	/* connect; wait: until there is a session */
	Client	   *(*open) (const char *hosts, int session_timeout, bool wait);
	void		(*close) (Client *client);

	/* return when fd can be read, and keep the session alive until then */
	void		(*idle) (Client *client, int fd);

	/* its directory is made, too, if this lock of this client is new */
	Lock	   *(*lock) (Client *client, const char *path, bool make_directory);
	void		(*forget) (Lock *lock);

	void		(*acquire) (Lock *lock);
	void		(*release) (Lock *lock);
	bool		(*try) (Lock *lock);	/* NULL: it has no such thing */

	bool		is_lock;		/* acquire waits until it is our turn */
} Subject;

extern const Subject subject;

/* what the present command is answered with; does not return */
extern void fail(const char *format,...) __attribute__((format(printf, 1, 2), noreturn));

extern void *allocate(size_t size);

/* each directory of this path, from the top, and it itself */
extern void split_path(const char *path, void (*each) (void *arg, const char *dir), void *arg);

#endif

/*-------------------------------------------------------------------------
 *
 * session_private.h
 *	  A session as the files in src/zk see it.
 *
 * One mutex guards a session, all that hangs on it, and its handle: the
 * single-threaded client library has no locks of its own.  Names ending in
 * _locked are called with it held, which those assert that other files call.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SESSION_PRIVATE_H
#define ZKLOCK_SESSION_PRIVATE_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include <zookeeper/zookeeper.h>

#include "frame_check.h"
#include "lock_protocol.h"
#include "mark.h"
#include "stop_signal.h"
#include "wakeup.h"
#include "wire.h"

/* What was wrong at one address, the last time */
#define ZKS_FAULTS			8

typedef struct ZkFault
{
	char		address[ZKS_ADDRESS_LEN];	/* "" of a name that has none */
	ZksTrouble	kind;
	char		what[ZKS_TROUBLE_LEN];
	bool		to_listen;		/* the next attempt says nothing for a moment:
								 * see LISTEN_MS in connection.c */
} ZkFault;

/* To reach a server: connection.c */
typedef struct ZkAttempts
{
	int64_t		at;				/* when the latest connection attempt began */
	bool		trying;			/* it has not been counted as finished */
	bool		of_use;			/* it has brought an answer */
	char		address[ZKS_ADDRESS_LEN];	/* of the latest attempt; "" if it
											 * is not known yet */
	int			nfaults;		/* since the last connection */
	ZkFault		faults[ZKS_FAULTS]; /* the most telling first; a later one at
									 * the same address replaces one */
	int			tries;			/* successive attempts that were of no use */
	int			ntimeouts;		/* how many of these took too long */
	bool		refused;		/* one of this round did not, but failed */
	int64_t		next_at;		/* no new connection before this time */
} ZkAttempts;

/* What the keeper does, and when: keeper_thread.c */
typedef struct ZkDue
{
	int64_t		answer_by;		/* a handshake was the last answer: by when a
								 * request has to be answered; or 0 */
	int64_t		heartbeat_at;	/* when the last one was sent */
	int64_t		catch_up_at;	/* sooner than at the next: a request of this
								 * thread may have been throttled; or 0 */
	int			catch_up_ms;	/* the last pause before that */
	int64_t		quorum_since;	/* since when they ask the quorum, so that its
								 * silence means something; or 0 */
	int64_t		renew_at;		/* when forfeited: time for a new handle */
	int64_t		close_by;		/* the deadline once the keeper has seen
								 * closing; or 0 */
} ZkDue;

/* Where the servers are: resolve.c */
typedef struct ZkServers
{
	char	   *addresses;		/* for the library, which gets an odd number */
	char	   *names;			/* lines of "address:port name" */
	int			n;
} ZkServers;

TAILQ_HEAD(ZkRequestList, ZkRequest);
LIST_HEAD(ZkWatchList, ZkWatch);
TAILQ_HEAD(ZkNodeList, ZkNode);

/* What was sent, and answered: request.c */
typedef struct ZkRequests
{
	struct ZkRequestList sent;	/* in the order in which answers come */
	struct ZkRequestList answered;	/* and not freed */
	int			in_flight;		/* how many are sent */
	uint64_t	replies;		/* completions seen, ever */
} ZkRequests;

/*
 * Its watches: watch.c.  What is not written to takes no memory, and there are no more than
 * some ten thousand: their paths must fit into one packet.
 */
#define ZKR_CHAINS			1024

typedef struct ZkWatches
{
	struct ZkWatchList all;
	struct ZkWatchList chains[ZKR_CHAINS];	/* the same by a hash of the path */
	size_t		bytes;			/* what their paths need in a packet */
} ZkWatches;

/* Its nodes: node.c, and what relies on them: proof.c */
typedef struct ZkNodes
{
	struct ZkNodeList all;		/* first those that are not wanted */
	size_t		path_bytes;		/* of those that may be there */
	ZkNode	   *expecting;		/* which is next in line for its lock; or NULL */
	unsigned int nrelied;		/* how many the owner relies on */
	unsigned int transaction;	/* of the owner: see zkn_rely_less */
	bool		some_lost;		/* maybe; false: none that anybody wants is */
	uint64_t	tickets;
} ZkNodes;

/* For how long it has had nothing: see zks_use */
typedef struct ZkIdle
{
	bool		in_use;			/* the owner may call at any moment */
	int			ms;				/* how long it may be idle; 0: forever */
	int64_t		since;			/* when it was last worked with, or had a node */
	atomic_bool retired;		/* it was idle for too long; read without the
								 * mutex, too */
} ZkIdle;

/* What other processes see: proof.c */
typedef struct ZkShowing
{
	pthread_mutex_t mutex;		/* held only while the memory is written,
								 * which goes away after zks_unshow */
	ZkShown    *memory;			/* NULL: to nobody */
	ZkNode	   *nodes[ZKS_SHOWN_NODES];
} ZkShowing;

TAILQ_HEAD(ZkTurnList, ZkTurn);

struct ZkSession
{
	pthread_mutex_t mutex;
	sigset_t	owner_mask;		/* its signal mask, while it has the mutex */
	pthread_t	keeper;
	ZkWakeup	wakeup;
	ZkOptions	options;		/* copies */
	size_t		closed_acl_bytes;	/* the size of what "creator" becomes at
									 * the server */

	/* set by one thread, read by the other, without the mutex */
	atomic_bool closing;		/* the owner wants the session closed */
	atomic_bool keeper_done;
	atomic_uint news;			/* see zks_news */
	atomic_int	owners;			/* the last of the two frees the session */
	atomic_bool gathering;		/* more will be sent at once */

	/* all below: under the mutex */
	zhandle_t  *zh;
	int			sock;			/* the library's socket, or -1 */
	ZkWire	   *wire;			/* of the latest connection with TLS */
	int			receive_buffer; /* its size; 0 before the first */
	ZkServers	servers;
	ZkAttempts	attempts;
	bool		awaited;		/* the owner sleeps until something happens */
	ZkFrame		frame;

	ZkSessionInfo info;
	ZkSessionTexts texts;
	ZkDue		due;
	clientid_t	id;				/* with which the session can be resumed */
	ZkIdle		idle;
	bool		notify;			/* wake the owner, once the mutex is free */
	bool		corked;			/* requests are held back until the mutex is
								 * free */

	ZkRequests	requests;
	ZkWatches	watches;
	ZkNodes		nodes;
	ZkMarks		marks;
	struct ZkTurnList turns;	/* turn.c: our last in each queue, the latest
								 * first */
	int			nturns;
	ZkShowing	shown;
};

/* session_state.c */
extern bool zks_make_uuid(char *text);
extern uint32_t zks_random(uint32_t n);
extern int	zks_ms_until(int64_t until, int64_t now);

/*
 * The mutex, for the keeper, which takes no signals, and for the main thread,
 * whose signals are blocked meanwhile if a handler may leave the process
 */
extern ZkSession *zks_entered(void);	/* whose this thread has, or NULL */
extern bool zks_has_mutex(ZkSession *s);
extern void zks_lock(ZkSession *s);
extern void zks_unlock(ZkSession *s);
extern void zks_enter(ZkSession *s);
extern void zks_leave(ZkSession *s);
extern void zks_block_signals(sigset_t *before);
extern bool zks_start_thread(pthread_t *thread, size_t stack, void *(*run) (void *), void *arg);
extern void zks_cork_locked(ZkSession *s);
extern void zks_uncork_locked(ZkSession *s);
extern void zks_set_state_locked(ZkSession *s, ZkSessionState state);
extern void zks_count_loss_locked(ZkSession *s);
extern void zks_end_locked(ZkSession *s, int error);
extern bool zks_usable_locked(ZkSession *s);
extern void zks_catch_up_soon_locked(ZkSession *s);
extern ZksTrouble zks_errno_trouble(int code);

/* keeper_thread.c */
extern bool zks_start_keeper(ZkSession *s);
extern void zks_disown(ZkSession *s);

/* resolve.c */
extern bool zks_resolve(const char *hosts, bool only_numeric, ZkServers *servers, char *error, int errlen);

/* stop_signal.c */
extern int64_t zks_stop_locked(ZkSession *s, int64_t now);
extern bool zks_stop_heeds_doubt(void);

/* From here on its thread does not ask: what the session had is lost */
extern void zks_stop_closes(ZkSession *s);

/*
 * A production server must never crash because of us, so only with
 * PostgreSQL's assertions
 */
#ifdef ZKLOCK_ASSERTIONS
#include <assert.h>
#define zk_assert(condition)	assert(condition)
#else
#define zk_assert(condition)	((void) 0)
#endif

/* of two times */
static inline int64_t
zks_earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

#endif							/* ZKLOCK_SESSION_PRIVATE_H */

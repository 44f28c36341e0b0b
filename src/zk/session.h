/*-------------------------------------------------------------------------
 *
 * session.h
 *	  One ZooKeeper session, kept alive by a thread of its own.
 *
 * This is all that the rooms above may use.  Plain C and pthreads: no
 * PostgreSQL header may be included by what implements it, so that no palloc
 * or ereport can ever run in a thread that PostgreSQL did not start.
 *
 * Every function here may be called from the owning (main) thread only; none
 * of them blocks, except zks_close for as long as it is told, and zks_awaited
 * for a millisecond where half an answer has arrived.  What happens
 * meanwhile is announced on a descriptor: see zks_await.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SESSION_H
#define ZKLOCK_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol.h"

/* Descriptors that a session uses: those of wakeup.c, the socket; with TLS, two more */
#define ZKS_DESCRIPTORS		6

/* Room for a root, a path and a node's name */
#define ZKS_PATH_LEN		2304

/* All times are in ns of zks_now(); settings and timeouts in ms */
#define ZKS_MS				INT64_C(1000000)

/* A time that has not come, or a limit that there is not */
#define ZKS_NEVER			INT64_MAX

typedef struct ZkSession ZkSession;
typedef struct ZkRequest ZkRequest;
typedef struct ZkNode ZkNode;
typedef struct ZkWatch ZkWatch;
typedef struct ZkTls ZkTls;

typedef enum ZkSessionState
{
	ZKS_CONNECTING,				/* no server has accepted us yet */
	ZKS_CONNECTED,				/* heartbeats are answered */
	ZKS_SUSPENDED,				/* cut off; the session may still live */
	ZKS_OVER					/* expired, refused, or given up: for good */
} ZkSessionState;

typedef struct ZkSessionInfo
{
	ZkSessionState state;
	int			error;			/* why it is over: a ZooKeeper code */
	uint32_t	epoch;			/* connections made so far */
	int64_t		session_id;
	int			timeout_ms;		/* negotiated; asked for until then */
	int64_t		proven_at;		/* when the last answered request was sent */
	int64_t		quorum_at;		/* the same, of one that made a transaction */
	int64_t		late_at;		/* when an answer last came late: see
								 * request.c */
	bool		in_doubt;		/* so late that only a transaction can tell */
	bool		forfeited;		/* nothing was heard for a whole timeout: what
								 * it had is lost, though it may live */
	int64_t		suspended_at;	/* since when cut off */
	int64_t		heard_at;		/* when the last answer came */
	uint64_t	requests;		/* sent, heartbeats included */
	uint64_t	reconnections;
	uint64_t	losses;			/* how often what it had was lost */
	int			unreleased;		/* nodes that ZooKeeper refuses to delete */
	int			refused;		/* with this code, the latest of them */
	uint64_t	refusals;		/* how many ever, except those of zkn_delete */
	char		server[64];		/* address of the server, or "" */
	char		trouble[160];	/* the last fault of the connection, or "" */
} ZkSessionInfo;

/*
 * Nanoseconds of CLOCK_BOOTTIME, which goes on while a machine is suspended:
 * ZooKeeper's clock for our session does, too.
 */
extern int64_t zks_now(void);

/* Who we are: "digest" and "user:password", and whatever a server understands */
typedef struct ZkCredential
{
	char	   *scheme;
	char	   *secret;
} ZkCredential;

typedef struct ZkOptions
{
	const char *hosts;			/* "host:port,...": see hosts.h */
	int			timeout_ms;		/* asked of the server */
	bool		handlers_return;	/* no signal handler of this process
									 * leaves it, but by _exit() */
	const ZkCredential *credentials;	/* told to each server */
	int			ncredentials;
	ZkTls	   *tls;			/* taken over; NULL: without */
} ZkOptions;

/*
 * What TLS needs, or NULL with an explanation, a sentence that names no file;
 * without ZKLOCK_HAVE_TLS always that.  All but ca may be empty.
 */
typedef struct ZkTlsFiles
{
	const char *ca;
	const char *cert;
	const char *key;
	const char *crl;			/* what the authorities have revoked */
	bool		verify_host;	/* the server's certificate must name it */
} ZkTlsFiles;

extern ZkTls *zks_tls(const ZkTlsFiles *files, char *error, int errlen);

/*
 * Begin a session.  Names are looked up by the session's thread.  The options
 * are copied; the copies of secrets are wiped at the end of the session, but not
 * those that the library makes.  Returns NULL with errno set when there
 * are not the resources for it.
 */
extern ZkSession *zks_open(const ZkOptions *options);

/*
 * End the session: ZooKeeper deletes its nodes.  Waits at most bound_ms; what
 * is left then ends by itself, or with the process.  The session, its
 * requests, nodes and watches must not be used afterwards.
 */
extern void zks_close(ZkSession *session, int bound_ms);

extern void zks_info(ZkSession *session, ZkSessionInfo *info);

/*
 * If nothing has proven for a whole timeout that the session lives, another may
 * have what it had.  All of that is lost from now on, whatever the session's
 * thread has seen, since what is in doubt counts as lost.
 */
extern void zks_expire(ZkSession *session);

/*
 * Between zks_gather and zks_send, or the next wait, requests are kept back (for
 * no longer than 200 ms), so that they go out together.
 */
extern void zks_gather(ZkSession *session);
extern void zks_send(ZkSession *session);

/*
 * Around each wait.  The descriptor becomes readable when something has changed,
 * or may have; zks_awaited, which must follow, sees what it is and clears it.
 * answer_due, which may be NULL: something has been asked, and is to be answered
 * soon.
 */
extern int	zks_await(ZkSession *session, bool *answer_due);
extern void zks_awaited(ZkSession *session);

/*
 * Requests.  A code is ZooKeeper's own; zks_is_doubtful tells the ones that
 * leave open whether the request was carried out.
 */
typedef struct ZkAnswer
{
	int			rc;
	int64_t		sent_at;		/* zks_now() before it was sent */
	uint32_t	epoch;			/* the connection on which it was sent */
	int			nchildren;
	char	  **children;		/* of a list, those that are contenders; valid
								 * until zks_request_free */
	int			missing;		/* of a check: the first node that is not
								 * there */
	int64_t		czxid;			/* of what was read; if its data says that it
								 * took the place of another, of that */
	bool		says_shared;	/* its data: see protocol.h */
	int64_t		owner;			/* the session, of an ephemeral node */
	int64_t		made_at_ms;		/* ZooKeeper's clock, since 1970 */
	const char *data;			/* as far as it was kept; valid until */
	int			data_len;		/* zks_request_free */
} ZkAnswer;

/* zks_read keeps this much of what a node holds */
#define ZKS_DATA_KEPT		2304

/*
 * Those of its codes that have a meaning above the wall, by names of ours (its
 * header is for those below), and one that is ours.
 */
typedef enum ZksCode
{
	ZKS_OK = 0,
	ZKS_BAD_ARGUMENTS = -8,
	ZKS_NO_NODE = -101,
	ZKS_NO_AUTH = -102,
	ZKS_NO_CHILDREN = -108,		/* nodes below an ephemeral one */
	ZKS_NOT_EMPTY = -111,
	ZKS_INVALID_ACL = -114,
	ZKS_QUOTA_EXCEEDED = -125,
	ZKS_TOO_LARGE = -10001		/* an answer of more than 8 MB: was not read */
} ZksCode;

/* What the library says of a code */
extern const char *zks_code_text(int rc);

extern bool zks_is_doubtful(int rc);

/* ZooKeeper does not accept who we are: the session ends with this code */
extern bool zks_is_auth_failure(int rc);

/* The contenders in a directory; fresh: as the leader knows them */
extern ZkRequest *zks_list(ZkSession *session, const char *dir, bool fresh);

/* One node, as the server knows it that has us now */
extern ZkRequest *zks_read(ZkSession *session, const char *path);

/* The same without the data, which even those may who cannot read it */
extern ZkRequest *zks_stat(ZkSession *session, const char *path);

/* Delete anybody's node */
extern ZkRequest *zks_delete(ZkSession *session, const char *path);

extern bool zks_answered(ZkSession *session, ZkRequest *request, ZkAnswer *answer);
extern void zks_request_free(ZkSession *session, ZkRequest *request);

/*
 * Watches on the deletion of a node (node.c has its own for what we hold), or
 * on the children of a directory
 */
typedef enum ZkWatchState
{
	ZKR_WATCH_PENDING,			/* ZooKeeper has not answered yet */
	ZKR_WATCH_ARMED,
	ZKR_WATCH_FIRED,			/* the node is gone, or was when we asked */
	ZKR_WATCH_CHANGED,			/* its data, or who its children are, changed:
								 * no longer armed */
	ZKR_WATCH_FAILED			/* not armed: the connection broke */
} ZkWatchState;

typedef struct ZkWatchInfo
{
	ZkWatchState state;
	int			rc;				/* why it failed */
	uint32_t	epoch;			/* the connection on which it was set */
	bool		says_shared;	/* the data of the node, when it was set */
	bool		says_granted;
} ZkWatchInfo;

extern ZkWatch *zks_watch(ZkSession *session, const char *path);

/* As zks_list; the watch tells when the list is out of date */
extern ZkRequest *zks_list_and_watch(ZkSession *session, const char *dir, bool fresh,
									 ZkWatch **watch);
extern void zks_watch_info(ZkSession *session, ZkWatch *watch, ZkWatchInfo *info);
extern void zks_unwatch(ZkSession *session, ZkWatch *watch);

/* What is known of how something was lost */
typedef enum ZkLoss
{
	ZK_NOT_LOST,
	ZK_LOST_NODE,				/* ZooKeeper says that the node is gone */
	ZK_LOST_ACCESS,				/* it no longer lets us see the node */
	ZK_LOST_CONTACT,			/* nothing was heard for the whole timeout */
	ZK_LOST_SESSION,			/* ZooKeeper has ended the session */
	ZK_LOST_IDENTITY			/* it no longer accepts who we are */
} ZkLoss;

/* node.c: nodes that this session made, or is about to make */
typedef enum ZkNodeState
{
	ZKN_CREATING,				/* asked for, not answered */
	ZKN_UNSURE,					/* the answer was lost; being looked for */
	ZKN_PRESENT,				/* there, and ours */
	ZKN_ABSENT,					/* not made; rc says why */
	ZKN_PRUNING,				/* nor wanted; its directories go: not seen by
								 * the owner */
	ZKN_LOST,					/* was there, and no longer is */
	ZKN_DELETED					/* by zkn_delete; rc: ZKS_OK, or ZKS_NO_NODE
								 * if nobody knows whether it was there until
								 * then */
} ZkNodeState;

typedef struct ZkNodeInfo
{
	ZkNodeState state;
	int			rc;				/* why it is absent, or not deleted yet */
	ZkLoss		loss;			/* why it is lost */
	bool		sharing;		/* zkn_share is under way */
	int64_t		czxid;			/* the transaction that made it */
	char		name[ZKP_NAME_LEN];
	ZkWatchState watch;			/* that on the node itself, once asked for */
	uint32_t	watch_epoch;
} ZkNodeInfo;

/*
 * Make a contender in each of these directories, all or none, in one
 * transaction; so two who do that stand in the same order everywhere.  With
 * parents, make the directories first, as containers.  False: memory is out.
 * What it has to say of a node that was not made because another could not be
 * is ZRUNTIMEINCONSISTENCY.
 */
extern bool zkn_create(ZkSession *session, char *const *dirs, int n, const ZkpWant *want,
					   bool parents, ZkNode **nodes);

/* A node that ZooKeeper refuses to delete, or "" */
extern void zkn_refused_path(ZkSession *session, char *path, int size);

/* Whether contenders in these directories fit into one transaction */
extern bool zkn_fit(ZkSession *session, char *const *dirs, int n, const ZkpWant *want);

extern void zkn_info(ZkSession *session, ZkNode *node, ZkNodeInfo *info);

/* Watch the node itself, so that its loss is noticed */
extern void zkn_watch(ZkSession *session, ZkNode *node);

/*
 * The same by name: somebody is about to delete that node.  Nothing happens if
 * it is not one of this session's.
 */
extern void zkn_watch_named(ZkSession *session, const char *dir, const char *name);

/*
 * Asks the leader and a quorum whether these nodes are there, in one request that
 * changes nothing.  Only the answer to such a request proves that the session
 * lives: a follower that is cut off from its leader still answers reads.  n: how
 * many there are, and then how many of them are asked for, since a request has
 * its limits.  Returns NULL when memory is out.
 */
#define ZKN_CHECK_MAX		1000
extern ZkRequest *zkn_check(ZkSession *session, ZkNode *const *nodes, int *n);

/* The first of them that is known to be gone, and how; or -1 */
extern int	zkn_first_lost(ZkSession *session, ZkNode *const *nodes, int n, ZkLoss *loss);

/*
 * ZooKeeper has said so of a node that was there.  False: the node was about to
 * get another name just then, so ask again.
 */
extern bool zkn_lost(ZkSession *session, ZkNode *node, ZkLoss loss);

/*
 * The latest time for which a quorum's answer proves that all of these were
 * there: that of their own create or check; or, of one whose watch is armed on
 * this connection, that of the latest transaction of the session, since its
 * deletion would have been told before that was answered.
 */
extern int64_t zkn_proven_at(ZkSession *session, ZkNode *const *nodes, int n);

/* A check that was sent then has found these there */
extern void zkn_proven(ZkSession *session, ZkNode *const *nodes, int n, int64_t sent_at);

/*
 * The holder of this exclusive node becomes a reader: those who wait behind it
 * shall see that, and there is no moment in which it does not stand there.
 * Goes on until it is done; must not fail, since transactions end in it.  The
 * ticket tells when it is.
 */
extern uint64_t zkn_share(ZkSession *session, ZkNode *node);

/*
 * This one's place of a semaphore is its own, and others wait to be told.  Goes
 * on until it is answered, and must not fail either.
 */
extern void zkn_tell_granted(ZkSession *session, ZkNode *node);

/*
 * Delete a node that is present, or lost, and tell in zkn_info what became of
 * it.  Goes on until it is gone, like zkn_discard, which the owner still has
 * to call.
 */
extern void zkn_delete(ZkSession *session, ZkNode *node);

/*
 * Nobody wants the node any longer, whatever its state: it is deleted, now or as
 * soon as that is possible.  Must not fail, since the end of a transaction calls
 * it.  The node must not be used afterwards; the ticket tells when it is gone.
 */
extern uint64_t zkn_discard(ZkSession *session, ZkNode *node);

/*
 * The number of nodes in this directory that nobody here wants, and that a list
 * which is sent now may still show.
 */
extern int	zkn_leftovers(ZkSession *session, const char *dir);

/*
 * Leave out of this queue the nodes that nobody here wants: they do not stand in
 * our way.  Returns how many contenders are left.
 */
extern int	zkn_leave_out_unwanted(ZkSession *session, const char *dir,
								   ZkpContender *queue, int n);

/*
 * Whether all nodes with tickets from first to last are gone, or shared.  If
 * not, refused is the code with which ZooKeeper refused one, or 0.
 */
extern bool zkn_gone(ZkSession *session, uint64_t first, uint64_t last, int *refused);

#endif							/* ZKLOCK_SESSION_H */

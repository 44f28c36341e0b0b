/*-------------------------------------------------------------------------
 *
 * session.h
 *	  One ZooKeeper session, kept alive by a thread of its own.
 *
 * This is everything that the folders above may use.  Plain C and pthreads: no
 * PostgreSQL header may be included by its implementation, so that no palloc
 * or ereport can ever run in a thread that PostgreSQL did not start.
 *
 * Every function here may be called only from the owning (main) thread.  None
 * of them blocks, except zks_close and zks_doze for as long as they are told, and
 * zks_awaited for a millisecond if half an answer has arrived.  A descriptor
 * announces what happens meanwhile: see zks_await.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SESSION_H
#define ZKLOCK_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lock_protocol.h"

/* Descriptors that a session uses: those of wakeup.c, the socket; with TLS, two more */
#define ZKS_DESCRIPTORS		6

/* Room for a root, a path and a node's name */
#define ZKS_PATH_LEN		2304

/* As much as a server takes at once, unless its jute.maxbuffer is changed */
#define ZKS_PACKET_BYTES	0xfffff

/* All times are in ns of zks_now(); settings and timeouts in ms */
#define ZKS_MS				INT64_C(1000000)

/* A time that never comes, or no limit */
#define ZKS_NEVER			INT64_MAX

typedef struct ZkSession ZkSession;
typedef struct ZkRequest ZkRequest;
typedef struct ZkNode ZkNode;
typedef struct ZkWatch ZkWatch;
typedef struct ZkMark ZkMark;
typedef struct ZkTls ZkTls;

typedef enum ZkSessionState
{
	ZKS_CONNECTING,				/* no server has accepted us yet */
	ZKS_CONNECTED,				/* heartbeats are answered */
	ZKS_SUSPENDED,				/* cut off; the session may still live */
	ZKS_OVER					/* expired, refused, or given up: for good */
} ZkSessionState;

/*
 * What kind of fault a connection had.  Of several servers, or addresses of one, the
 * later kind here tells more: who listens there knows more than who does not.
 */
typedef enum ZksTrouble
{
	ZKS_TROUBLE_NO_WAY,			/* or none: nobody has answered yet */
	ZKS_TROUBLE_REFUSED,		/* nobody listens there */
	ZKS_TROUBLE_NAME,			/* a host name could not be resolved */
	ZKS_TROUBLE_CLOSED,			/* the server closed the connection */
	ZKS_TROUBLE_CROWDED,		/* it did so before we had said anything */
	ZKS_TROUBLE_OTHER,			/* such as silence */
	ZKS_TROUBLE_FOREIGN,		/* what answers is not ZooKeeper */
	ZKS_TROUBLE_TLS
} ZksTrouble;

/*
 * Room for the last fault at each address, the most telling first, as far as it
 * goes; and for one of them
 */
#define ZKS_TROUBLES_LEN	400
#define ZKS_TROUBLE_LEN		160

typedef struct ZkSessionInfo
{
	ZkSessionState state;
	int			error;			/* why it is over: a ZooKeeper code */
	uint32_t	epoch;			/* connections made so far */
	int64_t		session_id;
	int			timeout_ms;		/* negotiated; until then the requested one */
	int64_t		proven_at;		/* when the last answered request was sent */
	int64_t		quorum_at;		/* the same for one that made a transaction */
	int64_t		late_at;		/* when an answer last came late: see
								 * request.c */
	bool		in_doubt;		/* so late that only a transaction can tell */
	int64_t		revived_at;		/* when an answer last came that late */
	bool		forfeited;		/* nothing was heard for a whole timeout: what
								 * it had is lost, though it may still live */
	int64_t		suspended_at;	/* when it was cut off */
	int64_t		heard_at;		/* when the last answer came */
	uint64_t	requests;		/* sent, heartbeats included */
	uint64_t	reconnections;
	uint64_t	losses;			/* how often what it had was lost */
	uint64_t	outages;		/* how often it was cut off for more than a
								 * third of its timeout, and back in time */
	int			outage_ms;		/* how long the latest of them was */
	char		outage_cause[ZKS_TROUBLES_LEN]; /* its troubles then, or "" */
	ZksTrouble	outage_kind;
	char		loss_cause[ZKS_TROUBLES_LEN];	/* the same at the latest loss */
	ZksTrouble	loss_kind;
	int			unreleased;		/* nodes that ZooKeeper refuses to delete */
	int			refused;		/* the code for the latest of them */
	uint64_t	refusals;		/* how many ever, except those of zkn_delete */
	uint64_t	unsettled;		/* marks of claims that ZooKeeper did not let
								 * us settle, and that we have given up */
	int			unsettled_rc;	/* the code for the latest of them */
	char		unsettled_mark[160];	/* its path, in ASCII, maybe cut */
	char		server[64];		/* address of the server, or "" */
	char		trouble[ZKS_TROUBLES_LEN];	/* the last faults of the
											 * connection, or "" */
	int			troubles;		/* at how many addresses; 0 or 1: it names
								 * none */
	ZksTrouble	trouble_kind;	/* of the most telling */
} ZkSessionInfo;

/*
 * Nanoseconds of CLOCK_BOOTTIME, which continues while a machine is suspended,
 * as does ZooKeeper's clock for our session.
 */
extern int64_t zks_now(void);

/*
 * An identity: "digest" and "user:password", or any other scheme that a server
 * supports
 */
typedef struct ZkCredential
{
	char	   *scheme;
	char	   *secret;
} ZkCredential;

typedef struct ZkOptions
{
	const char *hosts;			/* "host:port,...": see hosts.h */
	int			timeout_ms;		/* requested */
	bool		handlers_return;	/* no signal handler of this process
									 * leaves it, except by _exit() */
	const ZkCredential *credentials;	/* sent to each server */
	int			ncredentials;
	ZkTls	   *tls;			/* ownership is transferred; NULL: without */
} ZkOptions;

/*
 * Prepares TLS, or returns NULL with an explanation, a sentence that names no
 * file; without ZKLOCK_HAVE_TLS always that.  If descriptors or memory were
 * missing, errno is EMFILE, ENFILE or ENOMEM.  All but ca may be empty.
 */
typedef struct ZkTlsFiles
{
	const char *ca;
	const char *cert;
	const char *key;
	const char *crl;			/* the CRLs of the authorities */
	bool		verify_host;	/* the server's certificate must name it */
} ZkTlsFiles;

extern ZkTls *zks_tls(const ZkTlsFiles *files, char *error, int errlen);

/*
 * Begin a session.  The session's thread looks the names up; if there are none,
 * what is sent first is sent here.  The options are copied; our copies of secrets
 * are wiped at the end of the session, the library's are not.  Returns NULL with
 * errno set if resources are exhausted.
 */
extern ZkSession *zks_open(const ZkOptions *options);

/* The first part of zks_close: false if the end took longer than bound_ms */
extern bool zks_closed(ZkSession *session, int bound_ms);

/*
 * End the session: ZooKeeper deletes its nodes.  Waits at most bound_ms; what
 * remains then ends by itself, or with the process.  The session, its
 * requests, nodes and watches must not be used afterwards.  Its marks that are
 * not settled are put into the list, for zkn_adopt_marks; NULL: the process
 * ends.
 */
extern void zks_close(ZkSession *session, int bound_ms, ZkMark **left);

/*
 * A session that has nothing for idle_ms (0: never) is closed by its thread, and is
 * then retired.  That cannot be between zks_use, or zks_open, and zks_rest, and
 * elsewhere no other function of these may be called.  zks_use is false if it has
 * happened: the session can be looked at, and must be closed.  worked: the owner
 * has asked it for something since.
 */
extern bool zks_use(ZkSession *session);
extern void zks_rest(ZkSession *session, int idle_ms, bool worked);

extern void zks_info(ZkSession *session, ZkSessionInfo *info);

/*
 * A number that changes with losses, outages, and timeouts other than requested;
 * takes no mutex
 */
extern unsigned zks_news(ZkSession *session);

/*
 * What everybody may know of a session: in memory that other processes read,
 * too, at any time.  Both threads write it, with the session's mutex; each word
 * is for itself, and an old one never makes what is lost look held.
 */
#define ZKS_SHOWN_NODES		4
#define ZKS_SHOWN_IN_DOUBT	0x08
#define ZKS_SHOWN_LOST(i)	(0x10 << (i))	/* the i-th node of zkn_show */

typedef struct ZkShown
{
	_Atomic uint32_t state;		/* ZkSessionState + 1, and these; 0: none */
	_Atomic uint32_t timeout_ms;
	_Atomic int64_t session_id; /* 0: none yet */
	_Atomic int64_t proven_at;
	_Atomic uint64_t requests;
	_Atomic uint64_t reconnections;
	_Atomic uint64_t losses;
	_Atomic uint32_t unreleased;
} ZkShown;

/*
 * Keep this up to date from now on, or leave it alone, before the memory goes
 * away: the keeper may outlive zks_close.
 */
extern void zks_show(ZkSession *session, ZkShown *shown);
extern void zks_unshow(ZkSession *session);

/*
 * If nothing has proven for a whole timeout that the session lives, others may
 * have got what it had.  All of that is lost from now on, whatever the
 * session's thread has seen, since doubt counts as loss.
 */
extern void zks_expire(ZkSession *session);

/*
 * Between zks_gather and zks_send, or the next wait, requests are held back
 * (for at most 200 ms), so that they go out together.
 */
extern void zks_gather(ZkSession *session);
extern void zks_send(ZkSession *session);

/*
 * To be called around each wait.  The descriptor becomes readable when
 * something has changed, or may have; zks_awaited, which must follow,
 * processes that and clears it.  answer_due, which may be NULL: whether a
 * request is outstanding that will be answered soon.  zks_doze waits for the
 * descriptor, ms milliseconds at most or until a signal comes; true if it is
 * readable.  That is less work for the kernel than a poll() of it.
 */
extern int	zks_await(ZkSession *session, bool *answer_due);
extern bool zks_doze(ZkSession *session, int ms);
extern void zks_awaited(ZkSession *session);

/*
 * Requests.  A code is ZooKeeper's own; zks_is_doubtful is true for those that
 * leave open whether the request was carried out.
 */
#define ZKS_STRANGERS		10

typedef struct ZkAnswer
{
	int			rc;
	int64_t		sent_at;		/* zks_now() before it was sent */
	uint32_t	epoch;			/* the connection on which it was sent */
	int			nchildren;
	char	  **children;		/* of a list, those asked for; valid until
								 * zks_request_free */
	int			nstrangers;		/* beside contenders, the first ones that may
								 * be */
	char	  **strangers;		/* another kind of lock's; valid as long */
	int			missing;		/* of a check: the first node that does not
								 * exist */
	int64_t		czxid;			/* of what was read; if its data says that it
								 * took the place of another, of that */
	int64_t		own_czxid;		/* of the node itself, whatever its data says */
	bool		says_shared;	/* its data: see lock_protocol.h */
	int64_t		owner;			/* the session, of an ephemeral node */
	int			version;		/* of the data */
	int			nbelow;			/* how many children it has */
	bool		is_mark;		/* a directory that zklock made */
	int64_t		made_at_ms;		/* by ZooKeeper's clock, since 1970 */
	const char *data;			/* the part that was kept; valid until */
	int			data_len;		/* zks_request_free */
} ZkAnswer;

/* zks_read keeps this much of what a node holds, zks_read_record this */
#define ZKS_DATA_KEPT		2304
#define ZKS_RECORD_KEPT		(64 * 1024)

/*
 * Those of ZooKeeper's codes that matter above the wall, under names of ours
 * (its header is only for files below), and two of our own.
 */
typedef enum ZksCode
{
	ZKS_OK = 0,
	ZKS_BAD_ARGUMENTS = -8,
	ZKS_NO_NODE = -101,
	ZKS_NO_AUTH = -102,
	ZKS_BAD_VERSION = -103,
	ZKS_NO_CHILDREN = -108,		/* nodes below an ephemeral one */
	ZKS_NODE_EXISTS = -110,
	ZKS_NOT_EMPTY = -111,
	ZKS_SESSION_EXPIRED = -112,
	ZKS_INVALID_ACL = -114,
	ZKS_LOCAL_SESSION = -120,	/* which can have no ephemeral nodes */
	ZKS_QUOTA_EXCEEDED = -125,
	ZKS_THROTTLED = -127,
	ZKS_TOO_LARGE = -10001,		/* an answer of more than 8 MB was not read */
	ZKS_IN_DOUBT = -10002		/* was not sent, since it could be confused
								 * with others that may still be carried out */
} ZksCode;

/* The library's text for a code */
extern const char *zks_code_text(int rc);

extern bool zks_is_doubtful(int rc);

/* "Not now": the request was not carried out, and will be if it is sent again */
extern bool zks_is_busy(int rc);

/* Nothing of that is an answer: what was asked must be asked again */
static inline bool
zks_is_open(int rc)
{
	return zks_is_doubtful(rc) || zks_is_busy(rc);
}

/* ZooKeeper does not accept our identity: the session ends with this code */
extern bool zks_is_auth_failure(int rc);

/* The contenders in a directory; fresh: according to the leader */
extern ZkRequest *zks_list(ZkSession *session, const char *dir, bool fresh);

/* All that is there, whatever it is */
extern ZkRequest *zks_list_all(ZkSession *session, const char *dir, bool fresh);

/* One node, according to the server that we are connected to */
extern ZkRequest *zks_read(ZkSession *session, const char *path);

/* According to the leader */
extern ZkRequest *zks_read_fresh(ZkSession *session, const char *path);

/* zks_read without the data, possible even without permission to read it */
extern ZkRequest *zks_stat(ZkSession *session, const char *path);

/* Make a node that stays, without data; closed as in ZkpWant */
extern ZkRequest *zks_make(ZkSession *session, const char *path, bool closed);

/* Delete any node, whoever created it, if it has this version (-1: any) */
extern ZkRequest *zks_delete(ZkSession *session, const char *path, int version);

/* The same of a directory that is empty, and of nothing but a directory */
extern ZkRequest *zks_delete_directory(ZkSession *session, const char *path, int version);

/*
 * Records: see ZKP_BOARD.  The list is that of the server that we are connected
 * to, which has all that this session created before.
 */
extern ZkRequest *zks_list_records(ZkSession *session, const char *dir);
extern ZkRequest *zks_read_record(ZkSession *session, const char *path);

/* Set the data of a node that has this version; -1: any */
extern ZkRequest *zks_write(ZkSession *session, const char *path, const char *data, int version);

/* The greatest version that a new single node of a zklock has */
#define ZKN_MOST_VERSION	31

/*
 * The same, in one transaction, so often that the version becomes greater than that.
 * It must not be so already.
 */
extern ZkRequest *zks_mark_version(ZkSession *session, const char *path, const char *data, int version);

/*
 * Delete a node if all of these exist, with these versions (-1: any), in one
 * transaction.  There must be fewer than ZKN_CHECK_MAX.
 */
typedef struct ZkCheck
{
	const char *path;
	int			version;
} ZkCheck;

extern ZkRequest *zks_delete_if(ZkSession *session, const char *path, const ZkCheck *checks, int n);

extern bool zks_answered(ZkSession *session, ZkRequest *request, ZkAnswer *answer);
extern void zks_request_free(ZkSession *session, ZkRequest *request);

/*
 * Watches on the deletion of a node (proof.c has its own for what we hold), or
 * on the children of a directory
 */
typedef enum ZkWatchState
{
	ZKR_WATCH_PENDING,			/* ZooKeeper has not answered yet */
	ZKR_WATCH_ARMED,
	ZKR_WATCH_FIRED,			/* the node is gone, or was when we asked */
	ZKR_WATCH_CHANGED,			/* its data, or the list of its children,
								 * changed: no longer armed */
	ZKR_WATCH_FAILED			/* not armed: the connection broke */
} ZkWatchState;

typedef struct ZkWatchInfo
{
	ZkWatchState state;
	int			rc;				/* why it failed */
	uint32_t	epoch;			/* the connection on which it was set */
	bool		says_shared;	/* the data of the node, when it was set */
	bool		says_granted;
	int64_t		owner;			/* these as in ZkAnswer, when it was set */
	int			version;
	int			nbelow;
	bool		is_mark;
} ZkWatchInfo;

extern ZkWatch *zks_watch(ZkSession *session, const char *path);

/*
 * What the node held when zks_watch was answered, its beginning, and its session;
 * data has ZKS_WATCHED_KEPT bytes.  -1: not known.
 */
#define ZKS_WATCHED_KEPT	512
extern int	zks_watched_data(ZkSession *session, ZkWatch *watch, char *data, int64_t *owner);

/*
 * Like zks_list; the watch fires when the list is out of date.  *watch is NULL, or that
 * of an earlier list of this directory, which is set once more, or dropped.
 */
extern ZkRequest *zks_list_and_watch(ZkSession *session, const char *dir, bool fresh,
									 ZkWatch **watch);
extern void zks_watch_info(ZkSession *session, ZkWatch *watch, ZkWatchInfo *info);
extern void zks_unwatch(ZkSession *session, ZkWatch *watch);

/* The same for one of a directory where a node of ours is, or is being deleted */
extern void zks_leave_watch(ZkSession *session, ZkWatch *watch);

/* How something was lost, as far as known */
typedef enum ZkLoss
{
	ZK_NOT_LOST,
	ZK_LOST_NODE,				/* ZooKeeper says that the node is gone */
	ZK_LOST_ACCESS,				/* it no longer lets us see the node */
	ZK_LOST_CONTACT,			/* nothing was heard for the whole timeout */
	ZK_LOST_SESSION,			/* ZooKeeper has ended the session */
	ZK_LOST_IDENTITY			/* it no longer accepts our identity */
} ZkLoss;

/* node.c: nodes that this session creates */
typedef enum ZkNodeState
{
	ZKN_CREATING,				/* requested, not answered */
	ZKN_UNSURE,					/* the answer was lost; being looked for */
	ZKN_PRESENT,				/* it exists, and is ours */
	ZKN_ABSENT,					/* not created; rc says why */
	ZKN_PRUNING,				/* and no longer wanted; its directories are
								 * being removed: not seen by the owner */
	ZKN_LOST,					/* it existed, and no longer does */
	ZKN_DELETED					/* by zkn_delete; rc: ZKS_OK, or ZKS_NO_NODE
								 * if it is unknown whether it existed until
								 * then */
} ZkNodeState;

typedef struct ZkNodeInfo
{
	ZkNodeState state;
	int			rc;				/* why it is absent, or not deleted yet */
	ZkLoss		loss;			/* why it is lost */
	bool		sharing;		/* zkn_share is under way */
	bool		comes_next;		/* after our last one: nobody is before it */
	int64_t		czxid;			/* the transaction that created it */
	char		name[ZKP_NAME_LEN];
	ZkWatchState watch;			/* the one on the node itself, once requested */
	uint32_t	watch_epoch;
} ZkNodeInfo;

/*
 * Create a contender in each of these directories, all or none, in one
 * transaction; so two callers get the same order everywhere.  With parents,
 * create the directories first, as containers.  False: out of memory.  The
 * code of a node that was not created only because another could not be is
 * ZRUNTIMEINCONSISTENCY.
 */
extern bool zkn_create(ZkSession *session, char *const *dirs, int n, const ZkpWant *want,
					   bool parents, ZkNode **nodes);

/*
 * Whether the next exclusive node in this directory is likely to come right after
 * our last one, so that no list need be sent with its create
 */
extern bool zkn_bet(ZkSession *session, const char *dir);

/* This exclusive node is granted, and no other was in its queue */
extern void zkn_granted(ZkSession *session, ZkNode *node);

/* A node that ZooKeeper refuses to delete, or "" */
extern void zkn_refused_path(ZkSession *session, char *path, int size);

/* Whether contenders in these directories fit into one transaction */
extern bool zkn_fit(ZkSession *session, char *const *dirs, int n, const ZkpWant *want);

/*
 * The bytes that the paths of all nodes of this session take, with contenders in these
 * directories.  When it is connected again it watches all of them by one packet, and
 * when it ends ZooKeeper's record of that names all.  A server does not accept the first
 * if it is too large, and with the second it does not start again (ZOOKEEPER-4306).
 * So they must not be more than this, which leaves room for what else is watched.
 */
#define ZKN_PATHS_MAX		(ZKS_PACKET_BYTES - 64 * 1024)
extern size_t zkn_path_bytes(ZkSession *session, char *const *dirs, int n, const ZkpWant *want);

/*
 * The holder of this exclusive node becomes a reader: those that wait behind
 * it will see that, and it keeps its place in the queue throughout.  This goes
 * on until it is done, and must not fail, since it is called at the end of
 * transactions.  The ticket tells when it is done.
 */
extern uint64_t zkn_share(ZkSession *session, ZkNode *node);

/*
 * This contender has got its place of a semaphore, and others wait to be told.
 * This goes on until it is answered, and must not fail either.
 */
extern void zkn_tell_granted(ZkSession *session, ZkNode *node);

/*
 * Delete a node that is present, and report the result in zkn_info.  This goes
 * on until it is gone, like zkn_discard, which the owner still has to call.
 */
extern void zkn_delete(ZkSession *session, ZkNode *node);

/*
 * The node is no longer wanted, whatever its state: it is deleted, now or as
 * soon as possible.  Must not fail, since it is called at the end of
 * transactions.  The node must not be used afterwards; the ticket tells when
 * it is gone.
 */
extern uint64_t zkn_discard(ZkSession *session, ZkNode *node);

/*
 * The number of nodes in this directory that nobody here wants, and that a
 * list requested now may still show.
 */
extern int	zkn_leftovers(ZkSession *session, const char *dir);

/*
 * Whether it is known what became of each node at this path that nobody here wants: a
 * single one, and those in it, if it is a directory.  A single one may be created only
 * then.  If not, refused is the code with which ZooKeeper refused to delete one, or 0.
 */
extern bool zkn_is_settled(ZkSession *session, const char *path, int *refused);

/* Whether there is one in any directory, until a quorum says that there is not */
extern bool zkn_any_unwanted(ZkSession *session);

/*
 * Leave the nodes that nobody here wants out of this queue: they do not block
 * us.  Returns how many contenders are left.
 */
extern int	zkn_leave_out_unwanted(ZkSession *session, const char *dir,
								   ZkpContender *queue, int n);

/*
 * Whether all nodes with tickets from first to last are gone, or shared.  If
 * not, refused is the code with which ZooKeeper refused one, or 0.
 */
extern bool zkn_gone(ZkSession *session, uint64_t first, uint64_t last, int *refused);

/*
 * mark.c: marks, which outlive who makes them.  zkn_mark sets these nodes' data
 * to what is pending, all or none, if they have these versions and ours exist.
 * False: out of memory.  Each mark is the owner's until it decides whether it
 * is done or undone, whatever has become of it, and of its session; which must
 * not fail, since it is called at the end of transactions.  From then on it is
 * settled together with the deletion of our node, or, if that is gone or stays,
 * by zkn_settle; this goes on until it is done.
 */
typedef struct ZkMarking
{
	ZkNode	   *node;
	const char *path;
	int			version;
	const char *pending;
	const char *done;
	const char *before;
} ZkMarking;

typedef enum ZkMarkState
{
	ZKN_MARKING,				/* requested, not answered */
	ZKN_MARK_UNSURE,			/* the answer was lost */
	ZKN_MARKED,
	ZKN_MARK_REFUSED,			/* it is not written; rc says why */
	ZKN_MARK_SETTLED			/* or somebody has changed it, which is as
								 * good */
} ZkMarkState;

typedef struct ZkMarkInfo
{
	ZkMarkState state;
	int			rc;
	bool		at_fault;		/* of those refused, this was the reason */
	bool		node_gone;		/* since our node is gone */
	int64_t		sent_at;
} ZkMarkInfo;

extern bool zkn_mark(ZkSession *session, const ZkMarking *what, int n, ZkMark **marks);
extern void zkn_mark_info(ZkMark *mark, ZkMarkInfo *info);
extern void zkn_decide_mark(ZkMark *mark, bool done);
extern void zkn_settle(ZkSession *session);

/* Whether a mark with this path was decided, and is not settled */
extern bool zkn_mark_is_open(ZkSession *session, const char *path);

/* Whether so many fit into one transaction; bytes: their paths and data */
extern bool zkn_marks_fit(ZkSession *session, int n, size_t bytes);

/* The marks that another session has left become this one's */
extern void zkn_adopt_marks(ZkSession *session, ZkMark **list);

/* The path of the first of those that is not settled, or NULL */
extern const char *zkn_unsettled_path(const ZkMark *list);

/* proof.c: whether these nodes are still there, as far as is known */
extern void zkn_info(ZkSession *session, ZkNode *node, ZkNodeInfo *info);

/* Watch the node itself, so that its loss is noticed */
extern void zkn_watch(ZkSession *session, ZkNode *node);

/*
 * The same by name: that node is about to be deleted by somebody.  Nothing
 * happens if it is not one of this session's.
 */
extern void zkn_watch_named(ZkSession *session, const char *dir, const char *name);

/*
 * It is next in line, and alone in that.  As long as that is so, heartbeats ask the
 * quorum, so that its turn mostly need not be confirmed by another question.
 */
extern void zkn_expect_turn(ZkSession *session, ZkNode *node, bool expects);

/*
 * Asks the leader and a quorum whether these nodes exist, in one request that
 * changes nothing.  Only the answer to such a request proves that the session
 * lives: a follower that is cut off from its leader still answers reads.  n:
 * the number of nodes, and on return how many of them are asked for, since
 * requests are limited.  Returns NULL if out of memory.
 */
#define ZKN_CHECK_MAX		1000
extern ZkRequest *zkn_check(ZkSession *session, ZkNode *const *nodes, int *n);

/*
 * ZooKeeper has reported the loss of a node that existed.  False: the node was
 * just being renamed, so ask again.
 */
extern bool zkn_lost(ZkSession *session, ZkNode *node, ZkLoss loss);

/* The first of them that is known to be gone, and how; or -1 */
extern int	zkn_first_lost(ZkSession *session, ZkNode *const *nodes, int n, ZkLoss *loss);

/*
 * The latest time for which a quorum's answer proves that all of these
 * existed: that of their own create or check; or, for one whose watch is armed
 * on this connection, that of the session's latest transaction, since its
 * deletion would have been reported before that was answered.
 */
extern int64_t zkn_proven_at(ZkSession *session, ZkNode *const *nodes, int n);

/*
 * Those of them for which neither is so since this time: whose own create or
 * check is older, and whose deletion no watch would report.  Returns how many.
 */
extern int	zkn_untold(ZkSession *session, ZkNode *const *nodes, int n, int64_t asked_at,
					   ZkNode **untold);

/* A check that was sent at this time has found these nodes */
extern void zkn_proven(ZkSession *session, ZkNode *const *nodes, int n, int64_t sent_at);

/*
 * Show in ZkShown which of these are lost, instead of those named before; there
 * are at most ZKS_SHOWN_NODES, and each may be NULL.  Never fails.
 */
extern void zkn_show(ZkSession *session, ZkNode *const *nodes, int n);

/*
 * Whether what the owner does relies on a node.  When such a node is lost, the
 * owner is to stop: see below.
 */
typedef enum ZkReliance
{
	ZKN_NOT_RELIED,
	ZKN_RELIED_IF_WRITTEN,		/* only if the owner has written something */
	ZKN_RELIED
} ZkReliance;

/* by_session: also a session-scope hold does, which no transaction's end releases */
extern void zkn_rely(ZkSession *session, ZkNode *node, ZkReliance reliance, bool by_session);

/* All that is relied on is now relied on only if something is written */
extern void zkn_rely_less(ZkSession *session);

/*
 * stop_signal.c: during a turn, which the owner begins and ends, its thread is
 * sent a signal when a node that it relies on is known to be lost, and each
 * second until the turn ends.  With ZKS_STOP_DOUBT also when nothing has
 * proven for a whole session timeout that the session lives.  Begin a turn
 * after what is relied on has become more, and a new one when it has become
 * less.  If it is to carry on, the owner still relies on something that a session
 * had which is closed by now.
 */
typedef enum ZksStopWhen
{
	ZKS_STOP_NEVER,
	ZKS_STOP_LOST,
	ZKS_STOP_DOUBT,
	ZKS_STOP_TERMINATE			/* as ZKS_STOP_DOUBT, and see
								 * zks_terminate_begin */
} ZksStopWhen;

typedef struct ZkStopReason
{
	bool		doubt;			/* it may still be held */
	ZkLoss		loss;
	char		dir[ZKS_PATH_LEN];	/* of the node */
} ZkStopReason;

extern void zks_stop_when(ZksStopWhen when);
extern void zks_stop_begin(int signal, bool carry_on);
extern void zks_stop_end(void);
extern bool zks_stop_possible(void);	/* a turn has begun */

/*
 * Whether something may rely on locks of a session that is closed by now.  True
 * after each close, until the owner says what is so.
 */
extern bool zks_stop_closed_counts(void);
extern void zks_stop_closed(bool counts);

/*
 * In this turn the owner has a reason of its own to stop, whatever is lost or not:
 * the signal comes a second from now, and each second until the next turn, or for
 * longer if it has one then.  NULL: it has none, which must be said, too.
 */
extern void zks_stop_self(const ZkStopReason *why);

/* For the handler: whether the owner is asked to stop, in this turn */
extern ZkReliance zks_stop_asked(void);

/* What was lost when the owner was last asked */
extern void zks_stop_reason(ZkStopReason *reason);

/*
 * With ZKS_STOP_TERMINATE the owner's process is to end when a node on which it relies
 * by a session-scope hold is lost, or in doubt.  That is so between transactions, too, and not
 * while one commits, so it has turns of its own, with the same signal.  End one
 * before such a hold is released, and begin a new one when that has been told by
 * zkn_rely: what was asked for in the old one is void.  A new one looks at once at the
 * session, which may be NULL; zks_terminate_self gives, or takes back, a reason for this
 * turn that no session's thread knows.
 */
extern void zks_terminate_begin(int signal, ZkSession *session);
extern void zks_terminate_end(void);
extern bool zks_terminate_possible(void);
extern void zks_terminate_self(const ZkStopReason *why);
extern bool zks_terminate_asked(void);	/* for the handler */
extern void zks_terminate_reason(ZkStopReason *reason);

#endif							/* ZKLOCK_SESSION_H */

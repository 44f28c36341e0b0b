/*-------------------------------------------------------------------------
 *
 * session.h
 *	  One ZooKeeper session, kept alive by a thread of its own.
 *
 * This and lease.h, codes.h, request.h, watch.h, node.h, mark.h, stop_signal.h and tls.h are
 * the wall: all that the folders above may use, beside lock_protocol.h and hosts.h.
 * Plain C and pthreads: no PostgreSQL header may be included by its implementation,
 * so that no palloc or ereport can ever run in a thread that PostgreSQL did not start.
 *
 * Every function in them may be called only from the owning (main) thread.  None
 * of them blocks, except zks_close and zks_doze for as long as they are told, and
 * zks_awaited for a millisecond if half an answer has arrived.  (What reads the files
 * of TLS waits for the disk.)  A descriptor announces what happens meanwhile: see zks_await.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SESSION_H
#define ZKLOCK_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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
typedef struct ZkMarks ZkMarks; /* mark.h */
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
	ZKS_TROUBLE_OTHER,			/* such as silence */
	ZKS_TROUBLE_CLOSED,			/* the server closed the connection */
	ZKS_TROUBLE_CROWDED,		/* it did so before we had said anything */
	ZKS_TROUBLE_FOREIGN,		/* what answers is not ZooKeeper */
	ZKS_TROUBLE_TLS
} ZksTrouble;

/*
 * Room for the last fault at each address, the most telling first, as far as it
 * goes; and for one of them
 */
#define ZKS_TROUBLES_LEN	400
#define ZKS_TROUBLE_LEN		160

/* For a server's address and port, such as [::1]:2181 */
#define ZKS_ADDRESS_LEN		64

typedef struct ZkSessionInfo
{
	ZkSessionState state;
	int			error;			/* why it is over: a ZooKeeper code */
	uint32_t	epoch;			/* connections made so far */
	int64_t		session_id;
	int			timeout_ms;		/* negotiated; until then the requested one */
	int64_t		answered_at;	/* these four are the lease: lease.h */
	int64_t		quorum_at;
	int64_t		gap_at;
	int64_t		told_by;
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
	int			unreleased;		/* nodes that ZooKeeper refuses to delete */
	int			refused;		/* the code for the latest of them */
	uint64_t	refusals;		/* how many ever, except those of zkn_delete */
	uint64_t	unsettled;		/* marks of claims that ZooKeeper did not let
								 * us settle, and that we have given up */
	int			unsettled_rc;	/* the code for the latest of them */
} ZkSessionInfo;

/* The last faults of a connection */
typedef struct ZkTroubles
{
	char		text[ZKS_TROUBLES_LEN]; /* or "" */
	int			n;				/* at how many addresses; 0 or 1: it names
								 * none */
	ZksTrouble	kind;			/* of the most telling */
} ZkTroubles;

/* What is said of a session to people */
typedef struct ZkSessionTexts
{
	char		server[ZKS_ADDRESS_LEN];	/* where we are or were, or "" */
	ZkTroubles	troubles;
	ZkTroubles	at_outage;		/* what they were at the latest one */
	ZkTroubles	at_loss;
	char		refused_path[ZKS_PATH_LEN]; /* of the latest node that was not
											 * deleted */
	char		unsettled_mark[160];	/* the path of the latest, in ASCII,
										 * maybe cut */
} ZkSessionTexts;

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
extern void zks_close(ZkSession *session, int bound_ms, ZkMarks *left);

/*
 * A session that has nothing for idle_ms (0: never) is closed by its thread, and is
 * then retired.  That cannot be between zks_use, or zks_open, and zks_rest, and
 * elsewhere no other function of these may be called.  zks_use is false if it has
 * happened: the session can be looked at, and must be closed.  worked: the owner
 * has asked it for something since.
 */
extern bool zks_use(ZkSession *session);
extern void zks_rest(ZkSession *session, int idle_ms, bool worked);

extern ZkSessionInfo zks_info(ZkSession *session);
extern void zks_texts(ZkSession *session, ZkSessionTexts *texts);

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
	_Atomic int64_t answered_at;
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

#endif							/* ZKLOCK_SESSION_H */

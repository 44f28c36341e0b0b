/*-------------------------------------------------------------------------
 *
 * internal.h
 *	  What the files in src/zk share.
 *
 * One mutex guards a session, all that hangs on it, and its handle: the
 * single-threaded client library has no locks of its own.  Names ending in
 * _locked are called with it held.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_INTERNAL_H
#define ZKLOCK_INTERNAL_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include <zookeeper/zookeeper.h>

#include "session.h"

/*
 * Written into the directories that we create, since ZooKeeper does not tell a
 * client which nodes are containers
 */
#define CONTAINER_MARK	"zklock"

/*
 * A multi's answer must be in the socket's buffer as a whole before the library
 * may read it (frame_check.c), so this is what its results may need; or a third of
 * the buffer, if the kernel allows us less: it counts its own bookkeeping, too.
 */
#define ZKN_MULTI_BYTES		(112 * 1024)

/*
 * Of the result of a create: its header, and the length of the path that
 * follows
 */
#define ZKR_RESULT_BYTES	13

/* The number in a sequential node's name, with its sign */
#define ZKR_NUMBER_LEN		11

/* The length before a string */
#define ZKR_STRING_BYTES	4

/* A create in a multi without its path, its data, and its ACL */
#define ZKR_CREATE_BYTES	32

/*
 * One entry of an ACL.  The server replaces "creator" by all ids of the
 * session before it writes the transaction; for a digest, "user:" and 28
 * characters.
 */
#define ZKR_ACL_BYTES		48

/*
 * On a new connection the library sends all watches in one packet, which a server
 * refuses if it is too large.  It puts each credential in front of what is still to be
 * sent; from the second on, into the middle of that packet if the socket has not taken
 * it whole.  So there must not be more watches than fit, with several credentials than
 * certainly fit; and optional ones stop well before that.
 *
 * Besides its nodes a session watches directories that it has left, and in a wait those
 * before it, twice while the watches are renewed, and its record.
 */
#define ZKR_WATCH_BYTES_MAX			(ZKS_PACKET_BYTES - 28)
#define ZKR_WATCH_BYTES_SURELY_SENT	(128 * 1024)
#define ZKR_WATCH_BYTES_ENOUGH		(64 * 1024)
#define ZKR_WATCH_BYTES_LEFT		(32 * 1024)

_Static_assert(ZKN_PATHS_MAX + ZKR_WATCH_BYTES_LEFT + 10 * ZKS_PATH_LEN <= ZKR_WATCH_BYTES_MAX,
			   "all of these fit into a packet");

/* Called with the mutex held when a request is answered, or never will be */
typedef void (*ZkDone) (ZkRequest *r);

/* Who waits for the answer to a request */
typedef enum ZkListener
{
	LISTENER_OWNER,				/* it is notified, and asks */
	LISTENER_DONE,				/* a function, which is called */
	LISTENER_READ,				/* of what goes before a read: that read */
	LISTENER_NONE				/* it is freed when it is answered */
} ZkListener;

/* Which entries of a list are kept */
typedef enum ZkInterest
{
	INTEREST_CONTENDERS,
	INTEREST_RECORDS,
	INTEREST_ALL
} ZkInterest;

struct ZkRequest
{
	ZkRequest  *next;
	ZkRequest  *prev;
	ZkSession  *session;
	ZkListener	listener;
	ZkDone		done;			/* if that is LISTENER_DONE */
	void	   *owner;			/* done's own */
	int			op;				/* of proto.h: what was asked */
	bool		answered;
	bool		writes;			/* the leader makes a transaction of it */
	ZkRequest  *before;			/* of a read that counts only if this was
								 * carried out: a sync, or checks */
	uint64_t	number;			/* of its answer, among ZkSession.replies */
	int			rc;
	int64_t		sent_at;
	uint32_t	epoch;
	bool		too_large;		/* its answer exceeds the limit: ZKS_TOO_LARGE */
	char	   *name;			/* of the created node; until then the
								 * requested path */
	int64_t		czxid;
	int64_t		meant;			/* of a read: the czxid of the node that is
								 * meant, another one counts as none; or 0 */
	int			index;			/* of that node among those asked for */
	int64_t		ephemeral_owner;
	int			version;
	int			cversion;
	int			nbelow;			/* how many children it has */
	int64_t		made_at_ms;
	bool		is_mark;		/* the data is CONTAINER_MARK */
	bool		says_shared;	/* so does the data: see lock_protocol.h */
	bool		says_granted;
	int64_t		in_place_of;	/* and of which transaction's node; or 0 */
	ZkWatch    *watch;			/* armed by the answer, or NULL */
	int			keeps_data;		/* somebody wants to read so much of it */
	char	   *data;
	int			data_len;
	ZkInterest	interest;		/* in which children */
	int			nchildren;
	char	  **children;
	int			nstrangers;		/* beside contenders */
	char	   *strangers[ZKS_STRANGERS];
	int			nops;			/* of a multi, else 0 */
	int		   *op_types;
	char	  **op_names;		/* of what a multi created, whole paths; until
								 * then those asked for */
	zoo_op_result_t *results;
};

/* One operation of a multi */
typedef struct ZkOp
{
	int			type;			/* ZOO_CREATE_OP, ZOO_DELETE_OP, ZOO_CHECK_OP,
								 * ZOO_SETDATA_OP */
	const char *path;
	int			flags;			/* of a create */
	const char *data;			/* of a create or set; NULL: none */
	bool		closed;			/* of a create: as in ZkpWant */
	int			version;		/* of a check, delete or set; -1: any */
} ZkOp;

struct ZkWatch
{
	ZkWatch    *next;
	ZkWatch    *prev;
	ZkWatch    *next_in_chain;	/* see ZkSession.watch_chains */
	ZkSession  *session;
	ZkWatchState state;
	int			rc;
	uint32_t	epoch;
	bool		of_children;	/* of a directory's children, else of a node */
	bool		of_ours;		/* on a node that is ours, to tell of its loss */
	bool		dropped;
	bool		left;			/* dropped, and not removed: it fires by
								 * itself */
	bool		in_flight;		/* its request has not been answered */
	bool		astray;			/* the server has it, on another node than the
								 * one that is meant */
	bool		says_shared;	/* as the data did when it was armed */
	bool		says_granted;
	char	   *data;			/* its beginning then, for the owner; or NULL */
	int			data_len;
	int64_t		ephemeral_owner;
	int			version;
	int			nbelow;
	bool		is_mark;
	char		path[];
};

/*
 * Who is woken by what: wakeup.c
 */
#define ZKS_EVENTS	4			/* at once: a bell, a socket, closed ones */

typedef struct ZkWakeup
{
	int			bell_fd;
	int			keeper_fd;
	int			owner_fd;

	/* the owner's: what woke it */
	struct epoll_event told[ZKS_EVENTS];
	int			ntold;

	/* under the mutex: of the socket */
	uint32_t	generation;		/* which one; 0: none yet */
	uint32_t	wanted;			/* by the keeper */
	uint32_t	watched;		/* what it would be woken for */
	bool		lent;
} ZkWakeup;

/* What is known about the frame that the client library is to read next. */
typedef struct ZkFrame
{
	bool		in_long_frame;
	bool		followed;		/* more data was there after it */
	bool		unsound;		/* what was read cannot come from ZooKeeper */
	uint64_t	replies_before;
} ZkFrame;

/* What was wrong at one address, the last time */
#define ZKS_ADDRESS_LEN		80
#define ZKS_FAULTS			8

typedef struct ZkFault
{
	char		address[ZKS_ADDRESS_LEN];	/* "" of a name that has none */
	ZksTrouble	kind;
	char		what[ZKS_TROUBLE_LEN];
	bool		to_listen;		/* the next attempt says nothing for a moment:
								 * see LISTEN_MS in connection.c */
} ZkFault;

typedef struct ZkWire ZkWire;	/* tls.c: a connection with TLS */
typedef struct ZkTurn ZkTurn;	/* turn.c: our last turn in a queue */

typedef enum ZkFrameVerdict
{
	FRAME_READ,					/* let the library read */
	FRAME_NONE,					/* nothing has arrived */
	FRAME_WAIT,					/* more must arrive first */
	FRAME_REJECT,				/* this is not ZooKeeper */
	FRAME_TOO_LARGE				/* it is, but we do not want to read it */
} ZkFrameVerdict;

/* The versions of single nodes that requests may still mean: single.c */
typedef struct ZkDoubt
{
	uint32_t	versions;
	int64_t		until;
} ZkDoubt;

/* Paths share them, since those of a session can be many */
#define ZK_DOUBTS			64

struct ZkSession
{
	pthread_mutex_t mutex;
	bool		locked;			/* these two only with ZKLOCK_ASSERTIONS */
	pthread_t	locked_by;
	sigset_t	owner_mask;		/* its signal mask, while it has the mutex */
	pthread_t	keeper;
	ZkWakeup	wakeup;
	char	   *hosts;
	int			wanted_timeout_ms;
	bool		handlers_return;	/* as in ZkOptions */
	size_t		closed_acl_bytes;	/* the size of what "creator" becomes at
									 * the server */
	ZkCredential *credentials;	/* for each new handle */
	int			ncredentials;
	ZkTls	   *tls;			/* NULL: without */

	/* set by one thread, read by the other, without the mutex */
	atomic_bool closing;		/* the owner wants the session closed */
	atomic_bool keeper_done;
	atomic_bool retired;		/* it was idle for too long; set under the
								 * mutex */
	atomic_uint news;			/* see zks_news */
	atomic_bool lingers;		/* the session is over, and the owner relies
								 * on what it had */
	atomic_int	owners;			/* the last of the two frees the session */
	atomic_bool gathering;		/* more will be sent at once */

	/* all below: under the mutex */
	zhandle_t  *zh;
	int			sock;			/* the library's socket, or -1 */
	ZkWire	   *wire;			/* of the latest connection with TLS */
	char	   *addresses;		/* of the servers, and their names: see */
	char	   *names;			/* resolve.c */
	int			receive_buffer; /* its size; 0 before the first */
	int			nservers;
	int64_t		attempt_at;		/* when the latest connection attempt began */
	bool		trying;			/* it has not been counted as finished */
	bool		of_use;			/* it has brought an answer */
	bool		listens_first;	/* it says nothing for a moment: to_listen of
								 * the last one there */
	char		address[ZKS_ADDRESS_LEN];	/* of the latest attempt; "" if it
											 * is not known yet */
	int			nfaults;		/* since the last connection */
	ZkFault		faults[ZKS_FAULTS]; /* the newest first; a later one at the
									 * same address replaces one */
	int			tries;			/* successive attempts that were of no use */
	int			ntimeouts;		/* how many of these took too long */
	bool		refused;		/* one of this round did not, but failed */
	int64_t		connect_at;		/* no new connection before this time */
	bool		awaited;		/* the owner sleeps until something happens */
	ZkFrame		frame;

	ZkSessionInfo info;
	clientid_t	id;				/* with which the session can be resumed */
	int64_t		renew_at;		/* when forfeited: time for a new handle */
	bool		in_use;			/* the owner may call at any moment */
	int			idle_ms;		/* how long it may be idle; 0: forever */
	int64_t		idle_since;		/* when it was last worked with, or had a node */
	int64_t		answer_due;		/* a handshake was the last answer: by when a
								 * request has to be answered; or 0 */
	int64_t		heartbeat_at;	/* when the last one was sent */
	int64_t		catch_up_at;	/* sooner than at the next: a request of this
								 * thread may have been throttled; or 0 */
	int			catch_up_ms;	/* how long after that */
	int64_t		caught_up_at;	/* when that was done last */
	int64_t		quorum_due_since;	/* since when they ask the quorum, so that
									 * its silence means something; or 0 */
	bool		connected_now;	/* newly connected: attend to the nodes */
	bool		broken;			/* a send failed: see request.c, submitted */
	bool		notify;			/* wake the owner, once the mutex is free */
	bool		corked;			/* requests are held back until the mutex is
								 * free */
	int64_t		close_by;		/* the deadline once the keeper has seen
								 * closing; or 0 */

	ZkRequest  *requests;		/* oldest first */
	ZkRequest  *last_request;
	ZkRequest  *unanswered_from;	/* all before it are answered; or NULL */
	int			in_flight;
	uint64_t	replies;		/* completions seen, ever */
	ZkWatch    *watches;
	ZkWatch   **watch_chains;	/* the same by a hash of the path */
	unsigned int nwatch_chains; /* a power of two, or 0 */
	unsigned int nwatches;
	size_t		watch_bytes;	/* what their paths need in a packet */
	ZkNode	   *nodes;			/* first those that are not wanted */
	ZkNode	   *last_node;
	size_t		path_bytes;		/* of those that count: node.c */
	unsigned int nexpecting;	/* how many expect their turn */
	unsigned int nunknown;		/* how many single ones may have any czxid */
	int64_t		newest_single;	/* the greatest that one was found to have */
	unsigned int nrelied;		/* how many the owner relies on */
	unsigned int transaction;	/* of the owner: see zkn_rely_less */
	bool		some_lost;		/* maybe; false: none that anybody wants is */
	ZkMark	   *marks;
	ZkTurn	   *turns;			/* the latest first */
	uint64_t	tickets;
	ZkDoubt		doubts[ZK_DOUBTS];	/* by a hash of the path */

	ZkShown    *_Atomic shown;	/* NULL: to nobody */
	ZkNode	   *shown_nodes[ZKS_SHOWN_NODES];
	atomic_uint closed_turn;	/* the turn in which the owner closed it, or 0 */
	unsigned int stop_turn;		/* the turn in which the owner was last asked
								 * to stop */
	int64_t		stop_at;		/* and when it is to be asked again */
	atomic_uint closed_life;	/* these three for ending its process */
	unsigned int end_life;
	int64_t		end_at;
};

/* wakeup.c: without the mutex, except those that end in _locked */
extern bool zks_wakeup_open(ZkWakeup *e);
extern void zks_wakeup_close(ZkWakeup *e);
extern void zks_wakeup_wake_keeper(ZkWakeup *e);
extern void zks_wakeup_tell_owner(ZkWakeup *e);
extern bool zks_wakeup_adopt_locked(ZkWakeup *e, int sock);
extern void zks_wakeup_want_locked(ZkWakeup *e, int sock, uint32_t events);
extern void zks_wakeup_lend_locked(ZkWakeup *e, int sock);
extern void zks_wakeup_take_back_locked(ZkWakeup *e, int sock);
extern uint32_t zks_wakeup_wait(ZkWakeup *e, uint32_t generation, int ms);
extern bool zks_wakeup_owner_wait(ZkWakeup *e, int ms);
extern bool zks_wakeup_owner_woken(ZkWakeup *e, uint32_t generation);

/* session_state.c */
extern bool zks_make_uuid(char *text);
extern uint32_t zks_random(uint32_t n);
extern int	zks_ms_until(int64_t until, int64_t now);

/*
 * The mutex, for the keeper, which takes no signals, and for the main thread,
 * whose signals are blocked meanwhile if a handler may leave the process
 */
extern void zks_lock(ZkSession *s);
extern void zks_unlock(ZkSession *s);
extern void zks_enter(ZkSession *s);
extern void zks_leave(ZkSession *s);
extern void zks_cork_locked(ZkSession *s);
extern void zks_uncork_locked(ZkSession *s);
extern void zks_wake_keeper(ZkSession *s);
extern void zks_set_state_locked(ZkSession *s, ZkSessionState state);
extern void zks_count_loss_locked(ZkSession *s);
extern void zks_end_locked(ZkSession *s, int error);
extern bool zks_usable_locked(ZkSession *s);
extern void zks_catch_up_soon_locked(ZkSession *s, int64_t sent_at);
extern int64_t zks_proven_until(ZkSession *s);
extern ZksTrouble zks_errno_trouble(int code);

/*
 * A production server must never crash because of us, so only with
 * PostgreSQL's assertions
 */
#ifdef ZKLOCK_ASSERTIONS
#include <assert.h>
#define zk_assert(condition)	assert(condition)
extern bool zks_has_mutex(ZkSession *s);	/* by this thread */
#else
#define zk_assert(condition)	((void) 0)
#endif

/* of two times */
static inline int64_t
zks_earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* keeper_thread.c */
extern bool zks_start_keeper(ZkSession *s);
extern void zks_disown(ZkSession *s);

/* library_handle.c */
extern void zks_hears(ZkSession *s);
extern bool zks_copy_credentials(ZkSession *s, const ZkOptions *options);
extern void zks_free_credentials(ZkSession *s);
extern bool zks_open_handle_locked(ZkSession *s);
extern void zks_close_handle_locked(ZkSession *s);

/* connection.c */
extern void zks_trouble_locked(ZkSession *s, ZksTrouble kind, const char *what);
extern void zks_name_trouble_locked(ZkSession *s, const char *what);
extern void zks_suspend_locked(ZkSession *s);
extern void zks_forfeit_locked(ZkSession *s);
extern void zks_mend_locked(ZkSession *s);
extern bool zks_hurry_locked(ZkSession *s);
extern bool zks_greeted_locked(ZkSession *s);
extern int64_t zks_prepare_locked(ZkSession *s, int64_t now);
extern ZkFrameVerdict zks_process_locked(ZkSession *s, uint32_t happened);
extern void zks_wait_for_the_rest(void);

/* request.c */
extern ZkRequest *zkr_new_locked(ZkSession *s, ZkDone done, void *owner);
extern void zkr_create_locked(ZkRequest *r, const char *path, int flags, const char *data,
							  bool closed);
extern void zkr_list_locked(ZkRequest *r, const char *dir);
extern void zkr_list_fresh_locked(ZkRequest *r, const char *dir);
extern void zkr_stat_locked(ZkRequest *r, const char *path);
extern void zkr_stat_fresh_locked(ZkRequest *r, const char *path);
extern ZkRequest *zkr_new_before_locked(ZkRequest *r);
extern void zkr_fail_locked(ZkRequest *r);
extern void zkr_deny_locked(ZkRequest *r, int rc);
extern void zkr_stat_behind_locked(ZkRequest *r, const char *path, const ZkOp *ops, int n);
extern void zkr_get_locked(ZkRequest *r, const char *path);
extern void zkr_get_fresh_locked(ZkRequest *r, const char *path, const char *sync_path);
extern void zkr_delete_locked(ZkRequest *r, const char *path, int version);
extern void zkr_set_locked(ZkRequest *r, const char *path, const char *data, int version);
extern void zkr_multi_locked(ZkRequest *r, const ZkOp *ops, int n);
extern int	zkr_failed_op(const ZkRequest *r);
extern void zkr_prove_locked(ZkRequest *r);
extern void zkr_heard_locked(ZkSession *s, int64_t sent_at);
extern ZkRequest *zkr_next_locked(ZkSession *s);
extern void zkr_fail_all_locked(ZkSession *s, int rc);
extern void zkr_forget_owner_locked(ZkSession *s, const void *owner);
extern void zkr_free_all(ZkSession *s);
extern ZkWatch *zkr_new_watch_locked(ZkSession *s, const char *path, int64_t meant, int keeps_data);
extern void zkr_drop_watch_locked(ZkWatch *w);
extern void zkr_leave_watch_locked(ZkWatch *w);
extern void zkr_node_is_gone_locked(ZkSession *s, const char *path, const char *dir);
extern bool zkr_watches_exceed_locked(ZkSession *s, bool optional);
extern bool zkr_owner_asks_locked(ZkSession *s);

/* node.c */
extern void zkn_connected_locked(ZkSession *s);
extern void zkn_forfeit_locked(ZkSession *s);
extern void zkn_over_locked(ZkSession *s);
extern bool zkn_only_refused_locked(ZkSession *s);
extern bool zkn_any_locked(ZkSession *s);
extern void zkn_free_all(ZkSession *s);
extern void zkn_give_marks_locked(ZkSession *s, ZkMark **list);

/* proof.c */
extern bool zkn_expects_turn_locked(ZkSession *s);
extern bool zkn_beat_locked(ZkSession *s, bool quorum);
extern void zkn_heartbeat_locked(ZkSession *s);
extern void zkn_show_locked(ZkSession *s);
extern bool zkn_is_relied_locked(ZkSession *s);
extern ZkReliance zkn_reliance_locked(ZkSession *s, bool doubt_counts, bool only_by_session,
									  ZkStopReason *why);

/* mark.c */
extern ZkMark *zkn_new_mark(const ZkMarking *what);
extern void zkn_abandon_mark(ZkMark *m);
extern void zkn_begin_mark_locked(ZkSession *s, ZkMark *m, ZkNode *carrier,
								  void (*tell_carrier) (ZkNode *n, bool decided_now));
extern void zkn_write_op(const ZkMark *m, ZkOp *op);
extern void zkn_mark_written_locked(ZkMark *m, int rc, int64_t sent_at, bool at_fault, bool node_gone);
extern void zkn_leave_mark_locked(ZkMark *m);
extern bool zkn_mark_over(const ZkMark *m);
extern bool zkn_mark_can_be_set(const ZkMark *m);
extern void zkn_settle_op(ZkMark *m, ZkOp *op);
extern int	zkn_mark_set_answered_locked(ZkMark *m, int rc);
extern void zkn_mark_not_set(ZkMark *m);
extern void zkn_advance_mark_locked(ZkMark *m);
extern void zkn_advance_marks_locked(ZkSession *s);
extern bool zkn_any_mark_locked(ZkSession *s);
extern void zkn_take_marks_locked(ZkSession *s, ZkMark **list);
extern void zkn_free_marks(ZkSession *s);

/* stop_signal.c */
extern int64_t zks_stop_locked(ZkSession *s, int64_t now);
extern bool zks_stop_heeds_doubt(void);
extern void zks_stop_closes(ZkSession *s);	/* before that is visible */

/* frame_check.c */
extern void zks_reset_frame(ZkFrame *frame);
extern ZkFrameVerdict zks_check_frame_locked(ZkSession *s);

/* resolve.c */
extern char *zks_resolve(const char *hosts, bool only_numeric, int *naddresses, char **names,
						 char *error, int errlen);

/* tls.c; the wire may be NULL in functions that accept that */
extern void zks_tls_free(ZkTls *tls);

/*
 * Put a wire between the library's socket, which is being connected, and the
 * server.  The socket keeps its number.  Returns NULL, with errno set, if the
 * socket must not be used.
 */
extern ZkWire *zks_wire_lay(ZkTls *tls, int sock, const char *names);

/* End it: at once, or when everything that the library has written is sent */
extern void zks_wire_cut(ZkWire *wire);
extern void zks_wire_finish(ZkWire *wire);

/* Why it broke, or NULL */
extern const char *zks_wire_fault(ZkWire *wire, ZksTrouble *kind);

extern int	zks_wire_server_socket(ZkWire *wire);
extern int	zks_wire_library_end(ZkWire *wire);
extern void zks_tls_thread_ends(void);

/*
 * turn.c.  An exclusive node is granted, and alone in its queue; it was deleted
 * by us, or somehow else; its holder has become a reader.
 */
extern void zkn_turn_granted_locked(ZkSession *s, const char *dir, const char *name, int64_t czxid);
extern void zkn_turn_ended_locked(ZkSession *s, const char *dir, int64_t czxid, bool deleted);
extern void zkn_turn_shared_locked(ZkSession *s, const char *dir);

/*
 * A node is created, or, with name NULL, is not: whether nobody is before it,
 * since it comes right after the last one
 */
extern bool zkn_turn_created_locked(ZkSession *s, const char *dir, const char *name, int64_t czxid);
extern void zkn_free_turns(ZkSession *s);

#endif							/* ZKLOCK_INTERNAL_H */

/*-------------------------------------------------------------------------
 *
 * place.h
 *	  What the files share that take locks: acquire.c, single_node.c, place.c
 *	  and blockers.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_PLACE_H
#define ZKLOCK_PLACE_H

#include "acquire.h"
#include "lock/deadlock/deadlock.h"
#include "lock/look/seen_queue.h"

/* How often a pause is doubled, at most: see zkl_ask_again */
#define MOST_DOUBLINGS	8
#define FEW_DOUBLINGS	4

/* One of those before us, whom we watch */
typedef struct Blocker
{
	ZkWatch    *watch;
	char	   *name;
} Blocker;

typedef enum Verdict
{
	GRANTED,
	TAKEN,						/* somebody else has it, and time is up */
	WAIT_ON,					/* others are before us, and nothing has
								 * happened so far */
	WAIT_FOR_ANSWER,			/* the same, and a watch is not answered yet */
	LIST_AGAIN,					/* something changed: list the queue again */
	START_AGAIN					/* our node is gone: queue again */
} Verdict;

/*
 * Our place in one queue, and what is under way there, so that an error can
 * undo it
 */
typedef struct Place
{
	struct Call *call;
	ZkTarget   *target;
	ZkNode	   *node;
	ZkRequest  *list;
	bool		list_fresh;		/* the leader was asked */
	int			leftovers;		/* nodes of ours to be deleted that it may
								 * show */
	uint32		list_epoch;		/* the connection by which the last list came,
								 * or could have come with the create */
	bool		by_changes;		/* we wait for any change of the directory */
	ZkWatch    *changes;		/* armed by the list, if so */
	ZkpView		view;			/* what the last list means for us */
	const char *nearest[ZKP_MOST_WATCHED];	/* whom to watch, by name; until
											 * the next list */
	bool		alone;			/* nobody else was in the queue, as the last
								 * list or our number said */
	Blocker		blockers[ZKP_MOST_WATCHED];
	int			nblockers;
	ZkSearch   *search;			/* for a deadlock, while we wait; or NULL */
	Verdict		seen;			/* meanwhile */
} Place;

typedef struct Call
{
	ZkpWant		want;
	bool		may_wait;
	bool		holds;			/* this session has other locks */
	bool		waited;
	bool		warned;			/* of a node that is no lock */
	struct Place *waiting;		/* there, now; or NULL */
	ZkWaitLog	log;
	ZkWait	   *wait;
	int			in_vain;		/* how often we have asked again lately */
	int64		asked_again_at;
	int64		unclear_since;	/* ZooKeeper's answers leave everything open
								 * since then, on the same connection; or 0 */
	uint32		unclear_epoch;
	int64		seen_czxid;		/* of the node that want.seen_version is of */
	ZkSession  *session;
	ZkReader   *reader;			/* of others' nodes; or NULL */
	MemoryContext listed;		/* of the last list */
	Place	   *places;
	int			n;
} Call;

static inline bool
zkl_is_single(const Call *c)
{
	return c->want.style == ZKP_SINGLE;
}

/* blockers.c */
extern void zkl_must_be_open(Call *c, Place *p, int rc);
extern void zkl_drop_blockers(Call *c, Place *p);
extern void zkl_set_watch(Call *c, Place *p, Blocker *blocker);
extern void zkl_watch_queue(Call *c, Place *p);
extern Verdict zkl_await_turn(Call *c, Place *p);
extern void zkl_begin_to_wait(Call *c, int at);
extern void zkl_end_turn(Call *c, Place *p, Verdict outcome);
extern char *zkl_tell_blockers(void *arg);

/* place.c */
extern void zkl_drop_list(Call *c, Place *p);
extern void zkl_drop_from(Call *c, int first);
extern void zkl_ask_again(Call *c, int doublings);
extern ZkPatience zkl_patience(Call *c, Place *p);
extern bool zkl_await_fresh(Call *c, int64 until);
extern void zkl_send_list(Call *c, Place *p, bool fresh);
extern bool zkl_is_too_late(Call *c, Place *p);
extern bool zkl_await_list(Call *c, Place *p, ZkAnswer *answer);
extern bool zkl_read_others(Call *c, Place *p, ZkSeenQueue *queues, int n);
extern bool zkl_wants_one(const Call *c);
extern Verdict zkl_await_settled(Call *c, Place *p);
extern Verdict zkl_join_queues(Call *c, int first);
extern Verdict zkl_confirm_turn(Call *c, int first, int n);

/* single_node.c */
extern Verdict zkl_take_single(Call *c);
extern Verdict zkl_look_at_single(Call *c, Place *p, const ZkStat *node);

#endif							/* ZKLOCK_PLACE_H */

/*-------------------------------------------------------------------------
 *
 * node.h
 *	  Nodes that this session creates, and whether they are still there.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_NODE_H
#define ZKLOCK_NODE_H

#include <stddef.h>

#include "lease.h"
#include "lock_protocol.h"
#include "watch.h"

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

typedef enum ZkNodeState
{
	ZKN_CREATING,				/* requested, not answered */
	ZKN_UNSURE,					/* the answer was lost; being looked for */
	ZKN_PRESENT,				/* it exists, and is ours */
	ZKN_ABSENT,					/* not created; rc says why */
	ZKN_DELETED,				/* by zkn_delete; rc: ZKS_OK, or ZKS_NO_NODE
								 * if it is unknown whether it existed until
								 * then */
	ZKN_LOST					/* it existed, and no longer does, or counts
								 * as lost */
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
 * Whether there may be a node at this path that nobody here wants, a single one, or one
 * in it, if it is a directory; with NULL, in any.  A single one may be created only if
 * not.  refused, if not NULL, is the code with which ZooKeeper refused to delete one, or 0.
 */
extern bool zkn_unwanted(ZkSession *session, const char *path, int *refused);

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
extern bool zkn_report_lost(ZkSession *session, ZkNode *node, ZkLoss loss);

/* The first of them that is known to be gone, and how; or -1 */
extern int	zkn_first_lost(ZkSession *session, ZkNode *const *nodes, int n, ZkLoss *loss);

/*
 * About which of these a quorum is to be asked before they are relied on; how many:
 * 0 if none, since all are proven.  What proves a node is its own create or check; or,
 * if its watch is armed on this connection, the session's latest transaction, since
 * its deletion would have been reported before that was answered.  Each from when it
 * was asked for, at this time or later.  There is room for n.
 */
extern int	zkn_unproven(ZkSession *session, ZkNode *const *nodes, int n, ZkUse use, int64_t since,
						 ZkNode **ask);

/* A check that was sent at this time has found these nodes */
extern void zkn_proven(ZkSession *session, ZkNode *const *nodes, int n, int64_t sent_at);

/*
 * Show in ZkShown which of these are lost, instead of those named before; there
 * are at most ZKS_SHOWN_NODES, and each may be NULL.  Never fails.
 */
extern void zkn_show(ZkSession *session, ZkNode *const *nodes, int n);

/*
 * Whether what the owner does relies on a node.  When such a node is lost, the
 * owner is to stop: see stop_signal.h.
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

#endif							/* ZKLOCK_NODE_H */

/*-------------------------------------------------------------------------
 *
 * mark.h
 *	  Marks, which outlive who makes them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_MARK_H
#define ZKLOCK_MARK_H

#include <sys/queue.h>

#include "node.h"

/*
 * zkn_mark sets these nodes' data
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

LIST_HEAD(ZkMarks, ZkMark);

/* The marks that another session has left become this one's */
extern void zkn_adopt_marks(ZkSession *session, ZkMarks *list);

/* The path of the first of those that is not settled, or NULL */
extern const char *zkn_unsettled_path(const ZkMarks *list);

#endif							/* ZKLOCK_MARK_H */

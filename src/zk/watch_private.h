/*-------------------------------------------------------------------------
 *
 * watch_private.h
 *	  Watches.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WATCH_PRIVATE_H
#define ZKLOCK_WATCH_PRIVATE_H

#include "request_private.h"
#include "watch.h"

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

struct ZkWatch
{
	LIST_ENTRY(ZkWatch) in_list;
	LIST_ENTRY(ZkWatch) in_chain;	/* see ZkWatches */
	ZkSession  *session;
	ZkWatchInfo info;
	bool		of_children;	/* of a directory's children, else of a node */
	bool		of_ours;		/* on a node that is ours, to tell of its loss */
	bool		dropped;
	bool		left;			/* dropped, and not removed: it fires by
								 * itself */
	bool		in_flight;		/* its request has not been answered */
	bool		astray;			/* the server has it, on another node than the
								 * one that is meant */
	char		path[];
};

extern ZkWatch *zkr_new_watch_locked(ZkSession *s, const char *path, int64_t meant, int keeps_data);
extern void zkr_drop_watch_locked(ZkWatch *w);
extern void zkr_leave_watch_locked(ZkWatch *w);
extern void zkr_node_is_gone_locked(ZkSession *s, const char *path, const char *dir);
extern bool zkr_watches_exceed_locked(ZkSession *s, bool optional);
extern void zkr_free_left_locked(ZkSession *s);
extern void zkr_free_watches(ZkSession *s);

#endif							/* ZKLOCK_WATCH_PRIVATE_H */

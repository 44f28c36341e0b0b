/*-------------------------------------------------------------------------
 *
 * request_private.h
 *	  A request to ZooKeeper, from its sending to its answer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_REQUEST_PRIVATE_H
#define ZKLOCK_REQUEST_PRIVATE_H

#include "request.h"
#include "session_private.h"

/* The length before a string */
#define ZKR_STRING_BYTES	4

/* Called with the mutex held when a request is answered, or never will be */
typedef void (*ZkDone) (ZkRequest *r);

/* Who waits for the answer to a request */
typedef enum ZkListener
{
	LISTENER_OWNER,				/* it is notified, and asks */
	LISTENER_READ,				/* of what goes before a read: that read */
	LISTENER_NONE				/* it is freed when it is answered */
} ZkListener;

struct ZkRequest
{
	TAILQ_ENTRY(ZkRequest) in_list; /* see ZkRequests */
	ZkSession  *session;
	ZkListener	listener;
	ZkDone		done;			/* is called first; or NULL */
	void	   *owner;			/* done's own */
	int			op;				/* of proto.h: what was asked */
	bool		answered;
	bool		writes;			/* the leader makes a transaction of it */
	ZkRequest  *before;			/* of a read that counts only if this was
								 * carried out: a sync, or checks */
	ZkAnswer	answer;
	const char *sync_path;		/* if not NULL, it reads according to the
								 * leader: this goes before it */
	bool		too_large;		/* its answer exceeds the limit: ZKS_TOO_LARGE */
	char	   *name;			/* the path of the created node; until then
								 * the one asked for */
	int64_t		meant;			/* of a read: the czxid of the node that is
								 * meant, another one counts as none; or 0 */
	watcher_fn	watcher;		/* of a watch that the answer arms, or NULL */
	int			keeps_data;		/* somebody wants to read so much of it */
	bool		keeps_all;		/* of a list, not only contenders */
	int			nops;			/* of a multi, else 0 */
	zoo_op_t   *ops;			/* what is created has its whole path in its
								 * buf, until then the one asked for */
	zoo_op_result_t *results;
};

extern ZkRequest *zkr_new_locked(ZkSession *s, ZkDone done, void *owner);
extern ZkRequest *zkr_new_before_locked(ZkRequest *r);
extern void zkr_answer_locked(ZkRequest *r, int rc);
extern bool zkr_begin_locked(ZkRequest *r);
extern void zkr_submitted_locked(ZkRequest *r, int rc);
extern void zkr_complete(ZkRequest *r, int rc);
extern void zkr_on_code(int rc, const void *data);
extern int	zkr_failed_op(const ZkRequest *r);
extern void zkr_heard_locked(ZkSession *s, int64_t sent_at);
extern void zkr_fail_all_locked(ZkSession *s, int rc);
extern void zkr_free_requests(ZkSession *s);

#endif							/* ZKLOCK_REQUEST_PRIVATE_H */

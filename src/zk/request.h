/*-------------------------------------------------------------------------
 *
 * request.h
 *	  What the owner may ask ZooKeeper for.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_REQUEST_H
#define ZKLOCK_REQUEST_H

#include "codes.h"
#include "session.h"

#define ZKS_STRANGERS		10

/* A node as it was read, or made: its Stat in ZooKeeper, and what its data says */
typedef struct ZkStat
{
	int64_t		czxid;			/* the transaction that created it */
	int64_t		place_czxid;	/* the same; if its data says that it took the
								 * place of another, of that */
	int64_t		owner;			/* the session, of an ephemeral node */
	int64_t		made_at_ms;		/* by ZooKeeper's clock, since 1970 */
	int			version;		/* of the data */
	int			cversion;		/* of the list of its children */
	int			nbelow;			/* how many children it has */
	bool		is_our_directory;	/* a directory that zklock made */
	bool		says_shared;	/* its data: see lock_protocol.h */
	bool		says_granted;
} ZkStat;

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
	char	   *strangers[ZKS_STRANGERS];	/* another kind of lock's; valid
											 * as long */
	int			missing;		/* of a check: the first node that does not
								 * exist */
	ZkStat		stat;			/* of what was read, or created */
	char	   *data;			/* the part that was kept; valid until */
	int			data_len;		/* zks_request_free */
} ZkAnswer;

/*
 * The contenders in a directory, or all that is there, whatever it is; fresh: according
 * to the leader, else to the server that we are connected to
 */
extern ZkRequest *zks_list(ZkSession *session, const char *dir, bool fresh, bool all);

/*
 * One node, with so much of its data, such as what is kept of a lock's node, or of a record
 * (see ZKP_BOARD); with 0 without it, which is possible even without permission to read it
 */
#define ZKS_DATA_KEPT		2304
#define ZKS_RECORD_KEPT		(64 * 1024)
extern ZkRequest *zks_read(ZkSession *session, const char *path, bool fresh, int keeps_data);

/* Make a node that stays, without data; closed as in ZkpWant */
extern ZkRequest *zks_make(ZkSession *session, const char *path, bool closed);

/* Delete any node, whoever created it, if it has this version (-1: any) */
extern ZkRequest *zks_delete(ZkSession *session, const char *path, int version);

/* The same of a directory that is empty, and of nothing but a directory */
extern ZkRequest *zks_delete_directory(ZkSession *session, const char *path, int version);

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

#endif							/* ZKLOCK_REQUEST_H */

/*-------------------------------------------------------------------------
 *
 * request.c
 *	  Requests to ZooKeeper and their answers; watches.
 *
 * A request is the context of its own completion.  It is freed only when the
 * library has answered it or is closed: the library can lose completions
 * (ZOOKEEPER-3868, ZOOKEEPER-2802), so what is left when the handle is closed
 * is failed here.  An owner that loses interest earlier forgets it.
 *
 * Everything is asynchronous: the synchronous calls abort() in this library.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zookeeper/proto.h>

#include "internal.h"

/*
 * This many small requests certainly fit into the socket's buffer
 * (connection.c sets its size).  Beyond that, the keeper must send what could
 * not be sent.
 */
#define SURELY_SENT		16

/* A power of two */
#define FIRST_CHAINS	64

static void on_watch(zhandle_t *zh, int type, int state, const char *path, void *context);
static void on_watch_set(ZkWatch *w, ZkRequest *r);
static void free_left(ZkSession *s);

_Static_assert((int) ZKS_OK == ZOK && (int) ZKS_BAD_ARGUMENTS == ZBADARGUMENTS &&
			   (int) ZKS_NO_NODE == ZNONODE && (int) ZKS_NO_AUTH == ZNOAUTH &&
			   (int) ZKS_BAD_VERSION == ZBADVERSION && (int) ZKS_NODE_EXISTS == ZNODEEXISTS &&
			   (int) ZKS_NO_CHILDREN == ZNOCHILDRENFOREPHEMERALS &&
			   (int) ZKS_NOT_EMPTY == ZNOTEMPTY && (int) ZKS_INVALID_ACL == ZINVALIDACL,
			   "ZksCode has ZooKeeper's numbers (old libraries do not know the last ones)");

const char *
zks_code_text(int rc)
{
	switch (rc)
	{
		case ZKS_QUOTA_EXCEEDED:
			return "quota exceeded";
		case ZKS_THROTTLED:
			return "request throttled";
		case ZKS_IN_DOUBT:
			return "too many requests of this session are still in doubt";
		case ZKS_LOCAL_SESSION:
			return "a local session cannot create ephemeral nodes";
		default:
			return zerror(rc);
	}
}

bool
zks_is_doubtful(int rc)
{
	/*
	 * ZooKeeper's session moved (another server has us now) counts here: the
	 * request was refused, but an earlier copy may not have been.
	 */
	return rc == ZCONNECTIONLOSS || rc == ZOPERATIONTIMEOUT ||
		rc == ZRUNTIMEINCONSISTENCY || rc == ZSYSTEMERROR ||
		rc == ZCLOSING || rc == ZSESSIONEXPIRED || rc == ZINVALIDSTATE ||
		rc == ZMARSHALLINGERROR || rc == ZSESSIONMOVED;
}

/*
 * ZooKeeper 3.8's server has no other such code: REQUESTTIMEOUT is its Java
 * client's, and a server without a quorum closes its connections.
 */
bool
zks_is_busy(int rc)
{
	return rc == ZKS_THROTTLED || rc == ZKS_IN_DOUBT;
}

bool
zks_is_auth_failure(int rc)
{
	return rc == ZAUTHFAILED || rc == ZSESSIONCLOSEDREQUIRESASLAUTH;
}

ZkRequest *
zkr_new_locked(ZkSession *s, ZkDone done, void *owner)
{
	ZkRequest  *r = calloc(1, sizeof(ZkRequest));

	zk_assert(zks_has_mutex(s));
	if (r == NULL)
		return NULL;
	r->session = s;
	r->listener = done != NULL ? LISTENER_DONE : LISTENER_OWNER;
	r->done = done;
	r->owner = owner;
	r->epoch = s->info.epoch;
	r->prev = s->last_request;
	if (r->prev != NULL)
		r->prev->next = r;
	else
		s->requests = r;
	s->last_request = r;
	if (s->unanswered_from == NULL)
		s->unanswered_from = r;
	return r;
}

static void
unlink_request(ZkRequest *r)
{
	ZkSession  *s = r->session;

	if (s->unanswered_from == r)
		s->unanswered_from = r->next;
	if (r->prev != NULL)
		r->prev->next = r->next;
	else
		s->requests = r->next;
	if (r->next != NULL)
		r->next->prev = r->prev;
	else
		s->last_request = r->prev;
}

static void free_request(ZkRequest *r);

/* Nobody wants to know.  The last of the two threads calls it without the mutex. */
static void
forget(ZkRequest *r)
{
	if (r->answered)
		free_request(r);
	else
		r->listener = LISTENER_NONE;
}

static void
free_request(ZkRequest *r)
{
	unlink_request(r);
	if (r->before != NULL)
		forget(r->before);
	for (int i = 0; i < r->nchildren; i++)
		free(r->children[i]);
	free(r->children);
	for (int i = 0; i < r->nstrangers; i++)
		free(r->strangers[i]);
	for (int i = 0; r->op_names != NULL && i < r->nops; i++)
		free(r->op_names[i]);
	free(r->op_names);
	free(r->op_types);
	free(r->results);
	free(r->name);
	free(r->data);
	free(r);
}

/* The answer has arrived; the owner of the request is told */
static void
answered(ZkRequest *r, int rc)
{
	ZkSession  *s = r->session;

	r->answered = true;
	r->rc = rc;
	if (r->watch != NULL)
		on_watch_set(r->watch, r);
	switch (r->listener)
	{
		case LISTENER_OWNER:
			s->notify = true;
			break;
		case LISTENER_DONE:
			r->done(r);
			free_request(r);
			break;
		case LISTENER_READ:
			break;
		case LISTENER_NONE:
			free_request(r);
			break;
	}
}

/*
 * Whether only a session that lives gets this answer.  A server that throttles
 * or requires authentication answers by itself, whatever happened to the
 * session.
 */
static bool
is_answer(int rc)
{
	switch (rc)
	{
		case ZOK:
		case ZNONODE:
		case ZNODEEXISTS:
		case ZNOTEMPTY:
		case ZBADVERSION:
		case ZNOAUTH:
		case ZNOCHILDRENFOREPHEMERALS:
		case ZNOWATCHER:
			return true;
		default:
			return false;
	}
}

/*
 * The session was alive when this request was sent.
 *
 * How far that can be relied on depends on ZooKeeper's leader, which counts
 * from the last heartbeat that it knows of: a follower forwards a write at
 * once, but the heartbeats of its clients only with its own.  So an answer
 * proves the more, the more regularly the answers before it came: late_at is
 * when an answer last came more than a third of the timeout after the request
 * before it was sent (this process was stopped, the network was slow).  After
 * two thirds the session may well be over, and a server that has lost its
 * leader would not know: it is in doubt until a transaction has been answered.
 */
void
zkr_heard_locked(ZkSession *s, int64_t sent_at)
{
	int64_t		now = zks_now();
	int64_t		timeout = s->info.timeout_ms * ZKS_MS;
	int64_t		silence = now - s->info.proven_at;

	zk_assert(zks_has_mutex(s));
	if (silence > timeout / 3)
		s->info.late_at = now;
	if (silence > timeout / 3 * 2)
	{
		s->info.in_doubt = true;
		s->info.revived_at = now;
		zks_wake_keeper(s);		/* it sends a request to the quorum */
	}
	/* somebody may wait for a stale session to be proven alive */
	if (silence > timeout / 2)
		s->notify = true;
	s->info.heard_at = now;
	s->info.proven_at = sent_at;
	if (now - sent_at < timeout)
		s->info.forfeited = false;	/* what it creates from now on is not lost */
}

/* What was read proves nothing unless what went before was carried out */
static int
result_behind(const ZkRequest *before, int rc)
{
	if (!before->answered)
		return ZSYSTEMERROR;
	return before->rc == ZOK ? rc : before->rc;
}

static void
complete(ZkRequest *r, int rc)
{
	ZkSession  *s = r->session;

	/*
	 * The handle is being closed, without the mutex: nothing may be touched.
	 * zkr_fail_all_locked does this after that.
	 */
	if (s->zh == NULL)
		return;
	if (r->too_large)
		rc = ZKS_TOO_LARGE;
	s->in_flight--;
	s->replies++;
	if (r->before != NULL && (rc == ZOK || rc == ZNONODE))
		rc = result_behind(r->before, rc);
	if (is_answer(rc))
	{
		zkr_heard_locked(s, r->sent_at);
		s->answer_due = 0;
		s->of_use = true;
		if (r->writes)
		{
			s->info.quorum_at = r->sent_at;
			if (s->info.in_doubt && r->sent_at > s->info.late_at)
			{
				s->info.in_doubt = false;
				s->notify = true;
			}
		}
	}
	else if (zks_is_auth_failure(rc))
		zks_end_locked(s, rc);	/* it would get us no further, nor let us
								 * delete */
	else if (zks_is_busy(rc))
		zks_catch_up_soon_locked(s, r->sent_at);
	answered(r, rc);
}

static char *
last_part(const char *path)
{
	const char *slash = path != NULL ? strrchr(path, '/') : NULL;

	return slash != NULL ? strdup(slash + 1) : NULL;
}

/* The library's kinds of completion */

static void
on_create2(int rc, const char *path, const struct Stat *stat, const void *data)
{
	ZkRequest  *r = (ZkRequest *) data;

	free(r->name);
	r->name = NULL;
	if (rc == ZOK)
	{
		r->name = last_part(path);
		r->czxid = stat->czxid;
		if (r->name == NULL)
			rc = ZSYSTEMERROR;	/* out of memory: look for the node later */
	}
	complete(r, rc);
}

static void
on_string(int rc, const char *value, const void *data)
{
	(void) value;
	complete((ZkRequest *) data, rc);
}

static void
on_void(int rc, const void *data)
{
	complete((ZkRequest *) data, rc);
}

/* Returns ZNONODE for another node than the one that is meant */
static int
keep_stat(ZkRequest *r, const struct Stat *stat)
{
	r->czxid = stat->czxid;
	r->ephemeral_owner = stat->ephemeralOwner;
	r->version = stat->version;
	r->cversion = stat->cversion;
	r->nbelow = stat->numChildren;
	r->made_at_ms = stat->ctime;
	return r->meant == 0 || r->meant == r->czxid ? ZOK : ZNONODE;
}

static void
on_stat(int rc, const struct Stat *stat, const void *data)
{
	ZkRequest  *r = (ZkRequest *) data;

	complete(r, rc == ZOK ? keep_stat(r, stat) : rc);
}

static void
on_data(int rc, const char *value, int len, const struct Stat *stat, const void *data)
{
	ZkRequest  *r = (ZkRequest *) data;

	if (rc == ZOK)
	{
		ZkpData		says;

		rc = keep_stat(r, stat);
		if (rc != ZOK && r->watch != NULL)
			r->watch->astray = true;
		r->is_mark = len == (int) strlen(CONTAINER_MARK) &&
			memcmp(value, CONTAINER_MARK, len) == 0;
		zkp_read_data(value, len, &says);
		r->says_shared = says.shared;
		r->says_granted = says.granted;
		r->in_place_of = says.czxid;
		if (r->keeps_data > 0 && len > 0)
		{
			r->data_len = len < r->keeps_data ? len : r->keeps_data;
			r->data = malloc(r->data_len);
			if (r->data != NULL)
				memcpy(r->data, value, r->data_len);
			else
				rc = ZSYSTEMERROR;
		}
	}
	complete(r, rc);
}

static bool
is_of_interest(const ZkRequest *r, const char *name)
{
	ZkpContender contender;
	ZkpRecordName record;

	switch (r->interest)
	{
		case INTEREST_CONTENDERS:
			return zkp_parse(name, &contender);
		case INTEREST_RECORDS:
			return zkp_parse_record(name, &record);
		case INTEREST_ALL:
			break;
	}
	return true;
}

/* Of those that are of no interest: whether it is kept aside */
static bool
is_stranger(const ZkRequest *r, const char *name)
{
	return r->interest == INTEREST_CONTENDERS && r->nstrangers < ZKS_STRANGERS &&
		zkp_may_be_stranger(name);
}

/*
 * How many of these are of interest.  Other entries of a directory, real or
 * not, take no memory of ours, but for a few strangers.  -1 if one of them cannot be the name of a
 * node: the library leaves NULL where a list was damaged.
 */
static int
count_children(const ZkRequest *r, const struct String_vector *strings)
{
	int			n = 0;

	for (int i = 0; i < strings->count; i++)
	{
		const char *name = strings->data[i];

		if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL)
			return -1;
		n += is_of_interest(r, name);
	}
	return n;
}

static bool
keep(char **kept, int *n, const char *name)
{
	kept[*n] = strdup(name);
	if (kept[*n] == NULL)
		return false;
	(*n)++;
	return true;
}

/*
 * False: out of memory.  Half a list would show fewer before us than there
 * are.
 */
static bool
keep_children(ZkRequest *r, const struct String_vector *strings, int n)
{
	r->children = calloc(n + 1, sizeof(char *));
	if (r->children == NULL)
		return false;
	for (int i = 0; i < strings->count; i++)
	{
		const char *name = strings->data[i];

		if (is_of_interest(r, name))
		{
			if (!keep(r->children, &r->nchildren, name))
				return false;
		}
		else if (is_stranger(r, name) && !keep(r->strangers, &r->nstrangers, name))
			return false;
	}
	return true;
}

static void
on_strings(int rc, const struct String_vector *strings, const void *data)
{
	ZkRequest  *r = (ZkRequest *) data;
	int			n = rc == ZOK ? count_children(r, strings) : 0;

	if (n < 0)
	{
		/* the connection is dropped as soon as the library lets us */
		r->session->frame.unsound = true;
		rc = ZMARSHALLINGERROR;
	}
	else if (rc == ZOK && !keep_children(r, strings, n))
		rc = ZSYSTEMERROR;
	complete(r, rc);
}

/*
 * The library has taken the request, or has not (rc).
 *
 * A send that fails makes the library close its socket and leave the requests
 * without an answer; the keeper mends that (connection.c, zks_mend_locked).
 */
static void
submitted(ZkRequest *r, int rc)
{
	ZkSession  *s = r->session;

	if (rc != ZOK)
	{
		answered(r, rc);
		return;
	}
	r->number = s->replies + s->in_flight;
	s->in_flight++;
	s->info.requests++;
	if (zks_usable_locked(s) && zoo_state(s->zh) != ZOO_CONNECTED_STATE)
	{
		s->broken = true;
		zks_wake_keeper(s);
	}
	else if (s->in_flight > SURELY_SENT || r->nops > SURELY_SENT)
		zks_wake_keeper(s);
}

/* Whether the request may be sent now; if not, it is answered at once */
static bool
begin(ZkRequest *r)
{
	ZkSession  *s = r->session;

	r->sent_at = zks_now();
	if (zks_usable_locked(s))
	{
		zks_cork_locked(s);
		return true;
	}
	answered(r, ZCONNECTIONLOSS);
	return false;
}

static const struct ACL_vector *
acl(bool closed)
{
	return closed ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE;
}

void
zkr_create_locked(ZkRequest *r, const char *path, int flags, const char *data, bool closed)
{
	zhandle_t  *zh = r->session->zh;

	zk_assert(zks_has_mutex(r->session));
	r->op = flags == ZOO_CONTAINER ? ZOO_CREATE_CONTAINER_OP : ZOO_CREATE2_OP;
	r->writes = true;
	r->name = strdup(path);
	if (r->name == NULL)
		answered(r, ZSYSTEMERROR);
	else if (!begin(r))
		return;
	else if (flags == ZOO_CONTAINER)
		submitted(r, zoo_acreate(zh, path, data, (int) strlen(data),
								 acl(closed), flags, on_string, r));
	else
		submitted(r, zoo_acreate2(zh, path, data, (int) strlen(data), acl(closed),
								  flags, on_create2, r));
}

/* An answer with an error arms no watch */
void
zkr_list_locked(ZkRequest *r, const char *dir)
{
	ZkWatch    *w = r->watch;

	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_GETCHILDREN_OP;
	if (begin(r))
		submitted(r, zoo_awget_children(r->session->zh, dir, w != NULL ? on_watch : NULL,
										NULL, on_strings, r));
}

/*
 * What goes before a read.  The two requests travel together, and answers come
 * in the order of the requests: if the first is refused (a sync by a server that
 * throttles, or has lost its leader), what is read behind it may be out of date,
 * so it fails with the same code.  Returns NULL if the read has failed already.
 */
ZkRequest *
zkr_new_before_locked(ZkRequest *r)
{
	ZkRequest  *before = zkr_new_locked(r->session, NULL, NULL);

	zk_assert(zks_has_mutex(r->session));
	r->before = before;
	if (before == NULL)
		answered(r, ZSYSTEMERROR);	/* which may free it */
	else
		before->listener = LISTENER_READ;
	return before;
}

/* It is not sent, for want of memory */
void
zkr_fail_locked(ZkRequest *r)
{
	zk_assert(zks_has_mutex(r->session));
	answered(r, ZSYSTEMERROR);
}

/* Nor is this, for a reason of ours */
void
zkr_deny_locked(ZkRequest *r, int rc)
{
	zk_assert(zks_has_mutex(r->session));
	answered(r, rc);
}

/* What follows is read according to the leader */
static bool
send_sync(ZkRequest *r, const char *path)
{
	ZkRequest  *sync = zkr_new_before_locked(r);

	if (sync == NULL)
		return false;
	sync->op = ZOO_SYNC_OP;
	if (begin(sync))
		submitted(sync, zoo_async(r->session->zh, path, on_string, sync));
	return true;
}

void
zkr_list_fresh_locked(ZkRequest *r, const char *dir)
{
	zk_assert(zks_has_mutex(r->session));
	if (send_sync(r, dir))
		zkr_list_locked(r, dir);
}

void
zkr_stat_locked(ZkRequest *r, const char *path)
{
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_EXISTS_OP;

	/* no watch: one on a node that is never created stays forever */
	if (begin(r))
		submitted(r, zoo_aexists(r->session->zh, path, 0, on_stat, r));
}

void
zkr_stat_fresh_locked(ZkRequest *r, const char *path)
{
	zk_assert(zks_has_mutex(r->session));
	if (send_sync(r, path))
		zkr_stat_locked(r, path);
}

/* The same behind a transaction of these: what a quorum has said, and of which node */
void
zkr_stat_behind_locked(ZkRequest *r, const char *path, const ZkOp *ops, int n)
{
	zk_assert(zks_has_mutex(r->session));
	if (zkr_new_before_locked(r) == NULL)
		return;
	zkr_multi_locked(r->before, ops, n);
	zkr_stat_locked(r, path);
}

void
zkr_get_locked(ZkRequest *r, const char *path)
{
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_GETDATA_OP;
	if (begin(r))
		submitted(r, zoo_awget(r->session->zh, path, NULL, NULL, on_data, r));
}

/* The sync is of the whole server, whatever its path */
void
zkr_get_fresh_locked(ZkRequest *r, const char *path, const char *sync_path)
{
	zk_assert(zks_has_mutex(r->session));
	if (send_sync(r, sync_path))
		zkr_get_locked(r, path);
}

void
zkr_delete_locked(ZkRequest *r, const char *path, int version)
{
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_DELETE_OP;
	r->writes = true;			/* also if it fails */
	if (begin(r))
		submitted(r, zoo_adelete(r->session->zh, path, version, on_void, r));
}

void
zkr_set_locked(ZkRequest *r, const char *path, const char *data, int version)
{
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_SETDATA_OP;
	r->writes = true;
	if (begin(r))
		submitted(r, zoo_aset(r->session->zh, path, data, (int) strlen(data), version,
							  on_stat, r));
}

/*
 * The number that ZooKeeper appends to a sequential node's name, and the
 * terminator
 */
#define NUMBER_LEN			(ZKR_NUMBER_LEN + 1)

/* Room for the results, which the library writes when the answer comes */
static bool
make_room(ZkRequest *r, const ZkOp *ops, int n)
{
	r->op_types = calloc(n, sizeof(int));
	r->op_names = calloc(n, sizeof(char *));
	r->results = calloc(n, sizeof(zoo_op_result_t));
	if (r->op_types == NULL || r->op_names == NULL || r->results == NULL)
		return false;
	r->nops = n;
	for (int i = 0; i < n; i++)
	{
		r->op_types[i] = ops[i].type;
		if (ops[i].type != ZOO_CREATE_OP)
			continue;
		r->op_names[i] = calloc(1, strlen(ops[i].path) + NUMBER_LEN);
		if (r->op_names[i] == NULL)
			return false;
		strcpy(r->op_names[i], ops[i].path);
	}
	return true;
}

/*
 * All of these or none, in one transaction.  The code of the answer is that of
 * the first that failed.  (A container among them would corrupt the library's
 * memory, and a name longer than its buffer is silently truncated.)
 */
void
zkr_multi_locked(ZkRequest *r, const ZkOp *ops, int n)
{
	zoo_op_t   *zops = calloc(n, sizeof(zoo_op_t));

	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_MULTI_OP;
	r->writes = true;			/* although checks change nothing */
	if (zops == NULL || !make_room(r, ops, n))
		answered(r, ZSYSTEMERROR);
	else if (begin(r))
	{
		for (int i = 0; i < n; i++)
		{
			const char *data = ops[i].data != NULL ? ops[i].data : "";

			if (ops[i].type == ZOO_CREATE_OP)
				zoo_create_op_init(&zops[i], ops[i].path, data, (int) strlen(data),
								   acl(ops[i].closed), ops[i].flags, r->op_names[i],
								   (int) strlen(ops[i].path) + NUMBER_LEN);
			else if (ops[i].type == ZOO_SETDATA_OP)
				zoo_set_op_init(&zops[i], ops[i].path, data, (int) strlen(data),
								ops[i].version, NULL);
			else if (ops[i].type == ZOO_DELETE_OP)
				zoo_delete_op_init(&zops[i], ops[i].path, ops[i].version);
			else
				zoo_check_op_init(&zops[i], ops[i].path, ops[i].version);
		}
		submitted(r, zoo_amulti(r->session->zh, n, zops, r->results, on_void, r));
	}
	free(zops);
}

/*
 * The deletion of a nonexistent node, with a version that no node has: it goes
 * through the leader and a quorum, as only transactions do.
 */
void
zkr_prove_locked(ZkRequest *r)
{
	char		path[1 + ZKP_UUID_LEN] = "/";

	zk_assert(zks_has_mutex(r->session));
	if (zks_make_uuid(path + 1))
		zkr_delete_locked(r, path, INT32_MAX);
	else
		answered(r, ZSYSTEMERROR);
}

/*
 * The request whose answer comes next: answers come in the order of the
 * requests. There may be many answered ones that their owners have not freed
 * yet, so those are skipped only once.
 */
ZkRequest *
zkr_next_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	if (s->in_flight == 0)
		return NULL;
	while (s->unanswered_from != NULL && s->unanswered_from->answered)
		s->unanswered_from = s->unanswered_from->next;
	for (ZkRequest *r = s->unanswered_from; r != NULL; r = r->next)
	{
		if (!r->answered && r->number == s->replies)
			return r;
	}
	return NULL;
}

/* Whether the owner has something under way */
bool
zkr_owner_asks_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	for (ZkRequest *r = s->requests; r != NULL; r = r->next)
	{
		if (r->listener == LISTENER_OWNER)
			return true;
	}
	for (ZkWatch *w = s->watches; w != NULL; w = w->next)
	{
		if (!w->dropped)
			return true;
	}
	return false;
}

/*
 * The handle is closed, so no completion will come: fail what is left, the
 * oldest first; a done function may add requests, which fail too.
 */
void
zkr_fail_all_locked(ZkSession *s, int rc)
{
	ZkRequest  *r = s->requests;

	zk_assert(zks_has_mutex(s));
	while (r != NULL)
	{
		if (r->answered)
		{
			r = r->next;
			continue;
		}
		s->in_flight--;
		answered(r, rc);
		r = s->requests;
	}
	free_left(s);
}

/* Whoever would be called back for this owner is not */
void
zkr_forget_owner_locked(ZkSession *s, const void *owner)
{
	zk_assert(zks_has_mutex(s));
	for (ZkRequest *r = s->requests; r != NULL; r = r->next)
	{
		if (r->listener == LISTENER_DONE && r->owner == owner && !r->answered)
			r->listener = LISTENER_NONE;
	}
}

void
zkr_free_all(ZkSession *s)
{
	while (s->requests != NULL)
		free_request(s->requests);
	while (s->watches != NULL)
	{
		ZkWatch    *w = s->watches;

		s->watches = w->next;
		free(w->data);
		free(w);
	}
	free(s->watch_chains);
}

/*
 * What the owner may ask
 */

static ZkRequest *
list_locked(ZkSession *s, const char *dir, bool fresh, ZkInterest interest, ZkWatch *watch)
{
	ZkRequest  *r = zkr_new_locked(s, NULL, NULL);

	zk_assert(zks_has_mutex(s));
	if (r == NULL)
		return NULL;
	r->watch = watch;
	r->interest = interest;
	if (fresh)
		zkr_list_fresh_locked(r, dir);
	else
		zkr_list_locked(r, dir);
	return r;
}

static ZkRequest *
list(ZkSession *s, const char *dir, bool fresh, ZkInterest interest)
{
	ZkRequest  *r;

	zks_enter(s);
	r = list_locked(s, dir, fresh, interest, NULL);
	zks_leave(s);
	return r;
}

ZkRequest *
zks_list(ZkSession *s, const char *dir, bool fresh)
{
	return list(s, dir, fresh, INTEREST_CONTENDERS);
}

ZkRequest *
zks_list_all(ZkSession *s, const char *dir, bool fresh)
{
	return list(s, dir, fresh, INTEREST_ALL);
}

static ZkRequest *
ask(ZkSession *s, void (*send) (ZkRequest *r, const char *path), const char *path, int keeps_data)
{
	ZkRequest  *r;

	zks_enter(s);
	r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
	{
		r->keeps_data = keeps_data;
		send(r, path);
	}
	zks_leave(s);
	return r;
}


static void
list_records_locked(ZkRequest *r, const char *dir)
{
	zk_assert(zks_has_mutex(r->session));
	r->interest = INTEREST_RECORDS;
	zkr_list_locked(r, dir);
}

ZkRequest *
zks_list_records(ZkSession *s, const char *dir)
{
	return ask(s, list_records_locked, dir, 0);
}

ZkRequest *
zks_read(ZkSession *s, const char *path)
{
	return ask(s, zkr_get_locked, path, ZKS_DATA_KEPT);
}

static void
read_fresh_locked(ZkRequest *r, const char *path)
{
	zk_assert(zks_has_mutex(r->session));
	zkr_get_fresh_locked(r, path, path);
}

ZkRequest *
zks_read_fresh(ZkSession *s, const char *path)
{
	return ask(s, read_fresh_locked, path, ZKS_DATA_KEPT);
}

ZkRequest *
zks_read_record(ZkSession *s, const char *path)
{
	return ask(s, zkr_get_locked, path, ZKS_RECORD_KEPT);
}

ZkRequest *
zks_stat(ZkSession *s, const char *path)
{
	return ask(s, zkr_stat_locked, path, 0);
}

ZkRequest *
zks_delete(ZkSession *s, const char *path, int version)
{
	ZkRequest  *r;

	zks_enter(s);
	r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
		zkr_delete_locked(r, path, version);
	zks_leave(s);
	return r;
}

static ZkRequest *
ask_all(ZkSession *s, const ZkOp *ops, int n)
{
	ZkRequest  *r;

	zks_enter(s);
	r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
		zkr_multi_locked(r, ops, n);
	zks_leave(s);
	return r;
}

/*
 * A child can be made only below a node that is not ephemeral, so this fails if
 * somebody's lock has taken the directory's place.
 */
ZkRequest *
zks_delete_directory(ZkSession *s, const char *path, int version)
{
	char		child[ZKS_PATH_LEN];
	char		uuid[ZKP_UUID_LEN];
	ZkOp		ops[] = {
		{.type = ZOO_CREATE_OP,.path = child},
		{.type = ZOO_DELETE_OP,.path = child,.version = -1},
		{.type = ZOO_DELETE_OP,.path = path,.version = version},
	};

	if (!zks_make_uuid(uuid))
		return NULL;
	snprintf(child, sizeof(child), "%s/%s", path, uuid);
	return ask_all(s, ops, 3);
}

ZkRequest *
zks_make(ZkSession *s, const char *path, bool closed)
{
	ZkRequest  *r;

	zks_enter(s);
	r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
		zkr_create_locked(r, path, 0, "", closed);
	zks_leave(s);
	return r;
}

ZkRequest *
zks_write(ZkSession *s, const char *path, const char *data, int version)
{
	ZkRequest  *r;

	zks_enter(s);
	r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
		zkr_set_locked(r, path, data, version);
	zks_leave(s);
	return r;
}

ZkRequest *
zks_mark_version(ZkSession *s, const char *path, const char *data, int version)
{
	ZkOp		ops[ZKN_MOST_VERSION + 1] = {0};
	int			n = ZKN_MOST_VERSION + 1 - version;

	for (int i = 0; i < n; i++)
	{
		ops[i].type = ZOO_SETDATA_OP;
		ops[i].path = path;
		ops[i].data = data;
		ops[i].version = i == 0 ? version : -1;
	}
	return ask_all(s, ops, n);
}

ZkRequest *
zks_delete_if(ZkSession *s, const char *path, const ZkCheck *checks, int n)
{
	ZkOp	   *ops = calloc(n + 1, sizeof(ZkOp));
	ZkRequest  *r;

	if (ops == NULL)
		return NULL;
	for (int i = 0; i < n; i++)
	{
		ops[i].type = ZOO_CHECK_OP;
		ops[i].path = checks[i].path;
		ops[i].version = checks[i].version;
	}
	ops[n].type = ZOO_DELETE_OP;
	ops[n].path = path;
	ops[n].version = -1;
	r = ask_all(s, ops, n + 1);
	free(ops);
	return r;
}

/*
 * The operation of a multi that failed: those after it get
 * ZRUNTIMEINCONSISTENCY. The first, if they failed as a whole.
 */
int
zkr_failed_op(const ZkRequest *r)
{
	for (int i = 0; i < r->nops; i++)
	{
		if (r->results[i].err != ZOK && r->results[i].err != ZRUNTIMEINCONSISTENCY)
			return i;
	}
	return 0;
}

bool
zks_answered(ZkSession *s, ZkRequest *r, ZkAnswer *answer)
{
	bool		result;

	zks_enter(s);
	result = r->answered;
	if (result)
	{
		answer->rc = r->rc;
		answer->sent_at = (r->before != NULL ? r->before : r)->sent_at;
		answer->epoch = r->epoch;
		answer->nchildren = r->nchildren;
		answer->children = r->children;
		answer->nstrangers = r->nstrangers;
		answer->strangers = r->strangers;
		answer->missing = r->before == NULL ? zkr_failed_op(r) :
			r->before->rc == ZOK ? r->index : zkr_failed_op(r->before);
		answer->czxid = r->in_place_of != 0 ? r->in_place_of : r->czxid;
		answer->own_czxid = r->czxid;
		answer->says_shared = r->says_shared;
		answer->owner = r->ephemeral_owner;
		answer->version = r->version;
		answer->nbelow = r->nbelow;
		answer->is_mark = r->is_mark;
		answer->made_at_ms = r->made_at_ms;
		answer->data = r->data;
		answer->data_len = r->data_len;
	}
	zks_leave(s);
	return result;
}

void
zks_request_free(ZkSession *s, ZkRequest *r)
{
	zks_enter(s);
	forget(r);
	zks_leave(s);
}

/*
 * Watches
 *
 * Those on a node are data watches: one set through exists() on a node that
 * is never created would stay forever.  The library keeps all of them across
 * a reconnection.
 */

/* At a path; the next ones in the chain may be at others */
static ZkWatch **
chain_of(ZkSession *s, const char *path)
{
	uint32_t	hash = 2166136261u; /* FNV-1a */

	for (const char *c = path; *c != '\0'; c++)
		hash = (hash ^ (unsigned char) *c) * 16777619u;
	return &s->watch_chains[hash & (s->nwatch_chains - 1)];
}

/* As many chains as watches.  False: there is no memory, and there are none */
static bool
make_chains(ZkSession *s)
{
	unsigned int n = s->nwatch_chains > 0 ? 2 * s->nwatch_chains : FIRST_CHAINS;
	ZkWatch   **chains;

	if (s->nwatches < s->nwatch_chains)
		return true;
	chains = calloc(n, sizeof(ZkWatch *));
	if (chains == NULL)
		return s->nwatch_chains > 0;
	free(s->watch_chains);
	s->watch_chains = chains;
	s->nwatch_chains = n;
	for (ZkWatch *w = s->watches; w != NULL; w = w->next)
	{
		ZkWatch   **chain = chain_of(s, w->path);

		w->next_in_chain = *chain;
		*chain = w;
	}
	return true;
}

static void
free_watch(ZkWatch *w)
{
	ZkSession  *s = w->session;
	ZkWatch   **link = chain_of(s, w->path);

	while (*link != w)
		link = &(*link)->next_in_chain;
	*link = w->next_in_chain;
	s->nwatches--;
	if (w->prev != NULL)
		w->prev->next = w->next;
	else
		s->watches = w->next;
	if (w->next != NULL)
		w->next->prev = w->prev;
	s->watch_bytes -= ZKR_STRING_BYTES + strlen(w->path);
	free(w->data);
	free(w);
}

/* Whether they do not fit into one packet, or would not if optional ones went on */
bool
zkr_watches_exceed_locked(ZkSession *s, bool optional)
{
	zk_assert(zks_has_mutex(s));
	if (s->ncredentials > 1)
		return s->watch_bytes > (optional ? ZKR_WATCH_BYTES_ENOUGH : ZKR_WATCH_BYTES_SURELY_SENT);
	return s->watch_bytes > (optional ? ZKN_PATHS_MAX + ZKR_WATCH_BYTES_LEFT : ZKR_WATCH_BYTES_MAX);
}

static void
fire(ZkWatch *w)
{
	w->state = ZKR_WATCH_FIRED;
	if (w->of_ours && !w->dropped)
		w->session->some_lost = true;
}

/* Whether the event is for watches of this kind, too */
static bool
concerns(int type, const ZkWatch *w)
{
	if (type == ZOO_CHILD_EVENT)
		return w->of_children;
	return (type != ZOO_CHANGED_EVENT && type != ZOO_CREATED_EVENT) || !w->of_children;
}

/*
 * The server says it once for all watches of a path, and so does the library, since
 * they are all the same to it.  (Were they not, it would compare each with each when
 * it tells them of a connection.)  One whose request has not been answered is not
 * meant: the event was before that.
 */
static void
on_watch(zhandle_t *zh, int type, int state, const char *path, void *context)
{
	ZkSession  *s = (ZkSession *) zoo_get_context(zh);

	(void) state;
	(void) context;
	if (type == ZOO_SESSION_EVENT || s->nwatches == 0)
		return;					/* the former is said to every watch;
								 * library_handle.c handles it */
	for (ZkWatch *next,
		 *w = *chain_of(s, path); w != NULL; w = next)
	{
		next = w->next_in_chain;
		if (w->state == ZKR_WATCH_PENDING || !concerns(type, w) || strcmp(w->path, path) != 0)
			continue;
		w->astray = false;
		if (type == ZOO_DELETED_EVENT)
			fire(w);
		else if (w->state == ZKR_WATCH_ARMED)
			w->state = ZKR_WATCH_CHANGED;
		if (!w->dropped)
			s->notify = true;
		else if (!w->in_flight)
			free_watch(w);
	}
}

/* Whether anybody else is still interested in this path */
static bool
watched_by_another(ZkWatch *w)
{
	for (ZkWatch *other = *chain_of(w->session, w->path); other != NULL; other = other->next_in_chain)
	{
		if (other != w && !other->dropped && other->of_children == w->of_children &&
			strcmp(other->path, w->path) == 0 &&
			(other->state == ZKR_WATCH_ARMED || other->in_flight))
			return true;
	}
	return false;
}

/* Those that were left, and that the library has forgotten with its handle */
static void
free_left(ZkSession *s)
{
	for (ZkWatch *next,
		 *w = s->watches; w != NULL; w = next)
	{
		next = w->next;
		if (w->left && !w->in_flight)
			free_watch(w);
	}
}

/* Those of this kind at a path, which would be awaited as long as the session lives */
static void
free_left_at(ZkSession *s, const char *path, bool of_children)
{
	for (ZkWatch *next,
		 *w = s->nwatches > 0 ? *chain_of(s, path) : NULL; w != NULL; w = next)
	{
		next = w->next_in_chain;
		if (w->left && !w->in_flight && w->of_children == of_children && strcmp(w->path, path) == 0)
			free_watch(w);
	}
}

/*
 * Remove an armed watch, at the server too.  Only all watches of a path can be
 * removed: the call for a single one merely checks at the server.  With local
 * = 1 the library crashes (ZOOKEEPER-2320).
 */
static void
remove_watch(ZkWatch *w)
{
	ZkRequest  *r;

	if (watched_by_another(w))
	{
		free_watch(w);
		return;
	}
	r = zkr_new_locked(w->session, NULL, NULL);
	if (r != NULL)
	{
		/* if it fails, the watch goes with its node or with the session */
		r->listener = LISTENER_NONE;
		r->op = ZOO_REMOVE_WATCHES;
		if (begin(r))
			submitted(r, zoo_aremove_all_watches(w->session->zh, w->path,
												 w->of_children ? ZWATCHTYPE_CHILD : ZWATCHTYPE_DATA, 0,
												 (void_completion_t *) on_void, r));
	}
	free_watch(w);
}

static void
free_or_remove(ZkWatch *w)
{
	if (w->state == ZKR_WATCH_ARMED || w->astray)
		remove_watch(w);
	else
		free_watch(w);
}

/*
 * Nobody wants it, and its request has been answered.  One of an earlier connection is
 * not left: if that belonged to an earlier handle, this one knows nothing of it.
 */
static void
free_or_leave(ZkWatch *w)
{
	if (!w->left || w->state != ZKR_WATCH_ARMED || w->astray || w->epoch != w->session->info.epoch)
		free_or_remove(w);
}

static void
on_watch_set(ZkWatch *w, ZkRequest *r)
{
	w->in_flight = false;
	w->data = r->data;
	w->data_len = r->data_len;
	w->ephemeral_owner = r->ephemeral_owner;
	w->version = r->version;
	w->nbelow = r->nbelow;
	w->is_mark = r->is_mark;
	r->data = NULL;
	if (w->state == ZKR_WATCH_PENDING || r->rc == ZOK)
	{
		w->epoch = r->epoch;
		w->rc = r->rc;
		w->says_shared = r->says_shared;
		w->says_granted = r->says_granted;
		w->state = r->rc == ZOK ? ZKR_WATCH_ARMED : ZKR_WATCH_FAILED;
		if (r->rc == ZNONODE)
			fire(w);
	}
	w->session->notify = true;
	if (w->dropped)
		free_or_leave(w);
}

/* In flight, until the answer to a request that has it */
static ZkWatch *
new_watch_locked(ZkSession *s, const char *path, bool of_children)
{
	ZkWatch    *w = make_chains(s) ? calloc(1, sizeof(ZkWatch) + strlen(path) + 1) : NULL;
	ZkWatch   **chain;

	zk_assert(zks_has_mutex(s));
	if (w == NULL)
		return NULL;
	w->session = s;
	w->of_children = of_children;
	w->in_flight = true;
	strcpy(w->path, path);
	w->next = s->watches;
	if (w->next != NULL)
		w->next->prev = w;
	s->watches = w;
	chain = chain_of(s, path);
	w->next_in_chain = *chain;
	*chain = w;
	s->nwatches++;
	s->watch_bytes += ZKR_STRING_BYTES + strlen(path);
	return w;
}

/* One that finds another node than the one that is meant has fired */
ZkWatch *
zkr_new_watch_locked(ZkSession *s, const char *path, int64_t meant, int keeps_data)
{
	ZkWatch    *w = new_watch_locked(s, path, false);
	ZkRequest  *r;

	zk_assert(zks_has_mutex(s));
	if (w == NULL)
		return NULL;
	r = zkr_new_locked(s, NULL, NULL);
	if (r == NULL)
	{
		free_watch(w);
		return NULL;
	}
	r->listener = LISTENER_NONE;
	r->watch = w;
	r->meant = meant;
	r->keeps_data = keeps_data;
	r->op = ZOO_GETDATA_OP;
	if (begin(r))
		submitted(r, zoo_awget(s->zh, path, on_watch, NULL, on_data, r));
	return w;
}

void
zkr_drop_watch_locked(ZkWatch *w)
{
	zk_assert(zks_has_mutex(w->session));
	w->dropped = true;
	if (w->in_flight)
		return;					/* on_watch_set continues */
	free_or_leave(w);
}

/*
 * ... where it fires soon by itself, since what it watches is about to be deleted, or
 * a node in the directory that it watches.  The event is less work than a request to
 * remove it, for us and for the server.  But a directory may stay as it is for as long as
 * we hold what we waited for there, so not many of them are left.
 */
void
zkr_leave_watch_locked(ZkWatch *w)
{
	zk_assert(zks_has_mutex(w->session));
	w->left = !w->of_children || w->session->watch_bytes <= ZKR_WATCH_BYTES_LEFT;
	zkr_drop_watch_locked(w);
}

/*
 * The server has said that the node is gone, and before that to each watch: one that
 * was left there and has not fired never will.
 */
void
zkr_node_is_gone_locked(ZkSession *s, const char *path, const char *dir)
{
	zk_assert(zks_has_mutex(s));
	free_left_at(s, path, false);
	free_left_at(s, dir, true);
}

ZkWatch *
zks_watch(ZkSession *s, const char *path)
{
	ZkWatch    *w;

	zks_enter(s);
	w = zkr_new_watch_locked(s, path, 0, ZKS_WATCHED_KEPT);
	zks_leave(s);
	return w;
}

int
zks_watched_data(ZkSession *s, ZkWatch *w, char *data, int64_t *owner)
{
	int			len = -1;

	zks_enter(s);
	/* other clients' nodes may be empty */
	if (w->data != NULL || w->ephemeral_owner != 0)
	{
		len = w->data_len;
		if (len > 0)
			memcpy(data, w->data, len);
		*owner = w->ephemeral_owner;
	}
	zks_leave(s);
	return len;
}

/*
 * An armed watch is set once more: another one at each look of who waits long, while
 * nothing changes, would stay.
 */
ZkRequest *
zks_list_and_watch(ZkSession *s, const char *dir, bool fresh, ZkWatch **watch)
{
	ZkWatch    *old = *watch;
	ZkWatch    *w = old;
	ZkRequest  *r = NULL;

	zks_enter(s);
	if (old == NULL || old->in_flight || old->state != ZKR_WATCH_ARMED)
		w = new_watch_locked(s, dir, true);
	if (w != NULL)
	{
		w->in_flight = true;
		r = list_locked(s, dir, fresh, INTEREST_CONTENDERS, w);
	}
	if (r != NULL)
		*watch = w;
	else if (w != NULL && w != old)
		free_watch(w);
	else if (w != NULL)
		w->in_flight = false;
	if (r != NULL && old != NULL && w != old)
		zkr_drop_watch_locked(old); /* this does not affect the new one */
	zks_leave(s);
	return r;
}

void
zks_watch_info(ZkSession *s, ZkWatch *w, ZkWatchInfo *info)
{
	zks_enter(s);
	info->state = w->state;
	info->rc = w->rc;
	info->epoch = w->epoch;
	info->says_shared = w->says_shared;
	info->says_granted = w->says_granted;
	info->owner = w->ephemeral_owner;
	info->version = w->version;
	info->nbelow = w->nbelow;
	info->is_mark = w->is_mark;
	zks_leave(s);
}

void
zks_unwatch(ZkSession *s, ZkWatch *w)
{
	zks_enter(s);
	zkr_drop_watch_locked(w);
	zks_leave(s);
}

void
zks_leave_watch(ZkSession *s, ZkWatch *w)
{
	zks_enter(s);
	zkr_leave_watch_locked(w);
	zks_leave(s);
}

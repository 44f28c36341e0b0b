/*-------------------------------------------------------------------------
 *
 * operation.c
 *	  What a request asks for, if it is one operation, and what is kept of the
 *	  answer.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include <zookeeper/proto.h>

#include "operation.h"

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
		r->stat.czxid = stat->czxid;
		if (r->name == NULL)
			rc = ZSYSTEMERROR;	/* out of memory: look for the node later */
	}
	zkr_complete(r, rc);
}

static void
on_string(int rc, const char *value, const void *data)
{
	(void) value;
	zkr_complete((ZkRequest *) data, rc);
}

/* Returns ZNONODE for another node than the one that is meant */
static int
keep_stat(ZkRequest *r, const struct Stat *stat)
{
	r->stat = (ZkStat)
	{
		.czxid = stat->czxid,
			.place_czxid = stat->czxid,
			.owner = stat->ephemeralOwner,
			.made_at_ms = stat->ctime,
			.version = stat->version,
			.cversion = stat->cversion,
			.nbelow = stat->numChildren,
	};
	return r->meant == 0 || r->meant == stat->czxid ? ZOK : ZNONODE;
}

static void
on_stat(int rc, const struct Stat *stat, const void *data)
{
	ZkRequest  *r = (ZkRequest *) data;

	zkr_complete(r, rc == ZOK ? keep_stat(r, stat) : rc);
}

static void
on_data(int rc, const char *value, int len, const struct Stat *stat, const void *data)
{
	ZkRequest  *r = (ZkRequest *) data;

	if (rc == ZOK)
	{
		ZkpData		says;

		rc = keep_stat(r, stat);
		r->stat.is_mark = len == (int) strlen(CONTAINER_MARK) &&
			memcmp(value, CONTAINER_MARK, len) == 0;
		zkp_read_data(value, len, &says);
		r->stat.says_shared = says.shared;
		r->stat.says_granted = says.granted;
		if (says.czxid != 0)
			r->stat.place_czxid = says.czxid;
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
	zkr_complete(r, rc);
}

static bool
is_of_interest(const ZkRequest *r, const char *name)
{
	ZkpContender contender;

	return r->interest == INTEREST_ALL || zkp_parse(name, &contender);
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
	zkr_complete(r, rc);
}

const struct ACL_vector *
zkr_acl(bool closed)
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
		zkr_fail_locked(r, ZSYSTEMERROR);
	else if (!zkr_begin_locked(r))
		return;
	else if (flags == ZOO_CONTAINER)
		zkr_submitted_locked(r, zoo_acreate(zh, path, data, (int) strlen(data),
											zkr_acl(closed), flags, on_string, r));
	else
		zkr_submitted_locked(r, zoo_acreate2(zh, path, data, (int) strlen(data), zkr_acl(closed),
											 flags, on_create2, r));
}

/* An answer with an error arms no watch */
void
zkr_list_locked(ZkRequest *r, const char *dir)
{
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_GETCHILDREN_OP;
	if (zkr_begin_locked(r))
		zkr_submitted_locked(r, zoo_awget_children(r->session->zh, dir, r->watcher,
												   NULL, on_strings, r));
}

/* What follows is read according to the leader */
static bool
send_sync(ZkRequest *r, const char *path)
{
	ZkRequest  *sync = zkr_new_before_locked(r);

	if (sync == NULL)
		return false;
	sync->op = ZOO_SYNC_OP;
	if (zkr_begin_locked(sync))
		zkr_submitted_locked(sync, zoo_async(r->session->zh, path, on_string, sync));
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
	if (zkr_begin_locked(r))
		zkr_submitted_locked(r, zoo_aexists(r->session->zh, path, 0, on_stat, r));
}

void
zkr_stat_fresh_locked(ZkRequest *r, const char *path)
{
	zk_assert(zks_has_mutex(r->session));
	if (send_sync(r, path))
		zkr_stat_locked(r, path);
}

void
zkr_get_locked(ZkRequest *r, const char *path)
{
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_GETDATA_OP;
	if (zkr_begin_locked(r))
		zkr_submitted_locked(r, zoo_awget(r->session->zh, path, r->watcher, NULL, on_data, r));
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
	if (zkr_begin_locked(r))
		zkr_submitted_locked(r, zoo_adelete(r->session->zh, path, version, zkr_on_code, r));
}

void
zkr_set_locked(ZkRequest *r, const char *path, const char *data, int version)
{
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_SETDATA_OP;
	r->writes = true;
	if (zkr_begin_locked(r))
		zkr_submitted_locked(r, zoo_aset(r->session->zh, path, data, (int) strlen(data), version,
										 on_stat, r));
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
		zkr_fail_locked(r, ZSYSTEMERROR);
}

/*
 * Only all watches of a path can be removed: the call for a single one merely checks
 * at the server.  With local = 1 the library crashes (ZOOKEEPER-2320).
 */
void
zkr_remove_watches_locked(ZkRequest *r, const char *path, bool of_children)
{
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_REMOVE_WATCHES;
	if (zkr_begin_locked(r))
		zkr_submitted_locked(r, zoo_aremove_all_watches(r->session->zh, path,
														of_children ? ZWATCHTYPE_CHILD : ZWATCHTYPE_DATA, 0,
														(void_completion_t *) zkr_on_code, r));
}

/*
 * What the owner may ask
 */

/* interest: in what a list shows; keeps_data: of what is read */
static ZkRequest *
ask(ZkSession *s, void (*send) (ZkRequest *r, const char *path), const char *path,
	ZkInterest interest, int keeps_data)
{
	ZkRequest  *r;

	zks_enter(s);
	r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
	{
		r->interest = interest;
		r->keeps_data = keeps_data;
		send(r, path);
	}
	zks_leave(s);
	return r;
}

ZkRequest *
zks_list(ZkSession *s, const char *dir, bool fresh)
{
	return ask(s, fresh ? zkr_list_fresh_locked : zkr_list_locked, dir, INTEREST_CONTENDERS, 0);
}

ZkRequest *
zks_list_all(ZkSession *s, const char *dir, bool fresh)
{
	return ask(s, fresh ? zkr_list_fresh_locked : zkr_list_locked, dir, INTEREST_ALL, 0);
}

ZkRequest *
zks_read(ZkSession *s, const char *path)
{
	return ask(s, zkr_get_locked, path, 0, ZKS_DATA_KEPT);
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
	return ask(s, read_fresh_locked, path, 0, ZKS_DATA_KEPT);
}

ZkRequest *
zks_read_record(ZkSession *s, const char *path)
{
	return ask(s, zkr_get_locked, path, 0, ZKS_RECORD_KEPT);
}

ZkRequest *
zks_stat(ZkSession *s, const char *path)
{
	return ask(s, zkr_stat_locked, path, 0, 0);
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

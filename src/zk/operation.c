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
keep(char **kept, int *n, const char *name)
{
	kept[*n] = strdup(name);
	if (kept[*n] == NULL)
		return false;
	(*n)++;
	return true;
}

/*
 * Other entries of a directory, real or not, take no memory of ours (what is not
 * written to takes none), but for a few strangers.  Half a list would show fewer before
 * us than there are, so it is none; nor is one with what cannot be the name of a node:
 * the library leaves NULL where a list was damaged.
 */
static int
keep_children(ZkRequest *r, const struct String_vector *strings)
{
	int			rc = ZOK;

	r->children = calloc(strings->count + 1, sizeof(char *));
	if (r->children == NULL)
		rc = ZSYSTEMERROR;
	for (int i = 0; i < strings->count; i++)
	{
		const char *name = strings->data[i];
		ZkpContender contender;
		bool		kept = true;

		if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL)
		{
			/* the connection is dropped as soon as the library lets us */
			r->session->frame.unsound = true;
			return ZMARSHALLINGERROR;
		}
		if (rc != ZOK)
			continue;
		if (r->interest == INTEREST_ALL || zkp_parse(name, &contender))
			kept = keep(r->children, &r->nchildren, name);
		else if (r->nstrangers < ZKS_STRANGERS && zkp_may_be_stranger(name))
			kept = keep(r->strangers, &r->nstrangers, name);
		if (!kept)
			rc = ZSYSTEMERROR;
	}
	return rc;
}

static void
on_strings(int rc, const struct String_vector *strings, const void *data)
{
	ZkRequest  *r = (ZkRequest *) data;

	zkr_complete(r, rc == ZOK ? keep_children(r, strings) : rc);
}

const struct ACL_vector *
zkr_acl(bool closed)
{
	return closed ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE;
}

/* The sync is of the whole server, whatever its path */
static bool
send_sync(ZkRequest *r)
{
	ZkRequest  *sync = zkr_new_before_locked(r);

	if (sync == NULL)
		return false;
	sync->op = ZOO_SYNC_OP;
	if (zkr_begin_locked(sync))
		zkr_submitted_locked(sync, zoo_async(r->session->zh, r->sync_path, on_string, sync));
	return true;
}

static bool
begin(ZkRequest *r, int op)
{
	r->op = op;

	/* also if it fails */
	r->writes = op == ZOO_CREATE_CONTAINER_OP || op == ZOO_CREATE2_OP || op == ZOO_DELETE_OP || op == ZOO_SETDATA_OP;
	return (r->sync_path == NULL || send_sync(r)) && zkr_begin_locked(r);
}

void
zkr_create_locked(ZkRequest *r, const char *path, int flags, const char *data, bool closed)
{
	zhandle_t  *zh = r->session->zh;
	int			len = (int) strlen(data);

	zk_assert(zks_has_mutex(r->session));
	r->name = strdup(path);
	if (r->name == NULL)
		zkr_answer_locked(r, ZSYSTEMERROR);
	else if (!begin(r, flags == ZOO_CONTAINER ? ZOO_CREATE_CONTAINER_OP : ZOO_CREATE2_OP))
		return;
	else if (flags == ZOO_CONTAINER)
		zkr_submitted_locked(r, zoo_acreate(zh, path, data, len, zkr_acl(closed), flags, on_string, r));
	else
		zkr_submitted_locked(r, zoo_acreate2(zh, path, data, len, zkr_acl(closed), flags, on_create2, r));
}

/* An answer with an error arms no watch */
void
zkr_list_locked(ZkRequest *r, const char *dir)
{
	zk_assert(zks_has_mutex(r->session));
	if (begin(r, ZOO_GETCHILDREN_OP))
		zkr_submitted_locked(r, zoo_awget_children(r->session->zh, dir, r->watcher,
												   NULL, on_strings, r));
}

void
zkr_stat_locked(ZkRequest *r, const char *path)
{
	zk_assert(zks_has_mutex(r->session));

	/* no watch: one on a node that is never created stays forever */
	if (begin(r, ZOO_EXISTS_OP))
		zkr_submitted_locked(r, zoo_aexists(r->session->zh, path, 0, on_stat, r));
}

void
zkr_get_locked(ZkRequest *r, const char *path)
{
	zk_assert(zks_has_mutex(r->session));
	if (begin(r, ZOO_GETDATA_OP))
		zkr_submitted_locked(r, zoo_awget(r->session->zh, path, r->watcher, NULL, on_data, r));
}

void
zkr_delete_locked(ZkRequest *r, const char *path, int version)
{
	zk_assert(zks_has_mutex(r->session));
	if (begin(r, ZOO_DELETE_OP))
		zkr_submitted_locked(r, zoo_adelete(r->session->zh, path, version, zkr_on_code, r));
}

void
zkr_set_locked(ZkRequest *r, const char *path, const char *data, int version)
{
	zk_assert(zks_has_mutex(r->session));
	if (begin(r, ZOO_SETDATA_OP))
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
		zkr_answer_locked(r, ZSYSTEMERROR);
}

/*
 * Only all watches of a path can be removed: the call for a single one merely checks
 * at the server.  With local = 1 the library crashes (ZOOKEEPER-2320).
 */
void
zkr_remove_watches_locked(ZkRequest *r, const char *path, bool of_children)
{
	zk_assert(zks_has_mutex(r->session));
	if (begin(r, ZOO_REMOVE_WATCHES))
		zkr_submitted_locked(r, zoo_aremove_all_watches(r->session->zh, path,
														of_children ? ZWATCHTYPE_CHILD : ZWATCHTYPE_DATA, 0,
														(void_completion_t *) zkr_on_code, r));
}

/*
 * What the owner may ask
 */

/* fresh: according to the leader; interest: in what a list shows; keeps_data: of what is read */
static ZkRequest *
ask(ZkSession *s, void (*send) (ZkRequest *r, const char *path), const char *path, bool fresh,
	ZkInterest interest, int keeps_data)
{
	ZkRequest  *r;

	zks_enter(s);
	r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
	{
		r->sync_path = fresh ? path : NULL;
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
	return ask(s, zkr_list_locked, dir, fresh, INTEREST_CONTENDERS, 0);
}

ZkRequest *
zks_list_all(ZkSession *s, const char *dir, bool fresh)
{
	return ask(s, zkr_list_locked, dir, fresh, INTEREST_ALL, 0);
}

ZkRequest *
zks_read(ZkSession *s, const char *path)
{
	return ask(s, zkr_get_locked, path, false, 0, ZKS_DATA_KEPT);
}

ZkRequest *
zks_read_fresh(ZkSession *s, const char *path)
{
	return ask(s, zkr_get_locked, path, true, 0, ZKS_DATA_KEPT);
}

ZkRequest *
zks_read_record(ZkSession *s, const char *path)
{
	return ask(s, zkr_get_locked, path, false, 0, ZKS_RECORD_KEPT);
}

ZkRequest *
zks_stat(ZkSession *s, const char *path)
{
	return ask(s, zkr_stat_locked, path, false, 0, 0);
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

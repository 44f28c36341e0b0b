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

/* The library's kinds of completion */

static void
on_create2(int rc, const char *path, const struct Stat *stat, const void *data)
{
	ZkRequest  *r = (ZkRequest *) data;

	free(r->name);
	r->name = NULL;
	if (rc == ZOK)
	{
		r->name = strdup(path);
		r->answer.stat.czxid = stat->czxid;
		if (r->name == NULL)
			rc = ZSYSTEMERROR;	/* out of memory: look for the node later */
	}
	zkr_complete(r, rc);
}

static void
on_string(int rc, const char *value, const void *data)
{
	zkr_complete((ZkRequest *) data, rc);
}

/* Returns ZNONODE for another node than the one that is meant */
static int
keep_stat(ZkRequest *r, const struct Stat *stat)
{
	r->answer.stat = (ZkStat)
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
		r->answer.stat.is_our_directory = len == (int) strlen(CONTAINER_MARK) &&
			memcmp(value, CONTAINER_MARK, len) == 0;
		zkp_read_data(value, len, &says);
		r->answer.stat.says_shared = says.shared;
		r->answer.stat.says_granted = says.granted;
		if (says.czxid != 0)
			r->answer.stat.place_czxid = says.czxid;
		if (r->keeps_data > 0 && len > 0)
		{
			r->answer.data_len = len < r->keeps_data ? len : r->keeps_data;
			r->answer.data = malloc(r->answer.data_len);
			if (r->answer.data != NULL)
				memcpy(r->answer.data, value, r->answer.data_len);
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

	r->answer.children = calloc(strings->count + 1, sizeof(char *));
	if (r->answer.children == NULL)
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
		if (r->keeps_all || zkp_parse(name, &contender))
			kept = keep(r->answer.children, &r->answer.nchildren, name);
		else if (r->answer.nstrangers < ZKS_STRANGERS && zkp_may_be_stranger(name))
			kept = keep(r->answer.strangers, &r->answer.nstrangers, name);
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

/*
 * An answer with an error arms no watch.  A stat sets none: one on a node that is never
 * created stays forever.  Only all watches of a path can be removed: the call for a single
 * one merely checks at the server.  With local = 1 the library crashes (ZOOKEEPER-2320).
 */
static int
submit(ZkRequest *r, const ZkOp *op)
{
	zhandle_t  *zh = r->session->zh;
	const char *data = op->data != NULL ? op->data : "";
	int			len = (int) strlen(data);

	switch (op->type)
	{
		case ZOO_CREATE_CONTAINER_OP:
			return zoo_acreate(zh, op->path, data, len, zkr_acl(op->closed), ZOO_CONTAINER, on_string, r);
		case ZOO_CREATE2_OP:
			return zoo_acreate2(zh, op->path, data, len, zkr_acl(op->closed), op->flags, on_create2, r);
		case ZOO_SETDATA_OP:
			return zoo_aset(zh, op->path, data, len, op->version, on_stat, r);
		case ZOO_DELETE_OP:
			return zoo_adelete(zh, op->path, op->version, zkr_on_code, r);
		case ZOO_GETCHILDREN_OP:
			return zoo_awget_children(zh, op->path, r->watcher, NULL, on_strings, r);
		case ZOO_GETDATA_OP:
			return zoo_awget(zh, op->path, r->watcher, NULL, on_data, r);
		case ZOO_EXISTS_OP:
			return zoo_aexists(zh, op->path, 0, on_stat, r);
		default:
			return zoo_aremove_all_watches(zh, op->path, op->flags, 0, (void_completion_t *) zkr_on_code, r);
	}
}

void
zkr_send_locked(ZkRequest *r, const ZkOp *op)
{
	bool		creates = op->type == ZOO_CREATE_CONTAINER_OP || op->type == ZOO_CREATE2_OP;

	zk_assert(zks_has_mutex(r->session));
	r->op = op->type;

	/* also if it fails */
	r->writes = creates || op->type == ZOO_DELETE_OP || op->type == ZOO_SETDATA_OP;
	if (creates && (r->name = strdup(op->path)) == NULL)
		zkr_answer_locked(r, ZSYSTEMERROR);
	else if ((r->sync_path == NULL || send_sync(r)) && zkr_begin_locked(r))
		zkr_submitted_locked(r, submit(r, op));
}

/* A list, a node, or its stat */
void
zkr_read_locked(ZkRequest *r, int type, const char *path)
{
	ZkOp		op = {.type = type,.path = path};

	zkr_send_locked(r, &op);
}

/*
 * What the owner may ask
 */

static ZkRequest *
ask(ZkSession *s, const ZkOp *op, bool fresh, bool keeps_all, int keeps_data)
{
	ZkRequest  *r;

	zks_enter(s);
	r = zkr_new_locked(s, NULL, NULL);
	if (r != NULL)
	{
		r->sync_path = fresh ? op->path : NULL;
		r->keeps_all = keeps_all;
		r->keeps_data = keeps_data;
		zkr_send_locked(r, op);
	}
	zks_leave(s);
	return r;
}

ZkRequest *
zks_list(ZkSession *s, const char *dir, bool fresh, bool all)
{
	ZkOp		op = {.type = ZOO_GETCHILDREN_OP,.path = dir};

	return ask(s, &op, fresh, all, 0);
}

ZkRequest *
zks_read(ZkSession *s, const char *path, bool fresh, int keeps_data)
{
	ZkOp		op = {.type = keeps_data > 0 ? ZOO_GETDATA_OP : ZOO_EXISTS_OP,.path = path};

	return ask(s, &op, fresh, false, keeps_data);
}

ZkRequest *
zks_delete(ZkSession *s, const char *path, int version)
{
	ZkOp		op = {.type = ZOO_DELETE_OP,.path = path,.version = version};

	return ask(s, &op, false, false, 0);
}

ZkRequest *
zks_make(ZkSession *s, const char *path, bool closed)
{
	ZkOp		op = {.type = ZOO_CREATE2_OP,.path = path,.closed = closed};

	return ask(s, &op, false, false, 0);
}

ZkRequest *
zks_write(ZkSession *s, const char *path, const char *data, int version)
{
	ZkOp		op = {.type = ZOO_SETDATA_OP,.path = path,.data = data,.version = version};

	return ask(s, &op, false, false, 0);
}

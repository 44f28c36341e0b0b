/*-------------------------------------------------------------------------
 *
 * multi.c
 *	  Several operations in one transaction.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "multi.h"

/*
 * The number that ZooKeeper appends to a sequential node's name, and the
 * terminator
 */
#define NUMBER_LEN			(ZKR_NUMBER_LEN + 1)

/* With room for the results, which the library writes when the answer comes */
static bool
make_ops(ZkRequest *r, const ZkOp *ops, int n)
{
	r->ops = calloc(n, sizeof(zoo_op_t));
	r->results = calloc(n, sizeof(zoo_op_result_t));
	if (r->ops == NULL || r->results == NULL)
		return false;
	r->nops = n;
	for (int i = 0; i < n; i++)
	{
		zoo_op_t   *op = &r->ops[i];
		const char *path = ops[i].path;
		const char *data = ops[i].data != NULL ? ops[i].data : "";
		int			name_size = (int) strlen(path) + NUMBER_LEN;

		if (ops[i].type == ZOO_CREATE_OP)
		{
			char	   *name = calloc(1, name_size);

			if (name == NULL)
				return false;
			zoo_create_op_init(op, path, data, (int) strlen(data), zkr_acl(ops[i].closed),
							   ops[i].flags, strcpy(name, path), name_size);
		}
		else if (ops[i].type == ZOO_SETDATA_OP)
			zoo_set_op_init(op, path, data, (int) strlen(data), ops[i].version, NULL);
		else if (ops[i].type == ZOO_DELETE_OP)
			zoo_delete_op_init(op, path, ops[i].version);
		else
			zoo_check_op_init(op, path, ops[i].version);
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
	zk_assert(zks_has_mutex(r->session));
	r->op = ZOO_MULTI_OP;
	r->writes = true;			/* although checks change nothing */
	if (!make_ops(r, ops, n))
		zkr_answer_locked(r, ZSYSTEMERROR);
	else if (zkr_begin_locked(r))
		zkr_submitted_locked(r, zoo_amulti(r->session->zh, n, r->ops, r->results, zkr_on_code, r));
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

/*-------------------------------------------------------------------------
 *
 * reader.c
 *	  Many questions to ZooKeeper at a time, for those who only look.
 *
 * Questions are asked ahead of the answers, up to a window of them.  Whoever
 * gets an error in between must end the reading, so that none is left.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "backend/settings.h"
#include "reader.h"

static void
set_due(ZkReader *r)
{
	r->patience.until = zkb_deadline(zklock_operation_timeout);
}

void
zkl_begin_reading(ZkReader *r, ZkSession *session, ZkWait *wait, ZkWaitEvent event)
{
	memset(&r->patience, 0, sizeof(ZkPatience));
	r->patience.session = session;
	r->patience.wait = wait;
	r->patience.event = event;
	r->patience.raises = true;
	r->first = r->n = 0;
	set_due(r);
}

ZkRequest *
zkl_sent(ZkRequest *request)
{
	if (request == NULL)
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	return request;
}

ZkReading
zkl_await(ZkReader *r, ZkRequest *request, ZkAnswer *answer)
{
	ZkPatience *p = &r->patience;
	ZkWaited	waited = zkb_await_answer(p, request, answer);
	ZkSessionInfo info;

	if (waited != ZKB_CAME)
		return waited == ZKB_SESSION_OVER ? ZKL_BROKEN : ZKL_LATE;
	set_due(r);
	if (!zks_is_open(answer->rc))
	{
		p->wait->said = ZKS_OK;
		return ZKL_READ;
	}
	zks_info(p->session, &info);
	p->wait->said = answer->rc;
	if (info.state == ZKS_CONNECTED && p->go_on == NULL)
		zkb_pause(p->wait, p->session, p->until, p->event);
	return ZKL_BROKEN;
}

bool
zkl_has_room(const ZkReader *r)
{
	return r->n < ZKL_WINDOW;
}

void
zkl_ask(ZkReader *r, ZkRequest *request)
{
	r->requests[(r->first + r->n) % ZKL_WINDOW] = zkl_sent(request);
	r->n++;
	CHECK_FOR_INTERRUPTS();
}

ZkReading
zkl_await_oldest(ZkReader *r, ZkAnswer *answer)
{
	return zkl_await(r, r->requests[r->first], answer);
}

void
zkl_drop_oldest(ZkReader *r)
{
	zks_request_free(r->patience.session, r->requests[r->first]);
	r->first = (r->first + 1) % ZKL_WINDOW;
	r->n--;
}

ZkReading
zkl_read_nodes(ZkReader *r, const ZkNodesToRead *nodes)
{
	int			next = 0;

	for (int i = 0; i < nodes->n; i++)
	{
		ZkAnswer	answer;
		ZkReading	reading;

		for (; next < nodes->n && zkl_has_room(r); next++)
		{
			char	   *path = psprintf("%s/%s", nodes->dir, nodes->name(next, nodes->arg));

			zkl_ask(r, zks_read(r->patience.session, path));
			pfree(path);
		}
		reading = zkl_await_oldest(r, &answer);
		if (reading != ZKL_READ)
			return reading;
		nodes->take(i, &answer, nodes->arg);
		zkl_drop_oldest(r);
	}
	return ZKL_READ;
}

void
zkl_end_reading(ZkReader *r)
{
	while (r->n > 0)
		zkl_drop_oldest(r);
}

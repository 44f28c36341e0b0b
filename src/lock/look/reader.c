/*-------------------------------------------------------------------------
 *
 * reader.c
 *	  Many questions to ZooKeeper at a time, about what others did there.
 *
 * Questions are asked ahead of the answers, up to a window of them.  Whoever
 * gets an error in between must end the reading, so that none is left.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "backend/backend_session.h"
#include "backend/errors.h"
#include "reader.h"

static void
set_due(ZkReader *r)
{
	r->patience.until = zkb_wait_answer_due(r->patience.wait);
}

void
zkl_begin_reading(ZkReader *r, ZkPatience patience)
{
	r->patience = patience;
	r->first = r->n = 0;
	set_due(r);
}

static bool
try_round(ZkReader *r, ZkWait *wait, ZkWaitEvent event, bool (*round) (void *arg), void *arg)
{
	ZkPatience	patience = {.wait = wait,.event = event,.raises = true};
	volatile bool finished = false;

	CHECK_FOR_INTERRUPTS();
	patience.session = zkb_connect(wait);
	zkl_begin_reading(r, patience);
	if (r->last_round == 0)
		r->last_round = r->patience.until;
	else if (zks_now() >= r->last_round)
		zkb_raise_unanswered(wait, r->patience.session);
	PG_TRY();
	{
		finished = round(arg);
	}
	PG_FINALLY();
	{
		zkl_end_reading(r);
	}
	PG_END_TRY();
	return finished;
}

void
zkl_read_in_rounds(ZkReader *r, ZkWait *wait, ZkWaitEvent event, bool (*round) (void *arg), void *arg)
{
	r->last_round = 0;
	while (!try_round(r, wait, event, round, arg))
		;
}

bool
zkl_await_oldest(ZkReader *r, ZkAnswer *answer)
{
	ZkPatience *p = &r->patience;

	if (zkb_await_answer(p, r->requests[r->first], answer) != ZKB_CAME)
		return false;
	set_due(r);
	if (!zks_is_open(answer->rc))
	{
		p->wait->said = ZKS_OK;
		return true;
	}
	p->wait->said = answer->rc;
	if (zks_info(p->session).state == ZKS_CONNECTED && p->go_on == NULL)
		zkb_pause(p->wait, p->session, p->until, p->event);
	return false;
}

bool
zkl_ask_apart(ZkReader *r, ZkRequest *request, ZkAnswer *answer)
{
	zkl_end_reading(r);
	zkl_ask(r, request, NULL);
	return zkl_await_oldest(r, answer);
}

void
zkl_ask(ZkReader *r, ZkRequest *request, void *about)
{
	int			last = (r->first + r->n) % ZKL_WINDOW;

	r->requests[last] = zkb_sent(request);
	r->about[last] = about;
	r->n++;
	CHECK_FOR_INTERRUPTS();
}

void
zkl_drop_oldest(ZkReader *r)
{
	zks_request_free(r->patience.session, r->requests[r->first]);
	r->first = (r->first + 1) % ZKL_WINDOW;
	r->n--;
}

void
zkl_end_reading(ZkReader *r)
{
	while (r->n > 0)
		zkl_drop_oldest(r);
}

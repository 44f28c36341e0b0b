/*-------------------------------------------------------------------------
 *
 * library_handle.c
 *	  The handle of ZooKeeper's client library: made, with its credentials, and
 *	  closed; and what it tells of its connection.
 *
 * A session has one handle at a time, and another after an outage that was
 * longer than its timeout.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connection.h"
#include "multi.h"

/* Of a certificate; the names in one rarely have more than 250 bytes */
#define LONGEST_SUBJECT		1024

/*-------------------------------------------------------------------------
 * What the library tells us
 *-------------------------------------------------------------------------
 */

/*
 * The library's messages are the only place where it says why a connection
 * failed: "...errno=111(Connection refused): ...".  Keep that for DETAIL;
 * nothing is written to a log, which a dead ensemble would flood.  The
 * callback is not told whose message it is: that of the session whose mutex we
 * have.  While a handle is closed there is none.
 */
static void
on_log(const char *message)
{
	ZkSession  *s = zks_entered();
	const char *text = strstr(message, "errno=");
	int			code;

	if (s == NULL || text == NULL)
		return;
	code = atoi(text + strlen("errno="));
	if (code == EINPROGRESS)
		return;					/* left over from a connect() that is under
								 * way */

	/*
	 * The library says EHOSTDOWN for the end of the stream, and sends its
	 * greeting without looking whether there was one.
	 */
	if (code == EHOSTDOWN || zks_errno_trouble(code) == ZKS_TROUBLE_CLOSED)
		zks_trouble_locked(s, ZKS_TROUBLE_CLOSED, "server closed the connection");
	else
		zks_trouble_locked(s, zks_errno_trouble(code), strerror(code));
}

static void
on_session_event(zhandle_t *zh, int type, int state, const char *path, void *context)
{
	ZkSession  *s = (ZkSession *) context;

	if (type != ZOO_SESSION_EVENT || s->info.state == ZKS_OVER || state == ZOO_CONNECTED_STATE)
		return;					/* connection.c sees the latter */
	if (state == ZOO_EXPIRED_SESSION_STATE || state == ZOO_AUTH_FAILED_STATE)
		zks_end_locked(s, state == ZOO_AUTH_FAILED_STATE ? ZAUTHFAILED : ZSESSIONEXPIRED);
	else if (s->info.state == ZKS_CONNECTED)
		zks_suspend_locked(s);
}

/*-------------------------------------------------------------------------
 * Options, with the credentials
 *-------------------------------------------------------------------------
 */

/* All but tls, which is the thread's */
void
zks_free_options(ZkSession *s)
{
	ZkCredential *credentials = (ZkCredential *) s->options.credentials;

	for (int i = 0; credentials != NULL && i < s->options.ncredentials; i++)
	{
		free(credentials[i].scheme);
		if (credentials[i].secret != NULL)
			explicit_bzero(credentials[i].secret, strlen(credentials[i].secret));
		free(credentials[i].secret);
	}
	free(credentials);
	free((char *) s->options.hosts);
}

bool
zks_copy_options(ZkSession *s, const ZkOptions *options)
{
	ZkCredential *credentials = calloc(options->ncredentials + 1, sizeof(ZkCredential));

	s->options = *options;
	s->options.credentials = credentials;
	s->options.hosts = strdup(options->hosts);
	if (credentials == NULL || s->options.hosts == NULL)
		return false;
	s->closed_acl_bytes = ZKR_ACL_BYTES;

	/* the subject of a certificate is an id, too */
	if (options->tls != NULL)
		s->closed_acl_bytes += ZKR_ACL_BYTES + LONGEST_SUBJECT;
	for (int i = 0; i < options->ncredentials; i++)
	{
		credentials[i].scheme = strdup(options->credentials[i].scheme);
		credentials[i].secret = strdup(options->credentials[i].secret);
		if (credentials[i].scheme == NULL || credentials[i].secret == NULL)
			return false;
		s->closed_acl_bytes += ZKR_ACL_BYTES + strlen(credentials[i].scheme) + strlen(credentials[i].secret);
	}
	return true;
}

/*-------------------------------------------------------------------------
 * From its beginning to its end
 *-------------------------------------------------------------------------
 */

bool
zks_open_handle_locked(ZkSession *s)
{
	zk_assert(zks_has_mutex(s));
	zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
	zoo_deterministic_conn_order(1);	/* resolve.c has shuffled; this would
										 * reseed the process's random() */
	s->zh = zookeeper_init2(s->servers.addresses, on_session_event, s->options.timeout_ms,
							s->info.epoch > 0 ? &s->id : NULL, s,
							ZOO_NO_LOG_CLIENTENV, on_log);
	if (s->zh != NULL)
		zoo_set_servers_resolution_delay(s->zh, -1);

	/*
	 * before the first connection of a handle, so that they go before any
	 * request; the library sends them again on each
	 */
	for (int i = 0; s->zh != NULL && i < s->options.ncredentials; i++)
	{
		const ZkCredential *c = &s->options.credentials[i];

		if (zoo_add_auth(s->zh, c->scheme, c->secret, (int) strlen(c->secret), NULL, NULL) == ZOK)
			continue;

		/* never without: what we make would be open, or another's */
		zookeeper_close(s->zh);
		s->zh = NULL;
		errno = ENOMEM;
	}
	return s->zh != NULL;
}

/*
 * Sends what is queued, says goodbye if there is a connection, and waits for the
 * server's answer: for seconds, if that is silent, so without the mutex.  Nobody
 * uses the handle meanwhile: it is no longer the session's.  What it still
 * calls back is not heeded (request.c, zkr_complete).
 */
void
zks_close_handle_locked(ZkSession *s)
{
	zhandle_t  *zh = s->zh;
	ZkWire	   *wire = s->wire;

	zk_assert(zks_has_mutex(s));
	zks_uncork_locked(s);
	s->zh = NULL;
	s->wire = NULL;
	s->sock = -1;
	zks_unlock(s);
	zookeeper_close(zh);
	/* the goodbye must still get out */
	zks_wire_end(wire, atomic_load(&s->closing));
	zks_lock(s);
}

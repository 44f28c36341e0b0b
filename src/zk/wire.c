/*-------------------------------------------------------------------------
 *
 * wire.c
 *	  TLS between the client library and a server.
 *
 * We do not use the library's own.  Few builds have it (Debian's has not), and
 * it waits without limit for the handshake of a silent server, abort()s when
 * its descriptor is above 1023, takes a certificate of any name from any
 * authority that the system knows, and hides from frame_check.c what was sent.
 *
 * Instead the library talks plaintext to a socket pair that takes the place of
 * its socket while that is still being connected, under the same number, and
 * a thread of ours reads the files and carries the bytes on: the wire.  Nobody
 * else notices: the library keeps its protocol, frame_check.c looks at what
 * arrives, the keeper's limits end an attempt that takes too long.  A wire lives as long as its
 * connection.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "session_private.h"
#include "tls_private.h"
#include "wire.h"

#ifdef ZKLOCK_HAVE_TLS

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#define WIRE_STACK		(256 * 1024)

/* How long to send what the library wrote before it closed its socket */
#define LAST_WORDS_MS	500

/* Data from one side that the other has not taken yet */
typedef struct Load
{
	int			at;
	int			end;
	char		bytes[16 * 1024];	/* a TLS record holds no more */
} Load;

/* How far the connection has come */
typedef enum Stage
{
	CONNECT,					/* TCP */
	HANDSHAKE,
	CARRY
} Stage;

/* The keeper's and its own thread's; the last of the two frees it */
struct ZkWire
{
	pthread_t	thread;
	ZkTls	   *tls;
	atomic_int	owners;
	int			net;			/* to the server */
	int			inner;			/* to the library */
	SSL		   *ssl;
	char	   *names;			/* a copy of resolve.c's */
	Stage		stage;
	bool		library_left;	/* and we have read everything that it wrote */
	bool		library_deaf;	/* data for it was lost: it gets nothing
								 * further */
	bool		server_gone;
	int64_t		quiet_by;		/* deadline for sending the last data, once
								 * the library has closed its socket; or 0 */
	Load		out;			/* to the server */
	Load		in;
	bool		again;			/* there is more to do at once */
	short		net_events;		/* what the wire waits for */
	short		inner_events;
	char		fault[ZKS_TROUBLE_LEN]; /* these two are written before failed */
	ZksTrouble	fault_kind;
	atomic_bool failed;
	atomic_bool ready;			/* the files have been read */
	atomic_bool stop;			/* the keeper no longer needs it */
};

static void
fail(ZkWire *w, ZksTrouble kind, const char *format, const char *what)
{
	if (!w->server_gone)
	{
		w->fault_kind = kind;
		snprintf(w->fault, sizeof(w->fault), format, what);
		atomic_store(&w->failed, true);
	}
	w->server_gone = true;
}

/*
 * The certificate must contain one of the host names that lead to the address
 * which the library has chosen.  An address counts as a name if none else is
 * known.
 */
static bool
expect_names(ZkWire *w)
{
	X509_VERIFY_PARAM *param = SSL_get0_param(w->ssl);
	struct sockaddr_storage addr;
	socklen_t	len = sizeof(addr);
	char		host[NI_MAXHOST];
	char		port[NI_MAXSERV];
	char		key[NI_MAXHOST + NI_MAXSERV + 3];
	char		literal[NI_MAXHOST] = "";
	int			nnames = 0;

	if (getpeername(w->net, (struct sockaddr *) &addr, &len) != 0 ||
		getnameinfo((struct sockaddr *) &addr, len, host, sizeof(host), port, sizeof(port),
					NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		return false;
	snprintf(key, sizeof(key), "%s:%s ", host, port);
	X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);

	for (const char *line = w->names; *line != '\0'; line = strchr(line, '\n') + 1)
	{
		char		name[NI_MAXHOST];
		size_t		name_len;
		struct in6_addr ip;

		if (strncmp(line, key, strlen(key)) != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int) (strcspn(line, "\n") - strlen(key)),
				 line + strlen(key));

		/* only the resolver accepts an absolute name */
		name_len = strlen(name);
		if (name_len > 1 && name[name_len - 1] == '.')
			name[name_len - 1] = '\0';
		if (inet_pton(AF_INET, name, &ip) == 1 || inet_pton(AF_INET6, name, &ip) == 1)
		{
			strcpy(literal, name);
			continue;
		}
		if (nnames++ == 0)
			SSL_set_tlsext_host_name(w->ssl, name);
		if (w->tls->files.verify_host && X509_VERIFY_PARAM_add1_host(param, name, 0) != 1)
			return false;
	}
	if (!w->tls->files.verify_host || nnames > 0)
		return true;
	return literal[0] != '\0' && X509_VERIFY_PARAM_set1_ip_asc(param, literal) == 1;
}

/* connect() has finished, successfully or not; then what the certificate must contain is known */
static bool
finish_connect(ZkWire *w)
{
	struct pollfd fd = {.fd = w->net,.events = POLLOUT};
	int			error = 0;
	socklen_t	len = sizeof(error);

	w->net_events = POLLOUT;
	if (poll(&fd, 1, 0) <= 0)
		return false;
	if (getsockopt(w->net, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
		error = errno;
	if (error != 0)
		fail(w, zks_errno_trouble(error), "%s", strerror(error));
	else if (!expect_names(w) || SSL_set_fd(w->ssl, w->net) != 1)
		fail(w, ZKS_TROUBLE_TLS, "%s", "could not prepare TLS");
	else
		w->stage = HANDSHAKE;
	return w->stage == HANDSHAKE;
}

/* What OpenSSL could not do at once: wait for that, or give the server up */
static void
judge(ZkWire *w, int rc)
{
	int			saved_errno = errno;
	int			error = SSL_get_error(w->ssl, rc);
	long		verdict = SSL_get_verify_result(w->ssl);

	switch (error)
	{
		case SSL_ERROR_WANT_READ:
			w->net_events |= POLLIN;
			return;
		case SSL_ERROR_WANT_WRITE:
			w->net_events |= POLLOUT;
			return;
		case SSL_ERROR_SSL:
			if (verdict != X509_V_OK)
				fail(w, ZKS_TROUBLE_TLS, "the server's certificate was not accepted: %s",
					 X509_verify_cert_error_string(verdict));
			else
				fail(w, ZKS_TROUBLE_TLS, "TLS: %s", zks_tls_reason());
			break;
		default:
			fail(w, w->stage == CARRY ? ZKS_TROUBLE_CLOSED : ZKS_TROUBLE_TLS,
				 w->stage == CARRY ? "%s" : "%s during the TLS handshake",
				 error == SSL_ERROR_SYSCALL && saved_errno != 0 ?
				 strerror(saved_errno) : "server closed the connection");
	}
}

static bool
secure(ZkWire *w)
{
	int			rc;

	errno = 0;
	rc = SSL_connect(w->ssl);
	if (rc == 1)
		w->stage = CARRY;
	else
		judge(w, rc);
	return rc == 1;
}

/* What the library wrote before may still be sent, but not forever */
static void
leave(ZkWire *w)
{
	if (w->quiet_by == 0)
		w->quiet_by = zks_now() + LAST_WORDS_MS * ZKS_MS;
}

/* From the library to the server; true if anything moved */
static bool
carry_out(ZkWire *w)
{
	bool		moved = false;

	if (w->out.at == w->out.end && !w->library_left)
	{
		ssize_t		n = recv(w->inner, w->out.bytes, sizeof(w->out.bytes), MSG_DONTWAIT);

		if (n > 0)
		{
			w->out.at = 0;
			w->out.end = (int) n;
		}
		else if (n < 0 && (errno == EAGAIN || errno == EINTR))
			w->inner_events |= POLLIN;
		else
		{
			leave(w);
			w->library_left = true;
		}
	}
	if (w->out.at < w->out.end)
	{
		int			rc;

		errno = 0;
		rc = SSL_write(w->ssl, w->out.bytes + w->out.at, w->out.end - w->out.at);
		if (rc > 0)
		{
			w->out.at += rc;
			moved = true;
		}
		else
			judge(w, rc);
	}
	return moved;
}

/*
 * From the server to the library.  OpenSSL may have more data than poll()
 * knows of, so this is tried until it has none.
 */
static bool
carry_in(ZkWire *w)
{
	bool		moved = false;

	if (w->in.at == w->in.end)
		w->in.at = w->in.end = 0;

	/*
	 * many small records at once: each send costs the kernel its bookkeeping
	 */
	while (!w->server_gone && w->in.end < (int) sizeof(w->in.bytes))
	{
		int			rc;

		errno = 0;
		rc = SSL_read(w->ssl, w->in.bytes + w->in.end,
					  (int) sizeof(w->in.bytes) - w->in.end);
		if (rc <= 0)
		{
			judge(w, rc);
			break;
		}
		w->in.end += rc;
	}
	if (w->library_left || w->library_deaf)
		w->in.at = w->in.end;
	if (w->in.at < w->in.end)
	{
		ssize_t		n = send(w->inner, w->in.bytes + w->in.at, w->in.end - w->in.at,
							 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
		{
			w->in.at += (int) n;
			moved = true;
		}
		else if (errno == EAGAIN || errno == EINTR)
			w->inner_events |= POLLOUT;
		else
		{
			/* usually it has closed its socket; carry_out notices that */
			w->library_deaf = true;
			w->in.at = w->in.end;
			shutdown(w->inner, SHUT_WR);
		}
	}
	return moved;
}

/* Do what can be done now.  False: nothing is left to do */
static bool
work(ZkWire *w)
{
	w->net_events = w->inner_events = 0;
	ERR_clear_error();
	if (!w->server_gone && w->stage == CONNECT && !finish_connect(w))
		return !w->server_gone;
	if (!w->server_gone && w->stage != CARRY && !secure(w))
		return !w->server_gone;
	w->net_events = w->inner_events = 0;
	w->again = carry_in(w);
	if (!w->server_gone)
		w->again |= carry_out(w);

	if (w->server_gone)
		return w->in.at < w->in.end;
	if ((w->library_left && w->out.at == w->out.end) ||
		(w->quiet_by != 0 && zks_now() >= w->quiet_by))
	{
		SSL_shutdown(w->ssl);
		return false;
	}
	return true;
}

static void
disown_wire(ZkWire *w)
{
	if (atomic_fetch_sub(&w->owners, 1) > 1)
		return;
	if (w->ssl != NULL)
	{
		zks_lock_tls();
		SSL_free(w->ssl);
		zks_unlock_tls();
	}
	zks_tls_free(w->tls);
	if (w->net >= 0)
		close(w->net);
	if (w->inner >= 0)
		close(w->inner);
	free(w->names);
	free(w);
}

/* Here, since nobody waits for this thread */
static bool
begin(ZkWire *w)
{
	w->ssl = zks_tls_connection(w->tls);
	if (w->ssl == NULL)
		fail(w, ZKS_TROUBLE_OTHER, "%s", strerror(ENOMEM));
	atomic_store(&w->ready, true);
	return w->ssl != NULL && !atomic_load(&w->stop);
}

static void *
wire_main(void *arg)
{
	ZkWire	   *w = arg;

	for (bool go_on = begin(w); go_on;)
	{
		struct pollfd fds[2];
		bool		more;

		zks_lock_tls();
		more = work(w);
		zks_unlock_tls();
		if (!more || atomic_load(&w->stop))
			break;

		/*
		 * The library's end is always polled: if a server accepts no more
		 * data, nothing else would tell that the library is gone.
		 */
		fds[0].fd = w->server_gone ? -1 : w->net;
		fds[0].events = w->net_events;
		fds[1].fd = w->quiet_by != 0 && w->inner_events == 0 ? -1 : w->inner;
		fds[1].events = w->inner_events | POLLRDHUP;
		poll(fds, 2, w->again ? 0 : w->quiet_by != 0 ? LAST_WORDS_MS : -1);
		if (w->stage != CARRY && fds[1].revents != 0)
			break;
		if (fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR))
			leave(w);
	}

	/* the library reads the remaining data first */
	shutdown(w->inner, SHUT_WR);
	shutdown(w->net, SHUT_RDWR);
	disown_wire(w);
	zks_tls_thread_ends();
	return NULL;
}

/*-------------------------------------------------------------------------
 * What the keeper calls
 *-------------------------------------------------------------------------
 */

ZkWire *
zks_wire_lay(ZkTls *tls, int sock, const char *names, int *library_end)
{
	ZkWire	   *w = calloc(1, sizeof(ZkWire));
	int			pair[2];
	int			save_errno;

	if (w == NULL)
		return NULL;
	w->inner = -1;
	atomic_fetch_add(&tls->owners, 1);
	w->tls = tls;
	atomic_init(&w->owners, 2);
	w->names = strdup(names);
	w->net = fcntl(sock, F_DUPFD_CLOEXEC, 0);
	if (w->net >= 0 &&
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0)
	{
		bool		replaced = dup3(pair[0], sock, O_CLOEXEC) >= 0;

		close(pair[0]);
		w->inner = *library_end = pair[1];
		if (w->names == NULL)
			errno = ENOMEM;
		if (replaced && w->names != NULL && zks_start_thread(&w->thread, WIRE_STACK, wire_main, w))
			return w;
	}
	save_errno = errno;
	atomic_store(&w->owners, 1);
	disown_wire(w);
	errno = save_errno;
	return NULL;
}

void
zks_wire_end(ZkWire *w, bool finish)
{
	if (w == NULL)
		return;
	if (finish && atomic_load(&w->ready))	/* else nobody is connected who
											 * could be told */
		pthread_join(w->thread, NULL);
	else
	{
		atomic_store(&w->stop, true);
		shutdown(w->inner, SHUT_RDWR);
		shutdown(w->net, SHUT_RDWR);
		pthread_detach(w->thread);
	}
	disown_wire(w);
}

const char *
zks_wire_fault(ZkWire *w, ZksTrouble *kind)
{
	if (w == NULL || !atomic_load(&w->failed))
		return NULL;
	*kind = w->fault_kind;
	return w->fault;
}

#endif							/* ZKLOCK_HAVE_TLS */

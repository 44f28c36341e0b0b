/*-------------------------------------------------------------------------
 *
 * tls.c
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
 * An exiting process shuts OpenSSL down while a wire, or a keeper that was
 * given up, may still use it.  So each call to it is made with a mutex held,
 * the gate, and an exit handler takes that for good.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "internal.h"

#ifdef ZKLOCK_HAVE_TLS

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#define WIRE_STACK		(256 * 1024)

/* How long to send what the library wrote before it closed its socket */
#define LAST_WORDS_MS	500

/* Limits how long the gate is held while a server keeps sending */
#define ROUNDS			16

#define FAULT_LEN		ZKS_TROUBLE_LEN

/* Lists of revocations have some megabytes */
#define LARGEST_FILE	(64 * 1024 * 1024)

struct ZkTls
{
	ZkTlsFiles	files;			/* copies */
	SSL_CTX    *ctx;			/* with the gate */
	struct stat seen[4];		/* the files when ctx was made */
	atomic_bool renewing;		/* a wire looks at the files, and sets these */
	atomic_int	owners;			/* the session, and each wire */
};

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
	PREPARE,					/* what the certificate must contain */
	HANDSHAKE,
	CARRY
} Stage;

/* The state of the library's end of the socket pair */
typedef enum Library
{
	LISTENS,
	LEAVES,						/* it has closed its socket */
	LEFT						/* and we have read everything that it wrote */
} Library;

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
	Library		library;
	bool		library_deaf;	/* data for it was lost: it gets nothing
								 * further */
	bool		server_gone;
	int64_t		quiet_by;		/* deadline for sending the last data */
	Load		out;			/* to the server */
	Load		in;
	bool		again;			/* there is more to do at once */
	short		net_events;		/* what the wire waits for */
	short		inner_events;
	char		fault[FAULT_LEN];	/* these two are written before failed */
	ZksTrouble	fault_kind;
	atomic_bool failed;
	atomic_bool ready;			/* the files have been read */
	atomic_bool stop;			/* the keeper no longer needs it */
};

/*-------------------------------------------------------------------------
 * OpenSSL, while the process lives
 *-------------------------------------------------------------------------
 */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static pid_t gate_keeper = 0;

static void
close_gate(void)
{
	/* a forked child might find it locked forever */
	if (getpid() == gate_keeper)
		pthread_mutex_lock(&gate);
}

/*
 * The main thread's signals must be blocked, too: a handler may leave the
 * process.
 */
static void
enter_gate(sigset_t *saved)
{
	sigset_t	all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, saved);
	pthread_mutex_lock(&gate);
}

static void
leave_gate(const sigset_t *saved)
{
	pthread_mutex_unlock(&gate);
	pthread_sigmask(SIG_SETMASK, saved, NULL);
}

/* In the main thread, before OpenSSL is used for the first time */
static void
begin_openssl(void)
{
	static bool begun = false;

	if (begun)
		return;
	begun = true;

	/* OpenSSL's exit handler must be registered first, to run after ours */
	OPENSSL_init_ssl(0, NULL);
	gate_keeper = getpid();
	atexit(close_gate);
}

/*
 * OpenSSL's thread-local data would be freed at the thread's end, without the
 * gate
 */
void
zks_tls_thread_ends(void)
{
	pthread_mutex_lock(&gate);
	OPENSSL_thread_stop();
	pthread_mutex_unlock(&gate);
}

static const char *
openssl_reason(void)
{
	const char *reason = ERR_reason_error_string(ERR_peek_last_error());

	return reason != NULL ? reason : "unknown error";
}

/*-------------------------------------------------------------------------
 * Certificates
 *-------------------------------------------------------------------------
 */

static int
no_pass_phrase(char *buf, int size, int rwflag, void *userdata)
{
	(void) buf;
	(void) size;
	(void) rwflag;
	*(bool *) userdata = true;
	return 0;
}

static bool
is_regular(const char *file, const char *setting, struct stat *st, char *error, int errlen)
{
	if (stat(file, st) != 0)
		snprintf(error, errlen, "The file named by %s could not be read: %s", setting, strerror(errno));
	else if (!S_ISREG(st->st_mode))
		snprintf(error, errlen, "The file named by %s is not a regular file", setting);
	else
		return true;
	return false;
}

/*
 * PostgreSQL's own rule for its server key: it belongs either to the server's
 * user and nobody else may read it, or to root, who may let the server's group
 * read it.
 */
static bool
is_private(const char *file, char *error, int errlen)
{
	struct stat st;

	if (!is_regular(file, "zklock.tls_key_file", &st, error, errlen))
		return false;
	if (st.st_uid != geteuid() && st.st_uid != 0)
		snprintf(error, errlen, "The file named by zklock.tls_key_file is not owned by the server's user or root");
	else if ((st.st_mode & (st.st_uid == geteuid() ? S_IRWXG | S_IRWXO : S_IWGRP | S_IXGRP | S_IRWXO)) != 0)
		snprintf(error, errlen, "The file named by zklock.tls_key_file has group or world access");
	else
		return true;
	return false;
}

/* What a file holds */
typedef struct Content
{
	char	   *bytes;
	int			len;
} Content;

typedef struct Contents
{
	Content		ca;
	Content		cert;
	Content		key;
	Content		crl;
} Contents;

static void
free_content(Content *c)
{
	if (c->bytes != NULL)
		explicit_bzero(c->bytes, c->len);
	free(c->bytes);
	memset(c, 0, sizeof(Content));
}

static void
free_contents(Contents *contents)
{
	free_content(&contents->ca);
	free_content(&contents->cert);
	free_content(&contents->key);
	free_content(&contents->crl);
}

/* False, with errno: for want of memory, too, or since the file grows */
static bool
read_all(int fd, Content *c)
{
	struct stat st;
	ssize_t		n = 1;
	int			size;

	if (fstat(fd, &st) != 0)
		return false;
	errno = EFBIG;
	if (st.st_size > LARGEST_FILE)
		return false;
	size = (int) st.st_size + 1;
	c->bytes = malloc(size);
	while (c->bytes != NULL && n > 0 && c->len < size)
	{
		n = read(fd, c->bytes + c->len, size - c->len);
		if (n < 0 && errno == EINTR)
			n = 1;
		else if (n > 0)
			c->len += (int) n;
	}
	return c->bytes != NULL && n == 0;
}

static bool
read_file(const char *file, const char *setting, Content *c, char *error, int errlen)
{
	struct stat st;
	bool		result;
	int			fd;

	/* opening a pipe would block */
	if (!is_regular(file, setting, &st, error, errlen))
		return false;
	fd = open(file, O_RDONLY | O_CLOEXEC);
	result = fd >= 0 && read_all(fd, c);
	if (!result)
		snprintf(error, errlen, "The file named by %s could not be read: %s", setting, strerror(errno));
	if (fd >= 0)
	{
		int			save_errno = errno;

		close(fd);
		errno = save_errno;
	}
	return result;
}

/*
 * That may take as long as the file system likes, so without the gate, and without the
 * mutex of a session
 */
static bool
read_files(const ZkTlsFiles *files, Contents *contents, char *error, int errlen)
{
	if (!read_file(files->ca, "zklock.tls_ca_file", &contents->ca, error, errlen))
		return false;
	if (files->crl[0] != '\0' && !read_file(files->crl, "zklock.tls_crl_file", &contents->crl, error, errlen))
		return false;
	return files->cert[0] == '\0' ||
		(read_file(files->cert, "zklock.tls_cert_file", &contents->cert, error, errlen) &&
		 is_private(files->key, error, errlen) &&
		 read_file(files->key, "zklock.tls_key_file", &contents->key, error, errlen));
}

/* OpenSSL's default would prompt on a terminal for a pass phrase */

static bool
load_authorities(X509_STORE * store, BIO *bio)
{
	STACK_OF(X509_INFO) * found = PEM_X509_INFO_read_bio(bio, NULL, NULL, (void *) "");
	bool		any = false;

	for (int i = 0; i < sk_X509_INFO_num(found); i++)
	{
		X509_INFO  *info = sk_X509_INFO_value(found, i);

		if (info->x509 != NULL)
			any |= X509_STORE_add_cert(store, info->x509) == 1;
		if (info->crl != NULL)
			any |= X509_STORE_add_crl(store, info->crl) == 1;
	}
	sk_X509_INFO_pop_free(found, X509_INFO_free);
	return any;
}

/*
 * As PostgreSQL does for its own connections: each certificate of the chain
 * needs a CRL of its issuer, and must not be on it.  CRLs only: a certificate in the
 * file must not become an authority.
 */
static bool
load_revocations(X509_STORE * store, BIO *bio)
{
	X509_CRL   *crl;
	bool		any = false;

	while ((crl = PEM_read_bio_X509_CRL(bio, NULL, NULL, (void *) "")) != NULL)
	{
		any |= X509_STORE_add_crl(store, crl) == 1;
		X509_CRL_free(crl);
	}
	X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
	return any;
}

/* Ours, and then those of the authorities between */
static bool
load_chain(SSL_CTX *ctx, BIO *bio, bool *has_pass_phrase)
{
	X509	   *cert = PEM_read_bio_X509_AUX(bio, NULL, no_pass_phrase, has_pass_phrase);
	bool		loaded = cert != NULL && SSL_CTX_use_certificate(ctx, cert) == 1;

	X509_free(cert);
	while (loaded && (cert = PEM_read_bio_X509(bio, NULL, no_pass_phrase, has_pass_phrase)) != NULL)
	{
		loaded = SSL_CTX_add0_chain_cert(ctx, cert) == 1;
		if (!loaded)
			X509_free(cert);
	}
	return loaded && ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
}

static bool
load_key(SSL_CTX *ctx, BIO *bio, bool *has_pass_phrase)
{
	EVP_PKEY   *key = PEM_read_bio_PrivateKey(bio, NULL, no_pass_phrase, has_pass_phrase);
	bool		loaded = key != NULL && SSL_CTX_use_PrivateKey(ctx, key) == 1;

	EVP_PKEY_free(key);
	return loaded;
}

static bool
load(SSL_CTX *ctx, const Contents *contents, bool *has_pass_phrase, char *error, int errlen)
{
	X509_STORE *store = SSL_CTX_get_cert_store(ctx);
	BIO		   *bio[4];
	const char *fault = NULL;

	bio[0] = BIO_new_mem_buf(contents->ca.bytes, contents->ca.len);
	bio[1] = contents->crl.bytes != NULL ? BIO_new_mem_buf(contents->crl.bytes, contents->crl.len) : NULL;
	bio[2] = contents->cert.bytes != NULL ? BIO_new_mem_buf(contents->cert.bytes, contents->cert.len) : NULL;
	bio[3] = contents->key.bytes != NULL ? BIO_new_mem_buf(contents->key.bytes, contents->key.len) : NULL;
	if (bio[0] == NULL || !load_authorities(store, bio[0]))
		fault = "The file named by zklock.tls_ca_file holds no certificates";
	else if (contents->crl.bytes != NULL && (bio[1] == NULL || !load_revocations(store, bio[1])))
		fault = "The file named by zklock.tls_crl_file holds no revocation lists";
	else if (contents->cert.bytes != NULL &&
			 (bio[2] == NULL || !load_chain(ctx, bio[2], has_pass_phrase)))
		fault = "The file named by zklock.tls_cert_file holds no certificate";
	else if (contents->key.bytes != NULL && (bio[3] == NULL || !load_key(ctx, bio[3], has_pass_phrase)))
		fault = "The file named by zklock.tls_key_file holds no key of that certificate";
	for (int i = 0; i < 4; i++)
		BIO_free(bio[i]);
	if (fault != NULL && *has_pass_phrase && strstr(fault, "no key") != NULL)
		snprintf(error, errlen, "The key in the file named by zklock.tls_key_file is protected by a passphrase");
	else if (fault != NULL)
		snprintf(error, errlen, "%s: %s", fault, openssl_reason());
	return fault == NULL;
}

/* Whether they have changed since the last call */
static bool
have_changed(ZkTls *tls)
{
	const char *const names[] = {tls->files.ca, tls->files.cert, tls->files.key, tls->files.crl};
	bool		changed = false;

	for (int i = 0; i < (int) (sizeof(names) / sizeof(names[0])); i++)
	{
		struct stat *seen = &tls->seen[i];
		struct stat st;

		if (names[i][0] == '\0' || stat(names[i], &st) != 0)
			memset(&st, 0, sizeof(st));
		changed |= st.st_dev != seen->st_dev || st.st_ino != seen->st_ino ||
			st.st_size != seen->st_size ||
			memcmp(&st.st_mtim, &seen->st_mtim, sizeof(st.st_mtim)) != 0 ||
			memcmp(&st.st_ctim, &seen->st_ctim, sizeof(st.st_ctim)) != 0;
		*seen = st;
	}
	return changed;
}

static SSL_CTX *
make_context(const Contents *contents, char *error, int errlen)
{
	SSL_CTX    *ctx;
	bool		has_pass_phrase = false;

	ERR_clear_error();
	ctx = SSL_CTX_new(TLS_client_method());
	if (ctx == NULL)
	{
		snprintf(error, errlen, "OpenSSL: %s", openssl_reason());
		return NULL;
	}
	SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					 SSL_MODE_AUTO_RETRY);
#ifdef SSL_OP_NO_RENEGOTIATION
	SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION);
#endif
#ifdef SSL_OP_IGNORE_UNEXPECTED_EOF
	/* Java closes without close_notify; frames have their lengths */
	SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF);
#endif
	if (!load(ctx, contents, &has_pass_phrase, error, errlen))
	{
		SSL_CTX_free(ctx);
		ctx = NULL;
	}
	ERR_clear_error();			/* PostgreSQL's own calls check the same queue */
	return ctx;
}

void
zks_tls_free(ZkTls *tls)
{
	sigset_t	saved;

	if (tls == NULL || atomic_fetch_sub(&tls->owners, 1) > 1)
		return;
	enter_gate(&saved);
	SSL_CTX_free(tls->ctx);
	leave_gate(&saved);
	free((char *) tls->files.ca);
	free((char *) tls->files.cert);
	free((char *) tls->files.key);
	free((char *) tls->files.crl);
	free(tls);
}

ZkTls *
zks_tls(const ZkTlsFiles *files, char *error, int errlen)
{
	ZkTls	   *tls = calloc(1, sizeof(ZkTls));
	Contents	contents = {0};
	sigset_t	saved;

	snprintf(error, errlen, "Out of memory");
	if (tls == NULL)
		return NULL;
	atomic_init(&tls->owners, 1);
	begin_openssl();
	tls->files.ca = strdup(files->ca);
	tls->files.cert = strdup(files->cert);
	tls->files.key = strdup(files->key);
	tls->files.crl = strdup(files->crl);
	tls->files.verify_host = files->verify_host;
	if (tls->files.ca != NULL && tls->files.cert != NULL && tls->files.key != NULL &&
		tls->files.crl != NULL)
	{
		(void) have_changed(tls);
		errno = 0;
		if (read_files(&tls->files, &contents, error, errlen))
		{
			enter_gate(&saved);
			tls->ctx = make_context(&contents, error, errlen);
			leave_gate(&saved);
		}
		free_contents(&contents);
	}
	if (tls->ctx == NULL)
	{
		int			save_errno = errno;

		zks_tls_free(tls);
		errno = save_errno;
		return NULL;
	}
	return tls;
}

/*
 * A session outlives certificates, so each connection uses the current
 * contents of the files.  They are read again only if they have changed: a
 * bundle of all authorities takes 60 ms, and a server that is down is tried
 * again and again. If they cannot be read because they are being changed, the
 * old contents are used until the next attempt; and as long as an earlier attempt is
 * still reading, on a file system that does not answer.
 */
static void
renew_context(ZkTls *tls)
{
	char		error[FAULT_LEN];
	Contents	contents = {0};
	SSL_CTX    *ctx = NULL;

	if (atomic_exchange(&tls->renewing, true))
		return;
	if (have_changed(tls))
	{
		bool		read = read_files(&tls->files, &contents, error, sizeof(error));

		pthread_mutex_lock(&gate);
		if (read && (ctx = make_context(&contents, error, sizeof(error))) != NULL)
		{
			SSL_CTX_free(tls->ctx);
			tls->ctx = ctx;
		}
		pthread_mutex_unlock(&gate);
		if (ctx == NULL)
			memset(tls->seen, 0, sizeof(tls->seen));
		free_contents(&contents);
	}
	atomic_store(&tls->renewing, false);
}

/*-------------------------------------------------------------------------
 * The wire
 *-------------------------------------------------------------------------
 */

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

/* connect() has finished, successfully or not */
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
	else
		w->stage = PREPARE;
	return error == 0;
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
				fail(w, ZKS_TROUBLE_TLS, "TLS: %s", openssl_reason());
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

	if (w->stage == PREPARE && (!expect_names(w) || SSL_set_fd(w->ssl, w->net) != 1))
	{
		fail(w, ZKS_TROUBLE_TLS, "%s", "could not prepare TLS");
		return false;
	}
	w->stage = HANDSHAKE;
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
	if (w->library != LISTENS)
		return;
	w->quiet_by = zks_now() + LAST_WORDS_MS * ZKS_MS;
	w->library = LEAVES;
}

/* From the library to the server; true if anything moved */
static bool
carry_out(ZkWire *w)
{
	bool		moved = false;

	if (w->out.at == w->out.end && w->library != LEFT)
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
			w->library = LEFT;
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
	if (w->library == LEFT || w->library_deaf)
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
	bool		moved;
	int			rounds = 0;

	w->net_events = w->inner_events = 0;
	ERR_clear_error();
	if (!w->server_gone && w->stage == CONNECT && !finish_connect(w))
		return !w->server_gone;
	if (!w->server_gone && w->stage != CARRY && !secure(w))
		return !w->server_gone;
	do
	{
		w->net_events = w->inner_events = 0;
		moved = carry_in(w);
		if (!w->server_gone)
			moved |= carry_out(w);
	} while (moved && ++rounds < ROUNDS && !atomic_load(&w->stop));
	w->again = moved;

	if (w->server_gone)
		return w->in.at < w->in.end;
	if ((w->library == LEFT && w->out.at == w->out.end) ||
		(w->library != LISTENS && zks_now() >= w->quiet_by))
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
		pthread_mutex_lock(&gate);
		SSL_free(w->ssl);
		pthread_mutex_unlock(&gate);
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
	renew_context(w->tls);
	pthread_mutex_lock(&gate);
	w->ssl = SSL_new(w->tls->ctx);
	pthread_mutex_unlock(&gate);
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

		pthread_mutex_lock(&gate);
		more = work(w);
		pthread_mutex_unlock(&gate);
		if (!more || atomic_load(&w->stop))
			break;

		/*
		 * The library's end is always polled: if a server accepts no more
		 * data, nothing else would tell that the library is gone.
		 */
		fds[0].fd = w->server_gone ? -1 : w->net;
		fds[0].events = w->net_events;
		fds[1].fd = w->library != LISTENS && w->inner_events == 0 ? -1 : w->inner;
		fds[1].events = w->inner_events | POLLRDHUP;
		poll(fds, 2, w->again ? 0 : w->library != LISTENS ? LAST_WORDS_MS : -1);
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

static bool
start_wire(ZkWire *w)
{
	pthread_attr_t attr;
	int			rc = pthread_attr_init(&attr);

	if (rc == 0)
	{
		/* with the keeper's mask: no signals, not even SIGPIPE */
		pthread_attr_setstacksize(&attr, WIRE_STACK);
		atomic_fetch_add(&w->owners, 1);
		rc = pthread_create(&w->thread, &attr, wire_main, w);
		if (rc != 0)
			atomic_fetch_sub(&w->owners, 1);
		pthread_attr_destroy(&attr);
	}
	errno = rc;
	return rc == 0;
}

ZkWire *
zks_wire_lay(ZkTls *tls, int sock, const char *names)
{
	ZkWire	   *w = calloc(1, sizeof(ZkWire));
	int			pair[2];
	int			save_errno;

	if (w == NULL)
		return NULL;
	w->inner = -1;
	w->tls = tls;
	atomic_fetch_add(&tls->owners, 1);
	atomic_init(&w->owners, 1);
	w->names = strdup(names);
	w->net = fcntl(sock, F_DUPFD_CLOEXEC, 0);
	if (w->net >= 0 &&
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0)
	{
		bool		replaced = dup3(pair[0], sock, O_CLOEXEC) >= 0;

		close(pair[0]);
		w->inner = pair[1];
		if (w->names == NULL)
			errno = ENOMEM;
		if (replaced && w->names != NULL && start_wire(w))
			return w;
	}
	save_errno = errno;
	disown_wire(w);
	errno = save_errno;
	return NULL;
}

void
zks_wire_cut(ZkWire *w)
{
	if (w == NULL)
		return;
	atomic_store(&w->stop, true);
	shutdown(w->inner, SHUT_RDWR);
	shutdown(w->net, SHUT_RDWR);
	pthread_detach(w->thread);
	disown_wire(w);
}

void
zks_wire_finish(ZkWire *w)
{
	if (w == NULL)
		return;
	if (!atomic_load(&w->ready))
	{
		zks_wire_cut(w);		/* nobody is connected who could be told */
		return;
	}
	pthread_join(w->thread, NULL);
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

int
zks_wire_server_socket(ZkWire *w)
{
	return w->net;
}

int
zks_wire_library_end(ZkWire *w)
{
	return w->inner;
}

#else							/* no TLS, and so no wire */

ZkTls *
zks_tls(const ZkTlsFiles *files, char *error, int errlen)
{
	(void) files;
	snprintf(error, errlen, "TLS is not supported by this build");
	return NULL;
}

void
zks_tls_free(ZkTls *tls)
{
	(void) tls;
}

ZkWire *
zks_wire_lay(ZkTls *tls, int sock, const char *names)
{
	(void) tls;
	(void) sock;
	(void) names;
	return NULL;
}

void
zks_wire_cut(ZkWire *w)
{
	(void) w;
}

void
zks_wire_finish(ZkWire *w)
{
	(void) w;
}

const char *
zks_wire_fault(ZkWire *w, ZksTrouble *kind)
{
	(void) w;
	(void) kind;
	return NULL;
}

int
zks_wire_server_socket(ZkWire *w)
{
	(void) w;
	return -1;
}

int
zks_wire_library_end(ZkWire *w)
{
	(void) w;
	return -1;
}

void
zks_tls_thread_ends(void)
{
}

#endif							/* ZKLOCK_HAVE_TLS */

/*-------------------------------------------------------------------------
 *
 * tls.c
 *	  What a connection with TLS needs of OpenSSL: the certificates, read from
 *	  their files, and when it may be called at all.
 *
 * An exiting process shuts OpenSSL down while a wire, or a keeper that was
 * given up, may still use it.  So each call to it is made with a mutex held,
 * the gate, and an exit handler takes that for good.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "session_private.h"
#include "tls.h"
#include "tls_private.h"

#ifdef ZKLOCK_HAVE_TLS

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

/* Lists of revocations have some megabytes */
#define LARGEST_FILE	(64 * 1024 * 1024)

static const char *const settings[] =
{"zklock.tls_ca_file", "zklock.tls_crl_file", "zklock.tls_cert_file", "zklock.tls_key_file"};

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

/* With its signal mask before */
static sigset_t gate_mask;

/* The main thread's signals must be blocked, too: a handler may leave the process */
void
zks_lock_tls(void)
{
	sigset_t	before;

	zks_block_signals(&before);
	pthread_mutex_lock(&gate);
	gate_mask = before;
}

void
zks_unlock_tls(void)
{
	sigset_t	before = gate_mask;

	pthread_mutex_unlock(&gate);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/*
 * OpenSSL's thread-local data would be freed at the thread's end, without the
 * gate
 */
void
zks_tls_thread_ends(void)
{
	zks_lock_tls();
	OPENSSL_thread_stop();
	zks_unlock_tls();
}

const char *
zks_tls_reason(void)
{
	const char *reason = ERR_reason_error_string(ERR_peek_last_error());

	return reason != NULL ? reason : "unknown error";
}

/*-------------------------------------------------------------------------
 * Certificates
 *-------------------------------------------------------------------------
 */

/* With the gate */
static bool has_pass_phrase;

static int
no_pass_phrase(char *buf, int size, int rwflag, void *userdata)
{
	has_pass_phrase = true;
	return 0;
}

/* What a file holds */
typedef struct Content
{
	char	   *bytes;
	int			len;
} Content;

static void
free_contents(Content *contents)
{
	for (int i = 0; i < ZKS_TLS_NFILES; i++)
	{
		if (contents[i].bytes != NULL)
			explicit_bzero(contents[i].bytes, contents[i].len);
		free(contents[i].bytes);
	}
}

/*
 * False, with errno: for want of memory, too, or since the file grows.  A buffer of
 * stdio's would keep what is in it.
 */
static bool
read_all(FILE * f, off_t file_size, Content *c)
{
	int			size = (int) file_size + 1;

	errno = EFBIG;
	if (file_size > LARGEST_FILE)
		return false;
	setvbuf(f, NULL, _IONBF, 0);
	c->bytes = malloc(size);
	if (c->bytes != NULL)
		c->len = (int) fread(c->bytes, 1, size, f);
	return c->bytes != NULL && feof(f);
}

static bool
read_file(const char *file, ZksTlsFile which, Content *c, char *error, int errlen)
{
	struct stat st;
	const char *wrong = NULL;
	bool		result = false;
	FILE	   *f = NULL;

	/* opening a pipe would block */
	if (stat(file, &st) == 0 && (wrong = zks_check_file(&st, which == ZKS_TLS_KEY)) == NULL)
	{
		f = fopen(file, "re");
		result = f != NULL && fstat(fileno(f), &st) == 0 && read_all(f, st.st_size, c);
	}
	if (wrong != NULL)
		snprintf(error, errlen, "The file named by %s %s", settings[which], wrong);
	else if (!result)
		snprintf(error, errlen, "The file named by %s could not be read: %s", settings[which], strerror(errno));
	if (f != NULL)
	{
		int			save_errno = errno;

		fclose(f);
		errno = save_errno;
	}
	return result;
}

/* OpenSSL's default would prompt on a terminal for a pass phrase */

static bool
load_authorities(SSL_CTX *ctx, BIO *bio)
{
	X509_STORE *store = SSL_CTX_get_cert_store(ctx);

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
load_revocations(SSL_CTX *ctx, BIO *bio)
{
	X509_STORE *store = SSL_CTX_get_cert_store(ctx);
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
load_chain(SSL_CTX *ctx, BIO *bio)
{
	X509	   *cert = PEM_read_bio_X509_AUX(bio, NULL, no_pass_phrase, NULL);
	bool		loaded = cert != NULL && SSL_CTX_use_certificate(ctx, cert) == 1;

	X509_free(cert);
	while (loaded && (cert = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL)) != NULL)
	{
		loaded = SSL_CTX_add0_chain_cert(ctx, cert) == 1;
		if (!loaded)
			X509_free(cert);
	}
	return loaded && ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
}

static bool
load_key(SSL_CTX *ctx, BIO *bio)
{
	EVP_PKEY   *key = PEM_read_bio_PrivateKey(bio, NULL, no_pass_phrase, NULL);
	bool		loaded = key != NULL && SSL_CTX_use_PrivateKey(ctx, key) == 1;

	EVP_PKEY_free(key);
	return loaded;
}

static bool
load(SSL_CTX *ctx, const Content *contents, char *error, int errlen)
{
	static bool (*const loaders[]) (SSL_CTX *ctx, BIO *bio) =
	{load_authorities, load_revocations, load_chain, load_key};
	static const char *const missing[] =
	{"certificates", "revocation lists", "certificate", "key of that certificate"};

	has_pass_phrase = false;
	for (int i = 0; i < ZKS_TLS_NFILES; i++)
	{
		BIO		   *bio;
		bool		loaded;

		if (contents[i].bytes == NULL)
			continue;
		bio = BIO_new_mem_buf(contents[i].bytes, contents[i].len);
		loaded = bio != NULL && loaders[i] (ctx, bio);
		BIO_free(bio);
		if (loaded)
			continue;
		if (i == ZKS_TLS_KEY && has_pass_phrase)
			snprintf(error, errlen, "The key in the file named by %s is protected by a passphrase", settings[i]);
		else
			snprintf(error, errlen, "The file named by %s holds no %s: %s", settings[i], missing[i], zks_tls_reason());
		return false;
	}
	return true;
}

/* Whether they have changed since the last call */
static bool
have_changed(ZkTls *tls)
{
	bool		changed = false;

	for (int i = 0; i < ZKS_TLS_NFILES; i++)
	{
		struct stat *seen = &tls->seen[i];
		struct stat st;

		if (tls->files.name[i][0] == '\0' || stat(tls->files.name[i], &st) != 0)
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
make_context(const Content *contents, char *error, int errlen)
{
	SSL_CTX    *ctx;

	ERR_clear_error();
	ctx = SSL_CTX_new(TLS_client_method());
	if (ctx == NULL)
	{
		snprintf(error, errlen, "OpenSSL: %s", zks_tls_reason());
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
	if (!load(ctx, contents, error, errlen))
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
	if (tls == NULL || atomic_fetch_sub(&tls->owners, 1) > 1)
		return;
	zks_lock_tls();
	SSL_CTX_free(tls->ctx);
	zks_unlock_tls();
	for (int i = 0; i < ZKS_TLS_NFILES; i++)
		free((char *) tls->files.name[i]);
	free(tls);
}

/*
 * What the files hold now.  Reading them may take as long as the file system likes, so that
 * is done without the gate, and without the mutex of a session.
 */
static bool
read_files(ZkTls *tls, char *error, int errlen)
{
	Content		contents[ZKS_TLS_NFILES] = {0};
	SSL_CTX    *ctx = NULL;
	bool		read = true;

	for (int i = 0; read && i < ZKS_TLS_NFILES; i++)
		read = tls->files.name[i][0] == '\0' || read_file(tls->files.name[i], i, &contents[i], error, errlen);
	zks_lock_tls();
	if (read && (ctx = make_context(contents, error, errlen)) != NULL)
	{
		SSL_CTX_free(tls->ctx);
		tls->ctx = ctx;
	}
	zks_unlock_tls();
	free_contents(contents);
	return ctx != NULL;
}

ZkTls *
zks_tls(const ZkTlsFiles *files, char *error, int errlen)
{
	ZkTls	   *tls = calloc(1, sizeof(ZkTls));
	bool		copied = true;

	snprintf(error, errlen, "Out of memory");
	if (tls == NULL)
		return NULL;
	atomic_init(&tls->owners, 1);
	begin_openssl();
	tls->files.verify_host = files->verify_host;
	for (int i = 0; i < ZKS_TLS_NFILES; i++)
		copied &= (tls->files.name[i] = strdup(files->name[i])) != NULL;
	if (copied)
	{
		(void) have_changed(tls);
		errno = 0;
		(void) read_files(tls, error, errlen);
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
	char		error[ZKS_TROUBLE_LEN];

	if (atomic_exchange(&tls->renewing, true))
		return;
	if (have_changed(tls) && !read_files(tls, error, sizeof(error)))
		memset(tls->seen, 0, sizeof(tls->seen));
	atomic_store(&tls->renewing, false);
}

SSL *
zks_tls_connection(ZkTls *tls)
{
	SSL		   *ssl;

	renew_context(tls);
	zks_lock_tls();
	ssl = SSL_new(tls->ctx);
	zks_unlock_tls();
	return ssl;
}

#else							/* no TLS */

ZkTls *
zks_tls(const ZkTlsFiles *files, char *error, int errlen)
{
	snprintf(error, errlen, "TLS is not supported by this build");
	return NULL;
}

#endif							/* ZKLOCK_HAVE_TLS */

/*-------------------------------------------------------------------------
 *
 * tls_settings.c
 *	  The TLS settings, zklock.tls_*.
 *
 * They are names of files, which zk/tls.c reads.  No message contains such a
 * name; the name of the setting says as much, to whoever may see its value.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "settings.h"
#include "tls_settings.h"

ZkTls *
zkb_tls(void)
{
	ZkTlsFiles	files = {
		.name = {zklock_tls_ca_file, zklock_tls_crl_file, zklock_tls_cert_file, zklock_tls_key_file},
		.verify_host = zklock_tls_verify_host,
	};
	bool		has_cert = zklock_tls_cert_file[0] != '\0';
	bool		has_key = zklock_tls_key_file[0] != '\0';
	char		reason[256];	/* why the files cannot be used */
	ZkTls	   *tls;
	int			error;
	bool		no_descriptor;

	if (zklock_tls_ca_file[0] == '\0' && zklock_tls_crl_file[0] == '\0' && !has_cert && !has_key)
		return NULL;
#ifndef ZKLOCK_HAVE_TLS
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("TLS is not supported by this build"),
			 errdetail("At least one of zklock.tls_ca_file, zklock.tls_cert_file, zklock.tls_key_file and zklock.tls_crl_file is set."),
			 errhint("Compile zklock where OpenSSL's headers are installed.")));
#endif
	if (zklock_tls_ca_file[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("zklock.tls_ca_file is not set"),
				 errdetail("Without it, the servers' certificates cannot be verified.")));
	if (has_cert != has_key)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("only one of zklock.tls_cert_file and zklock.tls_key_file is set")));
	tls = zks_tls(&files, reason, sizeof(reason));
	if (tls != NULL)
		return tls;
	error = errno;
	no_descriptor = error == EMFILE || error == ENFILE;
	ereport(ERROR,
			(errcode(no_descriptor || error == ENOMEM ?
					 ERRCODE_INSUFFICIENT_RESOURCES : ERRCODE_CONFIG_FILE_ERROR),
			 errmsg("could not prepare TLS for ZooKeeper"),
			 errdetail("%s.", reason),
			 no_descriptor ? errhint("Raise the server's max_files_per_process and/or \"ulimit -n\" limits.") : 0));
}

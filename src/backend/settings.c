/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings (GUC variables) of zklock.
 *
 * Before the library is loaded, PostgreSQL does not know them and keeps any
 * value as it is.  When they are defined, a value that is invalid, or that
 * comes from somebody who may not set it, is dropped with a WARNING, and the
 * default stays.  But by then an option of the connection has replaced what
 * the administrator has set: anybody could get rid of, say, zklock.root.  So
 * dropped values are remembered, and no session is opened as long as nothing
 * else has been set.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "internals.h"
#include "path.h"
#include "settings.h"
#include "zk/hosts.h"
#include "zk/lock_protocol.h"
#include "zk/stop_signal.h"

char	   *zklock_root;
int			zklock_session_timeout;

/* PostgreSQL 16 asserts that an enum has its boot value */
int			zklock_node_style = ZKP_CURATOR;
char	   *zklock_tls_ca_file;
char	   *zklock_tls_cert_file;
char	   *zklock_tls_key_file;
char	   *zklock_tls_crl_file;
bool		zklock_tls_verify_host;
int			zklock_connect_timeout;
int			zklock_operation_timeout;
int			zklock_release_timeout;
int			zklock_idle_timeout;
int			zklock_max_locks;
int			zklock_commit_guard = ZKLOCK_GUARD_ON;
int			zklock_cancel_on_loss = ZKS_STOP_LOST;
int			zklock_acl = ZKLOCK_ACL_WORLD;
char	   *zklock_auth_file;
bool		zklock_publish_identity;
char	   *zklock_advisory_space;
int			zklock_advisory = ZKLOCK_ADVISORY_OFF;

static List *dropped = NIL;		/* of Dropped: see below */

/*-------------------------------------------------------------------------
 * The settings
 *-------------------------------------------------------------------------
 */

static char *hosts;				/* the value as it was set */

const char *
zklock_servers(void)
{
	char	   *servers = palloc(ZKS_HOSTS_ROOM(strlen(hosts)));

	(void) zks_check_hosts(hosts, servers);
	return servers;
}

static bool
is_right(const char *wrong)
{
	if (wrong != NULL)
		GUC_check_errdetail("%s", wrong);
	return wrong == NULL;
}

static bool
check_hosts(char **newval, void **extra, GucSource source)
{
	return is_right(zks_check_hosts(*newval, palloc(ZKS_HOSTS_ROOM(strlen(*newval)))));
}

static bool
check_root(char **newval, void **extra, GucSource source)
{
	return is_right(zkb_check_root(*newval));
}

/* As long as a database's name can be */
static bool
check_advisory_space(char **newval, void **extra, GucSource source)
{
	return is_right(strlen(*newval) < NAMEDATALEN ? NULL :
					psprintf("The name is longer than %d bytes.", NAMEDATALEN - 1));
}

static const struct
{
	const char *name;
	const char *summary;
	const char *more;
	int		   *variable;
	int			boot;
	int			min;
	int			max;
	GucContext	context;
	int			flags;
}			int_settings[] =
{
	{"zklock.session_timeout",
		"Sets the session timeout that is requested from ZooKeeper.",
		"A ZooKeeper session from which nothing is heard for this long ends, and its locks are lost. The ensemble may limit the timeout.",
	&zklock_session_timeout, 10000, 1000, 3600000, PGC_SUSET, GUC_UNIT_MS},
	{"zklock.connect_timeout",
		"Sets the maximum time to wait for a ZooKeeper session.", NULL,
	&zklock_connect_timeout, 5000, 1, 3600000, PGC_USERSET, GUC_UNIT_MS},
	{"zklock.operation_timeout",
		"Sets the maximum time to wait for ZooKeeper's answer.", NULL,
	&zklock_operation_timeout, 10000, 1, 3600000, PGC_USERSET, GUC_UNIT_MS},
	{"zklock.release_timeout",
		"Sets the maximum wait for releases at transaction end.",
		"There is no wait while ZooKeeper cannot be reached, and a cancel ends the wait.",
	&zklock_release_timeout, 0, 0, 1000, PGC_USERSET, GUC_UNIT_MS},
	{"zklock.idle_timeout",
		"Sets the maximum idle time of a ZooKeeper session.",
		"A session that has neither held nor waited for anything for this long is closed; the next call opens another. 0 disables the timeout.",
	&zklock_idle_timeout, 60000, 0, 604800000, PGC_USERSET, GUC_UNIT_MS},
	{"zklock.max_locks",
		"Sets the maximum number of ZooKeeper locks per session.", NULL,
	&zklock_max_locks, 1000, 1, 1000000, PGC_SUSET, 0},
};

static const struct
{
	const char *name;
	const char *summary;
	const char *more;
	char	  **variable;
}			tls_settings[] =
{
	{"zklock.tls_ca_file",
		"Location of the certificate authority file for ZooKeeper.",
		"The servers' certificates must be issued by one of its authorities. If it is set, connections to ZooKeeper use TLS.",
	&zklock_tls_ca_file},
	{"zklock.tls_cert_file",
		"Location of the client certificate file for ZooKeeper.",
		"It may contain intermediate certificates, too.",
	&zklock_tls_cert_file},
	{"zklock.tls_key_file",
		"Location of the client private key file for ZooKeeper.",
		"The key must not have a passphrase, and nobody but the server's user, or root and a group, may have access.",
	&zklock_tls_key_file},
	{"zklock.tls_crl_file",
		"Location of the certificate revocation list file for ZooKeeper.",
		"If it is set, it must contain a list that has not expired for each authority that issued a server's certificate.",
	&zklock_tls_crl_file},
};

static const struct config_enum_entry guard_values[] =
{
	{"off", ZKLOCK_GUARD_OFF, false},
	{"on", ZKLOCK_GUARD_ON, false},
	{"strict", ZKLOCK_GUARD_STRICT, false},
	{"true", ZKLOCK_GUARD_ON, true},
	{"false", ZKLOCK_GUARD_OFF, true},
	{"yes", ZKLOCK_GUARD_ON, true},
	{"no", ZKLOCK_GUARD_OFF, true},
	{"1", ZKLOCK_GUARD_ON, true},
	{"0", ZKLOCK_GUARD_OFF, true},
	{NULL, 0, false}
};

static const struct config_enum_entry stop_values[] =
{
	{"off", ZKS_STOP_NEVER, false},
	{"lost", ZKS_STOP_LOST, false},
	{"doubt", ZKS_STOP_DOUBT, false},
	{"terminate", ZKS_STOP_TERMINATE, false},
	{"false", ZKS_STOP_NEVER, true},
	{"no", ZKS_STOP_NEVER, true},
	{"0", ZKS_STOP_NEVER, true},
	{NULL, 0, false}
};

/* What no guard would refuse to commit is not stopped either */
static void
stop_as_set(int guard, int when)
{
	zks_stop_when(guard == ZKLOCK_GUARD_OFF ? ZKS_STOP_NEVER : (ZksStopWhen) when);
}

static void
assign_commit_guard(int newval, void *extra)
{
	stop_as_set(newval, zklock_cancel_on_loss);
}

static void
assign_cancel_on_loss(int newval, void *extra)
{
	stop_as_set(zklock_commit_guard, newval);
}

static const struct config_enum_entry style_values[] =
{
	{"curator", ZKP_CURATOR, false},
	{"curator_rw", ZKP_CURATOR_RW, false},
	{"kazoo", ZKP_KAZOO, false},
	{"single", ZKP_SINGLE, false},
	{NULL, 0, false}
};

static const struct config_enum_entry acl_values[] =
{
	{"world", ZKLOCK_ACL_WORLD, false},
	{"creator", ZKLOCK_ACL_CREATOR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry advisory_values[] =
{
	{"off", ZKLOCK_ADVISORY_OFF, false},
	{"strict", ZKLOCK_ADVISORY_STRICT, false},
	{"redirect", ZKLOCK_ADVISORY_REDIRECT, false},
	{"false", ZKLOCK_ADVISORY_OFF, true},
	{"no", ZKLOCK_ADVISORY_OFF, true},
	{"0", ZKLOCK_ADVISORY_OFF, true},
	{NULL, 0, false}
};

/*
 * What only this value has, so that PostgreSQL calls the function below whenever another
 * one comes into effect, even an equal one
 */
static bool
check_advisory(int *newval, void **extra, GucSource source)
{
	*extra = guc_malloc_compat(1);
	return *extra != NULL;
}

/*
 * A plan that was made before has the calls that it was made with, and so have domains'
 * constraints that somebody keeps ready to be executed.  "off" means that only where no
 * value was dropped, or a superuser has set it.
 */
static void
assign_advisory(int newval, void *extra)
{
	if (newval == zklock_advisory && dropped == NIL)
		return;
	ResetPlanCache();
	CallSyscacheCallbacks(CONSTROID, 0);
}

static void
define_settings(void)
{
	DefineCustomStringVariable("zklock.hosts",
							   gettext_noop("Sets the servers of the ZooKeeper ensemble."),
							   gettext_noop("A comma-separated list of host:port. The default port is 2181; an IPv6 address must be in brackets."),
							   &hosts, "",
							   PGC_SUSET, GUC_LIST_INPUT, check_hosts, NULL, NULL);
	DefineCustomStringVariable("zklock.root",
							   gettext_noop("Sets the path in ZooKeeper below which all locks lie."),
							   gettext_noop("With \"/\", the paths of locks are used as they are."), &zklock_root, "/zklock",
							   PGC_SUSET, 0, check_root, NULL, NULL);
	for (int i = 0; i < lengthof(int_settings); i++)
		DefineCustomIntVariable(int_settings[i].name, int_settings[i].summary,
								int_settings[i].more, int_settings[i].variable,
								int_settings[i].boot, int_settings[i].min,
								int_settings[i].max, int_settings[i].context,
								int_settings[i].flags, NULL, NULL, NULL);
	for (int i = 0; i < lengthof(tls_settings); i++)
		DefineCustomStringVariable(tls_settings[i].name, tls_settings[i].summary,
								   tls_settings[i].more, tls_settings[i].variable, "",
								   PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("zklock.tls_verify_host",
							 gettext_noop("Verifies that a ZooKeeper server's certificate matches its name."),
							 gettext_noop("The name is the one in zklock.hosts."), &zklock_tls_verify_host, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("zklock.commit_guard",
							 gettext_noop("Sets how COMMIT verifies that locks are still held."),
							 gettext_noop("off: not at all. on: asks ZooKeeper unless it has confirmed the session within a third of the session timeout. strict: always asks."),
							 &zklock_commit_guard, ZKLOCK_GUARD_ON, guard_values,
							 PGC_SUSET, 0, NULL, assign_commit_guard, NULL);
	DefineCustomEnumVariable("zklock.cancel_on_loss",
							 gettext_noop("Sets when loss of a lock cancels the running statement."),
							 gettext_noop("off: never. lost: when the loss is known. doubt: also when ZooKeeper has not confirmed for a whole session timeout that the lock is held. terminate: as doubt, and for a session-scope lock the connection is terminated, even if it is idle."),
							 &zklock_cancel_on_loss, ZKS_STOP_LOST, stop_values,
							 PGC_USERSET, 0, NULL, assign_cancel_on_loss, NULL);
	DefineCustomEnumVariable("zklock.node_style",
							 gettext_noop("Sets which client library's node names are used for locks."),
							 gettext_noop("curator: Curator's mutex and compatible locks. curator_rw: Curator's read-write lock. kazoo: kazoo's locks. single: one ephemeral node at the path itself."),
							 &zklock_node_style, ZKP_CURATOR, style_values,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("zklock.auth_file",
							   gettext_noop("Location of the credentials file for ZooKeeper."),
							   gettext_noop("Each line has one scheme:credentials. Nobody but the server's user, or root and a group, may have access."),
							   &zklock_auth_file, "",
							   PGC_SUSET, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomEnumVariable("zklock.acl",
							 gettext_noop("Sets who may access a session's nodes in ZooKeeper."),
							 gettext_noop("world: everybody. creator: whoever has the same credentials."),
							 &zklock_acl, ZKLOCK_ACL_WORLD, acl_values,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("zklock.publish_identity",
							 gettext_noop("Writes a session's identity into its nodes in ZooKeeper."),
							 gettext_noop("The identity is host, port, cluster name, process, database, user, and application name."),
							 &zklock_publish_identity, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("zklock.advisory_space",
							   gettext_noop("Sets the name under which databases share advisory lock keys."),
							   gettext_noop("If it is empty, the name of the database is used."),
							   &zklock_advisory_space, "",
							   PGC_SUSET, 0, check_advisory_space, NULL, NULL);
	DefineCustomEnumVariable("zklock.advisory",
							 gettext_noop("Sets how PostgreSQL's own advisory lock functions are handled."),
							 gettext_noop("off: they take PostgreSQL's own locks. strict: calls fail. redirect: calls become calls of zklock_advisory's functions."),
							 &zklock_advisory, ZKLOCK_ADVISORY_OFF, advisory_values,
							 PGC_SUSET, 0, check_advisory, assign_advisory, NULL);
}

/*-------------------------------------------------------------------------
 * What zklock.tls_* ask for
 *-------------------------------------------------------------------------
 */

/*
 * They are names of files, which zk/tls.c reads.  No message contains such a
 * name; the name of the setting says as much, to whoever may see its value.
 */
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

/*-------------------------------------------------------------------------
 * Settings that were set before the library was loaded
 *-------------------------------------------------------------------------
 */

/* The settings that had a value, and later those of them that have lost it */
typedef struct Dropped
{
	char	   *name;
	bool		by_client;		/* it was replaced by an option of the
								 * connection */
} Dropped;

/* What a session sets for itself replaces nothing */
static bool
is_configured(const struct config_generic *setting)
{
	return setting->reset_source > PGC_S_DEFAULT;
}

static void
remember_configured(void)
{
	int			n;
	struct config_generic **settings = guc_variables(&n);
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	for (int i = 0; i < n; i++)
	{
		if (pg_strncasecmp(settings[i]->name, "zklock.", strlen("zklock.")) == 0 &&
			is_configured(settings[i]))
		{
			Dropped    *d = palloc(sizeof(Dropped));

			d->name = pstrdup(settings[i]->name);
			d->by_client = settings[i]->reset_source == PGC_S_CLIENT;
			dropped = lappend(dropped, d);
		}
	}
	MemoryContextSwitchTo(old);
}

/*
 * A value that an administrator has corrected by a reload is in effect.  If
 * the connection began with an option that was refused, a reload may bring a
 * value other than the lost one, so such a setting stays in the list.
 */
static void
forget_those_in_force(bool reloaded)
{
	ListCell   *cell;

	foreach(cell, dropped)
	{
		Dropped    *d = lfirst(cell);
		const struct config_generic *setting = guc_variable(d->name);

		/* a user's own setting can do no harm */
		if (setting == NULL || setting->context == PGC_USERSET ||
			(is_configured(setting) && !(reloaded && d->by_client)))
			dropped = foreach_delete_current(dropped, cell);
	}
}

const char *
zklock_first_dropped(const char *wanted)
{
	ListCell   *cell;

	if (dropped == NIL)
		return NULL;
	forget_those_in_force(true);
	foreach(cell, dropped)
	{
		const char *name = ((Dropped *) lfirst(cell))->name;

		/* a superuser's SET, or a function's, is in effect for now */
		if ((wanted == NULL || pg_strcasecmp(name, wanted) == 0) &&
			guc_variable(name)->source <= PGC_S_CLIENT)
			return name;
	}
	return NULL;
}

void
zklock_refuse_dropped_settings(void)
{
	const char *name = zklock_first_dropped(NULL);

	if (name != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("parameter \"%s\" was rejected when zklock was loaded", name),
				 errdetail("Its value was invalid, or the connecting role lacks permission to set it."),
				 errhint("Reconnect without setting it, or have an administrator correct it.")));
}

void
zklock_define_settings(void)
{
	remember_configured();
	define_settings();
	MarkGUCPrefixReserved("zklock");
	forget_those_in_force(false);
}

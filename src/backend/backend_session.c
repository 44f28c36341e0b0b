/*-------------------------------------------------------------------------
 *
 * backend_session.c
 *	  This backend's ZooKeeper session: one at a time, opened when needed.
 *
 * It is opened at the first call that needs it, never when the library is
 * loaded: that may be in the postmaster, before it forks.  It is closed in
 * on_proc_exit, after the last transaction has been aborted; before_shmem_exit
 * would release the locks before that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>
#include <sys/socket.h>
#include "access/parallel.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

/*
 * A Port has what belongs to these libraries at its end, so that it is the same
 * without their headers, which need not be here
 */
#undef ENABLE_GSS
#undef USE_OPENSSL
#include "libpq/libpq.h"

#include "auth_file.h"
#include "backend_session.h"
#include "encoding.h"
#include "errors.h"
#include "internals.h"
#include "settings.h"
#include "slots.h"
#include "zk/hosts.h"

/* How long ZooKeeper may take to close the session at exit */
#define EXIT_BOUND_MS		2000

/* How much of that a client waits for, which then sees the locks released */
#define EXIT_CLIENT_MS		200

/*
 * The same for a session that is over or never began, so that only its thread must
 * end; and for one that another takes the place of, whose thread waits for this one's
 */
#define ABANDON_BOUND_MS	100

static ZkSession *session = NULL;
static uint32 generation = 0;
static ZkLoss last_loss = ZK_NOT_LOST;
static int64 opened_at;
static pid_t owner_pid = 0;		/* a forked child does not own the session */
static bool in_use = false;		/* since zks_use, or zks_open */
static bool worked = false;		/* it was asked for something since */
static int	idle_timeout = 0;	/* as it was last told */

/* The marks that earlier sessions have left */
static ZkMarks unsettled;

/* The settings with which the current or last session was opened */
static char *session_settings = NULL;	/* see settings_in_force */
static bool session_is_known = false;	/* it was opened with credentials */

static void
release_descriptors(void)
{
	for (int i = 0; i < ZKS_DESCRIPTORS; i++)
		ReleaseExternalFD();
}

/*
 * Refused releases, for zkb_warn_unreleased: how many of this session were seen, how
 * many are to be told, of sessions that are over, too, and the latest one
 */
static uint64 refusals_seen = 0;
static uint64 refusals_to_tell = 0;
static int	refused = 0;
static char refused_path[ZKS_PATH_LEN];

static void
look_at_refusals(const ZkSessionInfo *info)
{
	ZkSessionTexts texts;

	if (info->refusals == refusals_seen)
		return;
	refusals_to_tell += info->refusals - refusals_seen;
	refusals_seen = info->refusals;
	refused = info->refused;
	zks_texts(session, &texts);
	strlcpy(refused_path, texts.refused_path, sizeof(refused_path));
}

/* What of the session has been told in the server's log, and its news then */
static ZkSessionInfo told;
static unsigned told_news;

static void
tell_timeout(const ZkSessionInfo *info)
{
	static int	told_timeout = 0;	/* not again in the next session */
	int			requested = atoi(strchr(session_settings, '\n') + 1);

	if (info->epoch == 0 || info->timeout_ms == requested || info->timeout_ms == told_timeout)
		return;
	told_timeout = info->timeout_ms;
	ereport(LOG,
			(errmsg("ZooKeeper granted a session timeout of %d ms, but zklock.session_timeout is %d ms",
					info->timeout_ms, requested),
			 errhint("The server's minSessionTimeout and maxSessionTimeout, by default 2 and 20 times its tickTime, limit what it grants.")));
}

/* No palloc here: it may be after COMMIT */
static void
tell_loss(const ZkSessionInfo *info, const ZkTroubles *cause)
{
	bool		silence = info->forfeited || info->state != ZKS_OVER;

	ereport(LOG,
			(errmsg("ZooKeeper session 0x%llx was lost", (unsigned long long) info->session_id),
			 !silence ?
			 errdetail("ZooKeeper ended the session, or nothing was heard from ZooKeeper for the whole session timeout of %d ms.", info->timeout_ms) :
			 cause->text[0] == '\0' ?
			 errdetail("Nothing was heard from ZooKeeper for the whole session timeout of %d ms.", info->timeout_ms) :
			 errdetail("Nothing was heard from ZooKeeper for the whole session timeout of %d ms. The last connection error was: %s.",
					   info->timeout_ms, cause->text),
			 silence ? errhint("%s", zkb_trouble_hint(cause->kind, ZKB_CUT_OFF_HINT)) : 0));
}

/*
 * A line for each loss, for each outage that came close to one, and for each timeout
 * that is not what the setting says.  The session's
 * thread cannot write it, so this is called wherever the backend looks at the
 * session, and at the end of each transaction.  A LOG is allowed there, too, if it
 * is not the place where a cancel ends what is under way; and a loss is a cause of
 * one (stop.c).
 */
static void
tell_news(const ZkSessionInfo *info)
{
	ZkSessionTexts texts;

	zks_texts(session, &texts);
	HOLD_INTERRUPTS();
	tell_timeout(info);
	if (info->losses > told.losses)
	{
		if (zks_is_auth_failure(info->error))
			ereport(LOG,
					(errmsg("ZooKeeper no longer accepts session 0x%llx", (unsigned long long) info->session_id),
					 errdetail("ZooKeeper reported: %s.", zks_code_text(info->error)),
					 errhint("Check zklock.auth_file and the authentication schemes that the servers require.")));
		else
			tell_loss(info, &texts.at_loss);
	}
	if (info->outages > told.outages)
		ereport(LOG,
				(errmsg("ZooKeeper session 0x%llx reconnected after %d ms",
						(unsigned long long) info->session_id, info->outage_ms),
				 texts.at_outage.text[0] != '\0' ?
				 errdetail("The last connection error was: %s. The session's locks would have been lost after %d ms.",
						   texts.at_outage.text, info->timeout_ms) :
				 errdetail("The session's locks would have been lost after %d ms.", info->timeout_ms),
				 errhint("%s", zkb_trouble_hint(texts.at_outage.kind, ZKB_CUT_OFF_HINT))));
	if (info->unsettled > told.unsettled)
		ereport(LOG,
				(errmsg("could not record the outcome of a claim: %s",
						zks_code_text(info->unsettled_rc)),
				 errdetail("Node \"%s\" still shows the claim as pending.", texts.unsettled_mark),
				 errhint("Check pg_xact_status() for the claiming transaction; if it aborted, call zk_claim_forget().")));
	told = *info;
	RESUME_INTERRUPTS();
}

bool
zkb_may_have_lost(void)
{
	static uint32 seen_generation = 0;
	static unsigned seen_news = 0;
	unsigned	news = session != NULL ? zks_news(session) : seen_news + 1;

	if (session != NULL && seen_generation == generation && seen_news == news)
		return false;
	seen_generation = generation;
	seen_news = news;
	return true;
}

static void
look_for_news(void)
{
	ZkSessionInfo info;

	if (zks_news(session) == told_news)
		return;
	told_news = zks_news(session);
	info = zks_info(session);
	tell_news(&info);
}

/*
 * libpq reports a FATAL error only when the connection has ended, and PostgreSQL ends
 * it with the process.
 */
static void
hang_up(void)
{
	if (MyProcPort == NULL || MyProcPort->sock == PGINVALID_SOCKET)
		return;
	secure_close(MyProcPort);
	(void) shutdown(MyProcPort->sock, SHUT_WR);
}

static void
close_session(bool exits)
{
	ZkSessionInfo info;
	ZkSession  *s = session;

	if (!in_use)
		(void) zks_use(s);
	in_use = false;
	info = zks_info(s);
	if (!proc_exit_inprogress)
		tell_news(&info);
	look_at_refusals(&info);
	refusals_seen = 0;
	session = NULL;
	zkb_counters.requests += info.requests;
	zkb_counters.reconnections += info.reconnections;
	zkb_counters.losses += info.losses;
	zkb_slot_session_ends();
	if (exits && !zks_closed(s, EXIT_CLIENT_MS))
		hang_up();
	zks_close(s, exits ? EXIT_BOUND_MS : ABANDON_BOUND_MS, exits && proc_exit_inprogress ? NULL : &unsettled);
	release_descriptors();
}

/*
 * To be called before anything else is done with the session: from here to the end
 * of the transaction its thread does not close it, as it does when it is idle.  If
 * it has, there is none.
 */
static void
use_session(void)
{
	if (session == NULL || in_use)
		return;
	in_use = zks_use(session);
	if (!in_use)
		close_session(false);
}

void
zkb_rest(void)
{
	if (session == NULL)
		return;
	look_for_news();
	if (!in_use && idle_timeout == zklock_idle_timeout)
		return;
	idle_timeout = zklock_idle_timeout;
	zks_rest(session, idle_timeout, worked);
	in_use = false;
	worked = false;
}

/* At this point there is no latch, and an error would lead back here. */
static void
close_at_exit(int code, Datum arg)
{
	if (session != NULL && owner_pid == getpid())
		close_session(true);
}

void
zkb_let_expire(void)
{
	session = NULL;
}

ZkSession *
zkb_session(void)
{
	ZkSessionInfo info;

	use_session();
	if (session == NULL)
		return NULL;
	info = zks_info(session);
	if (info.state != ZKS_OVER)
		return session;
	last_loss = info.forfeited ? ZK_LOST_CONTACT :
		zks_is_auth_failure(info.error) ? ZK_LOST_IDENTITY : ZK_LOST_SESSION;
	close_session(false);
	return NULL;
}

void
zkb_warn_unreleased(void)
{
	uint64		n;

	if (session != NULL)
	{
		ZkSessionInfo info = zks_info(session);

		look_at_refusals(&info);
	}
	n = refusals_to_tell;
	refusals_to_tell = 0;
	if (n > 0)
		ereport(WARNING,
				(errmsg_plural("ZooKeeper refused the release of a lock: %s",
							   "ZooKeeper refused the release of locks: %s",
							   n, refused == ZKS_NO_AUTH ? "permission denied" : zks_code_text(refused)),
				 refused_path[0] != '\0' ?
				 errdetail("Node \"%s\" could not be deleted.",
						   zkb_from_utf8_escaped(refused_path, strlen(refused_path), false)) : 0,
				 errhint("The release is retried with each heartbeat, and takes effect at the latest when this backend's ZooKeeper session ends. See zk_session.unreleased.")));
}

ZkLoss
zkb_last_loss(void)
{
	return last_loss;
}

ZkSession *
zkb_peek(void)
{
	use_session();
	return session;
}

uint32
zkb_generation(void)
{
	return session != NULL ? generation : 0;
}

/*
 * What a session is opened with, the servers and the timeout first: another text means
 * another session
 */
static char *
settings_in_force(void)
{
	return psprintf("%s\n%d\n%s\n%s\n%s\n%s\n%s\n%d", zklock_servers(), zklock_session_timeout,
					zklock_auth_file, zklock_tls_ca_file, zklock_tls_cert_file,
					zklock_tls_key_file, zklock_tls_crl_file, zklock_tls_verify_host);
}

const char *
zkb_servers(void)
{
	return pnstrdup(session_settings, strcspn(session_settings, "\n"));
}

void
zkb_follow_settings(void)
{
	use_session();
	if (session != NULL &&
		(strcmp(session_settings, settings_in_force()) != 0 ||

	/* the file may contain credentials by now */
		 (zklock_acl == ZKLOCK_ACL_CREATOR && !session_is_known)))
		close_session(false);	/* this hears no cancel; what follows, and
								 * waits for the rest, does */
}

static void
refuse_no_hosts(void)
{
	if (zklock_servers()[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("zklock.hosts is not set"),
				 errhint("Set it to the servers of your ZooKeeper ensemble, such as 'zk1:2181,zk2:2181,zk3:2181'.")));
}

void
zkb_refuse_another_ensemble(void)
{
	refuse_no_hosts();
	if (!zks_hosts_share(zkb_servers(), zklock_servers()))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("zklock.hosts names an ensemble other than the one in which this session holds locks"),
				 errdetail("Its locks are in the ensemble of \"%s\", which has no server in common with \"%s\".",
						   zkb_servers(), zklock_servers()),
				 errhint("Release the locks that zk_locks shows, or restore the previous value of zklock.hosts.")));
}

/*
 * What became of a claim is recorded where its mark is.  So the next session is
 * one of the same ensemble as the last, as long as it has something to record.
 */
static void
refuse_unsettled_elsewhere(void)
{
	const char *path = zkn_unsettled_path(&unsettled);

	if (path != NULL && !zks_hosts_share(zkb_servers(), zklock_servers()))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("zklock.hosts names an ensemble other than the one in which this session has a pending claim"),
				 errdetail("Node \"%s\" is in the ensemble of \"%s\", which has no server in common with \"%s\".",
						   zkb_from_utf8_escaped(path, strlen(path), false), zkb_servers(), zklock_servers()),
				 errhint("Restore the previous value of zklock.hosts; the next call then records the outcome of the claim. If this session ends before that, the claim might stay pending.")));
}

/* PostgreSQL also counts descriptors that are not its own */
static void
reserve_descriptors(void)
{
	for (int reserved = 0; reserved < ZKS_DESCRIPTORS; reserved++)
	{
		if (AcquireExternalFD())
			continue;
		while (reserved-- > 0)
			ReleaseExternalFD();
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not open a ZooKeeper session"),
				 errdetail("There are too many open files on the local server."),
				 errhint("Raise the server's max_files_per_process and/or \"ulimit -n\" limits.")));
	}
}

/*
 * Handles a direct call of exit().  PostgreSQL's own handler runs after that
 * of zk/wire.c, when nothing can be sent to a server any longer.  So the session ends
 * before that aborts the transaction, of which nothing will be seen.
 */
static void
exit_in_order(void)
{
	zks_stop_end(ZKS_STOP_PROCESS); /* the session is not lost by that */
	close_at_exit(1, (Datum) 0);
}

void
zkb_refuse_nameless(void)
{
	if (session_is_known)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("zklock.acl is \"creator\", but there are no credentials"),
			 session != NULL && zklock_auth_file[0] != '\0' ?
			 errdetail("The ZooKeeper session was opened without credentials; a new one is opened once this session holds no locks.") : 0,
			 errhint("Set zklock.auth_file to a file that has a line such as digest:user:password.")));
}

/* Open a session according to the settings, and keep a copy of them */
static void
open_as_set(const ZkAuthFile *credentials)
{
	ZkOptions	options = {
		.hosts = zklock_servers(),
		.timeout_ms = zklock_session_timeout,

		/*
		 * die() and the other handlers of a backend only set flags;
		 * bgworker_die does not return
		 */
		.handlers_return = MyBgworkerEntry == NULL && IsUnderPostmaster,
		.credentials = credentials->list,
		.ncredentials = credentials->n,
	};
	static bool exit_ordered = false;
	char	   *fresh;

	session_is_known = credentials->n > 0 || zklock_tls_cert_file[0] != '\0';
	if (zklock_acl == ZKLOCK_ACL_CREATOR)
		zkb_refuse_nameless();
	fresh = MemoryContextStrdup(TopMemoryContext, settings_in_force());
	if (session_settings != NULL)
		pfree(session_settings);
	session_settings = fresh;

	options.tls = zkb_tls();
	if (options.tls != NULL && !exit_ordered)
	{
		atexit(exit_in_order);
		exit_ordered = true;
	}
	session = zks_open(&options);
	if (session == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not open a ZooKeeper session: %m")));
}

static void
open_session(void)
{
	static bool exit_registered = false;
	ZkAuthFile *credentials;

	if (IsParallelWorker())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot use ZooKeeper locks in a parallel worker")));
	refuse_no_hosts();
	refuse_unsettled_elsewhere();
	if (!exit_registered)
	{
		on_proc_exit(close_at_exit, 0);
		exit_registered = true;
	}
	credentials = palloc0(sizeof(ZkAuthFile));	/* an error leaves what is in
												 * it */
	reserve_descriptors();
	PG_TRY();
	{
		zkb_read_auth_file(zklock_auth_file, credentials);
		open_as_set(credentials);
	}
	PG_FINALLY();
	{
		if (credentials->contents != NULL)
			/* including those that are commented out */
			explicit_bzero(credentials->contents, credentials->len);
		if (session == NULL)
			release_descriptors();
	}
	PG_END_TRY();
	generation++;
	zkn_adopt_marks(session, &unsettled);
	in_use = true;
	idle_timeout = 0;
	memset(&told, 0, sizeof(told));
	told_news = 0;
	opened_at = zks_now();
	owner_pid = getpid();
	zkb_show_session(session);
}

/*
 * No server has accepted the session in time.  Unless the next call may find it
 * connected, it is given up, and that call starts anew.
 */
static void
raise_unreachable(bool keep)
{
	ZkSessionTexts last;

	zks_texts(session, &last);
	if (!keep)
		close_session(false);
	zkb_raise_unreachable(&last);
}

/*
 * Close a session that short calls have left connecting for too long: its host
 * names may resolve differently by now.
 */
static void
abandon_stale(void)
{
	if (session != NULL && zks_info(session).state == ZKS_CONNECTING &&
		zks_now() - opened_at > zklock_connect_timeout * ZKS_MS)
		close_session(false);
}

ZkSession *
zkb_connect(ZkWait *wait)
{
	int64		until_connected = zkb_deadline(zklock_connect_timeout);
	int64		until_back = zkb_deadline(zklock_operation_timeout);

	use_session();
	worked = true;
	abandon_stale();
	zkb_warn_unreleased();

	for (;;)
	{
		ZkSessionInfo info;
		bool		cut_off;

		if (session == NULL)
			open_session();
		info = zks_info(session);
		if (zks_is_fresh(&info))
			return session;
		if (info.state == ZKS_OVER)
		{
			if (info.epoch == 0)
				raise_unreachable(false);
			(void) zkb_session();
			if (zks_is_auth_failure(info.error))
				zkb_raise_not_accepted(info.error);
			continue;
		}
		/* a session that has nothing left to lose is as good as a new one */
		cut_off = info.state != ZKS_CONNECTING && !info.forfeited;
		if (zkb_wait(wait, session, cut_off ? until_back : until_connected, ZKB_WAIT_CONNECT))
			continue;
		info = zks_info(session);
		if (zks_is_fresh(&info))
			return session;
		if (cut_off)
			zkb_raise_cut_off(session);
		raise_unreachable(zks_now() < until_connected || info.forfeited);
	}
}

/* Ask once about as many of the nodes as fit; *n returns how many */
static void
ask(ZkNode *const *nodes, int *n, ZkPatience *patience, ZkAnswer *answer)
{
	ZkRequest  *request = zkb_sent(zkn_check(session, nodes, n));

	PG_TRY();
	{
		(void) zkb_await_answer(patience, request, answer);
	}
	PG_FINALLY();
	{
		zks_request_free(session, request);
	}
	PG_END_TRY();
}

ZkProof
zkb_prove(ZkNode *const *nodes, int n, ZkUse use, int64 since, ZkWait *wait, int64 until)
{
	ZkNode	  **chosen = palloc(n * sizeof(ZkNode *));
	int64		patient = until - zks_now();
	ZkPatience	patience = {
		.session = session,.wait = wait,.event = ZKB_WAIT_CHECK,.until = Min(until, wait->deadline)
	};

	for (;;)
	{
		int			count = zkn_unproven(session, nodes, n, use, since, chosen);

		/* only now, since a loss may have come after the proof */
		ZkSessionInfo info = zks_info(session);
		ZkAnswer	answer = {0};
		ZkLoss		loss;

		if (info.state == ZKS_OVER || zkn_first_lost(session, nodes, n, &loss) >= 0)
			return ZKB_LOST;
		if (count == 0)
			return ZKB_PROVEN;
		if (patience.waited == ZKB_LATE || zks_now() >= patience.until)
			return ZKB_NO_ANSWER;
		if (info.state != ZKS_CONNECTED)
		{
			(void) zkb_wait_on(&patience);	/* and see whether they are lost */
			continue;
		}
		if (use == ZKS_COMMIT && zks_now() < info.told_by)
		{
			/*
			 * once: if each answer comes after a silence, it goes on like
			 * that
			 */
			if (patient != 0)
				patience.until = info.told_by + patient;
			patient = 0;
			(void) zkb_wait(wait, session, Min(info.told_by, patience.until), ZKB_WAIT_CHECK);
			continue;
		}
		ask(chosen, &count, &patience, &answer);
		if (patience.waited != ZKB_CAME)
			continue;
		if ((answer.rc == ZKS_NO_NODE || answer.rc == ZKS_NO_AUTH) &&
			zkn_report_lost(session, chosen[answer.missing],
							answer.rc == ZKS_NO_NODE ? ZK_LOST_NODE : ZK_LOST_ACCESS))
			return ZKB_LOST;
		if (zks_is_open(answer.rc))
			wait->said = answer.rc;
		if (answer.rc == ZKS_OK)
			zkn_proven(session, chosen, count, answer.sent_at);
		else
			zkb_pause(wait, session, patience.until, ZKB_WAIT_CHECK);
	}
}

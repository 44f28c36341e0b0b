/*-------------------------------------------------------------------------
 *
 * lease_test.c
 *	  src/zk/lease.h against ZooKeeper's own count of the session timeout, without a
 *	  server: models/guard.pml, with the real rule, in nanoseconds, at random.  Prints
 *	  TAP.
 *
 *		lease_test [SEED [STEPS]]
 *
 *-------------------------------------------------------------------------
 */
#include "unit.h"
#include "zk/lease.h"

#define TIMEOUT_MS	9000
#define T			(TIMEOUT_MS * ZKS_MS)

typedef enum Kind
{
	TO_QUORUM,
	READ,
	HANDSHAKE
} Kind;

typedef enum Way
{
	NONE,
	THERE,
	BACK,						/* with the word that the session lives */
	REFUSED
} Way;

/* What the leader and the follower know of the session */
typedef struct Server
{
	bool		exists;
	int64_t		ends_at;		/* unless something is reported */
	bool		heard;			/* by the follower */
	int64_t		reported_at;	/* when the leader will be told of that */
} Server;

static int64_t now;

int64_t
zks_now(void)
{
	return now;
}

static int64_t
some(int64_t most)
{
	return most * below(1000) / 1000;
}

/* What happens there until this time */
static void
go_on(Server *server, int64_t until)
{
	if (server->heard && server->reported_at <= until)
	{
		server->exists &= server->reported_at < server->ends_at;
		server->ends_at = server->reported_at + T;
		server->heard = false;
	}
	server->exists &= until < server->ends_at;
}

static void
begin(Server *server, ZkSessionInfo *info)
{
	server->exists = true;
	server->ends_at = now + T;
	server->heard = false;
	*info = (ZkSessionInfo) {.state = ZKS_CONNECTED,.timeout_ms = TIMEOUT_MS,.answered_at = now,.quorum_at = now};
}

static void
simulate(int steps)
{
	Server		server;
	ZkSessionInfo info;
	Way			way = NONE;
	Kind		kind = READ;
	int64_t		asked_at = 0;
	bool		cut_off = false;	/* with a leader that nobody follows */
	int			commits = 0;
	int			late = 0;
	int			early_grants = 0;
	int			after_gaps = 0;
	int			after_handshakes = 0;

	now = 1000 * T;
	begin(&server, &info);
	while (steps-- > 0)
	{
		now += some(below(20) == 0 ? T : T / 12);
		go_on(&server, now);
		if (way == NONE)
		{
			way = THERE;
			kind = (Kind) below(3);
			asked_at = now;
		}
		else if (below(20) == 0)
			way = NONE;
		else if (way == THERE && kind == HANDSHAKE && below(3) == 0)
		{
			cut_off = true;
			way = BACK;
		}
		else if (way == THERE && kind == HANDSHAKE)
		{
			cut_off = false;
			server.ends_at = now + T;
			server.heard &= server.exists;
			way = server.exists ? BACK : REFUSED;
		}
		else if (way == THERE && cut_off)
			way = kind == READ ? BACK : NONE;
		else if (way == THERE)
		{
			if (server.exists && !server.heard)
			{
				server.heard = true;
				server.reported_at = now + some(T / 4);
			}
			way = server.exists ? BACK : REFUSED;
		}
		else
		{
			bool		gap = false;

			if (way == BACK)
				gap = zks_lease_answered(&info, asked_at);
			if (way == BACK && kind == HANDSHAKE)
				zks_lease_renewed(&info);
			if (way == BACK && kind == TO_QUORUM)
				info.quorum_at = asked_at;
			if (gap && info.quorum_at >= zks_proof_since(&info, ZKS_GRANT))
				early_grants++;
			if (way == REFUSED)
				begin(&server, &info);
			way = NONE;
		}
		if (below(50) == 0)
			cut_off = true;

		/* the next owner, or we, after we had lost it */
		if (now >= zks_lease_ends(&info))
		{
			begin(&server, &info);
			cut_off = false;
			way = NONE;
		}

		/* a COMMIT that is as slow as it may be */
		if (info.quorum_at >= zks_proof_since(&info, ZKS_COMMIT))
		{
			Server		then = server;

			go_on(&then, info.quorum_at + zks_stale_after(&info) - 1);
			commits++;
			late += !then.exists;
			if (info.gap_at != 0 && info.told_by == info.gap_at + T / 3)
				after_gaps++;
			else if (info.gap_at != 0)
				after_handshakes++;
		}
	}
	ok(late == 0, "%d of %d transactions commit without the lock", late, commits);
	ok(early_grants == 0, "nothing is granted by what was asked before a silence");
	ok(after_gaps > 0 && after_handshakes > 0, "%d commit after a silence, %d where a handshake ended it", after_gaps, after_handshakes);
}

int
main(int argc, char **argv)
{
	begin_tests(argc, argv);
	simulate(argc > 2 ? atoi(argv[2]) : 3000000);
	return end_tests();
}

/*
 * guard.pml
 *	  The session timeout, in ticks: what the leader counts, what the session
 *	  counts by its own clock, and the commit guard in between.
 *
 * It follows src/zk/lease.h, and who keeps its times (zkr_heard_locked in
 * src/zk/request.c, connected_locked in src/zk/connection.c) and relies on them:
 * zkb_prove in src/backend/backend_session.c, zkl_bound_waits in
 * src/lock/transaction/commit_guard.c, expire_locked in src/zk/keeper_thread.c.
 *
 * What stands for what:
 *
 *	- Of the three sessions, one holds the lock and is followed here; the other
 *	  two wait, and have it the moment that the leader deletes its node, which
 *	  is the worst they can do.  How they find out is in queue.pml.
 *	- T is the session timeout, of 9 ticks; all clocks run at the same pace.
 *	- A question to the quorum (the guard's, or a heartbeat where somebody relies
 *	  on its word) is under way for any time, there and back, or is lost: a slow
 *	  or broken connection, or a process that was stopped.  So is any other
 *	  heartbeat, a read behind a sync, and a handshake on another connection.
 *	- A question does not prolong the session at the leader.  The follower's
 *	  ping does, which names the clients that it has heard within the last
 *	  REPORT ticks.  The leader ends the session T after the last such report,
 *	  or at any time later.  A handshake it accepts itself, and begins T anew.
 *	- At any time the session may be connected to a leader that has lost its
 *	  followers.  To all but a question to the quorum that says yes, whether the
 *	  session still lives or not, and the one who leads knows nothing of it.  From
 *	  there only a handshake leads back.
 *
 * What is verified: a transaction that the guard lets pass, with a round trip or
 * without, commits while its node exists; and who counts its lock as held, by its
 * own clock, has it, unless an answer came after a silence of two thirds of T and
 * the leader may not have been told since, or the answers are of a leader without
 * followers.
 *
 * What is left out:
 *
 *	- What the guard leaves open (doc/failures.md): a process that is stopped
 *	  between the guard and the commit, or waits there for other things than
 *	  PostgreSQL's locks; clocks of different paces; a leader's clock that jumps;
 *	  nodes deleted by hand.  Here the bound on waits holds for all of it.
 *	- A new leader, which gives the session a whole timeout again.  Who is
 *	  reconnected and not answered gives the session up sooner.
 *	- What a grant relies on, a quorum's word of after the gap: it says that the
 *	  node was there, not for how long.
 *	- Reads without a sync, which also count as ZooKeeper's word for whether a
 *	  session was silent: see README.md.
 *
 * A macro breaks the code on purpose: dev/models lists them.
 */
#ifndef THIRD
#define THIRD	3
#endif
#ifndef REPORT
#define REPORT	2
#endif
#define T		(3 * THIRD)

/* zks_stale_after: after a longer silence the next answer makes a gap */
#ifdef MUTANT_LONG_SILENCE
#define STALE	(2 * THIRD + 1)
#else
#define STALE	(2 * THIRD)
#endif

/* within this time of a gap the leader is told of it */
#ifdef MUTANT_SOONER
#define TOLD	(THIRD - 1)
#else
#define TOLD	THIRD
#endif
#define LONG	(T + TOLD)		/* ages need not be told apart beyond this */

/* the leader and the follower */
bool exists = true;
byte left = T;					/* until the leader may end the session */
bool heard;						/* by the follower, and not yet reported */
byte heard_age;
bool cut_off;					/* the session, with a leader that nobody follows */

/* the question that is under way */
#define NONE	0
#define SENT	1
#define YES		2				/* the node exists: on the way back */
#define NO		3
mtype = { TO_QUORUM, READ, HANDSHAKE };
byte question = NONE;
byte question_age;
mtype kind = TO_QUORUM;
bool is_guards;

/* the session */
byte answered;					/* age of the latest question that was answered */
byte proven;					/* the same of those to the quorum; THIRD or more is too old */
byte gap = LONG;				/* age of the latest gap; TOLD or more after a handshake */
bool lost, guarding, passed;
byte bound;						/* what is left of the time to commit */
bool committed;

/* since the latest gap a quorum was asked, when the leader had been told of it */
bool settled = true;

/* no answer since the last handshake but of a leader that nobody follows */
bool deceived;

/* zks_proof_since: what the guard lets pass */
#if defined(MUTANT_NO_GAP)
#define RELIES	(proven < THIRD)
#elif defined(MUTANT_ARRIVED) || defined(MUTANT_READ_SETTLES)
#define RELIES	(proven < THIRD && settled)
#else
#define RELIES	(proven < THIRD && gap >= proven + TOLD)
#endif

inline older(age, most)
{
	if :: age < most -> age++ :: else fi
}

inline forget()
{
	question = NONE; question_age = 0; kind = TO_QUORUM; is_guards = false
}

active proctype leader()
{
end:
	do
	/* a tick, which waits for the follower's ping */
	:: d_step { !committed && !(heard && heard_age == REPORT) ->
			if :: left > 0 -> left-- :: else fi;
			if :: heard -> heard_age++ :: else fi;
			if :: question != NONE -> older(question_age, T) :: else fi;
			older(answered, T);
			older(proven, THIRD);
			older(gap, LONG);
			if :: bound > 0 -> bound-- :: else fi }
	:: d_step { heard -> heard = false; heard_age = 0;
			if :: exists -> left = T :: else -> left = 0 fi }
	:: d_step { left == 0 && exists -> exists = false }
	:: d_step { question == SENT && kind == HANDSHAKE ->
			cut_off = false;
			if :: exists -> question = YES; left = T :: else -> question = NO fi }
	:: d_step { question == SENT && kind != HANDSHAKE && !cut_off ->
			if :: exists -> question = YES; heard = true :: else -> question = NO fi }
	/* the leader that nobody follows */
	:: d_step { !cut_off -> cut_off = true }
	:: d_step { question == SENT && kind == HANDSHAKE -> question = YES; cut_off = true }
	:: d_step { question == SENT && kind == READ && cut_off -> question = YES }
	od
}

active proctype keeper()
{
end:
	do
	:: d_step { question == NONE && !committed -> question = SENT; is_guards = guarding }
	:: d_step { question == NONE && !committed -> question = SENT; kind = READ }
	:: d_step { question == NONE && !committed -> question = SENT; kind = HANDSHAKE }
	:: d_step { question != NONE -> forget() }
	:: d_step { question == NO -> lost = true; forget() }
	:: d_step { question == YES ->
			/* zkr_heard_locked */
			if
			:: answered > STALE -> gap = 0; settled = false
			:: else
			fi;
			answered = question_age;
			deceived = (kind == HANDSHAKE -> cut_off : deceived || cut_off);
			if
			/* connected_locked: what was asked before no longer settles it */
			:: kind == HANDSHAKE && gap < TOLD ->
				gap = TOLD;
#ifndef MUTANT_HANDSHAKE
				proven = THIRD
#endif
#ifdef MUTANT_READ
			:: kind != HANDSHAKE ->
#else
			:: kind == TO_QUORUM ->
#endif
#ifdef MUTANT_RECEIVED
				proven = 0;
#else
				proven = (answered < THIRD -> answered : THIRD);
#endif
#ifdef MUTANT_ARRIVED
				settled = settled || gap >= TOLD
#else
				settled = settled || gap >= answered + TOLD
#endif
#ifdef MUTANT_READ_SETTLES
			:: kind == READ ->
				settled = settled || gap >= answered + TOLD
#endif
			:: else
			fi;
			/* zkb_prove: an answer that has lain unread proves nothing */
			if
			:: is_guards && guarding && RELIES ->
				passed = true; guarding = false;
				bound = 2 * THIRD - proven
			:: else
			fi;
			forget() }
	od
}

/* What the session does with its lock, at any time */
active proctype backend()
{
end:
	do
	/* zkl_is_lost, as zk_locks shows it */
	:: d_step { !lost && !committed ->
			if
#ifndef MUTANT_NO_EXPIRY
			:: answered >= T -> lost = true
#endif
			:: else -> assert(exists || !settled || deceived)
			fi }
	/* zkl_guard */
	:: d_step { !lost && !guarding && !passed && !committed ->
			if
#ifndef MUTANT_NO_EXPIRY
			:: answered >= T -> lost = true
#endif
#ifdef MUTANT_NO_GUARD
			:: else -> passed = true; bound = 2 * THIRD
#else
			:: else ->
				if
				:: RELIES -> passed = true; bound = 2 * THIRD - proven
				:: else -> guarding = true
				fi
#endif
			fi }
	/* no answer within zklock.operation_timeout, or lost: 40001 */
	:: d_step { guarding -> guarding = false; is_guards = false }
	:: d_step { passed ->
			passed = false;
			if
#ifdef MUTANT_NO_BOUND
			:: true ->
#else
			:: bound == 0			/* 40001 */
			:: else ->
#endif
				committed = true;
				assert(exists)
			fi;
			bound = 0 }
	od
}

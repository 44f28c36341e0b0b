/*
 * guard.pml
 *	  The session timeout, in ticks: what the leader counts, what the session
 *	  counts by its own clock, and the commit guard in between.
 *
 * It follows src/backend/backend_session.c (zkb_are_proven, zkb_prove),
 * src/lock/transaction/commit_guard.c (zkl_guard, zkl_bound_waits), zkr_heard_locked in
 * src/zk/request.c, and zks_expire.
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
 *	  heartbeat, a read behind a sync.  That proves nothing: a leader that has lost
 *	  its followers says yes, too, when the session is over.
 *	- A question does not prolong the session at the leader.  The follower's
 *	  ping does, which names the clients that it has heard within the last
 *	  REPORT ticks.  The leader ends the session T after the last such report,
 *	  or at any time later.
 *
 * What is verified: a transaction that the guard lets pass, with a round trip or
 * without, commits while its node exists; and who counts its lock as held, by its
 * own clock, has it, unless an answer came after a silence of two thirds of T and
 * the leader may not have been told since.
 *
 * What is left out:
 *
 *	- What the guard leaves open (doc/failures.md): a process that is stopped
 *	  between the guard and the commit, or waits there for other things than
 *	  PostgreSQL's locks; clocks of different paces; a leader's clock that jumps;
 *	  nodes deleted by hand.  Here the bound on waits holds for all of it.
 *	- A new leader, and a reconnection: both give the session a whole timeout
 *	  again.  Who is reconnected and not answered gives the session up sooner.
 *	- That such a leader answers while the session still lives, of which the next
 *	  leader is not told.  So that zk_lock_held asks a quorum is not verified here.
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
#define LONG	(2 * T + 1)		/* ages need not be told apart beyond this */

/* the leader and the follower */
bool exists = true;
byte left = T;					/* until the leader may end the session */
bool heard;						/* by the follower, and not yet reported */
byte heard_age;

/* the question that is under way */
#define NONE	0
#define SENT	1
#define YES		2				/* the node exists: on the way back */
#define NO		3
byte question = NONE;
byte question_age;
bool is_guards;
bool reads;						/* it is not for the quorum */

/* the session */
byte asked;						/* age of the latest question that was answered */
byte proven;					/* the same of those to the quorum; THIRD or more is too old */
byte late = LONG;				/* age of the latest answer that came late */
byte revived = LONG;			/* age of the latest answer after two thirds */
bool reported = true;			/* and the leader was told of it: see zkb_prove_lasting */
bool lost, guarding, passed;
byte bound;						/* what is left of the time to commit */
bool committed;

/* all answers of a whole timeout before the latest question to the quorum were in time */
#define REGULAR	(late >= proven + T)

inline older(age, most)
{
	if :: age < most -> age++ :: else fi
}

inline forget()
{
	question = NONE; question_age = 0; is_guards = false; reads = false
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
			older(asked, T);
			older(proven, THIRD);
			older(late, LONG);
			older(revived, LONG);
			if :: bound > 0 -> bound-- :: else fi }
	:: d_step { heard -> heard = false; heard_age = 0;
			if :: exists -> left = T :: else -> left = 0 fi }
	:: d_step { left == 0 && exists -> exists = false }
	:: d_step { question == SENT ->
			if
			:: exists -> question = YES;
				heard = true
			:: else -> question = NO
			fi }
	/* by a leader that has lost its followers */
	:: d_step { question == SENT && reads && !exists -> question = YES }
	od
}

active proctype keeper()
{
end:
	do
	:: d_step { question == NONE && !committed -> question = SENT; question_age = 0; is_guards = guarding }
	:: d_step { question == NONE && !committed -> question = SENT; question_age = 0; reads = true }
	:: d_step { question != NONE -> forget() }
	:: d_step { question == NO -> lost = true; forget() }
	:: d_step { question == YES ->
			/* zkr_heard_locked; zkb_prove_lasting */
			if :: asked > THIRD -> late = 0 :: else fi;
			if
			:: asked > 2 * THIRD -> revived = 0; reported = false
			:: asked <= 2 * THIRD && !reads && revived >= question_age + THIRD -> reported = true
			:: else
			fi;
			asked = question_age;
			if
#ifndef MUTANT_READ
			:: reads
#endif
#ifdef MUTANT_RECEIVED
			:: else -> proven = 0
#else
			:: else -> proven = (asked < THIRD -> asked : THIRD)
#endif
			fi;
			/* zkb_prove: an answer that has lain unread proves nothing */
			if
#ifdef MUTANT_NO_REPORT
			:: is_guards && guarding && proven < THIRD ->
#else
			:: is_guards && guarding && proven < THIRD && reported ->
#endif
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
			:: asked >= T -> lost = true
#endif
			:: else -> assert(exists || !reported)
			fi }
	/* zkl_guard */
	:: d_step { !lost && !guarding && !passed && !committed ->
			if
#ifndef MUTANT_NO_EXPIRY
			:: asked >= T -> lost = true
#endif
#ifdef MUTANT_NO_GUARD
			:: else -> passed = true; bound = 2 * THIRD
#else
#ifdef MUTANT_NO_LATE
			:: proven < THIRD ->
#else
			:: proven < THIRD && REGULAR ->
#endif
				passed = true; bound = 2 * THIRD - proven
			:: else -> guarding = true
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

/*
 * queue.pml
 *	  The queue of one lock: three sessions create, list, watch, take over
 *	  without a round trip, commit under the guard and release, while
 *	  connections break, servers lag behind and sessions expire.
 *
 * It follows src/lock/queue/acquire.c (take_turn), src/lock/queue/blockers.c
 * (look_at_blockers), src/lock/queue/place.c (zkl_confirm_turn), src/lock/transaction/commit_guard.c,
 * and of src/zk/node.c the search for a node whose create was not answered.  The
 * names of steps are theirs.
 *
 * What stands for what:
 *
 *	- A node is its number.  leader is the set of nodes that exist.
 *	- Each session's server applies the leader's transactions in their order,
 *	  when it likes; todo[i] has those that it has not applied, and seen[i] is
 *	  what it shows.  An event, and the answer to a check, come when it has
 *	  applied what they are about.
 *	- Time is two ages of the latest question of a session that a quorum has
 *	  answered: FRESH and SPENT.  Aging can happen at any time.  The leader
 *	  expires only a session that is SPENT, and whoever commits under the guard
 *	  does so while FRESH: guard.pml checks that T, a third of it, and two
 *	  thirds of it see to that.  proven[i] means that the session has the
 *	  answer, and its clock says that it is FRESH.
 *
 * What is verified: whoever is granted the lock is the first of the nodes that
 * exist (so there is one holder, and who came first gets it first); the same
 * for each commit; and no run ends with a session that waits, or with a node
 * left.  All runs end, so a forgotten waiter is an invalid end state.
 *
 * What is left out:
 *
 *	- Shared locks, semaphores, several locks at once, zk_try_lock, peers; data
 *	  and names of nodes other than their number, which never overflows.
 *	- Nodes that somebody deletes by hand, and refusals (ACLs, quotas).
 *	- The leftover of a session that is still listed when it queues again: the
 *	  delete is at the leader before the next create.
 *	- A create that is carried out after the new connection has looked for it:
 *	  see t/069_late_create.pl.
 *	- More than NODES creates, BREAKS broken connections, AGEINGS of a proof,
 *	  GIVEUPS canceled waits, CRASHES of a process; a server that is more than
 *	  LAG transactions behind.  dev/models says which of them come together.
 *	- Watches that the library sets again after a reconnection, and what they
 *	  tell: zklock lists the queue then, and does not rely on them.
 *	- What one session alone can see of time: see guard.pml.
 *
 * A macro breaks the code on purpose: dev/models lists them.
 */
#ifndef NODES
#define NODES	3
#endif
#ifndef BREAKS
#define BREAKS	1
#endif
#ifndef AGEINGS
#define AGEINGS	1
#endif
#ifndef GIVEUPS
#define GIVEUPS	1
#endif
#ifndef CRASHES
#define CRASHES	1
#endif
#ifndef LAG
#define LAG		3
#endif

#define N		3
#define NONE	7

#define BIT(node)			(1 << (node))
#define BEFORE(set, node)	((set) & (BIT(node) - 1))
#define LAST(set)	((set) & 16 -> 4 : ((set) & 8 -> 3 : ((set) & 4 -> 2 : ((set) & 2 -> 1 : ((set) & 1 -> 0 : NONE)))))

/* what a server has yet to apply: the deletion of a node, or our own request */
#define DELETED		0
#define CREATED		16
#define CHECKED		17
#define SYNCED		18

/* of a question's age */
#define SPENT		0
#define FRESH		1

/* of our node */
#define NO_NODE		0
#define CREATING	1
#define UNSURE		2
#define PRESENT		3

/* of a watch */
#define NO_WATCH	0
#define PENDING		1
#define ARMED		2
#define FIRED		3
#define FAILED		4

/* to a request that the session waits for */
#define NO_REPLY		0
#define AWAITS_SYNC		1
#define AWAITS_CHECK	2
#define ANSWERED		3
#define CUT_OFF			4

/* the ensemble */
byte leader, next, which;
chan todo[N] = [LAG] of { byte };
byte seen[N];
byte age[N];

/* the sessions; near_of and far_of are the nodes that they watch */
bool connected[N] = true;
bool over[N], done[N], proven[N], holds[N];
byte reply[N];
byte epoch[N];
byte node[N] = NONE, state[N];
byte near[N], far[N], own[N];
byte near_of[N] = NONE, far_of[N] = NONE;

/* what may still go wrong */
byte breaks = BREAKS, ageings = AGEINGS, giveups = GIVEUPS, crashes = CRASHES;

#define ROOM	(len(todo[0]) < LAG && len(todo[1]) < LAG && len(todo[2]) < LAG)
#define EXISTS(i)	(node[i] != NONE && (leader & BIT(node[i])))
#define FIRST(i)	(EXISTS(i) && BEFORE(leader, node[i]) == 0)

/*
 * Nobody is told of what it could not make anything of: a node after its own,
 * or anybody else's once it holds the lock.
 */
#define TELL(j, gone) \
	if \
	:: node[j] == gone || (node[j] != NONE && node[j] > gone && !holds[j]) -> \
		if :: !done[j] -> todo[j]!(DELETED + gone) :: else fi \
	:: else \
	fi

inline delete_node(i)
{
	leader = leader & ~BIT(node[i]);
	which = node[i];
	TELL(0, which); TELL(1, which); TELL(2, which);
	which = 0
}

/*
 * Until our create is answered we look at nothing else, so the server shows
 * what came before it.
 */
inline create_node(i)
{
	node[i] = next; seen[i] = leader; leader = leader | BIT(next); next++;
	todo[i]!CREATED;
	state[i] = CREATING; age[i] = FRESH
}

/* forget the place, as drop_place (place.c) does */
inline leave(i)
{
	do :: nempty(todo[i]) -> todo[i]?_ :: empty(todo[i]) -> break od;
	node[i] = NONE; state[i] = NO_NODE; proven[i] = false; age[i] = FRESH;
	near[i] = NO_WATCH; far[i] = NO_WATCH; own[i] = NO_WATCH;
	near_of[i] = NONE; far_of[i] = NONE;
	seen[i] = 0; holds[i] = false; reply[i] = NO_REPLY
}

/* one of the watches: an event, the loss of the connection, the next one */
inline fire(watch, watched, which)
{
	if
	:: watched == which && watch == ARMED -> watch = FIRED
	:: else
	fi
}

inline cut(watch)
{
	if :: watch == PENDING -> watch = FAILED :: else fi
}

/*
 * The server answers the request that sets a watch: a node that it does not
 * show is as good as an event.
 */
#ifdef MUTANT_UNSEEN
#define TOO_LATE	ARMED
#else
#define TOO_LATE	FIRED
#endif
#define ANSWER(i, watch, watched, before) \
	:: d_step { connected[i] && watch == PENDING && before -> \
		watch = (seen[i] & BIT(watched) -> ARMED : TOO_LATE) }

inline apply(i)
{
	if
	:: what == CREATED ->
		seen[i] = seen[i] | BIT(node[i]);
		if
		:: state[i] == CREATING && connected[i] ->
			state[i] = PRESENT; proven[i] = (age[i] == FRESH)
		:: else
		fi
	:: what < CREATED ->
		seen[i] = seen[i] & ~BIT(what - DELETED);
		if
		:: connected[i] ->
			fire(near[i], near_of[i], what - DELETED);
			fire(far[i], far_of[i], what - DELETED);
			/* nobody else deletes our node: the session has expired */
			if :: what - DELETED == node[i] -> over[i] = true :: else fi
		:: else
		fi
	:: what == CHECKED ->
		/* an answer that has lain unread proves nothing */
		if :: age[i] == FRESH -> proven[i] = true :: else fi;
		if :: reply[i] == AWAITS_CHECK -> reply[i] = ANSWERED :: else fi
	:: what == SYNCED ->
		if :: reply[i] == AWAITS_SYNC -> reply[i] = ANSWERED :: else fi
	fi;
	what = 0
}

/* The network, the servers, the keeper of each session, and what goes wrong */
#define NET(i) \
	:: d_step { nempty(todo[i]) -> todo[i]?what; apply(i) } \
	ANSWER(i, own[i], node[i], true) \
	ANSWER(i, far[i], far_of[i], own[i] != PENDING) \
	ANSWER(i, near[i], near_of[i], own[i] != PENDING && far[i] != PENDING) \
	:: d_step { breaks > 0 && connected[i] && node[i] != NONE -> \
		breaks--; connected[i] = false; \
		do \
		:: todo[i]??[CHECKED] -> todo[i]??CHECKED \
		:: todo[i]??[SYNCED] -> todo[i]??SYNCED \
		:: !todo[i]??[CHECKED] && !todo[i]??[SYNCED] -> break \
		od; \
		if :: reply[i] == AWAITS_SYNC || reply[i] == AWAITS_CHECK -> reply[i] = CUT_OFF :: else fi; \
		if :: state[i] == CREATING -> state[i] = UNSURE :: else fi; \
		cut(near[i]); cut(far[i]); cut(own[i]) } \
	:: d_step { !connected[i] && !done[i] -> \
		connected[i] = true; \
		if \
		:: node[i] != NONE && !EXISTS(i) -> over[i] = true \
		:: else -> epoch[i]++; \
			near[i] = NO_WATCH; far[i] = NO_WATCH; own[i] = NO_WATCH; \
			near_of[i] = NONE; far_of[i] = NONE \
		fi } \
	/* a heartbeat: of the next in line, and of all others, which proves nothing */ \
	:: d_step { connected[i] && EXISTS(i) && age[i] != FRESH && state[i] == PRESENT && \
			len(todo[i]) < LAG -> age[i] = FRESH; todo[i]!CHECKED } \
	:: d_step { connected[i] && EXISTS(i) && age[i] != FRESH && state[i] == PRESENT -> \
			age[i] = FRESH } \
	:: d_step { ageings > 0 && EXISTS(i) && age[i] > SPENT -> \
		ageings--; age[i]--; proven[i] = false } \
	:: d_step { EXISTS(i) && age[i] == SPENT && ROOM -> delete_node(i) }

active proctype net()
{
	byte what;

end:
	do
	NET(0)
	NET(1)
	NET(2)
	od
}

inline finish(i)
{
	d_step { leave(i); done[i] = true; connected[i] = false; over[i] = false; epoch[i] = 0; age[i] = SPENT }
}

/* the local clock says that nothing was heard for a whole timeout */
#define FORFEITED(i)	(!connected[i] && age[i] == SPENT)

/* the check that goes along with a list, or zkb_prove behind it, or behind an event: true if answered */
inline ask_quorum(i)
{
	if
	:: d_step { connected[i] && EXISTS(i) && len(todo[i]) < LAG -> age[i] = FRESH;
			reply[i] = AWAITS_CHECK; todo[i]!CHECKED }
	:: over[i]
	:: FORFEITED(i)
	fi;
	reply[i] != AWAITS_CHECK || over[i];
	reply[i] = NO_REPLY
}

/* what was proven is what was asked, in one step: from here on, it is ours */
inline take(i)
{
	assert(FIRST(i));
	holds[i] = true; seen[i] = 0;
	near[i] = NO_WATCH; far[i] = NO_WATCH; near_of[i] = NONE; far_of[i] = NONE;
	m = 0; listed = 0; now = 0; next_is_ours = false
}

proctype session(byte i)
{
	byte m;						/* what the last list showed before us */
	byte listed;				/* the connection by which it came */
	byte now;					/* the connection when we began to look */
	bool wanted, next_is_ours;

start:
	atomic { wanted = true; next_is_ours = false; m = 0; listed = 0; now = 0 };
	if
	:: next == NODES -> goto stop
	/* who is who does not matter: they first come in this order */
	:: d_step { next < NODES && connected[i] && next >= i -> create_node(i); listed = epoch[i] }
	fi;

await_create:
	if
	:: state[i] == PRESENT && wanted -> goto list
	:: state[i] == PRESENT && !wanted -> goto drop
	:: over[i] -> goto again
	:: d_step { state[i] != PRESENT && wanted && giveups > 0 -> giveups--; wanted = false };
		goto await_create
	:: state[i] == UNSURE && connected[i] -> goto look
	fi;

look:	/* for a node whose create was not answered: sync, list, match */
#ifdef MUTANT_FORGOTTEN
	if :: !wanted -> d_step { leave(i) }; goto stop :: else fi;
#endif
#ifndef MUTANT_NO_SYNC
	if
	:: d_step { connected[i] && len(todo[i]) < LAG -> reply[i] = AWAITS_SYNC; todo[i]!SYNCED }
	:: over[i] -> goto again
	fi;
	if
	:: reply[i] == ANSWERED
	:: over[i] -> goto again
	:: reply[i] == CUT_OFF -> goto await_create
	fi;
#endif
	atomic
	{
		if
		:: over[i] -> goto again
		:: !over[i] && (seen[i] & BIT(node[i])) -> state[i] = PRESENT; goto await_create
		:: else -> leave(i); goto start
		fi
	};

list:
	if
	:: over[i] -> goto again
	:: FORFEITED(i) -> goto drop
	:: atomic { connected[i] && !over[i] && listed == epoch[i] -> goto look_at_queue }
	/* after a reconnection, the new server may lag behind */
	:: connected[i] && listed != epoch[i] ->
		if
		:: d_step { connected[i] && len(todo[i]) < LAG -> reply[i] = AWAITS_SYNC; todo[i]!SYNCED }
		:: over[i] || !connected[i] -> goto list
		fi;
		if
		:: reply[i] == ANSWERED
		:: over[i] || reply[i] == CUT_OFF -> goto list
		fi
	fi;

look_at_queue:
	atomic
	{
		reply[i] = NO_REPLY;
		m = BEFORE(seen[i], node[i]);
		listed = epoch[i];
#ifdef MUTANT_NEAREST
		next_is_ours = true;
#else
		next_is_ours = (m != 0 && BEFORE(m, LAST(m)) == 0);
#endif
		if
		:: m == 0 -> goto confirm
		:: else
		fi
	};

	/* zkl_watch_queue: the two nearest and our own; what is of use is kept */
	atomic
	{
		if
		:: near_of[i] == LAST(m) && (near[i] == PENDING || near[i] == ARMED || near[i] == FIRED)
		:: far_of[i] == LAST(m) && (far[i] == PENDING || far[i] == ARMED || far[i] == FIRED) ->
			near[i] = far[i]; near_of[i] = LAST(m)
		:: else -> near[i] = PENDING; near_of[i] = LAST(m)
		fi;
		if
		:: next_is_ours -> far[i] = NO_WATCH; far_of[i] = NONE
		:: !next_is_ours && far_of[i] == LAST(BEFORE(m, LAST(m))) &&
			(far[i] == PENDING || far[i] == ARMED || far[i] == FIRED)
		:: else -> far[i] = PENDING; far_of[i] = LAST(BEFORE(m, LAST(m)))
		fi;
		if
		:: own[i] == PENDING || own[i] == ARMED
		:: else -> own[i] = PENDING
		fi
	};

await_turn:	/* blocks here until something happens that look_at_watches acts on */
	if
	:: over[i] -> goto again
	:: FORFEITED(i) -> goto drop
	:: d_step { giveups > 0 -> giveups-- }; goto drop
	:: atomic { crashes > 0 && !over[i] -> crashes--; goto crash }
#ifndef MUTANT_NO_REWATCH
	:: connected[i] && listed != epoch[i] -> goto list
#endif
	/* a thread of its own reads answers: each look is a step by itself */
	:: d_step { connected[i] && listed == epoch[i] && (near[i] == FIRED || far[i] == FIRED) ->
			now = epoch[i] };
		goto look_at_blockers
	:: connected[i] && (near[i] == FAILED || far[i] == FAILED ||
			own[i] == FAILED) -> goto list
	fi;

look_at_blockers:
	atomic
	{
		if
		:: near[i] == FIRED && next_is_ours && epoch[i] == now &&
			own[i] == ARMED && listed == epoch[i] && connected[i] && !over[i] -> skip
		:: else -> goto list
		fi
	};

confirm_event:
	atomic
	{
		if
		:: proven[i] && connected[i] && !over[i] ->
#ifdef WITNESS_HANDOVER
			assert(false);			/* this way is taken */
#endif
			take(i); goto granted
#ifdef MUTANT_NO_PROOF
		:: else -> take(i); goto granted
#else
		:: else -> goto confirm
#endif
		fi
	};

confirm:	/* zkl_confirm_turn, after a list that shows nobody before us, or an event */
	atomic
	{
		if
		:: over[i] -> goto again
		:: !over[i] && FORFEITED(i) -> goto drop
		:: !over[i] && connected[i] && proven[i] -> take(i); goto granted
#ifdef MUTANT_NO_PROOF
		:: !over[i] && connected[i] && !proven[i] -> take(i); goto granted
#else
		:: !over[i] && connected[i] && !proven[i]
#endif
		fi
	};
	ask_quorum(i);
	atomic
	{
		if
		:: proven[i] && connected[i] && !over[i] -> take(i); goto granted
		:: else -> goto confirm
		fi
	};

granted:
guard:
#ifndef MUTANT_NO_GUARD
	if
	:: over[i] -> goto again
	:: atomic { crashes > 0 && !over[i] -> crashes--; goto crash }
	:: FORFEITED(i) -> goto drop
	:: proven[i]
	:: !proven[i] && connected[i] && !over[i] -> ask_quorum(i);
		if :: proven[i] && !over[i] :: else -> goto guard fi
	fi;
#endif

commit:	/* the waits in between are bounded: zkl_bound_waits */
	atomic
	{
		if
#if !defined(MUTANT_NO_BOUND) && !defined(MUTANT_NO_GUARD)
		:: age[i] == SPENT || over[i]	/* 40001 */
#endif
		:: else -> assert(FIRST(i))
		fi
	};

drop:	/* deleted now, or as soon as there is a connection */
#ifdef MUTANT_LEFT_BEHIND
	if :: !wanted -> d_step { leave(i) }; goto stop :: else fi;
#endif
	if
	:: over[i] -> goto again
	:: d_step { connected[i] && EXISTS(i) && ROOM && !over[i] -> delete_node(i); leave(i) }
	fi;
	goto next_round;

again:	/* the session is over: the next call opens another one */
	atomic { over[i] -> leave(i); over[i] = false; connected[i] = true; epoch[i] = 0 };

next_round:
	if
	:: next < NODES -> goto start
	:: goto stop
	fi;

crash:	/* killed: only the leader's clock ends the session */
	atomic
	{
		done[i] = true; connected[i] = false; proven[i] = false; age[i] = SPENT;
		do :: nempty(todo[i]) -> todo[i]?_ :: empty(todo[i]) -> break od
	};
	!EXISTS(i);

stop:
	finish(i)
}

init
{
	atomic
	{
		run session(0); run session(1); run session(2);
	}
	/* this is how each run ends */
	done[0] && done[1] && done[2] && leader == 0
}

/*
 * claim.pml
 *	  Once per period: the mark that COMMIT writes under the lock, and that the
 *	  release makes final or takes back, while answers are lost, requests are
 *	  carried out late, sessions expire and processes are killed.
 *
 * It is written before the code.
 *
 * What stands for what:
 *
 *	- The queue is a set of nodes; the first that exists has the turn, and knows
 *	  it when it begins: queue.pml shows why.  A node is used once.
 *	- A claim is a number, as its mark's UUID is.  A mark is a claim, a state, a
 *	  period, and the version of its node.  A node of the mark that does not exist
 *	  is one of version 0 that says nothing, and creating it is the first write.
 *	- A write is a step of the ensemble, between its request and its answer.  When
 *	  a connection breaks, or the wait for the answer is canceled, it is "late":
 *	  the ensemble carries it out at any time while the session lives, also after
 *	  what a later connection sends, or never.
 *	- A read is one step.  Its answer comes on the session that has the node, so
 *	  it shows nothing that is later than the session's end.  One of an older
 *	  state, though not older than the grant, is one that was made earlier.
 *	- Periods are 1 and 2.  Each claim is for either, by any claimer that is free.
 *	- Claimer 0 can have a session-scope hold (HOLD), so that all its claims are
 *	  under one node, which goes when it unlocks.
 *	- "before" is what the mark said before, which an abort puts back.
 *	- An abort is a step, at any time after the mark: a serialization failure, a
 *	  remote server that fails, and so on.
 *	- When its session has expired, a claimer may still say what became of its
 *	  claim, by its next one, or may not.
 *	- A claimer that holds nothing can begin another session before it knows what
 *	  became of its mark, since a setting has changed.  The old session lives on
 *	  with its node and its late writes, until it expires at any time, and the new
 *	  one settles the mark without that node.
 *	- Whoever has its mark forgotten by an administrator while it may yet commit,
 *	  or whose node somebody deletes, is not protected: "excused", "orphaned".
 *
 * What is verified:
 *
 *	- No two claims of one period commit, and no mark is written for a period
 *	  when it, or a later one, has been committed.
 *	- Who is told that a period is claimed is told so by a claim that has been
 *	  committed, or whose session has ended between mark and release.  So a
 *	  claim that fails leaves the period to the next.  A mark that its
 *	  claimer has settled in another session does not come later.
 *	- At the end the mark is pending only for such a claim, done only for one
 *	  that committed, and not earlier than what was committed.
 *	- No run ends with a claimer that waits.
 *
 * What is left out:
 *
 *	- Several claims in a transaction, several paths: one multi has them all.
 *	- The guard; holds that are lost before the mark, other than by their node.
 *	- Refusals (ACLs, quotas); marks that somebody else writes.
 *	- Two late writes of a session come in their order, or not at all.
 *	- What befalls a session that settles the mark of an earlier one.
 *	- More than CLAIMS claims, LATES late writes, EXPIRIES sessions that expire
 *	  with their process alive, FAILS aborts after the mark, CRASHES of processes,
 *	  DELETES of queue nodes by hand, FORGETS of the mark, REPLACES (none or one)
 *	  of a session.
 *
 * A macro breaks the protocol on purpose: dev/models lists them.
 */
#ifndef CLAIMS
#define CLAIMS	3
#endif
#ifndef LATES
#define LATES	0
#endif
#ifndef EXPIRIES
#define EXPIRIES	0
#endif
#ifndef FAILS
#define FAILS	0
#endif
#ifndef CRASHES
#define CRASHES	0
#endif
#ifndef DELETES
#define DELETES	0
#endif
#ifndef FORGETS
#define FORGETS	0
#endif
#ifndef REPLACES
#define REPLACES	0
#endif

#define N		3
#define NONE	15

#define BIT(number)			(1 << (number))
#define BEFORE(set, node)	((set) & (BIT(node) - 1))

/* what a mark says, in a byte: its claim, state and period */
#define PENDING		4
#define DONE		8
#define SAYS(claim, state, period)	(((claim) << 4) | (state) | (period))
#define CLAIM(mark)		((mark) >> 4)
#define STATE(mark)		((mark) & 12)
#define PERIOD(mark)	((mark) & 3)

/* requests: a multi, with a check of our queue node or with its delete, if any */
#define NO_REQUEST	0
#define MARK		1
#define WRITE		2

/* answers */
#define NO_ANSWER	0
#define OK			1
#define BAD_VERSION	2
#define NO_NODE		3
#define DOUBT		4
#define EXPIRED		5

/* the ensemble */
byte mark, version;				/* the mark, its node's version */
byte nodes;						/* those of the queue that exist */
byte next_node;
byte next_claim = 1;
chan late[N] = [2] of { byte, byte, byte, byte };

/* the claimers */
byte node[N] = NONE;
byte claim[N];
byte request[N], request_node[N], request_version[N], request_mark[N], answer[N];
bool over[N];					/* the session has expired */
bool dead[N], done[N];
byte came;

/* a session that was replaced, and lives: its node, its claim until that is settled */
byte old_node = NONE, old_claim;
chan old_late = [2] of { byte, byte, byte, byte };
bool moved[N];

/* claims, by number, and periods */
byte marked, orphaned, committed, excused, periods;

byte lates = LATES, expiries = EXPIRIES, fails = FAILS, crashes = CRASHES;
byte deletes = DELETES, forgets = FORGETS, replaces = REPLACES;

#define EXISTS(i)	(node[i] != NONE && (nodes & BIT(node[i])))
#define FIRST(i)	(EXISTS(i) && BEFORE(nodes, node[i]) == 0)

/* a period that is not before this one was committed */
#define PASSED(period)	(periods >= BIT(period))

/*
 * Whether a mark is good for telling somebody that its period is claimed
 */
#define HOLDS_GOOD(m) \
	((STATE(m) == DONE && (committed & BIT(CLAIM(m)))) || \
	 (STATE(m) == PENDING && (orphaned & BIT(CLAIM(m)))))

/* The queue node is gone, and not by a release */
inline remove_node(of_node, of_claim)
{
	nodes = nodes & ~BIT(of_node);
	if
	:: STATE(mark) == PENDING && CLAIM(mark) == of_claim -> orphaned = orphaned | BIT(of_claim)
	:: else
	fi
}

/* The ensemble carries out a multi */
inline carry_out(kind, at, of_version, says, result)
{
	if
#ifndef MUTANT_NO_CHECK
	:: kind == MARK && !(nodes & BIT(at)) -> result = NO_NODE
#endif
	:: kind == WRITE && at != NONE && !(nodes & BIT(at)) -> result = NO_NODE
	:: else ->
		if
#ifdef MUTANT_MARK_ANY_VERSION
		:: kind == WRITE && version != of_version -> result = BAD_VERSION
#elif defined(MUTANT_WRITE_ANY_VERSION)
		:: kind == MARK && version != of_version -> result = BAD_VERSION
#else
		:: version != of_version -> result = BAD_VERSION
#endif
		:: else ->
			/* the word of a claimer whose session had ended */
			if
			:: kind == WRITE && says != mark && STATE(mark) == PENDING ->
				orphaned = orphaned & ~BIT(CLAIM(mark))
			:: else
			fi;
			mark = says; version++;
			if
			:: kind == MARK ->
				assert(!PASSED(PERIOD(says)) || (excused & BIT(CLAIM(says))));
				marked = marked | BIT(CLAIM(says))
			:: kind == WRITE && at != NONE -> nodes = nodes & ~BIT(at)
			:: else
			fi;
			result = OK
		fi
	fi
}

inline no_request(i)
{
	request[i] = NO_REQUEST; answer[i] = NO_ANSWER;
	request_node[i] = 0; request_version[i] = 0; request_mark[i] = 0
}

inline send(i, kind, at, of_version, says)
{
	request[i] = kind; request_node[i] = at; request_version[i] = of_version; request_mark[i] = says;
	answer[i] = NO_ANSWER
}

/* The wait for the answer is over, and the write is still to come, or was */
inline doubt(i)
{
	late[i]!request[i], request_node[i], request_version[i], request_mark[i];
	answer[i] = DOUBT
}

/* Another session, while the old one lives */
inline replace(i)
{
	replaces--;
	moved[i] = true; old_claim = claim[i]; old_node = node[i];
	do :: nempty(late[i]) -> late[i]?kind, at, of_version, says; old_late!kind, at, of_version, says
	:: empty(late[i]) -> break od;
	kind = 0; at = 0; of_version = 0; says = 0;
#ifdef MUTANT_NODE_FIRST
	nodes = nodes & ~BIT(node[i]);
#endif
	node[i] = NONE
}

/* So the end of the old session is no excuse any longer */
inline is_settled(i)
{
	if
	:: moved[i] -> moved[i] = false; old_claim = 0
	:: else
	fi
}

inline expire(i)
{
	remove_node(node[i], claim[i]);
	do :: nempty(late[i]) -> late[i]?_, _, _, _ :: empty(late[i]) -> break od;
	over[i] = true;
	if :: request[i] != NO_REQUEST && answer[i] == NO_ANSWER -> answer[i] = EXPIRED :: else fi
}

#define ENSEMBLE(i) \
	:: d_step { request[i] != NO_REQUEST && answer[i] == NO_ANSWER -> \
		carry_out(request[i], request_node[i], request_version[i], request_mark[i], answer[i]) } \
	:: d_step { lates > 0 && request[i] != NO_REQUEST && answer[i] == NO_ANSWER -> lates--; doubt(i) } \
	:: d_step { nempty(late[i]) -> late[i]?kind, at, of_version, says; \
		carry_out(kind, at, of_version, says, result); \
		kind = 0; at = 0; of_version = 0; says = 0; result = 0 } \
	:: d_step { nempty(late[i]) -> late[i]?_, _, _, _ } \
	:: d_step { expiries > 0 && EXISTS(i) && !dead[i] -> expiries--; expire(i) } \
	:: d_step { deletes > 0 && FIRST(i) -> deletes--; remove_node(node[i], claim[i]) } \
	FORFEIT(i) \
	:: d_step { crashes > 0 && claim[i] != 0 && !done[i] && !dead[i] -> crashes--; dead[i] = true; \
		if :: request[i] != NO_REQUEST && answer[i] == NO_ANSWER -> late[i]!request[i], request_node[i], \
			request_version[i], request_mark[i] :: else fi; no_request(i) } \
	:: d_step { dead[i] && !over[i] -> expire(i); done[i] = true }

/* nothing was heard for a whole timeout, though the session lives */
#ifdef MUTANT_FORFEITED
#define FORFEIT(i) \
	:: d_step { EXISTS(i) && request[i] == NO_REQUEST && (marked & BIT(claim[i])) -> nodes = nodes & ~BIT(node[i]) }
#else
#define FORFEIT(i)
#endif

active proctype ensemble()
{
	byte kind, at, of_version, says, result;

end:
	do
	ENSEMBLE(0)
	ENSEMBLE(1)
	ENSEMBLE(2)
	:: d_step { nempty(old_late) -> old_late?kind, at, of_version, says;
		carry_out(kind, at, of_version, says, result);
		kind = 0; at = 0; of_version = 0; says = 0; result = 0 }
	:: d_step { nempty(old_late) -> old_late?_, _, _, _ }
	:: d_step { old_node != NONE -> remove_node(old_node, old_claim);
		do :: nempty(old_late) -> old_late?_, _, _, _ :: empty(old_late) -> break od;
		old_node = NONE }
	/* zk_claim_forget */
	:: d_step { forgets > 0 && mark != 0 -> forgets--;
		excused = excused | marked; periods = 0;
		mark = 0;
#ifdef MUTANT_FORGET_DELETES
		version = 0
#else
		version++
#endif
		}
	od
}

/* who is who does not matter: those that are alike first come in this order */
#ifdef HOLD
#define STAYS(i)	((i) == 0)
#define IS_NEXT(i)	((i) < 2 || (came & BIT((i) - 1)))
#else
#define STAYS(i)	false
#define IS_NEXT(i)	((i) == 0 || (came & BIT((i) - 1)))
#endif

/* our node, for a multi that deletes it; or none */
#define TO_DELETE(i)	(STAYS(i) || node[i] == NONE -> NONE : node[i])

inline forget_node(i)
{
	nodes = nodes & ~BIT(node[i]); node[i] = NONE
}

proctype claimer(byte i)
{
	byte period, before, read_version, wanted;
	byte kind, at, of_version, says;
	bool wrote;					/* our mark, as we know */
	bool won;
#ifdef MUTANT_PEEK
	bool peeked;
#endif

{
	skip;
start:
	atomic
	{
		period = 0; before = 0; read_version = 0; wanted = 0; wrote = false; won = false;
		claim[i] = 0; no_request(i);
		if
		:: over[i] -> over[i] = false; node[i] = NONE
		:: else
		fi
	};
	if
	:: atomic { next_claim <= CLAIMS && IS_NEXT(i) ->
			came = came | BIT(i);
			if
			:: node[i] == NONE -> node[i] = next_node; nodes = nodes | BIT(next_node); next_node++
			:: else
			fi;
			claim[i] = next_claim; next_claim++;
			if :: period = 1 :: period = 2 fi;
#ifdef MUTANT_READ_FIRST
			before = mark; read_version = version
#endif
		}
	:: atomic { IS_NEXT(i) -> came = came | BIT(i); goto stop }
	fi;

	if
	:: over[i] -> goto start
	:: FIRST(i)
	:: !EXISTS(i) && !over[i] -> atomic { node[i] = NONE; goto start }
	fi;

read:
	atomic
	{
		if
		:: over[i] -> goto start
		/* the hold is lost: an error, and not "false" */
#ifndef MUTANT_LOST_READ
		:: !over[i] && !EXISTS(i) -> node[i] = NONE; goto start
		:: !over[i] && EXISTS(i) ->
#else
		:: !over[i] ->
#endif
#ifdef MUTANT_READ_FIRST
			if :: PERIOD(before) >= period :: else -> before = mark; read_version = version fi;
#else
			before = mark; read_version = version;
#endif
#ifdef MUTANT_PENDING
			if :: STATE(before) == DONE && PERIOD(before) >= period ->
#else
			if :: PERIOD(before) >= period ->
#endif
				assert(HOLDS_GOOD(before));
				goto release
			:: else
			fi
		fi
	};

	/* PRE_COMMIT */
	d_step { send(i, MARK, node[i], read_version, SAYS(claim[i], PENDING, period)) };
await_mark:
	if
	:: d_step { answer[i] == OK -> no_request(i); wrote = true; read_version++ }
	:: answer[i] == BAD_VERSION -> atomic { no_request(i); goto read_again }
	:: answer[i] == BAD_VERSION -> atomic { no_request(i); goto release }	/* 40001 */
	:: answer[i] == NO_NODE -> atomic { no_request(i); node[i] = NONE; goto start }
	:: answer[i] == DOUBT -> atomic { no_request(i);
#ifdef MUTANT_NO_UNDO
			goto release
#elif defined(MUTANT_BLIND)
			wrote = true; read_version++; goto settle
#else
			goto look
#endif
		}
	:: answer[i] == EXPIRED -> atomic { no_request(i); goto look }
	fi;

	if
	:: atomic
		{
			won = true;
			committed = committed | BIT(claim[i]);
			if
			:: excused & BIT(claim[i])
			:: else -> assert(!(periods & BIT(period))); periods = periods | BIT(period)
			fi
		}
	:: d_step { fails > 0 -> fails-- }
	fi;
#ifdef MUTANT_APART
	d_step { if :: EXISTS(i) && !STAYS(i) -> forget_node(i) :: else fi };
#endif

settle:	/* the mark is ours, and of this version */
	if
	:: atomic { replaces > 0 && !STAYS(i) && !over[i] && node[i] != NONE -> replace(i) }; goto look
	:: skip
	fi;
	atomic
	{
		wanted = (won -> SAYS(claim[i], DONE, period) : before);
#ifdef MUTANT_EMPTY
		if :: !won -> wanted = 0 :: else fi;
#endif
		if
		:: over[i] -> node[i] = NONE
		:: else
		fi;
		send(i, WRITE, TO_DELETE(i), read_version, wanted)
	};
await_settled:
	if
	:: answer[i] == OK -> atomic { no_request(i);
#ifdef WITNESS_UNDONE
			assert(!wrote || won);	/* this way is taken */
#endif
			goto settled }
#ifdef MUTANT_FINAL
	:: answer[i] == BAD_VERSION -> atomic { no_request(i); goto release }
#else
	:: answer[i] == BAD_VERSION -> atomic { no_request(i); goto look }
#endif
	/* deleted by somebody, or by ourselves */
	:: answer[i] == NO_NODE -> atomic { no_request(i); node[i] = NONE; goto look }
	:: answer[i] == DOUBT -> atomic { no_request(i); goto look }
	:: answer[i] == EXPIRED -> atomic { no_request(i); node[i] = NONE; goto look }
	fi;

look:	/* sync and read */
	if
	:: atomic { replaces > 0 && !STAYS(i) && !over[i] && node[i] != NONE -> replace(i) }
	:: skip
	fi;
	atomic
	{
#ifdef MUTANT_UNSETTLED
		if :: STAYS(i) && EXISTS(i) -> forget_node(i) :: else fi;
#endif
		wanted = 0;
		if
		:: over[i] -> node[i] = NONE
		:: else
		fi;
#ifdef MUTANT_PEEK
		/* the next claim has begun */
		if :: !over[i] && EXISTS(i) && !peeked && PERIOD(mark) == period -> peeked = true; assert(HOLDS_GOOD(mark)) :: skip fi;
#endif
		if
		/* the session has expired, and nothing more is said */
		:: over[i] -> goto start
#ifdef MUTANT_NO_UUID
		:: STATE(mark) == PENDING && PERIOD(mark) == period ->
#else
		:: STATE(mark) == PENDING && CLAIM(mark) == claim[i] ->
#endif
			wrote = true; read_version = version; goto settle
		:: else ->
			if
			/* it was written, and was said to be final, undone, or replaced */
			:: wrote || (node[i] == NONE && !moved[i]) -> goto release
#ifdef MUTANT_MOVED
			:: !wrote && moved[i] -> goto release
#else
			/* nor is it of the version, and says, what it was to replace */
			:: !wrote && moved[i] && (version != read_version || mark != before) -> goto release
			:: !wrote && moved[i] && version == read_version && mark == before ->
				send(i, WRITE, NONE, version, mark)
#endif
			/* it was not, but may still be: not after this one */
#ifdef MUTANT_UNWRITTEN
			:: else -> goto release
#elif defined(MUTANT_UNWRITTEN_SHARED)
			:: !wrote && node[i] != NONE && STAYS(i) -> goto release
			:: !wrote && node[i] != NONE && !STAYS(i) -> send(i, WRITE, TO_DELETE(i), version, mark)
#else
			:: else -> send(i, WRITE, TO_DELETE(i), version, mark)
#endif
			fi
		fi
	};
	goto await_settled;

read_again:
	atomic
	{
		if
		:: over[i] -> goto start
		:: !over[i] && !EXISTS(i) -> node[i] = NONE; goto start
		:: !over[i] && EXISTS(i) ->
#ifdef MUTANT_OLD_BEFORE
			read_version = version;
#else
			before = mark; read_version = version;
#endif
			if
			:: PERIOD(mark) >= period ->
				assert(HOLDS_GOOD(mark));
				goto release
			:: else -> send(i, MARK, node[i], read_version, SAYS(claim[i], PENDING, period)); goto await_mark
			fi
		fi
	};

settled:
	atomic { is_settled(i); if :: !STAYS(i) -> node[i] = NONE :: else fi };
	goto start;

release:	/* without a mark */
	atomic
	{
		is_settled(i);
		if
		:: over[i]
		:: !over[i] && node[i] != NONE && !STAYS(i) -> forget_node(i)
		:: else
		fi;
		goto start
	};

stop:
	atomic
	{
		/* zk_unlock */
		if
		:: node[i] != NONE -> forget_node(i)
		:: else
		fi;
		over[i] = false;
		done[i] = true
	}
} unless { dead[i] }
}

init
{
	atomic
	{
		run claimer(0); run claimer(1); run claimer(2);
	}
	atomic
	{
		/* this is how each run ends */
		done[0] && done[1] && done[2] && nodes == 0;
		assert(mark == 0 || HOLDS_GOOD(mark));
		assert(!PASSED(PERIOD(mark) + 1))
	}
}

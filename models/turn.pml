/*
 * turn.pml
 *	  A grant without a list: one session takes a lock again and again, and
 *	  others come and go in its directory, which may be removed, made again, and
 *	  filled up.
 *
 * It follows src/zk/turn.c and zkp_comes_next in src/zk/lock_protocol.c.
 *
 * What stands for what:
 *
 *	- The others' contenders are a set of numbers, of which each may be there.
 *	  A name of somebody's own making takes any number, and counts as a create.
 *	- zxid counts transactions; epoch is its upper half, and a new one begins
 *	  with 0.  The connection breaks with it, or by itself.
 *	- A list shows what the leader has.  What a list is worth on a server that
 *	  lags behind, see queue.pml: a create's answer is never older.
 *
 * What is verified: who is granted the lock without a list is alone in the
 * queue.
 *
 * What is left out: a client that creates several nodes of the directory in one
 * transaction, which breaks it (doc/interop.md); numbers near the wrap; the
 * session's end.
 *
 * A macro breaks the code on purpose: dev/models lists them.
 */
#ifndef MOST
#define MOST	5				/* numbers */
#endif
#ifndef TURNS
#define TURNS	3
#endif
#ifndef STEPS
#define STEPS	6				/* of others, all in all */
#endif

/* zkp_comes_next, and what turn.c adds to it */
#ifdef MUTANT_NUMBER
#define IS_NEXT		true
#else
#define IS_NEXT		(mine == last + 1)
#endif
#ifdef MUTANT_EPOCH
#define SAME_CONNECTION	true
#else
#define SAME_CONNECTION	(mine_epoch == last_epoch && mine_conn == last_conn)
#endif
#ifdef MUTANT_DIRECTORY
#define SAME_DIRECTORY	true
#elif defined(MUTANT_ONE_MORE)
#define SAME_DIRECTORY	(mine_zxid - last_zxid < last + 4)
#else
#define SAME_DIRECTORY	(mine_zxid - last_zxid < last + 3)
#endif

#define BIT(n)	(1 << (n))
#define NONE	255

byte others;					/* contenders of others */
byte ours = NONE;
byte next;						/* the directory's counter */
byte zxid = 1, epoch = 1, conn = 1;
byte steps = STEPS;
bool there = true;

/* the last turn */
byte last = NONE, last_zxid, last_epoch, last_conn;
bool given_back;

proctype world()
{
	do
	:: atomic { steps > 0 && there && next < MOST -> steps--;	/* somebody comes */
			zxid++; others = others | BIT(next); next++ }
	:: atomic { steps > 0 && there && next < MOST -> steps--;	/* and has gone */
			zxid = zxid + 2; next++ }
	:: atomic { steps > 0 && others != 0 -> steps--; zxid++; others = 0 }
#ifdef OWN_NAMES
	:: atomic { steps > 0 && there && next < MOST && next + 1 < MOST -> steps--;
			zxid++; next++; others = others | BIT(next + 1) }
#endif
	:: atomic { steps > 0 && there && others == 0 && ours == NONE -> steps--;
			zxid++; there = false }
	:: atomic { steps > 0 && !there -> steps--; zxid++; there = true; next = 0 }
	/* both, and somebody's first node, in one transaction */
	:: atomic { steps > 0 && there && ours == NONE -> steps--; zxid++; next = 1; others = BIT(0) }
	:: atomic { steps > 0 && epoch < 2 -> steps--; epoch++; conn++; zxid = 0 }
	:: atomic { steps > 0 && conn < 3 -> steps--; conn++ }
	/* by hand */
	:: atomic { steps > 0 && ours != NONE -> steps--; zxid++; ours = NONE }
	:: steps == 0 -> break
	od
}

proctype session()
{
	byte turns = TURNS;
	byte mine, mine_zxid, mine_epoch, mine_conn;
	bool alone;

	do
	:: turns == 0 -> break
	:: turns > 0 ->
		turns--;
		atomic
		{
			if
			:: !there -> zxid++; there = true; next = 0
			:: else
			fi
		};
		atomic
		{
			if
			:: !there || next >= MOST -> goto end
			:: else
			fi;
			zxid++; ours = next; next++;
			mine = ours; mine_zxid = zxid; mine_epoch = epoch; mine_conn = conn;
			alone = false;
			if
			:: (last != NONE && IS_NEXT && given_back && SAME_CONNECTION && SAME_DIRECTORY) ->
				assert(others == 0);
#ifdef WITNESS_NEXT
				assert(false);	/* this way is taken */
#endif
				alone = true
			:: else
			fi
		};
		if
		:: alone
		:: !alone ->
			/* it is listed; who waits is not alone until it is granted */
			atomic
			{
				if
				:: ours == NONE -> last = NONE; goto end
				:: ours != NONE && others == 0 -> alone = true
#ifdef MUTANT_NOT_ALONE
				:: ours != NONE && (others & (BIT(ours) - 1)) == 0 -> alone = true
#endif
				:: else
				fi
			}
		fi;
		if
		:: alone -> last = mine; last_zxid = mine_zxid; last_epoch = mine_epoch; last_conn = mine_conn; given_back = false
		:: else
		fi;
		atomic
		{
			/* the delete, or somebody was faster */
			if
			:: ours != NONE -> zxid++; ours = NONE; given_back = alone && conn == last_conn
			:: else -> given_back = false
			fi
		}
	od;
end:
	skip
}

init { atomic { run world(); run session() } }

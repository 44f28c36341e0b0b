/*
 * deadlock.pml
 *	  Cycles of waits: what a waiter publishes on the board, how it reads the
 *	  others' records and queues, and how it breaks a cycle with one multi.
 *
 * It is written before the code; the design calls the steps look, publish, chase
 * and break.
 *
 * What stands for what:
 *
 *	- A node's number says whose it is, and is used once.  before[n] is what
 *	  precedes it in its queue.  An exclusive node that was made a shared one
 *	  (a downgrade) is in "shared" and, since that is its version, in "changed".
 *	- What a session writes takes effect in one step; its answer is the start
 *	  of its next one.  Reads are a step each, and each reads the newest state:
 *	  a read of an older state is one that was made earlier, followed by a wait.
 *	  That is so because nothing that is not ZooKeeper's is looked at between a
 *	  session's last write and its read: each chase begins with a write or a sync.
 *	- Who gave up tells so with the delete of its record, which the delete of its
 *	  queue node follows at any later time, while it goes on with something else:
 *	  "unwanted".
 *	- Who believes that its session is over queues again, at the end; what it had
 *	  before stands until the leader ends that session, at any later time.
 *	- Rows are local to a server.  Who waits for one does nothing, except that it
 *	  may give up.  PostgreSQL sees cycles of rows alone: there are none here.
 *	- Versions of records are counted only as far as somebody compares them, so
 *	  that an author's rewriting ends.  RACES of it come between a chaser's
 *	  reading and its multi.
 *	- SCENE has the programs.
 *
 * What is verified:
 *
 *	- When a cycle is broken, each of its waits for a lock of ZooKeeper stands in
 *	  ZooKeeper at that moment, and its session has not given it up; and there was
 *	  a moment, not before the reading in which the cycle was found first, in
 *	  which all its waits, those for rows too, stood at once.  So nobody dies who
 *	  was not in a cycle, and of each cycle nobody dies but one.
 *	- No run ends with somebody who waits.  With RUNS_END, spin can be asked
 *	  whether all runs end (README.md): so a cycle does not stay.
 *
 * What is left out:
 *
 *	- Semaphores, several locks at once, zk_try_lock, peers; nodes that somebody
 *	  deletes by hand, refusals; junk on the board.
 *	- A multi whose answer is lost; a wait that is canceled while its multi is
 *	  under way; a chase that loses its connection.
 *	- Two looks that see the same waits stand for one instant: here a look is one.
 *	- That a delete takes longer than a local wait must have lasted to be counted:
 *	  the model has it carried out by then (see TOO_YOUNG).
 *	- A session that waits for a row while its session of ZooKeeper is over; it
 *	  counts until ZooKeeper ends that, since it has no record to compare with.
 *	- Time: that a chase is repeated soon enough.  A chase without a reason, which
 *	  the design has each tenth time, is not needed here; with PERIODIC, there is
 *	  one whenever something changes.
 *	- More than GIVEUPS waits that are given up, EXPIRIES sessions that end.
 *
 * A macro breaks the protocol on purpose: dev/models lists them.
 */
#ifndef SCENE
#define SCENE	1
#endif
#ifndef GIVEUPS
#define GIVEUPS	1
#endif
#ifndef EXPIRIES
#define EXPIRIES	0
#endif
#ifndef RACES
#define RACES	1
#endif

/* sessions, and the nodes that each can have */
#if SCENE == 7 || SCENE == 9
#define N		4
#define K		3
#else
#define N		3
#define K		4
#endif
#define NONE	15
#define FREE	7

#define BIT(n)		(1 << (n))
#define IN(set, n)	((set) & BIT(n))

/* a node's number: one for each op, and one for who queues again */
#define ID(i, k)	((i) * K + (k))
#define AGAIN(i)	(N * K + (i))
#define SESS(n)		((n) < N * K -> (n) / K : (n) - N * K)
#define MINE(i)		(((BIT(K) - 1) << ((i) * K)) | BIT(AGAIN(i)))

/* what a transaction does next */
#define XQ(q)	(q)				/* takes a lock of ZooKeeper */
#define SQ(q)	(4 + (q))		/* shared */
#define DOWN(q)	(8 + (q))		/* makes its exclusive hold a shared one */
#define ROW(r)	(12 + (r))		/* locks a row of its server */
#define END		16				/* commits */

/*
 * The programs.  An op is chosen by session i when it has done k.
 */
#if SCENE == 1	/* everybody holds one lock and takes another: cycles of two and of three */
inline choose()
{
	if
	:: k == 0 -> op = XQ(i)
	:: k == 1 -> op = XQ((i + 1) % 3)
	:: k == 1 -> op = XQ((i + 2) % 3)
	:: k == 2 -> op = END
	fi
}
#elif SCENE == 2	/* a writer waits between two readers, one of whom waits for the other */
inline choose()
{
	if
	:: i == 0 && k == 0 -> op = SQ(0)
	:: i == 0 && k == 1 -> op = XQ(1)
	:: i == 1 && k == 0 -> op = XQ(0)
	:: i == 1 && k == 1 -> op = DOWN(0)
	:: i == 2 && k == 0 -> op = XQ(1)
	:: i == 2 && k == 1 -> op = SQ(0)
	:: else -> op = END
	fi
}
#elif SCENE == 3	/* a writer turns reader; a reader waits for it */
inline choose()
{
	if
	:: i == 0 && k == 0 -> op = XQ(0)
	:: i == 0 && k == 1 -> op = DOWN(0)
	:: i == 0 && k == 1 -> op = XQ(1)
	:: i == 0 && k == 2 -> op = XQ(1)
	:: i == 1 && k == 0 -> op = XQ(1)
	:: i == 1 && k == 1 -> op = SQ(0)
	:: i == 2 && k == 0 -> op = SQ(0)
	:: i == 2 && k == 1 -> op = XQ(1)
	:: else -> op = END
	fi
}
#elif SCENE == 4	/* an upgrade beside other readers */
inline choose()
{
	if
	:: i == 0 && k == 0 -> op = XQ(1)
	:: i == 0 && k == 1 -> op = SQ(0)
	:: i == 0 && k == 2 -> op = XQ(0)
	:: i == 1 && k == 0 -> op = SQ(0)
	:: i == 1 && k == 1 -> op = XQ(1)
	:: i == 1 && k == 1 -> op = XQ(0)
	:: i == 2 && k == 0 -> op = SQ(0)
	:: i == 2 && k == 1 -> op = XQ(1)
	:: else -> op = END
	fi
}
#elif SCENE == 5	/* two on one server, one on another: a row in the cycle */
inline choose()
{
	if
	:: i == 0 && k == 0 -> op = XQ(0)
	:: i == 0 && (k == 1 || k == 2) -> op = ROW(0)
	:: i == 1 && k == 0 -> op = ROW(0)
	:: i == 1 && k == 1 -> op = XQ(1)
	:: i == 2 && k == 0 -> op = XQ(1)
	:: i == 2 && k == 1 -> op = XQ(0)
	:: else -> op = END
	fi
}
#elif SCENE == 6	/* three on one server: who waits for ZooKeeper is alone, and two wait for rows */
inline choose()
{
	if
	:: i == 0 && k == 0 -> op = XQ(0)
	:: i == 0 && k == 1 -> op = ROW(0)
	:: i == 0 && k == 2 -> op = ROW(1)
	:: i == 1 && k == 0 -> op = ROW(0)
	:: i == 1 && (k == 1 || k == 2) -> op = ROW(1)
	:: i == 2 && k == 0 -> op = ROW(1)
	:: i == 2 && k == 1 -> op = XQ(0)
	:: else -> op = END
	fi
}
#elif SCENE == 7	/* two servers with two each, and a row of each in the cycle */
inline choose()
{
	if
	:: i == 0 && k == 0 -> op = XQ(0)
	:: i == 0 && (k == 1 || k == 2) -> op = ROW(0)
	:: i == 1 && k == 0 -> op = ROW(0)
	:: i == 1 && k == 1 -> op = XQ(1)
	:: i == 2 && k == 0 -> op = XQ(1)
	:: i == 2 && k == 1 -> op = ROW(1)
	:: i == 3 && k == 0 -> op = ROW(1)
	:: i == 3 && k == 1 -> op = XQ(2)
	:: i == 3 && k == 2 -> op = XQ(0)
	:: else -> op = END
	fi
}
#elif SCENE == 8	/* one gives up, or loses its session, and waits for another lock */
inline choose()
{
	if
	:: i == 0 && k == 0 -> op = XQ(0)
	:: i == 0 && k == 1 -> op = XQ(1)
	:: i == 0 && k == 2 -> op = XQ(2)
	:: i == 1 && k == 0 -> op = XQ(1)
	:: i == 2 && k == 0 -> op = XQ(2)
	:: i == 2 && k == 1 -> op = XQ(0)
	:: i == 2 && k == 1 -> op = XQ(1)
	:: else -> op = END
	fi
}
#elif SCENE == 9	/* a queue of four, whose first one goes: the last one watches the other two */
#define SEEN(q, i)	(queue[q] & BIT(ID(i, 0)))
inline choose()
{
	if
	:: i == 0 && k == 0 -> op = XQ(0)
	:: i == 0 && k == 1 && SEEN(0, 2) -> op = END
	:: i == 1 && k == 0 && SEEN(0, 0) -> op = XQ(0)
	:: i == 1 && k == 1 && SEEN(1, 3) -> op = XQ(1)
	:: i == 2 && k == 0 && SEEN(0, 1) -> op = XQ(0)
	:: i == 3 && k == 0 -> op = XQ(1)
	:: i == 3 && k == 1 && SEEN(0, 2) -> op = XQ(0)
	:: (i == 1 || i == 3) && k == 2 || i == 2 && k == 1 -> op = END
	fi
}
#endif

#define NODES	(N * K + (N == 3 -> 3 : 0))
/* the ensemble: the nodes of each queue, and which of them came before a node */
short queue[3];
short before[15];
short shared;					/* nodes that say so, now */
short changed;					/* nodes that have been rewritten: version 1 */
short second;					/* nodes of a second session of ZooKeeper */
byte rec[N] = NONE;				/* the board: which queue node a record names */
byte rec_local[N];				/* and which local waits */
byte rec_second;				/* records of a second session */
#define NODES_THAT_EXIST	(queue[0] | queue[1] | queue[2])

/* PostgreSQL */
byte row[2] = FREE;				/* who has it locked */
byte row_wait[N] = FREE;		/* the row that a session waits for */
byte nth[N];					/* its first or its second such wait */
#define WAIT(j)		BIT(2 * (j) + nth[j])

/* sessions */
byte wait[N] = NONE;			/* the node with which it waits */
byte is_second;					/* sessions that have opened another session of ZooKeeper */
byte was[N] = NONE;				/* and with which its last session did, until that is ended */
short unwanted;					/* nodes of waits that were given up, to be deleted */

/* versions, as far as somebody compares them */
byte fresh[N];					/* who has read this record as it is now */
byte counted[N];				/* of whose candidate a record is a part */
byte writes[N * N];				/* how often it was written since */
byte candidates, chasing;
byte dirty;						/* for whom something has changed since its chase began */
byte moved;						/* for whom local waits have changed since its look */

/* the ghost: real cycles since a reading began, the latest two; the one that was read, once it is known */
int stood[N], before_it[N], sought[N];

byte giveups = GIVEUPS, expiries = EXPIRIES, races = RACES;

hidden byte m, a, b, reach;
hidden short H, V, B, O;
hidden byte zk[4], pg[4];
hidden int cycle;

#define SECOND(n)	((second & BIT(n)) != 0)
#define OWN(n)		(MINE(SESS(n)) & (SECOND(n) -> second : ~second))
#define GRANTED(n)	((before[n] & ~OWN(n) & (IN(shared, n) -> ~shared : ~0)) == 0)

#ifdef PERIODIC
#define AUTHORS	((rec[0] != NONE) | ((rec[1] != NONE) << 1) | ((rec[2] != NONE) << 2) | ((rec[N - 1] != NONE) << (N - 1)))
#define stir()	dirty = dirty | candidates | chasing | AUTHORS
#else
#define stir()	dirty = dirty | candidates | chasing
#endif

/*
 * The holders that a waiting node waits for (H), and the waiting writer that is
 * between them and a reader (V).
 */
inline holders(n)
{
	H = 0; V = 0;
	B = before[n] & ~O;
	if
	:: IN(shared, n) ->
		B = B & ~shared;
		m = 0;
		do
		:: m == NODES -> B = 0; break
		:: m < NODES && IN(B, m) && (before[m] & B) == 0 ->
			if
			:: GRANTED(m) -> H = BIT(m); B = 0
			:: else -> V = BIT(m); B = before[m] & ~O
			fi;
			break
		:: else -> m++
		od
	:: else
	fi;
	m = 0;
	do
	:: m == NODES -> break
	:: m < NODES && IN(B, m) && GRANTED(m) -> H = H | BIT(m); m++
	:: else -> m++
	od;
	B = 0
}

/* reach: who can be reacheded from j in the graph zk and pg */
inline closure(j)
{
	reach = zk[j] | pg[j];
	b = 0;
	do
	:: b == N * N -> break
	:: b < N * N && IN(reach, b % N) -> reach = reach | zk[b % N] | pg[b % N]; b++
	:: else -> b++
	od
}

/* adds the holders that a node of a waits for */
inline add_truth(n)
{
	O = OWN(n); holders(n);
	m = 0;
	do
	:: m == NODES -> break
	:: m < NODES && IN(H, m) &&
		(SECOND(m) == (IN(is_second, SESS(m)) != 0) || was[SESS(m)] != NONE || row_wait[SESS(m)] != FREE) ->
		zk[a] = zk[a] | BIT(SESS(m)); m++
	:: else -> m++
	od
}

/*
 * Who waits for whom, in truth, for the ghost.  A session of ZooKeeper that is
 * over by its own clock counts until ZooKeeper ends it.
 */
inline truth()
{
	a = 0;
	do
	:: a == N -> break
	:: else ->
		zk[a] = 0; pg[a] = 0;
		if
		:: wait[a] != NONE -> add_truth(wait[a])
		:: wait[a] == NONE && row_wait[a] != FREE && row[row_wait[a]] != FREE -> pg[a] = BIT(row[row_wait[a]])
		:: else
		fi;
		if
		:: was[a] != NONE -> add_truth(was[a])
		:: else
		fi;
		a++
	od
}

/* the waits of the cycles through j */
inline real_cycle(j)
{
	cycle = 0;
	closure(j);
	if
	:: IN(reach, j) ->
		m = reach;
		a = 0;
		do
		:: a == N -> break
		:: a < N && IN(m, a) ->
			closure(a);
			if
			:: IN(reach, j) ->
				if
				:: wait[a] != NONE -> cycle = cycle | BIT(wait[a])
				:: row_wait[a] != FREE -> cycle = cycle | (WAIT(a) << 16)
				:: else
				fi;
				if :: was[a] != NONE -> cycle = cycle | BIT(was[a]) :: else fi
			:: else
			fi;
			a++
		:: else -> a++
		od
	:: else
	fi
}

inline see(j)
{
	if
	:: IN(candidates | chasing, j) ->
		real_cycle(j);
		if
		:: cycle != 0 && sought[j] == 0 && cycle != stood[j] -> before_it[j] = stood[j]; stood[j] = cycle
		:: sought[j] != 0 && (sought[j] & ~cycle) == 0 -> stood[j] = sought[j]
		:: else
		fi
	:: else
	fi
}

/* from now on this one cycle counts */
#ifdef MUTANT_NO_WAITSTART
#define seek()	skip
#define seek_late()	seek_now()
#else
#define seek()	seek_now()
#define seek_late()	skip
#endif
inline seek_now()
{
	if
	:: sought[i] == 0 ->
		sought[i] = c_waits | (c_local << 16);
		stood[i] = ((sought[i] & ~stood[i]) && (sought[i] & ~before_it[i]) -> 0 : sought[i]);
		before_it[i] = 0
	:: else
	fi
}

inline observe()
{
	skip;
#if SCENE >= 5 && SCENE <= 7
	if
	:: candidates | chasing ->
		truth();
		see(0); see(1); see(2);
#if N == 4
		see(3);
#endif
	:: else
	fi;
	cycle = 0; a = 0; b = 0; m = 0; reach = 0; H = 0; V = 0
#endif
}

inline delete_nodes(set)
{
	queue[0] = queue[0] & ~(set); queue[1] = queue[1] & ~(set); queue[2] = queue[2] & ~(set);
	shared = shared & ~(set); changed = changed & ~(set); unwanted = unwanted & ~(set);
	m = 0;
	do
	:: m == NODES -> break
	:: else -> before[m] = (IN(set, m) -> 0 : before[m] & ~(set)); m++
	od;
	m = 0;
	stir()
}

inline create_node(n, q, is_shared)
{
	before[n] = queue[q];
	queue[q] = queue[q] | BIT(n);
	if :: is_shared -> shared = shared | BIT(n) :: else fi;
	if :: IN(is_second, i) -> second = second | BIT(n) :: else fi;
	wait[i] = n;
	stir()
}

inline delete_record(i)
{
	rec[i] = NONE; rec_local[i] = 0; rec_second = rec_second & ~BIT(i);
	fresh[i] = 0;
	stir()
}

inline free_rows(i)
{
	if :: row[0] == i -> row[0] = FREE :: else fi;
	if :: row[1] == i -> row[1] = FREE :: else fi
}

#define stir_rows()	moved = moved | (wait[0] != NONE) | ((wait[1] != NONE) << 1) | ((wait[2] != NONE) << 2) | MOVED_3
#if N == 4
#define MOVED_3	((wait[3] != NONE) << 3)
#else
#define MOVED_3	0
#endif
#define OVER(j)		(IN(is_second, j) && (NODES_THAT_EXIST & MINE(j) & ~second))
#define NODE_OF(j)	(IN(is_second, j) -> second : ~second)
#define UNWANTED(j)	(unwanted & MINE(j) & NODE_OF(j))
#define HAS_RECORD	(published == wait[i])

#ifdef MUTANT_YOUNG
#define TOO_YOUNG(j)	false
#else
#define TOO_YOUNG(j)	(UNWANTED(j) != 0)
#endif

/* seen: who waits locally for j, directly or through others */
#define BLOCKER(j)	(row_wait[j] == FREE -> FREE : row[row_wait[j]])
inline look(j, seen)
{
	seen = 0;
	a = 0;
	do
	:: a == N -> break
	:: else ->
		b = (TOO_YOUNG(a) -> FREE : BLOCKER(a));
		m = 0;
		do
		:: m == N || b == FREE -> break
		:: b == j -> seen = seen | WAIT(a); break
		:: else -> b = BLOCKER(b); m++
		od;
		a++
	od;
	a = 0; b = 0; m = 0
}

#define WAITS(j)	(BLOCKER(j) == i && !TOO_YOUNG(j))

/* versions count for whom they can still make a difference */
#ifdef MUTANT_ONE_REWRITE
#define ENOUGH	1
#else
#define ENOUGH	2
#endif
#define COUNTING(c, j)	(IN(counted[j], c) && writes[(c) * N + (j)] < ENOUGH)
#if N == 4
#define USEFUL		(COUNTING(0, i) || COUNTING(1, i) || COUNTING(2, i) || COUNTING(3, i))
#define UNRIPE		(COUNTING(i, 0) || COUNTING(i, 1) || COUNTING(i, 2) || COUNTING(i, 3))
#define WAITED_FOR	(WAITS(0) || WAITS(1) || WAITS(2) || WAITS(3))
#else
#define USEFUL		(COUNTING(0, i) || COUNTING(1, i) || COUNTING(2, i))
#define UNRIPE		(COUNTING(i, 0) || COUNTING(i, 1) || COUNTING(i, 2))
#define WAITED_FOR	(WAITS(0) || WAITS(1) || WAITS(2))
#endif


inline forget_reading()
{
	a = 0;
	do
	:: a == N -> break
	:: else ->
		rn[a] = NONE; rl[a] = 0; rh[a] = 0; rv[a] = 0; to[a] = 0;
		fresh[a] = fresh[a] & ~BIT(i);
		a++
	od;
	a = 0; own = 0; r_second = 0; r_version = 0; r_enough = 0;
	c_waits = 0; c_holders = 0; c_local = 0; c_recs = 0; c_plus = 0;
	chasing = chasing & ~BIT(i);
	if :: !IN(candidates, i) -> stood[i] = 0; before_it[i] = 0; sought[i] = 0; dirty = dirty & ~BIT(i) :: else fi
}

inline forget_candidate()
{
	a = 0;
	do
	:: a == N -> break
	:: else -> counted[a] = counted[a] & ~BIT(i); writes[i * N + a] = 0; a++
	od;
	a = 0;
	candidates = candidates & ~BIT(i);
	k_waits = 0; k_holders = 0; k_local = 0; k_version = 0;
	if :: !IN(chasing, i) -> stood[i] = 0; before_it[i] = 0; sought[i] = 0; dirty = dirty & ~BIT(i) :: else fi
}

/* the wait is over, granted or given up */
inline end_wait()
{
	wait[i] = NONE; need = false; pending = false; found = 0;
	moved = moved & ~BIT(i); dirty = dirty & ~BIT(i);
	forget_candidate()
}

/* whether a holder's node is that of the session whose record was read */
#ifdef MUTANT_OWN_OLD
#define OURS(n)		true
#else
#define OURS(n)		(SECOND(n) == (IN(is_second, i) != 0))
#endif
#ifdef MUTANT_OLD_NODE
#define THEIRS(n)	true
#else
#define THEIRS(n)	(rn[SESS(n)] == NONE || SECOND(n) == (IN(r_second, SESS(n)) != 0))
#endif
#define COUNTS(n)	(SESS(n) == i -> OURS(n) : THEIRS(n))

/* zk, pg: the graph that was read */
inline build()
{
	a = 0;
	do
	:: a == N -> break
	:: else ->
		zk[a] = 0; pg[a] = 0;
		m = 0;
		do
		:: m == NODES -> break
		:: m < NODES && IN(rh[a], m) && COUNTS(m) -> zk[a] = zk[a] | BIT(SESS(m)); m++
		:: else -> m++
		od;
		m = 0;
		do
		:: m == N -> break
		:: else ->
			if
			:: ((m == i -> own : rl[m]) >> (2 * a)) & 3 -> pg[a] = pg[a] | BIT(m)
			:: else
			fi;
			m++
		od;
		a++
	od
}

inline first_of(set)
{
	b = 0;
	do
	:: IN(set, b) -> break
	:: else -> b++
	od
}

/* A cycle through us in what was read, and its parts; c_waits is 0 without one */
inline find()
{
	build();
	reach = BIT(i);
	m = 0;
	do
	:: m == N * N -> break
	:: else ->
		a = m % N;
		if
		:: !IN(reach, a) && ((zk[a] | pg[a]) & reach) ->
			first_of((zk[a] | pg[a]) & reach);
			to[a] = b;
			reach = reach | BIT(a)
		:: else
		fi;
		m++
	od;
	if
	:: zk[i] & reach ->
		first_of(zk[i] & reach);
		to[i] = b;
		a = i;
		do
		:: true ->
			b = to[a];
			if
			:: IN(zk[a], b) ->
				c_waits = c_waits | BIT(rn[a]);
				m = 0;
				do
				:: m == NODES -> break
				:: m < NODES && IN(rh[a] & MINE(b), m) && COUNTS(m) -> c_holders = c_holders | BIT(m); m++
				:: else -> m++
				od;
#ifndef MUTANT_NO_WRITER
				c_holders = c_holders | rv[a];
#endif
				if :: a != i -> c_recs = c_recs | BIT(a) :: else fi
			:: else ->
				c_local = c_local | ((b == i -> own : rl[b]) & (3 << (2 * a)));
				if :: b != i -> c_plus = c_plus | BIT(b) :: else fi
			fi;
			a = b;
			if :: a == i -> break :: else fi
		od
	:: else
	fi;
	m = 0; a = 0; b = 0; reach = 0
}

/* The ghost: what is asserted of a cycle when it is broken */
inline check_truth()
{
	a = i;
	do
	:: true ->
		if
		:: rn[a] != NONE && IN(c_waits, rn[a]) ->
			assert(IN(NODES_THAT_EXIST & ~unwanted, rn[a]));
			O = OWN(rn[a]); holders(rn[a]);
			H = H & ~unwanted & MINE(to[a]);
			/* who waits for a row has no record to compare with */
			assert(H & (rn[to[a]] != NONE && IN(c_waits, rn[to[a]]) -> OWN(rn[to[a]]) : ~0))
		:: else
		fi;
		a = to[a];
		if :: a == i -> break :: else fi
	od;
	if
	:: c_local -> assert(((c_waits | (c_local << 16)) & ~stood[i]) == 0)
	:: else
	fi;
	a = 0; H = 0; V = 0
}

inline read_record(j)
{
	if
	:: i != j ->
		d_step
		{
			rn[j] = rec[j]; rl[j] = rec_local[j];
			r_second = r_second | (rec_second & BIT(j));
			fresh[j] = fresh[j] | BIT(i);
			if
			:: IN(counted[j], i) && writes[i * N + j] >= ENOUGH -> r_enough = r_enough | BIT(j)
			:: else
			fi;
#ifdef MUTANT_FIRST_READING
			if
			:: !IN(candidates, i) && rl[j] -> counted[j] = counted[j] | BIT(i)
			:: else
			fi
#endif
		}
	:: else
	fi
}

#ifdef MUTANT_OWN_SHARED
#define NOT_BLOCKING(n)	0
#else
#define NOT_BLOCKING(n)	OWN(n)
#endif
/* the holders that the wait of a waits for */
inline read_wait()
{
	O = NOT_BLOCKING(rn[a]); holders(rn[a]);
	rh[a] = H; rv[a] = V;
	r_version = r_version | (changed & (H | V));
	H = 0; V = 0; m = 0
}

/* for others; our own queue has been listed before */
inline read_queue(q)
{
	d_step
	{
		a = 0;
		do
		:: a == N -> break
		:: a < N && a != i && rn[a] != NONE && IN(queue[q], rn[a]) -> read_wait(); a++
		:: else -> a++
		od;
		a = 0
	}
}

#ifdef MUTANT_NO_WAITSTART
#define WAITERS(set)	(((set) | ((set) >> 1)) & 85)
#define SAME_LOCAL	(WAITERS(k_local) == WAITERS(c_local))
#else
#define SAME_LOCAL	(k_local == c_local)
#endif

#define NOTHING		0
#define BREAK		1
#define FAILS		2

inline conclude()
{
	d_step
	{
#ifdef MUTANT_LOOK_BEFORE
		own = rec_local[i];
#else
		look(i, own);
#endif
		find();
		verdict = NOTHING;
		if
		:: c_waits == 0 ->
			forget_candidate(); forget_reading()
#ifndef MUTANT_FIRST_SIGHT
		:: c_waits != 0 && c_plus != 0 &&
			!(k_waits == c_waits && k_holders == c_holders && k_version == (r_version & c_holders) &&
			 SAME_LOCAL) ->
			/* a new candidate */
			if :: IN(candidates, i) -> stood[i] = 0; sought[i] = 0; forget_candidate() :: else fi;
#ifndef MUTANT_FIRST_READING
			/* its records are read again, to count from there */
			forget_candidate();
#endif
			k_waits = c_waits; k_holders = c_holders; k_version = r_version & c_holders; k_local = c_local;
			candidates = candidates | BIT(i);
			a = 0;
			do
			:: a == N -> break
			:: else ->
				counted[a] = (IN(c_plus, a) -> counted[a] | BIT(i) : counted[a] & ~BIT(i));
				if :: !IN(c_plus, a) -> writes[i * N + a] = 0 :: else fi;
				a++
			od;
			seek();
			forget_reading();
			observe()
		:: c_waits != 0 && c_plus != 0 && IN(candidates, i) && (c_plus & ~r_enough) ->
			forget_reading()
#endif
		:: else ->
			verdict = BREAK;
			seek();
			observe()
		fi
	}
}

#ifdef MUTANT_NO_WAITER
#define CHECKED_NODES	(c_holders | BIT(wait[i]))
#else
#define CHECKED_NODES	(c_waits | c_holders)
#endif
#ifdef MUTANT_NO_VERSION
#define SAME_VERSIONS	true
#else
#define SAME_VERSIONS	((changed & c_holders) == (r_version & c_holders))
#endif
#ifdef MUTANT_NO_RECORD
#define THERE(j)	true
#else
#define THERE(j)	(!IN(c_recs, j) || rec[j] != NONE)
#endif
#ifdef MUTANT_NO_PLUS
#define SAME_RECORD(j)	true
#else
#define SAME_RECORD(j)	(!IN(c_plus, j) || IN(fresh[j], i))
#endif

/* the multi: checks, and the delete of our own node */
inline break_cycle()
{
	d_step
	{
		if
		:: (CHECKED_NODES & ~NODES_THAT_EXIST) == 0 && SAME_VERSIONS &&
			THERE(0) && THERE(1) && THERE(2) && SAME_RECORD(0) && SAME_RECORD(1) && SAME_RECORD(2) &&
			THERE(N - 1) && SAME_RECORD(N - 1) ->
			seek_late();
			check_truth();
#ifdef WITNESS_CHAIN
			assert(c_plus == 0 || own == 0);
#endif
			delete_nodes(BIT(wait[i]));
			end_wait();
			forget_reading();
			observe()
		:: else ->
			/* it was not for nothing, so this ends */
			assert(IN(dirty, i));
			verdict = NOTHING;
#ifndef MUTANT_NO_RETRY
			need = true;
#endif
			forget_reading()
		fi
	}
}

inline next_op()
{
	op = 0; target = 0; k++
}

proctype session(byte i)
{
	byte k, op, target;
	short holds;
	bool pending;				/* we have looked, and not yet written */
	byte found;					/* what we saw */
	byte published = NONE;		/* the node that our record names */
	bool need;					/* to chase, since we have published */
	byte verdict;
#ifdef MUTANT_OLD_LIST
	short listed;
#endif
	/* what was read: records; of the wait of each, the holders, and a writer before it */
	byte rn[N] = NONE, rl[N];
	short rh[N], rv[N], r_version;
	byte r_second, r_enough;
	byte own;					/* our own look */
	/* a cycle: who waits for whom, and its parts */
	byte to[N];
	short c_waits, c_holders;
	byte c_local, c_recs, c_plus;
	/* the candidate */
	short k_waits, k_holders, k_version;
	byte k_local;

next:
	atomic
	{
		choose();
		if
		:: op == END -> goto release
		:: op != END -> target = op % 4
		fi;
		if
		:: op >= ROW(0) -> goto take_row
		:: op >= DOWN(0) && op < ROW(0) ->
			d_step
			{
				H = holds & queue[target] & ~shared;
				shared = shared | H; changed = changed | H;
				H = 0; stir(); observe();
				next_op()
			};
			goto next
		:: op < DOWN(0) ->
			d_step { create_node(ID(i, k), target, op >= SQ(0)); observe() };
#ifdef MUTANT_OLD_LIST
			d_step { O = OWN(wait[i]); holders(wait[i]); listed = H };
#endif
			/* an upgrade that a waiter makes impossible fails at once */
			if
			:: holds & queue[target] ->
				d_step
				{
					H = before[wait[i]] & ~OWN(wait[i]);
					m = 0;
					do
					:: m == NODES -> break
					:: m < NODES && IN(H, m) && !GRANTED(m) -> verdict = FAILS; m++
					:: else -> m++
					od;
					m = 0; H = 0
				};
				if
				:: verdict == FAILS -> verdict = NOTHING; goto give_up
				:: verdict == NOTHING
				fi
			:: else
			fi
		fi
	};

zk_wait:
	if
#ifndef MUTANT_RECORD_LEFT
	:: d_step { GRANTED(wait[i]) && HAS_RECORD -> delete_record(i); published = NONE };
		goto granted
	:: atomic { GRANTED(wait[i]) && !HAS_RECORD -> goto granted }
#else
	:: atomic { GRANTED(wait[i]) -> goto granted }
#endif
	:: atomic { giveups > 0 -> giveups--; goto give_up }

	/* its session of ZooKeeper is over, it believes, and it queues again */
	:: d_step { expiries > 0 && !IN(is_second, i) ->
			expiries--; holds = 0;
			was[i] = wait[i]; published = NONE;
			end_wait();
			is_second = is_second | BIT(i);
			create_node(AGAIN(i), target, op >= SQ(0));
			observe() };
		goto zk_wait

	/* the periodic look */
	:: d_step { (HAS_RECORD -> (IN(moved, i) && (!pending || found == rec_local[i])) || (!pending && rec_local[i]) :
#ifdef MUTANT_ONLY_HOLDERS
			!pending && holds) ->
#else
			!pending && (holds || WAITED_FOR)) ->
#endif
			look(i, found);
			moved = moved & ~BIT(i);
#ifdef MUTANT_READ_FIRST
			if :: !HAS_RECORD -> need = true :: else fi;
#endif
			pending = true };
		goto zk_wait

	/* and what comes of it */
	:: d_step { pending &&
#ifdef MUTANT_READ_FIRST
			!need &&
#endif
#ifndef MUTANT_UNWANTED
			!UNWANTED(i) &&
#endif
			(!HAS_RECORD || found != rec_local[i]
#ifndef MUTANT_NO_REWRITE
			|| (found && (USEFUL || (races > 0 && fresh[i])))
#endif
			) ->
			if
			:: !HAS_RECORD || found != rec_local[i] ->
#ifndef MUTANT_READ_FIRST
				need = true;
#endif
				stir()
			:: else ->
				if :: !USEFUL -> races-- :: else fi;
				dirty = dirty | chasing
			fi;
#ifdef MUTANT_REUSE_RECORD
			if :: rec[i] == NONE && IN(is_second, i) -> rec_second = rec_second | BIT(i) :: else fi;
#else
			if :: IN(is_second, i) -> rec_second = rec_second | BIT(i) :: else fi;
#endif
			rec[i] = wait[i]; rec_local[i] = found; fresh[i] = 0; published = wait[i];
			a = 0;
			do
			:: a == N -> break
			:: a < N && COUNTING(a, i) -> writes[a * N + i]++; a++
			:: else -> a++
			od;
			a = 0;
			pending = false; found = 0 };
		goto zk_wait

	:: d_step { (!pending || (HAS_RECORD && found == rec_local[i]) 
#ifdef MUTANT_READ_FIRST
			|| true) && (need
#else
			) && HAS_RECORD && (need
#endif
#ifdef PERIODIC
			|| IN(dirty, i)
#endif
			|| (IN(candidates, i) && (IN(dirty, i) || !UNRIPE))) ->
			need = false;
#ifndef MUTANT_READ_FIRST
			pending = false; found = 0;
#endif
			dirty = dirty & ~BIT(i); chasing = chasing | BIT(i);
			rn[i] = wait[i];
#ifdef MUTANT_OLD_LIST
			rh[i] = listed;
#else
			a = i; read_wait(); a = 0;
#endif
			observe() };
		goto chase
	fi;

granted:
	atomic
	{
		d_step { holds = holds | BIT(wait[i]); published = NONE; end_wait(); next_op() };
		goto next
	};

chase:
	read_record(0);
	read_record(1);
	read_record(2);
#if N == 4
	read_record(3);
#endif
	read_queue(0);
	read_queue(1);
#if SCENE == 1 || SCENE == 8
	read_queue(2);
#endif
	conclude();
	if
	:: verdict == NOTHING -> goto zk_wait
	:: verdict == BREAK
	fi;
	break_cycle();
	if
	:: verdict == NOTHING -> goto zk_wait
	:: verdict == BREAK -> verdict = NOTHING; goto roll_back
	fi;

give_up:
	skip;
	d_step
	{
#if !defined(MUTANT_RECORD_LAST) && !defined(MUTANT_RECORD_LEFT)
		if :: HAS_RECORD -> delete_record(i) :: else fi;
#endif
		published = NONE;
		unwanted = unwanted | BIT(wait[i]);
		end_wait();
		next_op()
	};
	if
	:: goto next
	:: goto release
	fi;

take_row:
	atomic
	{
		target = op - ROW(0);
		if
		:: row[target] == FREE || row[target] == i ->
			row[target] = i; next_op(); goto next
		:: row[target] != FREE && row[target] != i
		fi;
		d_step { row_wait[i] = target; op = 0; target = 0; stir_rows(); observe() }
	};
	if
	:: atomic { row[row_wait[i]] == FREE ->
			d_step { row[row_wait[i]] = i; row_wait[i] = FREE; nth[i]++; stir_rows(); observe(); next_op() };
			goto next }
	:: atomic { giveups > 0 ->
			d_step { giveups--; row_wait[i] = FREE; nth[i]++; stir_rows(); next_op() };
			if
			:: goto next
			:: goto release
			fi }
	fi;

roll_back:
	skip;
	d_step { if :: published != NONE -> delete_record(i); published = NONE :: else fi };

release:
	skip;
	d_step
	{
		free_rows(i);
		if :: holds -> delete_nodes(holds) :: else fi;
		holds = 0; op = 0; target = 0; k = 0; nth[i] = 0;
		stir_rows();
		observe()
	}
}

/* carries out late what was sent, and ends sessions */
active proctype leader()
{
	byte i;

end:
	do
#ifdef RUNS_END
	:: timeout -> progress: skip
#endif
	:: d_step { unwanted ->
			stir_rows();
			i = 0;
			do
			:: IN(unwanted, i) -> break
			:: else -> i++
			od;
			delete_nodes(BIT(i));
#ifdef MUTANT_RECORD_LAST
			if
			:: rec[SESS(i)] == i -> i = SESS(i); delete_record(i)
			:: else
			fi;
#endif
			i = 0;
			observe() }
	:: d_step { OVER(0) || OVER(1) || OVER(2) ->
			i = (OVER(0) -> 0 : (OVER(1) -> 1 : 2));
			delete_nodes(MINE(i) & ~second);
			was[i] = NONE;
			if :: rec[i] != NONE && !IN(rec_second, i) -> delete_record(i) :: else fi;
			i = 0;
			observe() }
	od
}

init
{
	atomic
	{
		run session(0); run session(1); run session(2);
#if N == 4
		run session(3);
#endif
	}
}

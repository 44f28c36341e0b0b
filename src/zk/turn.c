/*-------------------------------------------------------------------------
 *
 * turn.c
 *	  Whether our new node comes right after our last one, so that it holds.
 *
 * ZooKeeper numbers the nodes that are created in a directory.  Whoever was
 * alone in a queue with number s, gave the lock back, and gets s + 1 next, knows
 * that nobody has queued in between: it is alone again, and a list would say no
 * more.  (It is not enough that nobody was ahead of it: somebody with a name of his
 * own making and a greater number may have been behind it.)  Every create
 * counts, in whatever way: sequential or not, ephemeral or not, of a container,
 * or within a multi, also what a holder that becomes a reader renames its node
 * to.  Deletes, sets, and creates that failed do not.
 *
 * The numbers are those of one incarnation of the directory.  If it was reaped
 * and made again, s + 1 may be reached anew, with others before us.  That takes
 * more transactions than there can have been: see zkp_comes_next.
 *
 * Both creates and the delete between them must be answered on one connection.
 * Answers come in the order of the requests, so it is known what became of the
 * delete when the create that was sent behind it is answered.
 *
 * To leave out the list is a bet, and who loses it pays a round trip for the
 * list.  So it is made only where it would have been won the last time, and
 * after each loss, twice as many times in a row.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "node_private.h"

/* So many paths are remembered, those that were held last */
#define MOST_TURNS			32

#define MOST_NEEDED			64

typedef struct ZkTurn
{
	TAILQ_ENTRY(ZkTurn) link;
	uint32_t	epoch;			/* the connection by which it was granted */
	int64_t		czxid;
	bool		given_back;		/* its delete was answered there */
	bool		bet;			/* the list was left out */
	int			in_a_row;		/* so often nobody came in between */
	int			needed;			/* so often is enough for a bet */
	char		name[ZKP_NAME_LEN];
	char		dir[];
} ZkTurn;

/* That of this directory, or NULL */
static ZkTurn *
find(ZkSession *s, const char *dir)
{
	ZkTurn	   *t;

	zk_assert(zks_has_mutex(s));
	TAILQ_FOREACH(t, &s->turns, link)
	{
		if (strcmp(t->dir, dir) == 0)
			break;
	}
	return t;
}

static void
forget(ZkSession *s, ZkTurn *t)
{
	TAILQ_REMOVE(&s->turns, t, link);
	s->nturns--;
	free(t);
}

bool
zkn_bet(ZkSession *s, const char *dir)
{
	bool		bet = false;
	ZkTurn	   *t;

	zks_enter(s);
	t = find(s, dir);
	if (t != NULL)
		bet = t->bet = t->epoch == s->info.epoch && t->in_a_row >= t->needed;
	zks_leave(s);
	return bet;
}

void
zkn_turn_granted_locked(ZkSession *s, const char *dir, const char *name, int64_t czxid)
{
	ZkTurn	   *t = find(s, dir);

	if (t != NULL)
		TAILQ_REMOVE(&s->turns, t, link);
	else
	{
		t = calloc(1, sizeof(ZkTurn) + strlen(dir) + 1);
		if (t == NULL)
			return;
		t->needed = 1;
		strcpy(t->dir, dir);
		if (++s->nturns > MOST_TURNS)
			forget(s, TAILQ_LAST(&s->turns, ZkTurnList));
	}
	TAILQ_INSERT_HEAD(&s->turns, t, link);
	t->epoch = s->info.epoch;
	t->czxid = czxid;
	t->given_back = false;
	memcpy(t->name, name, sizeof(t->name));
}

void
zkn_turn_ended_locked(ZkSession *s, const char *dir, int64_t czxid, bool deleted)
{
	ZkTurn	   *t = find(s, dir);

	if (t != NULL && t->czxid == czxid)
		t->given_back = deleted && t->epoch == s->info.epoch;
}

void
zkn_turn_shared_locked(ZkSession *s, const char *dir)
{
	ZkTurn	   *t = find(s, dir);

	if (t != NULL)
		forget(s, t);
}

bool
zkn_turn_created_locked(ZkSession *s, const char *dir, const char *name, int64_t czxid)
{
	ZkTurn	   *t = find(s, dir);
	bool		next;

	if (t == NULL)
		return false;
	next = name != NULL && t->given_back && t->epoch == s->info.epoch &&
		zkp_comes_next(t->name, t->czxid, name, czxid);
	if (!next)
		t->in_a_row = 0;
	else if (t->in_a_row < MOST_NEEDED)
		t->in_a_row++;
	if (t->bet && !next && name != NULL && t->needed < MOST_NEEDED)
		t->needed *= 2;
	t->bet = t->given_back = false;
	return next;
}

void
zkn_free_turns(ZkSession *s)
{
	while (!TAILQ_EMPTY(&s->turns))
		forget(s, TAILQ_FIRST(&s->turns));
}

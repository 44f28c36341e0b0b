/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  Errors of ZooKeeper, as PostgreSQL reports them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_ERRORS_H
#define ZKLOCK_ERRORS_H

#include "compat.h"
#include "wait.h"

/* 53200, and the same if this is NULL */
pg_noreturn extern void zkb_raise_no_memory(void);
extern ZkRequest *zkb_sent(ZkRequest *request);

/* ZooKeeper answered with this code; path: of the lock */
pg_noreturn extern void zkb_raise(int rc, const char *path);

/* ZooKeeper refuses the session itself, or its credentials */
pg_noreturn extern void zkb_raise_not_accepted(int rc);

/* No session could be opened, or the connection of this one is broken */
pg_noreturn extern void zkb_raise_unreachable(const ZkSessionTexts *texts);
pg_noreturn extern void zkb_raise_cut_off(ZkSession *session);

/* The call's timeout or operation_timeout expired before ZooKeeper answered */
pg_noreturn extern void zkb_raise_no_answer(ZkWait *wait);

/* The same, unless the connection is broken, and has not been restored in time */
pg_noreturn extern void zkb_raise_unanswered(ZkWait *wait, ZkSession *session);

/* The same, where it said again and again what tells nothing */
pg_noreturn extern void zkb_raise_no_use(ZkWait *wait);

/* What to do about a fault of the connection; otherwise: if that is not known */
extern const char *zkb_trouble_hint(ZksTrouble kind, const char *otherwise);

/* What it may be if a session was cut off and nothing is known */
#define ZKB_CUT_OFF_HINT	"Check the network, and whether ZooKeeper's servers or this machine are overloaded."

/* Why a lock was lost, a whole sentence for DETAIL */
extern const char *zkb_loss_detail(ZkLoss loss);

#endif							/* ZKLOCK_ERRORS_H */

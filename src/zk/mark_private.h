/*-------------------------------------------------------------------------
 *
 * mark_private.h
 *	  Marks, as node.c and create.c see them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_MARK_PRIVATE_H
#define ZKLOCK_MARK_PRIVATE_H

#include "mark.h"
#include "multi.h"

extern ZkMark *zkn_new_mark(const ZkMarking *what);
extern void zkn_begin_mark_locked(ZkSession *s, ZkMark *m, ZkNode *carrier,
								  void (*tell_carrier) (ZkNode *n, int refused));
extern void zkn_mark_op(ZkMark *m, ZkOp *op);
extern void zkn_mark_written_locked(ZkMark *m, int rc, int64_t sent_at, bool at_fault, bool node_gone);
extern void zkn_leave_mark_locked(ZkMark *m);
extern bool zkn_mark_over(const ZkMark *m);
extern bool zkn_mark_can_be_set(const ZkMark *m);
extern int	zkn_mark_set_answered_locked(ZkMark *m, int rc);
extern void zkn_advance_mark_locked(ZkMark *m);
extern void zkn_advance_marks_locked(ZkSession *s);
extern bool zkn_any_mark_locked(ZkSession *s, const char *path);
extern void zkn_take_marks_locked(ZkSession *s, ZkMarks *list);
extern void zkn_free_marks(ZkSession *s);

#endif							/* ZKLOCK_MARK_PRIVATE_H */

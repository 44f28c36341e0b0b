/*-------------------------------------------------------------------------
 *
 * show.h
 *	  Shows the other backends of this server what this one holds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_SHOW_H
#define ZKLOCK_SHOW_H

/* Never fails, and waits for nothing */
extern void zkl_show(void);

#endif							/* ZKLOCK_SHOW_H */

/*-------------------------------------------------------------------------
 *
 * library_handle.h
 *	  The client library's handle.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_LIBRARY_HANDLE_H
#define ZKLOCK_LIBRARY_HANDLE_H

#include "session.h"

extern bool zks_copy_options(ZkSession *s, const ZkOptions *options);
extern void zks_free_options(ZkSession *s);
extern bool zks_open_handle_locked(ZkSession *s);
extern void zks_close_handle_locked(ZkSession *s);

#endif							/* ZKLOCK_LIBRARY_HANDLE_H */

/*-------------------------------------------------------------------------
 *
 * connection.h
 *	  Connections to servers (connection.c), and the client library's handle
 *	  (library_handle.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_CONNECTION_H
#define ZKLOCK_CONNECTION_H

#include "session_private.h"

/* connection.c */
extern void zks_trouble_locked(ZkSession *s, ZksTrouble kind, const char *what);
extern void zks_suspend_locked(ZkSession *s);
extern void zks_forfeit_locked(ZkSession *s);
extern void zks_mend_locked(ZkSession *s);
extern bool zks_greeted_locked(ZkSession *s);
extern int64_t zks_prepare_locked(ZkSession *s, int64_t now);

/* After FRAME_WAIT, wait a moment for the rest, without the mutex */
extern ZkFrameVerdict zks_process_locked(ZkSession *s, uint32_t happened);

/* library_handle.c */
extern bool zks_copy_options(ZkSession *s, const ZkOptions *options);
extern void zks_free_options(ZkSession *s);
extern bool zks_open_handle_locked(ZkSession *s);
extern void zks_close_handle_locked(ZkSession *s);

#endif							/* ZKLOCK_CONNECTION_H */

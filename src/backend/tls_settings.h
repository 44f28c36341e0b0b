/*-------------------------------------------------------------------------
 *
 * tls_settings.h
 *	  What the settings zklock.tls_* ask for.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_TLS_SETTINGS_H
#define ZKLOCK_TLS_SETTINGS_H

#include "zk/session.h"

/* Keep a copy of the settings; false: memory is out */
extern bool zkb_tls_keep(void);

/* Are they other ones than those that were kept last? */
extern bool zkb_tls_changed(void);

/*
 * Is there to be TLS?  Raises an error if that is asked for in a way that
 * cannot be: never a connection in clear instead.
 */
extern bool zkb_tls_wanted(void);

/* The files, read; or NULL, and then zkb_tls_raise says why */
extern ZkTls *zkb_tls_read(void);
extern void zkb_tls_raise(void);

#endif							/* ZKLOCK_TLS_SETTINGS_H */

/*-------------------------------------------------------------------------
 *
 * tls_settings.h
 *	  The TLS settings, zklock.tls_*.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_TLS_SETTINGS_H
#define ZKLOCK_TLS_SETTINGS_H

#include "zk/tls.h"

/*
 * Whether the settings ask for TLS.  Raises an error if that cannot be
 * satisfied, rather than use an unencrypted connection.
 */
extern bool zkb_tls_wanted(void);

/* Read the files.  If the result is NULL, zkb_tls_raise says why. */
extern ZkTls *zkb_tls_read(void);
extern void zkb_tls_raise(void);

#endif							/* ZKLOCK_TLS_SETTINGS_H */

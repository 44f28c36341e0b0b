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
 * What the settings ask for, with the files read; NULL: no TLS.  Raises an error if that
 * cannot be satisfied, rather than use an unencrypted connection.
 */
extern ZkTls *zkb_tls(void);

#endif							/* ZKLOCK_TLS_SETTINGS_H */

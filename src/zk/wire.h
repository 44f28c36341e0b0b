/*-------------------------------------------------------------------------
 *
 * wire.h
 *	  TLS between the client library and a server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_WIRE_H
#define ZKLOCK_WIRE_H

#include "session.h"

typedef struct ZkWire ZkWire;	/* NULL: a connection without TLS */

#ifdef ZKLOCK_HAVE_TLS

/*
 * Put a wire between the library's socket, which is being connected, and the
 * server.  The socket keeps its number; library_end is the other end of that.
 * Returns NULL, with errno set, if the socket must not be used.
 */
extern ZkWire *zks_wire_lay(ZkTls *tls, int sock, const char *names, int *library_end);

/* End it: at once, or when everything that the library has written is sent */
extern void zks_wire_end(ZkWire *wire, bool finish);

/* Why it broke, or NULL */
extern const char *zks_wire_fault(ZkWire *wire, ZksTrouble *kind);

#else							/* no TLS, and so no wire */
#define zks_wire_lay(tls, sock, names, library_end)	((void) (library_end), NULL)
#define zks_wire_end(wire, finish)	((void) (wire))
#define zks_wire_fault(wire, kind)	(*(kind) = ZKS_TROUBLE_TLS, NULL)
#endif							/* ZKLOCK_HAVE_TLS */

#endif							/* ZKLOCK_WIRE_H */

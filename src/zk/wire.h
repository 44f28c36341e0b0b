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

/*
 * Put a wire between the library's socket, which is being connected, and the
 * server.  The socket keeps its number.  Returns NULL, with errno set, if the
 * socket must not be used.
 */
extern ZkWire *zks_wire_lay(ZkTls *tls, int sock, const char *names);

/* End it: at once, or when everything that the library has written is sent */
extern void zks_wire_cut(ZkWire *wire);
extern void zks_wire_finish(ZkWire *wire);

/* Why it broke, or NULL */
extern const char *zks_wire_fault(ZkWire *wire, ZksTrouble *kind);

extern int	zks_wire_server_socket(ZkWire *wire);
extern int	zks_wire_library_end(ZkWire *wire);

#endif							/* ZKLOCK_WIRE_H */

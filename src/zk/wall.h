/*-------------------------------------------------------------------------
 *
 * wall.h
 *	  Read before each file above the wall, which is session.h: ZooKeeper's own
 *	  headers do not compile there.
 *
 *-------------------------------------------------------------------------
 */
#pragma GCC poison zhandle_t zoo_op_t ZOO_CREATE_OP ReplyHeader

/*-------------------------------------------------------------------------
 *
 * wall.h
 *	  Read before each file above the wall (see session.h): the headers of
 *	  ZooKeeper's API do not compile there.
 *
 *-------------------------------------------------------------------------
 */
#pragma GCC poison zhandle_t zoo_op_t ZOO_CREATE_OP ReplyHeader

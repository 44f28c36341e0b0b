/*-------------------------------------------------------------------------
 *
 * encoding.h
 *	  Text between the server's encoding and ZooKeeper, which has UTF-8.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_ENCODING_H
#define ZKLOCK_ENCODING_H

/* From the server's encoding; palloc'ed.  NULL: it has no form in UTF-8. */
extern char *zkb_to_utf8(const char *str, int len);

/*
 * What zkb_from_utf8_escaped has made with backslashes doubled, back in UTF-8;
 * NULL if it has no form there.
 */
extern char *zkb_to_utf8_unescaped(const char *str, int len);

/*
 * The same, for what must not fail: bytes that have no form in UTF-8 come out
 * as \xNN.
 */
extern char *zkb_to_utf8_escaped(const char *str, int len);

/*
 * In the server's encoding; palloc'ed.  What was written by others may be
 * anything: bytes that are not UTF-8, characters that the server's encoding
 * lacks, and control characters, which a terminal would obey, come out as \xNN;
 * a backslash as \\ if it is to be told from those.
 */
extern char *zkb_from_utf8_escaped(const char *str, int len, bool double_backslashes);

#endif							/* ZKLOCK_ENCODING_H */

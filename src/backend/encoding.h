/*-------------------------------------------------------------------------
 *
 * encoding.h
 *	  Converts text between the server's encoding and ZooKeeper's UTF-8.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKLOCK_ENCODING_H
#define ZKLOCK_ENCODING_H

/* From the server's encoding; palloc'ed.  NULL if it cannot be converted. */
extern char *zkb_to_utf8(const char *str, int len);

/*
 * Undo zkb_from_utf8_escaped with doubled backslashes; NULL if the text cannot
 * be converted to UTF-8.
 */
extern char *zkb_to_utf8_unescaped(const char *str, int len);

/*
 * Like zkb_to_utf8, but never fails: bytes that cannot be converted, and control
 * characters, come out as \xNN.  With double_backslashes a backslash comes out as \\,
 * to distinguish it from those.
 */
extern char *zkb_to_utf8_escaped(const char *str, int len, bool double_backslashes);

/*
 * The same to the server's encoding; palloc'ed.  Text written by others may be
 * anything: bytes that are not UTF-8, characters that the server's encoding
 * lacks, and control characters, which a terminal would obey.
 */
extern char *zkb_from_utf8_escaped(const char *str, int len, bool double_backslashes);

/*
 * For a time that allows no conversion: what is not ASCII is escaped where it would
 * need one
 */
extern char *zkb_from_utf8_unconverted(const char *str);

#endif							/* ZKLOCK_ENCODING_H */

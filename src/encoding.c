/*-------------------------------------------------------------------------
 *
 * encoding.c
 *	  Text between the server's encoding and ZooKeeper, which has UTF-8.
 *
 * PostgreSQL's own conversions raise an error for what they cannot convert.
 * That is right for a lock's path, but not for what a node tells of its owner,
 * nor for what other programs wrote into theirs.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"

#include "encoding.h"

/*
 * Convert as much as can be, and append it; returns how many bytes of the input
 * that was.  Without a conversion, bytes are copied that are UTF-8.
 */
static int
convert(StringInfo result, int from, int to, Oid proc, const char *str, int len)
{
	int			room = len * MAX_CONVERSION_GROWTH + 1;
	int			done;

	if (!OidIsValid(proc))
	{
		done = pg_encoding_verifymbstr(PG_UTF8, str, len);
		appendBinaryStringInfo(result, str, done);
		return done;
	}
	enlargeStringInfo(result, room);
	done = pg_do_encoding_conversion_buf(proc, from, to,
										 (unsigned char *) unconstify(char *, str), len,
										 (unsigned char *) result->data + result->len,
										 room, true);
	result->len += strlen(result->data + result->len);
	return done;
}

/* Is there a conversion, and which?  InvalidOid: none is needed. */
static bool
find_conversion(int from, int to, Oid *proc)
{
	*proc = InvalidOid;
	if (from == to || from == PG_SQL_ASCII || to == PG_SQL_ASCII)
		return true;
	*proc = FindDefaultConversionProc(from, to);
	return OidIsValid(*proc);
}

char *
zke_to_utf8(const char *str, int len)
{
	StringInfoData result;
	Oid			proc;
	bool		converted;

	if (!find_conversion(GetDatabaseEncoding(), PG_UTF8, &proc))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("default conversion function for encoding \"%s\" to \"%s\" does not exist",
						pg_encoding_to_char(GetDatabaseEncoding()), pg_encoding_to_char(PG_UTF8))));
	initStringInfo(&result);
	converted = convert(&result, GetDatabaseEncoding(), PG_UTF8, proc, str, len) == len;
	if (!converted)
		pfree(result.data);
	return converted ? result.data : NULL;
}

static char *
convert_escaped(int from, int to, const char *str, int len, bool double_backslashes)
{
	StringInfoData result;
	Oid			proc;
	bool		possible = find_conversion(from, to, &proc);

	initStringInfo(&result);
	while (len > 0)
	{
		const char *backslash = double_backslashes ? memchr(str, '\\', len) : NULL;
		int			n = backslash != NULL ? (int) (backslash - str) : len;
		int			done = possible ? convert(&result, from, to, proc, str, n) : 0;

		if (done < n && !possible && !IS_HIGHBIT_SET(str[done]) && str[done] != '\0')
			appendStringInfoChar(&result, str[done++]);
		else if (done < n)
			appendStringInfo(&result, "\\x%02x", (unsigned char) str[done++]);
		else if (backslash != NULL)
		{
			appendStringInfoString(&result, "\\\\");
			done++;
		}
		str += done;
		len -= done;
	}
	return result.data;
}

static int
hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

char *
zke_to_utf8_unescaped(const char *str, int len)
{
	char	   *result = zke_to_utf8(str, len);
	char	   *to = result;

	for (const char *from = result; from != NULL && *from != '\0'; to++)
	{
		bool		escaped = from[0] == '\\';

		if (escaped && from[1] == 'x' && hex_digit(from[2]) >= 0 && hex_digit(from[3]) >= 0)
		{
			*to = (char) (hex_digit(from[2]) * 16 + hex_digit(from[3]));
			from += 4;
			continue;
		}
		from += escaped && from[1] == '\\';
		*to = *from++;
	}
	if (to != NULL)
		*to = '\0';
	return result;
}

char *
zke_to_utf8_escaped(const char *str, int len)
{
	return convert_escaped(GetDatabaseEncoding(), PG_UTF8, str, len, false);
}

char *
zke_from_utf8_escaped(const char *str, int len, bool double_backslashes)
{
	return convert_escaped(PG_UTF8, GetDatabaseEncoding(), str, len, double_backslashes);
}

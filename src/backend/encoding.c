/*-------------------------------------------------------------------------
 *
 * encoding.c
 *	  Converts text between the server's encoding and ZooKeeper's UTF-8.
 *
 * PostgreSQL's own conversions raise an error for what they cannot convert.
 * That is right for a lock's path, but not for what a node says about its
 * owner, nor for what other programs wrote into their nodes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"

#include "encoding.h"

/*
 * Convert this, and append it; false if not all of it can be.  Without a conversion,
 * valid UTF-8 is copied.
 */
static bool
convert(StringInfo result, int from, int to, Oid proc, const char *str, int len)
{
	int			room = len * MAX_CONVERSION_GROWTH + 1;

	if (!OidIsValid(proc))
	{
		appendBinaryStringInfo(result, str, len);
		return pg_encoding_verifymbstr(PG_UTF8, str, len) == len;
	}
	enlargeStringInfo(result, room);
	if (pg_do_encoding_conversion_buf(proc, from, to,
									  (unsigned char *) unconstify(char *, str), len,
									  (unsigned char *) result->data + result->len,
									  room, true) < len)
		return false;
	result->len += strlen(result->data + result->len);
	return true;
}

/*
 * Find the conversion; false if there is none, or no time to look for it; InvalidOid if
 * none is needed
 */
static bool
find_conversion(int from, int to, bool may_look, Oid *proc)
{
	*proc = InvalidOid;
	if (from == to || from == PG_SQL_ASCII || to == PG_SQL_ASCII)
		return true;
	if (!may_look)
		return false;
	*proc = FindDefaultConversionProc(from, to);
	return OidIsValid(*proc);
}

char *
zkb_to_utf8(const char *str, int len)
{
	StringInfoData result;
	Oid			proc;

	if (!find_conversion(GetDatabaseEncoding(), PG_UTF8, true, &proc))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("default conversion function for encoding \"%s\" to \"%s\" does not exist",
						pg_encoding_to_char(GetDatabaseEncoding()), pg_encoding_to_char(PG_UTF8))));
	initStringInfo(&result);
	return convert(&result, GetDatabaseEncoding(), PG_UTF8, proc, str, len) ? result.data : NULL;
}

/* Whether a terminal would obey this character */
static bool
is_control(int encoding, const char *str)
{
	unsigned char c = (unsigned char) str[0];

	return c < 0x20 || c == 0x7f || (encoding == PG_UTF8 && c == 0xc2 && ((unsigned char) str[1] & 0xe0) == 0x80);
}

/*
 * Character by character, since a conversion may have looked at all of its input before
 * it meets what it cannot convert.  ASCII is the same in each encoding of a server.
 */
static char *
convert_escaped(int from, int to, bool may_look, const char *str, int len, bool double_backslashes)
{
	StringInfoData result;
	Oid			proc;
	bool		possible = find_conversion(from, to, may_look, &proc);
	int			n;

	initStringInfo(&result);
	for (; len > 0; str += n, len -= n)
	{
		bool		control;

		n = pg_encoding_verifymbchar(OidIsValid(proc) ? from : PG_UTF8, str, len);
		control = n > 0 && is_control(from, str);
		if (double_backslashes && *str == '\\')
			appendStringInfoString(&result, "\\\\");
		else if (n == 1 && !control && !IS_HIGHBIT_SET(*str))
			appendStringInfoChar(&result, *str);
		else if (n < 0 || control || !possible || !convert(&result, from, to, proc, str, n))
		{
			n = Max(n, 1);
			for (int i = 0; i < n; i++)
				appendStringInfo(&result, "\\x%02x", (unsigned char) str[i]);
		}
	}
	return result.data;
}

char *
zkb_to_utf8_unescaped(const char *str, int len)
{
	char	   *result = zkb_to_utf8(str, len);
	char	   *to = result;

	for (const char *from = result; from != NULL && *from != '\0'; to++)
	{
		bool		escaped = from[0] == '\\';
		unsigned	byte;

		if (escaped && from[1] == 'x' && strspn(from + 2, "0123456789abcdef") >= 2)
		{
			(void) sscanf(from + 2, "%2x", &byte);
			*to = (char) byte;
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
zkb_to_utf8_escaped(const char *str, int len, bool double_backslashes)
{
	return convert_escaped(GetDatabaseEncoding(), PG_UTF8, true, str, len, double_backslashes);
}

char *
zkb_from_utf8_escaped(const char *str, int len, bool double_backslashes)
{
	return convert_escaped(PG_UTF8, GetDatabaseEncoding(), true, str, len, double_backslashes);
}

char *
zkb_from_utf8_unconverted(const char *str)
{
	return convert_escaped(PG_UTF8, GetDatabaseEncoding(), false, str, strlen(str), false);
}

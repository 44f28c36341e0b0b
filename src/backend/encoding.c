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
#include "miscadmin.h"

#include "encoding.h"

/*
 * Convert as much of the input as possible, and append it; returns how many
 * bytes of the input that was.  Without a conversion, valid UTF-8 is copied.
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

/* Find the conversion; false if there is none, InvalidOid if none is needed */
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
zkb_to_utf8(const char *str, int len)
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

/*
 * The number of bytes converted at a time.  A conversion that meets something
 * it cannot convert may have looked at the whole input, and does so again for
 * the rest.
 */
#define PIECE		64

/* The length of a control character in ZooKeeper's text; 0 for any other */
static int
control_bytes(const char *str, int len)
{
	unsigned char c = (unsigned char) str[0];

	if (c < 0x20 || c == 0x7f)
		return 1;
	return c == 0xc2 && len > 1 && ((unsigned char) str[1] & 0xe0) == 0x80 ? 2 : 0;
}

/* How many bytes can be converted before something that is always escaped */
static int
piece_length(int from, const char *str, int len, bool double_backslashes)
{
	int			n = 0;

	while (n < len && n < PIECE)
	{
		int			char_len = pg_encoding_mblen(from, str + n);

		if ((double_backslashes && str[n] == '\\') ||
			(from == PG_UTF8 && control_bytes(str + n, len - n) > 0))
			break;
		/* invalid UTF-8 must not hide the beginning of valid UTF-8 */
		for (int i = 1; from == PG_UTF8 && i < char_len && n + i < len; i++)
		{
			if (((unsigned char) str[n + i] & 0xc0) != 0x80)
				char_len = i;
		}
		n += char_len;
	}
	return Min(n, len);
}

static void
escape(StringInfo result, const char *str, int n)
{
	for (int i = 0; i < n; i++)
		appendStringInfo(result, "\\x%02x", (unsigned char) str[i]);
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
		int			n = piece_length(from, str, len, double_backslashes);
		int			done = possible && n > 0 ? convert(&result, from, to, proc, str, n) : 0;

		CHECK_FOR_INTERRUPTS();
		if (done == 0 && double_backslashes && *str == '\\')
		{
			appendStringInfoString(&result, "\\\\");
			done = 1;
		}
		else if (done == 0 && n > 0 && !possible && !IS_HIGHBIT_SET(*str))
		{
			appendStringInfoChar(&result, *str);
			done = 1;
		}
		else if (done == 0)
		{
			done = n > 0 ? 1 : control_bytes(str, len);
			escape(&result, str, done);
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
zkb_to_utf8_unescaped(const char *str, int len)
{
	char	   *result = zkb_to_utf8(str, len);
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
zkb_to_utf8_escaped(const char *str, int len)
{
	return convert_escaped(GetDatabaseEncoding(), PG_UTF8, str, len, false);
}

char *
zkb_from_utf8_escaped(const char *str, int len, bool double_backslashes)
{
	return convert_escaped(PG_UTF8, GetDatabaseEncoding(), str, len, double_backslashes);
}

/*-------------------------------------------------------------------------
 *
 * path.c
 *	  The paths of locks, from what a user typed to what ZooKeeper gets.
 *
 * Paths are checked here and nowhere else, before anything is sent: the
 * client library and the server each refuse some of what the other lets
 * through, and neither says why.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "compat.h"
#include "encoding.h"
#include "path.h"
#include "zk/lock_protocol.h"

/* A node's name may fill one of ZooKeeper's requests, and be shown as \xNN */
#define NAME_MAX_SHOWN	(4 * 1024 * 1024)

/*
 * What ZooKeeper's PathUtils.validatePath refuses: control characters,
 * surrogates, the private use area and the specials.  It looks at UTF-16, so
 * everything beyond U+FFFF is a surrogate to it.
 */
static bool
is_refused_character(pg_wchar c)
{
	return c <= 0x1f || (c >= 0x7f && c <= 0x9f) ||
		(c >= 0xd800 && c <= 0xf8ff) || c >= 0xfff0;
}

static const char *
check_part(const char *part, int len)
{
	if (len == 0)
		return "Path components must not be empty.";
	if ((len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.'))
		return "Path components \".\" and \"..\" are not allowed.";
	if (zkp_is_reserved(part, len))
		return "Path components in the form of a lock node name are not allowed.";
	if (zkp_is_own_dir(part, len))
		return "Path components that begin with \"" ZKP_OWN_DIRS "\" are reserved for zklock.";
	for (int i = 0; i < len; i += pg_utf_mblen((const unsigned char *) part + i))
	{
		if (is_refused_character(utf8_to_unicode((const unsigned char *) part + i)))
			return "The path contains a character that ZooKeeper does not allow.";
	}
	return NULL;
}

const char *
zkb_check_path(const char *path)
{
	const char *part = path + 1;
	int			nparts = 0;

	if (!pg_verify_mbstr(PG_UTF8, path, strlen(path), true))
		return "The path is not valid UTF-8.";
	if (strlen(path) > ZK_PATH_MAX)
		return "The path is longer than 1000 bytes.";
	if (path[0] != '/')
		return "The path does not start with a slash.";
	if (path[1] == '\0')
		return "The root path \"/\" is not a lock.";
	for (;;)
	{
		const char *slash = strchr(part, '/');
		int			len = slash != NULL ? (int) (slash - part) : (int) strlen(part);
		const char *wrong;

		if (slash == NULL && len == 0)
			return "The path ends with a slash.";
		if (++nparts > ZK_PATH_PARTS)
			return "The path has more than 32 components.";
		wrong = check_part(part, len);
		if (wrong != NULL)
			return wrong;
		if (slash == NULL)
			return NULL;
		part = slash + 1;
	}
}

const char *
zkb_check_root(const char *root)
{
	if (strcmp(root, "/") == 0)
		return NULL;
	if (strcmp(root, "/zookeeper") == 0 || strncmp(root, "/zookeeper/", 11) == 0)
		return "ZooKeeper keeps its own data there.";
	return zkb_check_path(root);
}

char *
zkb_path_from_text(text *path)
{
	/* no huge one is converted, whatever its encoding */
	bool		too_long = VARSIZE_ANY_EXHDR(path) > 4 * ZK_PATH_MAX;
	char	   *utf8 = too_long ? NULL : zkb_to_utf8(VARDATA_ANY(path), VARSIZE_ANY_EXHDR(path));
	const char *wrong;

	if (utf8 == NULL && !too_long)
		ereport(ERROR,
				(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 GetDatabaseEncoding() == PG_SQL_ASCII ?
				 errmsg("lock path is not valid UTF-8") :
				 errmsg("lock path cannot be converted to UTF-8")));
	if (too_long || strlen(utf8) > ZK_PATH_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock path is longer than %d bytes", ZK_PATH_MAX)));
	wrong = zkb_check_path(utf8);
	if (wrong != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid lock path \"%s\"", text_to_cstring(path)),
				 errdetail_internal("%s", wrong),
				 errhint("A lock path looks like \"/jobs/nightly\".")));
	return utf8;
}

void
zkb_refuse_null(bool is_null, const char *what)
{
	if (is_null)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what)));
}

char *
zkb_path_argument(FunctionCallInfo fcinfo)
{
	zkb_refuse_null(PG_ARGISNULL(0), "lock path");
	return zkb_path_from_text(PG_GETARG_TEXT_PP(0));
}

static void
append_escaped(StringInfo part, const char *bytes, int n)
{
	for (int i = 0; i < n; i++)
		appendStringInfo(part, "%%%02X", (unsigned char) bytes[i]);
}

/*
 * As %XX are all bytes of a name that would be a part of another meaning, such
 * as "..", or a node of ours; and, behind a %00 that no other has, those of a
 * name that is no text.
 */
char *
zkb_name_as_part(const char *name)
{
	const char *utf8 = zkb_to_utf8(name, strlen(name));
	StringInfoData part;
	int			n;

	initStringInfo(&part);
	if (utf8 == NULL)
	{
		append_escaped(&part, "", 1);
		append_escaped(&part, name, strlen(name));
		return part.data;
	}
	for (const char *c = utf8; *c != '\0'; c += n)
	{
		n = pg_utf_mblen((const unsigned char *) c);
		if (*c == '/' || *c == '%' || is_refused_character(utf8_to_unicode((const unsigned char *) c)))
			append_escaped(&part, c, n);
		else
			appendBinaryStringInfo(&part, c, n);
	}
	if (check_part(part.data, part.len) != NULL)
	{
		resetStringInfo(&part);
		append_escaped(&part, utf8, strlen(utf8));
	}
	return part.data;
}

char *
zkb_name_from_text(text *name)
{
	char	   *utf8;

	if (VARSIZE_ANY_EXHDR(name) > NAME_MAX_SHOWN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("node name is longer than %d bytes", NAME_MAX_SHOWN)));
	utf8 = zkb_to_utf8_unescaped(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));
	if (utf8 == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 errmsg("node name cannot be converted to UTF-8")));
	return utf8;
}

char *
zkb_path_for_display(const char *path)
{
	/* a loss is also told where the transaction has failed, or there is none */
	if (!IsTransactionState())
		return zkb_from_utf8_unconverted(path);
	return pg_any_to_server(path, strlen(path), PG_UTF8);
}

int
zkb_root_len(const char *root)
{
	return strcmp(root, "/") == 0 ? 0 : (int) strlen(root);
}

char *
zkb_join_path(const char *root, const char *path)
{
	if (zkb_root_len(root) == 0)
	{
		if (strcmp(path, "/zookeeper") == 0 || strncmp(path, "/zookeeper/", 11) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid lock path \"%s\"", zkb_path_for_display(path)),
					 errdetail("ZooKeeper keeps its own data there.")));
		return pstrdup(path);
	}
	return psprintf("%s%s", root, path);
}

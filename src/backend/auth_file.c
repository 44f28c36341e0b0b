/*-------------------------------------------------------------------------
 *
 * auth_file.c
 *	  Reads the file of credentials, zklock.auth_file.
 *
 * Each line is "scheme:credentials", such as "digest:user:password"; empty
 * lines and lines that begin with # are skipped.  This is a file because a
 * setting would be written into catalogs and logs.  Nothing of its contents
 * may appear in a message; its name appears only in the server's log, since
 * only superusers can see the setting.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/fd.h"

#include "auth_file.h"
#include "compat.h"
#include "zk/tls.h"

#define LARGEST_FILE		(64 * 1024)

#define SCHEME_CHARS		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

/* The ACL of each closed node lists all credentials */
#define MOST_LINES			16

#define PERMISSIONS_HINT \
	"It must be a regular file with permissions u=rw (0600) or less if owned by the server's user, or u=rw,g=r (0640) or less if owned by root."
#define LINES_HINT \
	"Each line must have the form scheme:credentials, such as digest:user:password, or begin with #."

/*
 * Read the whole file, and terminate it.  Returns NULL, or why that failed.
 * This uses BasicOpenFile so that none of PostgreSQL's own errors reveals the
 * name.
 */
static const char *
read_file(const char *file, ZkAuthFile *c)
{
	/* opening it must not block, whatever it is */
	int			fd = BasicOpenFile(file, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | PG_BINARY);
	struct stat st;
	const char *wrong;
	ssize_t		n = 0;

	if (fd < 0)
		return psprintf("could not be opened: %s", strerror(errno));
	if (fstat(fd, &st) != 0)
		wrong = "could not be examined";
	else
		wrong = zks_check_file(&st, true);
	if (wrong == NULL && st.st_size >= LARGEST_FILE)
		wrong = "is too large";
	while (wrong == NULL && (n = read(fd, c->contents + c->len, LARGEST_FILE - 1 - c->len)) > 0)
		c->len += n;
	if (n < 0)
		wrong = "could not be read";
	close(fd);
	return wrong;
}

/* Returns the number of the first bad line, or 0 */
static int
read_lines(ZkAuthFile *c)
{
	char	   *last = c->contents + c->len;
	char	   *next;
	int			number = 1;

	*last = '\n';
	for (char *line = c->contents; line < last; line = next, number++)
	{
		char	   *end = memchr(line, '\n', last + 1 - line);
		char	   *colon;

		next = end + 1;
		if (end > line && end[-1] == '\r')
			end--;
		*end = '\0';
		line += strspn(line, " \t");
		if (line >= end || line[0] == '#')
			continue;
		colon = line + strspn(line, SCHEME_CHARS);
		if (c->n == MOST_LINES || colon == line || *colon != ':' || colon[1] == '\0' || colon + strlen(colon) != end)
			return number;
		*colon = '\0';
		c->list[c->n].scheme = line;
		c->list[c->n++].secret = colon + 1;
	}
	return 0;
}

void
zkb_read_auth_file(const char *file, ZkAuthFile *c)
{
	const char *wrong;
	const char *hint = PERMISSIONS_HINT;
	int			bad = 0;

	memset(c, 0, sizeof(*c));
	if (file[0] == '\0')
		return;
	c->contents = palloc0(LARGEST_FILE);
	c->list = palloc0(MOST_LINES * sizeof(ZkCredential));
	wrong = read_file(file, c);
	if (wrong == NULL && (bad = read_lines(c)) > 0)
	{
		hint = LINES_HINT;
		wrong = c->n == MOST_LINES ?
			psprintf("has more than %d credentials", MOST_LINES) :
			psprintf("has a syntax error in line %d", bad);
	}
	if (wrong != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("could not read the credentials for ZooKeeper"),
				 errdetail("The file named by zklock.auth_file %s.", wrong),
				 errdetail_log("The file \"%s\" named by zklock.auth_file %s.", file, wrong),
				 errhint("%s", hint)));
}

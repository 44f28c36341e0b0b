/*-------------------------------------------------------------------------
 *
 * resolve.c
 *	  From "host:port,..." to the numeric list that the client library gets.
 *
 * The library must not look names up itself: it would do so in every iteration
 * of its loop (ZOOKEEPER-1998), and spins when that fails while it is cut off
 * (apache/zookeeper pull request 1680).  Nor may the length of the list be
 * even: with two servers it can return to the dead one forever
 * (ZOOKEEPER-2466), so the first is given twice.
 *
 * The names are kept as well, as lines of "address:port name", since a
 * server's certificate must contain one of these.
 *
 * getaddrinfo cannot be interrupted, so names are looked up in the keeper thread.
 * For addresses, as for the library's own lists, it asks nobody but the kernel.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "session_private.h"

#define MAX_ADDRESSES	64

/* A numeric one, perhaps with an interface ("fe80::1%eth0"), and a port */
#define NUMERIC_LEN		(INET6_ADDRSTRLEN + IF_NAMESIZE)
#define ADDRESS_LEN		(NUMERIC_LEN + 8)

#define NAMES_LEN		(MAX_ADDRESSES * 512)

/*
 * No larger than necessary: what is touched here stays with each backend; of
 * names, at the beginning of the thread's own heap.
 */
typedef struct AddressList
{
	int			n;
	char		text[MAX_ADDRESSES][ADDRESS_LEN];
	char	   *names;			/* malloc'ed, NULL at first */
} AddressList;

static void
add_address(AddressList *list, const char *name, const char *host, const char *port)
{
	char		text[ADDRESS_LEN];
	char	   *names;
	int			i = 0;

	/* the library wants IPv6 addresses without brackets */
	snprintf(text, sizeof(text), "%s:%s", host, port);

	/* one line more, while there is room */
	if (list->names == NULL || strlen(list->names) < NAMES_LEN)
	{
		if (asprintf(&names, "%s%s %s\n", list->names != NULL ? list->names : "", text, name) < 0)
			return;
		free(list->names);
		list->names = names;
	}
	while (i < list->n && strcmp(list->text[i], text) != 0)
		i++;
	if (i == list->n && i < MAX_ADDRESSES)
		strcpy(list->text[list->n++], text);
}

/* One "host:port" or "[address]:port"; as in hosts.h; false with an explanation if useless */
static bool
resolve_one(AddressList *list, const char *item, int flags, char *error, int errlen)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC,.ai_socktype = SOCK_STREAM,.ai_flags = flags};
	struct addrinfo *found = NULL;
	char		host[NI_MAXHOST];
	const char *colon = strrchr(item, ':');
	const char *start = item;
	int			len = (int) (colon - item);
	int			rc;

	if (len >= 2 && item[0] == '[' && item[len - 1] == ']')
	{
		start++;
		len -= 2;
	}
	snprintf(host, sizeof(host), "%.*s", len, start);

	rc = getaddrinfo(host, colon + 1, &hints, &found);
	if (rc != 0)
	{
		snprintf(error, errlen, "could not resolve host name \"%.80s\": %s",
				 host, gai_strerror(rc));
		return false;
	}
	for (struct addrinfo *ai = found; ai != NULL; ai = ai->ai_next)
	{
		char		numeric[NUMERIC_LEN];
		char		port[sizeof("65535")];

		if (getnameinfo(ai->ai_addr, ai->ai_addrlen, numeric, sizeof(numeric),
						port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0)
			add_address(list, host, numeric, port);
	}
	freeaddrinfo(found);
	return true;
}

/* So that not all backends try the same server first */
static void
shuffle(AddressList *list)
{
	for (int i = list->n - 1; i > 0; i--)
	{
		int			j = (int) zks_random((uint32_t) (i + 1));
		char		swap[sizeof(list->text[0])];

		memcpy(swap, list->text[i], sizeof(swap));
		memcpy(list->text[i], list->text[j], sizeof(swap));
		memcpy(list->text[j], swap, sizeof(swap));
	}
}

/*
 * The library skips every second entry of its list.  Order the entries so that
 * it tries each server once before it tries one again.
 */
static void
write_list(const AddressList *list, char *text)
{
	int			total = list->n | 1;

	text[0] = '\0';
	for (int i = 0; i < total; i++)
	{
		/* entry i is at this place: twice that is i, or i + total */
		int			at = (i % 2 == 0 ? i : i + total) / 2;

		if (i > 0)
			strcat(text, ",");
		strcat(text, list->text[at % list->n]);
	}
}

/*
 * Where the servers are; false, with an explanation, if no name could be resolved: then
 * it stays as it was.  One bad name of several does no harm, but is explained, too; else
 * error is empty.  With only_numeric it is false if one is a name.
 */
bool
zks_resolve(const char *hosts, bool only_numeric, ZkServers *servers, char *error, int errlen)
{
	const int	flags = only_numeric ? AI_NUMERICHOST | AI_NUMERICSERV : 0;
	AddressList *list = calloc(1, sizeof(AddressList));
	char	   *copy = strdup(hosts);
	char	   *addresses = NULL;
	char	   *rest = NULL;
	bool		of_use = list != NULL && copy != NULL;

	snprintf(error, errlen, "%s", of_use ? "" : "out of memory");
	for (char *item = of_use ? strtok_r(copy, ",", &rest) : NULL; of_use && item != NULL;
		 item = strtok_r(NULL, ",", &rest))
		of_use = resolve_one(list, item, flags, error, errlen) || !only_numeric;
	of_use = of_use && list->n > 0;
	if (of_use && (addresses = malloc((list->n + 1) * sizeof(list->text[0]))) == NULL)
		snprintf(error, errlen, "out of memory");
	if (addresses != NULL)
	{
		shuffle(list);
		write_list(list, addresses);
		free(servers->addresses);
		free(servers->names);
		*servers = (ZkServers)
		{
			addresses, list->names, list->n
		};
	}
	else if (list != NULL)
		free(list->names);
	free(list);
	free(copy);
	return addresses != NULL;
}

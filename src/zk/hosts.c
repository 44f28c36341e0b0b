/*-------------------------------------------------------------------------
 *
 * hosts.c
 *	  The list of an ensemble's servers: checking and comparing it.
 *
 * Checks whatever can be checked in zklock.hosts before a name is looked up,
 * so that mistakes are reported to the user who makes them.  Only here does a
 * server get the form by which it is known from then on.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hosts.h"

#define BLANKS			" \t"
#define NAME_CHARACTERS \
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._"
#define DIGITS			"0123456789"

/* Of a host name; DNS has no longer ones */
#define NAME_MAX_LEN	255

/*
 * For an entry.  The beginning of a longer one is wrong as well, even if another mistake
 * comes behind that.
 */
#define ENTRY_LEN		(2 * NAME_MAX_LEN)

static bool
consists_of(const char *text, const char *characters)
{
	return text[strspn(text, characters)] == '\0';
}

/*
 * An address can be written in several forms, a zone, after a percent sign,
 * only in one
 */
static const char *
check_address(const char *address, char *servers)
{
	const char *zone = strchrnul(address, '%');
	char		text[INET6_ADDRSTRLEN];
	struct in6_addr binary;

	snprintf(text, sizeof(text), "%.*s", (int) (zone - address), address);
	if (zone - address >= (int) sizeof(text) || inet_pton(AF_INET6, text, &binary) != 1 ||
		strlen(zone) > NAME_MAX_LEN || !consists_of(zone, NAME_CHARACTERS "%"))
		return "The text in brackets is not an IPv6 address.";
	(void) inet_ntop(AF_INET6, &binary, text, sizeof(text));
	sprintf(servers, "[%s%s]", text, zone);
	return NULL;
}

static const char *
check_name(const char *name, char *servers)
{
	if (name[0] == '\0')
		return "A host name is empty.";
	if (strlen(name) > NAME_MAX_LEN)
		return "A host name is longer than 255 bytes.";
	if (!consists_of(name, NAME_CHARACTERS))
		return "A host name contains an invalid character.";
	for (; *name != '\0'; name++)
		*servers++ = *name >= 'A' && *name <= 'Z' ? *name - 'A' + 'a' : *name;
	*servers = '\0';
	return NULL;
}

/* Takes the entry apart */
static const char *
check_server(char *server, char *servers)
{
	bool		bracketed = server[0] == '[';
	char	   *host = server + bracketed;
	char	   *rest = strchrnul(host, bracketed ? ']' : ':');
	int			port = ZKS_HOSTS_PORT;
	const char *wrong;

	if (server[0] == '\0')
		return "An entry is empty.";
	if (strchr(server, '/') != NULL)
		return "It contains a path; use zklock.root for that.";
	if (strpbrk(server, BLANKS) != NULL)
		return "A comma is missing between two servers.";
	if (bracketed && *rest == '\0')
		return "A bracket is not closed.";
	if (bracketed)
		*rest++ = '\0';
	else if (strchr(rest, ':') != strrchr(rest, ':'))
		return "An IPv6 address is not enclosed in brackets, as in [::1]:2181.";
	if (*rest == ':')
	{
		*rest++ = '\0';
		port = consists_of(rest, DIGITS) && strlen(rest) <= 5 ? atoi(rest) : 0;
		rest = "";
	}
	wrong = bracketed ? check_address(host, servers) : check_name(host, servers);
	if (wrong != NULL)
		return wrong;
	if (*rest != '\0')
		return "A closing bracket is not followed by a colon and a port.";
	if (port < 1 || port > 65535)
		return "A port is not a number from 1 to 65535.";
	sprintf(servers + strlen(servers), ":%d", port);
	return NULL;
}

const char *
zks_check_hosts(const char *list, char *servers)
{
	servers[0] = '\0';
	if (consists_of(list, BLANKS))
		return NULL;
	for (;;)
	{
		char		server[ENTRY_LEN];
		const char *wrong;
		size_t		len;

		list += strspn(list, BLANKS);
		len = strcspn(list, ",");
		snprintf(server, sizeof(server), "%.*s", (int) len, list);
		list += len;
		for (len = strlen(server); len > 0 && strchr(BLANKS, server[len - 1]) != NULL;)
			server[--len] = '\0';
		wrong = check_server(server, servers);
		if (wrong != NULL || *list == '\0')
			return wrong;
		servers += strlen(servers);
		*servers++ = ',';
		list++;
	}
}

bool
zks_hosts_share(const char *servers, const char *others)
{
	while (*servers != '\0')
	{
		size_t		len = strcspn(servers, ",");

		for (const char *other = others; *other != '\0';)
		{
			size_t		other_len = strcspn(other, ",");

			if (len == other_len && memcmp(servers, other, len) == 0)
				return true;
			other += other_len + (other[other_len] == ',');
		}
		servers += len + (servers[len] == ',');
	}
	return false;
}

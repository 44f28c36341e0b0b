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

/* A part of the list */
typedef struct Part
{
	const char *text;
	size_t		len;
} Part;

static bool
consists_of(Part part, const char *characters)
{
	for (size_t i = 0; i < part.len; i++)
	{
		if (part.text[i] == '\0' || strchr(characters, part.text[i]) == NULL)
			return false;
	}
	return true;
}

static const char *
find(Part part, char c)
{
	return memchr(part.text, c, part.len);
}

static Part
after_first(Part part)
{
	part.text++;
	part.len--;
	return part;
}

/* Ends it before this character.  Returns what begins there; empty if it is not there */
static Part
split(Part *part, char c)
{
	const char *at = find(*part, c);
	Part		rest = {"", 0};

	if (at != NULL)
	{
		rest.text = at;
		rest.len = part->len - (at - part->text);
	}
	part->len -= rest.len;
	return rest;
}

static Part
trim(Part part)
{
	while (part.len > 0 && strchr(BLANKS, part.text[0]) != NULL)
		part = after_first(part);
	while (part.len > 0 && strchr(BLANKS, part.text[part.len - 1]) != NULL)
		part.len--;
	return part;
}

/* What follows the host: nothing, or a colon and the port */
static const char *
check_port(Part rest, int *port)
{
	*port = ZKS_HOSTS_PORT;
	if (rest.len == 0)
		return NULL;
	if (rest.text[0] != ':')
		return "A closing bracket is not followed by a colon and a port.";
	rest = after_first(rest);
	*port = rest.len <= 5 ? atoi(rest.text) : 0;
	if (!consists_of(rest, DIGITS) || *port < 1 || *port > 65535)
		return "A port is not a number from 1 to 65535.";
	return NULL;
}

/*
 * An address can be written in several forms, a zone, after a percent sign,
 * only in one
 */
static const char *
check_address(Part address, char *servers)
{
	Part		zone = split(&address, '%');
	char		text[INET6_ADDRSTRLEN];
	struct in6_addr binary;

	snprintf(text, sizeof(text), "%.*s", (int) address.len, address.text);
	if (address.len >= sizeof(text) || inet_pton(AF_INET6, text, &binary) != 1 ||
		zone.len > NAME_MAX_LEN || !consists_of(zone, NAME_CHARACTERS "%"))
		return "The text in brackets is not an IPv6 address.";
	(void) inet_ntop(AF_INET6, &binary, text, sizeof(text));
	sprintf(servers, "[%s%.*s]", text, (int) zone.len, zone.text);
	return NULL;
}

static const char *
check_name(Part name, char *servers)
{
	if (name.len == 0)
		return "A host name is empty.";
	if (name.len > NAME_MAX_LEN)
		return "A host name is longer than 255 bytes.";
	if (!consists_of(name, NAME_CHARACTERS))
		return "A host name contains an invalid character.";
	for (size_t i = 0; i < name.len; i++)
		*servers++ = name.text[i] >= 'A' && name.text[i] <= 'Z' ?
			name.text[i] - 'A' + 'a' : name.text[i];
	*servers = '\0';
	return NULL;
}

static const char *
check_server(Part server, char *servers)
{
	bool		bracketed = server.len > 0 && server.text[0] == '[';
	const char *wrong;
	Part		host = bracketed ? after_first(server) : server;
	Part		rest = split(&host, bracketed ? ']' : ':');
	int			port;

	if (server.len == 0)
		return "An entry is empty.";
	if (find(server, '/') != NULL)
		return "It contains a path; use zklock.root for that.";
	if (find(server, ' ') != NULL || find(server, '\t') != NULL)
		return "A comma is missing between two servers.";
	if (bracketed && rest.len == 0)
		return "A bracket is not closed.";
	if (bracketed)
		rest = after_first(rest);
	else if (rest.len > 0 && find(after_first(rest), ':') != NULL)
		return "An IPv6 address is not enclosed in brackets, as in [::1]:2181.";
	wrong = bracketed ? check_address(host, servers) : check_name(host, servers);
	if (wrong == NULL)
		wrong = check_port(rest, &port);
	if (wrong == NULL)
		sprintf(servers + strlen(servers), ":%d", port);
	return wrong;
}

const char *
zks_check_hosts(const char *list, char *servers)
{
	Part		given = {list, strlen(list)};
	Part		all = trim(given);

	servers[0] = '\0';
	if (all.len == 0)
		return NULL;
	for (;;)
	{
		Part		server = all;
		const char *wrong;

		all = split(&server, ',');
		wrong = check_server(trim(server), servers);
		if (wrong != NULL || all.len == 0)
			return wrong;
		servers += strlen(servers);
		*servers++ = ',';
		all = after_first(all);
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

/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* See verbena_fault.h. Each request to the NIC and each answer is a line of JSON. */
#define _POSIX_C_SOURCE 200809L

#include "verbena_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Time in milliseconds to wait for an answer. A NIC that is stopped gives none. */
#define PATIENCE 10000

/* Text that grows. If memory runs out, `failed` is set, and nothing more is appended. */
struct text {
	char *at;
	size_t length, room;
	int failed;
};

struct verbena_fault {
	/* The connection, or -1 for a port, which is opened anew for each request. */
	int fd;
	char *path;
	/* The names of the rules as JSON strings with quotes. */
	char **names;
	size_t count;
};

static int explain(char *why, const char *format, ...)
{
	va_list list;

	if (why) {
		va_start(list, format);
		vsnprintf(why, VERBENA_FAULT_WHY, format, list);
		va_end(list);
	}
	return -1;
}

static void put_bytes(struct text *text, const char *bytes, size_t length)
{
	if (!text->failed && text->length + length + 1 > text->room) {
		size_t room = 2 * text->room + length + 256;
		char *at = realloc(text->at, room);

		if (at) {
			text->at = at;
			text->room = room;
		} else {
			text->failed = 1;
		}
	}
	if (text->failed)
		return;
	memcpy(text->at + text->length, bytes, length);
	text->length += length;
	text->at[text->length] = 0;
}

static void put(struct text *text, const char *string)
{
	put_bytes(text, string, strlen(string));
}

/* Appends a JSON string with the escapes that the NIC uses, so that names can be compared. */
static void put_string(struct text *text, const char *string)
{
	static const char plain[] = "\"\\\b\t\n\f\r", letters[] = "\"\\btnfr";
	char escape[8];

	put(text, "\"");
	for (; *string; string++) {
		const char *known = strchr(plain, *string);

		if (known) {
			snprintf(escape, sizeof(escape), "\\%c", letters[known - plain]);
			put(text, escape);
		} else if ((unsigned char)*string < ' ') {
			snprintf(escape, sizeof(escape), "\\u%04x", (unsigned char)*string);
			put(text, escape);
		} else {
			put_bytes(text, string, 1);
		}
	}
	put(text, "\"");
}

/* Appends the name of a field, after a comma unless it is the first field. */
static void put_name(struct text *text, const char *name)
{
	if (text->at && text->at[text->length - 1] != '{')
		put(text, ",");
	put_string(text, name);
	put(text, ":");
}

static void put_words(struct text *text, const char *name, const char *value)
{
	if (!value)
		return;
	put_name(text, name);
	put_string(text, value);
}

static void put_number(struct text *text, const char *name, uint64_t value)
{
	char digits[24];

	if (!value)
		return;
	put_name(text, name);
	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
	put(text, digits);
}

/* --- reading: the functions return the end of a value, or NULL if there is no value -------------------------------------- */

static const char *blank(const char *at)
{
	return at + strspn(at, " \t\r\n");
}

static const char *behind_string(const char *at)
{
	for (at++; *at != '"'; at++) {
		if (*at == '\\')
			at++;
		if (!*at)
			return NULL;
	}
	return at + 1;
}

static const char *behind(const char *at)
{
	size_t depth = 0;

	do {
		at = blank(at);
		if (*at == '"') {
			at = behind_string(at);
			if (!at)
				return NULL;
		} else if (*at == '{' || *at == '[') {
			depth++;
			at++;
		} else if (*at == '}' || *at == ']') {
			if (!depth)
				return NULL;
			depth--;
			at++;
		} else if (*at == ',' || *at == ':') {
			if (!depth)
				return NULL;
			at++;
		} else {
			size_t length = strcspn(at, " \t\r\n\"{}[],:");

			if (!length)
				return NULL;
			at += length;
		}
	} while (depth);
	return at;
}

/* Returns the value of a field of the object at `at`, or NULL. */
static const char *field(const char *at, const char *name)
{
	size_t length = strlen(name);

	if (*at != '{')
		return NULL;
	at = blank(at + 1);
	while (*at == '"') {
		const char *key = at + 1, *end = behind_string(at);

		if (!end)
			return NULL;
		at = blank(end);
		if (*at != ':')
			return NULL;
		at = blank(at + 1);
		if ((size_t)(end - 1 - key) == length && !memcmp(key, name, length))
			return at;
		at = behind(at);
		if (!at)
			return NULL;
		at = blank(at);
		if (*at == ',')
			at = blank(at + 1);
	}
	return NULL;
}

static uint64_t number(const char *at)
{
	return at ? strtoull(at, NULL, 10) : 0;
}

/* Returns the element of a list after the one at `at`, or NULL. */
static const char *next_of(const char *at)
{
	at = behind(at);
	if (!at)
		return NULL;
	at = blank(at);
	return *at == ',' ? blank(at + 1) : NULL;
}

/* --- asking ---------------------------------------------------------------------------------------------------------------- */

static int is_port(const char *path)
{
	struct stat stat_of;

	return !stat(path, &stat_of) && S_ISCHR(stat_of.st_mode);
}

static int open_door(const char *path, char *why)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct pollfd ready = { .events = POLLIN };
	char old[512];
	int fd;

	if (is_port(path)) {
		fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
		if (fd < 0)
			return explain(why, "%s: %s", path, strerror(errno));
		/* Discard the answer to a program that did not wait for it. */
		ready.fd = fd;
		while (poll(&ready, 1, 0) > 0 && read(fd, old, sizeof(old)) > 0)
			;
		return fd;
	}
	if (strlen(path) >= sizeof(address.sun_path))
		return explain(why, "%s is too long for the path of a socket", path);
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return explain(why, "cannot create a socket: %s", strerror(errno));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		explain(why, "%s: %s", path, strerror(errno));
		close(fd);
		return -1;
	}
	return fd;
}

static int send_all(int fd, const char *bytes, size_t length)
{
	while (length) {
		ssize_t done = send(fd, bytes, length, MSG_NOSIGNAL);

		if (done < 0 && errno == ENOTSOCK)
			done = write(fd, bytes, length);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return -1;
		bytes += done;
		length -= (size_t)done;
	}
	return 0;
}

/* Sends a request and reads the answer, which the caller frees. Returns 0 if the NIC has executed the request. */
static int converse(int fd, const struct text *asked, struct text *answer, char *why)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	char part[4096];
	const char *ok, *error, *end;

	if (asked->failed)
		return explain(why, "out of memory");
	if (send_all(fd, asked->at, asked->length))
		return explain(why, "the connection to the NIC is closed: %s", strerror(errno));
	while (!answer->length || answer->at[answer->length - 1] != '\n') {
		int found = poll(&ready, 1, PATIENCE);
		ssize_t length;

		if (found < 0 && errno == EINTR)
			continue;
		if (found <= 0)
			return explain(why, "the NIC has not answered within %d s", PATIENCE / 1000);
		length = read(fd, part, sizeof(part));
		if (length < 0 && errno == EINTR)
			continue;
		if (length <= 0)
			return explain(why, "the NIC has closed the connection");
		put_bytes(answer, part, (size_t)length);
		if (answer->failed)
			return explain(why, "out of memory");
	}
	ok = field(blank(answer->at), "ok");
	if (ok && !strncmp(ok, "true", 4))
		return 0;
	error = field(blank(answer->at), "error");
	end = error && *error == '"' ? behind_string(error) : NULL;
	if (!end)
		return explain(why, "the NIC gave no reason");
	return explain(why, "%.*s", (int)(end - error) - 2, error + 1);
}

static int ask(struct verbena_fault *fault, const struct text *asked, struct text *answer, char *why)
{
	int fd = fault->fd, rc;

	if (fd < 0)
		fd = open_door(fault->path, why);
	if (fd < 0)
		return -1;
	rc = converse(fd, asked, answer, why);
	if (fault->fd < 0)
		close(fd);
	return rc;
}

static void release(struct verbena_fault *fault)
{
	char rest[256];

	if (fault->fd >= 0) {
		/* The NIC closes the connection after it has removed the rules. */
		shutdown(fault->fd, SHUT_WR);
		while (read(fault->fd, rest, sizeof(rest)) > 0)
			;
		close(fault->fd);
	}
	while (fault->count)
		free(fault->names[--fault->count]);
	free(fault->names);
	free(fault->path);
	free(fault);
}

/* Stores the names of the rules of a file. */
static int keep_names(struct verbena_fault *fault, const char *rules, char *why)
{
	const char *rule = field(blank(rules), "rule");

	rule = rule && *rule == '[' ? blank(rule + 1) : NULL;
	for (; rule && *rule == '{'; rule = next_of(rule)) {
		const char *name = field(rule, "name");
		const char *end = name && *name == '"' ? behind_string(name) : NULL;
		char **names = realloc(fault->names, (fault->count + 1) * sizeof(*names));

		if (!names)
			return explain(why, "out of memory");
		fault->names = names;
		if (!end)
			return explain(why, "a rule of the file has no name");
		names[fault->count] = strndup(name, (size_t)(end - name));
		if (!names[fault->count])
			return explain(why, "out of memory");
		fault->count++;
	}
	return fault->count ? 0 : explain(why, "the file has no rule");
}

struct verbena_fault *verbena_fault_add_json(const char *nic, const char *rules, char *why)
{
	struct verbena_fault *fault = calloc(1, sizeof(*fault));
	struct text asked = { 0 }, answer = { 0 };
	const char *at;
	int rc = -1;

	if (!nic)
		nic = getenv("VERBENA_CONTROL");
	if (fault) {
		fault->fd = -1;
		fault->path = nic ? strdup(nic) : NULL;
	}
	if (!nic) {
		explain(why, "VERBENA_CONTROL is not set: set it to the control socket of the NIC");
	} else if (!fault || !fault->path) {
		explain(why, "out of memory");
	} else if (!keep_names(fault, rules, why)) {
		/* Rules cannot end with the connection of a port, because a port stays open after a program has closed it. */
		int port = is_port(nic);

		put(&asked, port ? "{\"command\":\"fault-add\",\"set\":"
				 : "{\"command\":\"fault-add\",\"while_connected\":true,\"set\":");
		/* A request is one line. JSON strings contain no line feeds, so these can be replaced. */
		for (at = rules; *at; at++)
			put_bytes(&asked, *at == '\n' ? " " : at, 1);
		put(&asked, "}\n");
		if (!port)
			fault->fd = open_door(nic, why);
		if (port || fault->fd >= 0)
			rc = ask(fault, &asked, &answer, why);
	}
	free(asked.at);
	free(answer.at);
	if (!rc)
		return fault;
	if (fault)
		release(fault);
	return NULL;
}

struct verbena_fault *verbena_fault_add(const char *nic, const struct verbena_rule *rule, char *why)
{
	static atomic_uint made;
	struct verbena_fault *fault = NULL;
	struct text text = { 0 };
	char name[64];

	if (!rule->action) {
		explain(why, "the rule has no action");
		return NULL;
	}
	snprintf(name, sizeof(name), "c %ld.%u", (long)getpid(), atomic_fetch_add(&made, 1) + 1);
	put(&text, "{\"version\":1,\"rule\":[{\"name\":");
	put_string(&text, rule->name ? rule->name : name);
	put(&text, rule->optional ? ",\"optional\":true,\"action\":" : ",\"action\":");
	if (*rule->action == '{')
		put(&text, rule->action);
	else
		put_string(&text, rule->action);
	put(&text, ",\"match\":{");
	put_words(&text, "on", rule->on);
	put_words(&text, "direction", rule->direction);
	put_words(&text, "opcode", rule->opcode);
	put_words(&text, "command", rule->command);
	put_number(&text, "qp", rule->qp);
	put_number(&text, "qp_created", rule->qp_created);
	put_number(&text, "packet_of_message", rule->packet_of_message);
	put_number(&text, "nth", rule->nth);
	put_number(&text, "every", rule->every);
	put_number(&text, "limit", rule->limit);
	if (rule->more) {
		if (text.at && text.at[text.length - 1] != '{')
			put(&text, ",");
		put(&text, rule->more);
	}
	put(&text, "}}]}");
	if (text.failed)
		explain(why, "out of memory");
	else
		fault = verbena_fault_add_json(nic, text.at, why);
	free(text.at);
	return fault;
}

int verbena_fault_look(struct verbena_fault *fault, struct verbena_fault_told *told, char *why)
{
	struct text asked = { 0 }, answer = { 0 };
	const char *rule;
	size_t found = 0;
	int rc;

	memset(told, 0, sizeof(*told));
	put(&asked, "{\"command\":\"faults\"}\n");
	rc = ask(fault, &asked, &answer, why);
	rule = rc ? NULL : field(blank(answer.at), "rules");
	rule = rule && *rule == '[' ? blank(rule + 1) : NULL;
	for (; rule && *rule == '{'; rule = next_of(rule)) {
		const char *name = field(rule, "name");
		const char *optional = field(rule, "optional");
		uint64_t fired = number(field(rule, "fired"));

		for (size_t i = 0; name && i < fault->count; i++) {
			if (strncmp(name, fault->names[i], strlen(fault->names[i])))
				continue;
			found++;
			told->matched += number(field(rule, "matched"));
			told->fired += fired;
			told->idle += !fired && !(optional && !strncmp(optional, "true", 4));
		}
	}
	if (!rc && found != fault->count)
		rc = explain(why, "a rule is missing: another program removed it, or its name has escapes that the NIC does not write");
	free(asked.at);
	free(answer.at);
	return rc;
}

int verbena_fault_end(struct verbena_fault *fault, struct verbena_fault_told *told, char *why)
{
	struct verbena_fault_told own;
	struct text asked = { 0 }, answer = { 0 };
	int rc = verbena_fault_look(fault, &own, why);

	for (size_t i = 0; fault->fd < 0 && i < fault->count; i++) {
		asked.length = answer.length = 0;
		put(&asked, "{\"command\":\"fault-remove\",\"name\":");
		put(&asked, fault->names[i]);
		put(&asked, "}\n");
		if (ask(fault, &asked, &answer, rc ? NULL : why))
			rc = -1;
	}
	free(asked.at);
	free(answer.at);
	if (told)
		*told = own;
	if (!rc && own.idle)
		rc = explain(why, "%u rules that are not optional have never fired", own.idle);
	release(fault);
	return rc;
}

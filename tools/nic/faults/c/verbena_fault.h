/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Fault rules for a Verbena NIC (Documentation/faults.md), for programs in C11. Compile verbena_fault.c with the
 * program; it needs only POSIX.
 *
 *	struct verbena_fault *fault;
 *	char why[VERBENA_FAULT_WHY];
 *
 *	fault = verbena_fault_add(NULL, &(struct verbena_rule){
 *		.action = "drop", .opcode = "RDMA WRITE", .packet_of_message = 3, .limit = 1 }, why);
 *	if (!fault)
 *		errx(1, "%s", why);
 *	...
 *	if (verbena_fault_end(fault, NULL, why))
 *		errx(1, "%s", why);
 *
 * verbena_fault_end() removes the rules of a handle. On the host they belong to the connection, so the NIC also removes
 * them when the program ends in any other way.
 */
#ifndef VERBENA_FAULT_H
#define VERBENA_FAULT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Size of the buffer for an error message, in bytes. */
#define VERBENA_FAULT_WHY 512

/* A rule. A member that is NULL or 0 is left out. */
struct verbena_rule {
	/* "drop", "fatal", ...; or JSON, if it begins with a brace: "{\"delay_us\": 500}". */
	const char *action;
	/* A name that no other rule of the device has. If it is left out, a name is made. */
	const char *name;
	/* "packet", "send", "command", ... */
	const char *on;
	/* "in" or "out". */
	const char *direction;
	const char *opcode;
	const char *command;
	uint32_t qp;
	uint64_t qp_created;
	uint64_t packet_of_message;
	uint64_t nth;
	uint64_t every;
	uint64_t limit;
	/* If not 0, verbena_fault_end() is no error although the rule has never fired. */
	int optional;
	/* More fields of the match, as JSON without the braces: "\"byte\": 0, \"after_ms\": 5". */
	const char *more;
};

/* Counts of all rules of a handle together. */
struct verbena_fault_told {
	/* Number of matches. */
	uint64_t matched;
	/* Number of firings. */
	uint64_t fired;
	/* Number of rules that never fired and are not optional. */
	unsigned int idle;
};

struct verbena_fault;

/*
 * Adds a rule to the NIC at nic: the control socket of the NIC, or inside a guest the port that leads to it. If nic is
 * NULL, VERBENA_CONTROL has the path. Returns NULL on an error, with the reason in why (VERBENA_FAULT_WHY bytes, or
 * NULL).
 */
struct verbena_fault *verbena_fault_add(const char *nic, const struct verbena_rule *rule, char *why);

/* Adds all rules of a file in JSON, or none: "{\"version\": 1, \"rule\": [...]}". */
struct verbena_fault *verbena_fault_add_json(const char *nic, const char *rules, char *why);

/* Stores the counts of the rules in told. Returns 0, or -1 with the reason in why. */
int verbena_fault_look(struct verbena_fault *fault, struct verbena_fault_told *told, char *why);

/*
 * Removes the rules and frees the handle. Stores the counts in told, which may be NULL. Returns 0, or -1 with the
 * reason in why: the NIC does not answer, or a rule that is not optional has never fired, so that the program has
 * tested nothing.
 */
int verbena_fault_end(struct verbena_fault *fault, struct verbena_fault_told *told, char *why);

#ifdef __cplusplus
}
#endif

#endif

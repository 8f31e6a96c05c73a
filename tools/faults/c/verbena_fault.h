/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Rules of what is to go wrong in a Verbena NIC (Documentation/faults.md), for programs in C11. Compile verbena_fault.c with them; it needs
 * nothing but POSIX.
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
 * A rule goes with its handle; on the host, where it is tied to the connection, also when the program ends in any other way.
 */
#ifndef VERBENA_FAULT_H
#define VERBENA_FAULT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The room that an explanation needs. */
#define VERBENA_FAULT_WHY 512

/* A rule. What is NULL or 0 is not said. */
struct verbena_rule {
	/* "drop", "fatal", ...; or JSON, if it begins with a brace: "{\"delay_us\": 500}". */
	const char *action;
	/* A name that no other rule of the device has. Not said: one is made. */
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
	/* It may never fire. */
	int optional;
	/* More fields of the match, as JSON without the braces: "\"byte\": 0, \"after_ms\": 5". */
	const char *more;
};

/* How rules went, all of a handle together. */
struct verbena_fault_told {
	/* What they name came so often. */
	uint64_t matched;
	/* They fired so often. */
	uint64_t fired;
	/* So many of them never fired and are not optional. */
	unsigned int idle;
};

struct verbena_fault;

/*
 * Adds a rule to the NIC at nic: its control socket, or inside a guest the port that leads there; NULL: what VERBENA_CONTROL names.
 * Returns NULL if it is refused, with the reason in why (of VERBENA_FAULT_WHY bytes, or NULL).
 */
struct verbena_fault *verbena_fault_add(const char *nic, const struct verbena_rule *rule, char *why);

/* The same with a file of rules in JSON, all or none: "{\"version\": 1, \"rule\": [...]}". */
struct verbena_fault *verbena_fault_add_json(const char *nic, const char *rules, char *why);

/* How the rules of the handle went until now. Returns 0, or -1 with the reason in why. */
int verbena_fault_look(struct verbena_fault *fault, struct verbena_fault_told *told, char *why);

/*
 * The end of the rules and of the handle. told may be NULL. Returns 0, or -1 with the reason in why: the NIC has gone, or a rule that is not
 * optional has never fired, so what was to be tested was not.
 */
int verbena_fault_end(struct verbena_fault *fault, struct verbena_fault_told *told, char *why);

#ifdef __cplusplus
}
#endif

#endif

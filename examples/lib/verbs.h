/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Common parts of the examples: a device, two ends of a connection in one process, and the work
 * between them.
 *
 * If a resource cannot be created, the program ends with a line on standard error and status 2. The
 * subject of a scenario is always in the file of the example, and never here.
 */
#ifndef VERBS_H
#define VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A device ($DEVICE, or the first one), and the GID of connections (the first valid GID from index
 * $GID, or from index 0).
 */
struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	int gid_index;
	union ibv_gid gid;
};

/*
 * A queue pair with its own CQ and memory. If `srq` is not NULL, its receives come from that SRQ.
 */
struct end {
	struct device *device;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
};

/* Retry limits of a queue pair, in the encoding of ibv_modify_qp(3). */
struct retry_limits {
	uint8_t timeout, retry_cnt, rnr_retry;
};
#define MAX_RETRIES ((struct retry_limits){ .timeout = 16, .retry_cnt = 7, .rnr_retry = 7 })

/* The work of most scenarios: PIECES pieces of PIECE bytes go from one end to the other. */
#define PIECES 64
#define PIECE 4096
#define BYTES (PIECES * PIECE)

/* The pieces that have completed with success. */
struct work {
	bool done[PIECES];
};

/* Opens the device, or ends the program. */
void device_open(struct device *device);
/* Opens the device. Returns false if there is no device with a GID. */
bool device_try(struct device *device);
void device_close(struct device *device);

/*
 * Creates a CQ, a region of BYTES, and a queue pair (RC or UC) in RESET, with room for PIECES sends
 * and PIECES receives.
 */
void end_create(struct end *end, struct device *device, enum ibv_qp_type type, int cqe, struct ibv_srq *srq);
void end_destroy(struct end *end);
/* Creates both ends, with a CQ of PIECES entries each, and prepares their memory. */
void ends_create(struct end *from, struct end *to, struct device *device, enum ibv_qp_type type);
/* Moves both ends from any state through RESET to RTS. */
void connect_ends(struct end *one, struct end *other, struct retry_limits limits);

/*
 * Posts a piece of the work as a WRITE or a SEND, or a receive for a piece. The wr_id is the number
 * of the piece. Returns 0 or an errno, as ibv_post_send(3).
 */
int post_write(struct end *from, struct end *to, int piece);
int post_send(struct end *from, int piece);
int post_recv(struct end *to, int piece);

/* Waits for the next completion for at most @milliseconds. Returns false if there was none. */
bool next(struct ibv_cq *cq, struct ibv_wc *wc, int milliseconds);
/*
 * Waits for an asynchronous event of a type for at most @milliseconds. Returns false if there was
 * none. Acknowledges all events, and ignores those of other types.
 */
bool wait_for_event(struct device *device, enum ibv_event_type type, int milliseconds);

/*
 * Writes the pieces that are not done, waits until all of these WRITEs have completed with any
 * status, and records those that succeeded. Returns the status of the first WRITE that failed, or
 * IBV_WC_SUCCESS, or -1 if there was no completion for five seconds.
 */
int write_rest(struct end *from, struct end *to, struct work *work);

/*
 * Does all of the work. After each failure it prints the status and reconnects both ends. It
 * connects at most @most times. Returns true if all pieces have arrived.
 */
bool write_all(struct device *device, struct retry_limits limits, int most);

/* Fills the memory of one end, and clears that of the other. */
void prepare(struct end *from, struct end *to);
/* Returns the number of pieces that have arrived completely. */
int count_arrived(const struct end *from, const struct end *to);

/* Prints a line on standard error and ends the program with status 2. */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/*
 * The main function of an example: `NAME careless` or `NAME careful`. The exit status is 0 if the
 * function of that form returns true, else 1.
 */
int scenario(int argc, char **argv, bool (*careless)(struct device *), bool (*careful)(struct device *));

#endif

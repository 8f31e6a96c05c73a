/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What the examples share: a device, two ends of a connection in one process, and work between them.
 *
 * All that cannot be had ends the program with a line on standard error and status 2. What a scenario is about is never done here: it
 * is in the example's own file.
 */
#ifndef VERBS_H
#define VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

/* A device ($DEVICE, else the first), and the GID that connections use ($GID: its index, else the first that is there). */
struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	int gid_index;
	union ibv_gid gid;
};

/* A queue pair with a CQ and memory of its own; its receives may come from an SRQ. */
struct end {
	struct device *device;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
};

/* How long an end waits for its peer: as ibv_modify_qp(3) has them. */
struct patience {
	uint8_t timeout, retry_cnt, rnr_retry;
};
#define PATIENT ((struct patience){ .timeout = 16, .retry_cnt = 7, .rnr_retry = 7 })

/* The work of most scenarios: so many pieces of so many bytes go from one end to the other. */
#define PIECES 64
#define PIECE 4096
#define BYTES (PIECES * PIECE)

struct work {
	bool done[PIECES];
};

void device_open(struct device *device);
/* The same, where it may not be there: whether it is. */
bool device_try(struct device *device);
void device_close(struct device *device);

/* Creates CQ, region of BYTES, and a queue pair (RC or UC) with room for PIECES work requests each way, in RESET. */
void end_create(struct end *end, struct device *device, enum ibv_qp_type type, int cqe, struct ibv_srq *srq);
void end_destroy(struct end *end);
/* Both ends with a CQ of PIECES entries each, what one is to write in its memory, and nothing in the other's. */
void ends_create(struct end *from, struct end *to, struct device *device, enum ibv_qp_type type);
/* From whatever state, through RESET, to RTS at both ends. */
void connect_ends(struct end *one, struct end *other, struct patience patience);

/* Posts a piece of work as a WRITE or a SEND, or a receive for one; 0 or errno, as ibv_post_send. The wr_id is the number of the piece. */
int post_write(struct end *from, struct end *to, int piece);
int post_send(struct end *from, int piece);
int post_recv(struct end *to, int piece);

/* The next completion, waited for at most so long; false: there was none. */
bool next(struct ibv_cq *cq, struct ibv_wc *wc, int milliseconds);
/* The next asynchronous event of a type, acknowledged, waited for at most so long; others are acknowledged and forgotten. */
bool event_came(struct device *device, enum ibv_event_type type, int milliseconds);

/*
 * Writes what is not done, and notes what is, until all of it has completed, in whatever way; the status of the first that failed, or
 * IBV_WC_SUCCESS. -1: nothing completed for five seconds.
 */
int write_rest(struct end *from, struct end *to, struct work *work);

/*
 * All of the work, over connections of this patience: as often as it fails both ends begin anew, so many times at most. Each status is printed.
 * Whether all is there.
 */
bool write_all(struct device *device, struct patience patience, int most);

/* Fills the memory of one end, and clears that of the other; how many pieces are there. */
void prepare(struct end *from, struct end *to);
int arrived(const struct end *from, const struct end *to);

void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* The program: `NAME careless` or `NAME careful`; status 0 if the function says that all was well. */
int scenario(int argc, char **argv, bool (*careless)(struct device *), bool (*careful)(struct device *));

#endif

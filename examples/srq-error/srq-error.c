// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * An SRQ is in error. The program gets IBV_EVENT_SRQ_ERR, a queue pair of the SRQ is in ERR, and
 * the receives of the SRQ do not complete.
 */
#include "../lib/verbs.h"

#include <stdio.h>

static struct ibv_srq *create(struct device *device)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = PIECES, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(device->pd, &init);

	if (!srq)
		die("the SRQ cannot be created");
	return srq;
}

/*
 * Sends all pieces. Returns the status of the first SEND that failed, 0, or -1 if a post fails or a
 * completion is missing.
 */
static int send_all(struct end *from, struct end *to)
{
	struct ibv_wc wc;
	int i, first = 0;

	for (i = 0; i < PIECES; i++)
		if (post_recv(to, i) || post_send(from, i))
			return -1;
	for (i = 0; i < PIECES; i++) {
		if (!next(from->cq, &wc, 10000))
			return -1;
		if (wc.status && !first)
			first = wc.status;
	}
	return first;
}

static bool run(struct device *device, bool whole)
{
	struct ibv_srq *srq = create(device);
	struct end from, to;
	int status;

	end_create(&from, device, IBV_QPT_RC, PIECES, NULL);
	end_create(&to, device, IBV_QPT_RC, PIECES, srq);
	prepare(&from, &to);
	connect_ends(&from, &to, (struct retry_limits){ .timeout = 14, .retry_cnt = 3, .rnr_retry = 7 });
	status = send_all(&from, &to);
	if (status > 0) {
		puts(ibv_wc_status_str(status));
		if (whole && wait_for_event(device, IBV_EVENT_SRQ_ERR, 1000)) {
			puts("IBV_EVENT_SRQ_ERR: queue pair and SRQ are created again");
			end_destroy(&to);
			if (ibv_destroy_srq(srq))
				die("the SRQ cannot be destroyed");
			srq = create(device);
			end_create(&to, device, IBV_QPT_RC, PIECES, srq);
			prepare(&from, &to);
		}
		connect_ends(&from, &to, (struct retry_limits){ .timeout = 14, .retry_cnt = 3, .rnr_retry = 2 });
		status = send_all(&from, &to);
	}
	return status == 0 && count_arrived(&from, &to) == PIECES;
}

/* Handles the failure as that of a queue pair. */
static bool careless(struct device *device)
{
	return run(device, false);
}

/* Creates the SRQ again, because an SRQ in error stays in error. */
static bool careful(struct device *device)
{
	return run(device, true);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

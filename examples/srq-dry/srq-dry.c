// SPDX-License-Identifier: GPL-2.0 OR MIT
/* An SRQ has no receives left while a peer sends. No rule is needed, because too few are posted. */
#include "../lib/verbs.h"

#include <stdio.h>

#define AT_ONCE 16

static bool receive(struct device *device, bool refill)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = PIECES, .max_sge = 1 } };
	struct ibv_srq_attr low = { .srq_limit = AT_ONCE / 2 };
	struct retry_limits limits = { .timeout = 16, .retry_cnt = 7, .rnr_retry = refill ? 7 : 2 };
	struct ibv_srq *srq = ibv_create_srq(device->pd, &init);
	struct end from, to;
	struct ibv_wc wc;
	int posted, sent = 0;

	if (!srq)
		die("the SRQ cannot be created");
	end_create(&from, device, IBV_QPT_RC, PIECES, NULL);
	end_create(&to, device, IBV_QPT_RC, PIECES, srq);
	prepare(&from, &to);
	connect_ends(&from, &to, limits);
	for (posted = 0; posted < AT_ONCE; posted++)
		post_recv(&to, posted);
	/*
	 * If fewer receives are left, the device reports it once. After that the limit has to be
	 * armed again.
	 */
	if (refill && ibv_modify_srq(srq, &low, IBV_SRQ_LIMIT))
		die("the limit of the SRQ cannot be armed");
	for (int i = 0; i < PIECES; i++)
		if (post_send(&from, i))
			return false;
	while (sent < PIECES) {
		if (refill && wait_for_event(device, IBV_EVENT_SRQ_LIMIT_REACHED, 0)) {
			for (int i = 0; i < AT_ONCE / 2 && posted < PIECES; i++)
				post_recv(&to, posted++);
			if (posted < PIECES && ibv_modify_srq(srq, &low, IBV_SRQ_LIMIT))
				die("the limit of the SRQ cannot be armed");
		}
		if (!next(from.cq, &wc, refill ? 1 : 5000)) {
			if (!refill)
				return false;
			continue;
		}
		if (wc.status) {
			printf("%s at piece %d\n", ibv_wc_status_str(wc.status), (int)wc.wr_id);
			return false;
		}
		sent++;
	}
	return count_arrived(&from, &to) == PIECES;
}

/* Posts no receives while it waits for the completions of its sends. */
static bool careless(struct device *device)
{
	return receive(device, false);
}

/* Arms the limit of the SRQ, and posts receives when the device reports that few are left. */
static bool careful(struct device *device)
{
	return receive(device, true);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
/* An SRQ runs dry while others send. No rule is needed: the receives are simply too few. */
#include "../lib/verbs.h"

#include <stdio.h>

#define AT_ONCE 16

static bool receive(struct device *device, bool refill)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = PIECES, .max_sge = 1 } };
	struct ibv_srq_attr low = { .srq_limit = AT_ONCE / 2 };
	struct patience patience = { .timeout = 16, .retry_cnt = 7, .rnr_retry = refill ? 7 : 2 };
	struct ibv_srq *srq = ibv_create_srq(device->pd, &init);
	struct end from, to;
	struct ibv_wc wc;
	int posted, sent = 0;

	if (!srq)
		die("no SRQ");
	end_create(&from, device, IBV_QPT_RC, PIECES, NULL);
	end_create(&to, device, IBV_QPT_RC, PIECES, srq);
	prepare(&from, &to);
	connect_ends(&from, &to, patience);
	for (posted = 0; posted < AT_ONCE; posted++)
		post_recv(&to, posted);
	/* Below so many the device tells it, once; then it has to be armed again. */
	if (refill && ibv_modify_srq(srq, &low, IBV_SRQ_LIMIT))
		die("no limit");
	for (int i = 0; i < PIECES; i++)
		if (post_send(&from, i))
			return false;
	while (sent < PIECES) {
		if (refill && event_came(device, IBV_EVENT_SRQ_LIMIT_REACHED, 0)) {
			for (int i = 0; i < AT_ONCE / 2 && posted < PIECES; i++)
				post_recv(&to, posted++);
			if (posted < PIECES && ibv_modify_srq(srq, &low, IBV_SRQ_LIMIT))
				die("no limit");
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
	return arrived(&from, &to) == PIECES;
}

/* Posts receives when it has polled what is in the CQ, which may be too late. */
static bool careless(struct device *device)
{
	return receive(device, false);
}

/* Has the device tell when receives become few, and posts more then. */
static bool careful(struct device *device)
{
	return receive(device, true);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

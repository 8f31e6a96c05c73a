// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A receiver that is not ready for a while: RNR NAKs, one after the other. */
#include "../lib/verbs.h"

#include <stdio.h>

static bool send_all(struct device *device, int rnr_retry)
{
	struct patience patience = { .timeout = 16, .retry_cnt = 7, .rnr_retry = rnr_retry };
	struct end from, to;
	struct ibv_wc wc;
	int i;

	ends_create(&from, &to, device, IBV_QPT_RC);
	connect_ends(&from, &to, patience);
	for (i = 0; i < PIECES; i++)
		if (post_recv(&to, i) || post_send(&from, i))
			return false;
	for (i = 0; i < PIECES; i++) {
		if (!next(from.cq, &wc, 20000))
			return false;
		if (wc.status) {
			printf("%s at piece %d\n", ibv_wc_status_str(wc.status), (int)wc.wr_id);
			return false;
		}
	}
	return arrived(&from, &to) == PIECES;
}

/* Has receives posted in time, and so believes that there will be no RNR NAK. */
static bool careless(struct device *device)
{
	return send_all(device, 2);
}

/* 7: as often as it takes (C9-139). What is to end nevertheless needs a time limit of the program's own. */
static bool careful(struct device *device)
{
	return send_all(device, 7);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

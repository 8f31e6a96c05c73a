// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A receiver is not ready for a while, and answers with many RNR NAKs. */
#include "../lib/verbs.h"

#include <stdio.h>

static bool send_all(struct device *device, int rnr_retry)
{
	struct retry_limits limits = { .timeout = 16, .retry_cnt = 7, .rnr_retry = rnr_retry };
	struct end from, to;
	struct ibv_wc wc;
	int i;

	ends_create(&from, &to, device, IBV_QPT_RC);
	connect_ends(&from, &to, limits);
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
	return count_arrived(&from, &to) == PIECES;
}

/* Allows two retries, because it posts receives in time. */
static bool careless(struct device *device)
{
	return send_all(device, 2);
}

/*
 * Allows any number of retries: 7 means no limit (C9-139). A program that must end needs its own
 * time limit.
 */
static bool careful(struct device *device)
{
	return send_all(device, 7);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

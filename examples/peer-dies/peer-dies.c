// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A peer fails in the middle of a WRITE, and works again later. The WRITE completes with
 * IBV_WC_RETRY_EXC_ERR, and the WRITEs after it are flushed.
 */
#include "../lib/verbs.h"

#include <stdio.h>

static const struct retry_limits limits = { .timeout = 14, .retry_cnt = 3, .rnr_retry = 7 };

/* Counts completions, and does not check their statuses. */
static bool careless(struct device *device)
{
	struct end from, to;
	struct ibv_wc wc;
	int i;

	ends_create(&from, &to, device, IBV_QPT_RC);
	connect_ends(&from, &to, limits);
	for (i = 0; i < PIECES; i++)
		if (post_write(&from, &to, i))
			return false;
	for (i = 0; i < PIECES; i++)
		if (!next(from.cq, &wc, 5000))
			return false;
	printf("%d completions, %d of %d pieces have arrived\n", PIECES, count_arrived(&from, &to), PIECES);
	return count_arrived(&from, &to) == PIECES;
}

/*
 * Records the WRITEs that have completed with success. After every work request has completed, none
 * is pending. Then the program reconnects both ends and repeats the other WRITEs. Some of these may
 * be executed twice.
 */
static bool careful(struct device *device)
{
	struct work work = { 0 };
	struct end from, to;
	int status, lives = 0;

	ends_create(&from, &to, device, IBV_QPT_RC);
	do {
		connect_ends(&from, &to, limits);
		status = write_rest(&from, &to, &work);
		if (status > 0)
			printf("%s at piece %d: both ends reconnect\n", ibv_wc_status_str(status), count_arrived(&from, &to));
	} while (status > 0 && ++lives < 10);
	return status == 0 && count_arrived(&from, &to) == PIECES;
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

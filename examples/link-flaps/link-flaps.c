// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The link goes down, and comes back a little later. */
#include "../lib/verbs.h"

#include <stdio.h>

/* Waits 4 ms, twice, because the network is a fast one. */
static bool careless(struct device *device)
{
	struct patience hasty = { .timeout = 10, .retry_cnt = 1, .rnr_retry = 7 };
	struct work work = { 0 };
	struct end from, to;
	int status;

	end_create(&from, device, IBV_QPT_RC, PIECES, NULL);
	end_create(&to, device, IBV_QPT_RC, PIECES, NULL);
	prepare(&from, &to);
	connect_ends(&from, &to, hasty);
	status = write_rest(&from, &to, &work);
	if (status > 0)
		puts(ibv_wc_status_str(status));
	return status == 0 && arrived(&from, &to) == PIECES;
}

/* Has a timeout that outlasts a link's coming back (more than two seconds), and begins anew if that was not enough. */
static bool careful(struct device *device)
{
	struct work work = { 0 };
	struct end from, to;
	int status, lives = 0;

	end_create(&from, device, IBV_QPT_RC, PIECES, NULL);
	end_create(&to, device, IBV_QPT_RC, PIECES, NULL);
	prepare(&from, &to);
	do {
		connect_ends(&from, &to, PATIENT);
		status = write_rest(&from, &to, &work);
	} while (status > 0 && ++lives < 10);
	return status == 0 && arrived(&from, &to) == PIECES;
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

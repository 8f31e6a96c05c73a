// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Requests are answered by NAKs, sequence error after sequence error, as when a switch has begun to reorder packets. */
#include "../lib/verbs.h"

#include <stdio.h>

static bool write_all(struct device *device, int retry_cnt, int most)
{
	struct patience patience = { .timeout = 16, .retry_cnt = retry_cnt, .rnr_retry = 7 };
	struct work work = { 0 };
	struct end from, to;
	int status, lives = 0;

	end_create(&from, device, IBV_QPT_RC, PIECES, NULL);
	end_create(&to, device, IBV_QPT_RC, PIECES, NULL);
	prepare(&from, &to);
	do {
		connect_ends(&from, &to, patience);
		status = write_rest(&from, &to, &work);
		if (status > 0)
			puts(ibv_wc_status_str(status));
	} while (status > 0 && ++lives < most);
	return status == 0 && arrived(&from, &to) == PIECES;
}

/* A NAK is a retry (C9-138), and it has none: packets are not lost on this network. */
static bool careless(struct device *device)
{
	return write_all(device, 0, 1);
}

/* Seven at the same place are allowed, and after that both ends begin anew. */
static bool careful(struct device *device)
{
	return write_all(device, 7, 10);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

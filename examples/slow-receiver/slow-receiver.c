// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A receiver that does nothing at all for a while: its host is busy, or it is being moved. */
#include "../lib/verbs.h"

#include <stdio.h>

static bool write_all(struct device *device, struct patience patience, int most)
{
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

/* 4 ms, twice: more than any receiver has ever needed. */
static bool careless(struct device *device)
{
	return write_all(device, (struct patience){ .timeout = 10, .retry_cnt = 1, .rnr_retry = 7 }, 1);
}

/* More than two seconds, and then both ends begin anew. */
static bool careful(struct device *device)
{
	return write_all(device, PATIENT, 10);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

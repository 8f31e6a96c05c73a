// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A peer dies in the middle of a WRITE, and comes back: IBV_WC_RETRY_EXC_ERR for what was under way, flushes behind it. */
#include "../lib/verbs.h"

#include <stdio.h>

static const struct patience patience = { .timeout = 14, .retry_cnt = 3, .rnr_retry = 7 };

/* Counts completions, and looks at none. */
static bool careless(struct device *device)
{
	struct end from, to;
	struct ibv_wc wc;
	int i;

	ends_create(&from, &to, device, IBV_QPT_RC);
	connect_ends(&from, &to, patience);
	for (i = 0; i < PIECES; i++)
		if (post_write(&from, &to, i))
			return false;
	for (i = 0; i < PIECES; i++)
		if (!next(from.cq, &wc, 5000))
			return false;
	printf("%d completions, %d pieces are there\n", PIECES, arrived(&from, &to));
	return arrived(&from, &to) == PIECES;
}

/*
 * Notes what has completed well. Once every work request has come back, nothing is under way any more, so that both ends can begin
 * anew, and what is not done is written again: a WRITE may be done twice.
 */
static bool careful(struct device *device)
{
	struct work work = { 0 };
	struct end from, to;
	int status, lives = 0;

	ends_create(&from, &to, device, IBV_QPT_RC);
	do {
		connect_ends(&from, &to, patience);
		status = write_rest(&from, &to, &work);
		if (status > 0)
			printf("%s at piece %d: both ends begin anew\n", ibv_wc_status_str(status), arrived(&from, &to));
	} while (status > 0 && ++lives < 10);
	return status == 0 && arrived(&from, &to) == PIECES;
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

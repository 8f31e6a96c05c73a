// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A CQ has no room for a completion. The program gets IBV_EVENT_CQ_ERR, the queue pairs of the CQ
 * are in ERR, and the CQ gets no more completions.
 */
#include "../lib/verbs.h"

#include <stdio.h>

/* Waits for one completion of each work request. */
static bool careless(struct device *device)
{
	struct work work = { 0 };
	struct end from, to;

	ends_create(&from, &to, device, IBV_QPT_RC);
	connect_ends(&from, &to, MAX_RETRIES);
	if (write_rest(&from, &to, &work) < 0)
		puts("no completion for five seconds");
	return count_arrived(&from, &to) == PIECES && work.done[PIECES - 1];
}

/*
 * Polls the completions in the CQ, destroys the queue pair and then the CQ, creates a larger CQ,
 * and repeats all work, because it does not know which WRITEs were executed.
 */
static bool careful(struct device *device)
{
	struct work work = { 0 };
	struct end from, to;
	int status, cqe = PIECES;

	end_create(&from, device, IBV_QPT_RC, cqe, NULL);
	end_create(&to, device, IBV_QPT_RC, PIECES, NULL);
	prepare(&from, &to);
	for (;;) {
		connect_ends(&from, &to, MAX_RETRIES);
		status = write_rest(&from, &to, &work);
		if (status == 0)
			return count_arrived(&from, &to) == PIECES;
		if (!wait_for_event(device, IBV_EVENT_CQ_ERR, 0) || cqe > 4 * PIECES)
			return false;
		cqe *= 2;
		printf("IBV_EVENT_CQ_ERR: the new CQ has %d entries\n", cqe);
		end_destroy(&from);
		end_create(&from, device, IBV_QPT_RC, cqe, NULL);
		prepare(&from, &to);
		work = (struct work){ 0 };
	}
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The link goes down, and is up again a little later. */
#include "../lib/verbs.h"

/* Waits twice for 4 ms, because the network is fast. */
static bool careless(struct device *device)
{
	return write_all(device, (struct retry_limits){ .timeout = 10, .retry_cnt = 1, .rnr_retry = 7 }, 1);
}

/*
 * Waits for more than two seconds, in which a link is usually up again, and reconnects both ends
 * after that.
 */
static bool careful(struct device *device)
{
	return write_all(device, MAX_RETRIES, 10);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

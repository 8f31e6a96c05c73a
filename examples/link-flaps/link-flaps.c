// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The link goes down, and comes back a little later. */
#include "../lib/verbs.h"

/* Waits 4 ms, twice, because the network is a fast one. */
static bool careless(struct device *device)
{
	return write_all(device, (struct patience){ .timeout = 10, .retry_cnt = 1, .rnr_retry = 7 }, 1);
}

/* Has a timeout that outlasts a link's coming back (more than two seconds), and begins anew if that was not enough. */
static bool careful(struct device *device)
{
	return write_all(device, PATIENT, 10);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

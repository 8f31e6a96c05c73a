// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A receiver does nothing for a while, because its host is busy or it moves to another host. */
#include "../lib/verbs.h"

/* Waits twice for 4 ms, because no receiver has ever needed more. */
static bool careless(struct device *device)
{
	return write_all(device, (struct retry_limits){ .timeout = 10, .retry_cnt = 1, .rnr_retry = 7 }, 1);
}

/* Waits for more than two seconds, and reconnects both ends after that. */
static bool careful(struct device *device)
{
	return write_all(device, MAX_RETRIES, 10);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

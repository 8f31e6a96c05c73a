// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The peer answers many requests by NAKs for a sequence error, as if a switch reordered packets. */
#include "../lib/verbs.h"

static bool write_by(struct device *device, int retry_cnt, int most)
{
	return write_all(device, (struct retry_limits){ .timeout = 16, .retry_cnt = retry_cnt, .rnr_retry = 7 }, most);
}

/*
 * Allows no retries, because this network loses no packets. But each NAK uses up a retry (C9-138).
 */
static bool careless(struct device *device)
{
	return write_by(device, 0, 1);
}

/* Allows seven retries without progress, and reconnects both ends after that. */
static bool careful(struct device *device)
{
	return write_by(device, 7, 10);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

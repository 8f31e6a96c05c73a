// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A receiver that does nothing at all for a while: its host is busy, or it is being moved. */
#include "../lib/verbs.h"

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

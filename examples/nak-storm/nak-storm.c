// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Requests are answered by NAKs, sequence error after sequence error, as when a switch has begun to reorder packets. */
#include "../lib/verbs.h"

static bool write_by(struct device *device, int retry_cnt, int most)
{
	return write_all(device, (struct patience){ .timeout = 16, .retry_cnt = retry_cnt, .rnr_retry = 7 }, most);
}

/* A NAK is a retry (C9-138), and it has none: packets are not lost on this network. */
static bool careless(struct device *device)
{
	return write_by(device, 0, 1);
}

/* Seven at the same place are allowed, and after that both ends begin anew. */
static bool careful(struct device *device)
{
	return write_by(device, 7, 10);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

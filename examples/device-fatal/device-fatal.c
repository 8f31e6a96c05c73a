// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The device has a fatal error, and its driver resets it. */
#include "../lib/verbs.h"

#include <stdio.h>
#include <unistd.h>

static int write_once(struct device *device, struct end *from, struct end *to)
{
	struct work work = { 0 };

	ends_create(from, to, device, IBV_QPT_RC);
	connect_ends(from, to, MAX_RETRIES);
	return write_rest(from, to, &work);
}

/* Handles the failure as that of a queue pair. */
static bool careless(struct device *device)
{
	struct work work = { 0 };
	struct end from, to;
	int status = write_once(device, &from, &to);

	if (status > 0) {
		puts("flushed: both ends reconnect");
		connect_ends(&from, &to, MAX_RETRIES);
		status = write_rest(&from, &to, &work);
	}
	return status == 0 && count_arrived(&from, &to) == PIECES;
}

/*
 * Checks for the event of a fatal error. If it came, the program destroys all objects, which
 * succeeds, closes the device, and opens it when its driver has recovered it.
 */
static bool careful(struct device *device)
{
	struct end from, to;
	int i;

	if (write_once(device, &from, &to) == 0)
		return count_arrived(&from, &to) == PIECES;
	if (!wait_for_event(device, IBV_EVENT_DEVICE_FATAL, 5000))
		return false;
	puts("IBV_EVENT_DEVICE_FATAL: the device is opened again");
	end_destroy(&from);
	end_destroy(&to);
	device_close(device);
	for (i = 0; !device_try(device); i++) {
		if (i == 300)
			die("the device cannot be opened again within 30 s");
		usleep(100000);
	}
	return write_once(device, &from, &to) == 0 && count_arrived(&from, &to) == PIECES;
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

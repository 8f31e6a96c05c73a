// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The address of the host changes, and with it the GID of new connections. $CHANGE is the command
 * that changes the address.
 */
#include "../lib/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Selects the first GID of the same kind. GIDs of IPv4 addresses have the same first twelve bytes.
 */
static bool find_gid(struct device *device)
{
	static const union ibv_gid none;
	union ibv_gid gid;
	int i;

	for (i = 0; i < 256; i++) {
		if (ibv_query_gid(device->context, 1, i, &gid) || !memcmp(&gid, &none, 16) || memcmp(&gid, &device->gid, 12))
			continue;
		device->gid = gid;
		device->gid_index = i;
		return true;
	}
	return false;
}

/*
 * Does half of the work, changes the address, and does the rest over a new connection, as after a
 * restart of the peer. With @look the program looks for a new GID first.
 */
static bool write_halves(struct device *device, bool look)
{
	const char *change = getenv("CHANGE");
	struct work work = { 0 };
	struct end from, to;
	int i;

	ends_create(&from, &to, device, IBV_QPT_RC);
	connect_ends(&from, &to, MAX_RETRIES);
	for (i = PIECES / 2; i < PIECES; i++)
		work.done[i] = true;
	if (write_rest(&from, &to, &work))
		return false;
	if (change && system(change))
		die("the command in $CHANGE has failed: %s", change);
	/*
	 * There is one event for the removed address and one for the new one. Between them there
	 * may be no GID.
	 */
	while (look && wait_for_event(device, IBV_EVENT_GID_CHANGE, change ? 5000 : 0))
		if (find_gid(device)) {
			printf("IBV_EVENT_GID_CHANGE: connections use GID %d now\n", device->gid_index);
			break;
		}
	work = (struct work){ 0 };
	for (i = 0; i < PIECES / 2; i++)
		work.done[i] = true;
	connect_ends(&from, &to, (struct retry_limits){ .timeout = 14, .retry_cnt = 3, .rnr_retry = 7 });
	return write_rest(&from, &to, &work) == 0 && count_arrived(&from, &to) == PIECES;
}

/* Uses the GID of the beginning for all connections. */
static bool careless(struct device *device)
{
	return write_halves(device, false);
}

/* Looks for a GID after an event that reports a change of GIDs. */
static bool careful(struct device *device)
{
	return write_halves(device, true);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

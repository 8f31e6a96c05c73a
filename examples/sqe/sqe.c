// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A send of an unreliable queue pair fails. The queue pair is then in SQE: posted sends are
 * flushed, and receives continue.
 */
#include "../lib/verbs.h"

#include <stdio.h>

static bool write_unreliably(struct device *device, bool recover)
{
	struct work work = { 0 };
	struct end from, to;
	int status, turns = 0;

	ends_create(&from, &to, device, IBV_QPT_UC);
	connect_ends(&from, &to, MAX_RETRIES);
	do {
		status = write_rest(&from, &to, &work);
		if (status > 0)
			puts(ibv_wc_status_str(status));
		if (status > 0 && recover) {
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE };

			if (ibv_modify_qp(from.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE))
				die("the queue pair cannot go from SQE to RTS");
		}
	} while (status > 0 && ++turns < 5);
	return status == 0;
}

/* Posts failed sends again. */
static bool careless(struct device *device)
{
	return write_unreliably(device, false);
}

/* After the last completion, moves the queue pair back to RTS, and posts failed sends again. */
static bool careful(struct device *device)
{
	return write_unreliably(device, true);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

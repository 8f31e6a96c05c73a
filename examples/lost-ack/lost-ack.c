// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The responses to an atomic are lost until the requester gives up. The atomic was executed, but
 * the requester does not know that.
 */
#include "../lib/verbs.h"

#include <stdio.h>
#include <string.h>

#define ADDS 10
static const struct retry_limits limits = { .timeout = 14, .retry_cnt = 3, .rnr_retry = 7 };

/*
 * Executes one operation on the counter of the other end, and returns its status. The fetched value
 * is at the beginning of the memory.
 */
static int operate(struct end *from, struct end *to, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)from->memory, sizeof(uint64_t), from->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	struct ibv_wc wc;

	if (opcode == IBV_WR_RDMA_READ) {
		wr.wr.rdma.remote_addr = (uintptr_t)to->memory;
		wr.wr.rdma.rkey = to->mr->rkey;
	} else {
		wr.wr.atomic.remote_addr = (uintptr_t)to->memory;
		wr.wr.atomic.rkey = to->mr->rkey;
		wr.wr.atomic.compare_add = 1;
	}
	if (ibv_post_send(from->qp, &wr, &bad) || !next(from->cq, &wc, 10000))
		die("no completion of the operation for ten seconds");
	return wc.status;
}

static uint64_t value(const struct end *end)
{
	uint64_t number;

	memcpy(&number, end->memory, sizeof(number));
	return number;
}

static bool add(struct device *device, bool ask)
{
	struct end from, to;
	int i, lives = 0;

	ends_create(&from, &to, device, IBV_QPT_RC);
	connect_ends(&from, &to, limits);
	for (i = 0; i < ADDS && lives < 20;) {
		int status = operate(&from, &to, IBV_WR_ATOMIC_FETCH_AND_ADD);

		if (!status) {
			i++;
			continue;
		}
		lives++;
		printf("%s at addition %d\n", ibv_wc_status_str(status), i);
		connect_ends(&from, &to, limits);
		/*
		 * The value shows whether the add was executed, because no other program adds to
		 * this counter. If several programs add, use a word for each of them, or CmpSwap to
		 * a value that identifies the program.
		 */
		if (ask && operate(&from, &to, IBV_WR_RDMA_READ) == IBV_WC_SUCCESS)
			i = (int)value(&from);
	}
	printf("%d additions of 1, and the counter is %d\n", ADDS, (int)value(&to));
	return value(&to) == ADDS;
}

/* Repeats an add that has failed. */
static bool careless(struct device *device)
{
	return add(device, false);
}

/* Reads the counter after a failure, because the add may have been executed. */
static bool careful(struct device *device)
{
	return add(device, true);
}

int main(int argc, char **argv)
{
	return scenario(argc, argv, careless, careful);
}

/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A rule drops the third packet of an RDMA WRITE from one queue pair of a device to another. The packet is sent
 * again, and the data arrive. Then the program tests the handles: invalid rules are refused, a rule that never fires
 * is reported, and no rule is left.
 *
 *	cc -std=gnu11 third_packet.c verbena_fault.c ../../../../examples/lib/verbs.c -libverbs
 *
 * The environment must have VERBENA_CONTROL and the variables of the examples. The last line is `N passed, N failed`.
 */
#include "../../../../examples/lib/verbs.h"
#include "verbena_fault.h"

#include <stdio.h>
#include <string.h>

#define LENGTH (16 * 1024)

static unsigned int passed, failed;

static void check(const char *name, int is_right, const char *why)
{
	if (is_right) {
		printf("ok %s\n", name);
		passed++;
	} else {
		printf("FAILED %s: %s\n", name, why);
		failed++;
	}
}

/* Returns the status of the completion. */
static int do_write(struct end *from, struct end *to)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from->memory, .length = LENGTH, .lkey = from->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = (uintptr_t)to->memory, .rkey = to->mr->rkey },
	};
	struct ibv_wc wc;

	if (ibv_post_send(from->qp, &wr, &bad))
		die("ibv_post_send");
	if (!next(from->cq, &wc, 60000))
		die("no completion");
	return (int)wc.status;
}

int main(void)
{
	struct verbena_fault_told told;
	struct verbena_fault *fault;
	char why[VERBENA_FAULT_WHY] = "";
	struct device device;
	struct end here, there;

	device_open(&device);
	ends_create(&here, &there, &device, IBV_QPT_RC);
	connect_ends(&here, &there, MAX_RETRIES);

	struct verbena_rule third = {
		.action = "drop", .opcode = "RDMA WRITE", .qp = here.qp->qp_num, .packet_of_message = 3, .limit = 1,
	};
	fault = verbena_fault_add(NULL, &third, why);
	check("added", !!fault, why);
	if (fault) {
		int status = do_write(&here, &there);

		check("sent again", status == IBV_WC_SUCCESS, ibv_wc_status_str((enum ibv_wc_status)status));
		check("data", !memcmp(here.memory, there.memory, LENGTH), "other data");
		check("ended", !verbena_fault_end(fault, &told, why), why);
		/* The retransmission of the dropped packet matches too. */
		check("counted", told.fired == 1 && told.matched >= 2 && !told.idle, "not once");
	}

	fault = verbena_fault_add_json(NULL, "{\"version\": 1, \"rule\": [\n{\"name\": \"a \\\"b\\\"\", \"action\": \"drop\", \"match\": {\"opcode\": \"CmpSwap\"}},\n"
				       "{\"name\": \"c\", \"action\": {\"delay_us\": 5}, \"optional\": true, \"match\": {\"opcode\": \"CmpSwap\"}}]}", why);
	check("json", !!fault, why);
	if (fault) {
		struct verbena_rule again = { .action = "drop", .name = "a \"b\"" };

		check("twice", !verbena_fault_add(NULL, &again, why) && strstr(why, "already"), why);
		check("looked at", !verbena_fault_look(fault, &told, why) && told.idle == 1, why);
		check("idle", verbena_fault_end(fault, &told, why) == -1 && strstr(why, "never fired"), why);
		/* The rule was removed, so another one can have its name. */
		again.optional = 1;
		fault = verbena_fault_add(NULL, &again, why);
		check("gone", fault && !verbena_fault_end(fault, NULL, why), why);
	}

	struct verbena_rule none = { .action = "dorp" };
	check("no action", !verbena_fault_add(NULL, &none, why) && strstr(why, "dorp"), why);
	none.action = "{\"delay_us\": 0}";
	check("no sense", !verbena_fault_add(NULL, &none, why) && strstr(why, "delay_us"), why);
	check("no NIC", !verbena_fault_add("/nonexistent", &third, why) && strstr(why, "/nonexistent"), why);
	check("no rules", !verbena_fault_add_json(NULL, "[1, 2", why), why);

	end_destroy(&here);
	end_destroy(&there);
	device_close(&device);
	printf("%u passed, %u failed\n", passed, failed);
	return failed ? 1 : 0;
}

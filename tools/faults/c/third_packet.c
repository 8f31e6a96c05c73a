/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * An RDMA WRITE from one queue pair of a device to another loses its third packet: it is sent again, and the data are right. Then what a
 * handle promises: what makes no sense is refused, a rule that never fires is told, and no rule is left.
 *
 *	cc -std=c11 third_packet.c verbena_fault.c -libverbs
 *
 * usage: third_packet DEVICE GID-INDEX, with VERBENA_CONTROL in the environment. Ends with `N passed, N failed`.
 */
#define _POSIX_C_SOURCE 200809L

#include "verbena_fault.h"

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static void die(const char *what)
{
	printf("FAILED %s\n", what);
	exit(1);
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (struct ibv_device **device = list; list && *device; device++)
		if (!strcmp(ibv_get_device_name(*device), name))
			context = ibv_open_device(*device);
	if (list)
		ibv_free_device_list(list);
	if (!context)
		die("no such device");
	return context;
}

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	if (!qp)
		die("no queue pair");
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid gid, unsigned char index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = index, .hop_limit = 64 } },
		.timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			  IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

/* Returns the status of the completion. */
static int do_write(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *from, struct ibv_mr *to)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from->addr, .length = LENGTH, .lkey = from->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = (uintptr_t)to->addr, .rkey = to->rkey },
	};
	struct ibv_wc wc;
	time_t begin = time(NULL);

	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send");
	while (!ibv_poll_cq(cq, 1, &wc))
		if (time(NULL) - begin > 60)
			die("no completion");
	return (int)wc.status;
}

int main(int argc, char **argv)
{
	static unsigned char source[LENGTH], target[LENGTH];
	struct verbena_fault_told told;
	struct verbena_fault *fault;
	char why[VERBENA_FAULT_WHY] = "";
	union ibv_gid gid;

	if (argc != 3)
		die("usage: third_packet DEVICE GID-INDEX");
	struct ibv_context *context = open_device(argv[1]);
	unsigned char index = (unsigned char)atoi(argv[2]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	if (!pd || !cq || ibv_query_gid(context, 1, index, &gid))
		die("no protection domain, CQ or GID");
	struct ibv_mr *from = ibv_reg_mr(pd, source, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *to = ibv_reg_mr(pd, target, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *here = create(pd, cq), *there = create(pd, cq);
	if (!from || !to)
		die("no memory region");
	connect_to(here, there, gid, index);
	connect_to(there, here, gid, index);
	for (int i = 0; i < LENGTH; i++)
		source[i] = (unsigned char)(i * 7 + i / 256);

	struct verbena_rule third = {
		.action = "drop", .opcode = "RDMA WRITE", .qp = here->qp_num, .packet_of_message = 3, .limit = 1,
	};
	fault = verbena_fault_add(NULL, &third, why);
	check("added", !!fault, why);
	if (fault) {
		int status = do_write(here, cq, from, to);

		check("sent again", status == IBV_WC_SUCCESS, ibv_wc_status_str((enum ibv_wc_status)status));
		check("data", !memcmp(source, target, LENGTH), "other data");
		check("ended", !verbena_fault_end(fault, &told, why), why);
		/* What was lost comes once more. */
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
		/* It has gone, so there is room for another. */
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

	ibv_destroy_qp(here);
	ibv_destroy_qp(there);
	ibv_dereg_mr(from);
	ibv_dereg_mr(to);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	printf("%u passed, %u failed\n", passed, failed);
	return failed ? 1 : 0;
}

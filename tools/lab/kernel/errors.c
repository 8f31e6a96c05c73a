// SPDX-License-Identifier: GPL-2.0
/*
 * Completion statuses, states and atomics of kernel users.
 */
#include <linux/delay.h>
#include <linux/scatterlist.h>
#include <rdma/ib_verbs.h>

#include "selftest.h"

#define WRONG_KEY 0xdead00

/* One request of end a, and its expected results. */
struct request {
	const char *name;
	enum ib_wr_opcode opcode;
	u32 len;
	u32 lkey;	/* 0: local_dma_lkey of the PD */
	u32 rkey;	/* 0: unsafe_global_rkey of the PD */
	u64 offset;	/* offset of the remote address in the buffer of b */
	u32 recv_len;	/* length of the receive that b posts; 0: b posts none */
	u32 recv_lkey;
	int access;	/* access flags of b; 0: all */
	bool no_reads;	/* max_dest_rd_atomic of b is 0 */
	enum ib_wc_status sender;
	enum ib_wc_status receiver;
	enum ib_event_type event;	/* event of b; -1: none */
};

#define ALL_ACCESS (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | \
		    IB_ACCESS_REMOTE_ATOMIC)

static int allow(struct end *e, int access)
{
	struct ib_qp_attr attr = { .qp_access_flags = access };

	return ib_modify_qp(e->qp, &attr, IB_QP_ACCESS_FLAGS);
}

static int start_again(struct rig *rig)
{
	TRY(to_state(&rig->a, IB_QPS_RESET));
	TRY(to_state(&rig->b, IB_QPS_RESET));
	TRY(connect_ends(rig));
	atomic_set(&rig->a.qp_events, 0);
	atomic_set(&rig->b.qp_events, 0);
	return allow(&rig->b, ALL_ACCESS);
}

static int request(struct rig *rig, u64 id, const struct request *r)
{
	struct ib_sge sge = {
		.addr = rig->a.dma,
		.length = r->len,
		.lkey = r->lkey ?: rig->pd->local_dma_lkey,
	};
	struct ib_atomic_wr atomic = {
		.wr = {
			.wr_id = id,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = r->opcode,
		},
		.remote_addr = rig->b.dma + r->offset,
		.rkey = r->rkey ?: rig->pd->unsafe_global_rkey,
		.compare_add = 1,
	};
	struct ib_rdma_wr rdma = {
		.wr = atomic.wr,
		.remote_addr = atomic.remote_addr,
		.rkey = atomic.rkey,
	};
	bool is_atomic = r->opcode == IB_WR_ATOMIC_FETCH_AND_ADD;

	return ib_post_send(rig->a.qp, is_atomic ? &atomic.wr : &rdma.wr, NULL);
}

static int receive(struct rig *rig, const struct request *r)
{
	struct ib_sge sge = {
		.addr = rig->b.dma,
		.length = r->recv_len,
		.lkey = r->recv_lkey ?: rig->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = 77, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(rig->b.qp, &wr, NULL);
}

/*
 * Checks that the request fails although it is not signaled, and that the request after it is
 * flushed. Returns the vendor_err.
 */
static int fails(struct rig *rig, const struct request *r, u32 *vendor_err)
{
	struct request good = { .opcode = IB_WR_RDMA_WRITE, .len = 8 };
	struct ib_wc wc[2];

	rig->b.no_reads = r->no_reads;
	TRY(start_again(rig));
	if (r->access)
		TRY(allow(&rig->b, r->access));
	if (r->recv_len)
		TRY(receive(rig, r));
	TRY(request(rig, 1, r));
	TRY(request(rig, 2, &good));
	TRY(reap(&rig->a, wc, 2));
	CHECK(wc[0].wr_id == 1 && wc[0].status == r->sender, "%s: completion %llu status %d",
	      r->name, wc[0].wr_id, wc[0].status);
	CHECK(wc[1].wr_id == 2 && wc[1].status == IB_WC_WR_FLUSH_ERR,
	      "%s: the next request has status %d",
	      r->name, wc[1].status);
	*vendor_err = wc[0].vendor_err;
	CHECK(state_of(rig->a.qp) == IB_QPS_ERR, "%s: state %d", r->name, state_of(rig->a.qp));
	if (r->receiver != IB_WC_SUCCESS) {
		TRY(reap(&rig->b, wc, 1));
		CHECK(wc[0].wr_id == 77 && wc[0].status == r->receiver, "%s: receive status %d",
		      r->name, wc[0].status);
	}
	if ((int)r->event >= 0) {
		TRY(wait_count(&rig->b.qp_events, 1));
		CHECK(rig->b.last_qp_event == r->event, "%s: event %d", r->name,
		      rig->b.last_qp_event);
	}
	TRY(no_more(&rig->a));
	CHECK(atomic_read(&rig->b.qp_events) == ((int)r->event >= 0), "%s: %d events", r->name,
	      atomic_read(&rig->b.qp_events));
	return 0;
}

static int all_fail(struct rig *rig, const struct request *requests, int count)
{
	u32 causes[8];
	int i, j;

	CHECK(count <= 8, "%d requests", count);
	for (i = 0; i < count; i++) {
		TRY(fails(rig, &requests[i], &causes[i]));
		CHECK(causes[i], "%s: vendor_err is 0", requests[i].name);
		for (j = 0; j < i; j++)
			CHECK(causes[j] != causes[i], "%s and %s have the same vendor_err %x",
			      requests[j].name, requests[i].name, causes[i]);
	}
	return 0;
}

/*
 * Errors at the sender: no part of the request reaches the peer. Each cause has its own vendor_err.
 */
int t_local_errors(struct rig *rig)
{
	struct ib_pd *other = ib_alloc_pd(rig->ibdev, IB_PD_UNSAFE_GLOBAL_RKEY);
	int ret;

	TRY(PTR_ERR_OR_ZERO(other));
	{
		const struct request requests[] = {
			{ "unknown lkey", IB_WR_RDMA_WRITE, 8, .lkey = WRONG_KEY,
			  .sender = IB_WC_LOC_PROT_ERR, .event = -1 },
			{ "lkey of another domain", IB_WR_RDMA_WRITE, 8,
			  .lkey = other->__internal_mr->lkey, .sender = IB_WC_LOC_PROT_ERR,
			  .event = -1 },
			{ "atomic of 4 bytes", IB_WR_ATOMIC_FETCH_AND_ADD, 4,
			  .sender = IB_WC_LOC_LEN_ERR, .event = -1 },
			{ "longer than max_msg_sz", IB_WR_RDMA_WRITE, 0x80000001,
			  .sender = IB_WC_LOC_LEN_ERR, .event = -1 },
		};

		ret = connect_ends(rig) ?: all_fail(rig, requests, ARRAY_SIZE(requests));
	}
	ib_dealloc_pd(other);
	return ret;
}

/* Requests that the peer refuses. */
int t_remote_errors(struct rig *rig)
{
	struct ib_pd *other = ib_alloc_pd(rig->ibdev, IB_PD_UNSAFE_GLOBAL_RKEY);
	int ret;

	TRY(PTR_ERR_OR_ZERO(other));
	{
		const struct request requests[] = {
			{ "unknown rkey", IB_WR_RDMA_READ, 8, .rkey = WRONG_KEY,
			  .sender = IB_WC_REM_ACCESS_ERR, .event = IB_EVENT_QP_ACCESS_ERR },
			{ "receive with an unknown lkey", IB_WR_SEND, 8, .recv_len = 64,
			  .recv_lkey = WRONG_KEY, .sender = IB_WC_REM_OP_ERR,
			  .receiver = IB_WC_LOC_PROT_ERR, .event = -1 },
		};
		/* The vendor_err of these is not compared: others get the same NAK. */
		const struct request alike[] = {
			{ "rkey of another domain", IB_WR_RDMA_WRITE, 8,
			  .rkey = other->unsafe_global_rkey, .sender = IB_WC_REM_ACCESS_ERR,
			  .event = IB_EVENT_QP_ACCESS_ERR },
			{ "WRITE not enabled", IB_WR_RDMA_WRITE, 8,
			  .access = IB_ACCESS_REMOTE_READ, .sender = IB_WC_REM_INV_REQ_ERR,
			  .event = IB_EVENT_QP_REQ_ERR },
			{ "READ not enabled", IB_WR_RDMA_READ, 8,
			  .access = IB_ACCESS_REMOTE_WRITE, .sender = IB_WC_REM_INV_REQ_ERR,
			  .event = IB_EVENT_QP_REQ_ERR },
			{ "READ with max_dest_rd_atomic 0", IB_WR_RDMA_READ, 8, .no_reads = true,
			  .sender = IB_WC_REM_INV_REQ_ERR, .event = IB_EVENT_QP_REQ_ERR },
			{ "WRITE that consumed a receive", IB_WR_RDMA_WRITE_WITH_IMM, 8,
			  .rkey = WRONG_KEY, .recv_len = 64, .sender = IB_WC_REM_ACCESS_ERR,
			  .receiver = IB_WC_LOC_ACCESS_ERR, .event = -1 },
			{ "SEND longer than the receive", IB_WR_SEND, 128, .recv_len = 64,
			  .sender = IB_WC_REM_INV_REQ_ERR, .receiver = IB_WC_LOC_LEN_ERR,
			  .event = -1 },
		};
		u32 cause;
		int i;

		ret = connect_ends(rig) ?: all_fail(rig, requests, ARRAY_SIZE(requests));
		for (i = 0; !ret && i < ARRAY_SIZE(alike); i++)
			ret = fails(rig, &alike[i], &cause);
	}
	ib_dealloc_pd(other);
	return ret;
}

/* The peer does not respond: after all retries the request fails. */
int t_peer_gone(struct rig *rig)
{
	struct request write = { "peer that does not respond", IB_WR_RDMA_WRITE, 8,
				 .sender = IB_WC_RETRY_EXC_ERR, .event = -1 };
	struct ib_wc wc[1];

	TRY(connect_ends(rig));
	TRY(to_state(&rig->b, IB_QPS_RESET));
	TRY(request(rig, 1, &write));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_RETRY_EXC_ERR);
	CHECK(wc[0].vendor_err, "vendor_err is 0");
	return no_more(&rig->a);
}

/* A queue pair in RTR receives, and gets one COMM_EST event. In SQD, sends wait. */
int t_rtr_and_sqd(struct rig *rig)
{
	struct ib_qp_attr sqd = { .qp_state = IB_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ib_wc wc[2];
	int i;

	TRY(to_init(&rig->a));
	TRY(to_init(&rig->b));
	TRY(to_rtr(rig, &rig->a, &rig->b));
	TRY(to_rtr(rig, &rig->b, &rig->a));
	TRY(to_rts(&rig->a));
	for (i = 0; i < 2; i++) {
		TRY(post_recv(rig, &rig->b, 10 + i, 0, 64));
		TRY(post(rig, &rig->a, i, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
		TRY(reap(&rig->b, wc, 1));
		EXPECT_WC(wc[0], 10 + i, IB_WC_SUCCESS);
		TRY(reap(&rig->a, wc, 1));
		EXPECT_WC(wc[0], i, IB_WC_SUCCESS);
	}
	TRY(wait_count(&rig->b.qp_events, 1));
	CHECK(rig->b.last_qp_event == IB_EVENT_COMM_EST, "event %d", rig->b.last_qp_event);
	TRY(to_rts(&rig->b));

	TRY(ib_modify_qp(rig->a.qp, &sqd, IB_QP_STATE | IB_QP_EN_SQD_ASYNC_NOTIFY));
	TRY(wait_count(&rig->a.qp_events, 1));
	CHECK(rig->a.last_qp_event == IB_EVENT_SQ_DRAINED, "event %d", rig->a.last_qp_event);
	TRY(post_recv(rig, &rig->b, 20, 0, 64));
	TRY(post(rig, &rig->a, 21, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
	TRY(no_more(&rig->a));
	TRY(no_more(&rig->b));
	TRY(to_state(&rig->a, IB_QPS_RTS));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 21, IB_WC_SUCCESS);
	TRY(reap(&rig->b, wc, 1));
	EXPECT_WC(wc[0], 20, IB_WC_SUCCESS);
	CHECK(atomic_read(&rig->a.qp_events) == 1 && atomic_read(&rig->b.qp_events) == 1,
	      "%d and %d events", atomic_read(&rig->a.qp_events), atomic_read(&rig->b.qp_events));
	return 0;
}

/* Registers the buffer of end b, because the key of the PD allows no atomics. */
static int register_for(struct rig *rig, struct ib_mr *mr, struct scatterlist *sg, int access)
{
	struct ib_reg_wr reg = {
		.wr = { .wr_id = 1, .opcode = IB_WR_REG_MR, .send_flags = IB_SEND_SIGNALED },
		.mr = mr,
		.access = access,
	};
	struct ib_wc wc[1];

	CHECK(ib_map_mr_sg(mr, sg, 1, NULL, PAGE_SIZE) == 1, "ib_map_mr_sg");
	ib_update_fast_reg_key(mr, 0x5a);
	reg.key = mr->rkey;
	TRY(ib_post_send(rig->b.qp, &reg.wr, NULL));
	TRY(reap(&rig->b, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
	return 0;
}

static int with_atomics(struct rig *rig, struct ib_mr *mr)
{
	struct request add = { .opcode = IB_WR_ATOMIC_FETCH_AND_ADD, .len = 8, .rkey = mr->rkey,
			       .offset = mr->iova - rig->b.dma };
	struct request nothing = { .opcode = IB_WR_RDMA_WRITE, .rkey = WRONG_KEY };
	struct request misaligned = { "misaligned atomic", IB_WR_ATOMIC_FETCH_AND_ADD, 8,
				      .rkey = mr->rkey, .offset = add.offset + 4,
				      .sender = IB_WC_REM_INV_REQ_ERR,
				      .event = IB_EVENT_QP_REQ_ERR };
	u64 *counter = (u64 *)rig->b.buf, *before = (u64 *)rig->a.buf;
	struct ib_wc wc[1];
	u32 cause;
	int i;

	*counter = ~0ULL;
	for (i = 0; i < 12; i++)
		TRY(request(rig, i, &add));
	TRY(request(rig, 99, &nothing));
	TRY(post(rig, &rig->a, 100, IB_WR_RDMA_READ, IB_SEND_SIGNALED | IB_SEND_FENCE, 8, 8,
		 mr->iova, mr->rkey));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 100, IB_WC_SUCCESS);
	CHECK(*counter == 11 && before[0] == 10 && before[1] == 11,
	      "counter %llu, value before the last atomic %llu, value read %llu",
	      *counter, before[0], before[1]);
	TRY(no_more(&rig->a));
	return fails(rig, &misaligned, &cause);
}

/* Runs @test while the buffer of end b is registered. */
static int with_region(struct rig *rig, int access, int (*test)(struct rig *rig, struct ib_mr *mr))
{
	struct scatterlist sg;
	struct ib_mr *mr;
	int ret;

	TRY(connect_ends(rig));
	TRY(allow(&rig->b, ALL_ACCESS));
	mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 8);
	TRY(PTR_ERR_OR_ZERO(mr));
	sg_init_one(&sg, rig->b.buf, BUF_SIZE);
	ret = ib_dma_map_sg(rig->ibdev, &sg, 1, DMA_BIDIRECTIONAL) == 1 ? 0 : -EIO;
	if (!ret) {
		ret = register_for(rig, mr, &sg, access);
		if (!ret)
			ret = test(rig, mr);
		ib_dma_unmap_sg(rig->ibdev, &sg, 1, DMA_BIDIRECTIONAL);
	}
	CHECK(!ib_dereg_mr(mr), "ib_dereg_mr");
	return ret;
}

/*
 * Atomics return the value before them. Atomics beyond max_rd_atomic wait. A WRITE of length 0
 * needs no key.
 */
int t_atomics(struct rig *rig)
{
	return with_region(rig, ALL_ACCESS, with_atomics);
}

static int into_read_only(struct rig *rig, struct ib_mr *mr)
{
	const struct request r = {
		"receive without local write", IB_WR_SEND, 8, .recv_len = 64,
		.recv_lkey = mr->lkey, .sender = IB_WC_REM_OP_ERR,
		.receiver = IB_WC_LOC_PROT_ERR, .event = -1,
	};
	u32 cause;

	return fails(rig, &r, &cause);
}

/* A receive into memory without the right LOCAL_WRITE fails. */
int t_local_write(struct rig *rig)
{
	return with_region(rig, IB_ACCESS_REMOTE_READ, into_read_only);
}

/* Requests a fault from the driver by a file in debugfs. */
static int inject(struct rig *rig, u32 qpn, enum ib_wc_status status)
{
	static char *env[] = { "PATH=/bin", NULL };
	char line[128];
	char *argv[] = { "/bin/sh", "-c", line, NULL };

	snprintf(line, sizeof(line), "echo send %u %d >/sys/kernel/debug/verbena-%s/inject", qpn, status,
		 dev_name(rig->ibdev->dev.parent));
	return call_usermodehelper(argv[0], argv, env, UMH_WAIT_PROC);
}

/*
 * Statuses that only a defective device reports: the send completes with the status, and the next
 * one is flushed.
 */
int t_injected(struct rig *rig)
{
	static const enum ib_wc_status statuses[] = {
		IB_WC_BAD_RESP_ERR, IB_WC_FATAL_ERR, IB_WC_RESP_TIMEOUT_ERR, IB_WC_GENERAL_ERR,
	};
	struct request write = { .opcode = IB_WR_RDMA_WRITE, .len = 8 };
	struct ib_wc wc[2];
	int i;

	if (strncmp(dev_name(&rig->ibdev->dev), "verbena", 7)) {
		strscpy(why, "skipped: the device has no fault injection", WHY_SIZE);
		return 0;
	}
	for (i = 0; i < ARRAY_SIZE(statuses); i++) {
		TRY(start_again(rig));
		TRY(inject(rig, rig->a.qp->qp_num, statuses[i]));
		TRY(request(rig, 1, &write));
		TRY(request(rig, 2, &write));
		TRY(reap(&rig->a, wc, 2));
		EXPECT_WC(wc[0], 1, statuses[i]);
		CHECK(wc[0].vendor_err, "status %d without a vendor_err", statuses[i]);
		EXPECT_WC(wc[1], 2, IB_WC_WR_FLUSH_ERR);
		CHECK(state_of(rig->a.qp) == IB_QPS_ERR, "state %d", state_of(rig->a.qp));
		CHECK(state_of(rig->b.qp) == IB_QPS_RTS,
		      "state %d of the peer", state_of(rig->b.qp));
		TRY(no_more(&rig->a));
	}
	return 0;
}

/*
 * An atomic with the largest number of SGEs. It takes more room in its entry than other sends, and
 * must not overwrite the entries of sends that wait in the queue.
 */
int t_atomic_sges(struct rig *rig)
{
	struct ib_qp_init_attr attr = {
		.send_cq = rig->a.cq,
		.recv_cq = rig->a.cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 5, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = IB_QPT_RC,
	};
	struct ib_sge sges[5];
	struct ib_atomic_wr atomic = {
		.wr = {
			.wr_id = 1000,
			.sg_list = sges,
			.num_sge = ARRAY_SIZE(sges),
			.opcode = IB_WR_ATOMIC_FETCH_AND_ADD,
		},
		.remote_addr = rig->b.dma,
		.rkey = rig->pd->unsafe_global_rkey,
	};
	struct ib_wc wc;
	int i, ret;

	for (i = 0; i < ARRAY_SIZE(sges); i++)
		sges[i] = (struct ib_sge) {
			.addr = rig->a.dma + 8 * i,
			.length = i ? 0 : 8,
			.lkey = rig->pd->local_dma_lkey,
		};
	/* The test replaces the queue pair of end a. rig_close() destroys the new one. */
	WARN_ON(ib_destroy_qp(rig->a.qp));
	rig->a.qp = NULL;
	TRY(make_qp(rig, &rig->a, &attr));
	TRY(connect_ends(rig));
	/*
	 * In SQD all sends wait. The entry of the atomic is the one before that of the oldest send.
	 */
	TRY(post(rig, &rig->a, 0, IB_WR_RDMA_WRITE, 0, 0, 8, rig->b.dma, atomic.rkey));
	TRY(reap(&rig->a, &wc, 1));
	TRY(to_state(&rig->a, IB_QPS_SQD));
	for (i = 1; i < attr.cap.max_send_wr; i++)
		TRY(post(rig, &rig->a, i, IB_WR_RDMA_WRITE, 0, 0, 8, rig->b.dma, atomic.rkey));
	ret = ib_post_send(rig->a.qp, &atomic.wr, NULL);
	CHECK(!ret || ret == -EINVAL, "ib_post_send: %d", ret);
	TRY(to_state(&rig->a, IB_QPS_RTS));
	for (i = 1; i < attr.cap.max_send_wr; i++) {
		TRY(reap(&rig->a, &wc, 1));
		EXPECT_WC(wc, i, IB_WC_SUCCESS);
	}
	return 0;
}

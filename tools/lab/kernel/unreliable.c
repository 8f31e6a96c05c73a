// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams and unreliable connections: packets that are dropped without an error, and SQE.
 */
#include <linux/delay.h>
#include <rdma/ib_verbs.h>

#include "selftest.h"

#define QKEY 0x11111111

/*
 * Two queue pairs of one type on the rig's CQs. For UD, `ah` is the path from the first to the
 * second.
 */
struct two {
	struct rig *rig;
	struct ib_qp *a, *b;
	struct ib_ah *ah;
	struct ib_srq *srq;	/* SRQ of b, or NULL */
};

static int up_ud(struct ib_qp *qp)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_INIT, .port_num = 1, .qkey = QKEY };

	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY));
	attr.qp_state = IB_QPS_RTR;
	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE));
	attr.qp_state = IB_QPS_RTS;
	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN));
	return 0;
}

static int up_uc(struct rig *rig, struct ib_qp *qp, struct ib_qp *peer)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer->qp_num,
	};

	TRY(find_ah(rig, &attr.ah_attr));
	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
			 IB_QP_ACCESS_FLAGS));
	attr.qp_state = IB_QPS_RTR;
	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
			 IB_QP_RQ_PSN));
	attr.qp_state = IB_QPS_RTS;
	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN));
	return 0;
}

static int receive(struct two *t, struct ib_qp *qp, u64 id, u32 len)
{
	struct end *e = qp == t->a ? &t->rig->a : &t->rig->b;
	struct ib_sge sge = {
		.addr = e->dma,
		.length = len,
		.lkey = t->rig->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	if (qp == t->b && t->srq)
		return ib_post_srq_recv(t->srq, &wr, NULL);
	return ib_post_recv(qp, &wr, NULL);
}

static int datagram(struct two *t, u64 id, enum ib_wr_opcode opcode, struct ib_ah *ah, u32 qpn,
		    u32 qkey, u32 len)
{
	struct ib_sge sge = {
		.addr = t->rig->a.dma,
		.length = len,
		.lkey = t->rig->pd->local_dma_lkey,
	};
	struct ib_ud_wr wr = {
		.wr = {
			.wr_id = id,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = opcode,
			.send_flags = IB_SEND_SIGNALED,
		},
		.ah = ah,
		.remote_qpn = qpn,
		.remote_qkey = qkey,
		.port_num = 1,
	};

	return ib_post_send(t->a, &wr.wr, NULL);
}

/* A datagram that is dropped: the send completes with success, and both queue pairs stay in RTS. */
static int lost(struct two *t, u32 qpn, u32 qkey, u32 len)
{
	struct ib_wc wc[1];

	TRY(datagram(t, 1, IB_WR_SEND, t->ah, qpn, qkey, len));
	TRY(reap(&t->rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
	TRY(no_more(&t->rig->b));
	CHECK(state_of(t->a) == IB_QPS_RTS && state_of(t->b) == IB_QPS_RTS, "states %d, %d",
	      state_of(t->a), state_of(t->b));
	return 0;
}

static int arrives(struct two *t, u64 id, u64 recv_id)
{
	struct ib_wc wc[1];

	TRY(datagram(t, id, IB_WR_SEND, t->ah, t->b->qp_num, QKEY, 24));
	TRY(reap(&t->rig->a, wc, 1));
	EXPECT_WC(wc[0], id, IB_WC_SUCCESS);
	TRY(reap(&t->rig->b, wc, 1));
	EXPECT_WC(wc[0], recv_id, IB_WC_SUCCESS);
	CHECK(wc[0].byte_len == 40 + 24, "%u bytes", wc[0].byte_len);
	return 0;
}

static int with_drops(struct two *t)
{
	TRY(lost(t, t->b->qp_num, QKEY, 24));		/* no receive */
	TRY(receive(t, t->b, 7, 40 + 24));
	TRY(lost(t, t->b->qp_num, QKEY + 1, 24));	/* another Q_Key */
	TRY(lost(t, 0xfffff0, QKEY, 24));		/* no such queue pair */
	TRY(lost(t, t->b->qp_num, QKEY, 25));		/* longer than the receive */
	/* The dropped datagrams have not consumed the receive. */
	TRY(arrives(t, 2, 7));
	TRY(receive(t, t->b, 8, 40 + 8192));
	TRY(lost(t, t->b->qp_num, QKEY, 8192));		/* over the MTU, not the receive */
	return arrives(t, 3, 8);
}

/*
 * One send fails, and the sends after it are flushed. Receives continue. After a move back to RTS
 * the queue pair works as before.
 */
static int in_sqe(struct two *t, struct ib_ah *ah)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RTS, .cur_qp_state = IB_QPS_SQE };
	struct ib_wc wc[3];
	int i;

	TRY(receive(t, t->a, 50, 40 + 24));
	TRY(receive(t, t->b, 60, 40 + 24));
	for (i = 0; i < 2; i++)
		TRY(datagram(t, 10 + i, IB_WR_SEND, i ? t->ah : ah, t->b->qp_num, QKEY, 24));
	TRY(reap(&t->rig->a, wc, 2));
	EXPECT_WC(wc[0], 10, IB_WC_LOC_QP_OP_ERR);
	EXPECT_WC(wc[1], 11, IB_WC_WR_FLUSH_ERR);
	CHECK(state_of(t->a) == IB_QPS_SQE, "state %d", state_of(t->a));
	/* A send that is posted in SQE is accepted and flushed. */
	TRY(datagram(t, 12, IB_WR_SEND, t->ah, t->b->qp_num, QKEY, 24));
	TRY(reap(&t->rig->a, wc, 1));
	EXPECT_WC(wc[0], 12, IB_WC_WR_FLUSH_ERR);
	/* Neither end gets another completion. */
	TRY(no_more(&t->rig->a));
	TRY(no_more(&t->rig->b));
	TRY(ib_modify_qp(t->a, &attr, IB_QP_STATE | IB_QP_CUR_STATE));
	TRY(arrives(t, 13, 60));
	/* The receive that was posted before SQE receives a datagram. */
	TRY(datagram(t, 14, IB_WR_SEND, t->ah, t->a->qp_num, QKEY, 24));
	TRY(reap(&t->rig->a, wc, 2));
	i = wc[0].wr_id == 14;
	EXPECT_WC(wc[!i], 14, IB_WC_SUCCESS);
	EXPECT_WC(wc[i], 50, IB_WC_SUCCESS);
	return 0;
}

static int with_sqe(struct two *t)
{
	struct rdma_ah_attr ah_attr = {};
	struct ib_pd *other = ib_alloc_pd(t->rig->ibdev, 0);
	struct ib_ah *ah;
	int ret;

	TRY(PTR_ERR_OR_ZERO(other));
	ret = find_ah(t->rig, &ah_attr);
	ah = rdma_create_ah(other, &ah_attr, RDMA_CREATE_AH_SLEEPABLE);
	if (IS_ERR(ah)) {
		ret = PTR_ERR(ah);
	} else {
		if (!ret)
			ret = in_sqe(t, ah);
		rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
	}
	ib_dealloc_pd(other);
	TRY(ret);
	/*
	 * An operation that UD lacks is refused when it is posted: its request has no address
	 * handle.
	 */
	CHECK(datagram(t, 1, IB_WR_RDMA_WRITE, t->ah, t->b->qp_num, QKEY, 24) == -EINVAL,
	      "a WRITE is accepted");
	return no_more(&t->rig->a);
}

static int uc_post(struct two *t, u64 id, enum ib_wr_opcode opcode, u32 rkey)
{
	struct ib_sge sge = {
		.addr = t->rig->a.dma,
		.length = 8,
		.lkey = t->rig->pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_id = id,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = opcode,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_addr = t->rig->b.dma,
		.rkey = rkey,
	};

	return ib_post_send(t->a, &wr.wr, NULL);
}

static int with_uc(struct two *t)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RTS, .cur_qp_state = IB_QPS_SQE };
	u32 rkey = t->rig->pd->unsafe_global_rkey;
	u64 *there = (u64 *)t->rig->b.buf;
	struct ib_wc wc[1];

	*(u64 *)t->rig->a.buf = 42;
	TRY(uc_post(t, 1, IB_WR_RDMA_WRITE, 0xdead00));
	TRY(uc_post(t, 2, IB_WR_SEND, 0));
	TRY(uc_post(t, 3, IB_WR_RDMA_WRITE, rkey));
	for (u64 id = 1; id < 4; id++) {
		TRY(reap(&t->rig->a, wc, 1));
		EXPECT_WC(wc[0], id, IB_WC_SUCCESS);
	}
	TRY(no_more(&t->rig->b));
	CHECK(*there == 42, "the memory contains %llu after the WRITE, not 42", *there);
	CHECK(state_of(t->b) == IB_QPS_RTS, "state %d", state_of(t->b));
	TRY(uc_post(t, 4, IB_WR_RDMA_READ, rkey));
	TRY(reap(&t->rig->a, wc, 1));
	EXPECT_WC(wc[0], 4, IB_WC_LOC_QP_OP_ERR);
	CHECK(state_of(t->a) == IB_QPS_SQE, "state %d", state_of(t->a));
	TRY(ib_modify_qp(t->a, &attr, IB_QP_STATE | IB_QP_CUR_STATE));
	TRY(receive(t, t->b, 60, 64));
	TRY(uc_post(t, 5, IB_WR_SEND, 0));
	TRY(reap(&t->rig->b, wc, 1));
	EXPECT_WC(wc[0], 60, IB_WC_SUCCESS);
	TRY(reap(&t->rig->a, wc, 1));
	EXPECT_WC(wc[0], 5, IB_WC_SUCCESS);
	return 0;
}

static int connect_kind(struct two *t, enum ib_qp_type kind)
{
	struct rdma_ah_attr ah_attr = {};

	if (kind == IB_QPT_UC) {
		TRY(up_uc(t->rig, t->a, t->b));
		return up_uc(t->rig, t->b, t->a);
	}
	TRY(up_ud(t->a));
	TRY(up_ud(t->b));
	TRY(find_ah(t->rig, &ah_attr));
	t->ah = rdma_create_ah(t->rig->pd, &ah_attr, RDMA_CREATE_AH_SLEEPABLE);
	if (IS_ERR(t->ah)) {
		int ret = PTR_ERR(t->ah);

		t->ah = NULL;
		return ret;
	}
	return 0;
}

/*
 * Runs @test with two queue pairs of a type. If @srq is not NULL, the second one receives from it.
 */
static int with_srq(struct rig *rig, enum ib_qp_type kind, struct ib_srq *srq,
		    int (*test)(struct two *))
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = kind,
		.send_cq = rig->a.cq,
		.recv_cq = rig->a.cq,
	};
	struct two t = { .rig = rig, .srq = srq };
	int ret;

	t.a = ib_create_qp(rig->pd, &attr);
	TRY(PTR_ERR_OR_ZERO(t.a));
	attr.send_cq = rig->b.cq;
	attr.recv_cq = rig->b.cq;
	attr.srq = srq;
	t.b = ib_create_qp(rig->pd, &attr);
	ret = PTR_ERR_OR_ZERO(t.b);
	if (!ret) {
		ret = connect_kind(&t, kind);
		if (!ret)
			ret = test(&t);
		WARN_ON(ib_destroy_qp(t.b));
	}
	if (t.ah)
		rdma_destroy_ah(t.ah, RDMA_DESTROY_AH_SLEEPABLE);
	WARN_ON(ib_destroy_qp(t.a));
	return ret;
}

static int with_two(struct rig *rig, enum ib_qp_type kind, int (*test)(struct two *))
{
	return with_srq(rig, kind, NULL, test);
}

/*
 * A datagram is longer than the receive from the SRQ. The receive cannot return to the SRQ, so it
 * completes with an error, and the queue pair stays in RTS.
 */
static int with_too_long(struct two *t)
{
	struct ib_wc wc[1];

	TRY(receive(t, t->b, 7, 40 + 23));
	TRY(receive(t, t->b, 8, 40 + 24));
	TRY(datagram(t, 1, IB_WR_SEND, t->ah, t->b->qp_num, QKEY, 24));
	TRY(reap(&t->rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
	TRY(reap(&t->rig->b, wc, 1));
	EXPECT_WC(wc[0], 7, IB_WC_LOC_LEN_ERR);
	CHECK(state_of(t->b) == IB_QPS_RTS, "state %d", state_of(t->b));
	return arrives(t, 2, 8);
}

int t_srq_too_long(struct rig *rig)
{
	struct ib_srq_init_attr attr = {
		.attr = { .max_wr = DEPTH, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_srq *srq = ib_create_srq(rig->pd, &attr);
	int ret;

	if (IS_ERR(srq) && PTR_ERR(srq) == -EOPNOTSUPP) {
		strscpy(why, "skipped: the device has no SRQs", WHY_SIZE);
		return 0;
	}
	TRY(PTR_ERR_OR_ZERO(srq));
	ret = with_srq(rig, IB_QPT_UD, srq, with_too_long);
	ib_destroy_srq(srq);
	return ret;
}

int t_ud_drops(struct rig *rig)
{
	return with_two(rig, IB_QPT_UD, with_drops);
}

int t_sqe(struct rig *rig)
{
	return with_two(rig, IB_QPT_UD, with_sqe);
}

int t_uc(struct rig *rig)
{
	return with_two(rig, IB_QPT_UC, with_uc);
}

/* With timeout 0 a request waits for its peer without a limit. */
int t_no_timeout(struct rig *rig)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTS,
		.retry_cnt = 1,
		.rnr_retry = 1,
		.sq_psn = 0xfffff0,
	};
	struct ib_wc wc[1];

	TRY(to_init(&rig->a));
	TRY(to_rtr(rig, &rig->a, &rig->b));
	TRY(ib_modify_qp(rig->a.qp, &attr, IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
			 IB_QP_RNR_RETRY | IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC));
	TRY(post(rig, &rig->a, 1, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8, rig->b.dma,
		 rig->pd->unsafe_global_rkey));
	msleep(1000);
	TRY(no_more(&rig->a));
	CHECK(state_of(rig->a.qp) == IB_QPS_RTS, "state %d", state_of(rig->a.qp));
	TRY(to_state(&rig->a, IB_QPS_ERR));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_WR_FLUSH_ERR);
	return 0;
}

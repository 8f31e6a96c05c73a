// SPDX-License-Identifier: GPL-2.0
/*
 * Unreliable datagrams.
 */
#include "selftest.h"

/* A datagram to the same queue pair: 40 bytes of GRH, then the data, with the source QPN. */
static int ud_with(struct rig *rig, struct ib_qp *qp)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_INIT, .port_num = 1, .qkey = 0x11111111 };
	struct rdma_ah_attr ah_attr = {};
	struct end *a = &rig->a;
	struct ib_wc wc[2], *r;
	struct ib_sge sge = { .addr = a->dma, .length = 100, .lkey = rig->pd->local_dma_lkey };
	struct ib_sge rsge = { .addr = a->dma + 4096, .length = 140,
			       .lkey = rig->pd->local_dma_lkey };
	struct ib_recv_wr recv = { .wr_id = 1, .sg_list = &rsge, .num_sge = 1 };
	struct ib_ud_wr send = {
		.wr = {
			.wr_id = 2,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IB_WR_SEND_WITH_IMM,
			.send_flags = IB_SEND_SIGNALED,
			.ex.imm_data = cpu_to_be32(0xabcd),
		},
		.remote_qpn = qp->qp_num,
		.remote_qkey = 0x11111111,
		.port_num = 1,
	};
	int ret;

	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY));
	attr.qp_state = IB_QPS_RTR;
	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE));
	attr.qp_state = IB_QPS_RTS;
	attr.sq_psn = 5;
	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN));

	TRY(find_ah(rig, &ah_attr));
	send.ah = rdma_create_ah(rig->pd, &ah_attr, RDMA_CREATE_AH_SLEEPABLE);
	CHECK(!IS_ERR(send.ah), "rdma_create_ah: %ld", PTR_ERR(send.ah));

	fill(a, 0, 100, 5);
	ret = ib_post_recv(qp, &recv, NULL);
	if (!ret)
		ret = ib_post_send(qp, &send.wr, NULL);
	if (!ret)
		ret = reap(a, wc, 2);
	rdma_destroy_ah(send.ah, RDMA_DESTROY_AH_SLEEPABLE);
	TRY(ret);
	r = wc[0].wr_id == 1 ? &wc[0] : &wc[1];
	EXPECT_WC(*r, 1, IB_WC_SUCCESS);
	CHECK(r->opcode == IB_WC_RECV && r->byte_len == 140 && r->src_qp == qp->qp_num,
	      "opcode %d, length %u, source QPN %u", r->opcode, r->byte_len, r->src_qp);
	CHECK(r->wc_flags & IB_WC_GRH && r->wc_flags & IB_WC_WITH_IMM &&
	      r->ex.imm_data == cpu_to_be32(0xabcd), "flags %x", r->wc_flags);
	CHECK(!memcmp(a->buf, a->buf + 4096 + 40, 100), "the received data is wrong");
	return 0;
}

int t_ud(struct rig *rig)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_UD,
		.send_cq = rig->a.cq,
		.recv_cq = rig->a.cq,
	};
	struct ib_qp *qp = ib_create_qp(rig->pd, &attr);
	int ret;

	CHECK(!IS_ERR(qp), "ib_create_qp: %ld", PTR_ERR(qp));
	ret = ud_with(rig, qp);
	WARN_ON(ib_destroy_qp(qp));
	return ret;
}

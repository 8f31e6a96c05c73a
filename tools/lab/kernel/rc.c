// SPDX-License-Identifier: GPL-2.0
/*
 * Reliable connections: states, operations and errors.
 */
#include <linux/delay.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <rdma/ib_addr.h>

#include "selftest.h"

/* Illegal transitions are refused, and do not change the queue pair. */
int t_transitions(struct rig *rig)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;

	CHECK(to_state(&rig->a, IB_QPS_RTR), "RESET to RTR is accepted");
	CHECK(to_state(&rig->a, IB_QPS_RTS), "RESET to RTS is accepted");
	CHECK(to_state(&rig->a, IB_QPS_INIT), "RESET to INIT without attributes is accepted");
	TRY(ib_query_qp(rig->a.qp, &attr, IB_QP_STATE, &init));
	CHECK(attr.qp_state == IB_QPS_RESET, "state %d", attr.qp_state);
	TRY(to_init(&rig->a));
	CHECK(to_state(&rig->a, IB_QPS_RTS), "INIT to RTS is accepted");
	TRY(ib_query_qp(rig->a.qp, &attr, IB_QP_STATE, &init));
	CHECK(attr.qp_state == IB_QPS_INIT, "state %d", attr.qp_state);
	CHECK(attr.port_num == 1, "port %u", attr.port_num);
	CHECK(init.cap.max_send_wr >= DEPTH && init.cap.max_recv_wr >= DEPTH,
	      "the capacities are less than requested");
	TRY(to_rtr(rig, &rig->a, &rig->b));
	TRY(to_rts(&rig->a));
	TRY(to_state(&rig->a, IB_QPS_SQD));
	CHECK(to_init(&rig->a), "SQD to INIT is accepted");
	CHECK(to_rtr(rig, &rig->a, &rig->b), "SQD to RTR is accepted");
	CHECK(to_state(&rig->a, IB_QPS_SQE), "SQD to SQE is accepted");
	TRY(ib_query_qp(rig->a.qp, &attr, IB_QP_STATE, &init));
	CHECK(attr.qp_state == IB_QPS_SQD, "state %d", attr.qp_state);
	return to_state(&rig->a, IB_QPS_RTS);
}

/* Wrong requests are refused when they are posted, and the verb names the first wrong one. */
int t_immediate_errors(struct rig *rig)
{
	struct ib_sge sge[3] = {};
	struct ib_recv_wr r2 = { .sg_list = sge, .num_sge = 3 };
	struct ib_recv_wr r1 = { .next = &r2, .sg_list = sge, .num_sge = 1, .wr_id = 7 };
	struct ib_send_wr s2 = { .sg_list = sge, .num_sge = 3, .opcode = IB_WR_SEND };
	struct ib_send_wr s1 = { .next = &s2, .sg_list = sge, .opcode = IB_WR_SEND };
	const struct ib_recv_wr *bad_recv = NULL;
	const struct ib_send_wr *bad_send = NULL;
	int i, n;

	CHECK(ib_post_recv(rig->a.qp, &r1, &bad_recv) && bad_recv == &r1,
	      "a receive in RESET is accepted");
	CHECK(ib_post_send(rig->a.qp, &s1, &bad_send) && bad_send == &s1,
	      "a send in RESET is accepted");
	TRY(to_init(&rig->a));
	CHECK(ib_post_send(rig->a.qp, &s1, &bad_send) && bad_send == &s1,
	      "a send in INIT is accepted");
	sge[0].lkey = rig->pd->local_dma_lkey;
	sge[0].addr = rig->a.dma;
	CHECK(ib_post_recv(rig->a.qp, &r1, &bad_recv) && bad_recv == &r2,
	      "a receive with too many SGEs is accepted");
	r1.next = NULL;
	/*
	 * One receive is posted already. A queue may have more entries than requested, but must
	 * have a limit.
	 */
	for (i = 0, n = 0; i < 10000 && !n; i++)
		n = ib_post_recv(rig->a.qp, &r1, &bad_recv);
	CHECK(n && i >= DEPTH && bad_recv == &r1,
	      "the receive queue returned %d after %d receives", n, i);
	return 0;
}

/* The requests of a list that precede a refused one are executed. */
int t_bad_in_a_chain(struct rig *rig)
{
	struct ib_sge to[3] = { { .addr = rig->b.dma, .length = 64, .lkey = rig->pd->local_dma_lkey } };
	struct ib_sge from[3] = { { .addr = rig->a.dma, .length = 64, .lkey = rig->pd->local_dma_lkey } };
	struct ib_recv_wr r2 = { .sg_list = to, .num_sge = 3 };
	struct ib_recv_wr r1 = { .next = &r2, .wr_id = 100, .sg_list = to, .num_sge = 1 };
	struct ib_send_wr s2 = { .sg_list = from, .num_sge = 3, .opcode = IB_WR_SEND };
	struct ib_send_wr s1 = { .next = &s2, .wr_id = 1, .sg_list = from, .num_sge = 1,
				 .opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED };
	const struct ib_recv_wr *bad_recv = NULL;
	const struct ib_send_wr *bad_send = NULL;
	struct ib_wc wc;

	TRY(connect_ends(rig));
	CHECK(ib_post_recv(rig->b.qp, &r1, &bad_recv) == -EINVAL && bad_recv == &r2,
	      "the list is not refused at the wrong receive");
	CHECK(ib_post_send(rig->a.qp, &s1, &bad_send) == -EINVAL && bad_send == &s2,
	      "the list is not refused at the wrong send");
	TRY(reap(&rig->b, &wc, 1));
	EXPECT_WC(wc, 100, IB_WC_SUCCESS);
	TRY(reap(&rig->a, &wc, 1));
	EXPECT_WC(wc, 1, IB_WC_SUCCESS);
	return no_more(&rig->a);
}

int t_send(struct rig *rig)
{
	struct ib_wc wc[2];

	TRY(connect_ends(rig));
	fill(&rig->a, 0, 3000, 1);
	TRY(post_recv(rig, &rig->b, 100, 0, 4096));
	TRY(post(rig, &rig->a, 1, IB_WR_SEND_WITH_IMM, IB_SEND_SIGNALED, 0, 3000, 0, 0));
	TRY(reap(&rig->b, wc, 1));
	EXPECT_WC(wc[0], 100, IB_WC_SUCCESS);
	CHECK(wc[0].opcode == IB_WC_RECV && wc[0].byte_len == 3000, "opcode %d length %u",
	      wc[0].opcode, wc[0].byte_len);
	CHECK(wc[0].wc_flags & IB_WC_WITH_IMM && wc[0].ex.imm_data == cpu_to_be32(0x12345678),
	      "immediate %x", be32_to_cpu(wc[0].ex.imm_data));
	CHECK(wc[0].qp == rig->b.qp, "the completion names another queue pair");
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
	CHECK(wc[0].opcode == IB_WC_SEND && wc[0].qp == rig->a.qp, "opcode %d", wc[0].opcode);
	CHECK(!memcmp(rig->a.buf, rig->b.buf, 3000), "the received data is wrong");
	return no_more(&rig->a);
}

int t_inline(struct rig *rig)
{
	struct ib_wc wc[1];

	TRY(connect_ends(rig));
	fill(&rig->a, 8, 32, 9);
	TRY(post_recv(rig, &rig->b, 100, 0, 64));
	TRY(post(rig, &rig->a, 1, IB_WR_SEND, IB_SEND_SIGNALED | IB_SEND_INLINE, 8, 32, 0, 0));
	memset(rig->a.buf, 0xee, 64);
	TRY(reap(&rig->b, wc, 1));
	EXPECT_WC(wc[0], 100, IB_WC_SUCCESS);
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
	fill(&rig->a, 8, 32, 9);
	CHECK(!memcmp(rig->a.buf + 8, rig->b.buf, 32), "the received data is wrong");
	return 0;
}

int t_rdma(struct rig *rig)
{
	u32 rkey = rig->pd->unsafe_global_rkey;
	struct ib_wc wc[3];

	TRY(connect_ends(rig));
	fill(&rig->a, 0, 8192, 3);
	TRY(post_recv(rig, &rig->b, 100, 0, 0));
	TRY(post(rig, &rig->a, 1, IB_WR_RDMA_WRITE, 0, 0, 8192, rig->b.dma, rkey));
	TRY(post(rig, &rig->a, 2, IB_WR_RDMA_WRITE_WITH_IMM, IB_SEND_SIGNALED, 0, 5, rig->b.dma + 8192,
		 rkey));
	TRY(reap(&rig->b, wc, 1));
	EXPECT_WC(wc[0], 100, IB_WC_SUCCESS);
	CHECK(wc[0].opcode == IB_WC_RECV_RDMA_WITH_IMM && wc[0].byte_len == 5,
	      "opcode %d length %u",
	      wc[0].opcode, wc[0].byte_len);
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 2, IB_WC_SUCCESS);
	CHECK(wc[0].opcode == IB_WC_RDMA_WRITE, "opcode %d", wc[0].opcode);
	CHECK(!memcmp(rig->a.buf, rig->b.buf, 8192), "the written data is wrong");
	CHECK(!memcmp(rig->a.buf, rig->b.buf + 8192, 5),
	      "the data written with immediate data is wrong");

	fill(&rig->b, 0, 6000, 77);
	TRY(post(rig, &rig->a, 3, IB_WR_RDMA_READ, IB_SEND_SIGNALED, 100, 6000, rig->b.dma, rkey));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 3, IB_WC_SUCCESS);
	CHECK(wc[0].opcode == IB_WC_RDMA_READ, "opcode %d", wc[0].opcode);
	CHECK(!memcmp(rig->a.buf + 100, rig->b.buf, 6000), "the read data is wrong");
	return no_more(&rig->a);
}

/* A long run, in which both rings wrap many times. All completions arrive in order. */
int t_stream(struct rig *rig)
{
	u64 sent = 0, recv_posted = 0, received = 0, done = 0;
	struct ib_wc wc[4];
	int i;

	TRY(connect_ends(rig));
	while (received < 2000 || done < 2000) {
		unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);
		bool progress = false;

		while (recv_posted < 2000 && recv_posted - received < DEPTH) {
			TRY(post_recv(rig, &rig->b, recv_posted, 64 * (recv_posted % DEPTH), 64));
			recv_posted++;
		}
		while (sent < recv_posted && sent - done < DEPTH) {
			*(u64 *)(rig->a.buf + 64 * (sent % DEPTH)) = sent;
			TRY(post(rig, &rig->a, sent, IB_WR_SEND, IB_SEND_SIGNALED,
				 64 * (sent % DEPTH), 64, 0, 0));
			sent++;
		}
		while (!progress) {
			int n = ib_poll_cq(rig->b.cq, 4, wc);

			CHECK(n >= 0, "ib_poll_cq: %d", n);
			for (i = 0; i < n; i++, received++) {
				EXPECT_WC(wc[i], received, IB_WC_SUCCESS);
				CHECK(*(u64 *)(rig->b.buf + 64 * (received % DEPTH)) == received,
				      "the data of message %llu is wrong", received);
				progress = true;
			}
			n = ib_poll_cq(rig->a.cq, 4, wc);
			CHECK(n >= 0, "ib_poll_cq: %d", n);
			for (i = 0; i < n; i++, done++) {
				EXPECT_WC(wc[i], done, IB_WC_SUCCESS);
				progress = true;
			}
			CHECK(time_before(jiffies, end),
			      "no progress: %llu sent, %llu completed, %llu received",
			      sent, done, received);
			cond_resched();
		}
	}
	return 0;
}

/* Requests that are outstanding or posted later are flushed exactly once, in order. */
int t_flush(struct rig *rig)
{
	struct ib_wc wc[16];
	int i;

	TRY(connect_ends(rig));
	for (i = 0; i < 8; i++)
		TRY(post_recv(rig, &rig->a, 200 + i, 0, 64));
	TRY(to_state(&rig->a, IB_QPS_ERR));
	TRY(reap(&rig->a, wc, 8));
	for (i = 0; i < 8; i++)
		EXPECT_WC(wc[i], 200 + i, IB_WC_WR_FLUSH_ERR);
	CHECK(wc[0].qp == rig->a.qp && wc[0].vendor_err, "qp or vendor_err is not set");
	for (i = 0; i < 4; i++)
		TRY(post_recv(rig, &rig->a, 300 + i, 0, 64));
	TRY(reap(&rig->a, wc, 4));
	for (i = 0; i < 4; i++)
		EXPECT_WC(wc[i], 300 + i, IB_WC_WR_FLUSH_ERR);
	/* Unsignaled sends are flushed with completions, too. */
	for (i = 0; i < 4; i++)
		TRY(post(rig, &rig->a, 400 + i, IB_WR_SEND, 0, 0, 8, 0, 0));
	TRY(reap(&rig->a, wc, 4));
	for (i = 0; i < 4; i++)
		EXPECT_WC(wc[i], 400 + i, IB_WC_WR_FLUSH_ERR);
	return no_more(&rig->a);
}

/* RESET removes old completions. After that the queue pair works again with the same CQ. */
int t_reset(struct rig *rig)
{
	struct ib_wc wc[1];
	int i;

	TRY(connect_ends(rig));
	for (i = 0; i < 8; i++)
		TRY(post_recv(rig, &rig->a, i, 0, 64));
	TRY(to_state(&rig->a, IB_QPS_ERR));
	msleep(20);
	TRY(to_state(&rig->a, IB_QPS_RESET));
	TRY(no_more(&rig->a));
	TRY(to_state(&rig->b, IB_QPS_RESET));
	TRY(connect_ends(rig));
	TRY(post_recv(rig, &rig->a, 55, 0, 64));
	TRY(post(rig, &rig->b, 56, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 55, IB_WC_SUCCESS);
	TRY(reap(&rig->b, wc, 1));
	EXPECT_WC(wc[0], 56, IB_WC_SUCCESS);
	return 0;
}

int t_access_error(struct rig *rig)
{
	struct ib_wc wc[2];

	TRY(connect_ends(rig));
	TRY(post(rig, &rig->a, 1, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8, rig->b.dma, 0xdead00));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_REM_ACCESS_ERR);
	TRY(wait_count(&rig->b.qp_events, 1));
	CHECK(rig->b.last_qp_event == IB_EVENT_QP_ACCESS_ERR, "event %d", rig->b.last_qp_event);
	CHECK(state_of(rig->a.qp) == IB_QPS_ERR, "requester in state %d", state_of(rig->a.qp));
	CHECK(state_of(rig->b.qp) == IB_QPS_ERR, "responder in state %d", state_of(rig->b.qp));
	msleep(50);
	CHECK(atomic_read(&rig->b.qp_events) == 1, "%d events", atomic_read(&rig->b.qp_events));
	return 0;
}

int t_rnr(struct rig *rig)
{
	struct ib_wc wc[1];

	TRY(connect_ends(rig));
	TRY(post(rig, &rig->a, 1, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_RNR_RETRY_EXC_ERR);
	return 0;
}

/* A message arrives unchanged with each path MTU. */
int t_path_mtu(struct rig *rig)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	struct ib_wc wc[1];
	enum ib_mtu mtu;

	for (mtu = IB_MTU_256; mtu <= IB_MTU_1024; mtu++) {
		rig->path_mtu = mtu;
		TRY(to_state(&rig->a, IB_QPS_RESET));
		TRY(to_state(&rig->b, IB_QPS_RESET));
		TRY(connect_ends(rig));
		TRY(ib_query_qp(rig->a.qp, &attr, IB_QP_PATH_MTU, &init));
		CHECK(attr.path_mtu == mtu, "path MTU %d, not %d", attr.path_mtu, mtu);
		fill(&rig->a, 0, 4096, mtu);
		TRY(post_recv(rig, &rig->b, 100, 0, 4096));
		TRY(post(rig, &rig->a, 1, IB_WR_SEND, IB_SEND_SIGNALED, 0, 4096, 0, 0));
		TRY(reap(&rig->b, wc, 1));
		EXPECT_WC(wc[0], 100, IB_WC_SUCCESS);
		TRY(reap(&rig->a, wc, 1));
		EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
		CHECK(!memcmp(rig->a.buf, rig->b.buf, 4096),
		      "the data is wrong with path MTU %d", mtu);
	}
	return 0;
}

static int set_mtu(struct net_device *ndev, int mtu)
{
	int ret;

	rtnl_lock();
	ret = dev_set_mtu(ndev, mtu);
	rtnl_unlock();
	CHECK(!ret, "dev_set_mtu to %d: %d", mtu, ret);
	return 0;
}

static int check_port_mtu(struct rig *rig, struct net_device *ndev)
{
	enum ib_mtu asked = iboe_get_mtu(ndev->mtu);
	struct ib_port_attr port;

	TRY(ib_query_port(rig->ibdev, 1, &port));
	CHECK(port.active_mtu == asked,
	      "the port has MTU %d, the connection manager %d, the net device %d",
	      port.active_mtu, asked, ndev->mtu);
	return 0;
}

/*
 * The active MTU of the port is the path MTU that the connection manager derives from the net
 * device.
 */
int t_port_mtu(struct rig *rig)
{
	static const int mtus[] = { 1500, 2143, 2144, 2155, 2156, 4191, 4192, 4200, 4203, 4204, 9000 };
	struct net_device *ndev = ib_device_get_netdev(rig->ibdev, 1);
	int i, before, ret = 0;

	CHECK(ndev, "the port has no net device");
	before = ndev->mtu;
	for (i = 0; !ret && i < ARRAY_SIZE(mtus); i++) {
		ret = set_mtu(ndev, mtus[i]);
		if (!ret)
			ret = check_port_mtu(rig, ndev);
	}
	if (set_mtu(ndev, before))
		ret = ret ?: -EINVAL;
	dev_put(ndev);
	return ret;
}

/* Unaligned requests and lists of SGEs, as in the packed structs of ib_iser and ib_isert. */
struct unaligned {
	u32 before;
	struct ib_sge sge;
	struct ib_recv_wr recv;
	struct ib_rdma_wr send;
} __packed;

static struct ib_sge *unaligned_sge(struct rig *rig, struct unaligned *at, u64 addr, u32 len)
{
	at->sge.addr = addr;
	at->sge.length = len;
	at->sge.lkey = rig->pd->local_dma_lkey;
	return (void *)at + offsetof(struct unaligned, sge);
}

/* Requests and their lists of SGEs may have any alignment. */
int t_unaligned(struct rig *rig)
{
	static const struct {
		enum ib_wr_opcode opcode;
		int flags;
	} kinds[] = {
		{ IB_WR_SEND, 0 }, { IB_WR_SEND, IB_SEND_INLINE }, { IB_WR_RDMA_WRITE_WITH_IMM, 0 },
	};
	struct unaligned at __aligned(8) = {};
	struct ib_recv_wr *recv = (void *)&at + offsetof(struct unaligned, recv);
	struct ib_rdma_wr *send = (void *)&at + offsetof(struct unaligned, send);
	struct ib_wc wc[2];
	u64 id;

	TRY(connect_ends(rig));
	at.recv.num_sge = 1;
	at.send.wr.num_sge = 1;
	at.send.remote_addr = rig->b.dma;
	at.send.rkey = rig->pd->unsafe_global_rkey;
	for (id = 0; id < ARRAY_SIZE(kinds); id++) {
		bool is_inline = kinds[id].flags & IB_SEND_INLINE;

		fill(&rig->a, 8, 32, id);
		at.recv.wr_id = 100 + id;
		at.recv.sg_list = unaligned_sge(rig, &at, rig->b.dma, 64);
		TRY(ib_post_recv(rig->b.qp, recv, NULL));
		at.send.wr.wr_id = id;
		at.send.wr.opcode = kinds[id].opcode;
		at.send.wr.send_flags = kinds[id].flags | IB_SEND_SIGNALED;
		at.send.wr.sg_list =
			unaligned_sge(rig, &at, is_inline ? (uintptr_t)rig->a.buf + 8 : rig->a.dma + 8, 32);
		TRY(ib_post_send(rig->a.qp, &send->wr, NULL));
		TRY(reap(&rig->b, wc, 1));
		EXPECT_WC(wc[0], 100 + id, IB_WC_SUCCESS);
		CHECK(wc[0].byte_len == 32, "length %u", wc[0].byte_len);
		TRY(reap(&rig->a, wc, 1));
		EXPECT_WC(wc[0], id, IB_WC_SUCCESS);
		CHECK(!memcmp(rig->a.buf + 8, rig->b.buf, 32),
		      "the data of message %llu is wrong", id);
	}
	return 0;
}

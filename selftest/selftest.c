// SPDX-License-Identifier: GPL-2.0
/*
 * A self-test of kernel verbs: two RC queue pairs of one device, connected to each other, driven as
 * a kernel user drives them. Loading the module runs all tests on the device `dev` and prints one
 * line for each, "ok NAME" or "FAILED NAME: why". Any RDMA device will do; a test of something that
 * it does not offer says "skipped".
 *
 * The path of one test: rig_open() makes two queue pairs on two completion queues and connects them;
 * the test posts, polls with reap(), and compares with what the specification says must come;
 * rig_close() takes everything down, which must always succeed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#include "selftest.h"

static char *dev = "verbena0";
module_param(dev, charp, 0444);
MODULE_PARM_DESC(dev, "name of the device to test");

static char *only = "";
module_param(only, charp, 0444);
MODULE_PARM_DESC(only, "run just the test of this name");

static bool hold;
module_param(hold, bool, 0444);
MODULE_PARM_DESC(hold, "keep queue pairs in every state, and drain them when the device goes");

char why[WHY_SIZE];

/* --- the rig ------------------------------------------------------------------------------- */

static void comp_handler(struct ib_cq *cq, void *context)
{
	struct end *e = context;

	atomic_inc(&e->comp_events);
}

static void cq_event(struct ib_event *event, void *context)
{
	struct end *e = context;

	e->last_cq_event = event->event;
	atomic_inc(&e->cq_events);
}

static void qp_event(struct ib_event *event, void *context)
{
	struct end *e = context;

	e->last_qp_event = event->event;
	atomic_inc(&e->qp_events);
}

static void end_close(struct rig *rig, struct end *e)
{
	if (e->qp)
		WARN_ON(ib_destroy_qp(e->qp));
	if (e->cq)
		ib_destroy_cq(e->cq);
	if (e->dma)
		ib_dma_unmap_single(rig->ibdev, e->dma, BUF_SIZE, DMA_BIDIRECTIONAL);
	kfree(e->buf);
	memset(e, 0, sizeof(*e));
}

static int end_open(struct rig *rig, struct end *e, int cqe)
{
	struct ib_cq_init_attr cq_attr = { .cqe = cqe };
	struct ib_qp_init_attr attr = {
		.event_handler = qp_event,
		.qp_context = e,
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 2,
			.max_recv_sge = 2,
			.max_inline_data = 32,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};

	e->buf = kzalloc(BUF_SIZE, GFP_KERNEL);
	if (!e->buf)
		return -ENOMEM;
	e->dma = ib_dma_map_single(rig->ibdev, e->buf, BUF_SIZE, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(rig->ibdev, e->dma)) {
		e->dma = 0;
		return -ENOMEM;
	}
	e->cq = ib_create_cq(rig->ibdev, comp_handler, cq_event, e, &cq_attr);
	if (IS_ERR(e->cq)) {
		int ret = PTR_ERR(e->cq);

		e->cq = NULL;
		return ret;
	}
	attr.send_cq = e->cq;
	attr.recv_cq = e->cq;
	e->qp = ib_create_qp(rig->pd, &attr);
	if (IS_ERR(e->qp)) {
		int ret = PTR_ERR(e->qp);

		e->qp = NULL;
		return ret;
	}
	return 0;
}

int to_state(struct end *e, enum ib_qp_state state)
{
	struct ib_qp_attr attr = { .qp_state = state };

	return ib_modify_qp(e->qp, &attr, IB_QP_STATE);
}

int to_init(struct end *e)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ |
				   IB_ACCESS_REMOTE_WRITE,
	};

	return ib_modify_qp(e->qp, &attr, IB_QP_STATE | IB_QP_PORT | IB_QP_PKEY_INDEX |
			    IB_QP_ACCESS_FLAGS);
}

/* The way to this very device, which is every peer here. Kernel users bring the destination's MAC along. */
int find_ah(struct rig *rig, struct rdma_ah_attr *ah_attr)
{
	const struct ib_gid_attr *gid;
	u8 mac[ETH_ALEN];
	int ret;

	gid = rdma_get_gid_attr(rig->ibdev, 1, rig->gid_index);
	if (IS_ERR(gid))
		return PTR_ERR(gid);
	ah_attr->type = rdma_ah_find_type(rig->ibdev, 1);
	rdma_ah_set_port_num(ah_attr, 1);
	rdma_ah_set_grh(ah_attr, (union ib_gid *)&gid->gid, 0, rig->gid_index, 16, 0);
	ret = rdma_read_gid_l2_fields(gid, NULL, mac);
	rdma_put_gid_attr(gid);
	memcpy(ah_attr->roce.dmac, mac, ETH_ALEN);
	return ret;
}

int to_rtr(struct rig *rig, struct end *e, struct end *peer)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTR,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.rq_psn = 0xfffff0,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
	};
	int ret = find_ah(rig, &attr.ah_attr);

	if (ret)
		return ret;
	return ib_modify_qp(e->qp, &attr, IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
			    IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
}

int to_rts(struct end *e)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 1,
		.sq_psn = 0xfffff0,
		.max_rd_atomic = 4,
	};

	return ib_modify_qp(e->qp, &attr, IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
			    IB_QP_RNR_RETRY | IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC);
}

static int connect_ends(struct rig *rig)
{
	TRY(to_init(&rig->a));
	TRY(to_init(&rig->b));
	TRY(to_rtr(rig, &rig->a, &rig->b));
	TRY(to_rtr(rig, &rig->b, &rig->a));
	TRY(to_rts(&rig->a));
	TRY(to_rts(&rig->b));
	return 0;
}

static void rig_close(struct rig *rig)
{
	end_close(rig, &rig->a);
	end_close(rig, &rig->b);
	if (rig->pd)
		ib_dealloc_pd(rig->pd);
	rig->pd = NULL;
}

static int rig_open(struct rig *rig, int cqe)
{
	int ret;

	rig->pd = ib_alloc_pd(rig->ibdev, IB_PD_UNSAFE_GLOBAL_RKEY);
	if (IS_ERR(rig->pd)) {
		ret = PTR_ERR(rig->pd);
		rig->pd = NULL;
		return ret;
	}
	ret = end_open(rig, &rig->a, cqe);
	if (!ret)
		ret = end_open(rig, &rig->b, CQE);
	return ret;
}

/* The first GID that is an IPv4 address over RoCEv2, or any. */
static int find_gid(struct ib_device *ibdev)
{
	struct ib_port_attr port;
	int i, any = -ENOENT;

	if (ib_query_port(ibdev, 1, &port))
		return -EIO;
	for (i = 0; i < port.gid_tbl_len; i++) {
		const struct ib_gid_attr *attr = rdma_get_gid_attr(ibdev, 1, i);
		bool v4, v2;

		if (IS_ERR(attr))
			continue;
		v4 = ipv6_addr_v4mapped((struct in6_addr *)&attr->gid);
		v2 = attr->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP;
		rdma_put_gid_attr(attr);
		if (v4 && v2)
			return i;
		if (v2)
			any = i;
	}
	return any;
}

/* --- posting and polling ------------------------------------------------------------------- */

static int post_recv(struct rig *rig, struct end *e, u64 id, u32 offset, u32 len)
{
	struct ib_sge sge = {
		.addr = e->dma + offset,
		.length = len,
		.lkey = rig->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(e->qp, &wr, NULL);
}

static int post(struct rig *rig, struct end *e, u64 id, enum ib_wr_opcode opcode, int flags,
		u32 offset, u32 len, u64 remote, u32 rkey)
{
	struct ib_sge sge = {
		.addr = flags & IB_SEND_INLINE ? (uintptr_t)e->buf + offset : e->dma + offset,
		.length = len,
		.lkey = rig->pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_id = id,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = opcode,
			.send_flags = flags,
			.ex.imm_data = cpu_to_be32(0x12345678),
		},
		.remote_addr = remote,
		.rkey = rkey,
	};

	return ib_post_send(e->qp, &wr.wr, NULL);
}

/* Polls until @n completions are there, or time is over. */
int reap(struct end *e, struct ib_wc *wc, int n)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);
	int got = 0, ret;

	while (got < n) {
		ret = ib_poll_cq(e->cq, n - got, wc + got);
		CHECK(ret >= 0, "poll: %d", ret);
		got += ret;
		if (!ret) {
			CHECK(time_before(jiffies, end), "%d of %d completions", got, n);
			usleep_range(20, 100);
		}
	}
	return 0;
}

int no_more(struct end *e)
{
	struct ib_wc wc;

	msleep(20);
	CHECK(ib_poll_cq(e->cq, 1, &wc) == 0, "surplus completion %llu status %d", wc.wr_id,
	      wc.status);
	return 0;
}

int wait_count(atomic_t *count, int n)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);

	while (atomic_read(count) < n) {
		CHECK(time_before(jiffies, end), "%d of %d events", atomic_read(count), n);
		msleep(1);
	}
	return 0;
}

static void fill(struct end *e, u32 offset, u32 len, u8 seed)
{
	u32 i;

	for (i = 0; i < len; i++)
		e->buf[offset + i] = seed + i * 7;
}

/* --- tests --------------------------------------------------------------------------------- */

static int t_send(struct rig *rig)
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
	CHECK(wc[0].qp == rig->b.qp, "qp");
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
	CHECK(wc[0].opcode == IB_WC_SEND && wc[0].qp == rig->a.qp, "opcode %d", wc[0].opcode);
	CHECK(!memcmp(rig->a.buf, rig->b.buf, 3000), "data");
	return no_more(&rig->a);
}

static int t_inline(struct rig *rig)
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
	CHECK(!memcmp(rig->a.buf + 8, rig->b.buf, 32), "data");
	return 0;
}

static int t_rdma(struct rig *rig)
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
	CHECK(wc[0].opcode == IB_WC_RECV_RDMA_WITH_IMM && wc[0].byte_len == 5, "opcode %d length %u",
	      wc[0].opcode, wc[0].byte_len);
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 2, IB_WC_SUCCESS);
	CHECK(wc[0].opcode == IB_WC_RDMA_WRITE, "opcode %d", wc[0].opcode);
	CHECK(!memcmp(rig->a.buf, rig->b.buf, 8192), "data written");
	CHECK(!memcmp(rig->a.buf, rig->b.buf + 8192, 5), "data written with immediate");

	fill(&rig->b, 0, 6000, 77);
	TRY(post(rig, &rig->a, 3, IB_WR_RDMA_READ, IB_SEND_SIGNALED, 100, 6000, rig->b.dma, rkey));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 3, IB_WC_SUCCESS);
	CHECK(wc[0].opcode == IB_WC_RDMA_READ, "opcode %d", wc[0].opcode);
	CHECK(!memcmp(rig->a.buf + 100, rig->b.buf, 6000), "data read");
	return no_more(&rig->a);
}

/* A long run through both rings, which must wrap many times, in order. */
static int t_stream(struct rig *rig)
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

			CHECK(n >= 0, "poll %d", n);
			for (i = 0; i < n; i++, received++) {
				EXPECT_WC(wc[i], received, IB_WC_SUCCESS);
				CHECK(*(u64 *)(rig->b.buf + 64 * (received % DEPTH)) == received,
				      "data of %llu", received);
				progress = true;
			}
			n = ib_poll_cq(rig->a.cq, 4, wc);
			CHECK(n >= 0, "poll %d", n);
			for (i = 0; i < n; i++, done++) {
				EXPECT_WC(wc[i], done, IB_WC_SUCCESS);
				progress = true;
			}
			CHECK(time_before(jiffies, end), "stuck: %llu sent, %llu done, %llu received",
			      sent, done, received);
			cond_resched();
		}
	}
	return 0;
}

/* What is wrong in itself is refused when it is posted, with the bad request named. */
static int t_immediate_errors(struct rig *rig)
{
	struct ib_sge sge[3] = {};
	struct ib_recv_wr r2 = { .sg_list = sge, .num_sge = 3 };
	struct ib_recv_wr r1 = { .next = &r2, .sg_list = sge, .num_sge = 1, .wr_id = 7 };
	struct ib_send_wr s2 = { .sg_list = sge, .num_sge = 3, .opcode = IB_WR_SEND };
	struct ib_send_wr s1 = { .next = &s2, .sg_list = sge, .opcode = IB_WR_SEND };
	const struct ib_recv_wr *bad_recv = NULL;
	const struct ib_send_wr *bad_send = NULL;
	int i, n;

	CHECK(ib_post_recv(rig->a.qp, &r1, &bad_recv) && bad_recv == &r1, "receive in RESET");
	CHECK(ib_post_send(rig->a.qp, &s1, &bad_send) && bad_send == &s1, "send in RESET");
	TRY(to_init(&rig->a));
	CHECK(ib_post_send(rig->a.qp, &s1, &bad_send) && bad_send == &s1, "send in INIT");
	sge[0].lkey = rig->pd->local_dma_lkey;
	sge[0].addr = rig->a.dma;
	CHECK(ib_post_recv(rig->a.qp, &r1, &bad_recv) && bad_recv == &r2, "too many SGEs");
	r1.next = NULL;
	/* One is in already. A queue may be deeper than asked for, not without end. */
	for (i = 0, n = 0; i < 10000 && !n; i++)
		n = ib_post_recv(rig->a.qp, &r1, &bad_recv);
	CHECK(n && i >= DEPTH && bad_recv == &r1, "full: %d after %d", n, i);
	return 0;
}

/* Everything outstanding, and everything posted later, completes exactly once, in order. */
static int t_flush(struct rig *rig)
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
	CHECK(wc[0].qp == rig->a.qp && wc[0].vendor_err, "qp and vendor_err must be set");
	for (i = 0; i < 4; i++)
		TRY(post_recv(rig, &rig->a, 300 + i, 0, 64));
	TRY(reap(&rig->a, wc, 4));
	for (i = 0; i < 4; i++)
		EXPECT_WC(wc[i], 300 + i, IB_WC_WR_FLUSH_ERR);
	/* Unsignaled, and yet it completes. */
	for (i = 0; i < 4; i++)
		TRY(post(rig, &rig->a, 400 + i, IB_WR_SEND, 0, 0, 8, 0, 0));
	TRY(reap(&rig->a, wc, 4));
	for (i = 0; i < 4; i++)
		EXPECT_WC(wc[i], 400 + i, IB_WC_WR_FLUSH_ERR);
	return no_more(&rig->a);
}

/* After RESET nothing of the old life shows, and the same CQ serves the new one. */
static int t_reset(struct rig *rig)
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

static int t_access_error(struct rig *rig)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	struct ib_wc wc[2];

	TRY(connect_ends(rig));
	TRY(post(rig, &rig->a, 1, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8, rig->b.dma, 0xdead00));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_REM_ACCESS_ERR);
	TRY(wait_count(&rig->b.qp_events, 1));
	CHECK(rig->b.last_qp_event == IB_EVENT_QP_ACCESS_ERR, "event %d", rig->b.last_qp_event);
	TRY(ib_query_qp(rig->a.qp, &attr, IB_QP_STATE, &init));
	CHECK(attr.qp_state == IB_QPS_ERR, "requester in state %d", attr.qp_state);
	TRY(ib_query_qp(rig->b.qp, &attr, IB_QP_STATE, &init));
	CHECK(attr.qp_state == IB_QPS_ERR, "responder in state %d", attr.qp_state);
	msleep(50);
	CHECK(atomic_read(&rig->b.qp_events) == 1, "%d events", atomic_read(&rig->b.qp_events));
	return 0;
}

static int t_rnr(struct rig *rig)
{
	struct ib_wc wc[1];

	TRY(connect_ends(rig));
	TRY(post(rig, &rig->a, 1, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
	TRY(reap(&rig->a, wc, 1));
	EXPECT_WC(wc[0], 1, IB_WC_RNR_RETRY_EXC_ERR);
	return 0;
}

/* An arm notifies once, for what came after it. */
static int t_notify(struct rig *rig)
{
	struct ib_wc wc[2];
	int ret;

	TRY(connect_ends(rig));
	TRY(post_recv(rig, &rig->b, 1, 0, 64));
	TRY(post_recv(rig, &rig->b, 2, 0, 64));
	ret = ib_req_notify_cq(rig->b.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
	CHECK(ret == 0, "arm of an empty queue: %d", ret);
	TRY(post(rig, &rig->a, 3, IB_WR_SEND, 0, 0, 8, 0, 0));
	TRY(wait_count(&rig->b.comp_events, 1));
	TRY(post(rig, &rig->a, 4, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
	TRY(reap(&rig->a, wc, 1));
	msleep(50);
	CHECK(atomic_read(&rig->b.comp_events) == 1, "%d notifications of one arm",
	      atomic_read(&rig->b.comp_events));
	ret = ib_req_notify_cq(rig->b.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
	CHECK(ret == 1, "missed events not reported: %d", ret);
	TRY(reap(&rig->b, wc, 2));
	EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
	EXPECT_WC(wc[1], 2, IB_WC_SUCCESS);
	return 0;
}

/* A solicited arm sleeps through an ordinary completion, and wakes for one in error. */
static int t_solicited(struct rig *rig)
{
	struct ib_wc wc[4];

	TRY(connect_ends(rig));
	TRY(post_recv(rig, &rig->b, 1, 0, 64));
	TRY(post_recv(rig, &rig->b, 2, 0, 64));
	TRY(post_recv(rig, &rig->b, 3, 0, 64));
	CHECK(ib_req_notify_cq(rig->b.cq, IB_CQ_SOLICITED) >= 0, "arm");
	TRY(post(rig, &rig->a, 10, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
	TRY(reap(&rig->a, wc, 1));
	msleep(30);
	CHECK(atomic_read(&rig->b.comp_events) == 0, "notified without solicitation");
	TRY(post(rig, &rig->a, 11, IB_WR_SEND, IB_SEND_SIGNALED | IB_SEND_SOLICITED, 0, 8, 0, 0));
	TRY(wait_count(&rig->b.comp_events, 1));
	TRY(reap(&rig->b, wc, 2));
	CHECK(ib_req_notify_cq(rig->b.cq, IB_CQ_SOLICITED) >= 0, "arm");
	TRY(to_state(&rig->b, IB_QPS_ERR));
	TRY(wait_count(&rig->b.comp_events, 2));
	return 0;
}

/* One event, what is there stays pollable, the queue pair is in error. */
static int t_cq_overflow(struct rig *rig)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	int i, n, room;
	struct ib_wc wc;

	/* The rig's first queue has been made for 4 entries; it may have some more. */
	room = rig->a.cq->cqe;
	if (room >= DEPTH) {
		strscpy(why, "skipped: the smallest queue is too deep");
		return 0;
	}
	TRY(connect_ends(rig));
	for (i = 0; i <= room; i++)
		TRY(post(rig, &rig->a, i, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8, rig->b.dma,
			 rig->pd->unsafe_global_rkey));
	TRY(wait_count(&rig->a.cq_events, 1));
	CHECK(rig->a.last_cq_event == IB_EVENT_CQ_ERR, "event %d", rig->a.last_cq_event);
	for (n = 0; ib_poll_cq(rig->a.cq, 1, &wc) > 0; n++)
		EXPECT_WC(wc, n, IB_WC_SUCCESS);
	CHECK(n == room, "%d of %d completions", n, room);
	msleep(100);
	CHECK(atomic_read(&rig->a.cq_events) == 1, "%d events", atomic_read(&rig->a.cq_events));
	TRY(ib_query_qp(rig->a.qp, &attr, IB_QP_STATE, &init));
	CHECK(attr.qp_state == IB_QPS_ERR, "queue pair in state %d", attr.qp_state);
	return 0;
}

/* Completions by the core's own CQ, whose `done` pointers come back untouched; drains end. */
struct cqe_test {
	struct ib_cqe cqe;
	struct completion done;
	enum ib_wc_status status;
};

static void cqe_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct cqe_test *t = container_of(wc->wr_cqe, struct cqe_test, cqe);

	t->status = wc->status;
	complete(&t->done);
}

#define DRAINED		4

/* A queue pair on the core's own CQ, with receives that nothing fills. */
struct drained {
	struct end end;
	struct cqe_test recv[DRAINED];
};

static int drained_open(struct rig *rig, struct drained *d, struct ib_cq *cq)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = IB_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
	};
	int ret, i;

	d->end.qp = ib_create_qp(rig->pd, &attr);
	if (IS_ERR(d->end.qp)) {
		ret = PTR_ERR(d->end.qp);
		d->end.qp = NULL;
		return ret;
	}
	ret = to_init(&d->end);
	for (i = 0; i < DRAINED && !ret; i++) {
		struct ib_recv_wr wr = { .wr_cqe = &d->recv[i].cqe };

		d->recv[i].cqe.done = cqe_done;
		init_completion(&d->recv[i].done);
		ret = ib_post_recv(d->end.qp, &wr, NULL);
	}
	if (!ret)
		ret = to_rtr(rig, &d->end, &d->end);
	if (!ret)
		ret = to_rts(&d->end);
	return ret;
}

/* Waits for ever if a flush is lost: then the kernel reports a hung task. */
static int drained_close(struct drained *d)
{
	int ret = 0, i;

	if (!d->end.qp)
		return 0;
	ib_drain_qp(d->end.qp);
	for (i = 0; i < DRAINED; i++)
		if (!try_wait_for_completion(&d->recv[i].done) ||
		    d->recv[i].status != IB_WC_WR_FLUSH_ERR)
			ret = -EIO;
	/* In ERR already. */
	ib_drain_qp(d->end.qp);
	WARN_ON(ib_destroy_qp(d->end.qp));
	return ret;
}

static int drain_with(struct rig *rig, struct ib_cq *cq)
{
	struct drained *d = kzalloc(sizeof(*d), GFP_KERNEL);
	int ret, end;

	if (!d)
		return -ENOMEM;
	ret = drained_open(rig, d, cq);
	end = drained_close(d);
	kfree(d);
	return ret ?: end;
}

static int t_drain(struct rig *rig)
{
	static const enum ib_poll_context contexts[] = { IB_POLL_SOFTIRQ, IB_POLL_WORKQUEUE };
	int i, ret;

	for (i = 0; i < ARRAY_SIZE(contexts); i++) {
		struct ib_cq *cq = ib_alloc_cq(rig->ibdev, NULL, CQE, 0, contexts[i]);

		CHECK(!IS_ERR(cq), "alloc_cq: %ld", PTR_ERR(cq));
		ret = drain_with(rig, cq);
		ib_free_cq(cq);
		CHECK(!ret, "context %d: %d", contexts[i], ret);
	}
	return 0;
}

/* A datagram to ourselves: 40 bytes of GRH, then the data, and where it came from. */
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
	CHECK(!IS_ERR(send.ah), "create_ah: %ld", PTR_ERR(send.ah));

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
	      "opcode %d length %u from %u", r->opcode, r->byte_len, r->src_qp);
	CHECK(r->wc_flags & IB_WC_GRH && r->wc_flags & IB_WC_WITH_IMM &&
	      r->ex.imm_data == cpu_to_be32(0xabcd), "flags %x", r->wc_flags);
	CHECK(!memcmp(a->buf, a->buf + 4096 + 40, 100), "data");
	return 0;
}

static int t_ud(struct rig *rig)
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

	CHECK(!IS_ERR(qp), "create_qp: %ld", PTR_ERR(qp));
	ret = ud_with(rig, qp);
	WARN_ON(ib_destroy_qp(qp));
	return ret;
}

/* Every illegal transition is refused and leaves the queue pair as it was. */
static int t_transitions(struct rig *rig)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;

	CHECK(to_state(&rig->a, IB_QPS_RTR), "RESET to RTR");
	CHECK(to_state(&rig->a, IB_QPS_RTS), "RESET to RTS");
	CHECK(to_state(&rig->a, IB_QPS_INIT), "RESET to INIT without attributes");
	TRY(ib_query_qp(rig->a.qp, &attr, IB_QP_STATE, &init));
	CHECK(attr.qp_state == IB_QPS_RESET, "state %d", attr.qp_state);
	TRY(to_init(&rig->a));
	CHECK(to_state(&rig->a, IB_QPS_RTS), "INIT to RTS");
	TRY(ib_query_qp(rig->a.qp, &attr, IB_QP_STATE, &init));
	CHECK(attr.qp_state == IB_QPS_INIT, "state %d", attr.qp_state);
	CHECK(attr.port_num == 1, "port %u", attr.port_num);
	CHECK(init.cap.max_send_wr >= DEPTH && init.cap.max_recv_wr >= DEPTH, "capacities");
	return 0;
}

/* Fast registration: register, use, invalidate, fail. */
static int t_fast_reg(struct rig *rig)
{
	struct scatterlist sg;
	struct ib_reg_wr reg = {};
	struct ib_send_wr inv = {};
	struct ib_wc wc[2];
	struct ib_mr *mr;
	int ret, mapped = 0;

	if (!(rig->ibdev->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		strscpy(why, "skipped: no memory management extensions");
		return 0;
	}
	TRY(connect_ends(rig));
	mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 8);
	CHECK(!IS_ERR(mr), "alloc_mr: %ld", PTR_ERR(mr));
	sg_init_one(&sg, rig->b.buf, BUF_SIZE);
	ret = ib_dma_map_sg(rig->ibdev, &sg, 1, DMA_BIDIRECTIONAL);
	if (ret == 1) {
		mapped = ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE);
		ib_update_fast_reg_key(mr, 0x5a);
		reg.wr.opcode = IB_WR_REG_MR;
		reg.wr.wr_id = 1;
		reg.wr.send_flags = IB_SEND_SIGNALED;
		reg.mr = mr;
		reg.key = mr->rkey;
		reg.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE;
		ret = ib_post_send(rig->b.qp, &reg.wr, NULL);
		if (!ret)
			ret = reap(&rig->b, wc, 1);
		if (!ret && wc[0].status)
			ret = -wc[0].status;
		fill(&rig->a, 0, 4096, 42);
		if (!ret)
			ret = post(rig, &rig->a, 2, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 4096,
				   mr->iova + 16, mr->rkey);
		if (!ret)
			ret = reap(&rig->a, wc, 1);
		if (!ret && wc[0].status)
			ret = -wc[0].status;
		if (!ret && memcmp(rig->a.buf, rig->b.buf + 16, 4096))
			ret = -EIO;
		inv.opcode = IB_WR_LOCAL_INV;
		inv.wr_id = 3;
		inv.send_flags = IB_SEND_SIGNALED;
		inv.ex.invalidate_rkey = mr->rkey;
		if (!ret)
			ret = ib_post_send(rig->b.qp, &inv, NULL);
		if (!ret)
			ret = reap(&rig->b, wc, 1);
		if (!ret && wc[0].status)
			ret = -wc[0].status;
		if (!ret)
			ret = post(rig, &rig->a, 4, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8,
				   mr->iova, mr->rkey);
		if (!ret)
			ret = reap(&rig->a, wc, 1);
		if (!ret && wc[0].status != IB_WC_REM_ACCESS_ERR)
			ret = -EIO;
		ib_dma_unmap_sg(rig->ibdev, &sg, 1, DMA_BIDIRECTIONAL);
	}
	CHECK(!ib_dereg_mr(mr), "dereg_mr");
	CHECK(!ret, "%d", ret);
	CHECK(mapped == 1, "map_mr_sg: %d", mapped);
	return 0;
}

/* How long a device may take to be found dead, and what is outstanding to be flushed. */
#define DEATH_MS	20000

/*
 * For `only=death`: the device dies while this test works on it, by no doing of its own. What is
 * outstanding is flushed once, in order; so is what is posted later; drain, RESET and destroy work.
 */
static int t_death(struct rig *rig)
{
	struct ib_cq *cq;
	struct drained *d;
	struct ib_wc wc[8];
	unsigned long last;
	int ret, end, i;
	u64 id = 0;

	d = kzalloc(sizeof(*d), GFP_KERNEL);
	CHECK(d, "no memory");
	cq = ib_alloc_cq(rig->ibdev, NULL, CQE, 0, IB_POLL_WORKQUEUE);
	if (IS_ERR(cq)) {
		kfree(d);
		CHECK(false, "alloc_cq: %ld", PTR_ERR(cq));
	}
	ret = drained_open(rig, d, cq);
	if (!ret)
		ret = connect_ends(rig);
	/* Its receives are in a queue of their own: they must stay. */
	for (i = 0; i < 8 && !ret; i++)
		ret = post_recv(rig, &rig->b, 200 + i, 0, 64);
	if (!ret)
		pr_info("death awaited\n");

	/* Writes, one after the other, until one is flushed. */
	last = jiffies;
	while (!ret) {
		ret = post(rig, &rig->a, id, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 4096,
			   rig->b.dma, rig->pd->unsafe_global_rkey);
		if (ret)
			break;
		while (ib_poll_cq(rig->a.cq, 1, wc) == 0) {
			if (time_after(jiffies, last + msecs_to_jiffies(DEATH_MS))) {
				ret = -ETIMEDOUT;
				break;
			}
			msleep(1);
		}
		if (ret || wc[0].status != IB_WC_SUCCESS)
			break;
		last = jiffies;
		id++;
	}
	end = drained_close(d);
	ib_free_cq(cq);
	kfree(d);
	CHECK(!ret, "after %llu writes: %d", id, ret);
	EXPECT_WC(wc[0], id, IB_WC_WR_FLUSH_ERR);
	CHECK(!end, "drain: %d", end);
	i = jiffies_to_msecs(jiffies - last);
	CHECK(i <= DEATH_MS, "flushed and drained after %d ms", i);

	TRY(to_state(&rig->b, IB_QPS_ERR));
	TRY(reap(&rig->b, wc, 8));
	for (i = 0; i < 8; i++)
		EXPECT_WC(wc[i], 200 + i, IB_WC_WR_FLUSH_ERR);
	for (i = 0; i < 4; i++)
		TRY(post_recv(rig, &rig->b, 300 + i, 0, 64));
	TRY(reap(&rig->b, wc, 4));
	for (i = 0; i < 4; i++)
		EXPECT_WC(wc[i], 300 + i, IB_WC_WR_FLUSH_ERR);
	TRY(no_more(&rig->a));
	TRY(no_more(&rig->b));
	return to_state(&rig->a, IB_QPS_RESET);
}

/* Objects come and go; numbers may not run out. */
static int t_churn(struct rig *rig)
{
	int i;

	for (i = 0; i < 200; i++) {
		struct ib_cq_init_attr cq_attr = { .cqe = 8 + i };
		struct ib_qp_init_attr attr = {
			.cap = { .max_send_wr = 1 + i % 8, .max_recv_wr = 1 + i % 8,
				 .max_send_sge = 1, .max_recv_sge = 1 },
			.sq_sig_type = IB_SIGNAL_ALL_WR,
			.qp_type = IB_QPT_RC,
		};
		struct ib_cq *cq = ib_create_cq(rig->ibdev, NULL, NULL, NULL, &cq_attr);
		struct ib_qp *qp;

		CHECK(!IS_ERR(cq), "create_cq %d: %ld", i, PTR_ERR(cq));
		attr.send_cq = cq;
		attr.recv_cq = cq;
		qp = ib_create_qp(rig->pd, &attr);
		if (!IS_ERR(qp))
			WARN_ON(ib_destroy_qp(qp));
		ib_destroy_cq(cq);
		CHECK(!IS_ERR(qp), "create_qp %d: %ld", i, PTR_ERR(qp));
	}
	return 0;
}

/* More queues at a time than one doorbell area, or whatever a device has like it, has room for. */
static int t_many_cqs(struct rig *rig)
{
	struct ib_cq_init_attr cq_attr = { .cqe = 1 };
	static struct ib_cq *cqs[300];
	int i, n, ret = 0;

	for (n = 0; n < ARRAY_SIZE(cqs); n++) {
		cqs[n] = ib_create_cq(rig->ibdev, NULL, NULL, NULL, &cq_attr);
		if (IS_ERR(cqs[n])) {
			ret = PTR_ERR(cqs[n]);
			break;
		}
	}
	for (i = 0; i < n; i++)
		ib_destroy_cq(cqs[i]);
	CHECK(!ret, "create_cq %d: %d", n, ret);
	return 0;
}

static const struct {
	const char *name;
	int (*run)(struct rig *rig);
	int cqe;
	/* Runs only if it is named: it needs somebody who does something to the device. */
	bool named;
} tests[] = {
	{ "transitions", t_transitions, CQE },
	{ "immediate-errors", t_immediate_errors, CQE },
	{ "send", t_send, CQE },
	{ "inline", t_inline, CQE },
	{ "rdma", t_rdma, CQE },
	{ "stream", t_stream, CQE },
	{ "notify", t_notify, CQE },
	{ "solicited", t_solicited, CQE },
	{ "flush", t_flush, CQE },
	{ "reset", t_reset, CQE },
	{ "access-error", t_access_error, CQE },
	{ "rnr", t_rnr, CQE },
	{ "cq-overflow", t_cq_overflow, 4 },
	{ "drain", t_drain, CQE },
	{ "ud", t_ud, CQE },
	{ "fast-reg", t_fast_reg, CQE },
	{ "churn", t_churn, CQE },
	{ "many-cqs", t_many_cqs, CQE },
	{ "death", t_death, CQE, true },
	{ "srq-order", t_srq_order, CQE },
	{ "srq-storm", t_srq_storm, CQE },
	{ "drain-states", t_drain_states, CQE },
	{ "move-and-post", t_move_post, CQE },
};

/* The device, from when its tests are over until it goes; the lock keeps it. */
static DEFINE_MUTEX(tested_lock);
static struct ib_device *tested;

static int run_tests(struct ib_device *ibdev)
{
	struct rig *rig;
	int i, ret;

	rig = kzalloc(sizeof(*rig), GFP_KERNEL);
	if (!rig)
		return -ENOMEM;
	rig->ibdev = ibdev;
	rig->gid_index = find_gid(ibdev);
	for (i = 0; i < ARRAY_SIZE(tests); i++) {
		if (*only ? strcmp(only, tests[i].name) : tests[i].named)
			continue;
		why[0] = 0;
		ret = rig->gid_index < 0 ? rig->gid_index : rig_open(rig, tests[i].cqe);
		if (ret)
			snprintf(why, sizeof(why), "setup: %d", ret);
		else
			ret = tests[i].run(rig);
		rig_close(rig);
		if (ret)
			pr_err("FAILED %s: %s\n", tests[i].name, why);
		else
			pr_info("ok %s%s%s\n", tests[i].name, why[0] ? " " : "", why);
	}
	ret = rig->gid_index;
	kfree(rig);
	if (hold && ret >= 0) {
		ret = hold_queues(ibdev, ret);
		if (ret)
			pr_err("FAILED hold: %s: %d\n", why, ret);
	}
	return 0;
}

static int selftest_add(struct ib_device *ibdev)
{
	static bool done;
	int ret;

	if (strcmp(dev_name(&ibdev->dev), dev))
		return -EOPNOTSUPP;
	/* Once: a device that has died comes back under its old name. */
	if (!done) {
		done = true;
		ret = run_tests(ibdev);
		if (ret)
			return ret;
	}
	mutex_lock(&tested_lock);
	tested = ibdev;
	mutex_unlock(&tested_lock);
	return 0;
}

/*
 * Writing to the parameter `connect` makes one of each object, connects the queue pairs and destroys
 * everything, and returns the error if that fails: for who lets allocations fail in between.
 */
static int make_all(struct rig *rig)
{
	struct ib_srq_init_attr srq_attr = {
		.attr = { .max_wr = DEPTH, .max_sge = 2 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_srq *srq;
	struct ib_mr *mr;
	int ret;

	rig->gid_index = find_gid(rig->ibdev);
	if (rig->gid_index < 0)
		return rig->gid_index;
	ret = rig_open(rig, CQE);
	if (ret)
		return ret;
	ret = connect_ends(rig);
	if (ret)
		return ret;
	mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 16);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	ret = ib_dereg_mr(mr);
	if (ret)
		return ret;
	srq = ib_create_srq(rig->pd, &srq_attr);
	if (IS_ERR(srq))
		return PTR_ERR(srq);
	ib_destroy_srq(srq);
	return 0;
}

static int connect_set(const char *val, const struct kernel_param *kp)
{
	struct rig *rig = kzalloc(sizeof(*rig), GFP_KERNEL);
	int ret = -ENODEV;

	if (!rig)
		return -ENOMEM;
	mutex_lock(&tested_lock);
	if (tested) {
		rig->ibdev = tested;
		ret = make_all(rig);
		rig_close(rig);
	}
	mutex_unlock(&tested_lock);
	kfree(rig);
	return ret;
}

static const struct kernel_param_ops connect_ops = { .set = connect_set };
module_param_cb(connect, &connect_ops, NULL, 0200);
MODULE_PARM_DESC(connect, "make, connect and destroy one of each object, now");

/* The device goes. With `hold`, it has queues of ours, in whatever state it is itself. */
static void selftest_remove(struct ib_device *ibdev, void *data)
{
	if (strcmp(dev_name(&ibdev->dev), dev))
		return;
	mutex_lock(&tested_lock);
	tested = NULL;
	mutex_unlock(&tested_lock);
	drain_held();
}

static struct ib_client selftest_client = {
	.name = "verbena_selftest",
	.add = selftest_add,
	.remove = selftest_remove,
};

static int __init selftest_init(void)
{
	return ib_register_client(&selftest_client);
}
module_init(selftest_init);

static void __exit selftest_exit(void)
{
	ib_unregister_client(&selftest_client);
}
module_exit(selftest_exit);

MODULE_AUTHOR("Verbena");
MODULE_DESCRIPTION("Self-test of kernel verbs");
MODULE_LICENSE("GPL");

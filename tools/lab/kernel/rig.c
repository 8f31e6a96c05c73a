// SPDX-License-Identifier: GPL-2.0
/*
 * The rig: its two ends, their connection, posting and polling.
 */
#include <linux/delay.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#include "selftest.h"

char why[WHY_SIZE];

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

/* Creates the queue pair of an end. After a failure the end has none. */
int make_qp(struct rig *rig, struct end *e, struct ib_qp_init_attr *attr)
{
	struct ib_qp *qp = ib_create_qp(rig->pd, attr);

	if (IS_ERR(qp))
		return PTR_ERR(qp);
	e->qp = qp;
	return 0;
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
	return make_qp(rig, e, &attr);
}

int to_state(struct end *e, enum ib_qp_state state)
{
	struct ib_qp_attr attr = { .qp_state = state };

	return ib_modify_qp(e->qp, &attr, IB_QP_STATE);
}

/* Returns the state of a queue pair, or an error. */
int state_of(struct ib_qp *qp)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;

	TRY(ib_query_qp(qp, &attr, IB_QP_STATE, &init));
	return attr.qp_state;
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

/*
 * Sets the path to this device, which is the peer in all tests. Kernel users have to set the
 * destination MAC address.
 */
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
		.path_mtu = rig->path_mtu ?: IB_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.rq_psn = 0xfffff0,
		.max_dest_rd_atomic = e->no_reads ? 0 : 4,
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

int connect_two(struct rig *rig, struct end *a, struct end *b)
{
	TRY(to_init(a));
	TRY(to_init(b));
	TRY(to_rtr(rig, a, b));
	TRY(to_rtr(rig, b, a));
	TRY(to_rts(a));
	TRY(to_rts(b));
	return 0;
}

int connect_ends(struct rig *rig)
{
	return connect_two(rig, &rig->a, &rig->b);
}

void rig_close(struct rig *rig)
{
	end_close(rig, &rig->a);
	end_close(rig, &rig->b);
	if (rig->pd)
		ib_dealloc_pd(rig->pd);
	rig->pd = NULL;
}

int rig_open(struct rig *rig, int cqe)
{
	int ret;

	rig->path_mtu = 0;
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

/* Returns the index of the first RoCE v2 GID with an IPv4 address, or else of any RoCE v2 GID. */
int find_gid(struct ib_device *ibdev)
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

int post_recv(struct rig *rig, struct end *e, u64 id, u32 offset, u32 len)
{
	struct ib_sge sge = {
		.addr = e->dma + offset,
		.length = len,
		.lkey = rig->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(e->qp, &wr, NULL);
}

int post(struct rig *rig, struct end *e, u64 id, enum ib_wr_opcode opcode, int flags, u32 offset, u32 len, u64 remote, u32 rkey)
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

/* Polls until @n completions have arrived. Fails if they do not arrive in time. */
int reap(struct end *e, struct ib_wc *wc, int n)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);
	int got = 0, ret;

	while (got < n) {
		ret = ib_poll_cq(e->cq, n - got, wc + got);
		CHECK(ret >= 0, "ib_poll_cq: %d", ret);
		got += ret;
		if (!ret) {
			CHECK(time_before(jiffies, end), "%d of %d completions arrived", got, n);
			usleep_range(20, 100);
		}
	}
	return 0;
}

int no_more(struct end *e)
{
	struct ib_wc wc;

	msleep(20);
	CHECK(ib_poll_cq(e->cq, 1, &wc) == 0, "unexpected completion %llu status %d", wc.wr_id,
	      wc.status);
	return 0;
}

int wait_count(atomic_t *count, int n)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);

	while (atomic_read(count) < n) {
		CHECK(time_before(jiffies, end), "%d of %d events arrived", atomic_read(count), n);
		msleep(1);
	}
	return 0;
}

void fill(struct end *e, u32 offset, u32 len, u8 seed)
{
	u32 i;

	for (i = 0; i < len; i++)
		e->buf[offset + i] = seed + i * 7;
}

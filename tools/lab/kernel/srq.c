// SPDX-License-Identifier: GPL-2.0
/*
 * Shared receive queues. Receives complete in any order. Some never complete, because the queue
 * pair that has taken them is reset or destroyed. The SRQ must always accept max_wr outstanding
 * receives.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "selftest.h"

#define PIECE		(256 << 10)	/* bytes; all pieces of a message are the same memory */
#define PIECES		8
#define MAX_RECVS	256
#define MAX_ENDS	4

/* Receives of one SRQ. Each has a number, which is in `out` from its post to its completion. */
struct pool {
	struct ib_srq *srq;
	struct ib_cq *send_cq, *recv_cq[2];
	u8 *buf;
	u64 dma;
	int max_wr, pieces;
	u64 posted, completed, flushed;
	DECLARE_BITMAP(out, MAX_RECVS);
	/* Ends that receive, and ends that send to them. */
	struct end to[MAX_ENDS], from[MAX_ENDS];
};

static void pool_close(struct rig *rig, struct pool *p)
{
	int i;

	for (i = 0; i < MAX_ENDS; i++) {
		if (p->to[i].qp)
			WARN_ON(ib_destroy_qp(p->to[i].qp));
		if (p->from[i].qp)
			WARN_ON(ib_destroy_qp(p->from[i].qp));
	}
	if (p->srq)
		ib_destroy_srq(p->srq);
	for (i = 0; i < ARRAY_SIZE(p->recv_cq); i++)
		if (p->recv_cq[i])
			ib_destroy_cq(p->recv_cq[i]);
	if (p->send_cq)
		ib_destroy_cq(p->send_cq);
	if (p->dma)
		ib_dma_unmap_single(rig->ibdev, p->dma, PIECE, DMA_BIDIRECTIONAL);
	kfree(p->buf);
	kfree(p);
}

static struct ib_cq *make_cq(struct rig *rig)
{
	struct ib_cq_init_attr attr = { .cqe = 4 * MAX_RECVS };
	struct ib_cq *cq = ib_create_cq(rig->ibdev, NULL, NULL, NULL, &attr);

	return IS_ERR(cq) ? NULL : cq;
}

/* Creates a pool with an SRQ of at least @max_wr receives. */
static struct pool *pool_open(struct rig *rig, int max_wr)
{
	struct ib_srq_init_attr attr = {
		.attr = { .max_wr = max_wr, .max_sge = PIECES },
		.srq_type = IB_SRQT_BASIC,
	};
	struct pool *p = kzalloc(sizeof(*p), GFP_KERNEL);

	if (!p)
		return NULL;
	p->pieces = min(PIECES, rig->ibdev->attrs.max_srq_sge);
	attr.attr.max_sge = p->pieces;
	p->buf = kzalloc(PIECE, GFP_KERNEL);
	if (!p->buf)
		goto fail;
	p->dma = ib_dma_map_single(rig->ibdev, p->buf, PIECE, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(rig->ibdev, p->dma)) {
		p->dma = 0;
		goto fail;
	}
	p->send_cq = make_cq(rig);
	p->recv_cq[0] = make_cq(rig);
	p->recv_cq[1] = make_cq(rig);
	if (!p->send_cq || !p->recv_cq[0] || !p->recv_cq[1])
		goto fail;
	p->srq = ib_create_srq(rig->pd, &attr);
	if (IS_ERR(p->srq)) {
		p->srq = NULL;
		goto fail;
	}
	p->max_wr = attr.attr.max_wr;
	if (p->max_wr < max_wr || p->max_wr > MAX_RECVS)
		goto fail;
	return p;
fail:
	pool_close(rig, p);
	return NULL;
}

/* Connects the @i-th two ends of @p, of which one receives from the SRQ. */
static int ends_open(struct rig *rig, struct pool *p, int i)
{
	struct end *to = &p->to[i], *from = &p->from[i];
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_send_sge = p->pieces },
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = IB_QPT_RC,
		.send_cq = p->send_cq,
		.recv_cq = p->recv_cq[i % 2],
		.srq = p->srq,
	};

	if (!to->qp)
		TRY(make_qp(rig, to, &attr));
	attr.srq = NULL;
	if (!from->qp)
		TRY(make_qp(rig, from, &attr));
	return connect_two(rig, to, from);
}

static int sges_of(struct rig *rig, struct pool *p, struct ib_sge *sge, int pieces)
{
	int i;

	for (i = 0; i < pieces; i++)
		sge[i] = (struct ib_sge){
			.addr = p->dma,
			.length = PIECE,
			.lkey = rig->pd->local_dma_lkey,
		};
	return pieces;
}

/* Posts a receive with a free number. Returns the result of the verb. */
static int fill_one(struct rig *rig, struct pool *p)
{
	int id = find_first_zero_bit(p->out, MAX_RECVS);
	struct ib_sge sge[PIECES];
	struct ib_recv_wr wr = {
		.wr_id = id,
		.sg_list = sge,
		.num_sge = sges_of(rig, p, sge, p->pieces),
	};
	int ret;

	/*
	 * If all numbers are in use, the SRQ is full. The receive is posted all the same, because
	 * the SRQ has to refuse it.
	 */
	ret = ib_post_srq_recv(p->srq, &wr, NULL);
	if (!ret) {
		set_bit(id, p->out);
		p->posted++;
	}
	return ret;
}

/* Posts until max_wr receives are outstanding, all of which the SRQ must accept. */
static int fill_all(struct rig *rig, struct pool *p)
{
	int before = bitmap_weight(p->out, MAX_RECVS), n;

	for (n = before; n < p->max_wr; n++) {
		int ret = fill_one(rig, p);

		CHECK(!ret,
		      "post refused (%d) with %d of %d receives, %d of them from before; %llu posted",
		      ret, n, p->max_wr, before, p->posted);
	}
	return 0;
}

static int send_one(struct rig *rig, struct pool *p, int i, int pieces)
{
	struct ib_sge sge[PIECES];
	struct ib_send_wr wr = {
		.wr_id = i,
		.opcode = IB_WR_SEND,
		.sg_list = sge,
		.num_sge = sges_of(rig, p, sge, pieces),
	};

	return ib_post_send(p->from[i].qp, &wr, NULL);
}

/* Polls all completions of one receive CQ. Returns their number. */
static int poll_recvs(struct pool *p, int cq)
{
	struct ib_wc wc[16];
	int i, n, all = 0;

	while ((n = ib_poll_cq(p->recv_cq[cq], ARRAY_SIZE(wc), wc)) > 0) {
		for (i = 0; i < n; i++) {
			CHECK(wc[i].wr_id < MAX_RECVS && test_and_clear_bit(wc[i].wr_id, p->out),
			      "receive %llu completed without a post, status %d", wc[i].wr_id,
			      wc[i].status);
			CHECK(wc[i].status == IB_WC_SUCCESS || wc[i].status == IB_WC_WR_FLUSH_ERR,
			      "receive %llu status %d", wc[i].wr_id, wc[i].status);
			if (wc[i].status)
				p->flushed++;
			else
				p->completed++;
		}
		all += n;
	}
	CHECK(n >= 0, "ib_poll_cq: %d", n);
	return all;
}

/* Polls all completions of sends. Returns their number. */
static int poll_sends(struct pool *p, enum ib_wc_status *last)
{
	struct ib_wc wc[16];
	int n, all = 0;

	while ((n = ib_poll_cq(p->send_cq, ARRAY_SIZE(wc), wc)) > 0) {
		all += n;
		if (last)
			*last = wc[n - 1].status;
	}
	CHECK(n >= 0, "ib_poll_cq: %d", n);
	return all;
}

/* Waits for @count completions of sends. */
static int reap_sends(struct pool *p, int count, enum ib_wc_status *last)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);
	int got = 0;

	while (got < count) {
		int n = poll_sends(p, last);

		if (n < 0)
			return n;
		got += n;
		if (!n) {
			CHECK(time_before(jiffies, end), "%d of %d sends completed", got, count);
			usleep_range(20, 100);
		}
	}
	return 0;
}

/* After every second receive of a full SRQ has completed, the SRQ accepts max_wr / 2 new ones. */
static int order(struct rig *rig, struct pool *p)
{
	int half = p->max_wr / 2, round, i, n;

	TRY(ends_open(rig, p, 0));
	TRY(ends_open(rig, p, 1));
	for (round = 0; round < 8; round++) {
		TRY(fill_all(rig, p));
		CHECK(fill_one(rig, p) == -ENOMEM, "the SRQ accepts more than max_wr receives");
		for (i = 0; i < p->max_wr; i++) {
			TRY(send_one(rig, p, i % 2, 0));
			TRY(reap_sends(p, 1, NULL));
		}
		/* The first receive is in the other CQ, and is not polled yet. */
		n = poll_recvs(p, 1);
		CHECK(n == half, "%d of %d completions", n, half);
		for (i = 0; i < half; i++)
			CHECK(!fill_one(rig, p),
			      "post refused with %d of %d receives", half + i, p->max_wr);
		CHECK(fill_one(rig, p) == -ENOMEM, "the SRQ accepts more than max_wr receives");
		n = poll_recvs(p, 0);
		CHECK(n == half, "%d of %d completions", n, half);
	}
	return 0;
}

int t_srq_order(struct rig *rig)
{
	struct pool *p;
	int ret;

	if (!rig->ibdev->attrs.max_srq) {
		strscpy(why, "skipped: the device has no SRQs", WHY_SIZE);
		return 0;
	}
	p = pool_open(rig, DEPTH);
	CHECK(p, "the SRQ and its CQs cannot be created");
	ret = order(rig, p);
	pool_close(rig, p);
	return ret;
}

static int gone(struct end *e)
{
	int ret = 0;

	if (e->qp)
		ret = ib_destroy_qp(e->qp);
	e->qp = NULL;
	return ret;
}

/*
 * Resets or destroys both ends of a pair, in a way that @way selects, while they work. They must
 * not complete anything after that.
 */
static int end_pair(struct pool *p, int i, u32 way)
{
	struct end *first = &p->to[i], *second = &p->from[i];

	if (way & 1)
		swap(first, second);
	if (way & 2) {
		TRY(to_state(first, IB_QPS_RESET));
		TRY(to_state(second, IB_QPS_RESET));
		return 0;
	}
	if (way & 4)
		TRY(to_state(first, IB_QPS_ERR));
	if (way & 8)
		TRY(to_state(second, IB_QPS_RESET));
	TRY(gone(first));
	TRY(gone(second));
	return 0;
}

/* Checks that no completions of reset or destroyed queue pairs are left. */
static int none_left(struct pool *p)
{
	int i, n;

	for (i = 0; i < ARRAY_SIZE(p->recv_cq); i++) {
		n = poll_recvs(p, i);
		CHECK(n <= 0, "%d receive completions of reset or destroyed queue pairs", n);
		if (n < 0)
			return n;
	}
	n = poll_sends(p, NULL);
	CHECK(n == 0, "%d send completions of reset or destroyed queue pairs", n);
	return 0;
}

/*
 * Sends until the SRQ is empty. Receives that were posted and have not completed by then count as
 * lost, because a queue pair had taken them. After that no receive is outstanding.
 */
static int sweep(struct rig *rig, struct pool *p, u64 *lost)
{
	enum ib_wc_status status = IB_WC_SUCCESS;
	int n, i;

	TRY(ends_open(rig, p, 0));
	for (i = 0; i <= p->max_wr && !status; i++) {
		TRY(send_one(rig, p, 0, 0));
		TRY(reap_sends(p, 1, &status));
		n = poll_recvs(p, 0);
		if (n < 0)
			return n;
	}
	CHECK(status == IB_WC_RNR_RETRY_EXC_ERR,
	      "a send to the empty SRQ completed with status %d", status);
	TRY(to_state(&p->to[0], IB_QPS_RESET));
	TRY(to_state(&p->from[0], IB_QPS_RESET));
	TRY(none_left(p));
	*lost += bitmap_weight(p->out, MAX_RECVS);
	bitmap_zero(p->out, MAX_RECVS);
	return 0;
}

static int storm(struct rig *rig, struct pool *p, u64 *lost)
{
	unsigned long end;
	int i, n, round;

	for (round = 0; p->completed < 100000; round++) {
		int sent[MAX_ENDS] = {}, done = 0, k;

		TRY(fill_all(rig, p));
		for (i = 0; i < MAX_ENDS; i++)
			TRY(ends_open(rig, p, i));
		/* Short messages from all ends, with a full SRQ. */
		end = jiffies + 12 * msecs_to_jiffies(WAIT_MS);
		while (done < 2000) {
			for (i = 0; i < MAX_ENDS; i++)
				for (; sent[i] < DEPTH; sent[i]++)
					TRY(send_one(rig, p, i, 0));
			n = reap_sends(p, MAX_ENDS * DEPTH, NULL);
			if (n < 0)
				return n;
			memset(sent, 0, sizeof(sent));
			for (k = 0; k < 2; k++) {
				n = poll_recvs(p, (round + k) % 2);
				if (n < 0)
					return n;
				done += n;
				TRY(fill_all(rig, p));
			}
			CHECK(time_before(jiffies, end), "no progress after %d receives", done);
			cond_resched();
		}
		/*
		 * Long messages, so that the queue pairs are reset or destroyed in the middle of
		 * them.
		 */
		for (i = 0; i < MAX_ENDS; i++)
			for (k = 0; k < 4; k++)
				TRY(send_one(rig, p, i, p->pieces));
		if (round % 4)
			usleep_range(50, 400);
		for (i = 0; i < MAX_ENDS; i++)
			TRY(end_pair(p, i, get_random_u32()));
		/* Earlier completions were polled, or removed with their queue pairs. */
		TRY(none_left(p));
		TRY(fill_all(rig, p));
		TRY(sweep(rig, p, lost));
	}
	return 0;
}

/*
 * A hundred thousand receives, with queue pairs that are reset or destroyed while they hold some.
 */
int t_srq_storm(struct rig *rig)
{
	struct pool *p;
	u64 lost = 0;
	int ret;

	if (!rig->ibdev->attrs.max_srq) {
		strscpy(why, "skipped: the device has no SRQs", WHY_SIZE);
		return 0;
	}
	p = pool_open(rig, 128);
	CHECK(p, "the SRQ and its CQs cannot be created");
	ret = storm(rig, p, &lost);
	if (!ret)
		snprintf(why, WHY_SIZE, "%llu receives, %llu returned to the SRQ", p->completed, lost);
	pool_close(rig, p);
	return ret;
}

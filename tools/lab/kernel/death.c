// SPDX-License-Identifier: GPL-2.0
/*
 * Drains by the core with receives on a CQ of the core, and a device that fails.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/slab.h>

#include "selftest.h"

/* A request on a CQ of the core, which calls `done` of the request when it completes. */
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

/* A queue pair on a CQ of the core, with receives that no message uses. */
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

	ret = make_qp(rig, &d->end, &attr);
	if (!ret)
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

/*
 * Drains and destroys. If a flush is lost, the drain does not end, and the kernel reports a hung
 * task.
 */
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
	/* A second drain, of a queue pair that is in ERR already. */
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

int t_drain(struct rig *rig)
{
	static const enum ib_poll_context contexts[] = {
		IB_POLL_DIRECT, IB_POLL_SOFTIRQ, IB_POLL_WORKQUEUE, IB_POLL_UNBOUND_WORKQUEUE,
	};
	int i, ret;

	for (i = 0; i < ARRAY_SIZE(contexts); i++) {
		struct ib_cq *cq = ib_alloc_cq(rig->ibdev, NULL, CQE, 0, contexts[i]);

		CHECK(!IS_ERR(cq), "ib_alloc_cq: %ld", PTR_ERR(cq));
		ret = drain_with(rig, cq);
		ib_free_cq(cq);
		CHECK(!ret, "drain with poll context %d: %d", contexts[i], ret);
	}
	return 0;
}

/* Time limit for the driver to declare the device dead and to flush outstanding requests. */
#define DEATH_MS	20000

/* A post to a dead device calls the completion handler if the CQ is armed. */
static int armed_posts(struct rig *rig)
{
	struct end *ends[] = { &rig->b, &rig->a };
	struct ib_wc wc;
	int i, ret;

	/* For up to half a second after the failure, the driver flushes new posts by itself. */
	msleep(1000);
	for (i = 0; i < ARRAY_SIZE(ends); i++) {
		struct end *e = ends[i];

		atomic_set(&e->comp_events, 0);
		ret = ib_req_notify_cq(e->cq, IB_CQ_NEXT_COMP);
		CHECK(ret >= 0, "arm: %d", ret);
		if (e == &rig->b)
			TRY(post_recv(rig, e, 400, 0, 64));
		else
			TRY(post(rig, e, 400, IB_WR_SEND, IB_SEND_SIGNALED, 0, 64, 0, 0));
		TRY(wait_count(&e->comp_events, 1));
		TRY(reap(e, &wc, 1));
		/* A device that could be neither reset nor stopped may have executed the send. */
		if (e == &rig->a && wc.status == IB_WC_SUCCESS)
			wc.status = IB_WC_WR_FLUSH_ERR;
		EXPECT_WC(wc, 400, IB_WC_WR_FLUSH_ERR);
	}
	return 0;
}

/*
 * For `only=death`: the environment of this test makes the device fail while the test runs.
 * Outstanding requests are flushed once and in order, and so are requests that are posted later.
 * Drain, RESET and destroy work.
 */
int t_death(struct rig *rig)
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
		CHECK(false, "ib_alloc_cq: %ld", PTR_ERR(cq));
	}
	ret = drained_open(rig, d, cq);
	if (!ret)
		ret = connect_ends(rig);
	/* These receives are in another CQ, and must be outstanding until they are flushed. */
	for (i = 0; i < 8 && !ret; i++)
		ret = post_recv(rig, &rig->b, 200 + i, 0, 64);
	if (!ret)
		pr_info("death awaited\n");

	/* WRITEs, one after the other, until one is flushed. */
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
	TRY(armed_posts(rig));
	TRY(no_more(&rig->a));
	TRY(no_more(&rig->b));
	return to_state(&rig->a, IB_QPS_RESET);
}

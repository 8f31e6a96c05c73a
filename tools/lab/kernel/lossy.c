// SPDX-License-Identifier: GPL-2.0
/*
 * A CQ of the core (ib_alloc_cq()) that has overflowed. The device writes no more completions to
 * it, and the core does not notice that. A drain waits without a timeout for the completions of the
 * requests that it posts, so the driver has to flush them.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/slab.h>

#include "selftest.h"

#define RECVS	2
/* Number of sends after the CQ has overflowed. */
#define LATE	2

struct lossy {
	struct ib_cq *cq;
	struct end end;
	struct ib_cqe slow, send, recv;
	struct completion begun, go, drained;
	atomic_t good, flushed, received, other;
	int sends;
};

static void count(struct lossy *l, struct ib_wc *wc, atomic_t *flushed)
{
	if (wc->status == IB_WC_SUCCESS)
		atomic_inc(&l->good);
	else if (wc->status == IB_WC_WR_FLUSH_ERR)
		atomic_inc(flushed);
	else
		atomic_inc(&l->other);
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct lossy *l = container_of(wc->wr_cqe, struct lossy, send);

	count(l, wc, &l->flushed);
}

static void recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct lossy *l = container_of(wc->wr_cqe, struct lossy, recv);

	count(l, wc, &l->received);
}

/* While this handler waits, the core does not poll the CQ. */
static void slow_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct lossy *l = container_of(wc->wr_cqe, struct lossy, slow);

	count(l, wc, &l->flushed);
	complete(&l->begun);
	wait_for_completion_timeout(&l->go, msecs_to_jiffies(2 * WAIT_MS));
}

static int write_nothing(struct lossy *l, struct ib_cqe *cqe)
{
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = cqe,
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
	};

	l->sends++;
	return ib_post_send(l->end.qp, &wr.wr, NULL);
}

static int wait_err(struct lossy *l)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);
	int state;

	do {
		state = state_of(l->end.qp);
		if (state == IB_QPS_ERR)
			return 0;
		if (state < 0)
			return state;
		usleep_range(100, 200);
	} while (time_before(jiffies, end));
	CHECK(0, "the queue pair is in state %d, not in ERR", state);
}

static int overflow(struct rig *rig, struct lossy *l)
{
	int i;

	TRY(to_init(&l->end));
	TRY(to_rtr(rig, &l->end, &l->end));
	TRY(to_rts(&l->end));
	for (i = 0; i < RECVS; i++) {
		struct ib_recv_wr wr = { .wr_cqe = &l->recv };

		TRY(ib_post_recv(l->end.qp, &wr, NULL));
	}
	TRY(write_nothing(l, &l->slow));
	CHECK(wait_for_completion_timeout(&l->begun, msecs_to_jiffies(WAIT_MS)),
	      "the first send did not complete");
	for (i = 0; i <= l->cq->cqe; i++)
		TRY(write_nothing(l, &l->send));
	TRY(wait_err(l));
	for (i = 0; i < LATE; i++)
		TRY(write_nothing(l, &l->send));
	return 0;
}

static int drain(void *data)
{
	struct lossy *l = data;

	ib_drain_qp(l->end.qp);
	complete(&l->drained);
	return 0;
}

/*
 * Checks that the drain ends and that each request has completed once. If the drain does not end,
 * the objects cannot be freed.
 */
static int end_drained(struct lossy *l)
{
	int room = l->cq->cqe;
	struct task_struct *task;

	task = kthread_run(drain, l, "verbena_drain");
	CHECK(!IS_ERR(task), "kthread_run: %ld", PTR_ERR(task));
	if (!wait_for_completion_timeout(&l->drained, msecs_to_jiffies(WAIT_MS)))
		return -ETIMEDOUT;
	/* The send that was polled before the overflow, and those for which the CQ had room. */
	CHECK(atomic_read(&l->good) == 1 + room, "%d of %d sends completed",
	      atomic_read(&l->good), 1 + room);
	CHECK(atomic_read(&l->flushed) == l->sends - 1 - room, "%d of %d sends flushed",
	      atomic_read(&l->flushed), l->sends - 1 - room);
	CHECK(atomic_read(&l->received) == RECVS, "%d of %d receives flushed",
	      atomic_read(&l->received), RECVS);
	CHECK(!atomic_read(&l->other),
	      "a completion with a status other than success and flush error");
	return 0;
}

int t_drain_lossy(struct rig *rig)
{
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = 2 * DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};
	struct lossy *l = kzalloc(sizeof(*l), GFP_KERNEL);
	int ret;

	CHECK(l, "no memory");
	init_completion(&l->begun);
	init_completion(&l->go);
	init_completion(&l->drained);
	l->slow.done = slow_done;
	l->send.done = send_done;
	l->recv.done = recv_done;
	l->cq = ib_alloc_cq(rig->ibdev, NULL, 4, 0, IB_POLL_WORKQUEUE);
	if (IS_ERR(l->cq)) {
		ret = PTR_ERR(l->cq);
		goto free;
	}
	ret = 0;
	if (l->cq->cqe > DEPTH) {
		strscpy(why, "skipped: the smallest CQ has too many entries", WHY_SIZE);
		goto free_cq;
	}
	attr.send_cq = l->cq;
	attr.recv_cq = l->cq;
	ret = make_qp(rig, &l->end, &attr);
	if (ret)
		goto free_cq;
	ret = overflow(rig, l);
	complete_all(&l->go);
	ret = ret ?: end_drained(l);
	if (ret == -ETIMEDOUT) {
		strscpy(why, "the drain does not end after the CQ has overflowed", WHY_SIZE);
		return ret;
	}
	ib_destroy_qp(l->end.qp);
free_cq:
	ib_free_cq(l->cq);
free:
	kfree(l);
	return ret;
}

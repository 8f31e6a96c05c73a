// SPDX-License-Identifier: GPL-2.0
/*
 * Drains in every state of queue pairs, with a device that is alive or dead, and concurrent verbs.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "selftest.h"

#define QKEY	0x11111111

/* Queue pairs that are drained: RC with an SRQ, and UD, in each state. */
static const struct {
	const char *name;
	enum ib_qp_type type;
	enum ib_qp_state state;
} drained[] = {
	{ "srq", IB_QPT_RC, IB_QPS_INIT },
	{ "srq", IB_QPT_RC, IB_QPS_RTR },
	{ "srq", IB_QPT_RC, IB_QPS_RTS },
	{ "srq", IB_QPT_RC, IB_QPS_SQD },
	{ "srq", IB_QPT_RC, IB_QPS_ERR },
	{ "ud", IB_QPT_UD, IB_QPS_INIT },
	{ "ud", IB_QPT_UD, IB_QPS_RTR },
	{ "ud", IB_QPT_UD, IB_QPS_RTS },
	{ "ud", IB_QPT_UD, IB_QPS_SQD },
	{ "ud", IB_QPT_UD, IB_QPS_SQE },
	{ "ud", IB_QPT_UD, IB_QPS_ERR },
};

struct failing {
	struct ib_cqe cqe;
	struct completion done;
};

/* The objects of one run. */
struct bench {
	struct rig rig;
	struct ib_cq *cq;
	struct ib_srq *srq;
	struct ib_qp *qps[ARRAY_SIZE(drained)];
	/* Number of LAST_WQE_REACHED events of each queue pair. */
	atomic_t last_wqe[ARRAY_SIZE(drained)];
	/* Number of completed receives of each UD queue pair. */
	atomic_t recvs[ARRAY_SIZE(drained)];
	struct recv {
		struct ib_cqe cqe;
		atomic_t *count;
	} recv[ARRAY_SIZE(drained) + 1];
	atomic_t shared;
	struct failing failing;
};

static void recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	atomic_inc(container_of(wc->wr_cqe, struct recv, cqe)->count);
}

static void last_wqe(struct ib_event *event, void *context)
{
	if (event->event == IB_EVENT_QP_LAST_WQE_REACHED)
		atomic_inc(context);
}

static int to_datagram_rts(struct ib_qp *qp, enum ib_qp_state state)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_INIT, .port_num = 1, .qkey = QKEY };

	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY));
	if (state == IB_QPS_INIT)
		return 0;
	attr.qp_state = IB_QPS_RTR;
	TRY(ib_modify_qp(qp, &attr, IB_QP_STATE));
	if (state == IB_QPS_RTR)
		return 0;
	attr.qp_state = IB_QPS_RTS;
	return ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN);
}

static void failing_done(struct ib_cq *cq, struct ib_wc *wc)
{
	complete(&container_of(wc->wr_cqe, struct failing, cqe)->done);
}

/* A datagram with an invalid L_Key moves the queue pair to SQE. */
static int to_sqe(struct bench *b, struct ib_qp *qp)
{
	struct rdma_ah_attr ah_attr = {};
	struct ib_sge sge = { .length = 8, .lkey = 0xdead00 };
	struct ib_ud_wr wr = {
		.wr = {
			.wr_cqe = &b->failing.cqe,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IB_WR_SEND,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_qpn = qp->qp_num,
		.remote_qkey = QKEY,
		.port_num = 1,
	};
	int ret;

	b->failing.cqe.done = failing_done;
	init_completion(&b->failing.done);
	TRY(find_ah(&b->rig, &ah_attr));
	wr.ah = rdma_create_ah(b->rig.pd, &ah_attr, RDMA_CREATE_AH_SLEEPABLE);
	CHECK(!IS_ERR(wr.ah), "rdma_create_ah: %ld", PTR_ERR(wr.ah));
	ret = ib_post_send(qp, &wr.wr, NULL);
	if (!ret && !wait_for_completion_timeout(&b->failing.done, msecs_to_jiffies(WAIT_MS)))
		ret = -ETIMEDOUT;
	rdma_destroy_ah(wr.ah, RDMA_DESTROY_AH_SLEEPABLE);
	return ret;
}

static int to_connected(struct rig *rig, struct ib_qp *qp, enum ib_qp_state state)
{
	struct end e = { .qp = qp };

	TRY(to_init(&e));
	if (state == IB_QPS_INIT)
		return 0;
	TRY(to_rtr(rig, &e, &e));
	if (state == IB_QPS_RTR)
		return 0;
	return to_rts(&e);
}

static int prepare(struct bench *b, int i)
{
	struct ib_qp_init_attr attr = {
		.event_handler = last_wqe,
		.qp_context = &b->last_wqe[i],
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = drained[i].type,
		.send_cq = b->cq,
		.recv_cq = b->cq,
	};
	enum ib_qp_state state = drained[i].state;
	struct recv *recv = &b->recv[i];
	struct end e = {};
	int k;

	if (drained[i].type == IB_QPT_RC) {
		attr.srq = b->srq;
		attr.cap.max_recv_wr = 0;
		attr.cap.max_recv_sge = 0;
	}
	TRY(make_qp(&b->rig, &e, &attr));
	b->qps[i] = e.qp;
	if (drained[i].type == IB_QPT_RC)
		TRY(to_connected(&b->rig, e.qp, state));
	else
		TRY(to_datagram_rts(e.qp, state));
	if (drained[i].type == IB_QPT_UD) {
		recv->cqe.done = recv_done;
		recv->count = &b->recvs[i];
		for (k = 0; k < 4; k++) {
			struct ib_recv_wr wr = { .wr_cqe = &recv->cqe };

			TRY(ib_post_recv(e.qp, &wr, NULL));
		}
	}
	if (state == IB_QPS_SQD || state == IB_QPS_ERR)
		TRY(to_state(&e, state));
	if (state == IB_QPS_SQE)
		TRY(to_sqe(b, e.qp));
	return 0;
}

static void bench_close(struct bench *b)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(drained); i++)
		if (b->qps[i])
			WARN_ON(ib_destroy_qp(b->qps[i]));
	if (b->srq)
		ib_destroy_srq(b->srq);
	if (b->cq)
		ib_free_cq(b->cq);
	if (b->rig.pd)
		ib_dealloc_pd(b->rig.pd);
	kfree(b);
}

static int bench_fill(struct bench *b)
{
	struct ib_srq_init_attr attr = {
		.attr = { .max_wr = DEPTH, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct recv *recv = &b->recv[ARRAY_SIZE(drained)];
	int i;

	b->rig.pd = ib_alloc_pd(b->rig.ibdev, 0);
	if (IS_ERR(b->rig.pd)) {
		b->rig.pd = NULL;
		CHECK(0, "ib_alloc_pd");
	}
	b->cq = ib_alloc_cq(b->rig.ibdev, NULL, 4 * CQE, 0, IB_POLL_WORKQUEUE);
	if (IS_ERR(b->cq)) {
		b->cq = NULL;
		CHECK(0, "ib_alloc_cq");
	}
	b->srq = ib_create_srq(b->rig.pd, &attr);
	if (IS_ERR(b->srq)) {
		b->srq = NULL;
		CHECK(0, "ib_create_srq");
	}
	recv->cqe.done = recv_done;
	recv->count = &b->shared;
	for (i = 0; i < 4; i++) {
		struct ib_recv_wr wr = { .wr_cqe = &recv->cqe };

		TRY(ib_post_srq_recv(b->srq, &wr, NULL));
	}
	for (i = 0; i < ARRAY_SIZE(drained); i++)
		TRY(prepare(b, i));
	return 0;
}

static struct bench *bench_open(struct ib_device *ibdev, int gid_index, int *ret)
{
	struct bench *b = kzalloc(sizeof(*b), GFP_KERNEL);

	*ret = -ENOMEM;
	if (!b)
		return NULL;
	b->rig.ibdev = ibdev;
	b->rig.gid_index = gid_index;
	*ret = bench_fill(b);
	if (!*ret)
		return b;
	bench_close(b);
	return NULL;
}

/*
 * Checks that each drain ends without the core's timeout. The core waits one minute for
 * LAST_WQE_REACHED.
 */
static int drain_all(struct bench *b)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(drained); i++) {
		unsigned long start = jiffies;

		ib_drain_qp(b->qps[i]);
		CHECK(time_before(jiffies, start + msecs_to_jiffies(WAIT_MS)),
		      "drain of %s from state %d took %u ms", drained[i].name, drained[i].state,
		      jiffies_to_msecs(jiffies - start));
		/* The core handles the event before it calls the handler of the owner. */
		if (drained[i].type == IB_QPT_RC)
			TRY(wait_count(&b->last_wqe[i], 1));
		else
			CHECK(atomic_read(&b->recvs[i]) == 4,
			      "%d of 4 receives completed from state %d",
			      atomic_read(&b->recvs[i]), drained[i].state);
	}
	/* No queue pair has taken a receive of the SRQ. */
	CHECK(atomic_read(&b->shared) == 0,
	      "%d receives of the SRQ completed", atomic_read(&b->shared));
	msleep(50);
	for (i = 0; i < ARRAY_SIZE(drained); i++)
		CHECK(atomic_read(&b->last_wqe[i]) <= 1,
		      "more than one LAST_WQE_REACHED from state %d",
		      drained[i].state);
	return 0;
}

/* After RESET and INIT, a move to ERR causes another LAST_WQE_REACHED. */
static int short_lives(struct bench *b)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(drained); i++) {
		struct end e = { .qp = b->qps[i] };

		if (drained[i].type != IB_QPT_RC)
			continue;
		TRY(to_state(&e, IB_QPS_RESET));
		TRY(to_init(&e));
		TRY(to_state(&e, IB_QPS_ERR));
		TRY(wait_count(&b->last_wqe[i], 2));
	}
	return 0;
}

int t_drain_states(struct rig *rig)
{
	struct bench *b;
	int ret;

	if (!rig->ibdev->attrs.max_srq) {
		strscpy(why, "skipped: the device has no SRQs", WHY_SIZE);
		return 0;
	}
	b = bench_open(rig->ibdev, rig->gid_index, &ret);
	if (!b)
		return ret;
	ret = drain_all(b) ?: short_lives(b);
	bench_close(b);
	return ret;
}

/* --- queue pairs that are held until the device is removed --------------------------------- */

static struct bench *held;

int hold_queues(struct ib_device *ibdev, int gid_index)
{
	int ret = -EBUSY;

	why[0] = 0;
	if (!held)
		held = bench_open(ibdev, gid_index, &ret);
	if (!ret)
		pr_info("holding %zu queue pairs\n", ARRAY_SIZE(drained));
	return ret;
}

/* Drains the held queue pairs when the device is removed. The device may be dead. */
void drain_held(void)
{
	struct bench *b = held;
	int ret;

	if (!b)
		return;
	held = NULL;
	why[0] = 0;
	ret = drain_all(b);
	bench_close(b);
	if (ret)
		pr_err("FAILED drain-held: %s\n", why);
	else
		pr_info("ok drain-held\n");
}

/* --- concurrent verbs ---------------------------------------------------------------------- */

struct poster {
	struct rig *rig;
	struct task_struct *task;
	/* The mover sets `pause`. Then the poster stops posting and sets `paused`. */
	bool pause, paused;
};

/* Posts receives all the time, also in states in which the queue pair refuses them. */
static int post_on(void *data)
{
	struct poster *p = data;

	while (!kthread_should_stop()) {
		struct ib_recv_wr wr[4] = {};
		int i;

		if (READ_ONCE(p->pause)) {
			smp_store_release(&p->paused, true);
			usleep_range(20, 50);
			continue;
		}
		WRITE_ONCE(p->paused, false);
		for (i = 0; i < 4; i++) {
			wr[i].wr_id = 1000 + i;
			wr[i].next = i < 3 ? &wr[i + 1] : NULL;
		}
		ib_post_recv(p->rig->a.qp, wr, NULL);
		cond_resched();
	}
	return 0;
}

static int pause_all(struct poster *posters, int n, bool pause)
{
	unsigned long end = jiffies + msecs_to_jiffies(WAIT_MS);
	int i;

	for (i = 0; i < n; i++)
		WRITE_ONCE(posters[i].pause, pause);
	for (i = 0; i < n; i++)
		while (smp_load_acquire(&posters[i].paused) != pause) {
			CHECK(time_before(jiffies, end), "a poster does not react");
			usleep_range(20, 50);
		}
	return 0;
}

/* RESET discards the receives posted before it, and receives posted after it are refused. */
static int move_under_posts(struct rig *rig, struct poster *posters, int n)
{
	struct end *a = &rig->a;
	int round;

	for (round = 0; round < 300; round++) {
		struct ib_recv_wr marker = { .wr_id = 7 };
		struct ib_wc wc;

		TRY(to_init(a));
		TRY(pause_all(posters, n, false));
		usleep_range(10, 200);
		TRY(to_state(a, IB_QPS_RESET));
		TRY(pause_all(posters, n, true));
		TRY(to_init(a));
		TRY(to_state(a, IB_QPS_ERR));
		TRY(ib_post_recv(a->qp, &marker, NULL));
		TRY(reap(a, &wc, 1));
		EXPECT_WC(wc, 7, IB_WC_WR_FLUSH_ERR);
		TRY(to_state(a, IB_QPS_RESET));
	}
	return 0;
}

struct mover {
	struct work_struct work;
	struct end *e;
	int ret;
};

static void move_to_reset(struct work_struct *work)
{
	struct mover *m = container_of(work, struct mover, work);

	m->ret = to_state(m->e, IB_QPS_RESET);
}

/*
 * Two threads move the queue pair at the same time. After that, driver and device must agree on its
 * state.
 */
static int move_twice(struct rig *rig)
{
	struct end *a = &rig->a;
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	struct mover m = { .e = a };
	int round, ret = 0;

	INIT_WORK_ONSTACK(&m.work, move_to_reset);
	for (round = 0; round < 300 && !ret; round++) {
		struct ib_recv_wr wr = {};
		int posted;

		queue_work(system_dfl_wq, &m.work);
		if (round % 2)
			udelay(round % 50);
		ret = to_init(a);
		flush_work(&m.work);
		if (ret || m.ret)
			break;
		ret = ib_query_qp(a->qp, &attr, IB_QP_STATE, &init);
		posted = ib_post_recv(a->qp, &wr, NULL);
		if (ret || !posted != (attr.qp_state == IB_QPS_INIT)) {
			snprintf(why, WHY_SIZE, "post in state %d: %d", attr.qp_state, posted);
			ret = -EINVAL;
		}
		if (!ret)
			ret = to_state(a, IB_QPS_RESET);
	}
	destroy_work_on_stack(&m.work);
	TRY(ret);
	CHECK(!m.ret, "to RESET: %d", m.ret);
	return 0;
}

int t_move_post(struct rig *rig)
{
	struct poster posters[3] = {};
	int i, ret = 0;

	TRY(move_twice(rig));
	for (i = 0; i < ARRAY_SIZE(posters) && !ret; i++) {
		posters[i].rig = rig;
		posters[i].pause = true;
		posters[i].task = kthread_run(post_on, &posters[i], "verbena_post/%d", i);
		if (IS_ERR(posters[i].task)) {
			ret = PTR_ERR(posters[i].task);
			posters[i].task = NULL;
		}
	}
	if (!ret)
		ret = move_under_posts(rig, posters, ARRAY_SIZE(posters));
	for (i = 0; i < ARRAY_SIZE(posters); i++)
		if (posters[i].task)
			kthread_stop(posters[i].task);
	return ret;
}

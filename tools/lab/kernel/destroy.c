// SPDX-License-Identifier: GPL-2.0
/*
 * Destruction of a queue pair that has many completions in the CQ, or while the event handler of
 * another queue pair waits for it.
 */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/slab.h>

#include "selftest.h"

/* Number of completions of each queue pair: more than a driver examines with interrupts off. */
#define UNPOLLED	1500

struct unpolled {
	struct ib_cq *cq;
	struct end e[2];
	/* Number of the next expected completion of each queue pair. */
	int next[2];
	bool wrong;
};

/* Checks that the completions of each queue pair arrive once and in order. */
static void note(struct unpolled *u, struct ib_wc *wc)
{
	int who = wc->wr_id >> 32 & 1, n = (u32)wc->wr_id;

	if (wc->status == IB_WC_SUCCESS && n == u->next[who]++)
		return;
	if (!u->wrong)
		snprintf(why, WHY_SIZE, "completion %d of queue pair %d, status %d, instead of %d",
			 n, who, wc->status, u->next[who] - 1);
	u->wrong = true;
}

static int poll_some(struct unpolled *u)
{
	struct ib_wc wc[8];
	int i, n = ib_poll_cq(u->cq, ARRAY_SIZE(wc), wc);

	for (i = 0; i < n; i++)
		note(u, &wc[i]);
	return n;
}

static int poller(void *context)
{
	struct unpolled *u = context;

	while (!kthread_should_stop())
		if (poll_some(u) <= 0)
			usleep_range(20, 100);
	return 0;
}

/*
 * Destroys the first queue pair while the CQ contains completions of both. With @beside, another
 * thread polls at the same time.
 */
static int destroy_first(struct rig *rig, struct unpolled *u, bool beside)
{
	struct task_struct *task = NULL;
	unsigned long end;
	int i, who;

	for (i = 0; i < UNPOLLED; i++)
		for (who = 0; who < 2; who++)
			TRY(post(rig, &u->e[who], (u64)who << 32 | i, IB_WR_RDMA_WRITE,
				 IB_SEND_SIGNALED, 0, 8, rig->b.dma,
				 rig->pd->unsafe_global_rkey));
	/* After this time the device must have completed all requests. */
	msleep(50);
	if (beside) {
		task = kthread_run(poller, u, "verbena_poller");
		if (IS_ERR(task))
			return PTR_ERR(task);
	}
	WARN_ON(ib_destroy_qp(u->e[0].qp));
	u->e[0].qp = NULL;
	if (task)
		kthread_stop(task);
	who = u->next[0];
	end = jiffies + msecs_to_jiffies(WAIT_MS);
	while (u->next[1] < UNPOLLED && !u->wrong) {
		CHECK(time_before(jiffies, end),
		      "%d completions of the remaining queue pair", u->next[1]);
		if (poll_some(u) <= 0)
			usleep_range(20, 100);
	}
	if (u->wrong)
		return -EINVAL;
	CHECK(u->next[0] == who, "%d completions of a destroyed queue pair", u->next[0] - who);
	CHECK(beside || !who, "%d completions of a destroyed queue pair", who);
	CHECK(!poll_some(u), "an unexpected completion");
	return 0;
}

static int unpolled_round(struct rig *rig, bool beside)
{
	struct ib_cq_init_attr cq_attr = { .cqe = 4 * UNPOLLED };
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = UNPOLLED, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IB_QPT_RC,
	};
	struct unpolled *u = kzalloc(sizeof(*u), GFP_KERNEL);
	int i, ret = 0;

	if (!u)
		return -ENOMEM;
	u->cq = ib_create_cq(rig->ibdev, NULL, NULL, NULL, &cq_attr);
	if (IS_ERR(u->cq)) {
		ret = PTR_ERR(u->cq);
		kfree(u);
		return ret;
	}
	attr.send_cq = u->cq;
	attr.recv_cq = u->cq;
	for (i = 0; i < 2 && !ret; i++) {
		u->e[i] = (struct end){ .cq = u->cq, .buf = rig->a.buf, .dma = rig->a.dma };
		ret = make_qp(rig, &u->e[i], &attr);
	}
	ret = ret ?: connect_two(rig, &u->e[0], &u->e[1]);
	ret = ret ?: destroy_first(rig, u, beside);
	for (i = 0; i < 2; i++)
		if (u->e[i].qp)
			WARN_ON(ib_destroy_qp(u->e[i].qp));
	ib_destroy_cq(u->cq);
	kfree(u);
	return ret;
}

/*
 * The destruction of a queue pair removes its completions from the CQ. Those of another queue pair
 * stay and keep their order, also while another thread polls.
 */
int t_destroy_unpolled(struct rig *rig)
{
	int i;

	TRY(unpolled_round(rig, false));
	for (i = 0; i < 4; i++)
		TRY(unpolled_round(rig, true));
	return 0;
}

/* Context of a handler that waits until another queue pair is destroyed. */
struct waits {
	struct completion begun, gone, over;
	bool in_time;
	bool destroyed;
	atomic_t late;
};

static void waiting_handler(struct ib_event *event, void *context)
{
	struct waits *w = context;

	complete(&w->begun);
	w->in_time = wait_for_completion_timeout(&w->gone, msecs_to_jiffies(WAIT_MS));
	complete(&w->over);
}

static void other_handler(struct ib_event *event, void *context)
{
	struct waits *w = context;

	if (READ_ONCE(w->destroyed))
		atomic_inc(&w->late);
}

/* The peer uses an invalid R_Key, which causes an event of the queue pair. */
static int violate(struct rig *rig, struct end *peer)
{
	struct ib_wc wc;

	TRY(post(rig, peer, 1, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8, rig->b.dma,
		 rig->pd->unsafe_global_rkey ^ 0x5a5a00));
	TRY(reap(peer, &wc, 1));
	EXPECT_WC(wc, 1, IB_WC_REM_ACCESS_ERR);
	return 0;
}

/*
 * The destruction of a queue pair waits for its own event handler, but not for that of another
 * queue pair, which may wait for the destruction. Events of the destroyed queue pair that come
 * after those of the other one are dropped.
 */
static int destroy_beside(struct rig *rig, struct end e[4], struct waits *w)
{
	TRY(connect_two(rig, &e[0], &e[1]));
	TRY(connect_two(rig, &e[2], &e[3]));
	TRY(violate(rig, &e[0]));
	CHECK(wait_for_completion_timeout(&w->begun, msecs_to_jiffies(WAIT_MS)),
	      "the event did not arrive");
	TRY(violate(rig, &e[2]));
	WARN_ON(ib_destroy_qp(e[3].qp));
	e[3].qp = NULL;
	WRITE_ONCE(w->destroyed, true);
	complete(&w->gone);
	wait_for_completion(&w->over);
	CHECK(w->in_time, "the destruction waited for the handler of another queue pair");
	return 0;
}

int t_destroy_in_handler(struct rig *rig)
{
	struct ib_qp_init_attr attr = {
		.send_cq = rig->a.cq,
		.recv_cq = rig->a.cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IB_QPT_RC,
	};
	struct waits *w = kzalloc(sizeof(*w), GFP_KERNEL);
	struct end e[4] = {};
	int i, ret = 0;

	if (!w)
		return -ENOMEM;
	init_completion(&w->begun);
	init_completion(&w->gone);
	init_completion(&w->over);
	attr.qp_context = w;
	for (i = 0; i < 4 && !ret; i++) {
		e[i] = (struct end){ .cq = rig->a.cq, .buf = rig->a.buf, .dma = rig->a.dma };
		attr.event_handler = i == 1 ? waiting_handler : other_handler;
		ret = make_qp(rig, &e[i], &attr);
	}
	ret = ret ?: destroy_beside(rig, e, w);
	complete_all(&w->gone);
	for (i = 0; i < 4; i++)
		if (e[i].qp)
			WARN_ON(ib_destroy_qp(e[i].qp));
	if (!ret && atomic_read(&w->late)) {
		strscpy(why, "an event of a destroyed queue pair", WHY_SIZE);
		ret = -EINVAL;
	}
	kfree(w);
	return ret;
}

/* Context of a slow handler. */
struct slow {
	struct completion begun;
	bool over;
};

static void slow_handler(struct ib_event *event, void *context)
{
	struct slow *s = context;

	complete(&s->begun);
	msleep(200);
	WRITE_ONCE(s->over, true);
}

static int begin_slow(struct rig *rig, struct end e[2], struct slow *s)
{
	s->over = false;
	reinit_completion(&s->begun);
	TRY(connect_two(rig, &e[0], &e[1]));
	TRY(violate(rig, &e[0]));
	CHECK(wait_for_completion_timeout(&s->begun, msecs_to_jiffies(WAIT_MS)),
	      "the event did not arrive");
	return 0;
}

static int slow_rounds(struct rig *rig, struct end e[2], struct slow *s)
{
	TRY(begin_slow(rig, e, s));
	TRY(to_state(&e[1], IB_QPS_RESET));
	CHECK(READ_ONCE(s->over), "RESET ended while the event handler ran");
	TRY(to_state(&e[0], IB_QPS_RESET));
	TRY(begin_slow(rig, e, s));
	WARN_ON(ib_destroy_qp(e[1].qp));
	e[1].qp = NULL;
	CHECK(READ_ONCE(s->over), "the destruction ended while the event handler ran");
	return 0;
}

/* After RESET or the destruction of a queue pair, none of its event handlers runs. */
int t_slow_handler(struct rig *rig)
{
	struct ib_qp_init_attr attr = {
		.send_cq = rig->a.cq,
		.recv_cq = rig->a.cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IB_QPT_RC,
		.event_handler = slow_handler,
	};
	struct slow *s = kzalloc(sizeof(*s), GFP_KERNEL);
	struct end e[2] = {};
	int i, ret = 0;

	if (!s)
		return -ENOMEM;
	init_completion(&s->begun);
	attr.qp_context = s;
	for (i = 0; i < 2 && !ret; i++) {
		e[i] = (struct end){ .cq = rig->a.cq, .buf = rig->a.buf, .dma = rig->a.dma };
		ret = make_qp(rig, &e[i], &attr);
	}
	ret = ret ?: slow_rounds(rig, e, s);
	for (i = 0; i < 2; i++)
		if (e[i].qp)
			WARN_ON(ib_destroy_qp(e[i].qp));
	kfree(s);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Completion queues: notification, overflow, creation and destruction, many queues.
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/pci.h>
#include <linux/workqueue.h>

#include "selftest.h"

/* An arm causes one notification, for a completion that arrives after the arm. */
int t_notify(struct rig *rig)
{
	struct ib_wc wc[2];
	int ret;

	TRY(connect_ends(rig));
	TRY(post_recv(rig, &rig->b, 1, 0, 64));
	TRY(post_recv(rig, &rig->b, 2, 0, 64));
	ret = ib_req_notify_cq(rig->b.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
	CHECK(ret == 0, "arm of an empty CQ: %d", ret);
	TRY(post(rig, &rig->a, 3, IB_WR_SEND, 0, 0, 8, 0, 0));
	TRY(wait_count(&rig->b.comp_events, 1));
	TRY(post(rig, &rig->a, 4, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
	TRY(reap(&rig->a, wc, 1));
	msleep(50);
	CHECK(atomic_read(&rig->b.comp_events) == 1, "%d notifications after one arm",
	      atomic_read(&rig->b.comp_events));
	ret = ib_req_notify_cq(rig->b.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
	CHECK(ret == 1, "missed events are not reported: %d", ret);
	TRY(reap(&rig->b, wc, 2));
	EXPECT_WC(wc[0], 1, IB_WC_SUCCESS);
	EXPECT_WC(wc[1], 2, IB_WC_SUCCESS);
	return 0;
}

/*
 * A solicited arm ignores an ordinary completion, and notifies of a solicited one and one in error.
 */
int t_solicited(struct rig *rig)
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
	CHECK(atomic_read(&rig->b.comp_events) == 0,
	      "a completion that is not solicited was notified");
	TRY(post(rig, &rig->a, 11, IB_WR_SEND, IB_SEND_SIGNALED | IB_SEND_SOLICITED, 0, 8, 0, 0));
	TRY(wait_count(&rig->b.comp_events, 1));
	TRY(reap(&rig->b, wc, 2));
	CHECK(ib_req_notify_cq(rig->b.cq, IB_CQ_SOLICITED) >= 0, "arm");
	TRY(to_state(&rig->b, IB_QPS_ERR));
	TRY(wait_count(&rig->b.comp_events, 2));
	return 0;
}

/* With moderation by two completions, the event waits for the second one, or for the period. */
int t_moderation(struct rig *rig)
{
	bool waited = false;
	struct ib_wc wc[2];
	int i, ret;

	TRY(connect_ends(rig));
	ret = rdma_set_cq_moderation(rig->b.cq, 2, 65535);
	if (ret == -EOPNOTSUPP) {
		strscpy(why, "skipped: the device has no moderation", WHY_SIZE);
		return 0;
	}
	TRY(ret);
	/* On a busy machine the period may end before this thread reads the counter. */
	for (i = 0; i < 20; i++) {
		atomic_set(&rig->b.comp_events, 0);
		TRY(post_recv(rig, &rig->b, 1, 0, 64));
		TRY(post_recv(rig, &rig->b, 2, 0, 64));
		CHECK(ib_req_notify_cq(rig->b.cq, IB_CQ_NEXT_COMP) >= 0, "arm");
		TRY(post(rig, &rig->a, 3, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
		TRY(reap(&rig->a, wc, 1));
		msleep(5);
		waited |= !atomic_read(&rig->b.comp_events);
		TRY(post(rig, &rig->a, 4, IB_WR_SEND, IB_SEND_SIGNALED, 0, 8, 0, 0));
		TRY(reap(&rig->a, wc, 1));
		TRY(wait_count(&rig->b.comp_events, 1));
		TRY(reap(&rig->b, wc, 2));
	}
	CHECK(waited, "each completion was notified at once");
	return 0;
}

/* A CQ overflow: one event. Earlier completions can be polled. The queue pair goes to ERR. */
int t_cq_overflow(struct rig *rig)
{
	int i, n, room;
	struct ib_wc wc;

	/* The rig has requested 4 entries for its first CQ, which may have more. */
	room = rig->a.cq->cqe;
	if (room >= DEPTH) {
		strscpy(why, "skipped: the smallest CQ has too many entries");
		return 0;
	}
	TRY(connect_ends(rig));
	for (i = 0; i <= room; i++)
		TRY(post(rig, &rig->a, i, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8, rig->b.dma,
			 rig->pd->unsafe_global_rkey));
	TRY(wait_count(&rig->a.cq_events, 1));
	CHECK(rig->a.last_cq_event == IB_EVENT_CQ_ERR, "CQ event %d", rig->a.last_cq_event);
	for (n = 0; ib_poll_cq(rig->a.cq, 1, &wc) > 0; n++)
		EXPECT_WC(wc, n, IB_WC_SUCCESS);
	CHECK(n == room, "%d of %d completions after the overflow", n, room);
	msleep(100);
	CHECK(atomic_read(&rig->a.cq_events) == 1, "%d CQ events", atomic_read(&rig->a.cq_events));
	CHECK(state_of(rig->a.qp) == IB_QPS_ERR,
	      "queue pair in state %d, not in ERR", state_of(rig->a.qp));
	CHECK(atomic_read(&rig->a.qp_events) == 1 && rig->a.last_qp_event == IB_EVENT_QP_FATAL,
	      "%d queue pair events, last %d", atomic_read(&rig->a.qp_events),
	      rig->a.last_qp_event);
	return 0;
}

/* More CQs at a time than one doorbell area, or a similar area of another device, has room for. */
int t_many_cqs(struct rig *rig)
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
	CHECK(!ret, "ib_create_cq of CQ %d: %d", n, ret);
	return 0;
}

/* Objects are created and destroyed many times. The driver must use their numbers again. */
int t_churn(struct rig *rig)
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

		CHECK(!IS_ERR(cq), "ib_create_cq in round %d: %ld", i, PTR_ERR(cq));
		attr.send_cq = cq;
		attr.recv_cq = cq;
		qp = ib_create_qp(rig->pd, &attr);
		if (!IS_ERR(qp))
			WARN_ON(ib_destroy_qp(qp));
		ib_destroy_cq(cq);
		CHECK(!IS_ERR(qp), "ib_create_qp in round %d: %ld", i, PTR_ERR(qp));
	}
	return 0;
}

/* Context of a CQ that the core polls in a work item, and whose event is late. */
struct late {
	struct completion polls, event;
	bool in_time;
};

static void late_event(struct ib_cq *cq, void *context)
{
	struct late *late = context;

	complete_all(&late->event);
}

static void late_poll(struct work_struct *work)
{
	struct late *late = container_of(work, struct ib_cq, work)->cq_context;

	complete_all(&late->polls);
	/* Only after one to two seconds the driver notices a missing interrupt by itself. */
	late->in_time = wait_for_completion_timeout(&late->event, msecs_to_jiffies(500));
}

/* Frees a CQ whose event is in the event queue while the interrupt is disabled. */
static int free_late(struct rig *rig, struct ib_cq *cq, unsigned int irq)
{
	struct end e = { .cq = cq, .buf = rig->a.buf, .dma = rig->a.dma };
	struct ib_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IB_QPT_RC,
	};
	struct late *late = cq->cq_context;
	struct ib_wc wc;
	int ret;

	ret = to_state(&rig->b, IB_QPS_RESET) ?: make_qp(rig, &e, &attr);
	if (ret) {
		ib_free_cq(cq);
		return ret;
	}
	disable_irq(irq);
	ret = connect_two(rig, &e, &rig->b) ?:
	      post(rig, &e, 1, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8, rig->b.dma,
		   rig->pd->unsafe_global_rkey) ?:
	      reap(&e, &wc, 1);
	msleep(10);
	queue_work(cq->comp_wq, &cq->work);
	wait_for_completion(&late->polls);
	WARN_ON(ib_destroy_qp(e.qp));
	if (completion_done(&late->event))
		ret = ret ?: -EAGAIN;
	ib_free_cq(cq);
	enable_irq(irq);
	return ret;
}

/*
 * An event arrives while its CQ is freed. The completion handler of the core queues a work item,
 * which the core cancels and frees with the CQ. So the driver may call the handler only before
 * that. In this test the work item waits for the call.
 */
int t_late_event(struct rig *rig)
{
	struct device *parent = rig->ibdev->dev.parent;
	struct late late;
	struct ib_cq *cq;
	int i, ret;

	if (!parent || !dev_is_pci(parent)) {
		strscpy(why, "skipped: the device is no PCI device");
		return 0;
	}
	for (i = 0; i < 10; i++) {
		init_completion(&late.polls);
		init_completion(&late.event);
		late.in_time = false;
		cq = ib_alloc_cq(rig->ibdev, &late, CQE, 0, IB_POLL_WORKQUEUE);
		TRY(PTR_ERR_OR_ZERO(cq));
		cq->comp_handler = late_event;
		INIT_WORK(&cq->work, late_poll);
		ret = free_late(rig, cq, pci_irq_vector(to_pci_dev(parent), 1));
		if (ret && ret != -EAGAIN)
			TRY(ret);
		if (!ret && late.in_time)
			return 0;
	}
	CHECK(false, "the completion handler was not called before the work was cancelled");
}

/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Declarations that the files of the self-test share: the rig, and checks that report what failed.
 */
#ifndef VERBENA_SELFTEST_H
#define VERBENA_SELFTEST_H

#include <rdma/ib_verbs.h>

#define BUF_SIZE	16384
#define DEPTH		16
#define CQE		64
#define WAIT_MS		5000
#define WHY_SIZE	160

/* One end of the connection. */
struct end {
	struct ib_cq *cq;
	struct ib_qp *qp;
	u8 *buf;
	u64 dma;
	atomic_t comp_events;
	atomic_t cq_events;
	atomic_t qp_events;
	bool no_reads;	/* max_dest_rd_atomic is 0 */
	enum ib_event_type last_cq_event, last_qp_event;
};

struct rig {
	struct ib_device *ibdev;
	struct ib_pd *pd;
	struct end a, b;
	int gid_index;
	enum ib_mtu path_mtu;	/* 0 stands for IB_MTU_1024 */
};

/* Reason why the present test failed or was skipped. */
extern char why[WHY_SIZE];

#define CHECK(cond, fmt, ...)						\
	do {								\
		if (!(cond)) {						\
			snprintf(why, WHY_SIZE, "%s:%d: " fmt,	\
				 __func__, __LINE__, ##__VA_ARGS__);	\
			return -EINVAL;					\
		}							\
	} while (0)

#define TRY(expr)							\
	do {								\
		int ret_ = (expr);					\
		if (ret_) {						\
			if (!why[0])					\
				snprintf(why, WHY_SIZE, "%s:%d: %s: %d",	\
					 __func__, __LINE__, #expr, ret_);	\
			return ret_;					\
		}							\
	} while (0)

#define EXPECT_WC(wc, id, st)						\
	CHECK((wc).wr_id == (id) && (wc).status == (st),		\
	      "completion %llu status %d instead of %llu status %d",	\
	      (wc).wr_id, (wc).status, (u64)(id), (st))

/* The rig (rig.c). */
int rig_open(struct rig *rig, int cqe);
void rig_close(struct rig *rig);
int find_gid(struct ib_device *ibdev);
int find_ah(struct rig *rig, struct rdma_ah_attr *ah_attr);
int to_state(struct end *e, enum ib_qp_state state);
int state_of(struct ib_qp *qp);
int to_init(struct end *e);
int to_rtr(struct rig *rig, struct end *e, struct end *peer);
int to_rts(struct end *e);
int make_qp(struct rig *rig, struct end *e, struct ib_qp_init_attr *attr);
int connect_two(struct rig *rig, struct end *a, struct end *b);
int connect_ends(struct rig *rig);

/* Posting and polling (rig.c). */
void fill(struct end *e, u32 offset, u32 len, u8 seed);
int post_recv(struct rig *rig, struct end *e, u64 id, u32 offset, u32 len);
int post(struct rig *rig, struct end *e, u64 id, enum ib_wr_opcode opcode, int flags, u32 offset,
	 u32 len, u64 remote, u32 rkey);
int reap(struct end *e, struct ib_wc *wc, int n);
int no_more(struct end *e);
int wait_count(atomic_t *count, int n);

/* Tests of reliable connections (rc.c). */
int t_transitions(struct rig *rig);
int t_immediate_errors(struct rig *rig);
int t_bad_in_a_chain(struct rig *rig);
int t_send(struct rig *rig);
int t_inline(struct rig *rig);
int t_rdma(struct rig *rig);
int t_stream(struct rig *rig);
int t_flush(struct rig *rig);
int t_reset(struct rig *rig);
int t_access_error(struct rig *rig);
int t_rnr(struct rig *rig);
int t_path_mtu(struct rig *rig);
int t_port_mtu(struct rig *rig);
int t_unaligned(struct rig *rig);

/* Tests of queues (cq.c). */
int t_notify(struct rig *rig);
int t_solicited(struct rig *rig);
int t_moderation(struct rig *rig);
int t_cq_overflow(struct rig *rig);
int t_many_cqs(struct rig *rig);
int t_churn(struct rig *rig);
int t_late_event(struct rig *rig);

/* Tests of destruction (destroy.c). */
int t_destroy_unpolled(struct rig *rig);
int t_destroy_in_handler(struct rig *rig);
int t_slow_handler(struct rig *rig);

/* Tests of datagrams (ud.c) and of memory regions (memory.c). */
int t_ud(struct rig *rig);
int t_fast_reg(struct rig *rig);
int t_remote_inv(struct rig *rig);
int t_stale_keys(struct rig *rig);
int t_gaps(struct rig *rig);
int t_map_ahead(struct rig *rig);

/* Tests of drains by the core, and of a device that fails (death.c). */
int t_drain(struct rig *rig);
int t_death(struct rig *rig);

/* Tests of statuses, states and atomics (errors.c). */
int t_local_errors(struct rig *rig);
int t_remote_errors(struct rig *rig);
int t_peer_gone(struct rig *rig);
int t_rtr_and_sqd(struct rig *rig);
int t_atomics(struct rig *rig);
int t_atomic_sges(struct rig *rig);
int t_local_write(struct rig *rig);
int t_injected(struct rig *rig);

/* Tests of unreliable services, and of timeout 0 (unreliable.c). */
int t_ud_drops(struct rig *rig);
int t_sqe(struct rig *rig);
int t_uc(struct rig *rig);
int t_srq_too_long(struct rig *rig);
int t_no_timeout(struct rig *rig);

/* Tests of shared receive queues (srq.c). */
int t_srq_order(struct rig *rig);
int t_srq_storm(struct rig *rig);

/* Tests of drains, and of concurrent verbs (drain.c). */
int t_drain_states(struct rig *rig);
int t_move_post(struct rig *rig);
int hold_queues(struct ib_device *ibdev, int gid_index);
void drain_held(void);

/* Test of a drain after a CQ overflow (lossy.c). */
int t_drain_lossy(struct rig *rig);

#endif

// SPDX-License-Identifier: GPL-2.0
/*
 * A self-test of kernel verbs. A kernel user drives two RC queue pairs of one device that are
 * connected to each other. When the module is loaded, it runs all tests on the device `dev` and
 * prints one line for each, "ok NAME" or "FAILED NAME: why". The device may be any RDMA device. If
 * it lacks a feature that a test needs, the line of that test contains "skipped".
 *
 * A test has these steps: rig_open() creates two queue pairs on two completion queues. The test
 * connects them, posts, polls with reap(), and compares the completions with the specification.
 * rig_close() destroys all objects, which must always succeed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "selftest.h"

static char *dev = "verbena0";
module_param(dev, charp, 0444);
MODULE_PARM_DESC(dev, "name of the device to test");

static char *only = "";
module_param(only, charp, 0444);
MODULE_PARM_DESC(only, "name of the only test to run");

static bool hold;
module_param(hold, bool, 0444);
MODULE_PARM_DESC(hold,
		 "keep queue pairs in every state until the device is removed, and drain them");

static const struct {
	const char *name;
	int (*run)(struct rig *rig);
	int cqe;
	/*
	 * True if the test runs only if `only` names it, because the device has to fail meanwhile.
	 */
	bool named;
} tests[] = {
	{ "transitions", t_transitions, CQE },
	{ "immediate-errors", t_immediate_errors, CQE },
	{ "bad-in-a-chain", t_bad_in_a_chain, CQE },
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
	{ "path-mtu", t_path_mtu, CQE },
	{ "port-mtu", t_port_mtu, CQE },
	{ "unaligned", t_unaligned, CQE },
	{ "moderation", t_moderation, CQE },
	{ "cq-overflow", t_cq_overflow, 4 },
	{ "drain", t_drain, CQE },
	{ "ud", t_ud, CQE },
	{ "fast-reg", t_fast_reg, CQE },
	{ "gaps", t_gaps, CQE },
	{ "map-ahead", t_map_ahead, CQE },
	{ "remote-inv", t_remote_inv, CQE },
	{ "stale-keys", t_stale_keys, CQE },
	{ "churn", t_churn, CQE },
	{ "many-cqs", t_many_cqs, CQE },
	{ "late-event", t_late_event, CQE },
	{ "destroy-unpolled", t_destroy_unpolled, CQE },
	{ "destroy-in-handler", t_destroy_in_handler, CQE },
	{ "slow-handler", t_slow_handler, CQE },
	{ "local-errors", t_local_errors, CQE },
	{ "remote-errors", t_remote_errors, CQE },
	{ "peer-gone", t_peer_gone, CQE },
	{ "rtr-and-sqd", t_rtr_and_sqd, CQE },
	{ "atomics", t_atomics, CQE },
	{ "atomic-sges", t_atomic_sges, CQE },
	{ "local-write", t_local_write, CQE },
	{ "injected", t_injected, CQE },
	{ "ud-drops", t_ud_drops, CQE },
	{ "sqe", t_sqe, CQE },
	{ "uc", t_uc, CQE },
	{ "srq-too-long", t_srq_too_long, CQE },
	{ "no-timeout", t_no_timeout, CQE },
	{ "death", t_death, CQE, true },
	{ "srq-order", t_srq_order, CQE },
	{ "srq-storm", t_srq_storm, CQE },
	{ "drain-states", t_drain_states, CQE },
	{ "drain-lossy", t_drain_lossy, CQE },
	{ "move-and-post", t_move_post, CQE },
};

/*
 * The device, from the end of its tests until it is removed. While the lock is held, the device is
 * not removed.
 */
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
	/* Tests run only once. A device that has failed is registered again with its old name. */
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
 * A write to the parameter `connect` creates one object of each kind, connects the queue pairs and
 * destroys all objects. It returns the error if a step fails. Fault injection uses it to let
 * allocations fail.
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
MODULE_PARM_DESC(connect, "create, connect and destroy one object of each kind now");

/* The device is removed. With `hold` the self-test still has queues, and the device may be dead. */
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

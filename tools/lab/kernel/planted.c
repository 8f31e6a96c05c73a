// SPDX-License-Identifier: GPL-2.0
/*
 * Planted bugs, one for each checker of the debug kernel. They show that the checkers work, so that
 * a run without a report means that nothing is wrong. A write of a name to the parameter `bug`
 * executes the bug:
 *
 *   echo use-after-free > /sys/module/verbena_planted/parameters/bug
 *
 * scripts/guest/planted does this, and `scripts/test planted` compares the reports. The module is
 * built for the debug kernel only, and no other script loads it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

static struct platform_device *pdev;

/* KASAN: a read of freed memory. */
static int use_after_free(void)
{
	char *p = kzalloc(64, GFP_KERNEL);
	char byte;

	if (!p)
		return -ENOMEM;
	kfree(p);
	byte = READ_ONCE(p[8]);
	pr_info("read %d after free\n", byte);
	return 0;
}

/* KASAN: a write after the end of an allocation. */
static int out_of_bounds(void)
{
	char *p = kzalloc(60, GFP_KERNEL);
	size_t end = 60;

	if (!p)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(end);
	WRITE_ONCE(p[end], 1);
	kfree(p);
	return 0;
}

/* UBSAN: a shift by more bits than the type has. */
static int shift_too_far(void)
{
	int by = 40, one = 1;

	OPTIMIZER_HIDE_VAR(by);
	OPTIMIZER_HIDE_VAR(one);
	pr_info("shifted: %d\n", one << by);
	return 0;
}

/* lockdep: the order of the locks is wrong, although no deadlock occurs. */
static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);

static int lock_inversion(void)
{
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);
	mutex_lock(&second);
	mutex_lock(&first);
	mutex_unlock(&first);
	mutex_unlock(&second);
	return 0;
}

/* kmemleak: memory without a pointer to it. */
static int leak(void)
{
	char *p = kzalloc(100, GFP_KERNEL);

	if (!p)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(p);
	return 0;
}

/* DEBUG_ATOMIC_SLEEP: a sleep with a spinlock held. */
static DEFINE_SPINLOCK(spin);

static int sleep_in_atomic(void)
{
	spin_lock(&spin);
	msleep(1);
	spin_unlock(&spin);
	return 0;
}

/* DMA_API_DEBUG: a mapping is synchronized after it was unmapped. */
static int dma_after_unmap(void)
{
	struct device *dev = &pdev->dev;
	void *p = kzalloc(PAGE_SIZE, GFP_KERNEL);
	dma_addr_t addr;

	if (!p)
		return -ENOMEM;
	addr = dma_map_single(dev, p, PAGE_SIZE, DMA_FROM_DEVICE);
	if (!dma_mapping_error(dev, addr)) {
		dma_unmap_single(dev, addr, PAGE_SIZE, DMA_FROM_DEVICE);
		dma_sync_single_for_cpu(dev, addr, PAGE_SIZE, DMA_FROM_DEVICE);
	}
	kfree(p);
	return 0;
}

/*
 * Fault injection and kmemleak: the function is correct unless an allocation fails. With
 * /proc/self/fail-nth the second allocation fails, and the first one leaks.
 */
static int missing_error_path(void)
{
	char *a, *b;

	a = kzalloc(200, GFP_KERNEL);
	if (!a)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(a);
	b = kzalloc(200, GFP_KERNEL);
	if (!b)
		return -ENOMEM;
	kfree(b);
	kfree(a);
	return 0;
}

static const struct {
	const char *name;
	int (*commit)(void);
} bugs[] = {
	{ "use-after-free", use_after_free },
	{ "out-of-bounds", out_of_bounds },
	{ "shift-too-far", shift_too_far },
	{ "lock-inversion", lock_inversion },
	{ "leak", leak },
	{ "sleep-in-atomic", sleep_in_atomic },
	{ "dma-after-unmap", dma_after_unmap },
	{ "missing-error-path", missing_error_path },
};

static int bug_set(const char *val, const struct kernel_param *kp)
{
	for (size_t i = 0; i < ARRAY_SIZE(bugs); i++)
		if (sysfs_streq(val, bugs[i].name))
			return bugs[i].commit();
	return -EINVAL;
}

static const struct kernel_param_ops bug_ops = { .set = bug_set };
module_param_cb(bug, &bug_ops, NULL, 0200);
MODULE_PARM_DESC(bug, "name of the bug to execute now");

static int __init planted_init(void)
{
	pdev = platform_device_register_simple("verbena_planted", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(pdev))
		return PTR_ERR(pdev);
	return dma_coerce_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
}

static void __exit planted_exit(void)
{
	platform_device_unregister(pdev);
}

module_init(planted_init);
module_exit(planted_exit);

MODULE_DESCRIPTION("Planted bugs for the debug kernel's checkers");
MODULE_LICENSE("GPL");

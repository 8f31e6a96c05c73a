// SPDX-License-Identifier: GPL-2.0
/*
 * C functions for what the kernel's headers offer only as a macro or an inline function. Each
 * does one thing; what it is for, and when it may be called, is said in rust/base/.
 */
#include <linux/capability.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/kmemleak.h>
#include <linux/mm.h>
#include <linux/ratelimit.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sizes.h>
#include <linux/suspend.h>
#include "helpers.h"

/* Hibernation. */

static int refuse_hibernation(struct notifier_block *nb, unsigned long event, void *unused)
{
	if (event != PM_HIBERNATION_PREPARE)
		return NOTIFY_DONE;
	pr_warn(KBUILD_MODNAME ": hibernation is refused, because the device would lose its state: unload this module first\n");
	return notifier_from_errno(-EBUSY);
}

static struct notifier_block hibernation = { .notifier_call = refuse_hibernation };

int base_helper_refuse_hibernation(void)
{
	return register_pm_notifier(&hibernation);
}

void base_helper_allow_hibernation(void)
{
	unregister_pm_notifier(&hibernation);
}

/* Locks, tables, waiting. */

unsigned long base_helper_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

bool base_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	unsigned long f;
	bool ok = spin_trylock_irqsave(lock, f);

	*flags = f;
	return ok;
}

void base_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

void base_helper_xa_init(struct xarray *xa)
{
	xa_init_flags(xa, XA_FLAGS_LOCK_IRQ);
}

int base_helper_xa_insert(struct xarray *xa, unsigned long index, void *entry)
{
	return xa_insert_irq(xa, index, entry, GFP_KERNEL);
}

void *base_helper_xa_erase(struct xarray *xa, unsigned long index)
{
	unsigned long flags;
	void *entry;

	xa_lock_irqsave(xa, flags);
	entry = __xa_erase(xa, index);
	xa_unlock_irqrestore(xa, flags);
	return entry;
}

unsigned long base_helper_xa_lock_irqsave(struct xarray *xa)
{
	unsigned long flags;

	xa_lock_irqsave(xa, flags);
	return flags;
}

/* The first entry from *@index on, whose index is put there. Under the lock. */
void *base_helper_xa_find(struct xarray *xa, unsigned long *index)
{
	return xa_find(xa, index, U32_MAX, XA_PRESENT);
}

void base_helper_xa_unlock_irqrestore(struct xarray *xa, unsigned long flags)
{
	xa_unlock_irqrestore(xa, flags);
}

struct workqueue_struct *base_helper_alloc_workqueue(const char *name, bool freezable)
{
	/* Reclaim must not wait for what stands still while the machine sleeps. */
	return alloc_workqueue("%s", (freezable ? WQ_FREEZABLE : WQ_MEM_RECLAIM) | WQ_UNBOUND, 0, name);
}

void base_helper_init_work(struct delayed_work *work, work_func_t func, const char *name,
		       struct lock_class_key *key)
{
	INIT_DELAYED_WORK(work, func);
	/* All works are initialized here, but each kind is a lock class of its own. */
	lockdep_init_map(&work->work.lockdep_map, name, key, 0);
}

/* Unbound: the work of this driver waits (commands, resets), so it belongs on no CPU's own queue. */
bool base_helper_queue_work(struct workqueue_struct *queue, struct delayed_work *work,
			unsigned int ms)
{
	return queue_delayed_work(queue ?: system_dfl_wq, work, msecs_to_jiffies(ms));
}

void base_helper_put_off_work(struct workqueue_struct *queue, struct delayed_work *work,
			      unsigned int ms)
{
	mod_delayed_work(queue ?: system_dfl_wq, work, msecs_to_jiffies(ms));
}

void base_helper_reinit_completion(struct completion *c)
{
	reinit_completion(c);
}

bool base_helper_wait_ms(struct completion *c, unsigned int ms)
{
	return wait_for_completion_timeout(c, msecs_to_jiffies(ms)) != 0;
}

void base_helper_dma_rmb(void)
{
	dma_rmb();
}

/*
 * mb(), not smp_mb(): the other side is a device, which is there on a machine with one CPU too. An
 * emulator that runs one CPU only executes the locked instruction of smp_mb() as a plain one.
 */
void base_helper_mb(void)
{
	mb();
}

int base_helper_current_process(void)
{
	return task_tgid_nr(current);
}

void base_helper_msleep(unsigned int ms)
{
	msleep(ms);
}

/* Memory. */

void base_helper_not_leak(const void *ptr)
{
	kmemleak_not_leak(ptr);
}

/* PCI and DMA. */

/*
 * The registers of BAR number `bar`, which has memory, as they have to be. Returns how many there are: 0 if the BAR is no
 * memory or has no address.
 */
static int bar_registers(struct pci_dev *pdev, int bar, u32 registers[2])
{
	struct resource *resource = &pdev->resource[bar];
	struct pci_bus_region region;

	if (!(resource->flags & IORESOURCE_MEM) || !resource->parent)
		return 0;
	pcibios_resource_to_bus(pdev->bus, &region, resource);
	registers[0] = lower_32_bits(region.start);
	registers[1] = upper_32_bits(region.start);
	return resource->flags & IORESOURCE_MEM_64 ? 2 : 1;
}

bool base_helper_pci_bars_lost(struct pci_dev *pdev)
{
	u32 want[2], is;
	int bar, i, n;

	/* Of a device that cannot be read nothing is known. */
	if (!pci_device_is_present(pdev))
		return false;
	for (bar = 0; bar < PCI_STD_NUM_BARS; bar++) {
		n = bar_registers(pdev, bar, want);
		for (i = 0; i < n; i++) {
			if (pci_read_config_dword(pdev, PCI_BASE_ADDRESS_0 + 4 * (bar + i), &is))
				return false;
			/* The low bits of the first register say what the BAR is. */
			if (is - want[i] > (i ? 0 : ~(u32)PCI_BASE_ADDRESS_MEM_MASK))
				return true;
		}
	}
	return false;
}

void base_helper_pci_give_bars(struct pci_dev *pdev)
{
	u32 want[2];
	u16 command;
	int bar, i, n;

	pci_read_config_word(pdev, PCI_COMMAND, &command);
	/* A BAR of 64 bits is written in two halves, so nothing may be decoded meanwhile. */
	pci_write_config_word(pdev, PCI_COMMAND, command & ~PCI_COMMAND_MEMORY);
	for (bar = 0; bar < PCI_STD_NUM_BARS; bar++) {
		n = bar_registers(pdev, bar, want);
		for (i = 0; i < n; i++)
			pci_write_config_dword(pdev, PCI_BASE_ADDRESS_0 + 4 * (bar + i), want[i]);
	}
	pci_write_config_word(pdev, PCI_COMMAND, command | PCI_COMMAND_MEMORY);
}

/*
 * 64 bits of address. A segment may be as long as a message: without a word the limit is 64 KiB, and
 * who maps by the device's limit (nvme-rdma) goes beyond it.
 */
int base_helper_dma_set_limits(struct device *dev)
{
	dma_set_max_seg_size(dev, SZ_2G);
	return dma_set_mask_and_coherent(dev, DMA_BIT_MASK(64));
}

/*
 * @charged: the current process pays. If its cgroup, or the machine, has no room it is told so
 * instead of being killed, or having others killed.
 */
void *base_helper_dma_alloc(struct device *dev, size_t size, dma_addr_t *dma, bool charged)
{
	gfp_t gfp = GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN;

	if (charged)
		gfp |= __GFP_ACCOUNT | __GFP_RETRY_MAYFAIL;
	return dma_alloc_attrs(dev, size, dma, gfp, 0);
}

/* Page frame of coherent memory in the linear map, 0 if it is not there (remapped by an IOMMU). */
unsigned long base_helper_coherent_pfn(const void *cpu_addr)
{
	if (is_vmalloc_addr(cpu_addr) || !virt_addr_valid(cpu_addr))
		return 0;
	return page_to_pfn(virt_to_page(cpu_addr));
}

/* What users share. */

/* The real UID of the current process, in the initial user namespace. */
u32 base_helper_current_uid(void)
{
	return __kuid_val(current_uid());
}

/* Whether the current process may have more than its user's share. */
bool base_helper_may_exceed(void)
{
	return capable(CAP_SYS_RESOURCE);
}

void base_helper_say_refused(const char *what)
{
	pr_info_ratelimited(KBUILD_MODNAME ": %s[%d] of user %u has reached the limit of %s: the request is refused\n",
			    current->comm, task_tgid_nr(current), base_helper_current_uid(), what);
}

struct mm_struct *base_helper_current_mm(void)
{
	return current->mm;
}

void base_helper_mm_hold(struct mm_struct *mm)
{
	mmgrab(mm);
}

void base_helper_mm_release(struct mm_struct *mm)
{
	mmdrop(mm);
}

/* As ib_umem_get() does it. @mm is that of the current process. */
bool base_helper_mm_pin(struct mm_struct *mm, size_t pages)
{
	size_t limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (!pages)
		return true;
	if (atomic64_add_return(pages, &mm->pinned_vm) <= limit || capable(CAP_IPC_LOCK))
		return true;
	atomic64_sub(pages, &mm->pinned_vm);
	return false;
}

void base_helper_mm_unpin(struct mm_struct *mm, size_t pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}

size_t base_helper_total_ram(void)
{
	return (size_t)totalram_pages() << PAGE_SHIFT;
}

/* Interrupts. */

int base_helper_irq_spread(unsigned int irq, unsigned int index)
{
	return irq_set_affinity_and_hint(irq, cpumask_of(cpumask_local_spread(index, NUMA_NO_NODE)));
}

void base_helper_irq_unspread(unsigned int irq)
{
	irq_update_affinity_hint(irq, NULL);
}

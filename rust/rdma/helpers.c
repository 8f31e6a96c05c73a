// SPDX-License-Identifier: GPL-2.0
/*
 * C functions for what the kernel's headers offer only as a macro or an inline function. Each
 * does one thing; what it is for, and when it may be called, is said in rust/rdma/.
 */
#include <linux/capability.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/interrupt.h>
#include <linux/kmemleak.h>
#include <linux/mm.h>
#include <linux/ratelimit.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sizes.h>
#include <linux/suspend.h>
#include <rdma/ib_cache.h>
#include <helpers.h>

/* Devices and objects. */

struct ib_device *rdma_helper_ib_alloc_device(size_t size, struct net *net)
{
	return _ib_alloc_device(size, net);
}

struct device *rdma_helper_ib_device_dev(struct ib_device *device)
{
	return &device->dev;
}

void rdma_helper_ib_device_set_parent(struct ib_device *device, struct device *parent)
{
	device->dev.parent = parent;
}

void rdma_helper_ib_device_get(struct ib_device *device)
{
	get_device(&device->dev);
}

void rdma_helper_ib_device_release(struct ib_device *device)
{
	put_device(&device->dev);
}

/* Tells consumers whether the port of @ndev is active, if @device is registered still. */
void rdma_helper_report_port_state(struct ib_device *device, struct net_device *ndev)
{
	if (!ib_device_try_get(device))
		return;
	ib_dispatch_port_state_event(device, ndev);
	ib_device_put(device);
}

struct ib_ucontext *rdma_helper_udata_context(struct ib_udata *udata)
{
	return container_of(udata, struct uverbs_attr_bundle, driver_udata)->context;
}

struct ib_udata *rdma_helper_attrs_udata(struct uverbs_attr_bundle *attrs)
{
	return &attrs->driver_udata;
}

/*
 * Gives up the task of a context that could not be made. Of the core's two callers of
 * alloc_ucontext one puts the restrack entry then, and finds no task; the other, the method
 * UVERBS_METHOD_GET_CONTEXT, frees the context alone (up to 7.2 at least), and the task that asked
 * would never be freed. Nobody else knows the entry yet.
 */
void rdma_helper_ucontext_put_task(struct ib_ucontext *context)
{
	struct task_struct *task = context->res.task;

	context->res.task = NULL;
	if (task)
		put_task_struct(task);
}

int rdma_helper_udata_in_empty(struct ib_udata *udata)
{
	return ib_is_udata_in_empty(udata);
}

int rdma_helper_respond_empty(struct ib_udata *udata)
{
	return ib_respond_empty_udata(udata);
}

void rdma_helper_ah_dmac(const struct rdma_ah_attr *attr, u8 *dmac)
{
	if (attr->type == RDMA_AH_ATTR_TYPE_ROCE)
		ether_addr_copy(dmac, attr->roce.dmac);
	else
		eth_zero_addr(dmac);
}

void rdma_helper_ah_set(struct rdma_ah_attr *attr, const union ib_gid *dgid, u32 flow_label,
		    u8 sgid_index, u8 hop_limit, u8 traffic_class, u8 sl, u32 port_num,
		    const u8 *dmac)
{
	attr->type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_sl(attr, sl);
	rdma_ah_set_port_num(attr, port_num);
	rdma_ah_set_ah_flags(attr, IB_AH_GRH);
	attr->grh.dgid = *dgid;
	attr->grh.flow_label = flow_label;
	attr->grh.sgid_index = sgid_index;
	attr->grh.hop_limit = hop_limit;
	attr->grh.traffic_class = traffic_class;
	attr->grh.sgid_attr = NULL;
	ether_addr_copy(attr->roce.dmac, dmac);
}

/* User mappings. */

u64 rdma_helper_mmap_offset(const struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_get_offset(entry);
}

/* Page frame of coherent memory in the linear map, 0 if it is not there (remapped by an IOMMU). */
unsigned long rdma_helper_coherent_pfn(const void *cpu_addr)
{
	if (is_vmalloc_addr(cpu_addr) || !virt_addr_valid(cpu_addr))
		return 0;
	return page_to_pfn(virt_to_page(cpu_addr));
}

unsigned long rdma_helper_vma_len(struct vm_area_struct *vma)
{
	return vma->vm_end - vma->vm_start;
}

/*
 * Lets a mapping be shared only, and read only for @read_only, for ever. For @device memory also
 * sets the protection bits.
 */
int rdma_helper_vma_prepare(struct vm_area_struct *vma, bool read_only, bool device)
{
	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & VM_EXEC))
		return -EINVAL;
	if (read_only) {
		if (vma->vm_flags & VM_WRITE)
			return -EPERM;
		vm_flags_clear(vma, VM_MAYWRITE);
	}
	vm_flags_clear(vma, VM_MAYEXEC);
	if (device)
		vma->vm_page_prot = pgprot_device(vma->vm_page_prot);
	return 0;
}

int rdma_helper_vma_map(struct vm_area_struct *vma, unsigned long offset, unsigned long pfn,
		    unsigned long len)
{
	return io_remap_pfn_range(vma, vma->vm_start + offset, pfn, len, vma->vm_page_prot);
}

/*
 * Maps the first range of a mapping, and has the core record the mapping, by which it zaps it on
 * disassociation and puts the entry when it is closed. The record is private to the core, and
 * rdma_user_mmap_io(), which makes it, insists that its range is the whole mapping. So it is shown a
 * mapping that ends with the range: nobody else sees this one before mmap returns.
 */
int rdma_helper_vma_map_first(struct ib_ucontext *context, struct vm_area_struct *vma,
			  unsigned long pfn, unsigned long len,
			  struct rdma_user_mmap_entry *entry)
{
	unsigned long end = vma->vm_end;
	int ret;

	vma->vm_end = vma->vm_start + len;
	ret = rdma_user_mmap_io(context, vma, pfn, len, vma->vm_page_prot, entry);
	vma->vm_end = end;
	return ret;
}

/* Memory of processes. */

struct ib_umem *rdma_helper_umem_get_va(struct ib_device *device, u64 addr, u64 size, int access)
{
	return ib_umem_get_va(device, addr, size, access);
}

size_t rdma_helper_umem_num_blocks(struct ib_umem *umem, unsigned long pgsz)
{
	return ib_umem_num_dma_blocks(umem, pgsz);
}

void rdma_helper_umem_iter_start(struct ib_block_iter *biter, struct ib_umem *umem,
			     unsigned long pgsz)
{
	__rdma_umem_block_iter_start(biter, umem, pgsz);
}

bool rdma_helper_umem_iter_next(struct ib_block_iter *biter)
{
	return __rdma_umem_block_iter_next(biter);
}

dma_addr_t rdma_helper_umem_iter_addr(struct ib_block_iter *biter)
{
	return rdma_block_iter_dma_address(biter);
}

/* Hibernation. */

static int refuse_hibernation(struct notifier_block *nb, unsigned long event, void *unused)
{
	if (event != PM_HIBERNATION_PREPARE)
		return NOTIFY_DONE;
	pr_warn(KBUILD_MODNAME ": hibernation is refused, because the device would lose its state: unload this module first\n");
	return notifier_from_errno(-EBUSY);
}

static struct notifier_block hibernation = { .notifier_call = refuse_hibernation };

int rdma_helper_refuse_hibernation(void)
{
	return register_pm_notifier(&hibernation);
}

void rdma_helper_allow_hibernation(void)
{
	unregister_pm_notifier(&hibernation);
}

/* Restrack. */

struct nlattr *rdma_helper_nl_driver_start(struct sk_buff *msg)
{
	return nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
}

void rdma_helper_nl_end(struct sk_buff *msg, struct nlattr *attr)
{
	nla_nest_end(msg, attr);
}

void rdma_helper_nl_cancel(struct sk_buff *msg, struct nlattr *attr)
{
	nla_nest_cancel(msg, attr);
}

int rdma_helper_nl_put_raw(struct sk_buff *msg, int len, const void *data)
{
	return nla_put(msg, RDMA_NLDEV_ATTR_RES_RAW, len, data);
}

/* Locks, tables, waiting. */

unsigned long rdma_helper_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

bool rdma_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	unsigned long f;
	bool ok = spin_trylock_irqsave(lock, f);

	*flags = f;
	return ok;
}

void rdma_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

void rdma_helper_xa_init(struct xarray *xa)
{
	xa_init_flags(xa, XA_FLAGS_LOCK_IRQ);
}

int rdma_helper_xa_insert(struct xarray *xa, unsigned long index, void *entry)
{
	return xa_insert_irq(xa, index, entry, GFP_KERNEL);
}

void *rdma_helper_xa_erase(struct xarray *xa, unsigned long index)
{
	unsigned long flags;
	void *entry;

	xa_lock_irqsave(xa, flags);
	entry = __xa_erase(xa, index);
	xa_unlock_irqrestore(xa, flags);
	return entry;
}

unsigned long rdma_helper_xa_lock_irqsave(struct xarray *xa)
{
	unsigned long flags;

	xa_lock_irqsave(xa, flags);
	return flags;
}

/* The first entry from *@index on, whose index is put there. Under the lock. */
void *rdma_helper_xa_find(struct xarray *xa, unsigned long *index)
{
	return xa_find(xa, index, U32_MAX, XA_PRESENT);
}

void rdma_helper_xa_unlock_irqrestore(struct xarray *xa, unsigned long flags)
{
	xa_unlock_irqrestore(xa, flags);
}

struct workqueue_struct *rdma_helper_alloc_workqueue(const char *name, bool freezable)
{
	/* Reclaim must not wait for what stands still while the machine sleeps. */
	return alloc_workqueue("%s", (freezable ? WQ_FREEZABLE : WQ_MEM_RECLAIM) | WQ_UNBOUND, 0, name);
}

void rdma_helper_init_work(struct delayed_work *work, work_func_t func, const char *name,
		       struct lock_class_key *key)
{
	INIT_DELAYED_WORK(work, func);
	/* All works are initialized here, but each kind is a lock class of its own. */
	lockdep_init_map(&work->work.lockdep_map, name, key, 0);
}

/* Unbound: the work of this driver waits (commands, resets), so it belongs on no CPU's own queue. */
bool rdma_helper_queue_work(struct workqueue_struct *queue, struct delayed_work *work,
			unsigned int ms)
{
	return queue_delayed_work(queue ?: system_dfl_wq, work, msecs_to_jiffies(ms));
}

void rdma_helper_put_off_work(struct workqueue_struct *queue, struct delayed_work *work,
			      unsigned int ms)
{
	mod_delayed_work(queue ?: system_dfl_wq, work, msecs_to_jiffies(ms));
}

void rdma_helper_reinit_completion(struct completion *c)
{
	reinit_completion(c);
}

bool rdma_helper_wait_ms(struct completion *c, unsigned int ms)
{
	return wait_for_completion_timeout(c, msecs_to_jiffies(ms)) != 0;
}

void rdma_helper_dma_rmb(void)
{
	dma_rmb();
}

/*
 * mb(), not smp_mb(): the other side is a device, which is there on a machine with one CPU too. An
 * emulator that runs one CPU only executes the locked instruction of smp_mb() as a plain one.
 */
void rdma_helper_mb(void)
{
	mb();
}

int rdma_helper_current_process(void)
{
	return task_tgid_nr(current);
}

void rdma_helper_msleep(unsigned int ms)
{
	msleep(ms);
}

/* Memory. */

void rdma_helper_not_leak(const void *ptr)
{
	kmemleak_not_leak(ptr);
}

/* PCI and DMA. */

/*
 * 64 bits of address. A segment may be as long as a message: without a word the limit is 64 KiB, and
 * who maps by the device's limit (nvme-rdma) goes beyond it.
 */
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

bool rdma_helper_pci_bars_lost(struct pci_dev *pdev)
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

void rdma_helper_pci_give_bars(struct pci_dev *pdev)
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

int rdma_helper_dma_set_limits(struct device *dev)
{
	dma_set_max_seg_size(dev, SZ_2G);
	return dma_set_mask_and_coherent(dev, DMA_BIT_MASK(64));
}

/*
 * @charged: the current process pays. If its cgroup, or the machine, has no room it is told so
 * instead of being killed, or having others killed.
 */
void *rdma_helper_dma_alloc(struct device *dev, size_t size, dma_addr_t *dma, bool charged)
{
	gfp_t gfp = GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN;

	if (charged)
		gfp |= __GFP_ACCOUNT | __GFP_RETRY_MAYFAIL;
	return dma_alloc_attrs(dev, size, dma, gfp, 0);
}

/* What users share. */

/* The real UID of the current process, in the initial user namespace. */
u32 rdma_helper_current_uid(void)
{
	return __kuid_val(current_uid());
}

/* Whether the current process may have more than its user's share. */
bool rdma_helper_may_exceed(void)
{
	return capable(CAP_SYS_RESOURCE);
}

void rdma_helper_say_refused(const char *what)
{
	pr_info_ratelimited(KBUILD_MODNAME ": %s[%d] of user %u has reached the limit of %s: the request is refused\n",
			    current->comm, task_tgid_nr(current), rdma_helper_current_uid(), what);
}

struct mm_struct *rdma_helper_current_mm(void)
{
	return current->mm;
}

void rdma_helper_mm_hold(struct mm_struct *mm)
{
	mmgrab(mm);
}

void rdma_helper_mm_release(struct mm_struct *mm)
{
	mmdrop(mm);
}

/* As ib_umem_get() does it. @mm is that of the current process. */
bool rdma_helper_mm_pin(struct mm_struct *mm, size_t pages)
{
	size_t limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (!pages)
		return true;
	if (atomic64_add_return(pages, &mm->pinned_vm) <= limit || capable(CAP_IPC_LOCK))
		return true;
	atomic64_sub(pages, &mm->pinned_vm);
	return false;
}

void rdma_helper_mm_unpin(struct mm_struct *mm, size_t pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}

size_t rdma_helper_total_ram(void)
{
	return (size_t)totalram_pages() << PAGE_SHIFT;
}

/* Interrupts. */

int rdma_helper_irq_spread(unsigned int irq, unsigned int index)
{
	return irq_set_affinity_and_hint(irq, cpumask_of(cpumask_local_spread(index, NUMA_NO_NODE)));
}

void rdma_helper_irq_unspread(unsigned int irq)
{
	irq_update_affinity_hint(irq, NULL);
}


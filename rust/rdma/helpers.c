// SPDX-License-Identifier: GPL-2.0
/*
 * C functions for what the kernel's headers offer only as a macro or an inline function. Each
 * does one thing; what it is for, and when it may be called, is said in rust/rdma/.
 */
#include <linux/etherdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/task.h>
#include <net/net_namespace.h>
#include <rdma/ib_cache.h>
#include "helpers.h"

/* Rust's module! has no field for it. scripts/check-style compares it with Cargo.toml. */
MODULE_VERSION("0.1.0");

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

/* Tells consumers of an event of a port, if @device is registered still. */
void rdma_helper_report_port_event(struct ib_device *device, enum ib_event_type type, u32 port_num)
{
	struct ib_event event = {
		.device = device,
		.element.port_num = port_num,
		.event = type,
	};

	/* The core waits for this reference before it flushes the works of events and frees @device. */
	if (!ib_device_try_get(device))
		return;
	ib_dispatch_event(&event);
	ib_device_put(device);
}

/*
 * Sets the description of the node that the core shows. As with other drivers, readers take no
 * lock; the mutex is for concurrent writers.
 */
void rdma_helper_set_node_desc(struct ib_device *device, const u8 *description)
{
	static DEFINE_MUTEX(lock);

	mutex_lock(&lock);
	memcpy(device->node_desc, description, sizeof(device->node_desc));
	mutex_unlock(&lock);
}

/*
 * The cookie of the network namespace that @device is in, 0 of one that is being taken down. The
 * core changes the namespace under a lock of its own, and does not hold it: only namespaces of the
 * list are looked at.
 */
u64 rdma_helper_ib_device_netns(struct ib_device *device)
{
	struct net *net, *own = read_pnet(&device->coredev.rdma_net);
	u64 cookie = 0;

	down_read(&net_rwsem);
	for_each_net(net)
		if (net_eq(net, own))
			cookie = net->net_cookie;
	up_read(&net_rwsem);
	return cookie;
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

/* Stores the local route of @attr and returns true, if @attr is of InfiniBand. */
bool rdma_helper_ah_lid(const struct rdma_ah_attr *attr, u16 *dlid, u8 *src_path_bits)
{
	if (attr->type != RDMA_AH_ATTR_TYPE_IB)
		return false;
	*dlid = attr->ib.dlid;
	*src_path_bits = attr->ib.src_path_bits;
	return true;
}

/* Makes @attr, which rdma_helper_ah_set() has filled, an address vector of InfiniBand. */
void rdma_helper_ah_set_lid(struct rdma_ah_attr *attr, u16 dlid, u8 src_path_bits, bool has_grh)
{
	attr->type = RDMA_AH_ATTR_TYPE_IB;
	memset(&attr->roce, 0, sizeof(attr->roce));
	attr->ib.dlid = dlid;
	attr->ib.src_path_bits = src_path_bits;
	if (!has_grh)
		rdma_ah_set_ah_flags(attr, 0);
}

/* User mappings. */

u64 rdma_helper_mmap_offset(const struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_get_offset(entry);
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

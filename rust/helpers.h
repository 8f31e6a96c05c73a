/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions for what the kernel's headers offer only as a macro or an inline function. Seen by
 * the C compiler and by bindgen. Used by rust/rdma/ only.
 */
#ifndef VERBENA_HELPERS_H
#define VERBENA_HELPERS_H

#include <linux/netdevice.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/rdma_netlink.h>
#include <rdma/uverbs_ioctl.h>

/* Devices and objects. */
struct ib_device *verbena_ib_alloc_device(size_t size);
struct device *verbena_ib_device_dev(struct ib_device *device);
void verbena_ib_device_set_parent(struct ib_device *device, struct device *parent);
bool verbena_ib_device_try_get(struct ib_device *device);
struct ib_ucontext *verbena_udata_context(struct ib_udata *udata);
struct ib_udata *verbena_attrs_udata(struct uverbs_attr_bundle *attrs);
int verbena_udata_in_empty(struct ib_udata *udata);
int verbena_respond_empty(struct ib_udata *udata);
void verbena_ah_dmac(const struct rdma_ah_attr *attr, u8 *dmac);
void verbena_ah_set(struct rdma_ah_attr *attr, const union ib_gid *dgid, u32 flow_label,
		    u8 sgid_index, u8 hop_limit, u8 traffic_class, u8 sl, u32 port_num,
		    const u8 *dmac);
int verbena_gid_ndev(const struct ib_gid_attr *attr, u8 *mac, u32 *ifindex);

/* User mappings. */
u64 verbena_mmap_offset(const struct rdma_user_mmap_entry *entry);
unsigned long verbena_coherent_pfn(const void *cpu_addr);
unsigned long verbena_vma_len(struct vm_area_struct *vma);
int verbena_vma_prepare(struct vm_area_struct *vma, bool read_only, bool device);
int verbena_vma_map(struct vm_area_struct *vma, unsigned long offset, unsigned long pfn,
		    unsigned long len);
int verbena_vma_map_first(struct ib_ucontext *context, struct vm_area_struct *vma,
			  unsigned long pfn, unsigned long len,
			  struct rdma_user_mmap_entry *entry);

/* Memory of processes. */
struct ib_umem *verbena_umem_get_va(struct ib_device *device, u64 addr, u64 size, int access);
size_t verbena_umem_num_blocks(struct ib_umem *umem, unsigned long pgsz);
void verbena_umem_iter_start(struct ib_block_iter *biter, struct ib_umem *umem,
			     unsigned long pgsz);
bool verbena_umem_iter_next(struct ib_block_iter *biter);
dma_addr_t verbena_umem_iter_addr(struct ib_block_iter *biter);

/* Net devices. */
struct net_device *verbena_netdev_by_mac(const u8 *mac);
void verbena_netdev_put(struct net_device *ndev);
void verbena_netdev_info(struct net_device *ndev, u8 *mac, u32 *mtu, bool *running, bool *carrier);

struct net_device *verbena_notifier_netdev(void *info);

/* Restrack. */
struct nlattr *verbena_nl_driver_start(struct sk_buff *msg);
void verbena_nl_end(struct sk_buff *msg, struct nlattr *attr);
void verbena_nl_cancel(struct sk_buff *msg, struct nlattr *attr);
int verbena_nl_put_raw(struct sk_buff *msg, int len, const void *data);

/* Locks, tables, waiting. */
unsigned long verbena_spin_lock_irqsave(spinlock_t *lock);
bool verbena_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void verbena_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
void verbena_xa_init(struct xarray *xa);
int verbena_xa_insert(struct xarray *xa, unsigned long index, void *entry);
void *verbena_xa_erase(struct xarray *xa, unsigned long index);
unsigned long verbena_xa_lock_irqsave(struct xarray *xa);
void verbena_xa_unlock_irqrestore(struct xarray *xa, unsigned long flags);
struct workqueue_struct *verbena_alloc_workqueue(const char *name);
void verbena_init_work(struct delayed_work *work, work_func_t func, const char *name,
		       struct lock_class_key *key);
bool verbena_queue_work(struct workqueue_struct *queue, struct delayed_work *work,
			unsigned int ms);
void verbena_reinit_completion(struct completion *c);
bool verbena_wait_ms(struct completion *c, unsigned int ms);
void verbena_dma_rmb(void);
void verbena_dma_wmb(void);
void verbena_mb(void);
int verbena_current_process(void);
void verbena_msleep(unsigned int ms);

/* PCI and interrupts. */
int verbena_dma_set_mask64(struct device *dev);
void *verbena_dma_alloc(struct device *dev, size_t size, dma_addr_t *dma, bool charged);
size_t verbena_total_ram(void);
int verbena_irq_spread(unsigned int irq, unsigned int index);
void verbena_irq_unspread(unsigned int irq);
unsigned int verbena_num_online_cpus(void);

#endif

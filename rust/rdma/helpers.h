/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions for what the kernel's headers offer only as a macro or an inline function. Seen by
 * the C compiler and by bindgen. Names begin with rdma_helper_.
 */
#ifndef RDMA_HELPERS_H
#define RDMA_HELPERS_H

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
struct ib_device *rdma_helper_ib_alloc_device(size_t size, struct net *net);
u64 rdma_helper_ib_device_netns(struct ib_device *device);
struct net *rdma_helper_netns_get(u64 cookie);
void rdma_helper_netns_put(struct net *net);
struct device *rdma_helper_ib_device_dev(struct ib_device *device);
void rdma_helper_ib_device_set_parent(struct ib_device *device, struct device *parent);
void rdma_helper_ib_device_get(struct ib_device *device);
void rdma_helper_ib_device_release(struct ib_device *device);
void rdma_helper_report_port_state(struct ib_device *device, struct net_device *ndev);
struct ib_ucontext *rdma_helper_udata_context(struct ib_udata *udata);
struct ib_udata *rdma_helper_attrs_udata(struct uverbs_attr_bundle *attrs);
void rdma_helper_ucontext_put_task(struct ib_ucontext *context);
int rdma_helper_udata_in_empty(struct ib_udata *udata);
int rdma_helper_respond_empty(struct ib_udata *udata);
void rdma_helper_ah_dmac(const struct rdma_ah_attr *attr, u8 *dmac);
void rdma_helper_ah_set(struct rdma_ah_attr *attr, const union ib_gid *dgid, u32 flow_label,
		    u8 sgid_index, u8 hop_limit, u8 traffic_class, u8 sl, u32 port_num,
		    const u8 *dmac);

extern const struct attribute_group rdma_helper_device_group;

/* User mappings. */
u64 rdma_helper_mmap_offset(const struct rdma_user_mmap_entry *entry);
unsigned long rdma_helper_coherent_pfn(const void *cpu_addr);
unsigned long rdma_helper_vma_len(struct vm_area_struct *vma);
int rdma_helper_vma_prepare(struct vm_area_struct *vma, bool read_only, bool device);
int rdma_helper_vma_map(struct vm_area_struct *vma, unsigned long offset, unsigned long pfn,
		    unsigned long len);
int rdma_helper_vma_map_first(struct ib_ucontext *context, struct vm_area_struct *vma,
			  unsigned long pfn, unsigned long len,
			  struct rdma_user_mmap_entry *entry);

/* Memory of processes. */
struct ib_umem *rdma_helper_umem_get_va(struct ib_device *device, u64 addr, u64 size, int access);
size_t rdma_helper_umem_num_blocks(struct ib_umem *umem, unsigned long pgsz);
void rdma_helper_umem_iter_start(struct ib_block_iter *biter, struct ib_umem *umem,
			     unsigned long pgsz);
bool rdma_helper_umem_iter_next(struct ib_block_iter *biter);
dma_addr_t rdma_helper_umem_iter_addr(struct ib_block_iter *biter);

/* Net devices. */
bool rdma_helper_netdev_has_mac(const struct net_device *ndev, const u8 *mac);
bool rdma_helper_netdev_is_leaving(const struct net_device *ndev);
struct net_device *rdma_helper_netdev_by_mac(const u8 *mac);
void rdma_helper_netdev_put(struct net_device *ndev);
void rdma_helper_netdev_info(struct net_device *ndev, u8 *mac, u32 *mtu, bool *running, bool *carrier);

struct net_device *rdma_helper_notifier_netdev(void *info);

/* Hibernation. */
int rdma_helper_refuse_hibernation(void);
void rdma_helper_allow_hibernation(void);

/* Restrack. */
struct nlattr *rdma_helper_nl_driver_start(struct sk_buff *msg);
void rdma_helper_nl_end(struct sk_buff *msg, struct nlattr *attr);
void rdma_helper_nl_cancel(struct sk_buff *msg, struct nlattr *attr);
int rdma_helper_nl_put_raw(struct sk_buff *msg, int len, const void *data);

/* Locks, tables, waiting. */
unsigned long rdma_helper_spin_lock_irqsave(spinlock_t *lock);
bool rdma_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void rdma_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
void rdma_helper_xa_init(struct xarray *xa);
int rdma_helper_xa_insert(struct xarray *xa, unsigned long index, void *entry);
void *rdma_helper_xa_erase(struct xarray *xa, unsigned long index);
unsigned long rdma_helper_xa_lock_irqsave(struct xarray *xa);
void *rdma_helper_xa_find(struct xarray *xa, unsigned long *index);
void rdma_helper_xa_unlock_irqrestore(struct xarray *xa, unsigned long flags);
struct workqueue_struct *rdma_helper_alloc_workqueue(const char *name, bool freezable);
void rdma_helper_init_work(struct delayed_work *work, work_func_t func, const char *name,
		       struct lock_class_key *key);
bool rdma_helper_queue_work(struct workqueue_struct *queue, struct delayed_work *work,
			unsigned int ms);
void rdma_helper_put_off_work(struct workqueue_struct *queue, struct delayed_work *work,
			      unsigned int ms);
void rdma_helper_reinit_completion(struct completion *c);
bool rdma_helper_wait_ms(struct completion *c, unsigned int ms);
void rdma_helper_dma_rmb(void);
void rdma_helper_mb(void);
int rdma_helper_current_process(void);
void rdma_helper_msleep(unsigned int ms);

/* PCI and interrupts. */
void rdma_helper_not_leak(const void *ptr);
bool rdma_helper_pci_bars_lost(struct pci_dev *pdev);
void rdma_helper_pci_give_bars(struct pci_dev *pdev);
int rdma_helper_dma_set_limits(struct device *dev);
void *rdma_helper_dma_alloc(struct device *dev, size_t size, dma_addr_t *dma, bool charged);
u32 rdma_helper_current_uid(void);
bool rdma_helper_may_exceed(void);
void rdma_helper_say_refused(const char *what);
struct mm_struct *rdma_helper_current_mm(void);
void rdma_helper_mm_hold(struct mm_struct *mm);
void rdma_helper_mm_release(struct mm_struct *mm);
bool rdma_helper_mm_pin(struct mm_struct *mm, size_t pages);
void rdma_helper_mm_unpin(struct mm_struct *mm, size_t pages);
size_t rdma_helper_total_ram(void);
int rdma_helper_irq_spread(unsigned int irq, unsigned int index);
void rdma_helper_irq_unspread(unsigned int irq);

#endif

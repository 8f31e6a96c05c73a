/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions for what the kernel's headers offer only as a macro or an inline function. Seen by
 * the C compiler and by bindgen. Names begin with base_helper_.
 */
#ifndef BASE_HELPERS_H
#define BASE_HELPERS_H

#include <linux/completion.h>
#include <linux/device.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

/* Network namespaces. */
struct net *base_helper_netns_get(u64 cookie);
void base_helper_netns_put(struct net *net);

/* Net devices. */
bool base_helper_netdev_has_mac(const struct net_device *ndev, const u8 *mac);
bool base_helper_netdev_is_leaving(const struct net_device *ndev);
struct net_device *base_helper_netdev_by_mac(const u8 *mac);
void base_helper_netdev_put(struct net_device *ndev);
void base_helper_netdev_info(struct net_device *ndev, u8 *mac, u32 *mtu, bool *running, bool *carrier);
struct net_device *base_helper_notifier_netdev(void *info);

/* Hibernation. */
int base_helper_refuse_hibernation(void);
void base_helper_allow_hibernation(void);

/* Locks, tables, waiting. */
unsigned long base_helper_spin_lock_irqsave(spinlock_t *lock);
bool base_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void base_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
void base_helper_xa_init(struct xarray *xa);
int base_helper_xa_insert(struct xarray *xa, unsigned long index, void *entry);
void *base_helper_xa_erase(struct xarray *xa, unsigned long index);
unsigned long base_helper_xa_lock_irqsave(struct xarray *xa);
void *base_helper_xa_find(struct xarray *xa, unsigned long *index);
void base_helper_xa_unlock_irqrestore(struct xarray *xa, unsigned long flags);
struct workqueue_struct *base_helper_alloc_workqueue(const char *name, bool freezable);
void base_helper_init_work(struct delayed_work *work, work_func_t func, const char *name,
		       struct lock_class_key *key);
bool base_helper_queue_work(struct workqueue_struct *queue, struct delayed_work *work,
			unsigned int ms);
void base_helper_put_off_work(struct workqueue_struct *queue, struct delayed_work *work,
			      unsigned int ms);
void base_helper_reinit_completion(struct completion *c);
bool base_helper_wait_ms(struct completion *c, unsigned int ms);
void base_helper_dma_rmb(void);
void base_helper_mb(void);
int base_helper_current_process(void);
void base_helper_msleep(unsigned int ms);

/* PCI, DMA and interrupts. */
bool base_helper_pci_bars_lost(struct pci_dev *pdev);
void base_helper_pci_give_bars(struct pci_dev *pdev);
int base_helper_dma_set_limits(struct device *dev);
void *base_helper_dma_alloc(struct device *dev, size_t size, dma_addr_t *dma, bool charged);
unsigned long base_helper_coherent_pfn(const void *cpu_addr);
int base_helper_irq_spread(unsigned int irq, unsigned int index);
void base_helper_irq_unspread(unsigned int irq);

/* Memory, and what users share. */
void base_helper_not_leak(const void *ptr);
u32 base_helper_current_uid(void);
bool base_helper_may_exceed(void);
void base_helper_say_refused(const char *what);
struct mm_struct *base_helper_current_mm(void);
void base_helper_mm_hold(struct mm_struct *mm);
void base_helper_mm_release(struct mm_struct *mm);
bool base_helper_mm_pin(struct mm_struct *mm, size_t pages);
void base_helper_mm_unpin(struct mm_struct *mm, size_t pages);
size_t base_helper_total_ram(void);

#endif

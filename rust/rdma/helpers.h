/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions for what the kernel's headers offer only as a macro or an inline function. Seen by
 * the C compiler and by bindgen. Names begin with rdma_helper_.
 */
#ifndef RDMA_HELPERS_H
#define RDMA_HELPERS_H

#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/rdma_netlink.h>
#include <rdma/uverbs_ioctl.h>

/* Devices and objects. */
struct ib_device *rdma_helper_ib_alloc_device(size_t size, struct net *net);
u64 rdma_helper_ib_device_netns(struct ib_device *device);
struct device *rdma_helper_ib_device_dev(struct ib_device *device);
void rdma_helper_ib_device_set_parent(struct ib_device *device, struct device *parent);
void rdma_helper_ib_device_get(struct ib_device *device);
void rdma_helper_ib_device_release(struct ib_device *device);
void rdma_helper_report_port_state(struct ib_device *device, struct net_device *ndev);
void rdma_helper_report_port_event(struct ib_device *device, enum ib_event_type type, u32 port_num);
void rdma_helper_set_node_desc(struct ib_device *device, const u8 *description);
struct ib_ucontext *rdma_helper_udata_context(struct ib_udata *udata);
struct ib_udata *rdma_helper_attrs_udata(struct uverbs_attr_bundle *attrs);
void rdma_helper_ucontext_put_task(struct ib_ucontext *context);
int rdma_helper_udata_in_empty(struct ib_udata *udata);
int rdma_helper_respond_empty(struct ib_udata *udata);
void rdma_helper_ah_dmac(const struct rdma_ah_attr *attr, u8 *dmac);
void rdma_helper_ah_set(struct rdma_ah_attr *attr, const union ib_gid *dgid, u32 flow_label,
		    u8 sgid_index, u8 hop_limit, u8 traffic_class, u8 sl, u32 port_num,
		    const u8 *dmac);
bool rdma_helper_ah_lid(const struct rdma_ah_attr *attr, u16 *dlid, u8 *src_path_bits);
void rdma_helper_ah_set_lid(struct rdma_ah_attr *attr, u16 dlid, u8 src_path_bits, bool has_grh);

extern const struct attribute_group rdma_helper_device_group;

/* User mappings. */
u64 rdma_helper_mmap_offset(const struct rdma_user_mmap_entry *entry);
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

/* Restrack. */
struct nlattr *rdma_helper_nl_driver_start(struct sk_buff *msg);
void rdma_helper_nl_end(struct sk_buff *msg, struct nlattr *attr);
void rdma_helper_nl_cancel(struct sk_buff *msg, struct nlattr *attr);
int rdma_helper_nl_put_raw(struct sk_buff *msg, int len, const void *data);

#endif

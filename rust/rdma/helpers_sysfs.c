// SPDX-License-Identifier: GPL-2.0
/*
 * What of a device programs look for in /sys/class/infiniband/ and the core does not put there:
 * ibstat, node_exporter and libibverbs' own ibv_devinfo read these files. The names are those of
 * mlx5; the values are made of what the driver tells in its attributes.
 */
#include <linux/device.h>
#include <linux/module.h>
#include <linux/sysfs.h>
#include "helpers.h"

static ssize_t hw_rev_show(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%x\n", rdma_device_to_ibdev(device)->attrs.hw_ver);
}
static DEVICE_ATTR_RO(hw_rev);

/* The name of the driver. */
static ssize_t hca_type_show(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", module_name(rdma_device_to_ibdev(device)->ops.owner));
}
static DEVICE_ATTR_RO(hca_type);

/* What it is in full: driver, PCI device, revision. */
static ssize_t board_id_show(struct device *device, struct device_attribute *attr, char *buf)
{
	struct ib_device *dev = rdma_device_to_ibdev(device);

	return sysfs_emit(buf, "%s-%04x-%x\n", module_name(dev->ops.owner),
			  dev->attrs.vendor_part_id, dev->attrs.hw_ver);
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *device_attributes[] = {
	&dev_attr_hw_rev.attr,
	&dev_attr_hca_type.attr,
	&dev_attr_board_id.attr,
	NULL,
};

const struct attribute_group rdma_helper_device_group = { .attrs = device_attributes };

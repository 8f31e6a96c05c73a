/* SPDX-License-Identifier: GPL-2.0 */
#include <rdma/ib_verbs.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>
#include <rdma/iter.h>
#include <rdma/restrack.h>
#include <rdma/rdma_netlink.h>
#include <rdma/uverbs_ioctl.h>
#include "../helpers.h"

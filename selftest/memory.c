// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions.
 */
#include <linux/scatterlist.h>

#include "selftest.h"

/* Fast registration: register, use, invalidate, fail. */
int t_fast_reg(struct rig *rig)
{
	struct scatterlist sg;
	struct ib_reg_wr reg = {};
	struct ib_send_wr inv = {};
	struct ib_wc wc[2];
	struct ib_mr *mr;
	int ret, mapped = 0;

	if (!(rig->ibdev->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		strscpy(why, "skipped: no memory management extensions");
		return 0;
	}
	TRY(connect_ends(rig));
	mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 8);
	CHECK(!IS_ERR(mr), "alloc_mr: %ld", PTR_ERR(mr));
	sg_init_one(&sg, rig->b.buf, BUF_SIZE);
	ret = ib_dma_map_sg(rig->ibdev, &sg, 1, DMA_BIDIRECTIONAL);
	if (ret == 1) {
		mapped = ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE);
		ib_update_fast_reg_key(mr, 0x5a);
		reg.wr.opcode = IB_WR_REG_MR;
		reg.wr.wr_id = 1;
		reg.wr.send_flags = IB_SEND_SIGNALED;
		reg.mr = mr;
		reg.key = mr->rkey;
		reg.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE;
		ret = ib_post_send(rig->b.qp, &reg.wr, NULL);
		if (!ret)
			ret = reap(&rig->b, wc, 1);
		if (!ret && wc[0].status)
			ret = -wc[0].status;
		fill(&rig->a, 0, 4096, 42);
		if (!ret)
			ret = post(rig, &rig->a, 2, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 4096,
				   mr->iova + 16, mr->rkey);
		if (!ret)
			ret = reap(&rig->a, wc, 1);
		if (!ret && wc[0].status)
			ret = -wc[0].status;
		if (!ret && memcmp(rig->a.buf, rig->b.buf + 16, 4096))
			ret = -EIO;
		inv.opcode = IB_WR_LOCAL_INV;
		inv.wr_id = 3;
		inv.send_flags = IB_SEND_SIGNALED;
		inv.ex.invalidate_rkey = mr->rkey;
		if (!ret)
			ret = ib_post_send(rig->b.qp, &inv, NULL);
		if (!ret)
			ret = reap(&rig->b, wc, 1);
		if (!ret && wc[0].status)
			ret = -wc[0].status;
		if (!ret)
			ret = post(rig, &rig->a, 4, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 8,
				   mr->iova, mr->rkey);
		if (!ret)
			ret = reap(&rig->a, wc, 1);
		if (!ret && wc[0].status != IB_WC_REM_ACCESS_ERR)
			ret = -EIO;
		ib_dma_unmap_sg(rig->ibdev, &sg, 1, DMA_BIDIRECTIONAL);
	}
	CHECK(!ib_dereg_mr(mr), "dereg_mr");
	CHECK(!ret, "%d", ret);
	CHECK(mapped == 1, "map_mr_sg: %d", mapped);
	return 0;
}

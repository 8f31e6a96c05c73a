// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions.
 */
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "selftest.h"

/*
 * Connects the ends and creates a region for fast registration. If the device has no such regions,
 * `*mr` is NULL.
 */
static int connect_with_region(struct rig *rig, struct ib_mr **mr)
{
	*mr = NULL;
	if (!(rig->ibdev->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		strscpy(why, "skipped: the device has no memory management extensions");
		return 0;
	}
	TRY(connect_ends(rig));
	*mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 8);
	CHECK(!IS_ERR(*mr), "ib_alloc_mr: %ld", PTR_ERR(*mr));
	return 0;
}

/* Fast registration: a region is registered, used and invalidated. Then an access to it fails. */
int t_fast_reg(struct rig *rig)
{
	struct scatterlist sg;
	struct ib_reg_wr reg = {};
	struct ib_send_wr inv = {};
	struct ib_wc wc[2];
	struct ib_mr *mr;
	int ret, mapped = 0;

	TRY(connect_with_region(rig, &mr));
	if (!mr)
		return 0;
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
	CHECK(!ib_dereg_mr(mr), "ib_dereg_mr");
	CHECK(!ret, "%d", ret);
	CHECK(mapped == 1, "ib_map_mr_sg: %d", mapped);
	return 0;
}

/* Elements in end b's buffer, which are no list of whole pages. */
static const struct {
	u32 offset, len;
} elements[] = {
	{ 9001, 33 }, { 1, 1 }, { 4095, 2 }, { 100, 1777 }, { 12288, 4096 }, { 2047, 2048 },
	{ 8191, 7 },
};

#define ELEMENTS	ARRAY_SIZE(elements)

static void fill_gaps(u8 *at, u32 len, u8 seed)
{
	u32 i;

	for (i = 0; i < len; i++)
		at[i] = seed ^ i ^ (i >> 8) * 31;
}

/* Copies the bytes of a region with gaps to their places in end b's buffer. */
static void scatter(u8 *buf, const u8 *from, u32 skip)
{
	int i;

	for (i = 0; i < ELEMENTS; i++) {
		memcpy(buf + elements[i].offset + skip, from, elements[i].len - skip);
		from += elements[i].len - skip;
		skip = 0;
	}
}

static int wait_for(struct end *e, u64 id, enum ib_wc_status status)
{
	struct ib_wc wc[1];

	TRY(reap(e, wc, 1));
	EXPECT_WC(wc[0], id, status);
	return 0;
}

static int register_region(struct rig *rig, struct ib_mr *mr)
{
	struct ib_reg_wr reg = {
		.wr = { .wr_id = 1, .opcode = IB_WR_REG_MR, .send_flags = IB_SEND_SIGNALED },
		.mr = mr,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ,
	};

	ib_update_fast_reg_key(mr, mr->rkey + 1);
	reg.key = mr->rkey;
	TRY(ib_post_send(rig->b.qp, &reg.wr, NULL));
	return wait_for(&rig->b, 1, IB_WC_SUCCESS);
}

static int invalidate(struct rig *rig, u32 key)
{
	struct ib_send_wr inv = {
		.wr_id = 2, .opcode = IB_WR_LOCAL_INV, .send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = key,
	};

	TRY(ib_post_send(rig->b.qp, &inv, NULL));
	return wait_for(&rig->b, 2, IB_WC_SUCCESS);
}

/* End a writes a byte with a key. */
static int write_by(struct rig *rig, u64 at, u32 key, u8 value)
{
	rig->a.buf[0] = value;
	TRY(post(rig, &rig->a, value, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, 1, at, key));
	return wait_for(&rig->a, value, IB_WC_SUCCESS);
}

static int map_page(struct rig *rig, struct ib_mr *mr, u32 page)
{
	struct scatterlist sg;

	/* The DMA address that end_open() has mapped. */
	sg_init_table(&sg, 1);
	sg_dma_address(&sg) = rig->b.dma + page * SZ_4K;
	sg_dma_len(&sg) = SZ_4K;
	return ib_map_mr_sg(mr, &sg, 1, NULL, SZ_4K) == 1 ? 0 : -EIO;
}

static int map_ahead(struct rig *rig, struct ib_mr *mr)
{
	u8 *pages = rig->b.buf;
	u32 page, old = 0;
	u64 iova = 0;

	CHECK(IS_ALIGNED((unsigned long)pages, SZ_4K), "end b's buffer is not aligned to a page");
	for (page = 0; page < 3; page++) {
		/*
		 * The next page is mapped while the previous one is still registered. Before that,
		 * page 3 is mapped and not registered, as by rdma_rw after an error.
		 */
		TRY(map_page(rig, mr, 3));
		TRY(map_page(rig, mr, page));
		if (page) {
			TRY(write_by(rig, iova, old, 2 * page));
			CHECK(pages[(page - 1) * SZ_4K] == 2 * page,
			      "page %u is no longer registered", page - 1);
			CHECK(pages[page * SZ_4K] == 0, "page %u is registered too early", page);
			CHECK(pages[3 * SZ_4K] == 0, "page 3 is registered");
			TRY(invalidate(rig, old));
		}
		TRY(register_region(rig, mr));
		TRY(write_by(rig, mr->iova, mr->rkey, 2 * page + 1));
		CHECK(pages[page * SZ_4K] == 2 * page + 1, "page %u is not registered", page);
		old = mr->rkey;
		iova = mr->iova;
	}
	return 0;
}

/* A registered region keeps its pages when its owner maps the next ones. */
int t_map_ahead(struct rig *rig)
{
	struct ib_mr *mr;
	int ret;

	TRY(connect_with_region(rig, &mr));
	if (!mr)
		return 0;
	memset(rig->b.buf, 0, BUF_SIZE);
	ret = map_ahead(rig, mr);
	CHECK(!ib_dereg_mr(mr), "ib_dereg_mr");
	return ret;
}

/* End b sends from a region with gaps. */
static int send_gaps(struct rig *rig, struct ib_mr *mr, u32 from, u32 len)
{
	struct ib_sge sge = { .addr = mr->iova + from, .length = len, .lkey = mr->lkey };
	struct ib_send_wr wr = {
		.wr_id = 3, .opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED,
		.sg_list = &sge, .num_sge = 1,
	};

	TRY(post_recv(rig, &rig->a, 4, 0, len));
	TRY(ib_post_send(rig->b.qp, &wr, NULL));
	TRY(wait_for(&rig->b, 3, IB_WC_SUCCESS));
	return wait_for(&rig->a, 4, IB_WC_SUCCESS);
}

static int write_gaps(struct rig *rig, struct ib_mr *mr, u32 to, u32 len, enum ib_wc_status status)
{
	TRY(post(rig, &rig->a, 5, IB_WR_RDMA_WRITE, IB_SEND_SIGNALED, 0, len, mr->iova + to,
		 mr->rkey));
	return wait_for(&rig->a, 5, status);
}

/*
 * Writes and reads each byte of a region that begins `skip` bytes after the start of its first
 * element.
 */
static int move_gaps(struct rig *rig, struct ib_mr *mr, u32 skip, u8 *image, u8 *data)
{
	u32 len = mr->length;
	u32 some = len - 61;

	fill_gaps(rig->b.buf, BUF_SIZE, 0x11);
	fill_gaps(data, len, 0x77 + skip);
	memcpy(image, rig->b.buf, BUF_SIZE);
	scatter(image, data, skip);
	memcpy(rig->a.buf, data, len);
	TRY(write_gaps(rig, mr, 0, len, IB_WC_SUCCESS));
	CHECK(!memcmp(rig->b.buf, image, BUF_SIZE), "the WRITE has changed other bytes");
	memset(rig->a.buf, 0, BUF_SIZE);
	TRY(post(rig, &rig->a, 6, IB_WR_RDMA_READ, IB_SEND_SIGNALED, 0, some, mr->iova + 20,
		 mr->rkey));
	TRY(wait_for(&rig->a, 6, IB_WC_SUCCESS));
	CHECK(!memcmp(rig->a.buf, data + 20, some), "the READ has returned other bytes");
	memset(rig->a.buf, 0, BUF_SIZE);
	TRY(send_gaps(rig, mr, 31, some));
	CHECK(!memcmp(rig->a.buf, data + 31, some), "the SEND has sent other bytes");
	return 0;
}

static int use_gaps(struct rig *rig, struct ib_mr *mr, struct scatterlist *sg, u8 *image, u8 *data)
{
	u64 len = 0;
	u32 offset;
	int i;

	for (i = 0; i < ELEMENTS; i++)
		len += elements[i].len;
	for (offset = 0; offset < 15; offset += 7) {
		unsigned int from = offset;

		i = ib_map_mr_sg(mr, sg, ELEMENTS, &from, PAGE_SIZE);
		CHECK(i == ELEMENTS && !from,
		      "%d elements mapped, the last one up to byte %u", i, from);
		CHECK(mr->length == len - offset, "length %llu", mr->length);
		TRY(register_region(rig, mr));
		TRY(move_gaps(rig, mr, offset, image, data));
		TRY(invalidate(rig, mr->rkey));
	}
	CHECK(ib_map_mr_sg(mr, sg, ELEMENTS, NULL, 0) == ELEMENTS, "ib_map_mr_sg");
	TRY(register_region(rig, mr));
	memcpy(image, rig->b.buf, BUF_SIZE);
	TRY(write_gaps(rig, mr, len - 1, 2, IB_WC_REM_ACCESS_ERR));
	TRY(to_state(&rig->a, IB_QPS_RESET));
	TRY(to_state(&rig->b, IB_QPS_RESET));
	TRY(connect_ends(rig));
	CHECK(!memcmp(rig->b.buf, image, BUF_SIZE), "a WRITE beyond the end has changed memory");
	TRY(write_gaps(rig, mr, len - 1, 1, IB_WC_SUCCESS));
	TRY(invalidate(rig, mr->rkey));
	return write_gaps(rig, mr, 0, 1, IB_WC_REM_ACCESS_ERR);
}

/* If a list is too long, its beginning is mapped. */
static int too_many(struct rig *rig, struct scatterlist *sg)
{
	struct ib_mr *mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_SG_GAPS, ELEMENTS - 2);
	u64 last = elements[ELEMENTS - 1].len + elements[ELEMENTS - 2].len, len = 0;
	int i, mapped;

	CHECK(!IS_ERR(mr), "ib_alloc_mr: %ld", PTR_ERR(mr));
	mapped = ib_map_mr_sg(mr, sg, ELEMENTS, NULL, PAGE_SIZE);
	for (i = 0; i < ELEMENTS; i++)
		len += elements[i].len;
	len -= mr->length;
	CHECK(!ib_dereg_mr(mr), "ib_dereg_mr");
	CHECK(mapped == ELEMENTS - 2 && len == last,
	      "%d elements mapped, without the last %llu bytes", mapped, len);
	mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_SG_GAPS,
			 rig->ibdev->attrs.max_fast_reg_page_list_len + 1);
	if (!IS_ERR(mr))
		ib_dereg_mr(mr);
	CHECK(IS_ERR(mr), "a region with too many elements was created");
	return 0;
}

static int send_inv(struct rig *rig, u32 key)
{
	struct ib_send_wr wr = {
		.wr_id = 7, .opcode = IB_WR_SEND_WITH_INV, .send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = key,
	};

	TRY(post_recv(rig, &rig->b, 8, 0, 64));
	TRY(ib_post_send(rig->a.qp, &wr, NULL));
	return wait_for(&rig->a, 7, IB_WC_SUCCESS);
}

static int invalidated_by_peer(struct rig *rig, struct ib_mr *mr)
{
	struct ib_wc wc[1];

	TRY(register_region(rig, mr));
	TRY(write_gaps(rig, mr, 0, 8, IB_WC_SUCCESS));
	TRY(send_inv(rig, mr->rkey));
	TRY(reap(&rig->b, wc, 1));
	EXPECT_WC(wc[0], 8, IB_WC_SUCCESS);
	CHECK(wc[0].wc_flags & IB_WC_WITH_INVALIDATE && wc[0].ex.invalidate_rkey == mr->rkey,
	      "flags %x, key %x instead of %x", wc[0].wc_flags, wc[0].ex.invalidate_rkey, mr->rkey);
	/* The key is invalid already. Only the completion of the receive reports the error. */
	TRY(send_inv(rig, mr->rkey));
	TRY(wait_for(&rig->b, 8, IB_WC_MW_BIND_ERR));
	CHECK(state_of(rig->b.qp) == IB_QPS_ERR, "state %d", state_of(rig->b.qp));
	CHECK(state_of(rig->a.qp) == IB_QPS_RTS, "state %d of the sender", state_of(rig->a.qp));
	CHECK(!atomic_read(&rig->b.qp_events),
	      "%d queue pair events", atomic_read(&rig->b.qp_events));
	return 0;
}

/*
 * The receive of a SEND with invalidate names the key. If the invalidation fails, the sender gets
 * no error.
 */
int t_remote_inv(struct rig *rig)
{
	struct scatterlist sg;
	struct ib_mr *mr;
	int ret;

	if (!(rig->ibdev->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		strscpy(why, "skipped: the device has no memory management extensions", WHY_SIZE);
		return 0;
	}
	TRY(connect_ends(rig));
	mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 8);
	CHECK(!IS_ERR(mr), "ib_alloc_mr: %ld", PTR_ERR(mr));
	sg_init_one(&sg, rig->b.buf, BUF_SIZE);
	ret = ib_dma_map_sg(rig->ibdev, &sg, 1, DMA_BIDIRECTIONAL) == 1 ? 0 : -EIO;
	if (!ret) {
		ret = ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE) == 1 ?
			invalidated_by_peer(rig, mr) : -EIO;
		ib_dma_unmap_sg(rig->ibdev, &sg, 1, DMA_BIDIRECTIONAL);
	}
	CHECK(!ib_dereg_mr(mr), "ib_dereg_mr");
	return ret;
}

/* The index of a freed key is not used again soon. */
int t_stale_keys(struct rig *rig)
{
	struct ib_mr *mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 8);
	u32 stale;
	int i;

	CHECK(!IS_ERR(mr), "ib_alloc_mr: %ld", PTR_ERR(mr));
	stale = mr->rkey;
	CHECK(!ib_dereg_mr(mr), "ib_dereg_mr");
	for (i = 0; i < 100; i++) {
		u32 key;

		mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_MEM_REG, 8);
		CHECK(!IS_ERR(mr), "ib_alloc_mr: %ld", PTR_ERR(mr));
		key = mr->rkey;
		CHECK(!ib_dereg_mr(mr), "ib_dereg_mr");
		CHECK(key >> 8 != stale >> 8,
		      "index %x is used again after %d others", key >> 8, i);
	}
	return 0;
}

/*
 * Regions with gaps: elements of any address and length. Each byte is written, read and compared.
 */
int t_gaps(struct rig *rig)
{
	struct scatterlist sg[ELEMENTS];
	struct ib_mr *mr;
	u8 *bytes;
	int i, ret;

	if (!(rig->ibdev->attrs.kernel_cap_flags & IBK_SG_GAPS_REG)) {
		strscpy(why, "skipped: the device has no regions with gaps");
		return 0;
	}
	TRY(connect_ends(rig));
	bytes = kmalloc(2 * BUF_SIZE, GFP_KERNEL);
	CHECK(bytes, "no memory");
	mr = ib_alloc_mr(rig->pd, IB_MR_TYPE_SG_GAPS, ELEMENTS);
	if (IS_ERR(mr))
		kfree(bytes);
	CHECK(!IS_ERR(mr), "ib_alloc_mr: %ld", PTR_ERR(mr));
	sg_init_table(sg, ELEMENTS);
	for (i = 0; i < ELEMENTS; i++)
		sg_set_buf(&sg[i], rig->b.buf + elements[i].offset, elements[i].len);
	ret = ib_dma_map_sg(rig->ibdev, sg, ELEMENTS, DMA_BIDIRECTIONAL);
	if (ret == ELEMENTS) {
		ret = too_many(rig, sg) ?: use_gaps(rig, mr, sg, bytes, bytes + BUF_SIZE);
		ib_dma_unmap_sg(rig->ibdev, sg, ELEMENTS, DMA_BIDIRECTIONAL);
	}
	CHECK(!ib_dereg_mr(mr), "ib_dereg_mr");
	kfree(bytes);
	CHECK(!ret, "%d", ret);
	return 0;
}

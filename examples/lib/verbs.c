// SPDX-License-Identifier: GPL-2.0 OR MIT
#include "verbs.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(2);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool device_try(struct device *device)
{
	const char *name = getenv("DEVICE"), *gid = getenv("GID");
	struct ibv_device **list = ibv_get_device_list(NULL);
	int i;

	if (!list)
		die("ibv_get_device_list: %s", strerror(errno));
	for (i = 0; list[i] && name && strcmp(name, ibv_get_device_name(list[i])); i++)
		;
	device->context = list[i] ? ibv_open_device(list[i]) : NULL;
	ibv_free_device_list(list);
	device->pd = device->context ? ibv_alloc_pd(device->context) : NULL;
	if (!device->pd) {
		if (device->context)
			ibv_close_device(device->context);
		return false;
	}
	for (device->gid_index = gid ? atoi(gid) : 0; device->gid_index < 256; device->gid_index++) {
		static const union ibv_gid none;

		if (!ibv_query_gid(device->context, 1, device->gid_index, &device->gid) && memcmp(&device->gid, &none, sizeof(none)))
			return true;
	}
	device_close(device);
	return false;
}

void device_open(struct device *device)
{
	if (!device_try(device))
		die("no device with a GID can be opened: check $DEVICE and $GID");
}

void device_close(struct device *device)
{
	ibv_dealloc_pd(device->pd);
	ibv_close_device(device->context);
}

void end_create(struct end *end, struct device *device, enum ibv_qp_type type, int cqe, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = type,
		.cap = { .max_send_wr = PIECES, .max_recv_wr = PIECES, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
		.srq = srq,
	};

	end->device = device;
	end->srq = srq;
	end->memory = aligned_alloc(4096, BYTES);
	end->cq = ibv_create_cq(device->context, cqe, NULL, NULL, 0);
	if (!end->memory || !end->cq)
		die("the memory or the CQ cannot be created: %s", strerror(errno));
	end->mr = ibv_reg_mr(device->pd, end->memory, BYTES,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	attr.send_cq = attr.recv_cq = end->cq;
	end->qp = ibv_create_qp(device->pd, &attr);
	if (!end->mr || !end->qp)
		die("the memory region or the queue pair cannot be created: %s", strerror(errno));
}

void ends_create(struct end *from, struct end *to, struct device *device, enum ibv_qp_type type)
{
	end_create(from, device, type, PIECES, NULL);
	end_create(to, device, type, PIECES, NULL);
	prepare(from, to);
}

void end_destroy(struct end *end)
{
	if (ibv_destroy_qp(end->qp) || ibv_destroy_cq(end->cq) || ibv_dereg_mr(end->mr))
		die("an object cannot be destroyed: %s", strerror(errno));
	free(end->memory);
}

static void modify(struct end *end, struct ibv_qp_attr *attr, enum ibv_qp_state state, int mask)
{
	int error;

	attr->qp_state = state;
	error = ibv_modify_qp(end->qp, attr, IBV_QP_STATE | mask);
	if (error)
		die("the queue pair cannot go to state %d: %s", state, strerror(error));
}

void connect_ends(struct end *one, struct end *other, struct retry_limits limits)
{
	struct end *ends[] = { one, other };
	bool reliable = one->qp->qp_type == IBV_QPT_RC;
	int i;

	for (i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = {
			.port_num = 1,
			.qp_access_flags = !reliable ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		};

		modify(ends[i], &attr, IBV_QPS_RESET, 0);
		modify(ends[i], &attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	}
	for (i = 0; i < 2; i++) {
		struct end *peer = ends[1 - i];
		struct ibv_qp_attr attr = {
			.path_mtu = IBV_MTU_1024,
			.dest_qp_num = peer->qp->qp_num,
			.max_dest_rd_atomic = 4,
			.min_rnr_timer = 1,
			.ah_attr = { .is_global = 1, .port_num = 1,
				     .grh = { .dgid = peer->device->gid, .sgid_index = ends[i]->device->gid_index, .hop_limit = 64 } },
		};

		modify(ends[i], &attr, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	}
	for (i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = {
			.timeout = limits.timeout,
			.retry_cnt = limits.retry_cnt,
			.rnr_retry = limits.rnr_retry,
			.max_rd_atomic = 4,
		};

		modify(ends[i], &attr, IBV_QPS_RTS, IBV_QP_SQ_PSN |
		       (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
	}
}

static int post(struct end *from, struct end *to, int piece, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)from->memory + (size_t)piece * PIECE, PIECE, from->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = piece, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	if (to) {
		wr.wr.rdma.remote_addr = (uintptr_t)to->memory + (size_t)piece * PIECE;
		wr.wr.rdma.rkey = to->mr->rkey;
	}
	return ibv_post_send(from->qp, &wr, &bad);
}

int post_write(struct end *from, struct end *to, int piece)
{
	return post(from, to, piece, IBV_WR_RDMA_WRITE);
}

int post_send(struct end *from, int piece)
{
	return post(from, NULL, piece, IBV_WR_SEND);
}

int post_recv(struct end *to, int piece)
{
	struct ibv_sge sge = { (uintptr_t)to->memory + (size_t)piece * PIECE, PIECE, to->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = piece, .sg_list = &sge, .num_sge = 1 }, *bad;

	return to->srq ? ibv_post_srq_recv(to->srq, &wr, &bad) : ibv_post_recv(to->qp, &wr, &bad);
}

bool next(struct ibv_cq *cq, struct ibv_wc *wc, int milliseconds)
{
	int64_t end = now_ms() + milliseconds;
	int found;

	do {
		found = ibv_poll_cq(cq, 1, wc);
		if (found < 0)
			die("the CQ cannot be polled");
	} while (!found && now_ms() < end);
	return found;
}

bool wait_for_event(struct device *device, enum ibv_event_type type, int milliseconds)
{
	struct pollfd fd = { .fd = device->context->async_fd, .events = POLLIN };
	int64_t end = now_ms() + milliseconds, left;

	while ((left = end - now_ms()) >= 0 && poll(&fd, 1, (int)left) == 1) {
		struct ibv_async_event event;
		enum ibv_event_type came;

		if (ibv_get_async_event(device->context, &event))
			return false;
		came = event.event_type;
		ibv_ack_async_event(&event);
		if (came == type)
			return true;
	}
	return false;
}

int write_rest(struct end *from, struct end *to, struct work *work)
{
	int posted = 0, first = IBV_WC_SUCCESS, i;
	struct ibv_wc wc;

	for (i = 0; i < PIECES; i++) {
		if (work->done[i])
			continue;
		if (post_write(from, to, i))
			die("piece %d cannot be posted", i);
		posted++;
	}
	for (; posted; posted--) {
		if (!next(from->cq, &wc, 5000))
			return -1;
		if (wc.status == IBV_WC_SUCCESS)
			work->done[wc.wr_id] = true;
		else if (first == IBV_WC_SUCCESS)
			first = wc.status;
	}
	return first;
}

void prepare(struct end *from, struct end *to)
{
	int i;

	memset(to->memory, 0, BYTES);
	for (i = 0; i < BYTES; i++)
		from->memory[i] = (char)(1 + i / PIECE + i % 13);
}

int count_arrived(const struct end *from, const struct end *to)
{
	int there = 0, i;

	for (i = 0; i < PIECES; i++)
		there += !memcmp(from->memory + (size_t)i * PIECE, to->memory + (size_t)i * PIECE, PIECE);
	return there;
}

bool write_all(struct device *device, struct retry_limits limits, int most)
{
	struct work work = { 0 };
	struct end from, to;
	int status;

	ends_create(&from, &to, device, IBV_QPT_RC);
	do {
		connect_ends(&from, &to, limits);
		status = write_rest(&from, &to, &work);
		if (status > 0)
			puts(ibv_wc_status_str(status));
	} while (status > 0 && --most > 0);
	return status == 0 && count_arrived(&from, &to) == PIECES;
}

int scenario(int argc, char **argv, bool (*careless)(struct device *), bool (*careful)(struct device *))
{
	struct device device;
	bool well;

	if (argc != 2 || (strcmp(argv[1], "careless") && strcmp(argv[1], "careful"))) {
		fprintf(stderr, "usage: %s careless|careful\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	device_open(&device);
	well = (strcmp(argv[1], "careful") ? careless : careful)(&device);
	puts(well ? "all work is done" : "the work has failed");
	return !well;
}

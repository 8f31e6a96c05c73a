// SPDX-License-Identifier: GPL-2.0 OR MIT
// A test in C: a message goes to a server of the same process over a connection of rdma_cm, and
// comes back. usage: echo ADDRESS, the address of an RDMA device of this machine.
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT "7471"
#define SIZE 65536

static void check(int failed, const char *call)
{
	if (failed) {
		perror(call);
		exit(1);
	}
}

// Waits for a completion of the queue of receives or sends, which must be a success.
static void completed(int count, const struct ibv_wc *wc, const char *what)
{
	if (count == 1 && wc->status == IBV_WC_SUCCESS)
		return;
	fprintf(stderr, "%s: %s\n", what, count == 1 ? ibv_wc_status_str(wc->status) : "no completion");
	exit(1);
}

static struct rdma_cm_id *endpoint(const char *address, int flags)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = flags }, *found;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	check(rdma_getaddrinfo(address, PORT, &hints, &found), "rdma_getaddrinfo");
	check(rdma_create_ep(&id, found, NULL, &attr), "rdma_create_ep");
	rdma_freeaddrinfo(found);
	return id;
}

static void *serve(void *listener)
{
	static char buffer[SIZE];
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	check(rdma_get_request(listener, &id), "rdma_get_request");
	mr = rdma_reg_msgs(id, buffer, SIZE);
	check(!mr, "rdma_reg_msgs");
	check(rdma_post_recv(id, NULL, buffer, SIZE, mr), "rdma_post_recv");
	check(rdma_accept(id, NULL), "rdma_accept");
	completed(rdma_get_recv_comp(id, &wc), &wc, "the server's receive");
	check(rdma_post_send(id, NULL, buffer, SIZE, mr, 0), "rdma_post_send");
	completed(rdma_get_send_comp(id, &wc), &wc, "the server's send");
	return NULL;
}

int main(int argc, char **argv)
{
	static char sent[SIZE], received[SIZE];
	struct rdma_cm_id *listener, *id;
	struct ibv_mr *from, *to;
	struct ibv_wc wc;
	pthread_t server;

	if (argc != 2) {
		fprintf(stderr, "usage: echo ADDRESS\n");
		return 2;
	}
	for (int i = 0; i < SIZE; i++)
		sent[i] = (char)(i * 7);
	listener = endpoint(argv[1], RAI_PASSIVE);
	check(rdma_listen(listener, 1), "rdma_listen");
	check(pthread_create(&server, NULL, serve, listener), "pthread_create");

	id = endpoint(argv[1], 0);
	from = rdma_reg_msgs(id, sent, SIZE);
	to = rdma_reg_msgs(id, received, SIZE);
	check(!from || !to, "rdma_reg_msgs");
	check(rdma_post_recv(id, NULL, received, SIZE, to), "rdma_post_recv");
	check(rdma_connect(id, NULL), "rdma_connect");
	check(rdma_post_send(id, NULL, sent, SIZE, from, 0), "rdma_post_send");
	completed(rdma_get_send_comp(id, &wc), &wc, "the client's send");
	completed(rdma_get_recv_comp(id, &wc), &wc, "the client's receive");
	pthread_join(server, NULL);
	if (memcmp(sent, received, SIZE)) {
		fprintf(stderr, "the message that came back differs\n");
		return 1;
	}
	printf("ok echo: %d bytes came back\n", SIZE);
	return 0;
}

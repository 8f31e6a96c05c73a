// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The CQ of sends of an IPoIB interface fails. The interface stays up, and sends nothing any more.
 * Its driver has no handler for the error, and restarts the interface on the same CQ, in vain.
 *
 * usage: ipoib-cq-error careless|careful ADDRESS
 *        ipoib-cq-error serve
 *
 * $NETDEV is the interface (ib0). `serve` runs at ADDRESS, and sends each datagram back.
 */
#include <arpa/inet.h>
#include <err.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PORT 7009
#define PIECES 400
/* A datagram is sent again after this time, because UDP does not repeat lost ones. */
#define REPEAT_MS 10
/* The watchdog of a net device needs 20 seconds at most. */
#define PATIENCE_S 60

struct piece {
	uint32_t number;
	char bytes[1020];
};

static const char *netdev;

static int open_socket(const char *address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0)
		err(2, "socket");
	if (address && inet_pton(AF_INET, address, &to.sin_addr) != 1)
		errx(2, "%s is not an IPv4 address", address);
	if ((address ? connect : bind)(fd, (struct sockaddr *)&to, sizeof(to)))
		err(2, "%s", address ? address : "bind");
	return fd;
}

static void serve(int fd)
{
	struct sockaddr_in from;
	struct piece piece;

	for (;;) {
		socklen_t size = sizeof(from);
		ssize_t length = recvfrom(fd, &piece, sizeof(piece), 0, (struct sockaddr *)&from, &size);

		/* A lost answer is the business of the other end. */
		if (length > 0)
			(void)!sendto(fd, &piece, length, 0, (struct sockaddr *)&from, size);
	}
}

/* Sends a piece. True if it comes back in time and all bytes are right. */
static bool exchange(int fd, uint32_t number)
{
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	struct piece piece = { .number = number }, answer;

	memset(piece.bytes, (int)number, sizeof(piece.bytes));
	/* Fails as long as the interface has no address. */
	if (write(fd, &piece, sizeof(piece)) < 0)
		usleep(REPEAT_MS * 1000);
	while (poll(&readable, 1, REPEAT_MS) > 0) {
		/* An answer to an earlier piece may come late. */
		if (read(fd, &answer, sizeof(answer)) == sizeof(answer) && answer.number == number)
			return !memcmp(&piece, &answer, sizeof(piece));
	}
	return false;
}

/* Number of times that the kernel's watchdog has found the transmit queue of the interface stopped. */
static unsigned int transmit_timeouts(void)
{
	unsigned int count = 0;
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/net/%s/queues/tx-0/tx_timeout", netdev);
	file = fopen(path, "r");
	if (file && fscanf(file, "%u", &count) != 1)
		count = 0;
	if (file)
		fclose(file);
	return count;
}

/* Resets the adapter. Its driver registers a new RDMA device, for which IPoIB makes new CQs. */
static void reset_adapter(void)
{
	unsigned int before = if_nametoindex(netdev), now;
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/net/%s/device/reset", netdev);
	file = fopen(path, "w");
	if (!file || fputs("1", file) < 0 || fclose(file))
		err(2, "%s", path);
	do {
		usleep(100 * 1000);
		now = if_nametoindex(netdev);
	} while (!now || now == before);
}

/* Sends each piece until its answer arrives. */
static bool work(int fd, bool recover)
{
	unsigned int timeouts = transmit_timeouts();

	for (uint32_t number = 0; number < PIECES; number++) {
		time_t since = time(NULL);

		while (!exchange(fd, number)) {
			if (recover && transmit_timeouts() > timeouts) {
				printf("the transmit queue of %s has timed out: reset\n", netdev);
				reset_adapter();
				timeouts = transmit_timeouts();
				since = time(NULL);
			} else if (time(NULL) - since > PATIENCE_S) {
				printf("no answer to piece %u for %d seconds\n", number, PATIENCE_S);
				return false;
			}
		}
	}
	return true;
}

int main(int argc, char **argv)
{
	netdev = getenv("NETDEV") ? getenv("NETDEV") : "ib0";
	setbuf(stdout, NULL);
	if (argc == 2 && !strcmp(argv[1], "serve"))
		serve(open_socket(NULL));
	if (argc != 3 || (strcmp(argv[1], "careless") && strcmp(argv[1], "careful")))
		errx(2, "usage: %s careless|careful ADDRESS | serve", argv[0]);
	return work(open_socket(argv[2]), !strcmp(argv[1], "careful")) ? 0 : 1;
}

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Reliable datagrams of the kernel (RDS) over RDMA, between two guests, because within one guest RDS uses no device."""
import re

from perftest import Failed
from row import Figure, Row

COMMON = """
import hashlib, os, random, socket, sys, time
SIZES = [1, 100, 4096, 65536, 200000] * 20
MESSAGES = [random.Random(n).randbytes(size) for n, size in enumerate(SIZES)]
"""

# Each message goes over the transport RDMA and is compared. The server sends the count over TCP.
SERVER = COMMON + """
address, port = sys.argv[1], int(sys.argv[2])
rds = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET)
rds.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
rds.bind((address, port))
control = socket.create_server((address, port)).accept()[0]
right = sum(rds.recvfrom(1 << 20)[0] == message for message in MESSAGES)
control.sendall(f"{right} right".encode())
"""
CLIENT = COMMON + """
own, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
rds = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET)
rds.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
SOL_RDS, SO_RDS_TRANSPORT, RDS_TRANS_IB = 276, 8, 0
rds.setsockopt(SOL_RDS, SO_RDS_TRANSPORT, RDS_TRANS_IB)
rds.bind((own, 0))
control = socket.create_connection((address, port))
began = time.monotonic()
for message in MESSAGES:
    rds.sendto(message, (address, port))
print(control.recv(100).decode(), sum(SIZES) / (time.monotonic() - began), "bytes/s")
"""


def messages(place):
    """Sends a hundred messages in order, up to 200,000 bytes."""
    with open("/tmp/rds.client", "w") as f:
        f.write(CLIENT)
    load = "modprobe rds_rdma && "
    quoted = SERVER.replace("'", "'\\''")
    _, out = place.both(f"{load}python3 -c '{quoted}' $ADDRESS PORT", f"{load}python3 /tmp/rds.client $ADDRESS $SERVER PORT", 120)
    if not re.search(r"^100 right", out, re.M):
        raise Failed(out[-300:])
    return Figure.of(out, r" ([\d.]+) bytes/s", "bytes/s")


def rows():
    return [Row("rds/messages", "RDS", "kmod", messages, pair=True)]

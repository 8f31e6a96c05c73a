# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Ceph's messenger over RDMA (`async+rdma`), by its own benchmark, which needs no cluster."""
from row import Figure, Row, suite

# Size of a message in bytes, and number of messages.
MESSAGES = {4096: 400, 1 << 20: 40}


def messages(place, size, cm):
    path = suite("ceph")
    # The default for receives is 4 GiB.
    options = {"ms_type": "async+rdma", "ms_cluster_type": "async+rdma", "ms_public_type": "async+rdma", "ms_async_rdma_device_name": "$DEVICE",
               "ms_async_rdma_gid_idx": "$GID", "ms_async_rdma_local_gid": "$(cat /sys/class/infiniband/$DEVICE/ports/1/gids/$GID)",
               "ms_async_rdma_receive_buffers": 256, "ms_async_rdma_send_buffers": 256, "ms_async_rdma_receive_queue_len": 128,
               "ms_async_rdma_buffer_size": 65536, "auth_cluster_required": "none",
               "auth_service_required": "none", "auth_client_required": "none"}
    if cm:
        # With the type iWARP, the messenger connects by rdma_cm.
        options |= {"ms_async_rdma_cm": "true", "ms_async_rdma_type": "iwarp"}
    arguments = " ".join(f"--{name}={value}" for name, value in options.items())
    env = f"env CEPH_CONF=/dev/null LD_LIBRARY_PATH={path}/lib"
    # Server: number of workers, microseconds of work for a message. Client: jobs, outstanding messages, messages, microseconds, bytes.
    server = f"{env} {path}/ceph_perf_msgr_server $ADDRESS:PORT 2 0 {arguments}"
    client = f"{env} {path}/ceph_perf_msgr_client $SERVER:PORT 1 4 {MESSAGES[size]} 0 {size} {arguments} 2>&1"
    out = place.served(server, client, 180)
    seconds = Figure.of(out, rf"Total op {MESSAGES[size]} run time (\d+)us", "us").value / 1e6
    return Figure(MESSAGES[size] * size / seconds, "bytes/s")


def rows():
    return [Row(f"ceph/messenger_{'cm_' if cm else ''}{size}", "Ceph's messenger", "ceph", lambda p, s=size, c=cm: messages(p, s, c))
            for cm in (False, True) for size in MESSAGES]

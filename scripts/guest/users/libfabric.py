# SPDX-License-Identifier: GPL-2.0 OR MIT
"""libfabric: its own ping-pong, and fabtests, over verbs."""
from perftest import Failed
from row import Figure, Row

# By itself verbs takes the first device that there is.
OWN = "FI_VERBS_DEVICE_NAME=$DEVICE FI_VERBS_IFACE=$NETDEV"
# Without it rxm asks for a CQ of all peers that there might be, 1024 of them (Documentation/users.md).
FEW = {"FI_UNIVERSE_SIZE": "8"}
# rxm looks for a peer that has gone each hundredth of a second, and loses with its queue pair what arrived since it polled. The longer between
# two looks, the less that is; a server takes as long to see who connects.
SELDOM = {"FI_OFI_RXM_CM_PROGRESS_INTERVAL": "1000000"}
SIZES = (64, 1024, 65536, 1048576)


def assigned(env):
    """The variables as a shell is told of them."""
    return " ".join(f"{name}={value}" for name, value in env.items())


def pingpong(place, provider, endpoint, sizes=SIZES, env=None):
    """It prints a row for each size: bytes, number, seconds, MB/s, microseconds for each transfer."""
    last = None
    seldom, source = (SELDOM, "-s $ADDRESS") if endpoint == "rdm" else ({}, "")
    for size in sizes:
        # Of few small ones the figure would be that of the first.
        line = f"{OWN} {assigned((env or {}) | seldom)} fi_pingpong -p '{provider}' -e {endpoint} {source}"
        line = f"{line} -c -S {size} -I {500 if size < 65536 else 50}"
        server, client = place.both(f"{line} -B PORT", f"{line} -P PORT $SERVER")
        rows = [r.split() for r in client.splitlines() if r[:1].isdigit()]
        if len(rows) != 1:
            raise Failed(f"{size} bytes: {client[-300:].strip()}")
        last = last or Figure(float(rows[0][-2]), "us")
    return last


def rows():
    def row(name, *how, **more):
        return Row(f"libfabric/{name}", "fi_pingpong", "libfabric-bin", lambda p: pingpong(p, *how, **more))

    return [
        row("msg", "verbs", "msg"),
        row("rdm_rxm", "verbs;ofi_rxm", "rdm", env=FEW),
        row("rdm_rxm_srx", "verbs;ofi_rxm", "rdm", env=FEW | {"FI_OFI_RXM_USE_SRX": "1"}),
        row("dgram", "verbs", "dgram", sizes=(64, 512)),
        # For as many peers as there might be, which is what it takes by itself.
        row("rdm_rxm_default", "verbs;ofi_rxm", "rdm", sizes=(64,)),
    ]

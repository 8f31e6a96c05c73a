# SPDX-License-Identifier: GPL-2.0 OR MIT
"""libfabric's fi_pingpong over verbs, without RXM and with it."""
from perftest import Failed
from row import Figure, Row

# By default the provider verbs takes the first device.
OWN = "FI_VERBS_DEVICE_NAME=$DEVICE FI_VERBS_IFACE=$NETDEV"
# By default RXM creates a CQ for all possible peers, 1024 of them (Documentation/users.md).
FEW = {"FI_UNIVERSE_SIZE": "8"}
# RXM checks every hundredth of a second whether a peer has gone, and then loses data that arrived at its queue pair since the last poll. A longer
# interval loses less; a server then needs as long to notice a connect.
SELDOM = {"FI_OFI_RXM_CM_PROGRESS_INTERVAL": "1000000"}
SIZES = (64, 1024, 65536, 1048576)


def assigned(env):
    """Returns the variables as assignments of a shell."""
    return " ".join(f"{name}={value}" for name, value in env.items())


def pingpong(place, provider, endpoint, sizes=SIZES, env=None):
    """Runs fi_pingpong for each size. It prints a row: bytes, number, seconds, MB/s, microseconds for each transfer."""
    last = None
    seldom, source = (SELDOM, "-s $ADDRESS") if endpoint == "rdm" else ({}, "")
    for size in sizes:
        # With few small messages the first one would dominate the result.
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
        # For all possible peers, which is the default.
        row("rdm_rxm_default", "verbs;ofi_rxm", "rdm", sizes=(64,)),
    ]

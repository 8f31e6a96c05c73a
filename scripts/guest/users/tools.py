# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Programs that monitor RDMA devices: their output is compared with the device's attributes."""
import re
import urllib.request

import perftest
from perftest import Failed
from row import Row

# Expected of both devices, and of Verbena only.
IBSTAT = ("Number of ports: 1", "State: Active", "Physical state: LinkUp", "Link layer: Ethernet")
IBSTAT_VERBENA = ("CA type: verbena", "Hardware version: 1", "Rate: 100")
SERIES = {"node_infiniband_state_id": 4, "node_infiniband_physical_state_id": 5}
SERIES_VERBENA = {"node_infiniband_rate_bytes_per_second": 100e9 / 8}
BYTES = 1 << 20


def read(place, name):
    try:
        with open(f"/sys/class/infiniband/{place.device}/{name}") as f:
            return f.read().strip()
    except FileNotFoundError:
        return ""


def ibstat(place):
    lines = [line.strip() for line in place.run("ibstat $DEVICE").splitlines()]
    firmware = read(place, "fw_ver")
    guid = int(read(place, "node_guid").replace(":", ""), 16)
    wanted = [*IBSTAT, f"Firmware version: {firmware}".strip(), f"Node GUID: 0x{guid:016x}", *(() if place.rxe else IBSTAT_VERBENA)]
    if missing := [line for line in wanted if line not in lines]:
        raise Failed(f"ibstat does not print {missing}: {lines}")


def series(page, device):
    """Returns the series of a device on the page: (name, port) to (labels, value)."""
    found = {}
    for name, labels, value in re.findall(r"^(node_infiniband_\w+)\{(.*)\} (\S+)$", page, re.M):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if labels.pop("device") == device:
            found[name, labels.pop("port", "")] = labels, float(value)
    return found


def scrape(place):
    """Starts the exporter, and returns its series after it listens."""
    port = perftest.next_port()
    exporter = perftest.start("prometheus-node-exporter", "--collector.disable-defaults", "--collector.infiniband", f"--web.listen-address=127.0.0.1:{port}")
    try:
        perftest.wait_listening(port, exporter)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60 * perftest.SLOW) as page:
            return series(page.read().decode(), place.device)
    finally:
        perftest.stop(exporter)


def node_exporter(place):
    before = scrape(place)
    place.both("ib_write_bw -d $DEVICE -x $GID -p PORT -s 65536 -n 16 -F", "ib_write_bw -d $DEVICE -x $GID -p PORT -s 65536 -n 16 -F $SERVER")
    after = scrape(place)
    about = {"board_id": read(place, "board_id"), "firmware_version": read(place, "fw_ver"), "hca_type": read(place, "hca_type")}
    wanted = {("node_infiniband_info", ""): (about, 1)}
    wanted |= {(name, "1"): ({}, value) for name, value in (SERIES | ({} if place.rxe else SERIES_VERBENA)).items()}
    if wrong := [f"{key}: {after.get(key)}, not {what}" for key, what in wanted.items() if after.get(key) != what]:
        raise Failed("; ".join(wrong))
    # Both ends use the same port, which sends and receives all data.
    for name in () if place.rxe else ("node_infiniband_port_data_transmitted_bytes_total", "node_infiniband_port_data_received_bytes_total"):
        (_, old), (_, new) = before[name, "1"], after[name, "1"]
        if new - old < BYTES:
            raise Failed(f"{name} grew only from {old} to {new} although {BYTES} bytes were transferred")


def rows():
    return [Row("tools/ibstat", "ibstat", "infiniband-diags", ibstat, pair=False),
            Row("tools/node_exporter", "node_exporter", "prometheus-node-exporter", node_exporter, pair=False)]

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The same rules and seed have the same result in each run. The firings are read from the flight recorder."""
import os
import tempfile

from row import RECORDED, Row, applied, ctl, faults, said

TIMES = 20
LOSSES = 8
# Random rules on both queue pairs. These losses are noticed at once, so no timer of a busy machine causes other retransmissions.
CHANCE = [
    ("drop", {"qp_created": 1, "opcode": ["RDMA WRITE First", "RDMA WRITE Middle"], "probability": 0.1}),
    ("drop", {"qp_created": 2, "opcode": ["RDMA READ response First", "RDMA READ response Middle"], "probability": 0.1}),
]
# Numbers relative to the queue pair.
EXACT = [
    ({"delay_us": 500}, {"qp_created": 1, "opcode": "SEND", "packet": 9, "limit": 1}),
    ({"duplicate": 1}, {"qp_created": 2, "opcode": "SEND", "message": 4, "packet_of_message": 2, "limit": 1}),
]


def fired():
    """Returns each firing as an exact rule: the queue pair by its order of creation, the packet by its PSN, counted from the first."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "recording")
        faults.right("record", "dump", file)
        out = faults.right("record", "export", file)
    return [line for line in out.splitlines() if line.startswith(("match", "action"))]


def writes_and_reads():
    pair = faults.Pair(timeout=18)
    try:
        for _ in range(LOSSES):
            pair.write()
            pair.read()
    finally:
        pair.close()


def pingpong():
    status, out = faults.pingpong("-s", "4096")
    if status:
        raise faults.Failed(f"ibv_rc_pingpong: {out}")


def row(name, rules, seed, program, run):
    def test():
        ways = set()
        firings = 0
        for _ in range(TIMES):
            ctl("record", "on", str(RECORDED))
            with applied(rules, seed):
                run()
            lines = fired()
            firings = len(lines) // 2
            ways.add("\n".join(lines))
        return {"runs": TIMES, "ways": len(ways), "fired": firings > 0}

    return Row(name, said(rules), program, {"runs": TIMES, "ways": 1, "fired": True}, test)


ROWS = [
    row("again/chance", CHANCE, 7, "pyverbs: RDMA WRITE and READ", writes_and_reads),
    row("again/exact", EXACT, 7, "ibv_rc_pingpong -s 4096", pingpong),
]

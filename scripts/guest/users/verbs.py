# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Programs over verbs: qperf, fio, QEMU's migration. The suites `programs` and `pyverbs` have the others."""
import re

import perftest
from perftest import Failed
from row import Figure, Row

QPERF = ("rc_bw", "rc_lat", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_read_lat", "rc_rdma_write_bw", "rc_rdma_write_lat",
         "rc_rdma_write_poll_lat", "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add", "uc_bw", "uc_lat",
         "uc_bi_bw", "uc_rdma_write_bw", "uc_rdma_write_lat", "uc_rdma_write_poll_lat", "ud_bw", "ud_lat", "ud_bi_bw")


def qperf(place, test):
    # Without -cm 1 qperf sends no GRH, which RoCE needs.
    out = place.served("qperf -lp PORT", f"qperf $SERVER -lp PORT -t 1 -cm 1 -uu -un {test}")
    if test.startswith("ver_"):
        return None
    kind = "latency" if test.endswith("lat") else "msg_rate" if test.endswith("_mr") else "(?:bw|recv_bw)"
    # -uu: always in nanoseconds.
    figure = Figure.of(out, rf"^ +{kind} += +([\d.e+]+)" + (" ns$" if kind == "latency" else ""), "")
    if not figure.value > 0:
        raise Failed(out[-300:])
    return Figure(figure.value / 1e3, "us") if kind == "latency" else Figure(figure.value, "messages/s" if kind == "msg_rate" else "bytes/s")


def fio(place, verb):
    # fio's connections allow no RNR retry, so each SEND needs a receive that is already posted: the receiver must be deeper than the sender,
    # as fio's source requires. At a depth of 1024 fio crashes.
    block, depth = ("1m", 64) if verb == "send" else ("64k", 16)
    # With --thread, because a job that is a process has its own session and outlives fio.
    common = f"--thread --ioengine=rdma --port=PORT --bs={block} --size=64m"
    server = f"fio --name=r {common} --rw=read --iodepth={depth} --output-format=terse"
    client = f"fio --name=s {common} --hostname=$SERVER --verb={verb} --rw=write --iodepth=1 --iodepth_batch_complete=1"
    _, out = place.both(server, client)
    found = re.findall(r"bw=\S+ \(([\d.]+)([kMG]?)B/s\)", out)
    if not found:
        raise Failed(f"no result in the output: {out[-300:].strip()}")
    amount, unit = found[-1]
    return Figure(float(amount) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit], "bytes/s")


MIGRATE = """
import json, socket, sys, time
def qmp(family, address, limit=SLOW * 10):
    began = time.monotonic()
    while True:
        try:
            s = socket.socket(family); s.connect(address); break
        except OSError:
            if time.monotonic() - began > limit:
                raise
            time.sleep(0.1)
    f = s.makefile("rw"); f.readline()
    def ask(name, **arguments):
        f.write(json.dumps({"execute": name, "arguments": arguments}) + "\\n"); f.flush()
        while True:
            answer = json.loads(f.readline())
            if "return" in answer or "error" in answer:
                return answer
    ask("qmp_capabilities")
    return ask
def until(ask, what, ends):
    began = time.monotonic()
    while True:
        state = ask(what)["return"]
        if state.get("status") in ends or time.monotonic() - began > SLOW * 60:
            return state
        time.sleep(0.1)
address, port = sys.argv[1], int(sys.argv[2])
ask = qmp(socket.AF_UNIX, "/tmp/source.qmp")
print(ask("migrate", uri=f"rdma:{address}:{port}"))
print(json.dumps(until(ask, "query-migrate", ("completed", "failed"))))
there = qmp(socket.AF_INET, (address, port + 5000))
print("there:", until(there, "query-status", ("running",))["status"])
"""


def migration(place):
    """
    Moves a stopped machine of 128 MiB to another QEMU by RDMA WRITEs, where it continues. The QMP port of the destination is 5000 above its
    migration port.
    """
    machine = "qemu-system-x86_64 -M q35 -accel tcg -m 128 -display none -nodefaults"
    script = "/tmp/migrate.py"
    with open(script, "w") as f:
        f.write(f"SLOW = {perftest.SLOW}\n{MIGRATE}")
    source = f"rm -f /tmp/source.qmp; {machine} -qmp unix:/tmp/source.qmp,server=on,wait=off >/tmp/source.log 2>&1 & trap 'kill $!' EXIT;"
    out = place.served(f"{machine} -qmp tcp:$ADDRESS:$((PORT + 5000)),server=on,wait=off -incoming rdma:$ADDRESS:PORT",
                       f"{source} python3 {script} $SERVER PORT; cat /tmp/source.log", 180)
    if '"status": "completed"' not in out or "there: running" not in out:
        raise Failed(out[-400:])
    return Figure(Figure.of(out, r'"total-time": (\d+)', "").value * 1e3, "us")


def rows():
    found = [Row(f"qperf/{t}", "qperf", "qperf", lambda p, t=t: qperf(p, t)) for t in QPERF]
    found += [Row(f"fio/{verb}", "fio", "fio", lambda p, v=verb: fio(p, v)) for verb in ("write", "read", "send")]
    found.append(Row("qemu/migration", "QEMU", "qemu-system-x86", migration))
    return found

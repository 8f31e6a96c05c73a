# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Suites that come as sources (scripts/lib/users-suites): libfabric's fabtests, google's rdma-unit-test, blktests."""
import re

from perftest import Failed
from row import NotHere, Part, Row, suite

# Tests that take longer than a guest has: the device's limits, one after the other, and all numbers of queue pairs.
TOO_LONG = "DeviceLimitTest.*:QpStateTest.QpIdRollover"
UNIT = ("Advanced", "Ah", "Async", "Atomic", "Buffer", "CompChannel", "Cq", "Device", "Huge", "LoopbackRc", "LoopbackUd", "Messaging", "Mr", "Mw",
        "Pd", "Qp", "RdmaAccess", "Remote", "Responder", "Srq", "Stress", "Threaded", "")


def unit(place, family):
    """Test cases whose name begins so, or, for an empty one, with none of them; each in what gtest calls its suite."""
    path = suite("rdma-unit-test")
    listed = place.run(f"{path}/rdma_unit_test --gtest_list_tests", 60)
    names, current = [], ""
    for line in listed.splitlines():
        word = line.split("#")[0].strip()
        if line[:1] == " ":
            names.append(current + word)
        elif word.endswith("."):
            current = word
    plain = lambda name: name.split(".")[0].split("/")[-1]
    mine = [n for n in names if (plain(n).startswith(family) if family else not any(plain(n).startswith(f) for f in UNIT if f))]
    if not mine and not family:
        raise NotHere("all of them are in a family")
    if not mine:
        raise Failed(f"no such test case: {listed[-300:]}")
    parts = []
    # Few at a time: one that kills the process takes no other along.
    for at in range(0, len(mine), 20):
        some = mine[at : at + 20]
        rest = list(some)
        while rest:
            ipv4 = "--ipv4_only" if place.device.startswith("rxe") else ""
            # It waits for completions for two seconds; six tries of a second each, as some of its tests set, take more.
            line = (f"{path}/rdma_unit_test --device_name=$DEVICE --gid_index=$GID --verbs_mtu=1024 {ipv4} --completion_wait_multiplier=5 "
                    f"--gtest_filter='{':'.join(rest)}-{TOO_LONG}' 2>&1; true")
            out = place.watched(line)
            seen = re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w/.]+)", out, re.M)
            results = {name: result for result, name in reversed(seen) if name in rest}
            for name, result in results.items():
                at_name = out.find(f"[ RUN      ] {name}")
                why = out[at_name : at_name + 600] if result != "OK" else ""
                parts.append(Part(name, {"OK": "pass", "FAILED": "fail", "SKIPPED": "nothere"}[result], why))
            begun = re.findall(r"^\[ RUN +\] ([\w/.]+)", out, re.M)
            unfinished = [n for n in begun if n in rest and n not in results]
            if unfinished:
                parts.append(Part(unfinished[-1], "fail", f"its process did not survive, or said nothing for a minute: {out[-300:]}"))
            rest = [n for n in rest if n not in results and n not in unfinished] if unfinished else []
    return parts


FABTESTS = {
    "msg": ("verbs", ""),
    "rxm": ("'verbs;ofi_rxm'", "-E FI_UNIVERSE_SIZE=8"),
}


def fabtests(place, provider, more):
    path = suite("fabtests")
    excluded = f"-f {path}/share/fabtests/test_configs/verbs/verbs.exclude"
    line = (f"PATH={path}/bin:$PATH LD_LIBRARY_PATH={path}/lib {path}/bin/runfabtests.sh -vvv -t quick {excluded} {more} "
            f"-p {path}/bin -s $SERVER -c $ADDRESS {provider} $SERVER $ADDRESS 2>&1; true")
    out = place.run(line, 3000)
    found = re.findall(r"name: +(.+?)\n(?:.*\n)*? +result: +(\w+)", out)
    if not found:
        raise Failed(out[-400:])
    kinds = {"Pass": "pass", "Fail": "fail", "Notrun": "nothere", "Excluded": "nothere"}
    return [Part(re.sub(r"\W+", "_", name.strip()), kinds[result], "" if result == "Pass" else result) for name, result in found]


def blktests(place):
    """The group nvme, over RDMA: target and host are both in this guest."""
    path = suite("blktests")
    place.run(f"mkdir -p /tmp/blktests /boot; cp {path}/config /boot/config-$(uname -r); mountpoint -q /sys/kernel/config || mount -t configfs config /sys/kernel/config")
    env = "NVMET_TRTYPES=rdma USE_RXE=1 NVME_IMG_SIZE=350M TMPDIR=/tmp"
    out = place.run(f"cd {path}; {env} ./check -o /tmp/blktests nvme 2>&1; true", 5400)
    # A test is named when it begins and when it ends, with reasons, or what differs, below.
    found = {}
    for name, result, why in re.findall(r"^(nvme/\d+) .*?\[(passed|failed|not run)\].*((?:\n    .*)*)", out, re.M):
        found[name] = (result, why.strip())
    ran = [name for name, (result, _) in found.items() if result != "not run"]
    if not ran:
        raise Failed(f"no test of {len(found)} ran: {out[-400:]}")
    kinds = {"passed": "pass", "failed": "fail", "not run": "nothere"}
    return [Part(name.replace("nvme/", ""), kinds[result], "" if result == "passed" else why) for name, (result, why) in found.items()]


def rows():
    found = [Row(f"fabtests/{name}", "fabtests", "fabtests", lambda p, h=how: fabtests(p, *h)) for name, how in FABTESTS.items()]
    found.append(Row("blktests/nvme", "blktests", "blktests", blktests, pair=False))
    for family in UNIT:
        found.append(Row(f"rdma-unit-test/{family or 'others'}", "rdma-unit-test", "rdma-unit-test", lambda p, f=family: unit(p, f), pair=False))
    return found

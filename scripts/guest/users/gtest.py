# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Suites of googletest, built from their sources (scripts/lib/users-suites): google's rdma-unit-test and UCX's own tests."""
import collections
import contextlib
import functools
import re

import lot
import perftest
from perftest import SLOW, Failed
from row import NotHere, Part, Row, suite
from ucx import ENV

# Tests that take longer than a guest has: the device's limits, one after the other, and all numbers of queue pairs.
TOO_LONG = r"DeviceLimitTest\.|QpStateTest\.QpIdRollover"
UNIT = ("Advanced", "Ah", "Async", "Atomic", "Buffer", "CompChannel", "Cq", "Device", "Huge", "LoopbackRc", "LoopbackUd", "Messaging", "Mr", "Mw",
        "Pd", "Qp", "RdmaAccess", "Remote", "Responder", "Srq", "Stress", "Threaded", "")


@functools.cache
def listing(line, _device):
    """What a gtest program lists, on the device that its environment names. UCX's takes minutes."""
    return perftest.end(perftest.start("bash", "-c", f"{line} --gtest_list_tests"), "its list of tests", 300)


def listed(place, line, of=""):
    """Names of a gtest program's test cases; with `of`, those alone whose parameter has it in it, or that have none."""
    names, current = [], ""
    for line in listing(line, place.device).splitlines():
        word, _, parameter = line.partition("#")
        if line[:1] == " ":
            names += [current + word.strip()] if (of in parameter or not parameter) and "DISABLED_" not in line + current else []
        elif word.strip().endswith("."):
            current = word.strip()
    return names


@contextlib.contextmanager
def changed(place, line, back):
    """What the line changes in the guest is changed back by the other."""
    try:
        place.run(line)
        yield
    finally:
        place.run(back)


def gtest(place, line, names, at_once, idle=60):
    """A part for each test case; FILTER in the line is what is to be run. Few at a time: one that ends the process takes no other along."""
    parts = []
    idle *= SLOW
    for at in range(0, len(names), at_once):
        rest = names[at : at + at_once]
        while rest:
            out, silent = place.watched(line.replace("FILTER", ":".join(rest)), idle)
            seen = re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w/.]+)", out, re.M)
            results = {name: result for result, name in reversed(seen) if name in rest}
            for name, result in results.items():
                said = re.search(rf"^\[ RUN +\] {re.escape(name)}\b.*?\n(.*?)^\[ +{result} +\] {re.escape(name)}\b", out, re.M | re.S)
                why = said[1].strip()[:600] if said else ""
                # UCX's own tests say so themselves, and are OK for gtest.
                if result == "OK" and re.search(r"^\[ +SKIP +\]", why, re.M):
                    result = "SKIPPED"
                parts.append(Part(name, {"OK": "pass", "FAILED": "fail", "SKIPPED": "nothere"}[result], why if result != "OK" else ""))
            begun = re.findall(r"^\[ RUN +\] ([\w/.]+)", out, re.M)
            unfinished = [n for n in begun if n in rest and n not in results]
            if unfinished:
                parts.append(Part(unfinished[-1], "fail", f"its process {silent or 'did not survive'}: {out[-300:]}"))
            elif not results:
                raise Failed(f"no test case began: {out[-300:].strip()}")
            # It may have died between two of them.
            rest = [n for n in rest if n not in results and n not in unfinished]
    return parts


def unit(place, family):
    """Test cases whose name begins so, or, for an empty one, with none of them; each in what gtest calls its suite."""
    path = suite("rdma-unit-test")
    names = [n for n in listed(place, f"{path}/rdma_unit_test") if not re.search(TOO_LONG, n)]
    plain = lambda name: name.split(".")[0].split("/")[-1]
    mine = [n for n in names if (plain(n).startswith(family) if family else not any(plain(n).startswith(f) for f in UNIT if f))]
    if not mine and not family:
        raise NotHere("all of them are in a family")
    if not mine:
        raise Failed(f"no such test case among {len(names)}")
    ipv4 = "--ipv4_only" if place.rxe else ""
    # It waits for completions for two seconds; six tries of a second each, as some of its tests set, take more.
    line = (f"{path}/rdma_unit_test --device_name=$DEVICE --gid_index=$GID --verbs_mtu=1024 {ipv4} --completion_wait_multiplier=5 "
            f"--gtest_filter='FILTER' 2>&1; true")
    if family != "Huge":
        return gtest(place, line, mine, 20)
    with changed(place, "echo 1024 >/proc/sys/vm/nr_hugepages; grep -qx 1024 /proc/sys/vm/nr_hugepages", "echo 0 >/proc/sys/vm/nr_hugepages"):
        # Two buffers of a gigabyte, which are compared byte by byte by a matcher of gmock's: 80 seconds, and so many times more without KVM.
        return gtest(place, line, mine, 20, 3600)


# UCX's transports: UCT's own name, and that of UCP's tests over it. What each test case is about is in the name of its class.
UCT, UCP = ("amo", "p2p", "peer", "rest"), ("amo", "peer", "tag", "am", "rma", "stream", "cm", "wireup", "rest")
UCX = {"rc_verbs": UCT, "ud_verbs": UCT, "rc": UCP, "ud": UCP}
UCX_PARTS = {"amo": "amo|atomic", "p2p": "p2p", "peer": "peer_failure|keepalive", "tag": "_tag", "am": "ucp_am", "rma": "ucp_(?:rma|fence|mmap|rkey)",
             "stream": "stream", "cm": "sockaddr", "wireup": "wireup"}
# Of UCP's largest classes, which have each of their hundreds of cases with each of a dozen settings, so many are drawn by this seed; on rxe,
# which is there to compare with, and takes up to ten minutes for a hundred, so many of those.
UCX_MOST, UCX_MOST_RXE, SEED = 100, 10, 12
# They measure how fast it is, or how large a structure.
UCX_LEFT_OUT = "perf|test_pci_bw|obj_size"


def numbered(names):
    """By what name UCX knows a test case to ours: its numbers run over the parameters of all devices, ours over those of one."""
    seen, found = collections.Counter(), {}
    for name in names:
        case, _, number = name.rpartition("/")
        found[name] = f"{case}/{seen[case]}" if number.isdigit() else name
        seen[case] += 1
    return found


def ucx_drawn(place, names, transport, part):
    """Of UCX's test cases those of the part, at most so many."""
    mine = []
    for name in (n for n in names if n.startswith(transport + "/") and not re.search(UCX_LEFT_OUT, n)):
        about = next((p for p in UCX[transport] if p in UCX_PARTS and re.search(UCX_PARTS[p], name.split("/")[1].split(".")[0])), "rest")
        mine += [name] if about == part else []
    if not mine:
        raise NotHere(f"it has none of these over {transport}")
    mine = lot.draw(mine, UCX_MOST, SEED)
    if place.rxe:
        mine = lot.draw(mine, UCX_MOST_RXE, SEED)
    return mine


def ucx(place, transport, part):
    path = suite("ucx")
    env = f"LD_LIBRARY_PATH={path}/lib:{path}/lib/ucx UCX_MODULE_DIR={path}/lib/ucx {ENV} UCX_WARN_UNUSED_ENV_VARS=n UCX_LOG_LEVEL=warn"
    # Some want a path MTU of 2048, and those of sockaddr listen on any interface, if its device is the one that is tested or not; one sends
    # 300,000 datagrams to and fro before it says anything.
    with changed(place, "ip link set $NETDEV mtu 4500; for n in $OTHER_NETDEV; do ip link set $n down; done",
                 "ip link set $NETDEV mtu 1500; for n in $OTHER_NETDEV; do ip link set $n up; done"):
        names = listed(place, f"{env} {path}/gtest", place.device if transport.endswith("_verbs") else "")
        parts = gtest(place, f"{env} {path}/gtest --gtest_filter='FILTER' 2>&1; true", ucx_drawn(place, names, transport, part), 50, 600)
    ours = numbered(names)
    return [p._replace(name=ours[p.name]) for p in parts]


def rows():
    def row(name, program, package, run):
        return Row(name, program, package, run, pair=False)

    found = [row(f"ucx-gtest/{transport}_{part}", "UCX's gtest", "ucx", lambda p, t=transport, w=part: ucx(p, t, w))
             for transport, parts in UCX.items() for part in parts]
    return found + [row(f"rdma-unit-test/{family or 'others'}", "rdma-unit-test", "rdma-unit-test", lambda p, f=family: unit(p, f)) for family in UNIT]

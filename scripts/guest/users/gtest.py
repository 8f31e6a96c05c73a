# SPDX-License-Identifier: GPL-2.0 OR MIT
"""googletest suites, built from source (scripts/lib/users-suites): Google's rdma-unit-test and UCX's own tests."""
import collections
import contextlib
import functools
import re

import lot
import perftest
from perftest import SLOW, Failed
from row import NotHere, Part, Row, suite
from ucx import ENV

# Tests that take longer than the guest runs: the limits of the device one by one, and all queue pair numbers.
TOO_LONG = r"DeviceLimitTest\.|QpStateTest\.QpIdRollover"
UNIT = ("Advanced", "Ah", "Async", "Atomic", "Buffer", "CompChannel", "Cq", "Device", "Huge", "LoopbackRc", "LoopbackUd", "Messaging", "Mr", "Mw",
        "Pd", "Qp", "RdmaAccess", "Remote", "Responder", "Srq", "Stress", "Threaded", "")


@functools.cache
def listing(line, _device):
    """Returns the list of a gtest program's tests, for the device in its environment. UCX's takes minutes."""
    return perftest.end(perftest.start("bash", "-c", f"{line} --gtest_list_tests"), "its list of tests", 300)


def listed(place, line, of=""):
    """Returns the names of test cases; with `of`, only those whose parameter contains this text, or that have no parameter."""
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
    """Runs a command for a block, and another one after it, which undoes the first."""
    try:
        place.run(line)
        yield
    finally:
        place.run(back)


def gtest(place, line, names, at_once, idle=60):
    """Runs test cases, a few at a time (`FILTER` in the line), because a crash ends all tests of the process. Returns a part for each."""
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
                # UCX's tests mark a skipped test by a line of its own; gtest reports them as OK.
                if result == "OK" and re.search(r"^\[ +SKIP +\]", why, re.M):
                    result = "SKIPPED"
                parts.append(Part(name, {"OK": "pass", "FAILED": "fail", "SKIPPED": "nothere"}[result], why if result != "OK" else ""))
            begun = re.findall(r"^\[ RUN +\] ([\w/.]+)", out, re.M)
            unfinished = [n for n in begun if n in rest and n not in results]
            if unfinished:
                parts.append(Part(unfinished[-1], "fail", f"its process {silent or 'did not survive'}: {out[-300:]}"))
            elif not results:
                raise Failed(f"no test case began: {out[-300:].strip()}")
            # The process may have died between two tests.
            rest = [n for n in rest if n not in results and n not in unfinished]
    return parts


def unit(place, family):
    """Runs the test cases whose names begin with `family`; for an empty family, those of no other."""
    path = suite("rdma-unit-test")
    names = [n for n in listed(place, f"{path}/rdma_unit_test") if not re.search(TOO_LONG, n)]
    plain = lambda name: name.split(".")[0].split("/")[-1]
    mine = [n for n in names if (plain(n).startswith(family) if family else not any(plain(n).startswith(f) for f in UNIT if f))]
    if not mine and not family:
        raise NotHere("all test cases belong to another family")
    if not mine:
        raise Failed(f"none of the {len(names)} test cases begins with {family}")
    ipv4 = "--ipv4_only" if place.rxe else ""
    # By default it waits two seconds for completions. Six retries of a second each, as some of its tests set, take longer.
    line = (f"{path}/rdma_unit_test --device_name=$DEVICE --gid_index=$GID --verbs_mtu=1024 {ipv4} --completion_wait_multiplier=5 "
            f"--gtest_filter='FILTER' 2>&1; true")
    if family != "Huge":
        return gtest(place, line, mine, 20)
    with changed(place, "echo 1024 >/proc/sys/vm/nr_hugepages; grep -qx 1024 /proc/sys/vm/nr_hugepages", "echo 0 >/proc/sys/vm/nr_hugepages"):
        # gmock compares two buffers of a gigabyte byte by byte: 80 seconds, and many times that without KVM.
        return gtest(place, line, mine, 20, 3600)


# UCX's transports: the names of UCT's, and those of UCP's tests over them. The class name of a test case says what it tests.
UCT, UCP = ("amo", "p2p", "peer", "rest"), ("amo", "peer", "tag", "am", "rma", "stream", "cm", "wireup", "rest")
UCX = {"rc_verbs": UCT, "ud_verbs": UCT, "rc": UCP, "ud": UCP}
UCX_PARTS = {"amo": "amo|atomic", "p2p": "p2p", "peer": "peer_failure|keepalive", "tag": "_tag", "am": "ucp_am", "rma": "ucp_(?:rma|fence|mmap|rkey)",
             "stream": "stream", "cm": "sockaddr", "wireup": "wireup"}
# UCP's largest classes run hundreds of cases with a dozen settings each. Of these, UCX_MOST are drawn with this seed; on rxe, which is only for
# comparison and takes up to ten minutes for a hundred, UCX_MOST_RXE.
UCX_MOST, UCX_MOST_RXE, SEED = 100, 10, 12
# Tests that measure speed or the size of structures.
UCX_LEFT_OUT = "perf|test_pci_bw|obj_size"


def numbered(names):
    """Returns new names by UCX's names. UCX numbers test cases over the parameters of all devices; the new numbers count those of one device."""
    seen, found = collections.Counter(), {}
    for name in names:
        case, _, number = name.rpartition("/")
        found[name] = f"{case}/{seen[case]}" if number.isdigit() else name
        seen[case] += 1
    return found


def ucx_drawn(place, names, transport, part):
    """Returns the test cases of the part, at most UCX_MOST."""
    mine = []
    for name in (n for n in names if n.startswith(transport + "/") and not re.search(UCX_LEFT_OUT, n)):
        about = next((p for p in UCX[transport] if p in UCX_PARTS and re.search(UCX_PARTS[p], name.split("/")[1].split(".")[0])), "rest")
        mine += [name] if about == part else []
    if not mine:
        raise NotHere(f"UCX has no tests of this part over {transport}")
    mine = lot.draw(mine, UCX_MOST, SEED)
    if place.rxe:
        mine = lot.draw(mine, UCX_MOST_RXE, SEED)
    return mine


def ucx(place, transport, part):
    path = suite("ucx")
    env = f"LD_LIBRARY_PATH={path}/lib:{path}/lib/ucx UCX_MODULE_DIR={path}/lib/ucx {ENV} UCX_WARN_UNUSED_ENV_VARS=n UCX_LOG_LEVEL=warn"
    # Some tests need a path MTU of 2048. Tests of sockaddr listen on any interface, so the interfaces of other devices are set down. One test
    # sends 300,000 datagrams before it prints anything.
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

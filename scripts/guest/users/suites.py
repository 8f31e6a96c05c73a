# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Suites that come as sources (scripts/lib/users-suites): libfabric's fabtests, google's rdma-unit-test, UCX's gtest, blktests."""
import re

from perftest import Failed
from row import NotHere, Part, Row, suite

# Tests that take longer than a guest has: the device's limits, one after the other, and all numbers of queue pairs.
TOO_LONG = "DeviceLimitTest.*:QpStateTest.QpIdRollover"
UNIT = ("Advanced", "Ah", "Async", "Atomic", "Buffer", "CompChannel", "Cq", "Device", "Huge", "LoopbackRc", "LoopbackUd", "Messaging", "Mr", "Mw",
        "Pd", "Qp", "RdmaAccess", "Remote", "Responder", "Srq", "Stress", "Threaded", "")


def listed(place, line, of="", limit=60):
    """Names of a gtest program's test cases; with `of`, those alone whose parameter has it in it, or that have none."""
    names, current = [], ""
    for line in place.run(line, limit).splitlines():
        word, _, parameter = line.partition("#")
        if line[:1] == " ":
            names += [current + word.strip()] if of in parameter or not parameter else []
        elif word.strip().endswith("."):
            current = word.strip()
    return names


def gtest(place, line, names, at_once, idle=60):
    """A part for each test case; FILTER in the line is what is to be run. Few at a time: one that ends the process takes no other along."""
    parts = []
    for at in range(0, len(names), at_once):
        rest = names[at : at + at_once]
        while rest:
            out = place.watched(line.replace("FILTER", ":".join(rest)), idle)
            seen = re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w/.]+)", out, re.M)
            results = {name: result for result, name in reversed(seen) if name in rest}
            for name, result in results.items():
                said = re.search(rf"^\[ RUN +\] {re.escape(name)}\b.*?\n(.*?)^\[ +{result} +\] {re.escape(name)}\b", out, re.M | re.S)
                why = said[1].strip()[:600] if said and result != "OK" else ""
                parts.append(Part(name, {"OK": "pass", "FAILED": "fail", "SKIPPED": "nothere"}[result], why))
            begun = re.findall(r"^\[ RUN +\] ([\w/.]+)", out, re.M)
            unfinished = [n for n in begun if n in rest and n not in results]
            if unfinished:
                parts.append(Part(unfinished[-1], "fail", f"its process did not survive, or said nothing for {idle} s: {out[-300:]}"))
            elif not results:
                raise Failed(f"no test case began: {out[-300:].strip()}")
            rest = [n for n in rest if n not in results and n not in unfinished] if unfinished else []
    return parts


def unit(place, family):
    """Test cases whose name begins so, or, for an empty one, with none of them; each in what gtest calls its suite."""
    path = suite("rdma-unit-test")
    names = listed(place, f"{path}/rdma_unit_test --gtest_list_tests")
    plain = lambda name: name.split(".")[0].split("/")[-1]
    mine = [n for n in names if (plain(n).startswith(family) if family else not any(plain(n).startswith(f) for f in UNIT if f))]
    if not mine and not family:
        raise NotHere("all of them are in a family")
    if not mine:
        raise Failed(f"no such test case among {len(names)}")
    ipv4 = "--ipv4_only" if place.device.startswith("rxe") else ""
    # It waits for completions for two seconds; six tries of a second each, as some of its tests set, take more.
    line = (f"{path}/rdma_unit_test --device_name=$DEVICE --gid_index=$GID --verbs_mtu=1024 {ipv4} --completion_wait_multiplier=5 "
            f"--gtest_filter='FILTER-{TOO_LONG}' 2>&1; true")
    if family == "Huge":
        # Two buffers of a gigabyte, which are compared byte by byte by a matcher of gmock's: 80 seconds, and so many times more without KVM.
        place.run("echo 1024 >/proc/sys/vm/nr_hugepages; grep -qx 1024 /proc/sys/vm/nr_hugepages")
    try:
        return gtest(place, line, mine, 20, 3600 if family == "Huge" else 60)
    finally:
        if family == "Huge":
            place.run("echo 0 >/proc/sys/vm/nr_hugepages")


# UCX's transports: UCT's own name, and that of UCP's tests over it. What each test case is about is in the name of its class.
UCT, UCP = ("amo", "p2p", "peer", "rest"), ("amo", "peer", "tag", "am", "rma", "stream", "cm", "wireup", "rest")
UCX = {"rc_verbs": UCT, "ud_verbs": UCT, "rc": UCP, "ud": UCP}
UCX_PARTS = {"amo": "amo|atomic", "p2p": "p2p", "peer": "peer_failure|keepalive", "tag": "_tag", "am": "ucp_am", "rma": "ucp_(?:rma|fence|mmap|rkey)",
             "stream": "stream", "cm": "sockaddr", "wireup": "wireup"}
# They measure how fast it is, or how large a structure.
UCX_LEFT_OUT = "perf|test_pci_bw|obj_size"


def ucx(place, transport, part):
    path = suite("ucx")
    env = f"LD_LIBRARY_PATH={path}/lib:{path}/lib/ucx UCX_MODULE_DIR={path}/lib/ucx UCX_NET_DEVICES=$DEVICE:1 UCX_IB_GID_INDEX=$GID UCX_UD_ETH_DGID_CHECK=n UCX_WARN_UNUSED_ENV_VARS=n UCX_LOG_LEVEL=warn"
    names = listed(place, f"{env} {path}/gtest --gtest_list_tests", place.device if transport.endswith("_verbs") else "")
    mine = []
    for name in (n for n in names if n.startswith(transport + "/") and not re.search(UCX_LEFT_OUT, n)):
        about = next((p for p in UCX[transport] if p in UCX_PARTS and re.search(UCX_PARTS[p], name.split("/")[1].split(".")[0])), "rest")
        mine += [name] if about == part else []
    if not mine:
        raise NotHere(f"it has none of these over {transport}")
    # Some want a path MTU of 2048.
    place.run("ip link set $NETDEV mtu 4500")
    try:
        return gtest(place, f"{env} {path}/gtest --gtest_filter='FILTER' 2>&1; true", mine, 50, 180)
    finally:
        place.run("ip link set $NETDEV mtu 1500")


# The provider, and which list of its tests to leave out comes with the suite.
FABTESTS = {"msg": ("verbs", "verbs/verbs"), "rxm": ("verbs;ofi_rxm", "ofi_rxm/ofi_rxm")}


# When its client fails, the suite kills what started the server and not the server, which takes the port of the tests that follow.
ALONE = "fi_msg_sockets"


def fabtests(place, provider, excluded):
    path = suite("fabtests")
    # Both ends in one guest are started by its shell, those of two by ssh.
    env = {"FI_UNIVERSE_SIZE": "8", "FI_VERBS_DEVICE_NAME": place.device}
    if place.pair:
        where, told = "vm2 vm1", " ".join(f"-E {name}={value}" for name, value in env.items())
    else:
        where, told = "", ""
    exports = "export " + " ".join(f"{name}={value}" for name, value in env.items())
    line = (f"{exports}; {path}/bin/runfabtests.sh -vvv -t quick -T 300 -e {ALONE} -f {path}/share/fabtests/test_configs/{excluded}.exclude "
            f"{told} -p {path}/bin -s $SERVER -c $ADDRESS '{provider}' {where} 2>&1; true")
    out = place.run(line, 5400)
    parts = []
    if provider == "verbs":
        try:
            place.both(*(f"{exports}; exec {path}/bin/{ALONE} -p verbs -s $ADDRESS {end}" for end in ("-B PORT", "-P PORT $SERVER")))
            parts.append(Part(ALONE, "pass"))
        except Failed as e:
            parts.append(Part(ALONE, "fail", str(e)))
    kinds = {"Pass": "pass", "Fail": "fail", "Notrun": "nothere", "Excluded": "nothere"}
    for one in re.split(r"^- name: +", out, flags=re.M)[1:]:
        name, _, rest = one.partition("\n")
        if name.startswith(ALONE) and provider == "verbs":
            continue
        result = re.search(r"^ +result: +(\w+)", rest, re.M)[1]
        # The addresses and the provider are the same for all.
        name = re.sub(r"[\d.]{7,}|-p \".*?\"", "", name)
        parts.append(Part(re.sub(r"\W+", "_", name.strip()).strip("_"), kinds[result], "" if result == "Pass" else f"{result}: {rest[-500:].strip()}"))
    if not parts:
        raise Failed(out[-400:])
    return parts


def blktests(place, tens):
    """Tests of the group nvme whose number has these tens, over RDMA: target and host are both in this guest."""
    path = suite("blktests")
    # nvme/047 does not say that it needs loop.
    place.run(f"modprobe loop; mkdir -p /tmp/blktests /boot; cp {path}/config /boot/config-$(uname -r); mountpoint -q /sys/kernel/config || mount -t configfs config /sys/kernel/config")
    env = "NVMET_TRTYPES=rdma USE_RXE=1 NVME_IMG_SIZE=350M TMPDIR=/tmp"
    # Some have a drive of their own as their object, which RDMA does not go to.
    tests = place.run(f"cd {path}/tests && grep -l '^test()' nvme/0{tens}[0-9]").split()
    out = place.run(f"cd {path}; {env} ./check -o /tmp/blktests {' '.join(tests)} 2>&1; true", 5400)
    # A test is named when it begins and when it ends, with reasons, or what differs, below.
    found = {}
    for name, result, why in re.findall(r"^(nvme/\d+) .*?\[(passed|failed|not run)\].*((?:\n    .*)*)", out, re.M):
        found[name] = (result, why.strip())
    if missing := sorted(set(tests) - set(found)):
        raise Failed(f"not told of {', '.join(missing)}: {out[-400:]}")
    kinds = {"passed": "pass", "failed": "fail", "not run": "nothere"}
    return [Part(name.replace("nvme/", ""), kinds[result], "" if result == "passed" else why) for name, (result, why) in found.items()]


def rows():
    found = [Row(f"fabtests/{name}", "fabtests", "fabtests", lambda p, h=how: fabtests(p, *h)) for name, how in FABTESTS.items()]
    found += [Row(f"blktests/nvme_{tens}", "blktests", "blktests", lambda p, t=tens: blktests(p, t), pair=False) for tens in range(7)]
    for transport, parts in UCX.items():
        for part in parts:
            found.append(Row(f"ucx-gtest/{transport}_{part}", "UCX's gtest", "ucx", lambda p, t=transport, w=part: ucx(p, t, w), pair=False))
    for family in UNIT:
        found.append(Row(f"rdma-unit-test/{family or 'others'}", "rdma-unit-test", "rdma-unit-test", lambda p, f=family: unit(p, f), pair=False))
    return found

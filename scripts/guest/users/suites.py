# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Suites that a shell script runs, built from source (scripts/lib/users-suites): libfabric's fabtests, blktests."""
import re

from libfabric import FEW, SELDOM, assigned
from perftest import Failed
from row import Part, Row, suite

# The provider, and the suite's own list of tests that it cannot pass.
FABTESTS = {"msg": ("verbs", "verbs/verbs"), "rxm": ("verbs;ofi_rxm", "ofi_rxm/ofi_rxm")}


# A test whose client fails. The suite then kills the parent of the server and not the server, which blocks the port of later tests. It runs
# separately.
ALONE = "fi_msg_sockets"


def fabtests(place, provider, excluded):
    path = suite("fabtests")
    # The suite starts both ends by a shell in one guest, and by ssh in two.
    env = FEW | {"FI_VERBS_DEVICE_NAME": place.device} | (SELDOM if provider != "verbs" else {})
    if place.pair:
        where, more = "vm2 vm1", " ".join(f"-E {name}={value}" for name, value in env.items())
    else:
        where, more = "", ""
    exports = f"export {assigned(env)}"
    line = (f"{exports}; {path}/bin/runfabtests.sh -vvv -t quick -T 300 -e {ALONE} -f {path}/share/fabtests/test_configs/{excluded}.exclude "
            f"{more} -p {path}/bin -s $SERVER -c $ADDRESS '{provider}' {where} 2>&1; "
            f"{'for guest in vm1 vm2; do ssh $guest pkill fi_; done' if place.pair else 'pkill fi_'}; true")
    out = place.run(line, 5400)
    if not re.search(r"^# Total Pass", out, re.M):
        raise Failed(f"the suite did not print its totals: {out[-400:].strip()}")
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
        # All tests have the same addresses and provider.
        name = re.sub(r"[\d.]{7,}|-p \".*?\"", "", name)
        parts.append(Part(re.sub(r"\W+", "_", name.strip()).strip("_"), kinds[result], "" if result == "Pass" else f"{result}: {rest[-500:].strip()}"))
    return parts


def blktests(place, tens):
    """Runs the tests of the group nvme with this tens digit over RDMA; target and host are both in this guest."""
    path = suite("blktests")
    # nvme/047 needs loop without saying so.
    place.run(f"modprobe loop; mkdir -p /tmp/blktests /boot; cp {path}/config /boot/config-$(uname -r); "
              "mountpoint -q /sys/kernel/config || mount -t configfs config /sys/kernel/config")
    env = "NVMET_TRTYPES=rdma USE_RXE=1 NVME_IMG_SIZE=350M TMPDIR=/tmp"
    # Only functions test(): the others test a drive, not RDMA.
    tests = place.run(f"cd {path}/tests && grep -l '^test()' nvme/0{tens}[0-9]").split()
    out = place.run(f"cd {path}; {env} ./check -o /tmp/blktests {' '.join(tests)} 2>&1; true", 5400)
    # A line names a test when it begins, and another one when it ends, with reasons or differences below.
    found = {}
    for name, result, why in re.findall(r"^(nvme/\d+) .*?\[(passed|failed|not run)\].*((?:\n    .*)*)", out, re.M):
        found[name] = (result, why.strip())
    if missing := sorted(set(tests) - set(found)):
        raise Failed(f"the output has no result of {', '.join(missing)}: {out[-400:]}")
    kinds = {"passed": "pass", "failed": "fail", "not run": "nothere"}
    return [Part(name.replace("nvme/", ""), kinds[result], "" if result == "passed" else why) for name, (result, why) in found.items()]


def rows():
    found = [Row(f"fabtests/{name}", "fabtests", "fabtests", lambda p, h=how: fabtests(p, *h)) for name, how in FABTESTS.items()]
    found += [Row(f"blktests/nvme_{tens}", "blktests", "blktests", lambda p, t=tens: blktests(p, t), pair=False) for tens in range(7)]
    return found

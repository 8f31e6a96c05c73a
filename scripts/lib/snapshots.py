# SPDX-License-Identifier: GPL-2.0 OR MIT
"""snapshots.py RUN guarded SECONDS | RUN loaded TIMES | RUN peer SECONDS | RUN suspended SECONDS: tests a guest that runs
scripts/guest/traffic-goes-on (scripts/vm --monitor --run-dir RUN), by QEMU's monitor, for scripts/test-snapshots.

guarded: QEMU refuses to migrate the guest and to save a snapshot, and names the device that forbids it. The guest is stopped for SECONDS and
continued, and no program fails. loaded: a snapshot is saved without the module and loaded. Then TIMES times a snapshot is loaded under traffic
that was saved under traffic or during a recovery: each time the program with the open device sees DEVICE_FATAL, and then rping works. peer: the
guest writes to vm1, which is stopped for SECONDS and continued, and its traffic continues. suspended: the guest's traffic continues after it was
suspended to idle for SECONDS.

At the end, sets the link of the guest's Ethernet down, which makes the guest's command end. Prints a line for each test, and ends with
`N passed, N failed`.
"""
import json
import os
import random
import re
import socket
import sys
import time

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../guest")
from verbena_guest.results import Results  # noqa: E402

# Seconds for a step of the guest, on a slow machine.
PATIENCE = 120 * (10 if os.environ.get("VERBENA_KERNEL") == "debug" else 1)


class Monitor:
    """QEMU's monitor (QMP) at a socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rw")
        self.lines.readline()
        self.run("qmp_capabilities")

    def run(self, command, **arguments):
        """Returns the result of the command, or the description of its error."""
        self.lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.lines.flush()
        while True:
            answer = json.loads(self.lines.readline())
            if "error" in answer:
                return answer["error"]["desc"]
            if "return" in answer:
                return answer["return"]

    def human(self, line):
        """Returns the output of the command: nothing, or an error."""
        return self.run("human-monitor-command", **{"command-line": line}).strip()


class Guest:
    """The output of a guest and its kernel log. Both are read from the position of the last `mark`."""

    def __init__(self, run):
        self.run = run
        self.at = {"stdout": 0, "kernel.log": 0}
        self.monitor = Monitor(os.readlink(f"{run}/qmp"))

    def mark(self):
        self.at = {name: os.path.getsize(f"{self.run}/{name}") for name in self.at}

    def text(self, name="stdout"):
        with open(f"{self.run}/{name}", "rb") as file:
            file.seek(self.at[name])
            return file.read().decode(errors="replace").replace("\r", "")

    def wait(self, line):
        """Waits for the first line that matches, and returns the output up to it."""
        end = time.monotonic() + PATIENCE
        while True:
            text = self.text()
            found = re.search(f"^{line}\n", text, re.M)
            if found:
                return text[:found.end()]
            failed = re.search(r"^failed: .*", text, re.M)
            if failed or time.monotonic() > end or os.path.getsize(f"{self.run}/status"):
                raise Failure(f"no line matches `{line}`; the guest printed {failed.group() if failed else text.split()[-8:]}")
            time.sleep(0.1)


    def wait_log(self, what):
        """Waits until the kernel log contains a text; the console may be late."""
        end = time.monotonic() + PATIENCE
        while what not in self.text("kernel.log"):
            want(time.monotonic() < end, f"the kernel log does not contain '{what}', but: {self.text('kernel.log')[-2000:]}")
            time.sleep(0.1)


class Failure(Exception):
    """A failed test; the text is the reason."""


def want(true, otherwise):
    if not true:
        raise Failure(otherwise)


def refuses(guest, answer):
    want("ivshmem" in str(answer), f"the answer of QEMU does not name the device ivshmem: {answer}")


def refuses_to_migrate(guest, _):
    refuses(guest, guest.monitor.run("migrate", uri="exec:cat >/dev/null"))


def refuses_a_snapshot(guest, _):
    refuses(guest, guest.monitor.human("savevm refused"))
    want("refused" not in guest.monitor.human("info snapshots"), "QEMU has saved a snapshot")


def survives_a_stop(guest, seconds):
    guest.wait("ready")
    guest.mark()
    guest.monitor.run("stop")
    time.sleep(seconds)
    # Discards a line that was printed while the guest was stopped.
    guest.mark()
    guest.monitor.run("cont")
    seen = guest.wait("alive .*\nalive .*\nalive .*")
    want("fatal" not in seen, f"the guest printed {seen.split()}")
    log = guest.text("kernel.log")
    want("verbena" not in log, f"the kernel's log has {log}")


def writes_to_a_stopped_peer(guest, seconds):
    guest.wait("ready")
    peer = Monitor(os.readlink(f"{guest.run}/../vm1/qmp"))
    peer.run("stop")
    time.sleep(seconds)
    guest.mark()
    guest.wait("alive .*\nalive .*\nalive .*")
    want(peer.run("query-status")["status"] == "paused", "the peer is not stopped")
    peer.run("cont")
    guest.mark()
    seen = guest.wait("alive .*\nalive .*\nalive .*")
    want("fatal" not in seen, f"the guest printed {seen.split()}")


def survives_a_suspend_to_idle(guest, seconds):
    guest.wait("suspends")
    time.sleep(seconds)
    want("awake" not in guest.text(), "the guest did not stay suspended")
    guest.monitor.human("sendkey a")
    seen = guest.wait("alive 3")
    want("fatal" not in seen, f"the guest printed {seen.split()}")
    guest.wait_log("PM: suspend exit")
    log = guest.text("kernel.log")
    for what in "is given up", "lives again", "should not be sleeping":
        want(what not in log, f"the kernel's log has {log[-2000:]}")


def save(guest, name):
    answer = guest.monitor.human(f"savevm {name}")
    want(answer == "", f"savevm: {answer}")


def load(guest, name):
    guest.mark()
    answer = guest.monitor.human(f"loadvm {name}")
    want(answer == "", f"loadvm: {answer}")


def loads_without_the_module(guest, _):
    guest.wait("unloaded")
    save(guest, "unloaded")
    load(guest, "unloaded")
    guest.wait("works")
    guest.wait_log("the BAR addresses were lost")


def loads_under_traffic(guest, _):
    load(guest, "traffic")
    seen = guest.wait("works")
    want("fatal\nworks" in seen, f"the guest printed {seen.split()}")
    guest.wait_log("configuration space was lost")
    guest.wait_log("the device lives again")


def loads_amid_a_recovery(guest, _):
    load(guest, "traffic")
    # Saves before the driver notices, while it starts the device anew, or while the programs start again.
    time.sleep(random.uniform(0, 4))
    save(guest, "recovery")
    load(guest, "recovery")
    guest.wait("works")


def main():
    run, mode, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    end = time.monotonic() + PATIENCE
    while not os.path.exists(f"{run}/qmp") or not os.path.exists(os.readlink(f"{run}/qmp")):
        if time.monotonic() > end:
            sys.exit(f"error: {run}/qmp, QEMU's monitor, did not appear within {PATIENCE} s")
        time.sleep(0.1)
    guest = Guest(run)
    results = Results(f"snapshots-{mode}")

    def test(name, body):
        results.run(name, body, guest, number)

    if mode == "guarded":
        test("migrate-refused", refuses_to_migrate)
        test("savevm-refused", refuses_a_snapshot)
        test("stop-and-cont", survives_a_stop)
    if mode == "loaded":
        test("module-unloaded", loads_without_the_module)
        for n in range(number):
            # Loads the same snapshot four times, then saves a new one.
            if n % 4 == 0:
                test(f"savevm-{n}", lambda guest, _: (guest.wait("ready"), save(guest, "traffic")))
            test(f"loadvm-{n}", loads_under_traffic)
            if n % 4 == 3 or n == number - 1:
                test(f"amid-a-recovery-{n}", loads_amid_a_recovery)
        guest.wait("ready")
    if mode == "peer":
        test("stopped", writes_to_a_stopped_peer)
    if mode == "suspended":
        test("to-idle", survives_a_suspend_to_idle)
    guest.monitor.human("set_link n0 off")
    return results.end()


sys.exit(main())

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in each of two guests: tests of the kernel's consumers of RDMA, with the server in vm2 and the client in vm1. For `infiniband-consumers` and
`debug-consumers`.

A consumer writes data, reads them back and compares them. Then a link goes down and up under load, and every byte is compared again. InfiniBand
ports are connected by the IPoIB addresses.
"""
import json
import mmap
import os
import random
import re
import subprocess
import sys
import time

from agent import script
from perftest import Failed
from storage_load import BLOCK, Load, until
from subnet import PORT, read
from verbena_guest.results import Results

storage = script("storage")
wire = script("storage-wire")

NUMBER = wire.NUMBER
INFINIBAND = read(f"{PORT}/link_layer") == "InfiniBand"
NETWORK = "10.2.0" if INFINIBAND else "10.0.0"
CLIENT, SERVER = f"{NETWORK}.1", f"{NETWORK}.2"
MIB = 1 << 20


def port_gid():
    return read(f"{PORT}/gids/0")


def region_mib():
    """Returns the size of a disk, or of an exported file."""
    return storage.BLOCKS * BLOCK // MIB


def disks():
    """Makes two RAM disks."""
    storage.run("modprobe", "brd", "rd_nr=2", f"rd_size={region_mib() * 1024}")


def connected():
    """True if an RC queue pair of this guest can send. Only the consumer under test has such queue pairs."""
    return any(qp["type"] == "RC" and qp["state"] == "RTS" for qp in json.loads(storage.run("rdma", "-j", "resource", "show", "qp")))


# --- the data ------------------------------------------------------------------------------------------------------------


class Pattern:
    """Data of one pass. No two pieces of any length at different places are alike."""

    def __init__(self, seed):
        self.base = memoryview(random.Random(seed).randbytes(2 * MIB))

    def mib(self, number):
        return self.base[number * 16 : number * 16 + MIB]

    def message(self, number, length):
        """Returns a message that begins with its number."""
        at = number * 16 % MIB
        return number.to_bytes(8, "little") + bytes(self.base[at : at + length - 8])


def transfer(path, mib):
    """Writes, reads and compares data with O_DIRECT. A region may be smaller than the data: each pass writes other data to the same place."""
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    room = mmap.mmap(-1, MIB)
    try:
        for start in range(0, mib, region_mib()):
            pattern, count = Pattern(start), min(region_mib(), mib - start)
            for number in range(count):
                room[:] = pattern.mib(number)
                if os.pwrite(fd, room, number * MIB) != MIB:
                    raise Failed(f"{path}: a short write")
            os.fsync(fd)
            for number in range(count):
                if os.preadv(fd, [room], number * MIB) != MIB:
                    raise Failed(f"{path}: a short read")
                if memoryview(room) != pattern.mib(number):
                    raise Failed(f"{path}: MiB {start + number} differs")
    finally:
        os.close(fd)


# --- the link ------------------------------------------------------------------------------------------------------------


class SwitchLink:
    """The link of the server to the switch, which is the neighbour of this guest."""

    def __init__(self):
        self.port = self.find()

    def find(self):
        """Returns the number of the switch's port to the server."""
        guid = "0x" + wire.shared("gid.2").replace(":", "")[16:]
        for port in range(2, 8):
            about = subprocess.run(["smpquery", "-D", "nodeinfo", f"0,1,{port}"], capture_output=True, text=True).stdout
            if re.search(rf"^PortGuid:\.*{guid}$", about, re.M):
                return str(port)
        raise Failed(f"no port of the switch has a link to the port with GUID {guid}")

    def set(self, up):
        storage.run("ibportstate", "-D", "0,1", self.port, "enable" if up else "disable")


class EthernetLink:
    """The link of this guest."""

    def set(self, up):
        storage.run("ip", "link", "set", os.environ["VERBENA_NETDEV"], "up" if up else "down")


def carries():
    """True if the server answers."""
    return subprocess.run(["ping", "-c", "1", "-W", "1", SERVER], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def interrupted(goes_on, until_lost=False):
    """Takes the link down for longer than most connections survive or, with `until_lost`, until no queue pair is left in RTS. `goes_on` waits for
    progress."""
    link = SwitchLink() if INFINIBAND else EthernetLink()
    goes_on("before")
    if until_lost and not connected():
        raise Failed("the consumer has no queue pair in RTS")
    link.set(up=False)
    try:
        until("the link is down", lambda: not carries())
        if until_lost:
            until("the connection is lost", lambda: not connected(), 120)
        else:
            time.sleep(8)
    finally:
        link.set(up=True)
    goes_on("the link is back")


class Blocks:
    """A consumer with a disk or a file. The medium is its path at the server."""

    # Errors that a program sees while the connection is lost.
    tolerated = ()
    until_lost = False
    # False if the link stays up, with --no-link.
    has_link = True

    def use(self, mib):
        path = self.attach()
        try:
            yield "transfer"
            transfer(path, mib)
            if self.has_link:
                yield "link"
                self.under_load(path)
            wire.barrier(f"{self.name}-quiet")
            here = wire.digest(path)
            wire.barrier(f"{self.name}-read")
            if here != wire.shared(f"{self.name}-digest"):
                raise Failed(f"{self.name}: the data at the client are not those at the server")
        finally:
            self.detach()

    def under_load(self, path):
        subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={region_mib()}", "oflag=direct", "conv=notrunc"],
                       stderr=subprocess.DEVNULL, check=True)
        load = Load(path, storage.BLOCKS, 2, tolerated=self.tolerated)
        interrupted(lambda what: load.goes_on(what, 180), self.until_lost)
        load.end()
        load.check(path)
        print(f"{path}: {load.summary()}", flush=True)

    def quiet(self):
        """The server's part of comparing."""
        wire.barrier(f"{self.name}-quiet")
        wire.shared(f"{self.name}-digest", wire.digest(self.medium))
        wire.barrier(f"{self.name}-read")


# --- the tests -----------------------------------------------------------------------------------------------------------


def serve(consumer):
    wire.barrier(f"{consumer.name}-begins")
    consumer.serve()
    try:
        wire.barrier(f"{consumer.name}-serving")
        consumer.quiet()
        wire.barrier(f"{consumer.name}-used")
    finally:
        consumer.serve_no_more()


def use(consumer, mib, results):
    """Runs the tests of a consumer. Returns whether all have passed."""
    name = "attach"
    wire.barrier(f"{consumer.name}-begins")
    wire.barrier(f"{consumer.name}-serving")
    tests = consumer.use(mib)
    try:
        began = time.monotonic()
        for following in tests:
            if name != "attach":
                results.passed(f"{consumer.name}/{name}", time.monotonic() - began)
            name, began = following, time.monotonic()
        results.passed(f"{consumer.name}/{name}", time.monotonic() - began)
    except (Failed, OSError, subprocess.SubprocessError) as wrong:
        results.failed(f"{consumer.name}/{name}", wrong)
        return False
    wire.barrier(f"{consumer.name}-used")
    return True


def main(about, consumers, mib, region):
    """Tests the consumers that the arguments choose, with `mib` MiB by default, and disks of at most `region` MiB. Returns the exit status."""
    args = sys.argv[1:]
    if "--help" in args or "-h" in args:
        print(about)
        return 0
    if "--mib" in args:
        at = args.index("--mib")
        mib = int(args[at + 1])
        del args[at : at + 2]
    has_link = "--no-link" not in args
    args = [a for a in args if a != "--no-link"]
    names = {c.name: c for c in consumers}
    unknown = [a for a in args if a not in names]
    if unknown:
        print(f"FAILED: no consumer is called {unknown[0]}: {' '.join(names)}")
        return 1
    storage.ADDRESS, storage.BLOCKS = SERVER, min(mib, region) * MIB // BLOCK
    wire.shared(f"gid.{NUMBER}", port_gid())
    # Only vm1 has results.
    results = Results() if NUMBER == 1 else None
    for name in args or names:
        consumer = names[name]()
        consumer.has_link = has_link
        if NUMBER == 2:
            serve(consumer)
            continue
        # After a failure the server's part may be anywhere, so the other consumers do not run.
        if not use(consumer, mib, results):
            break
    return results.end() if results else 0

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: the programs of ibverbs-utils and rdmacm-utils. For `programs`.

Several of them exit with 0 after a failure, or check the data at one end only, so the output of both ends is checked.
"""
import os
import re
import select
import subprocess
import time

from perftest import ATTEMPTS, Failed, both, end, listening, next_port, serve, start, stop, wait_listening, wrote

CONNECTS = int(os.environ.get("VERBENA_CONNECTS", "2000"))
WRONG = re.compile(r"invalid data|verification failed|mismatch|bogus|error|unable|fail", re.I)


def expect(outputs, pattern, times=1):
    """Each output must have the line of success `times` times, and no word of an error."""
    for out in outputs:
        wrong = WRONG.search(out)
        if wrong:
            raise Failed(f"'{wrong[0]}' in {out[-400:].strip()}")
        if len(re.findall(pattern, out, re.M)) != times:
            raise Failed(f"the output does not have {times} lines '{pattern}': {out[-400:].strip()}")


def refused(command, message):
    try:
        end(start(*command), command[0], 20)
    except Failed as e:
        if message not in str(e):
            raise Failed(f"it fails without the message '{message}': {e}") from None
    else:
        raise Failed(f"it is not refused: '{message}'")


PIECE = 8192
# Prints the length of a file, and a digest of each piece.
DIGESTS = f"""
import hashlib, sys
data = open(sys.argv[1], "rb").read()
print(len(data), *[hashlib.sha256(data[at : at + {PIECE}]).hexdigest()[:8] for at in range(0, len(data), {PIECE})])
"""


def differing(path, digests):
    """Compares a file with the length and the digests of the other end. Returns nothing, or a sentence about the differences."""
    length, *pieces = end(start("python3", "-c", DIGESTS, path), "digests", 60).split()
    if digests[:1] != [length]:
        return f"the copy has {digests[:1]} bytes, not {length}"
    wrong = [n for n, (ours, theirs) in enumerate(zip(pieces, digests[1:], strict=True)) if ours != theirs]
    return f"{len(wrong)} of {len(pieces)} pieces of {PIECE} bytes differ: {wrong[:20]}" if wrong else ""


class Programs:
    def __init__(self, device, address, gid, own=None):
        """`address` is the servers' address, `own` the own address of each end. If `gid` is empty, the pingpongs address their peer by its LID."""
        self.device, self.address, self.own = device, address, own or address
        self.path = () if gid == "" else ("-g", gid)

    def tests(self):
        return self.pingpongs() + self.managed() + self.timestamps()

    # Tests of ibverbs-utils.

    def pingpong(self, kind, *more):
        port = next_port()
        command = (f"ibv_{kind}_pingpong", "-d", self.device, *self.path, "-p", port, *more)
        out = both(command, (*command, self.address), lambda: listening(port), limit=60)
        expect(out, r"^\d+ iters in \d")

    def pingpongs(self):
        found = []
        variants = {
            "rc": {"": (), "events": ("-e",), "new": ("-N",), "new_events": ("-N", "-e"), "64k": ("-s", 65536), "mtu_256": ("-m", 256)},
            "uc": {"": (), "events": ("-e",), "64k": ("-s", 65536), "mtu_256": ("-m", 256)},
            "ud": {"": (), "events": ("-e",), "64": ("-s", 64)},
            "srq": {"": (), "events": ("-e",), "64k": ("-s", 65536), "100_qps": ("-q", 100)},
        }
        for kind, options in variants.items():
            for name, more in options.items():
                # -c: the server checks the last data that it received.
                run = lambda k=kind, m=more: self.pingpong(k, "-n", 1000, "-c", *m)
                found.append((f"pingpong/{kind}{name and '_' + name}", run))
        for name, more in {"": (), "_events": ("-e",), "_64k": ("-s", 65536)}.items():
            found.append((f"pingpong/xsrq{name}", lambda m=more: self.xsrq(*m)))
        no_odp = "The device isn't ODP capable"
        for kind, option, message in (
            ("rc", "-o", no_odp),
            ("rc", "-O", no_odp),
            ("srq", "-o", no_odp),
            ("xsrq", "-o", no_odp),
            ("rc", "-j", "Device doesn't support dm allocation"),
        ):
            command = (f"ibv_{kind}_pingpong", "-d", self.device, *self.path, option)
            found.append((f"pingpong/{kind}_refused{option}", lambda c=command, m=message: refused(c, m)))
        return found

    def timestamps(self):
        """Tests of completion timestamps; rc_pingpong prints the longest time between two messages.

        Not with events: rc_pingpong treats an event of an empty CQ as an error, and causes such an event when it polls a second completion
        that arrived after it armed the CQ.
        """
        variants = {"": (), "_new": ("-N",)}
        return [(f"pingpong/rc_timestamps{n}", lambda m=m: self.timed(*m)) for n, m in variants.items()]

    def timed(self, *more):
        port = next_port()
        command = ("ibv_rc_pingpong", "-d", self.device, *self.path, "-p", port, "-n", 1000, "-c", "-t", *more)
        out = both(command, (*command, self.address), lambda: listening(port), limit=60)
        expect(out, r"^\d+ iters in \d")
        expect(out, r"^Max receive completion clock cycles = [1-9]\d*$")

    def xsrq(self, *more):
        """SRQs that two other processes use."""
        port = next_port()
        command = ("ibv_xsrq_pingpong", "-d", self.device, *self.path, "-n", 200, "-p", port, *more)
        second = []
        try:
            # The second client runs at the same time as the first.
            client = lambda: second.append(start(*command, self.address)) or listening(port)
            out = both((*command, "-c", 2), (*command, self.address), lambda: listening(port) and client(), limit=60)
            expect((*out, end(second[0], command[0], 30)), r"^success$")
        finally:
            for process in second:
                stop(process)

    # Tests of rdmacm-utils.

    def pair(self, server, client, pattern, times=1, port=None):
        """`port`: the fixed port of a program without an option for it."""
        if port is None:
            port = next_port()
            server, client = (*server, "-p", port), (*client, "-p", port)
        expect(both(server, client, lambda: listening(port), limit=60), pattern, times)

    def polled(self, *how):
        """With -T a, the programs report an error if the other end closes before they have polled its last message. On a busy machine that
        happens more often than not, so the test is repeated."""
        attempts = 4 * ATTEMPTS
        for attempt in range(attempts):
            try:
                return self.pair(*how)
            except Failed as e:
                if "ended with 16:" not in str(e) or attempt == attempts - 1:
                    raise

    def managed(self):
        found = []
        a, own = self.address, self.own

        def test(name, server, client, pattern, times=1, port=None, how=self.pair):
            found.append((f"cm/{name}", lambda: how(server, client, pattern, times, port)))

        done = r"^(data transfers complete|return status 0)$"
        for name, more in {
            "": ("-C", 100, "-S", 1000),
            "_20_connections": ("-c", 20, "-C", 10, "-S", 65536),
            "_migrate": ("-m", "-C", 10),
            "_ack_timeout": ("-a", 16, "-C", 10),
        }.items():
            test(f"ucmatose{name}", ("ucmatose", "-b", a, *more), ("ucmatose", "-s", a, "-b", own, *more), done, 2)
        for name, more in {"": ("-C", 100, "-S", 1000), "_10_connections": ("-c", 10, "-C", 20, "-S", 64)}.items():
            test(f"udaddy{name}", ("udaddy", "-b", a, *more), ("udaddy", "-s", a, "-b", own, *more), done, 2, port=7174)
        row = r"^custom +\w+ +\d+ +\d+ +\w+ +\d+\.\d+s +\d+\.\d+ +\d+\.\d+$"
        for program, modes in (("rstream", "abnfr"), ("riostream", "abn")):
            for name, more in {
                **{f"_{m}": ("-T", m, "-S", 4096, "-C", 50, "-I", 50) for m in modes},
                **{f"_{size}": ("-T", "v", "-S", size, "-C", 10, "-I", 10) for size in (64, 65536, 1048576)},
                "_inline": ("-T", "v", "-i", 512, "-S", 512, "-C", 50, "-I", 10),
            }.items():
                how = self.polled if name == "_a" else self.pair
                test(f"{program}{name}", (program, "-b", a, *more), (program, "-s", a, *more), row, how=how)
        test("rdma_server", ("rdma_server", "-s", a), ("rdma_client", "-s", a), r"^rdma_(server|client): end 0$")
        for how in "rx":
            test(
                f"rdma_xserver_{how}",
                ("rdma_xserver", "-c", how),
                ("rdma_xclient", "-s", a, "-c", how),
                r"^rdma_x(server|client): end 0$",
            )
        for name, more in {"": (), "_4k": ("-S", 4096), "_own_qp": ("-q",)}.items():
            # In each round both ends print the data that the other has written.
            server, client = (("rping", e, "-a", a, "-v", "-V", "-C", 10, *more) for e in ("-s", "-c"))
            test(f"rping{name}", server, client, r"^(server )?ping data: rdma-ping-\d+: ", 10)
        # -v would print all data. The server reports the end of the connection as an unexpected state.
        server, client = (("rping", e, "-a", a, "-V", "-C", 100, "-S", 65535) for e in ("-s", "-c"))
        test("rping_64k", server, client, r"\A(\w+ DISCONNECT EVENT\.\.\.\n|wait for RDMA_READ_ADV state 10\n)*\Z")
        found.append(("cm/rcopy", self.rcopy))
        # Not with -o: with it the sender destroys its queue pair without waiting for its sends. The device executes commands before
        # doorbells, so often no message is sent. Without -o, the sender detaches first, which takes long enough.
        found.append(("cm/mckey", self.mckey))
        # The flag of the queue pair against loopback is not supported.
        not_looped_back = ("mckey", "-m", "239.1.2.3", "-b", own, "-l")
        found.append(("cm/mckey_refused-l", lambda: refused(not_looped_back, "unable to create QP: Operation not supported")))
        # udpong makes an address handle without a GRH, which RoCE devices must refuse; rxe does too.
        found.append(("cm/udpong_refused", self.udpong))
        found.append((f"cm/cmtime_{CONNECTS}", self.cmtime))
        found.append(("cm/rping_200", self.rping_200))
        return found

    def rcopy(self):
        source, copy = "/tmp/rcopy.source", "/tmp/rcopy.copy"
        data = os.urandom(20_000_003)
        with open(source, "wb") as f:
            f.write(data)
        port = next_port()
        # rcopy serves until it is killed.
        server = serve("rcopy", "-p", port)
        try:
            wait_listening(port, server)
            out = end(start("rcopy", source, f"{self.address}:{copy}", "-p", port), "rcopy", 60)
            if f"{len(data)} bytes in" not in out:
                raise Failed(f"rcopy reports no transfer: {out[-300:].strip()}")
            found = self.compare(source, copy)
            if found:
                time.sleep(2)
                raise Failed(f"the copy differs: {found}; two seconds later: {self.compare(source, copy) or 'no more'}")
        finally:
            stop(server)
            for remove, path in (start, source), (serve, copy):
                end(remove("rm", "-f", path), "rm", 20)

    @staticmethod
    def compare(source, copy):
        """Compares the server's copy of a file with the file."""
        return differing(source, end(serve("python3", "-c", DIGESTS, copy), "digests", 60).split())

    def mckey(self):
        """A multicast group that is joined by the connection manager. Messages sent before the receiver has joined are lost."""
        common = ("mckey", "-m", "239.1.2.3", "-C", 20, "-b")
        receiver, seen = start("stdbuf", "-oL", *common, self.own), ""
        try:
            while "joined dgid" not in seen:
                ready = select.select([receiver.stdout], [], [], 20)[0]
                more = os.read(receiver.stdout.fileno(), 4096).decode() if ready else ""
                if not more:
                    raise Failed(f"the receiver has not joined: {seen.strip()}")
                seen += more
            sent = end(serve(*common, self.address, "-s"), "mckey sender", 60)
            expect((sent, seen + end(receiver, "mckey receiver", 20)), r"^(data transfers complete|return status 0)$", 2)
        finally:
            stop(receiver)

    def udpong(self):
        port = next_port()
        server = start("udpong", "-b", self.address, "-p", port)
        try:
            refused(("udpong", "-s", self.address, "-p", port, "-C", 20, "-S", 512), "rconnect: ")
        finally:
            stop(server)

    def cmtime(self):
        """$VERBENA_CONNECTS connects (2000), 100 at a time, half of them with the client's own queue pairs: no memory may be leaked."""
        turns = CONNECTS // 200
        for i in range(turns):
            if i == 1:
                before = kept()
            port = next_port()
            # The second half uses invented queue pair numbers, which must differ between the ends.
            server = ("cmtime", "-b", self.address, "-c", 100, "-p", port)
            client = ("cmtime", "-b", self.own, "-s", self.address, "-c", 100, "-q", 100000, "-p", port)
            out = both(server, client, lambda p=port: listening(p, tcp=True), limit=240)
            expect(out, r"^(qp|cm)_conn +100$", 2)
            expect(out, r"^full connect +\d+ ", 2)
        no_growth(before, (turns - 1) * 201)

    def rping_200(self):
        """Connects one after the other, for the kernel's part of the connection manager: QP1, kernel CQs, kernel post and poll."""
        port = next_port()
        server = serve("rping", "-s", "-P", "-a", self.address, "-p", port)
        try:
            wait_listening(port, server)
            for i in range(200):
                if i == 20:
                    before = kept()
                try:
                    out = end(start("rping", "-c", "-a", self.address, "-p", port, "-C", 2, "-V", "-v"), "rping", 20)
                    expect([out], r"^ping data: ", 2)
                except Failed as e:
                    raise Failed(f"connect {i + 1}: {e}; the server {wrote(server)}") from None
            if server.poll() is not None:
                raise Failed(f"the server ended: {server.stdout.read()[-300:].strip()}")
            no_growth(before, 180)
        finally:
            stop(server)


def no_growth(before, connects):
    """Allows half a kilobyte of small objects for each connect, and half a page in total, but at least some noise."""
    slab_most, all_most = max(connects / 2, 512), max(connects * 2, 3072)
    # The connection manager keeps connections for some seconds.
    for _ in range(30):
        slab, available = (now - then for then, now in zip(before, kept()))
        if slab <= slab_most and available >= -all_most:
            return
        time.sleep(1)
    raise Failed(f"after {connects} connects there are {slab} kB more of slab, and {-available} kB less available")


def kept():
    """Returns the size of the slab and the available memory, in kB."""
    subprocess.run(["sync"], check=True)
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")
    time.sleep(1)
    with open("/proc/meminfo") as f:
        found = {line.split(":")[0]: int(line.split()[1]) for line in f}
    # Each processor keeps free pages on its own lists, many after much work; the kernel does not count these as free.
    with open("/proc/zoneinfo") as f:
        pages = sum(int(n) for n in re.findall(r"^ +count: +(\d+)$", f.read(), re.M))
    return found["Slab"], found["MemAvailable"] + pages * os.sysconf("SC_PAGE_SIZE") // 1024

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a row of `users` is: a test of somebody's program, and the place where it runs."""
import os
import re
import signal
import subprocess
import tempfile
import time
from typing import Callable, NamedTuple, Optional

import perftest
from perftest import Failed


class NotHere(Failed):
    """It cannot run here: what is missing. The row says so, and counts for nothing."""


class Figure(NamedTuple):
    value: float
    unit: str  # us: the less the better; all others: the more

    @classmethod
    def of(cls, out, pattern, unit):
        """The last number that the pattern finds."""
        found = re.findall(pattern, out, re.M)
        if not found:
            raise Failed(f"no figure in {out[-300:].strip()}")
        return cls(float(found[-1]), unit)


class Part(NamedTuple):
    """One of the many tests of a suite."""

    name: str
    result: str  # pass, fail, nothere
    why: str = ""


class Row(NamedTuple):
    name: str  # group/test
    program: str
    package: str  # Debian's, whose version is told; or the suite's directory in what was built
    run: Callable  # of a Place; a Figure, a list of Parts or None; raises Failed or NotHere
    pair: Optional[bool] = None  # in one guest, between two; None: both


class Place:
    """A device in one guest or two, and how programs are started there.

    Commands are lines for bash. Both ends find DEVICE, GID, ADDRESS (their own) and NETDEV in their environment, OTHER_NETDEV, which is empty
    or what another RDMA device of the guest is on, and SERVER, where servers run.
    """

    def __init__(self, device, peer=None):
        self.device, self.peer = device, peer
        perftest.peer = peer
        use(device)
        if peer:
            peer.agent.use(device)
        self.server = peer.agent.address() if peer else os.environ["ADDRESS"]
        os.environ["SERVER"] = self.server

    @property
    def pair(self):
        return self.peer is not None

    @property
    def rxe(self):
        return self.device.startswith("rxe")

    def run(self, line, limit=120):
        """What it wrote, both of its streams; it has to end with 0."""
        return perftest.end(perftest.start("bash", "-c", line), line.split()[0], limit)

    def watched(self, line, idle):
        """What it wrote, both of its streams, until it ended; or was silent for `idle` seconds and is killed, as the second says, or is empty."""
        with tempfile.TemporaryFile() as written:
            process = subprocess.Popen(["bash", "-c", line], stdout=written, stderr=subprocess.STDOUT, start_new_session=True)
            size, since, silent = 0, time.monotonic(), ""
            while process.poll() is None:
                time.sleep(0.1)
                if os.fstat(written.fileno()).st_size != size:
                    size, since = os.fstat(written.fileno()).st_size, time.monotonic()
                elif time.monotonic() - since > idle:
                    silent = f"said nothing for {idle} s"
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            written.seek(0)
            return written.read().decode(errors="replace"), silent

    def both(self, server, client, limit=120, port=None):
        """What server and client wrote. In both lines PORT is a free port number, or `port` for programs whose port is fixed."""
        port = port or perftest.next_port()
        lines = (("bash", "-c", line.replace("PORT", str(port))) for line in (server, client))
        return perftest.both(*lines, lambda: perftest.listening(port), limit)

    def served(self, server, client, limit=120):
        """The same with a server that has no end: what the client wrote."""
        port = perftest.next_port()
        running = perftest.serve("bash", "-c", "exec " + server.replace("PORT", str(port)))
        try:
            perftest.wait_listening(port, running)
            return self.run(client.replace("PORT", str(port)), limit)
        finally:
            perftest.stop(running)


def use(device):
    """Here programs shall use this device; those that come by ssh, too."""
    rxe = device.startswith("rxe")
    both = [os.environ[name] for name in ("VERBENA_NETDEV", "RXE_NETDEV") if name in os.environ]
    netdev = both[-1 if rxe else 0]
    shown = subprocess.run(["ip", "-o", "-4", "addr", "show", "dev", netdev], capture_output=True, text=True, check=True).stdout
    env = {
        "DEVICE": device,
        "GID": os.environ["RXE_GID" if rxe else "VERBENA_GID"],
        "NETDEV": netdev,
        "OTHER_NETDEV": " ".join(n for n in both if n != netdev),
        "ADDRESS": re.search(r"inet ([\d.]+)/", shown)[1],
    }
    os.environ.update(env)
    with open("/run/users.env", "w") as f:
        f.writelines(f"export {name}={value}\n" for name, value in env.items())


def version(package):
    """Of a Debian package, or of a suite that was built from its source."""
    told = f"{SUITES}/{package}/version"
    if os.path.exists(told):
        with open(told) as f:
            return f.read().strip()
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    return shown.stdout.strip() or "?"


# What was built from its source, shared by the host.
SUITES = "/mnt/host"


def suite(name):
    """Where a suite was built."""
    path = f"{SUITES}/{name}"
    if not os.path.isdir(path):
        raise NotHere("not given (Documentation/users.md says which sources a user names)")
    return path

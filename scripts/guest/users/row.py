# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A row of `users`: a test of a program of another project, and the place where it runs."""
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
    """The row cannot run here; the text says what is missing. The row counts neither as passed nor as failed."""


class Figure(NamedTuple):
    value: float
    unit: str  # us: less is better; all others: more is better

    @classmethod
    def of(cls, out, pattern, unit):
        """Returns the last number that the pattern finds."""
        found = re.findall(pattern, out, re.M)
        if not found:
            raise Failed(f"no result in the output: {out[-300:].strip()}")
        return cls(float(found[-1]), unit)


class Part(NamedTuple):
    """A test of a suite with many tests."""

    name: str
    result: str  # pass, fail, nothere
    why: str = ""


class Row(NamedTuple):
    name: str  # group/test
    program: str
    package: str  # Debian package, whose version is reported; or the directory of a built suite
    run: Callable  # takes a Place; returns a Figure, a list of Parts or None; raises Failed or NotHere
    pair: Optional[bool] = None  # False: in one guest, True: between two, None: both


class Place:
    """A device in one guest or two, and functions that start programs there.

    Commands are lines for bash. In both guests, the environment has DEVICE, GID, ADDRESS (the guest's own), NETDEV, OTHER_NETDEV, which is the
    net device of another RDMA device or empty, and SERVER, the address of servers.
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
        """Runs a command, which must exit with 0. Returns its standard output and standard error."""
        return perftest.end(perftest.start("bash", "-c", line), line.split()[0], limit)

    def watched(self, line, idle):
        """Runs a command until it ends, or prints nothing for `idle` seconds and is killed. Returns its standard output and standard error,
        and a text for the second case, or an empty one."""
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
        """Returns the outputs of server and client. In both lines PORT stands for a free port, or for `port` if a program has a fixed one."""
        port = port or perftest.next_port()
        lines = (("bash", "-c", line.replace("PORT", str(port))) for line in (server, client))
        return perftest.both(*lines, lambda: perftest.listening(port), limit)

    def served(self, server, client, limit=120):
        """The same with a server that does not end by itself. Returns the client's output."""
        port = perftest.next_port()
        running = perftest.serve("bash", "-c", "exec " + server.replace("PORT", str(port)))
        try:
            perftest.wait_listening(port, running)
            return self.run(client.replace("PORT", str(port)), limit)
        finally:
            perftest.stop(running)


def use(device):
    """Sets the environment of programs in this guest, also of those started by ssh, to this device."""
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
    """Returns the version of a Debian package, or of a suite that was built from source."""
    path = f"{SUITES}/{package}/version"
    if os.path.exists(path):
        with open(path) as f:
            return f.read().strip()
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    return shown.stdout.strip() or "?"


# The suites that were built from source, in a directory that the host shares.
SUITES = "/mnt/host"


def suite(name):
    """Returns the directory of a suite."""
    path = f"{SUITES}/{name}"
    if not os.path.isdir(path):
        raise NotHere("not given (Documentation/users.md says which sources a user names)")
    return path

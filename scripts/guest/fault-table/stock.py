# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Stock programs, a server and a client under rules, and the completions that they print."""
import os
import re
import subprocess
import tempfile
import time
from typing import NamedTuple

import perftest
from perftest import Failed
from row import STATUSES, Row, applied, faults, recorded, said

# How perftest, ibverbs-utils and rping print a completion in error.
ERRORS = (
    re.compile(r"Failed status (?P<status>\d+): wr_id \d+ syndrom (?P<vendor_err>0x[0-9a-f]+)"),
    re.compile(r"Failed status [^\n(]*\((?P<status>\d+)\) for wr_id"),
    re.compile(r"cq completion failed status (?P<status>\d+)"),
)
QPN = re.compile(r"local address:.*?QPN (0x[0-9a-f]+)")


class End(NamedTuple):
    """The output of a program, and its exit status; None if it had to be killed."""

    out: str
    status: int | None

    def reported(self):
        """Returns the first completion in error that the program printed."""
        for pattern in ERRORS:
            if found := pattern.search(self.out):
                parts = found.groupdict()
                found = {"status": STATUSES[int(parts["status"])]}
                if "vendor_err" in parts:
                    found["vendor_err"] = int(parts["vendor_err"], 16)
                elif QPN.search(self.out):
                    # The program does not print the vendor_err.
                    found["vendor_err"] = self.recorded()[1]
                return found
        if self.status == 0:
            return {"status": "IBV_WC_SUCCESS", "vendor_err": 0}
        raise Failed(f"the program ended with {self.status} and printed no completion: {self.out[-300:]}")

    def recorded(self):
        """Returns the state of the program's queue pair, and the cause."""
        found = QPN.search(self.out)
        if not found:
            raise Failed(f"the program did not print its queue pair: {self.out[-300:]}")
        return recorded(found[1])


def line(command, port, *options):
    """Returns the command of the server and that of the client."""
    own = [command, *map(str, options), "-p", str(port)]
    if command == "rping":
        return [*own, "-s", "-a", "10.0.0.1"], [*own, "-c", "-a", "10.0.0.1"]
    own += ["-d", os.environ["DEVICE"], "-x" if command.startswith("ib_") else "-g", os.environ["GID"]]
    return own, [*own, "127.0.0.1"]


def run(command, *options, patience=0.5):
    """Runs a server and a client, and returns both as `End`. A server may wait for ever for a client that has gone, so it is killed after
    `patience` seconds."""
    port = perftest.next_port()
    outs = [tempfile.TemporaryFile("w+") for _ in range(2)]
    processes = []

    def start(command, out):
        processes.append(subprocess.Popen(["stdbuf", "-oL", *command], stdout=out, stderr=subprocess.STDOUT))

    def wait(process, seconds):
        try:
            return process.wait(seconds * faults.SLOW)
        except subprocess.TimeoutExpired:
            return None

    try:
        server, client = line(command, port, *options)
        start(server, outs[0])
        deadline = time.monotonic() + 20 * faults.SLOW
        while not perftest.listening_here(port):
            if processes[0].poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{command}: the server does not listen")
            time.sleep(0.05)
        start(client, outs[1])
        ended = [None, wait(processes[1], 60)]
        ended[0] = wait(processes[0], patience)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for out in outs:
        out.seek(0)
    return [End(out.read(), status) for out, status in zip(outs, ended)]


def row(of, vendor_err, rules, command, *options, state="ERR", at="client", peer=None):
    """
    A row with a program under rules: the report at one end (`at`), and the state of its queue pair. `peer` has the expected fields of the other
    end, without their prefix peer_.
    """
    is_heard = at == "server" or of == "IBV_WC_SUCCESS" or "status" in (peer or {})

    def test():
        with applied(rules):
            server, client = run(command, *options, patience=10 if is_heard else 0.5)
        own, other = (client, server) if at == "client" else (server, client)
        found = own.reported()
        if state:
            found["state"] = own.recorded()[0]
        if peer and "status" in peer:
            found |= {f"peer_{what}": value for what, value in other.reported().items()}
        if peer and "state" in peer:
            found["peer_state"] = other.recorded()[0]
        return found

    wanted = {"status": of} | ({"vendor_err": vendor_err} if vendor_err is not None else {}) | ({"state": state} if state else {})
    wanted |= {f"peer_{what}": value for what, value in (peer or {}).items()}
    return Row(of, said(rules), " ".join([command, *map(str, options)]), wanted, test)

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: a server and a client of one program, and what perftest prints. For `perftest-table` and `programs`.

perftest prints 0 or inf, and succeeds, where it cannot tell the CPU's frequency, which happens when the machine is busy while
it samples the clock, which it does anew for each row: such a row is no result, and is measured again.
"""
import math
import re
import subprocess
import time

ATTEMPTS = 5
_port = 18515


class Failed(Exception):
    pass


class NoClock(Failed):
    """perftest found no clock: all figures of a row are 0, inf or nan."""


def listening(port):
    """A server waits on the TCP port through which both ends exchange addresses."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(path) as f:
            for line in f:
                field = line.split()
                if field[3] == "0A" and field[1].endswith(f":{port:04X}"):
                    return True
    return False


def start(*command):
    return subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process, what, limit):
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        raise Failed(f"{what} did not end within {limit} s: {out[-300:].strip()}") from None
    if process.returncode:
        raise Failed(f"{what} ended with {process.returncode}: {out[-400:].strip()}")
    return out


def pair(address, *command, limit=240, meanwhile=None):
    """A server and a client of the same program with the same options; the client's output."""
    global _port
    _port += 1  # the last port may still be in TIME_WAIT
    server = start(*command, "-p", _port)
    client = None
    try:
        deadline = time.monotonic() + 20
        if "-R" in command:
            time.sleep(3)  # it listens through rdma_cm, which no table shows
        while "-R" not in command and not listening(_port):
            if server.poll() is not None:
                raise Failed(f"the server ended with {server.returncode}: {server.stdout.read()[-400:].strip()}")
            if time.monotonic() > deadline:
                raise Failed("the server did not listen within 20 s")
            time.sleep(0.02)
        client = start(*command, "-p", _port, address)
        if meanwhile:
            time.sleep(2)
            meanwhile()
        out = end(client, f"{command[0]} client", limit)
        end(server, f"{command[0]} server", 20)
        return out
    finally:
        for p in (server, client):
            if p and p.poll() is None:
                p.kill()
                p.wait()


def rows(out, count):
    """The rows of figures that perftest printed: as many as were asked for."""
    found = [[float(f) for f in line.split()] for line in out.splitlines() if re.match(r"^ *\d+ +\d+ ", line)]
    if len(found) != count:
        raise Failed(f"{len(found)} rows of figures, not {count}: {out[-400:].strip()}")
    return found


def timed(row):
    """perftest had a clock when it measured this row."""
    return any(f != 0 and math.isfinite(f) for f in row[2:])


def again(measure):
    """What `measure` returns, tried some times if it finds no clock."""
    for attempt in range(ATTEMPTS):
        try:
            return measure()
        except NoClock:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.5)

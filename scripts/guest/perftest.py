# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: runs a server and a client, and reads the output of perftest. For `perftest-table` and `programs`.

If `peer` is set, the servers run in another guest, where an agent (`agent.py`) starts them. Words @NAME in commands are replaced by the
variable NAME of the guest where the command runs (DEVICE, GID, ADDRESS, ...).

perftest measures the CPU's frequency for each row. On a busy machine this may fail: then it prints 0 or inf, and still exits with 0. Such a
row is measured again.
"""
import contextlib
import glob
import json
import math
import os
import re
import signal
import subprocess
import time

ATTEMPTS = 5
# Factor for all times on this kernel. Limits are for the stock kernel.
SLOW = int(os.environ.get("VERBENA_SLOW", "1"))
_port = 18515
# The agent of the guest where servers run, or None for this guest.
peer = None


class Failed(Exception):
    pass


class Again(Failed):
    """The measurement has no result and must be repeated."""


class NoClock(Again):
    """perftest found no CPU clock: all values of a row are 0, inf or nan."""


class NoListener(Again):
    """
    The client connected before the connection manager knew the server's service ID. With `-R`, the ends of perftest 25.01 agree over TCP that
    both are ready; only then the server listens and the client connects. So the client cannot be made to wait for the server.
    """


def chosen(name, filters):
    """True if the name contains no filter that begins with `!`, and one of the other filters, if there are some."""
    wanted = [f for f in filters if f[0] != "!"]
    unwanted = any(f[1:] in name for f in filters if f[0] == "!")
    return not unwanted and (not wanted or any(f in name for f in wanted))


def peer_is_another():
    """True if the other end may have another kind of device."""
    return peer is not None


def next_port():
    """Returns a new port, because the last one may still be in TIME_WAIT."""
    global _port
    _port += 1
    return _port


def listening_tcp(port):
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(path) as f:
            for line in f:
                field = line.split()
                if field[3] == "0A" and field[1].endswith(f":{port:04X}"):
                    return True
    return False


def listening(port, tcp=False):
    """True if a server listens at the port: over TCP, by which the ends exchange addresses, or, unless `tcp` is set, with rdma_cm."""
    return peer.listening(port, tcp) if peer else listening_here(port, tcp)


def listening_here(port, tcp=False):
    if listening_tcp(port):
        return True
    if tcp:
        return False
    found = json.loads(subprocess.run(["rdma", "-j", "resource", "show", "cm_id"], capture_output=True, check=True).stdout)
    listeners = [i for i in found if i.get("state") == "LISTEN" and i.get("src-addr", "").endswith(f":{port}")]
    for listener in listeners:
        wait_called(listener.get("pid"))
    return bool(listeners)


def wait_called(pid, limit=2):
    """
    Waits until no thread of the process is in a call of the connection manager. An ID is in the state LISTEN shortly before its service ID can
    be found, and a client of perftest 25.01 that is rejected in between uses freed memory. For threads that never sleep, waits up to `limit`
    seconds.
    """
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        calls = []
        for path in glob.glob(f"/proc/{pid}/task/*/syscall"):
            with contextlib.suppress(OSError), open(path) as f:
                calls.append(f.read().split()[0])
        # System call 1 is write(2), by which programs call the connection manager.
        if not {"1", "running"} & set(calls):
            return
        time.sleep(0.02)


def wait_listening(port, server):
    """Waits until a server listens that does not end by itself."""
    deadline = time.monotonic() + 120 * SLOW
    while not listening(port):
        if server.poll() is not None:
            raise Failed(f"the server ended with {server.returncode}: {server.stdout.read()[-400:].strip()}")
        if time.monotonic() > deadline:
            raise Failed("the server does not listen")
        time.sleep(0.05)


class Process(subprocess.Popen):
    """A process that is killed together with its children, which would keep its output open (fio's do)."""

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def start(*command):
    own = [os.environ[c[1:]] if str(c).startswith("@") else str(c) for c in command]
    return Process(own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def serve(*command):
    """Starts a program where servers run."""
    return peer.start(*command) if peer else start(*command)


def end(process, what, limit):
    try:
        out, _ = process.communicate(timeout=limit * SLOW)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        raise Failed(f"{what} did not end within {limit * SLOW} s: {out[-300:].strip()}") from None
    out, code = without_late_event(what.split()[0], process.returncode, out)
    if code:
        raise Failed(f"{what} ended with {code}: {out[-400:].strip()}")
    return out


def without_late_event(program, code, out):
    """
    Returns the output and the status of a program without the effects of a bug of rping.

    Before rdma-core 59 (upstream 1622 repairs it), a thread of rping may ask for one more event after the main thread has closed the event
    channel, and then ends the process with -1 although all work is done. Any other error prints a line of its own.
    """
    before, late, behind = out.partition("rdma_get_cm_event: Bad file descriptor\n")
    usual = r"(\w+ DISCONNECT EVENT\.\.\.\n|wait for RDMA_READ_ADV state 10\n|(server )?ping data: .*\n)*"
    if (program, code) == ("rping", 255) and late and re.fullmatch(usual, before + behind):
        return before + behind, 0
    return out, code


def excuse_crash(process):
    """
    A client of perftest 25.01 that was rejected uses freed memory (upstream 3d9d8d07 repairs it) and may crash. This line in the kernel log
    makes `scripts/vm` ignore the kernel's report about this process.
    """
    name = os.path.basename(str(process.args[0]))
    with open("/dev/kmsg", "w") as f:
        f.write(f"verbena: the crash of {name}[{process.pid}] is a bug of the program\n")


def stop(process):
    if process and process.poll() is None:
        process.kill()
        process.communicate()


def wrote(process):
    """Returns the output of a process and how it ended: by itself within two seconds, or killed."""
    try:
        out, _ = process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    return f"(ended with {process.returncode}) wrote: {out[-400:].strip()}"


def both(server, client, ready, limit=240, meanwhile=None):
    """Runs a server and a client, and returns their outputs. The client starts when `ready` is true. Both must exit with 0."""
    names = [f"{command[0]} {end}" for command, end in ((server, "server"), (client, "client"))]
    server = serve(*server)
    started = None
    try:
        deadline = time.monotonic() + 20 * SLOW
        while not ready():
            if server.poll() is not None:
                raise Failed(f"the server ended with {server.returncode}: {server.stdout.read()[-400:].strip()}")
            if time.monotonic() > deadline:
                raise Failed(f"the server was not ready within {20 * SLOW} s")
            time.sleep(0.02)
        started = start(*client)
        if meanwhile:
            time.sleep(2)
            meanwhile()
        try:
            out = end(started, names[1], limit)
        except Failed as e:
            # IB_CM_REJ_INVALID_SERVICE_ID
            if "RDMA_CM_EVENT_REJECTED; error: 8." not in str(e):
                raise Failed(f"{e}; the server {wrote(server)}") from None
            excuse_crash(started)
            raise NoListener(str(e)) from None
        return end(server, names[0], 20), out
    finally:
        stop(server)
        stop(started)


def pair(address, *command, limit=240, meanwhile=None):
    """Runs a server and a client of the same program with the same options. Returns the client's output."""
    port = next_port()
    command = (*command, "-p", port)
    return both(command, (*command, address), lambda: listening(port), limit, meanwhile)[1]


def rows(out, count):
    """Returns the rows of results that perftest printed; their number must be `count`."""
    # A message about the clock may follow on the same line.
    lines = [re.split("[A-Z]", line)[0] for line in out.splitlines() if re.match(r"^ *\d+ +\d+ ", line)]
    found = [[float(f) for f in line.split()] for line in lines]
    if len(found) != count:
        raise Failed(f"{len(found)} rows of results, not {count}: {out[-400:].strip()}")
    return found


def timed(row):
    """True if perftest had a clock when it measured this row."""
    return any(f != 0 and math.isfinite(f) for f in row[2:])


def again(measure):
    """Returns the result of `measure`, which is repeated a few times if it has none."""
    for attempt in range(ATTEMPTS):
        try:
            return measure()
        except Again:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.5)

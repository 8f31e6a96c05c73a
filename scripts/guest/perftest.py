# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: a server and a client, and what perftest prints. For `perftest-table` and `programs`.

The server may run in another guest, which an agent (`agent.py`) serves: then `peer` is set. What differs between the two guests
stands in commands as @NAME: the environment of each has it (DEVICE, GID, ADDRESS, ...).

perftest prints 0 or inf, and succeeds, where it cannot tell the CPU's frequency, which happens when the machine is busy while
it samples the clock, which it does anew for each row: such a row is no result, and is measured again.
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
# How many times as long as elsewhere things may take on this kernel. Limits are seconds of the stock kernel.
SLOW = int(os.environ.get("VERBENA_SLOW", "1"))
_port = 18515
# The agent of the guest where servers run, if it is not this one.
peer = None


class Failed(Exception):
    pass


class Again(Failed):
    """No result: it has to be measured again."""


class NoClock(Again):
    """perftest found no clock: all figures of a row are 0, inf or nan."""


class NoListener(Again):
    """
    The client came before the connection manager there had the server's service ID. With `-R`, perftest 25.01 agrees through TCP
    that both are ready, and then the server begins to listen and the client to connect, so nobody can wait for it.
    """


def chosen(name, filters):
    """No filter that begins with `!` is in the name, and one of the others is, if there are some."""
    wanted = [f for f in filters if f[0] != "!"]
    unwanted = any(f[1:] in name for f in filters if f[0] == "!")
    return not unwanted and (not wanted or any(f in name for f in wanted))


def peer_is_another():
    """The other end may be another kind of device."""
    return peer is not None


def next_port():
    """The last one may still be in TIME_WAIT."""
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
    """A server waits on the port: of TCP, through which both ends exchange addresses, or, but for `tcp`, of the connection manager."""
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
    Waits until no thread of the process is in a call of the connection manager: an ID is in the state LISTEN a moment before its
    service ID can be found, and the client of perftest 25.01 that is rejected then works with memory that it has freed. What
    never sleeps is waited for until the limit, in seconds.
    """
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        calls = []
        for path in glob.glob(f"/proc/{pid}/task/*/syscall"):
            with contextlib.suppress(OSError), open(path) as f:
                calls.append(f.read().split()[0])
        # write(2) carries the manager's calls.
        if not {"1", "running"} & set(calls):
            return
        time.sleep(0.02)


def wait_listening(port, server):
    """For a server that has no end."""
    deadline = time.monotonic() + 120 * SLOW
    while not listening(port):
        if server.poll() is not None:
            raise Failed(f"the server ended with {server.returncode}: {server.stdout.read()[-400:].strip()}")
        if time.monotonic() > deadline:
            raise Failed("the server does not listen")
        time.sleep(0.05)


class Process(subprocess.Popen):
    """Is killed with the processes that it has started, which would keep its output open (fio's do)."""

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def start(*command):
    own = [os.environ[c[1:]] if str(c).startswith("@") else str(c) for c in command]
    return Process(own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def serve(*command):
    """The same where servers run."""
    return peer.start(*command) if peer else start(*command)


def end(process, what, limit):
    try:
        out, _ = process.communicate(timeout=limit * SLOW)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        raise Failed(f"{what} did not end within {limit * SLOW} s: {out[-300:].strip()}") from None
    out, code = without_its_late_thread(what.split()[0], process.returncode, out)
    if code:
        raise Failed(f"{what} ended with {code}: {out[-400:].strip()}")
    return out


def without_its_late_thread(program, code, out):
    """
    What a program wrote and the status that it ended with, as they would be without a mistake of rping's.

    Before rdma-core 59 (upstream 1622 mends it) a thread of rping's may ask the event channel for one more event when the main thread has
    closed it, and then ends the process with -1, after all that rping does is done. Whatever else went wrong has a line of its own.
    """
    before, late, behind = out.partition("rdma_get_cm_event: Bad file descriptor\n")
    usual = r"(\w+ DISCONNECT EVENT\.\.\.\n|wait for RDMA_READ_ADV state 10\n|(server )?ping data: .*\n)*"
    if (program, code) == ("rping", 255) and late and re.fullmatch(usual, before + behind):
        return before + behind, 0
    return out, code


def tell_crash(process):
    """
    A client of perftest 25.01 that was rejected uses memory that it has freed (upstream 3d9d8d07 mends it), so the kernel may write that
    it died. `scripts/vm` finds the process, and no other, excused in the kernel's log.
    """
    name = os.path.basename(str(process.args[0]))
    with open("/dev/kmsg", "w") as f:
        f.write(f"verbena: the crash of {name}[{process.pid}] is its own\n")


def stop(process):
    if process and process.poll() is None:
        process.kill()
        process.communicate()


def wrote(process):
    """What a process wrote, and how it ended: by itself within two seconds, or killed."""
    try:
        out, _ = process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    return f"(ended with {process.returncode}) wrote: {out[-400:].strip()}"


def both(server, client, ready, limit=240, meanwhile=None):
    """What a server and a client wrote. The client starts when `ready` says so; both must end by themselves, and with 0."""
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
            tell_crash(started)
            raise NoListener(str(e)) from None
        return end(server, names[0], 20), out
    finally:
        stop(server)
        stop(started)


def pair(address, *command, limit=240, meanwhile=None):
    """A server and a client of the same program with the same options; the client's output."""
    port = next_port()
    command = (*command, "-p", port)
    return both(command, (*command, address), lambda: listening(port), limit, meanwhile)[1]


def rows(out, count):
    """The rows of figures that perftest printed: as many as were asked for."""
    # What it says of its clock may stand behind them on the same line.
    lines = [re.split("[A-Z]", line)[0] for line in out.splitlines() if re.match(r"^ *\d+ +\d+ ", line)]
    found = [[float(f) for f in line.split()] for line in lines]
    if len(found) != count:
        raise Failed(f"{len(found)} rows of figures, not {count}: {out[-400:].strip()}")
    return found


def timed(row):
    """perftest had a clock when it measured this row."""
    return any(f != 0 and math.isfinite(f) for f in row[2:])


def again(measure):
    """What `measure` returns, tried some times if it has no result."""
    for attempt in range(ATTEMPTS):
        try:
            return measure()
        except Again:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.5)

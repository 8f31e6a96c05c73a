# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The programs of the libraries: a server and a client, both in this guest, which exchange MESSAGES messages."""
import os
import re
import signal
import subprocess
import tempfile
import time
from typing import NamedTuple

import perftest
from libfabric import FEW
from perftest import Failed
from ucx import ENV

# Messages in each direction. Faults happen in the middle, long after the connection was made.
MESSAGES, MIDDLE = 600, 300


class Program(NamedTuple):
    name: str
    server: str  # command for bash; PORT stands for a free port
    client: str
    data: tuple  # opcodes of the packets that carry messages
    done: str  # pattern that the client prints when all messages are done
    is_reliable: bool = True
    patience: int = 25  # seconds after the fault; an end that still runs counts as waiting for ever

    def __str__(self):
        """Returns the command as a user types it."""
        return re.sub(r" -[PBp] (0|PORT)\b", "", self.client)


def ucx(name, tls, test, data=("SEND",), more=""):
    """UCX. Over UD the library gives up after 30 seconds. With error handling (-e) it checks every 20 seconds the peers that it has not
    checked the last time."""
    env = f"{ENV} UCX_TLS={tls}"
    # The ends find each other over TCP; `-P 0` means without MPI.
    return Program(f"ucx/{name}", f"{env} exec ucx_perftest -P 0 -p PORT",
                   f"{env} exec ucx_perftest -P 0 -p PORT -t {test} -n {MESSAGES} -w 20 {more}127.0.0.1", data, r"^Final: +\d", "rc" in tls,
                   80 if more else 50 if "rc" not in tls else 25)


def pingpong(name, provider, endpoint, size, env="", own=""):
    # With -c the receiver compares each byte.
    line = f"{env}exec fi_pingpong -p '{provider}' -e {endpoint} -c -S {size} -I {MESSAGES}{own}"
    return Program(f"libfabric/{name}", f"{line} -B PORT", f"{line} -P PORT $ADDRESS", ("SEND",), rf"^{size} ", endpoint != "dgram")


PROGRAMS = (
    ucx("rc_tag", "rc_verbs,ud_verbs", "tag_lat"),
    ucx("rc_tag_peer", "rc_verbs,ud_verbs", "tag_lat", more="-e "),
    ucx("rc_put", "rc_verbs,ud_verbs", "ucp_put_lat", ("RDMA WRITE",)),
    ucx("ud_tag", "ud_verbs", "tag_lat"),
    ucx("ud_am_peer", "ud_verbs", "ucp_am_lat", more="-e "),
    pingpong("msg", "verbs", "msg", 512),
    pingpong("rdm_rxm", "verbs;ofi_rxm", "rdm", 512, f"{FEW} ", " -s $ADDRESS"),
    pingpong("dgram", "verbs", "dgram", 512),
)


class End:
    """A running program, its output, and the times of its first error message and of its end."""

    def __init__(self, line):
        self.written = tempfile.TemporaryFile()
        self.process = subprocess.Popen(["bash", "-c", line], stdout=self.written, stderr=subprocess.STDOUT, start_new_session=True)
        self.mark = 0
        self.said_at = self.ended_at = None

    def size(self):
        return os.fstat(self.written.fileno()).st_size

    def look(self):
        """Notes the times of the first error message since the mark and of the end. Returns whether the program has ended."""
        now = time.monotonic()
        if self.ended_at is None and self.process.poll() is not None:
            self.ended_at = now
        if self.said_at is None and self.complaints():
            self.said_at = now
        return self.ended_at is not None

    def text(self, since=0):
        return os.pread(self.written.fileno(), 1 << 20, since).decode(errors="replace")

    def complaints(self):
        """Returns the lines since the mark that report errors, without the parts that differ in each run."""
        found = []
        for line in self.text(self.mark).splitlines():
            line = re.sub(r"^\[\d+\.\d+\] \[[^]]*\] +", "", line)
            line = re.sub(r"^\[\w+:\d+ *:\w+:\d+\] +", "", line)
            line = re.sub(r"(\.c):\d+ *:? *", r"\1: ", line)
            # vendor_err stays, because `verbenactl explain` explains it.
            line = " ".join(re.sub(r"(?<!vendor_err )0x[0-9a-fA-F]+", "0x...", line).split())
            is_trace = re.match(r"\d+ +/|\[\w+:\d+\]|=+", line)
            if not is_trace and re.search(r"error|fatal|fail|warn|timed out|diag|ret=", line, re.I) and line not in found:
                found.append(line)
        return found

    def outcome(self):
        if self.ended_at is None:
            return "waits"
        status = self.process.returncode
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"ends with {status}"

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.written.close()


def start(program):
    """Starts the server, waits until it listens, and starts the client. Returns both ends."""
    port = perftest.next_port()
    server = End(program.server.replace("PORT", str(port)))
    try:
        deadline = time.monotonic() + 60
        while not perftest.listening_here(port, True):
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the server does not listen: {server.text()[-300:]}")
            time.sleep(0.05)
        return server, End(program.client.replace("PORT", str(port)))
    except BaseException:
        server.end()
        raise

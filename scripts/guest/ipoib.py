# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: an IPoIB interface, its peer, traffic between them, and errors of its queues. For `infiniband` and `ipoib-errors`."""
import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time

import perftest
from agent import Peer
from perftest import SLOW, Failed
from verbena_faults import Nic

DEVICE = "verbena0"
# Seconds for anything that has to happen. The watchdog of a net device needs up to 20, and stopping IPoIB up to 10.
LIMIT = 120
# Size of the send queue of ib_ipoib, a default of its module.
SENDS = 128
# The program of this directory that runs an echo server with --echo.
ECHO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ipoib-errors")
ECHO_PORT = 7007
# The program of the scenario about IPoIB, whose other end serves all the time.
EXAMPLE = "/usr/lib/verbena/examples/ipoib-cq-error/ipoib-cq-error"
nic = Nic()


def until(what, condition, seconds=LIMIT):
    """Returns the first true value of `condition`."""
    deadline = time.monotonic() + seconds * SLOW
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds * SLOW} s")
        time.sleep(0.1)
    return found


def run(*command):
    """Runs a command. Returns its exit status and its output."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT * SLOW)
    return done.returncode, done.stdout


def right(*command):
    """Runs a command, which must succeed. Returns its output."""
    status, out = run(*command)
    if status:
        raise Failed(f"{' '.join(map(str, command))}: {status} {out.strip()}")
    return out


def want(found, wanted, what):
    if found != wanted:
        raise Failed(f"{what}: {found}, not {wanted}")


class Log:
    """The lines of the kernel log since this object was made."""

    def __init__(self):
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)
        self.seen = []

    def lines(self):
        while True:
            try:
                record = os.read(self.fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return self.seen
            except BrokenPipeError:
                raise Failed("the kernel log has lost lines") from None
            self.seen.append(record.partition(";")[2].split("\n")[0])

    def forget(self):
        """Drops the lines until now."""
        self.lines().clear()

    def find(self, pattern):
        """Returns the first line that matches the pattern, or None."""
        return next((line for line in self.lines() if re.search(pattern, line)), None)

    def wait(self, *patterns):
        """Waits for one line for each pattern, in this order."""
        at = 0
        for pattern in patterns:
            def place(pattern=pattern, at=at):
                return next((n + 1 for n, line in enumerate(self.lines()[at:], at) if re.search(pattern, line)), None)
            try:
                at = until(pattern, place)
            except Failed as wrong:
                raise Failed(f"no line {wrong}; the log has {self.lines()[-12:]}") from None

    def wants_none(self, pattern):
        if line := self.find(pattern):
            raise Failed(f"the kernel log has: {line}")

    def close(self):
        os.close(self.fd)


def read(path):
    """Returns the content of a file of sysfs without the line feed, or an empty string."""
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().strip()
    return ""


class Interface:
    """The IPoIB interface of this guest, and the objects of the device that it uses."""

    def __init__(self, name="ib0"):
        self.name, self.dir = name, f"/sys/class/net/{name}"

    def address(self):
        return read(f"{self.dir}/address")

    def port_guid(self):
        return self.address()[-23:]

    def qpn(self):
        """Returns the number of the UD queue pair, which is part of the hardware address."""
        return int(self.address()[3:11].replace(":", ""), 16)

    def index(self):
        return read(f"{self.dir}/ifindex")

    def has_carrier(self):
        return read(f"{self.dir}/carrier") == "1"

    def timeouts(self):
        """Returns how often the watchdog has found that the transmit queue is stopped."""
        return int(read(f"{self.dir}/queues/tx-0/tx_timeout") or 0)

    def sent(self):
        return int(read(f"{self.dir}/statistics/tx_packets") or 0)

    def mode(self):
        return read(f"{self.dir}/mode")

    def ip(self):
        """Returns the IPv4 address with the length of its prefix, or None."""
        found = re.search(r"inet (\S+)", run("ip", "-o", "-4", "address", "show", "dev", self.name)[1])
        return found and found[1]

    def context(self):
        return context("qp", self.qpn())

    def state(self):
        return self.context()["state"]

    def connections(self, is_sender):
        """Returns the numbers of the RC queue pairs of connected mode that send, or of those that receive."""
        own = self.context()
        send_cqn = own["send_cqn"] if is_sender else own["recv_cqn"]
        return [qpn for qpn, it in contexts("qp") if it["type"] == "Rc" and it["state"] == "Rts" and it["send_cqn"] == send_cqn]

    def restart(self):
        """Sets the interface down and up. Returns the exit status and the output of the latter."""
        right("ip", "link", "set", self.name, "down")
        return run("ip", "link", "set", self.name, "up")


def contexts(kind):
    return [(it["number"], it["fields"]) for it in nic.ask("contexts")["contexts"] if it["kind"] == kind]


def context(kind, number):
    found = dict(contexts(kind))
    if number not in found:
        raise Failed(f"the device has no {kind} {number}")
    return found[number]


def device_index():
    """Returns the number of the RDMA device, which no other device gets."""
    return next((it["ifindex"] for it in json.loads(right("rdma", "-j", "dev")) if it["ifname"] == DEVICE), None)


class Rule:
    """A rule of the NIC in a `with` block, which has to fire once."""

    def __init__(self, action, **match):
        self.rule = {"name": "ipoib", "match": match, "action": action}

    def __enter__(self):
        nic.add(self.rule)
        return self

    def fired(self):
        return nic.rules()[0]["fired"]

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                until("the rule fires", self.fired)
                want(self.fired(), 1, "firings of the rule")
        finally:
            nic.clear()


def at_once(action, qpn):
    return Rule(action, on="time", qp=qpn, after_ms=0)


class Traffic:
    """Pings the peer all the time, without waiting for answers."""

    def __init__(self, peer):
        # The ring of ib_ipoib is full after a second, if nothing completes.
        self.process = perftest.start("ping", "-q", "-i", "0.005", peer.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        perftest.stop(self.process)


def answers(peer):
    return run("ping", "-c", "3", "-W", "2", peer.address)[0] == 0


class Transfer(threading.Thread):
    """Sends random bytes to the echo server of the peer over TCP, and compares all bytes that come back."""

    def __init__(self, peer, size):
        super().__init__(daemon=True)
        self.peer, self.data, self.received, self.why = peer, os.urandom(size), 0, None

    def connected(self):
        """Connects, after waiting for the server."""
        deadline = time.monotonic() + LIMIT * SLOW
        while True:
            try:
                return socket.create_connection((self.peer.address, ECHO_PORT), timeout=LIMIT * SLOW)
            except OSError as wrong:
                if time.monotonic() > deadline:
                    raise Failed(f"no connection to {self.peer.address}: {wrong}") from None
                time.sleep(0.2)

    def receive(self, connection):
        while self.received < len(self.data):
            part = connection.recv(1 << 16)
            if not part:
                raise Failed(f"the connection ended after {self.received} bytes")
            if part != self.data[self.received : self.received + len(part)]:
                raise Failed(f"wrong bytes after byte {self.received}")
            self.received += len(part)

    def run(self):
        try:
            with self.connected() as connection:
                sender = threading.Thread(target=connection.sendall, args=(self.data,), daemon=True)
                sender.start()
                self.receive(connection)
                sender.join()
        except Exception as wrong:
            self.why = f"{type(wrong).__name__}: {wrong}"

    def begin(self):
        """Starts, and waits until bytes have come back."""
        self.start()
        until("the transfer begins", lambda: self.received or self.why)
        return self

    def end(self):
        self.join(LIMIT * SLOW)
        if self.is_alive() or self.why:
            raise Failed(f"the transfer of {len(self.data)} bytes: {self.why or 'no end'}, {self.received} bytes came back")


def works(peer, size=1 << 20):
    """Checks that the interface works: the peer answers pings, and all bytes of a transfer are right."""
    until(f"{peer.address} answers", lambda: answers(peer))
    transfer = Transfer(peer, size)
    transfer.start()
    transfer.end()


class GuestPeer:
    """Another guest, which runs `agent.py`."""

    def __init__(self, name):
        self.agent = Peer(name)
        self.address = socket.gethostbyname(f"{name}-ib")
        self.servers = [self.agent.start(ECHO, "--echo"), self.agent.start(EXAMPLE, "serve")]

    def set_mode(self, mode):
        program = self.agent.start("ip", "link", "set", "ib0", "type", "ipoib", "mode", mode)
        out, _ = program.communicate()
        want(program.returncode, 0, f"setting the mode of the peer: {out}")

    def renew(self):
        """The peer is not affected by errors of this guest."""

    def close(self):
        for server in self.servers:
            server.kill()


class OwnPeer:
    """A second interface on the same port, in a network namespace. The packets between the two interfaces pass the port."""

    address = "10.2.0.77"

    def __init__(self, namespace="far"):
        self.namespace, self.server = namespace, None
        right("ip", "netns", "add", namespace)
        # Both interfaces have the GUID of the port, and would have the same link-local address.
        right("ip", "netns", "exec", namespace, "sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6")
        self.renew()

    def renew(self):
        """Makes the interface, which has gone if the device was reset."""
        perftest.stop(self.server)
        right("ip", "link", "add", "link", "ib0", "name", "far0", "type", "ipoib")
        right("ip", "link", "set", "far0", "netns", self.namespace)
        right("ip", "-n", self.namespace, "address", "add", f"{self.address}/24", "dev", "far0")
        right("ip", "-n", self.namespace, "link", "set", "far0", "up")
        self.server = perftest.start("ip", "netns", "exec", self.namespace, ECHO, "--echo")

    def set_mode(self, mode):
        right("ip", "-n", self.namespace, "link", "set", "far0", "type", "ipoib", "mode", mode)

    def close(self):
        perftest.stop(self.server)
        run("ip", "netns", "delete", self.namespace)


def echo():
    """Serves connections that send back what they receive, for ever."""
    def serve(connection):
        with contextlib.suppress(OSError), connection:
            while part := connection.recv(1 << 16):
                connection.sendall(part)
    listener = socket.create_server(("", ECHO_PORT), backlog=16)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


class AddressRule:
    """A udev rule that gives the interface its address whenever it appears: that of Documentation/ipoib-errors.md."""

    FILE = "/etc/udev/rules.d/70-ib0.rules"
    # udev would give net devices other names (systemd.net-naming-scheme(7)).
    NAMES = "/etc/udev/rules.d/80-net-setup-link.rules"

    def __init__(self, interface):
        guid, address = interface.port_guid(), interface.ip()
        os.makedirs(os.path.dirname(self.FILE), exist_ok=True)
        with open(self.FILE, "w") as file:
            file.write(
                f'ACTION=="add", SUBSYSTEM=="net", KERNEL=="ib[0-9]", ATTR{{address}}=="*:{guid}", \\\n'
                f'  RUN+="/usr/sbin/ip address add {address} dev $name", RUN+="/usr/sbin/ip link set $name up"\n'
            )
        with contextlib.suppress(FileExistsError):
            os.symlink("/dev/null", self.NAMES)
        if run("udevadm", "control", "--ping")[0]:
            right("/usr/lib/systemd/systemd-udevd", "--daemon")
        right("udevadm", "control", "--reload")


def reset(interface):
    """Resets the device by the documented command, and waits until the interface is back."""
    name, guid = interface.name, interface.port_guid()
    before, rdma_before = interface.index(), device_index()
    with open(f"/sys/class/net/{name}/device/reset", "w") as file:
        file.write("1")
    until(f"another {name}", lambda: interface.index() not in ("", before))
    until(f"another {DEVICE}", lambda: device_index() not in (None, rdma_before))
    want(interface.port_guid(), guid, "port GUID")
    until(f"the address of {name}", interface.ip)


def stop_subnet_manager():
    """Ends opensm. If its port goes away, opensm 3.3.23 logs failed reads of the port for ever, and ignores SIGTERM."""
    run("pkill", "-x", "opensm")
    until("opensm ends", lambda: run("pgrep", "-x", "opensm")[0] == 1)


def start_subnet_manager():
    right("opensm", "-B", "-F", "/run/opensm.conf", "-f", "/var/log/opensm.log")


def port_state():
    return read(f"/sys/class/infiniband/{DEVICE}/ports/1/state")


# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: subnet managers, topology files, and what both guests do for the tests of InfiniBand ports (`infiniband-...`)."""
import glob
import os
import re
import subprocess
import sys
from collections import deque

import perftest
from agent import Agent
from perftest import SLOW, Failed, chosen
from storage_load import until
from verbena_guest.results import Results

DEVICE = "verbena0"
PORT = f"/sys/class/infiniband/{DEVICE}/ports/1"
# GUID of the adapter of vm1 (EUI-64).
FIRST_GUID = 0x505400FFFE123456
# GUID of the switch of verbena-nic without a topology file: "VR", and the GUID of the first guest without ff:fe.
DEFAULT_SWITCH_GUID = 0x5652505400123456
# The log is complete at any time.
CONFIGURATION = "force_log_flush TRUE\n"


def output(*command, limit=60):
    """Returns the output of a program. The exit statuses of these programs do not tell whether they have succeeded."""
    try:
        done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=limit * SLOW)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(map(str, command))} did not end within {limit * SLOW} s") from None
    return done.stdout


def run(*command, limit=60):
    """Returns the output of a program that must succeed."""
    process = perftest.start(*command)
    return perftest.end(process, " ".join(map(str, command)), limit)


def same(what, found, expected):
    if found != expected:
        raise Failed(f"{what}: {found}, not {expected}")


def dotted(text):
    """Returns the fields of lines `Name:....value`, as the diagnostics print attributes. Of several values the first counts."""
    found = {}
    for name, value in re.findall(r"^\s*#?\s*([A-Za-z][\w ]*?):?\.+(.*)$", text, re.M):
        found.setdefault(name, value.strip())
    return found


def read(path):
    with open(path) as f:
        return f.read().strip()


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def mac_of(guest):
    """Returns the MAC address that scripts/vm gives a guest, by its number."""
    return f"52:54:00:12:{0x33 + guest:02x}:56"


def default_topology(guests, are_apart=False):
    """Returns the subnet of verbena-nic without a topology file: the guests of scripts/vm at one switch, or, if they `are_apart`, two guests with
    a NIC process each. GUIDs and descriptions come from the MAC addresses."""
    numbers = range(1, guests + 1)
    lines = []
    for own in [[n] for n in numbers] if are_apart else [numbers]:
        first = own[0]
        lines += [f"switchguid={DEFAULT_SWITCH_GUID + (first - 1 << 8):#x}", f'Switch 36 "switch{first}" # "switch {mac_of(first)}"']
        lines += [f'[{at}] "guest{n}"[1]' for at, n in enumerate(own, 1)]
        # The first uplink.
        lines += [f'[36] "switch{n}"[36]' for n in numbers if n not in own]
        for at, n in enumerate(own, 1):
            lines += [f"caguid={FIRST_GUID + (n - 1 << 8):#x}", f'Ca 1 "guest{n}" # "guest{at} {mac_of(n)}"', f'[1] "switch{first}"[{at}]']
    return "\n".join(lines)


class Node:
    def __init__(self, kind, name, ports, guid, description):
        self.kind, self.name, self.ports, self.guid, self.description = kind, name, ports, guid, description
        # By the number of a port: the GUID of the port of an adapter; the name of the other end and its port.
        self.guids, self.links = {}, {}

    @property
    def is_switch(self):
        return self.kind == "Switch"

    @property
    def port_guid(self):
        """GUID of the port that has the node's LID."""
        return self.guid if self.is_switch else self.guids.get(1, self.guid + 1)


class Topology:
    """The nodes and links of a file in the format of ibnetdiscover."""

    NODE = re.compile(r'^(Switch|Ca)\s+(\d+)\s+"([^"]+)"(?:\s*#\s*"([^"]*)")?')
    LINK = re.compile(r'^\[(\d+)\](?:\(([0-9a-f]+)\))?\s+"([^"]+)"\[(\d+)\]')
    GUID = re.compile(r"^(?:switch|ca)guid=0x([0-9a-f]+)")

    def __init__(self, text):
        self.nodes = {}
        guid, node = 0, None
        for line in text.splitlines():
            if found := self.GUID.match(line):
                guid = int(found[1], 16)
            elif found := self.NODE.match(line):
                node = Node(found[1], found[3], int(found[2]), guid, found[4] or found[3])
                self.nodes[node.name] = node
            elif found := self.LINK.match(line):
                node.links[int(found[1])] = (found[3], int(found[4]))
                if found[2]:
                    node.guids[int(found[1])] = int(found[2], 16)

    @property
    def switches(self):
        return [node for node in self.nodes.values() if node.is_switch]

    @property
    def adapters(self):
        return [node for node in self.nodes.values() if not node.is_switch]

    def cabling(self):
        """Returns the links: for each, the GUIDs of the two nodes with the numbers of their ports."""
        return {frozenset(((node.guid, port), (self.nodes[name].guid, other)))
                for node in self.nodes.values() for port, (name, other) in node.links.items()}

    def distances(self, to):
        """Returns the number of links from each node to a node."""
        found, near = {to.name: 0}, deque([to.name])
        while near:
            name = near.popleft()
            for other, _ in self.nodes[name].links.values():
                if other not in found:
                    found[other] = found[name] + 1
                    near.append(other)
        return found

    def by_guid(self, guid):
        return next(node for node in self.nodes.values() if guid in (node.guid, node.port_guid))


class End(Agent):
    """The operations in either guest. Numbers that XML-RPC cannot carry are passed as text."""

    def __init__(self):
        super().__init__()
        self.manager, self.log_path, self.started = None, "", 0
        self.watcher, self.events_path = None, ""
        self.helpers = None

    # The subnet manager.

    def manage(self, configuration="", partitions=""):
        """Starts opensm with a new log."""
        self.started += 1
        place = f"/run/opensm.{self.started}"
        os.makedirs(place)
        self.log_path = f"{place}/log"
        write(f"{place}/conf", CONFIGURATION + configuration)
        more = []
        if partitions:
            write(f"{place}/partitions", partitions)
            more = ["-P", f"{place}/partitions"]
        # A cache of its own, so that no LIDs are kept.
        env = {**os.environ, "OSM_CACHE_DIR": place, "OSM_TMP_DIR": place}
        self.manager = subprocess.Popen(["opensm", "-F", f"{place}/conf", "-f", self.log_path, *more], env=env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def kill_manager(self):
        """Kills opensm by SIGKILL."""
        self.manager.kill()
        self.manager.wait()

    def log(self):
        if self.manager.poll() is not None:
            raise Failed(f"opensm ended with {self.manager.returncode}: {self.logged()[-600:]}")
        return self.logged()

    def logged(self):
        try:
            with open(self.log_path, errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    # The port and its IPoIB interface.

    def port(self):
        """Returns state, LIDs and IPoIB carrier of the port."""
        try:
            carrier = read("/sys/class/net/ib0/carrier")
        except OSError:
            carrier = "0"
        return {"state": read(f"{PORT}/state").split(": ")[1], "lid": int(read(f"{PORT}/lid"), 16), "sm_lid": int(read(f"{PORT}/sm_lid"), 16),
                "carrier": carrier == "1"}

    def guid(self):
        """Returns the GUID of the port as text, as opensm's partitions.conf has it."""
        return "0x" + "".join(read(f"{PORT}/gids/0").split(":")[4:])

    def p_keys(self):
        """Returns the table of P_Keys without the entries that are empty, as text with the index."""
        found = {}
        for path in glob.glob(f"{PORT}/pkeys/*"):
            key = int(read(path), 16)
            if key:
                found[f"{key:#06x}"] = int(os.path.basename(path))
        return found

    def run(self, *command):
        """Runs a program that must succeed. Returns its output."""
        return run(*command)

    def read(self, path):
        return read(path)

    def write(self, path, text):
        write(path, text)

    # Events.

    def watch(self):
        """Starts to count the asynchronous events of the port."""
        self.events_path = "/run/events"
        with open(self.events_path, "w") as f:
            self.watcher = subprocess.Popen(["stdbuf", "-oL", "ibv_asyncwatch", "-d", DEVICE], stdout=f, stderr=subprocess.STDOUT)

    def events(self, number):
        """Returns how many events with this number the port has had since `watch`."""
        return len(re.findall(rf"event_type .*\({number}\)", read(self.events_path)))

    def watches(self):
        """True if the program that prints the events waits for the next one."""
        return "event FD" in read(self.events_path)


def active(*ends):
    """Waits until the ports are ACTIVE, and their IPoIB interfaces have a carrier."""
    for end in ends:
        until("the port is ACTIVE, and ib0 has a carrier", lambda e=end: (p := e.port())["state"] == "ACTIVE" and p["carrier"], 60)


def errors(log):
    """Returns the lines of opensm's log that report errors. opensm logs each trap at the level of errors too."""
    return [line for line in log.splitlines() if re.search(r" ERR |0x01 ->", line) and "log_trap_info" not in line]


def manage(end, configuration="", partitions=""):
    """Starts opensm in a guest, and waits until it has configured the subnet."""
    end.manage(configuration, partitions)
    until("SUBNET UP", lambda: "SUBNET UP" in end.log(), 60)


def lids():
    """Returns the LID of each node by its node GUID, by asking the subnet manager."""
    records = output("saquery", "NR").split("NodeRecord dump:")[1:]
    return {int(f["node_guid"], 16): int(f["lid"]) for f in map(dotted, records)}


def report(tests):
    """Runs the tests whose names the arguments choose, and prints their results. Returns the exit status."""
    filters = [a for a in sys.argv[1:] if a[0] not in "-/" and not a.isdigit()]
    results = Results()
    for name, test in tests:
        if chosen(name, filters):
            results.run(name, test)
    return results.end()

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The packets in captures of InfiniBand ports, as tshark dissects them: which are malformed, and of what kinds they are. For judge_capture.py."""
import collections
import re

# Dissectors that guess a protocol from the first bytes of a payload. They take test data, and the packets of other protocols, for their own, and
# then call them malformed: findings/wireshark-short-sends.sh.
GUESSING = ("drbd_rdma", "fc_infiniband", "iser_infiniband", "lnet_ib", "mellanox_eoib", "nvme_rdma", "rpcrdma_infiniband", "sdp_infiniband",
            "smb_direct_infiniband", "smcr_infiniband")
# The guess that dissects the packets of IPoIB, which have no mark but an EtherType. It counts for datagrams and for connections of IPoIB, because it
# also finds EtherTypes in the data of NVMe.
KEPT = "eth_over_ib"

# Groups of expert information that mean that a packet is wrong. The others are remarks, for example on sequences of TCP.
CHECKSUM = 0x01000000
WRONG = {CHECKSUM: "wrong checksum", 0x06000000: "not reassembled", 0x07000000: "malformed", 0x08000000: "not dissected"}

FIELDS = ("frame.number", "frame.protocols", "_ws.col.info", "_ws.expert.group", "_ws.expert.message", "infiniband.lrh.slid", "infiniband.lrh.dlid",
          "infiniband.lrh.lnh", "infiniband.bth.opcode", "infiniband.bth.p_key", "infiniband.bth.destqp", "infiniband.mad.mgmtclass",
          "infiniband.cm.req", "infiniband.cm.req.serviceid", "infiniband.cm.req.serviceid.dport", "infiniband.cm.req.localqpn",
          "infiniband.cm.rep.remotecommid", "infiniband.cm.rep.localqpn")

GRH_FOLLOWS = 3
RC_SEND_FIRST = 0
TRANSPORT_UD = 3
CLASSES = {0x01: ", by LID", 0x81: ", by directed route"}
FULL_DEFAULT_P_KEY = 0xFFFF
FIRST_MULTICAST_LID = 0xC000
# Ports of the kernel's consumers that rdma_cm connects.
PORTS = {4420: "NVMe", 20049: "NFS", 18634: "RDS"}
# IPoIB in connected mode: the lower bytes are a QPN (RFC 4755 5.1).
IPOIB_SERVICES = 0x1000000000000000
# The kernel's SRP target has the node GUID of its device as the service ID: here one that is made of a MAC address of scripts/vm.
SRP_SERVICES = 0x505400FFFE
# The protocols in packets of IPoIB, the innermost first.
IPOIB_PROTOCOLS = ("arp", "icmpv6", "icmp", "tcp", "udp", "igmp")


def guesses(tshark):
    """Returns options against the guesses. GUESSING must name all that tshark has."""
    known = {words[4] for words in map(str.split, tshark("-G", "heuristic-decodes").splitlines()) if words[0] == "infiniband.payload"}
    if other := known - {KEPT, *GUESSING}:
        raise ValueError(f"tshark guesses protocols by {sorted(other)}, which GUESSING does not name")
    return [option for name in GUESSING if name in known for option in ("--disable-heuristic", name)]


def opcode_names(tshark):
    rows = (line.split("\t") for line in tshark("-G", "values").splitlines())
    return {int(row[2], 0): row[3] for row in rows if row[:2] == ["V", "infiniband.bth.opcode"]}


class Packet:
    """The fields of a packet on which its kinds depend."""

    def __init__(self, line):
        row = dict(zip(FIELDS, line.split("\t"), strict=True))

        def number(name):
            return int(row[name].split(",")[0] or "0", 0)

        self.number, self.info, self.protocols = row["frame.number"], row["_ws.col.info"], row["frame.protocols"].split(":")
        self.groups = {int(group, 0) for group in row["_ws.expert.group"].split(",") if group}
        self.remarks = row["_ws.expert.message"]
        self.slid, self.dlid = number("infiniband.lrh.slid"), number("infiniband.lrh.dlid")
        self.has_grh = number("infiniband.lrh.lnh") == GRH_FOLLOWS
        self.opcode, self.p_key = number("infiniband.bth.opcode"), number("infiniband.bth.p_key")
        self.qpn = number("infiniband.bth.destqp")
        self.mad_class = number("infiniband.mad.mgmtclass")
        self.service, self.port = number("infiniband.cm.req.serviceid"), number("infiniband.cm.req.serviceid.dport")
        self.request, self.client_qpn = number("infiniband.cm.req"), number("infiniband.cm.req.localqpn")
        self.answered, self.server_qpn = number("infiniband.cm.rep.remotecommid"), number("infiniband.cm.rep.localqpn")
        # The service of the packet's connection, if a request in the capture has asked for it.
        self.connection = None

    @property
    def is_ipoib(self):
        return "ethertype" in self.protocols and (self.opcode >> 5 == TRANSPORT_UD or self.connection == "IPoIB")

    def wrong(self):
        """Returns what is wrong with the packet, or an empty string."""
        if "ethertype" in self.protocols and not self.is_ipoib:
            return ""
        groups = self.groups
        # tshark does not put the packets of a message together: it computes checksums over the part of a message that the first one has.
        if self.opcode == RC_SEND_FIRST:
            groups = groups - {CHECKSUM}
        found = [WRONG[group] for group in sorted(groups & WRONG.keys())]
        if "alformed" in self.info or "Invalid Packet Length" in self.info:
            found.append("malformed")
        return f"packet {self.number} is {', '.join(found)}: {self.info}: {self.remarks}" if found else ""

    def service_name(self):
        """Returns the name of the service that a request of the connection manager asks for."""
        if self.port:
            return PORTS.get(self.port, "rdma_cm")
        if self.service & ~0xFFFFFF == IPOIB_SERVICES:
            return "IPoIB"
        return "SRP" if self.service >> 24 == SRP_SERVICES else f"service {self.service:#x}"

    def kinds(self, names):
        """Yields the kinds of the packet."""
        if self.mad_class:
            name = re.sub(r"^UD Send Only +|QP=0x\w+ *", "", self.info).strip()
            yield name + CLASSES.get(self.mad_class, "")
            if self.service:
                yield f"request for a connection of {self.service_name()}"
            return
        if self.is_ipoib:
            mode = "datagram" if self.opcode >> 5 == TRANSPORT_UD else "connected"
            protocol = next((p for p in IPOIB_PROTOCOLS if p in self.protocols), "fragment")
            yield f"IPoIB {mode} {protocol}{' to a group' if self.dlid >= FIRST_MULTICAST_LID else ''}"
        else:
            yield f"{names.get(self.opcode, self.opcode)}, {'with GRH' if self.has_grh else 'by LID'}"
        if self.connection:
            yield f"packet of a connection of {self.connection}"
        if self.p_key != FULL_DEFAULT_P_KEY:
            yield f"P_Key {self.p_key:#06x}"


class Connections:
    """The connections in a capture, as the connection manager has made them."""

    def __init__(self):
        # By LID and communication ID of the client; by LID and QPN of either end.
        self.requests, self.ends = {}, {}

    def follow(self, packet):
        """Takes note of the packets of the connection manager, and gives other packets their connection."""
        if packet.service:
            service = packet.service_name()
            self.requests[packet.slid, packet.request] = self.ends[packet.slid, packet.client_qpn] = service
        elif packet.server_qpn:
            self.ends[packet.slid, packet.server_qpn] = self.requests.get((packet.dlid, packet.answered))
        elif not packet.mad_class:
            packet.connection = self.ends.get((packet.dlid, packet.qpn))


# What perftest and the pingpongs send by LID and with a GRH.
SEND = ("SEND First", "SEND Middle", "SEND Last")
WRITE = ("RDMA WRITE First", "RDMA WRITE Last", "RDMA WRITE Last with Immediate")
READ = ("RDMA READ Request", "RDMA READ response First", "RDMA READ response Last")
ANSWERED = ("Acknowledge", "FetchAdd", "ATOMIC Acknowledge")
OPERATIONS = {
    "Reliable Connection (RC)": (*SEND, *WRITE, *READ, *ANSWERED, "CmpSwap"),
    "Unreliable Connection (UC)": (*SEND, *WRITE),
    "Extended Reliable Connection (XRC)": (*SEND, *WRITE, *READ, *ANSWERED),
    "Unreliable Datagram (UD)": ("SEND only", "SEND only with Immediate"),
}
# Attributes that opensm and the diagnostics get by either kind of route, and those that only opensm sets.
GOT = ("NodeInfo", "NodeDescription", "PortInfo", "SwitchInfo", "P_KeyTable", "LinearForwardingTable")
BY_LID = ("GUIDInfo", "SLtoVLMappingTable", "VLArbitrationTable", "SMInfo")
SET = ("PortInfo", "SwitchInfo", "P_KeyTable", "LinearForwardingTable", "MulticastForwardingTable")
ADMINISTRATION = ("Get(PathRecord)", "GetResp(PathRecord)", "GetTable(NodeRecord)", "GetTableResp(NodeRecord)", "Set(MCMemberRecord)",
                  "GetResp(MCMemberRecord)", "Delete(MCMemberRecord)", "DeleteResp(MCMemberRecord)", "Get(ClassPortInfo)")
CM = ("ConnectRequest", "ConnectReply", "ReadyToUse", "DisconnectRequest", "DisconnectReply", "ServiceIDResReq", "ServiceIDResReqResp")
CONSUMERS = ("NVMe", "NFS", "SRP", "RDS", "IPoIB", "rdma_cm")
IPOIB = ("datagram arp", "datagram arp to a group", "datagram icmp", "datagram icmp to a group", "datagram icmpv6", "datagram icmpv6 to a group",
         "datagram tcp", "connected icmp", "connected tcp")


def expected():
    """Yields the kinds that scripts/guest/infiniband-captured and infiniband-consumers make."""
    for service, operations in OPERATIONS.items():
        for operation in operations:
            yield from (f"{service} - {operation}, {form}" for form in ("by LID", "with GRH"))
    for name in GOT:
        yield from (f"Subn{method}({name}), by {route}" for method in ("Get", "GetResp") for route in ("LID", "directed route"))
    yield from (f"Subn{method}({name}), by LID" for method in ("Get", "GetResp") for name in BY_LID)
    yield from (f"SubnSet({name}), by directed route" for name in SET)
    # tshark's name of TrapRepress.
    yield from ("SubnTrap(Notice), by LID", "SubnTrapResp(Notice), by LID")
    yield from (f"SubnAdm{name}" for name in ADMINISTRATION)
    yield from (f"PERF ({name})" for name in ("ClassPortInfo", "PortCounters", "PortCountersExtended"))
    # ibsrpdm asks the I/O controllers; ibping.
    yield "DEV_MGT (Unknown Attribute)"
    yield "VENDOR (Unknown Attribute)"
    yield from (f"CM: {name}" for name in CM)
    yield from (f"{what} {name}" for what in ("request for a connection of", "packet of a connection of") for name in CONSUMERS)
    yield from (f"IPoIB {name}" for name in IPOIB)
    yield "P_Key 0x8001"


class Captures:
    """Captures that belong together."""

    def __init__(self, tshark):
        self.counts = collections.Counter()
        self.names = opcode_names(tshark)
        columns = [word for name in FIELDS for word in ("-e", name)]
        self.options = [*guesses(tshark), "-T", "fields", "-E", "occurrence=a", *columns]
        self.tshark = tshark

    def wrong(self, path):
        """Yields what is wrong with packets of a capture, and counts its kinds."""
        connections, packets = Connections(), 0
        for line in self.tshark("-r", path, *self.options).splitlines():
            packet = Packet(line)
            packets += 1
            connections.follow(packet)
            self.counts.update(packet.kinds(self.names))
            if found := packet.wrong():
                yield found
        if not packets:
            yield "the capture has no packet"

    def missing(self):
        """Yields the kinds that no capture has."""
        yield from (f"no packet: {kind}" for kind in expected() if not self.counts[kind])

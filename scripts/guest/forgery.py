# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: makes RoCE frames byte by byte, correct ones and ones with a single error. For `hostile-frames`.

A frame is made of the sender's `Address`, the receiver's `Address`, and the data from the BTH on. The methods of `Forger` name all kinds.
"""
import ipaddress
import random
import struct
import zlib
from dataclasses import dataclass, replace

PORT = 4791
# Opcodes (IBTA 9.2.1, table 38).
SEND_ONLY, WRITE_ONLY, READ_REQUEST, READ_LAST, READ_ONLY = 0x04, 0x0A, 0x0C, 0x0F, 0x10
ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, UC_SEND_ONLY, UC_WRITE_ONLY, UD_SEND_ONLY, CNP = 0x11, 0x12, 0x24, 0x2A, 0x64, 0x81
# Syndromes of an AETH (IBTA 9.7.5.2.1).
ACK, RNR = 0x1F, 0x20
NAKS = {"sequence": 0x60, "invalid-request": 0x61, "access": 0x62, "operational": 0x63, "reserved": 0x7F}
MADS = 0x80010000
GROUP, ALL, PAUSE = "01:00:5e:01:02:03", "ff:ff:ff:ff:ff:ff", "01:80:c2:00:00:01"


@dataclass(frozen=True)
class Address:
    mac: str
    ip: str

    def bytes(self):
        return bytes.fromhex(self.mac.replace(":", ""))

    def packed(self):
        return ipaddress.ip_address(self.ip).packed


@dataclass(frozen=True)
class Victim:
    """A live queue pair: its own address, that of its peer, and its PSNs."""

    kind: str
    own: Address
    peer: Address
    qpn: int
    rkey: int
    address: int
    expected: int
    next: int


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF


def icrc(ip, rest):
    """Returns the ICRC of a packet whose IP header has no options; `rest` begins with the UDP header."""
    ip, rest = bytearray(ip), bytearray(rest)
    if ip[0] >> 4 == 6:
        ip[0] |= 0xF
        ip[1:4] = b"\xff" * 3
        ip[7] = 0xFF
    else:
        ip[1] = ip[8] = 0xFF
        ip[10:12] = b"\xff" * 2
    rest[6:8] = b"\xff" * 2
    rest[12] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + rest))


def ip_header(here, there, payload, **how):
    """Returns the IP header of a packet with `payload` bytes after it. `how`: fields that differ from the default."""
    if ":" in here.ip:
        head = struct.pack("!IHBB", how.get("version", 6) << 28, how.get("length", payload), how.get("protocol", 17), how.get("hops", 64))
        return head + here.packed() + there.packed()
    options = how.get("options", b"")
    first = how.get("version", 4) << 4 | how.get("words", 5 + len(options) // 4)
    total = how.get("length", 20 + len(options) + payload)
    head = struct.pack("!BBHHHBBH", first, 0, total, 0, how.get("fragment", 0x4000), how.get("hops", 64), how.get("protocol", 17), 0)
    head += here.packed() + there.packed() + options
    return head[:10] + struct.pack("!H", checksum(head) ^ how.get("wrong_sum", 0)) + head[12:]


def bth(opcode, qpn, psn, pad=0, version=0, ack_req=True, pkey=0xFFFF):
    return struct.pack("!BBHII", opcode, 0x40 | pad << 4 | version, pkey, qpn, ack_req << 31 | psn & 0xFFFFFF)


def frame(here, there, transport, tags=b"", udp_length=None, crc=None, port=PORT, **how):
    """Returns a frame with these data from the BTH on."""
    total = 8 + len(transport) + 4
    segment = struct.pack("!HHHH", 0xC123, port, total if udp_length is None else udp_length, 0) + transport
    packet = ip_header(here, there, total, **how)
    kind = b"\x86\xdd" if ":" in here.ip else b"\x08\x00"
    end = icrc(packet[:40 if ":" in here.ip else 20], segment)
    if crc:
        end = bytes(a ^ b for a, b in zip(end, crc))
    return there.bytes() + here.bytes() + tags + kind + packet + segment + end


class Forger:
    """Random frames for live queue pairs, drawn with a seed. `own` is the sender's address."""

    def __init__(self, own, victims, seed):
        self.own, self.victims, self.dice = own, victims, random.Random(seed)

    def near(self, psn):
        return psn + self.dice.choice((0, 0, 0, 1, 2, 7, 31, -1, -2, self.dice.randrange(1 << 24)))

    def transports(self, victim):
        """Returns the packets that the peer could send, by name, from the BTH on."""
        dice, qpn = self.dice, victim.qpn
        junk = dice.randbytes(64)
        request, answer = self.near(victim.expected), self.near(victim.next)
        reth = struct.pack("!QII", victim.address, victim.rkey, 64)
        aeth = lambda syndrome: struct.pack("!I", syndrome << 24 | dice.randrange(1 << 24))
        if victim.kind == "UD":
            # With a wrong Q_Key: a datagram with the right one would be accepted.
            return {"ud-send": bth(UD_SEND_ONLY, qpn, request) + struct.pack("!II", dice.randrange(1 << 31), 77) + junk}
        if victim.kind == "UC":
            return {
                "uc-send": bth(UC_SEND_ONLY, qpn, request) + junk,
                "uc-write": bth(UC_WRITE_ONLY, qpn, request) + reth + junk,
            }
        found = {
            "send": bth(SEND_ONLY, qpn, request) + junk,
            "write": bth(WRITE_ONLY, qpn, request) + reth + junk,
            "read": bth(READ_REQUEST, qpn, request) + reth,
            "unknown": bth(0x1F, qpn, request) + junk,
            "ack": bth(ACKNOWLEDGE, qpn, answer) + aeth(ACK),
            "rnr": bth(ACKNOWLEDGE, qpn, answer) + aeth(RNR | 0x1F),
            "read-only-response": bth(READ_ONLY, qpn, answer) + aeth(ACK) + junk,
            "read-last-response": bth(READ_LAST, qpn, answer) + aeth(ACK) + junk,
            "atomic-response": bth(ATOMIC_ACKNOWLEDGE, qpn, answer) + aeth(ACK) + junk[:8],
            "cnp": bth(CNP, qpn, 0, ack_req=False) + bytes(16),
        }
        for name, syndrome in NAKS.items():
            found[f"nak-{name}"] = bth(ACKNOWLEDGE, qpn, answer) + aeth(syndrome)
        return found

    def spoofs(self, victim):
        """Yields frames that are correct except for the sender's address: the peer's, partly or as a whole, the receiver's own, and the
        sender's true address."""
        speakers = {
            "own-mac": replace(self.own, ip=victim.peer.ip),
            "own-gid": replace(self.own, mac=victim.peer.mac),
            "peer": victim.peer,
            "itself": victim.own,
        }
        for name, transport in self.transports(victim).items():
            for speaker, here in speakers.items():
                yield f"spoof/{speaker}/{name}", frame(here, victim.own, transport)
            yield f"stranger/{name}", frame(self.named(victim), victim.own, transport)

    def named(self, victim):
        """Returns the sender's own address in the victim's address family."""
        return self.own if (":" in victim.own.ip) == (":" in self.own.ip) else replace(self.own, ip=f"fd00::{self.own.ip.split('.')[-1]}")

    def malformed(self, victim):
        """Yields malformed frames with the sender's true address, so that they get as far as possible."""
        dice, own, there = self.dice, self.named(victim), victim.own
        wide = ":" in there.ip
        psn = self.near(victim.expected)
        right = bth(SEND_ONLY, victim.qpn, psn) + dice.randbytes(32)
        whole = frame(own, there, right)
        make = lambda **how: frame(own, there, right, **how)
        yield "bad/short", whole[: dice.randrange(14, len(whole))]
        yield "bad/trailing", whole + dice.randbytes(dice.randrange(1, 40))
        yield "bad/icrc", make(crc=struct.pack("<I", 1 << dice.randrange(32)))
        yield "bad/ip-length", make(length=dice.randrange(1 << 16))
        yield "bad/udp-length", make(udp_length=dice.randrange(1 << 16))
        yield "bad/ip-version", make(version=dice.choice((0, 5, 7, 15)))
        yield "bad/protocol", make(protocol=dice.choice((0, 6, 43, 44, 136)))
        yield "bad/pad", frame(own, there, bth(SEND_ONLY, victim.qpn, psn, pad=3))
        yield "bad/bth-version", frame(own, there, bth(SEND_ONLY, victim.qpn, psn, version=dice.randrange(1, 16)) + bytes(8))
        yield "bad/opcode", frame(own, there, bth(dice.randrange(256), victim.qpn, psn) + dice.randbytes(dice.randrange(80)))
        opcode = dice.choice((WRITE_ONLY, READ_REQUEST, ACKNOWLEDGE))
        yield "bad/no-headers", frame(own, there, bth(opcode, victim.qpn, psn) + bytes(dice.randrange(4)))
        yield "bad/syndrome", frame(own, there, bth(ACKNOWLEDGE, victim.qpn, psn) + struct.pack("!I", 0x40000000))
        yield "bad/qpn", frame(own, there, bth(SEND_ONLY, dice.randrange(1 << 24), psn) + bytes(8))
        yield "bad/datagram", frame(own, there, bth(UD_SEND_ONLY, 1, psn) + struct.pack("!II", MADS, 1) + dice.randbytes(256))
        yield "bad/long", frame(own, there, right + dice.randbytes(1300))
        yield "bad/jumbo", frame(own, there, right + dice.randbytes(dice.choice((4096, 4097, 8000))))
        for name, tags in {
            "vlan": b"\x81\x00\x00\x0a",
            "priority": b"\x81\x00\xe0\x00",
            "two-vlans": b"\x88\xa8\x00\x05\x81\x00\x00\x0a",
            "vlan-cut": b"\x81\x00",
        }.items():
            yield f"bad/{name}", make(tags=tags)
        if wide:
            extension = struct.pack("!BBHI", 17, 0, dice.choice((1, 8, 0xFFF8)), 5)
            yield "bad/ipv6-fragment", make(protocol=44)[: 14 + 40] + extension + whole[14 + 40 :]
            mapped = replace(own, ip=f"::ffff:10.0.0.{own.ip.split(':')[-1]}")
            yield "bad/ipv6-mapped", frame(mapped, there, right)
        else:
            yield "bad/ipv4-fragment", make(fragment=dice.choice((0x2000, 0x2001, 0x1FFF)))
            yield "bad/ipv4-options", make(options=b"\x01" * 4)
            yield "bad/ipv4-words", make(words=dice.choice((0, 4, 15)))
            yield "bad/ipv4-checksum", make(wrong_sum=dice.randrange(1, 1 << 16))

    def ethernet(self, macs):
        """Yields frames other than RDMA: with other stations' addresses, for all stations, for unknown stations."""
        dice, own = self.dice, self.own
        junk = lambda: dice.randbytes(dice.choice((46, 200, 1480)))
        random_mac = lambda: "02:99:" + ":".join(f"{dice.randrange(256):02x}" for _ in range(4))
        make = lambda there, here, kind: Address(there, "::").bytes() + Address(here, "::").bytes() + kind + junk()
        for mac in macs:
            yield "ethernet/borrowed", make(ALL, mac, b"\x88\xb5")
            yield "ethernet/borrowed", make(dice.choice(macs), mac, b"\x88\xb5")
        yield "ethernet/broadcast", make(ALL, own.mac, b"\x88\xb5")
        yield "ethernet/multicast", make(GROUP, own.mac, b"\x88\xb5")
        yield "ethernet/pause", make(PAUSE, own.mac, b"\x88\x08")
        yield "ethernet/many-stations", make(random_mac(), random_mac(), b"\x88\xb5")
        yield "ethernet/group-source", make(ALL, GROUP, b"\x88\xb5")
        yield "ethernet/zero-source", make(ALL, "00:00:00:00:00:00", b"\x88\xb5")
        yield "ethernet/junk", dice.randbytes(dice.randrange(14, 1500))

    def all(self):
        """Yields a frame of each kind for each queue pair, as (name, frame)."""
        macs = sorted({v.own.mac for v in self.victims})
        for victim in self.victims:
            yield from self.spoofs(victim)
            yield from self.malformed(victim)
        yield from self.ethernet(macs)

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of scripts/judges, in the toolchain root: `judges.py DIR JUDGE`, after `JUDGE generate DIR`."""
import ipaddress
import json
import logging
import os
import random
import re
import struct
import subprocess
import sys

import infiniband_crc

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
from scapy.contrib.roce import AETH, BTH  # noqa: E402
from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.layers.l2 import Dot1Q, Ether  # noqa: E402
from scapy.packet import Raw  # noqa: E402
from scapy.utils import RawPcapNgReader  # noqa: E402

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../guest")
from verbena_guest.results import Results  # noqa: E402

DIR, JUDGE = sys.argv[1:3]
ROCE_PATHS = ("ipv4", "ipv4-vlan", "ipv6", "ipv6-vlan")
# scapy has no InfiniBand.
INFINIBAND_PATHS = ("ib-local", "ib-global")
PATHS = ROCE_PATHS + INFINIBAND_PATHS
SERVICES = {"RC": "Reliable Connection (RC)", "UC": "Unreliable Connection (UC)", "UD": "Unreliable Datagram (UD)",
            "XRC": "Extended Reliable Connection (XRC)"}
# RoCEv2 has no UDP checksum over IPv6 either (A17.3.2.4).
TSHARK = ["tshark", "-o", "udp.ignore_ipv6_zero_checksum:TRUE"]


def lines(name):
    with open(os.path.join(DIR, name + ".jsonl"), encoding="ascii") as file:
        return [json.loads(line) for line in file]


def tshark(*arguments):
    # Reports (-G) have to come first and take no options.
    command = ["tshark"] if arguments[0] == "-G" else TSHARK
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    return done.stdout


# tshark must not guess a protocol in the payload, which is test data.
for words in map(str.split, tshark("-G", "heuristic-decodes").splitlines()):
    if words[0] == "infiniband.payload":
        TSHARK += ["--disable-heuristic", words[4]]


def capture(path):
    return os.path.join(DIR, path + ".pcapng")


OPCODES = {row["opcode"]: row for row in lines("opcodes")}
SERVED = [code for code, row in OPCODES.items() if row["served"]]


def full_name(row):
    return f"{SERVICES[row['service']]} - {row['name']}".lower()


def differences(expected, got, what):
    """Yields the keys with different values."""
    for key in sorted(expected.keys() | got.keys()):
        if expected.get(key) != got.get(key):
            yield f"{what}: {key} is {got.get(key)!r}, not {expected.get(key)!r}"


# --- tshark on the engine's captures ---

def table_is_tsharks():
    """The served opcodes are all opcodes of these services that tshark knows, except those that the table marks as not served."""
    theirs = {}
    for line in tshark("-G", "values").splitlines():
        words = line.split("\t")
        if words[:2] == ["V", "infiniband.bth.opcode"]:
            theirs[int(words[2], 0)] = words[3].lower()
    prefixes = tuple(f"{name.lower()} - " for name in SERVICES.values())
    known = {code: name for code, name in theirs.items() if name.startswith(prefixes) and "reserved" not in name}
    for code in sorted(known.keys() | set(SERVED)):
        row = OPCODES.get(code)
        if row is None or known.get(code) != full_name(row):
            yield f"opcode {code:#x}: the table has {row}, and tshark {known.get(code)!r}"
        elif not row["served"]:
            yield f"opcode {code:#x} is not served: {row}"


def names(path):
    """`tshark -V` names each opcode, the captures of the wire have all opcodes, and no packet is malformed or suspicious."""
    text = tshark("-V", "-r", capture(path))
    theirs = re.findall(r"^ {8}Opcode: (.*) \((\d+)\)$", text, re.M)
    ours = [row["opcode"] for row in lines(path)]
    if len(theirs) != len(ours):
        yield f"tshark shows {len(theirs)} of {len(ours)} packets"
    for number, ((name, code), meant) in enumerate(zip(theirs, ours), 1):
        if int(code) != meant or name.lower() != full_name(OPCODES[meant]):
            yield f"packet {number}: {name} ({code}) is not {full_name(OPCODES[meant])} ({meant})"
    if path in PATHS and {int(code) for _, code in theirs} != set(SERVED):
        yield f"missing opcodes: {sorted(set(SERVED) - {int(code) for _, code in theirs})}"
    for line in text.splitlines():
        if re.search(r"malformed|expert info|\[bad |unreassembled", line, re.I):
            yield line.strip()


def flag(text):
    return {"True": 1, "False": 0, "1": 1, "0": 0}[text]


def number(text):
    return int(text, 0)


def plain_hex(text):
    return text.replace(":", "").removeprefix("0x")


def nanoseconds(text):
    seconds, fraction = text.split(".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0"))


def mapped(text):
    return (b"\0" * 10 + b"\xff\xff" + ipaddress.IPv4Address(text).packed).hex()


def gid(text):
    return ipaddress.IPv6Address(text).packed.hex()


# Our name: tshark's name and the function that reads its value. Of two names, a frame has one.
FIELDS = {
    "time": [("frame.time_epoch", nanoseconds)],
    "smac": [("eth.src", plain_hex)],
    "dmac": [("eth.dst", plain_hex)],
    "vlan": [("vlan.id", number)],
    "priority": [("vlan.priority", number)],
    "slid": [("infiniband.lrh.slid", number)],
    "dlid": [("infiniband.lrh.dlid", number)],
    "sl": [("infiniband.lrh.sl", number)],
    "sgid": [("ip.src", mapped), ("ipv6.src", gid), ("infiniband.grh.sgid", gid)],
    "dgid": [("ip.dst", mapped), ("ipv6.dst", gid), ("infiniband.grh.dgid", gid)],
    "tclass": [("ip.dsfield", number), ("ipv6.tclass", number), ("infiniband.grh.tclass", number)],
    "hops": [("ip.ttl", number), ("ipv6.hlim", number), ("infiniband.grh.hoplmt", number)],
    "flow": [("ipv6.flow", number), ("infiniband.grh.flowlabel", number)],
    "sport": [("udp.srcport", number)],
    "opcode": [("infiniband.bth.opcode", number)],
    "se": [("infiniband.bth.se", flag)],
    "pad": [("infiniband.bth.padcnt", number)],
    "pkey": [("infiniband.bth.p_key", number)],
    "dqpn": [("infiniband.bth.destqp", number)],
    "ackreq": [("infiniband.bth.a", flag)],
    "psn": [("infiniband.bth.psn", number)],
    "qkey": [("infiniband.deth.q_key", number)],
    "srcqp": [("infiniband.deth.srcqp", number)],
    "placement": [("infiniband.feth.plt", number)],
    "va": [("infiniband.reth.va", number)],
    "rkey": [("infiniband.reth.r_key", number)],
    "dmalen": [("infiniband.reth.dmalen", number)],
    "swap_add": [("infiniband.atomiceth.swapdt", number)],
    "compare": [("infiniband.atomiceth.cmpdt", number)],
    "syndrome": [("infiniband.aeth.syndrome", number)],
    "msn": [("infiniband.aeth.msn", number)],
    "original": [("infiniband.atomicacketh.origremdt", number)],
    "length": [("data.len", number)],
    "imm": [("infiniband.immdt", plain_hex)],
    "ieth": [("infiniband.ieth", lambda text: int(plain_hex(text), 16))],
}


# The fields up to the BTH, which every packet has.
BEFORE = list(FIELDS)[:list(FIELDS).index("qkey")]


def read_fields(path, defaults):
    """Returns the values that tshark reads from the fields of each packet. A field that tshark does not show has its default, if any."""
    columns = [(ours, theirs, read) for ours, places in FIELDS.items() for theirs, read in places]
    arguments = [word for _, theirs, _ in columns for word in ("-e", theirs)]
    text = tshark("-r", capture(path), "-T", "fields", "-E", "occurrence=f", *arguments)
    rows = [line.split("\t") for line in text.splitlines()]
    return [defaults | {ours: read(value) for (ours, _, read), value in zip(columns, row) if value != ""} for row in rows]


def fields(path):
    """tshark reads from each field the value that the engine wrote."""
    defaults = {"length": 0} if path in INFINIBAND_PATHS else {"vlan": 0, "priority": 0, "flow": 0, "length": 0}
    rows = read_fields(path, defaults)
    meant = lines(path)
    if len(rows) != len(meant):
        yield f"tshark shows {len(rows)} of {len(meant)} packets"
    for index, (got, expected) in enumerate(zip(rows, meant), 1):
        # tshark includes the padding in the length. The sending queue pair is not on the wire.
        expected["length"] += expected["pad"]
        del expected["from"]
        # tshark names the opcodes of XRC, but takes everything after the BTH for data.
        if OPCODES[expected["opcode"]]["service"] == "XRC":
            expected, got = ({key: row[key] for key in row if key in BEFORE} for row in (expected, got))
        # tshark reads the selectivity level from bits 4:3; rxe and the engine have it in bits 5:4.
        expected.pop("level", None)
        yield from differences(expected, got, f"packet {index}")


WORK = {"SEND": {"SEND", "SEND with immediate", "SEND with invalidate"},
        "RDMA WRITE": {"RDMA WRITE", "RDMA WRITE with immediate"},
        "RDMA READ": {"RDMA READ"}, "CmpSwap": {"CmpSwap"}, "FetchAdd": {"FetchAdd"},
        "ATOMIC Acknowledge": {"CmpSwap", "FetchAdd"}, "ATOMIC WRITE": {"ATOMIC WRITE"}, "FLUSH": {"FLUSH"},
        "RDMA READ response Only": {"RDMA READ", "ATOMIC WRITE", "FLUSH"}}
COMMENT = re.compile(
    r"QP (0x[0-9a-f]+) -> (0x[0-9a-f]+), (?:([a-z]+(?: \([a-z ]+\))?|is not ready for) )?WR (\d+) \(([A-Za-z ]+)\), PSN (\d+)"
    r"(?:, (?:from )?(packet|response) (\d+) of (\d+)|, (\d+) responses)?(, retransmission)?(, lost)?")


def comments(path):
    """tshark shows a comment on each packet, with its queue pairs, its work request, and its place in the message."""
    texts = tshark("-r", capture(path), "-T", "fields", "-e", "frame.comment").splitlines()
    meant = lines(path)
    if len(texts) != len(meant):
        yield f"tshark shows {len(texts)} of {len(meant)} packets"
    again = lost = 0
    for index, (text, packet) in enumerate(zip(texts, meant), 1):
        found = COMMENT.fullmatch(text)
        if not found:
            yield f"packet {index}: {text!r}"
            continue
        source, target, _, _, work, psn, _, nth, count, *_ = found.groups()
        name = OPCODES[packet["opcode"]]["name"]
        kind = max((kind for kind in WORK if name.startswith(kind)), key=len, default=None)
        right = (int(source, 16), int(target, 16), int(psn)) == (packet["from"], packet["dqpn"], packet["psn"])
        right &= kind is None or work in WORK[kind]
        if "First" in name and "READ" not in name:
            right &= nth == "1" and int(count) > 1
        if "Last" in name:
            right &= nth == count is not None
        if not right:
            yield f"packet {index} ({name}): {text!r}"
        again, lost = again + bool(found[11]), lost + bool(found[12])
    if not (again and lost):
        yield "the comments name no retransmission, or no loss"


# --- scapy on the engine's captures ---

def icrcs(path):
    """scapy computes the same ICRC for each packet as the engine, and another one if a bit is flipped."""
    total = 0
    for index, (data, _) in enumerate(RawPcapNgReader(capture(path)), 1):
        total += 1
        bth = Ether(data)[BTH]
        if bth.compute_icrc(None) != data[-4:]:
            yield f"packet {index}: {data[-4:].hex()} is the ICRC, and scapy computes {bth.compute_icrc(None).hex()}"
        broken = bytearray(data)
        # A bit of the PSN.
        broken[len(data) - len(bytes(bth)) + 11] ^= 1
        if Ether(bytes(broken))[BTH].compute_icrc(None) == data[-4:]:
            yield f"packet {index}: scapy computes the same ICRC although a bit is flipped"
    if total != len(lines(path)):
        yield f"the capture has {total} of {len(lines(path))} packets"


def checksums(path):
    """Each InfiniBand packet has the packet length, the ICRC and the VCRC of the specification."""
    total = 0
    for index, (record, _) in enumerate(RawPcapNgReader(capture(path)), 1):
        total += 1
        yield from infiniband_crc.errors(index, record)
    if total != len(lines(path)):
        yield f"the capture has {total} of {len(lines(path))} packets"


def mads():
    """tshark names each management datagram, reads its addresses, and finds no malformed packet."""
    names = tshark("-r", capture("mads"), "-T", "fields", "-e", "_ws.col.info").splitlines()
    meant = lines("mads")
    if len(names) != len(meant):
        yield f"tshark shows {len(names)} of {len(meant)} datagrams"
    for index, (name, got, expected) in enumerate(zip(names, read_fields("mads", {}), meant), 1):
        if not name.endswith(expected.pop("name")):
            yield f"datagram {index}: {name}"
        yield from differences(expected, {key: got.get(key) for key in expected}, f"datagram {index}")
    virtual_lanes = tshark("-r", capture("mads"), "-T", "fields", "-e", "infiniband.lrh.vl").splitlines()
    if [number(lane) for lane in virtual_lanes] != [15 if row["dqpn"] == 0 else 0 for row in meant]:
        yield f"virtual lanes {virtual_lanes}"
    for line in tshark("-V", "-r", capture("mads")).splitlines():
        if re.search(r"malformed|expert info", line, re.I):
            yield line.strip()


# --- the engine's parser on scapy's frames ---

def parse(frames):
    text = "".join(frame.hex() + "\n" for frame in frames)
    done = subprocess.run([JUDGE, "parse"], input=text, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def extension(dice, name, expected):
    """Returns the headers after the BTH with random values, by the specification, and adds the values to `expected`."""
    bits, out = dice.getrandbits, b""

    def put(layout, **values):
        nonlocal out
        expected.update(values)
        out += struct.pack(layout, *values.values())

    if expected["service"] == "UD":
        put("!II", qkey=bits(32), srcqp=bits(24))
    is_response = "cknowledge" in name or "READ response" in name
    if expected["service"] == "XRC" and not is_response:
        expected["srqn"] = bits(24)
        out += struct.pack("!I", bits(8) << 24 | expected["srqn"])
    if name.startswith("RDMA WRITE") and ("First" in name or "Only" in name) or name in ("RDMA READ request", "ATOMIC WRITE"):
        put("!QII", va=bits(64), rkey=bits(32), dmalen=bits(32))
    if name == "FLUSH":
        placement, level = bits(4), bits(2)
        out += struct.pack("!I", bits(26) << 6 | level << 4 | placement)
        expected.update(placement=placement, level=level)
        put("!QII", va=bits(64), rkey=bits(32), dmalen=bits(32))
    if name in ("CmpSwap", "FetchAdd"):
        put("!QIQQ", va=bits(64), rkey=bits(32), swap_add=bits(64), compare=bits(64))
        if name == "FetchAdd":
            # The field exists and has no meaning.
            expected["compare"] = 0
    if is_response and "Middle" not in name:
        syndrome = dice.choice([dice.randrange(0x40), 0x60 + dice.randrange(5)])
        msn = bits(24)
        expected.update(syndrome=syndrome, msn=msn)
        out += bytes(AETH(syndrome=syndrome, msn=msn))
    if name == "ATOMIC Acknowledge":
        put("!Q", original=bits(64))
    if "Immediate" in name:
        imm = dice.randbytes(4)
        expected["imm"] = imm.hex()
        out += imm
    if "Invalidate" in name:
        put("!I", ieth=bits(32))
    return out


def random_frame(dice, path, row, length):
    """Returns a frame that scapy builds, and the values in it."""
    bits, name = dice.getrandbits, row["name"]
    carries = name.startswith(("SEND", "RDMA WRITE", "RDMA READ response", "ATOMIC WRITE"))
    payload = dice.randbytes(length if carries else 0)
    pad = -len(payload) % 4
    smac, dmac = dice.randbytes(6), dice.randbytes(6)
    want = {"service": row["service"], "smac": smac.hex(), "dmac": dmac.hex(), "vlan": 0, "priority": 0, "flow": 0,
            "tclass": bits(8), "hops": bits(8), "sport": bits(16), "opcode": row["opcode"], "se": bits(1), "pad": pad,
            "pkey": bits(16), "dqpn": bits(24), "ackreq": bits(1), "psn": bits(24), "length": len(payload),
            "payload": payload.hex()}
    frame = Ether(src=smac.hex(":"), dst=dmac.hex(":"))
    if "vlan" in path:
        want["vlan"], want["priority"] = dice.randrange(1, 4095), bits(3)
        frame /= Dot1Q(vlan=want["vlan"], prio=want["priority"], dei=bits(1))
    if "ipv4" in path:
        ends = [ipaddress.IPv4Address(bits(32)) for _ in range(2)]
        want["sgid"], want["dgid"] = (mapped(str(end)) for end in ends)
        flags = dice.choice(["DF", 0])
        frame /= IP(src=str(ends[0]), dst=str(ends[1]), tos=want["tclass"], ttl=want["hops"], id=bits(16), flags=flags)
    else:
        ends = [ipaddress.IPv6Address(bits(128)) for _ in range(2)]
        want["sgid"], want["dgid"] = (end.packed.hex() for end in ends)
        want["flow"] = bits(20)
        frame /= IPv6(src=str(ends[0]), dst=str(ends[1]), tc=want["tclass"], fl=want["flow"], hlim=want["hops"])
    # The UDP checksum may be 0, right or wrong, because receivers ignore it.
    frame /= UDP(sport=want["sport"], dport=4791, chksum=dice.choice([0, bits(16)]))
    headers = extension(dice, name, want)
    del want["service"]
    # Reserved bits, and bits that routers change, may have any value.
    frame /= BTH(opcode=row["opcode"], solicited=want["se"], migreq=bits(1), padcount=pad, pkey=want["pkey"], fecn=bits(1),
                 becn=bits(1), resv6=bits(6), dqpn=want["dqpn"], ackreq=want["ackreq"], resv7=bits(7), psn=want["psn"])
    frame /= Raw(headers + payload + dice.randbytes(pad))
    return bytes(frame), want


def frames(path):
    """The engine's parser reads the same values from scapy's frames, and refuses a frame with a flipped bit."""
    dice = random.Random("roce" + path)
    built = [random_frame(dice, path, OPCODES[code], length)
             for code in SERVED for length in (0, 1, 2, 3, 4, 61, 256, 4096)]
    # scapy computes the ICRC when it builds the BTH.
    parsed = parse([frame for frame, _ in built])
    if len(parsed) != len(built):
        yield f"the parser read {len(parsed)} of {len(built)} frames"
    for (_, want), got in zip(built, parsed):
        yield from differences(want, got, f"{OPCODES[want['opcode']]['name']} of {want['length']} bytes")
    broken = [frame[:-5] + bytes([frame[-5] ^ 1 << dice.randrange(8)]) + frame[-4:] for frame, _ in built]
    for (_, want), got in zip(built, parse(broken)):
        if got != {"error": "Icrc"}:
            yield f"{OPCODES[want['opcode']]['name']}, with a flipped bit: {got}"


CNP = 0x81


def refusals():
    """The parser refuses opcodes that are not served, including those in scapy's table, and reserved syndromes. Unknown opcodes of RC and
    XRC must be refused by the responder, so the parser returns packets with nothing but the opcode."""
    dice = random.Random("refusals")
    others = [code for code in range(256) if code not in SERVED]
    ends = IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=0xc000, dport=4791, chksum=0)
    built = [bytes(Ether() / ends / BTH(opcode=code) / Raw(dice.randbytes(64))) for code in others]
    for code, got in zip(others, parse(built)):
        if code >> 5 in (0, 5):
            right = (got.get("opcode"), got.get("length"), got.get("payload")) == (code, 0, "")
        else:
            right = got == {"error": "Length" if code == CNP else "Opcode"}
        if not right:
            yield f"opcode {code:#x}: {got}"
    # A congestion notification has 16 reserved bytes.
    for got in parse([bytes(Ether() / ends / BTH(opcode=CNP, becn=1) / Raw(bytes(16)))]):
        if (got.get("opcode"), got.get("length"), got.get("payload")) != (CNP, 0, ""):
            yield f"CNP: {got}"
    reserved = [code for code in range(256) if 0x40 <= code < 0x60 or code > 0x64]
    built = [bytes(Ether() / ends / BTH(opcode=0x11) / AETH(syndrome=code, msn=1)) for code in reserved]
    for code, got in zip(reserved, parse(built)):
        if got != {"error": "Syndrome"}:
            yield f"syndrome {code:#x}: {got}"


def main():
    tests = [("opcodes tshark knows", table_is_tsharks), ("refusals by the parser", refusals), ("tshark names MADs", mads)]
    by_tshark = [("tshark names opcodes", names), ("tshark sees fields", fields), ("tshark shows comments", comments)]
    by_scapy = [("scapy computes ICRCs", icrcs), ("parser reads scapy's frames", frames)]
    for path in PATHS:
        others = [("checksums are right", checksums)] if path in INFINIBAND_PATHS else by_scapy
        for name, test in by_tshark + others:
            tests.append((f"{path}: {name}", lambda test=test, path=path: test(path)))
    tests.append(("MADs: checksums are right", lambda: checksums("mads")))
    # Packets inside a device, which were never on a wire. A tap on the device makes frames of them.
    for name, test in (("tshark names opcodes", names), ("scapy computes ICRCs", icrcs)):
        tests.append((f"inside a device: {name}", lambda test=test: test("device")))
    results = Results("judges")
    for name, test in tests:
        results.judged(name, test())
    print(f"{sum(len(lines(path)) for path in PATHS)} packets of {len(SERVED)} opcodes")
    return results.end()


if __name__ == "__main__":
    sys.exit(main())

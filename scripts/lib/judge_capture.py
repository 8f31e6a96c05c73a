# SPDX-License-Identifier: GPL-2.0 OR MIT
"""judge_capture.py [--all | --infiniband] FILE...: checks captures of guests (scripts/vm --capture) with independent programs.

tshark must find no packet malformed or suspicious, and scapy must compute the same ICRC for each packet. Scapy does not know packets of InfiniBand
links, so infiniband_crc.py computes their ICRC and VCRC. With --all, the files together must contain all opcodes that tshark knows. With --infiniband,
they are captures of InfiniBand ports, and together must contain all kinds of packets that infiniband_kinds.py expects. Prints the opcodes or kinds
with their counts, and ends with `N passed, N failed`.
"""
import collections
import logging
import os
import re
import subprocess
import sys

import infiniband_crc
from infiniband_kinds import Captures

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
from scapy.contrib.roce import BTH  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402
from scapy.utils import RawPcapNgReader  # noqa: E402

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../guest")
from verbena_guest.results import Results  # noqa: E402


def tshark(*arguments):
    # Reports (-G) take no options.
    options = [] if arguments[0] == "-G" else ["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]
    command = ["tshark", *options, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout


def payload_heuristics():
    """Returns options against tshark's guesses of a protocol in the payload, which is test data."""
    for words in map(str.split, tshark("-G", "heuristic-decodes").splitlines()):
        if words[0] == "infiniband.payload":
            yield from ("--disable-heuristic", words[4])


def remarkable(path, opcodes):
    text = tshark("-V", "-r", path, *HEURISTICS)
    for name in re.findall(r"^ {8}Opcode: (.*) \(\d+\)$", text, re.M):
        opcodes[name] += 1
    for line in text.splitlines():
        # Programs choose the hop limit: pingpongs set it to 1.
        if "Time To Live" in line:
            continue
        if re.search(r"malformed|expert info|\[bad |unreassembled", line, re.I):
            yield line.strip()


# Link type of captures of InfiniBand links.
ERF = 197


def crcs_of_roce(number, data):
    found = Ether(data)[BTH].compute_icrc(None)
    if found != data[-4:]:
        yield f"packet {number}: {data[-4:].hex()} is the ICRC, and scapy computes {found.hex()}"


def crcs(path):
    count = 0
    for count, (data, about) in enumerate(RawPcapNgReader(path), 1):
        if about.linktype == ERF:
            yield from infiniband_crc.errors(count, data)
        else:
            yield from crcs_of_roce(count, data)
    if not count:
        yield "the capture has no packet"


# Opcodes that Verbena does not send: those of reliable datagrams; those that an XRC target cannot execute (it has no windows of its own,
# and FLUSH and ATOMIC WRITE exist only for RC); CNP.
OTHERS = re.compile(r"\(RD\)|Reserved|CNP|\(XRC\) - (SEND \w+ with Invalidate|FLUSH|ATOMIC WRITE)")


def missing(opcodes):
    for line in tshark("-G", "values").splitlines():
        words = line.split("\t")
        if words[1:2] == ["infiniband.bth.opcode"] and not OTHERS.search(words[3]) and words[3] not in opcodes:
            yield words[3]


HEURISTICS = list(payload_heuristics())


def main():
    results = Results("judge-capture")
    paths = [a for a in sys.argv[1:] if not a.startswith("--")]
    if "--infiniband" in sys.argv:
        captures = Captures(tshark)
        counts, suspicious, all_there = captures.counts, captures.wrong, ("the captures have all kinds", captures.missing())
    else:
        counts = collections.Counter()
        suspicious, all_there = (lambda path: remarkable(path, counts)), ("the captures have all opcodes", missing(counts))
    tests = []
    for path in paths:
        tests += (f"{path}: tshark finds no packet suspicious", suspicious(path)), (f"{path}: the CRCs are right", crcs(path))
    if {"--all", "--infiniband"} & set(sys.argv):
        tests.append(all_there)
    for name, test in tests:
        results.judged(name, test)
    for name, count in sorted(counts.items()):
        print(f"{count:8} {name}")
    return results.end()


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""judge_capture.py FILE...: what guests have sent and received (scripts/vm --capture), judged by programs that are not ours.

tshark finds nothing malformed or remarkable in it, scapy finds the ICRC of each packet right. Prints which opcodes there were, and ends with
`N passed, N failed`.
"""
import collections
import logging
import re
import subprocess
import sys

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
from scapy.contrib.roce import BTH  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402
from scapy.utils import RawPcapNgReader  # noqa: E402


def tshark(*arguments):
    # Reports (-G) take no options.
    options = [] if arguments[0] == "-G" else ["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]
    command = ["tshark", *options, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout


def payload_heuristics():
    """What a test sends is not of another protocol, which tshark would guess."""
    for words in map(str.split, tshark("-G", "heuristic-decodes").splitlines()):
        if words[0] == "infiniband.payload":
            yield from ("--disable-heuristic", words[4])


def remarkable(path, opcodes):
    text = tshark("-V", "-r", path, *HEURISTICS)
    for name in re.findall(r"^ {8}Opcode: (.*) \(\d+\)$", text, re.M):
        opcodes[name] += 1
    for line in text.splitlines():
        # How far a packet may go is for the program to say: pingpongs say one hop.
        if "Time To Live" in line:
            continue
        if re.search(r"malformed|expert info|\[bad |unreassembled", line, re.I):
            yield line.strip()


def icrcs(path):
    count = 0
    for count, (data, _) in enumerate(RawPcapNgReader(path), 1):
        found = Ether(data)[BTH].compute_icrc(None)
        if found != data[-4:]:
            yield f"packet {count}: {data[-4:].hex()} is {found.hex()} for scapy"
    if not count:
        yield "there is no packet"


HEURISTICS = list(payload_heuristics())


def main():
    opcodes, passed, failed = collections.Counter(), 0, 0
    for path in sys.argv[1:]:
        for name, test in ("tshark finds nothing remarkable", remarkable(path, opcodes)), ("scapy computes the ICRCs", icrcs(path)):
            wrong = list(test)
            print(f"{'FAILED' if wrong else 'ok'} {path}: {name}")
            print("".join(f"  | {line}\n" for line in wrong[:10]), end="")
            passed, failed = passed + (not wrong), failed + bool(wrong)
    for name, count in sorted(opcodes.items()):
        print(f"{count:8} {name}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())

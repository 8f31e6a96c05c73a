# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The checksums of InfiniBand packets, by the specification, because neither tshark nor scapy checks them. For judges.py and judge_capture.py."""
import zlib

# Captures have packets of InfiniBand links in records of ERF, whose header has 16 bytes. LRH to VCRC follow.
ERF_HEADER = 16
VCRC_POLYNOMIAL = 0x100B


def _vcrc_table():
    """Returns the CRC of each byte, whose least significant bit is the first (IBTA 7.8.2)."""
    mirrored = int(f"{VCRC_POLYNOMIAL:016b}"[::-1], 2)
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (mirrored if value & 1 else 0)
        yield value


_TABLE = list(_vcrc_table())


def vcrc(data):
    """Returns the VCRC of a packet from its LRH to its ICRC."""
    crc = 0xFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return (crc ^ 0xFFFF).to_bytes(2, "little")


def icrc(data):
    """Returns the ICRC of a packet from its LRH to its payload. Fields that may change on the way count as ones (IBTA 7.8.1)."""
    ones = bytearray(data)
    bth = 8
    if data[1] & 3 == 3:
        # The whole LRH, and traffic class, flow label and hop limit of the GRH.
        ones[:8] = b"\xff" * 8
        ones[8] |= 0x0F
        ones[9:12] = b"\xff" * 3
        ones[15] = 0xFF
        bth = 48
    else:
        ones[0] |= 0xF0
    ones[bth + 4] = 0xFF
    return zlib.crc32(ones).to_bytes(4, "little")


def errors(index, record):
    """Yields what is wrong with the packet length and the checksums of a packet in a record of ERF."""
    data = record[ERF_HEADER:]
    if 4 * (int.from_bytes(data[4:6], "big") & 0x7FF) != len(data) - 2:
        yield f"packet {index}: {data[4:6].hex()} is the packet length of {len(data)} bytes with the VCRC"
    if icrc(data[:-6]) != data[-6:-2]:
        yield f"packet {index}: {data[-6:-2].hex()} is the ICRC, not {icrc(data[:-6]).hex()}"
    if vcrc(data[:-2]) != data[-2:]:
        yield f"packet {index}: {data[-2:].hex()} is the VCRC, not {vcrc(data[:-2]).hex()}"

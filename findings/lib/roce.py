# SPDX-License-Identifier: GPL-2.0 OR MIT
"""RoCEv2 frames with their ICRC, made by scapy. A module shared by the scripts of findings/ about Wireshark."""
from scapy.all import IP, UDP, Ether, Raw, wrpcap  # noqa: F401
from scapy.contrib.roce import BTH, cnp  # noqa: F401


def frame(transport):
    """Returns the frame of a packet that begins with a BTH."""
    way = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="192.0.2.1", dst="192.0.2.2", flags="DF")
    return way / UDP(sport=49152, dport=4791, chksum=0) / transport


def packet(opcode, extended=b"", payload=b""):
    """Returns an RC packet to QPN 0x11 with these extended transport headers and this payload, padded to a multiple of four bytes."""
    pad = -len(payload) % 4
    return frame(BTH(opcode=opcode, dqpn=0x11, psn=1, padcount=pad) / Raw(extended + payload + bytes(pad)))

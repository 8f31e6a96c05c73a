#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/infiniband-link-type.sh
#
# Software: tshark (Wireshark) 4.4.19, libpcap 1.10.5.
# Behaviour: Wireshark does not open a capture with the link type that is registered for InfiniBand (LINKTYPE_INFINIBAND, 247), although it has a
# complete dissector for InfiniBand, and libpcap knows the number by name. It opens the same packets in the format of a vendor's capture cards:
# ERF (link type 197), with records of type 21. editcap lists "infiniband" among the types that it can write, but that is a number of
# Wireshark's own and not one of pcap files.
# Seen: for one SEND, from the LRH to the VCRC: "network type 247 unknown or unsupported" with 247, "RC Send Only" from LID 1 to LID 2 with 197.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root tshark=4.4.19-0+deb13u1 libpcap0.8t64=1.10.5-2 python3
cat >"$work/share/make.py" <<'PY'
import ctypes
import struct

lrh = bytes((0, 2)) + struct.pack(">HHH", 2, (8 + 12 + 16 + 4) // 4, 1)  # to LID 2, length in words, from LID 1
bth = bytes((4, 0, 0xFF, 0xFF)) + struct.pack(">II", 0x11, 1)  # SEND Only
packet = lrh + bth + b"sixteen payload." + bytes(4) + bytes(2)
erf = struct.pack("<Q", 0) + bytes((21, 4)) + struct.pack(">HHH", 16 + len(packet), 0, len(packet))
for link_type, record in ((247, packet), (197, erf + packet)):
    with open(f"/share/{link_type}.pcap", "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link_type) + struct.pack("<IIII", 0, 0, len(record), len(record)) + record)
pcap = ctypes.CDLL("libpcap.so.0.8")
pcap.pcap_datalink_val_to_name.restype = ctypes.c_char_p
print("libpcap: 247 is", pcap.pcap_datalink_val_to_name(247).decode())
PY
said=$(in_root python3 /share/make.py
	for n in 247 197; do in_root tshark -r "/share/$n.pcap" 2>&1 | sed -n "/super\|Running as/!s/^/$n: /p"; done || true)
printf '%s\n' "$said"
expect "$said" '^libpcap: 247 is INFINIBAND$' "libpcap has another name for 247"
expect "$said" '^247: .*network type 247 unknown or unsupported' "Wireshark opens link type 247"
expect "$said" '^197: .*LID: 1 .* LID: 2 .*RC Send Only' "ERF is not dissected"

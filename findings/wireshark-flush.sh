#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/wireshark-flush.sh
#
# Software: tshark (Wireshark) 4.4.19; the frames are made by scapy 2.6.1.
# Behaviour: Wireshark shows a FLUSH of a whole region with a level that does not exist. The FLUSH extended transport header has the placement type
# in its lowest four bits and above them the selectivity level, 0 for a range and 1 for a region (IBTA, annex on memory placement extensions;
# FETH_PLT_MASK 0xf and FETH_SEL_MASK 0x30 in the kernel's rxe_hdr.h). Wireshark splits one bit lower: three bits of type, two of level. So level 1
# is shown as 2, and a filter for level 1 finds no packet.
# Seen: placement type 1 and 2 are right; selectivity level 0 is shown as 0, 1 as 2.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root tshark=4.4.19-0+deb13u1 python3-scapy=2.6.1+dfsg-1
cp "$top/findings/lib/roce.py" "$work/share/"
cat >"$work/share/make.py" <<'PY'
import struct

from roce import packet, wrpcap

FLUSH = 0x1C
RANGE, REGION = 0, 1
reth = struct.pack(">QII", 0x1000, 0x55, 64)
wrpcap("/share/flush.pcap", [packet(FLUSH, struct.pack(">I", level << 4 | kind) + reth) for level in (RANGE, REGION) for kind in (1, 2)])
PY
in_root python3 /share/make.py
said=$(in_root tshark -r /share/flush.pcap -V 2>/dev/null | awk '/^Frame/ { sub(":", "", $2); frame = $2 } /Selectivity Level|Placement Type/ { sub(".* = ", ""); print frame, $0 }')
printf '%s\n' "$said"
for n in 1 2; do expect "$said" "^$n Selectivity Level: 0$" "level 0 is not shown as 0"; done
for n in 3 4; do expect "$said" "^$n Selectivity Level: 2$" "level 1 is not shown as 2"; done
for n in 1 2 3 4; do expect "$said" "^$n Placement Type: $(((n - 1) % 2 + 1))$" "the placement type is wrong"; done

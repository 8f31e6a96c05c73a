#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/wireshark-congestion.sh
#
# Software: tshark (Wireshark) 4.4.19; the frames are made by scapy 2.6.1.
# Behaviour: Wireshark has a dissector for RoCEv2, but none for its congestion control. A congestion notification packet (opcode 0x81), which is
# frequent in a busy fabric, is shown as "Unknown OpCode", and its 16 reserved bytes together with the ICRC as "Vendor Specific" data. The bits FECN
# and BECN of the BTH are not fields, but parts of a byte "Reserved". So a filter finds CNPs only by infiniband.bth.opcode == 129.
# Seen: "Unknown OpCode", "Opcode: Unknown (129)", "Reserved: 40" for a CNP with BECN, "Vendor Specific or Unknown Header Sequence", no field with
# ecn in its name below the BTH.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root tshark=4.4.19-0+deb13u1 python3-scapy=2.6.1+dfsg-1
cp "$top/findings/lib/roce.py" "$work/share/"
cat >"$work/share/make.py" <<'PY'
from roce import cnp, frame, wrpcap

wrpcap("/share/cnp.pcap", [frame(cnp(0x11))])
PY
in_root python3 /share/make.py
said=$(in_root tshark -r /share/cnp.pcap -V 2>/dev/null | sed -n '/^InfiniBand/,$p')
line=$(in_root tshark -r /share/cnp.pcap 2>/dev/null)
printf '%s\n%s\n' "$line" "$said"
expect "$line" 'Unknown OpCode' "the CNP has a name"
expect "$said" 'Opcode: Unknown \(129\)' "the opcode has a name"
expect "$said" 'Reserved: 40$' "BECN is no longer part of a reserved byte"
expect "$said" 'Vendor Specific or Unknown Header Sequence' "the data after the BTH are dissected"
refuse "$said" '[FB]ECN|Explicit Congestion' "there are fields for FECN and BECN"

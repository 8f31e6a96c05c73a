#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/wireshark-short-sends.sh
#
# Software: tshark (Wireshark) 4.4.19; the frames are made by scapy 2.6.1.
# Behaviour: an ordinary SEND of 0 to 12 bytes, or a SEND with invalidate, is shown as "[Malformed Packet: RPCoRDMA]". Wireshark lets each protocol
# over InfiniBand guess whether a payload is its own. RPC over RDMA reads past the end of a short payload for that, and the whole packet counts as
# malformed. A SEND of 13 bytes or more is shown correctly, but 20 bytes of zero are a "SMBDirect DataMessage". No frame has an error: with
# --disable-heuristic rpcrdma_infiniband --disable-heuristic smb_direct_infiniband all of them are shown correctly.
# Seen: SENDs of 0, 4, 8 and 12 bytes are malformed, of 13 and 16 not, of 20 zeros are SMBDirect, one with invalidate of 8 bytes is malformed; with
# the heuristics off none is.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root tshark=4.4.19-0+deb13u1 python3-scapy=2.6.1+dfsg-1
cp "$top/findings/lib/roce.py" "$work/share/"
cat >"$work/share/make.py" <<'PY'
from roce import packet, wrpcap

SEND_ONLY, SEND_ONLY_WITH_INVALIDATE = 0x04, 0x17
sizes = (0, 4, 8, 12, 13, 16)
sends = [packet(SEND_ONLY, payload=bytes(range(1, n + 1))) for n in sizes]
zeros = packet(SEND_ONLY, payload=bytes(20))
invalidating = packet(SEND_ONLY_WITH_INVALIDATE, bytes((0, 0, 1, 2)), b"payload.")
wrpcap("/share/sends.pcap", [*sends, zeros, invalidating])
PY
in_root python3 /share/make.py
said=$(in_root tshark -r /share/sends.pcap -T fields -e frame.number -e _ws.malformed -e _ws.col.protocol 2>/dev/null)
plain=$(in_root tshark -r /share/sends.pcap --disable-heuristic rpcrdma_infiniband --disable-heuristic smb_direct_infiniband \
	-T fields -e frame.number -e _ws.malformed -e _ws.col.protocol 2>/dev/null)
printf '%s\nWith the heuristics off:\n%s\n' "$said" "$plain"
t=$'\t'
for n in 1 2 3 4 8; do expect "$said" "^$n$t.+${t}RRoCE$" "frame $n is not malformed"; done
for n in 5 6; do expect "$said" "^$n$t${t}RRoCE$" "frame $n is malformed"; done
expect "$said" "^7$t${t}SMBDirect$" "20 zeros are no longer SMBDirect"
for n in 1 2 3 4 5 6 7 8; do expect "$plain" "^$n$t${t}RRoCE$" "frame $n is malformed or has another protocol with the heuristics off"; done

#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/opensm-lids.sh
#
# Software: opensm 3.3.23, with ibsim 0.12 and infiniband-diags 56.1; no device.
# Behaviour: opensm assigns LIDs in the order of the port GUIDs with their bytes reversed. It keeps ports in a tree whose key is the GUID in wire
# order, big endian, and compares the keys as numbers of a little-endian processor, so the last byte of a GUID counts most. Neither the cabling nor
# the usual order of the GUIDs matters. The manager's own port has LID 1.
# Input: a switch with four adapters, whose port GUIDs end in 51 (the manager's), 41, 31 and 21, and begin with 05, 01, 02 and 03. The switch's GUID
# ends in 90.
# Seen: 0x0500000000000051 has LID 1, 0x0300000000000021 has 2, 0x0200000000000031 has 3, 0x0100000000000041 has 4, 0x0900000000000090 has 5:
# 01, 02, 03 in reverse order.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root opensm=3.3.23-3.1 ibsim-utils=0.12-1 libumad2sim0=0.12-1
fabric
cat >"$work/share/run" <<'RUN'
. /share/fabric
on_fabric opensm -o -f osm.log >/dev/null 2>&1
sort -k 2 cache/guid2lid | sed '/^$/d'
RUN
said=$(in_root sh /share/run)
printf '%s\n' "$said"
lid=0
for guid in 0x0500000000000051 0x0300000000000021 0x0200000000000031 0x0100000000000041 0x0900000000000090; do
	lid=$((lid + 1))
	expect "$said" "^$guid 0x000$lid 0x000$lid$" "$guid has another LID than $lid"
done

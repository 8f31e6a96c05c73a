#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/diagnostics-status.sh
#
# Software: ibping of infiniband-diags 56.1, opensm 3.3.23, on ibsim 0.12; no device.
# Behaviour: programs for InfiniBand fabrics exit with 0 after they have failed. ibping of a LID that no port has prints "100% packet loss" and
# exits with 0; ping would exit with 1. `opensm -o -g GUID` with a port that this host does not have prints that it could not bind, and exits
# with 0 without a sweep. A script that checks whether a peer answers, or whether a fabric is up, must read the output.
# Seen: "2 packets transmitted, 0 received, 100% packet loss", status 0; "Error from osm_opensm_bind", status 0.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root opensm=3.3.23-3.1 infiniband-diags=56.1-1 ibsim-utils=0.12-1 libumad2sim0=0.12-1
fabric
cat >"$work/share/run" <<'RUN'
. /share/fabric
status=0
on_fabric opensm -o -f osm.log >/dev/null 2>&1 || status=$?
echo "sweep: status $status"
status=0
on_fabric ibping -c 2 77 >out 2>&1 || status=$?
echo "ibping of an unused LID: status $status, $(grep -o "2 packets transmitted.*loss" out)"
status=0
on_fabric opensm -o -g 0x1234 -f other.log >out 2>&1 || status=$?
echo "opensm of a foreign port: status $status, $(grep -o "Error from osm_opensm_bind" out)"
RUN
said=$(in_root sh /share/run)
printf '%s\n' "$said"
expect "$said" '^sweep: status 0$' "the sweep of the host's own port failed"
expect "$said" '^ibping of an unused LID: status 0, 2 packets transmitted, 0 received, 100% packet loss$' "ibping has another result"
expect "$said" '^opensm of a foreign port: status 0, Error from osm_opensm_bind$' "opensm has another result"

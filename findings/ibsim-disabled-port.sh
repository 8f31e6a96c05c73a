#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/ibsim-disabled-port.sh
#
# Software: ibsim 0.12, with opensm 3.3.23 and infiniband-diags 56.1; no device.
# Behaviour: `ibportstate LID PORT disable` and `enable` do not move the link of an emulated port. ibsim stores the physical state of the Set as it is,
# and leaves the logical state. The port is Active with PhysLinkState Disabled, and after `enable` Active with Polling, without an end. On a real
# link a port is Active only while its physical state is LinkUp (IBTA 7.2.7). A test of lost links on ibsim has to use the simulator's own
# commands (Unlink, Relink).
# Input: a switch with four adapters, configured by opensm, and port 2 of the switch, which leads to an adapter.
# Seen: "Active LinkUp" before, "Active Disabled" and "Active Polling" after the commands, both of which print success; the adapter at
# the other end stays "Active LinkUp", although no SMP reaches it through the switch.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root opensm=3.3.23-3.1 ibsim-utils=0.12-1 libumad2sim0=0.12-1 infiniband-diags=56.1-1
fabric
cat >"$work/share/run" <<'RUN'
. /share/fabric
of() { sed -n "s/^$1:\.*//p" out; }
state() {
	on_fabric smpquery portinfo "$switch" 2 >out 2>&1
	echo "$1: $(of LinkState) $(of PhysLinkState)"
}
on_fabric opensm -o -f osm.log >/dev/null 2>&1
switch=$(($(sed -n 's/^0x0900000000000090 \(0x[0-9a-f]*\) .*/\1/p' cache/guid2lid)))
state before
for operation in disable enable; do
	status=0
	on_fabric ibportstate "$switch" 2 "$operation" >/dev/null 2>&1 || status=$?
	echo "$operation: status $status"
	sleep 2
	state "after $operation"
done
LD_PRELOAD=/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so SIM_HOST=H2 timeout 20 smpquery -D portinfo 0 1 >out 2>&1
echo "other end: $(of LinkState) $(of PhysLinkState)"
RUN
said=$(in_root sh /share/run)
printf '%s\n' "$said"
expect "$said" '^before: Active LinkUp$' "the port is not active at first"
expect "$said" '^disable: status 0$' "the port cannot be disabled"
expect "$said" '^after disable: Active Disabled$' "a disabled port has other states"
expect "$said" '^enable: status 0$' "the port cannot be enabled"
expect "$said" '^after enable: Active Polling$' "an enabled port has other states"
expect "$said" '^other end: Active LinkUp$' "the other end has another state"

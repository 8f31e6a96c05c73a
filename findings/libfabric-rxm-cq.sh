#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/libfabric-rxm-cq.sh
#
# Software: libfabric 2.1.0 (verbs;ofi_rxm), over soft RoCE (rxe) of Linux 7.2.12.
# Behaviour: two processes that exchange ten messages need a completion queue of 262,144 entries. rxm makes one CQ for all possible peers, with 128
# receives and 128 sends for each of FI_UNIVERSE_SIZE, by default 1024. rxe supports at most 32,767 entries, so fi_enable fails with EINVAL. The
# error does not name the limit, and rxm does not try a smaller CQ.
# Seen: fi_pingpong exits with 22, "fi_enable(): ... ret=-22 (Invalid argument)", without the variable and with FI_UNIVERSE_SIZE=128 (32,768
# entries). With 127 it passes.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
unpack "$work/packages" libfabric-bin=2.1.0-1.1 libfabric1=2.1.0-1.1 libpsm2-2=11.2.185-2.1 libnuma1=2.0.19-1 libibverbs1=56.1-1 ibverbs-providers=56.1-1 librdmacm1t64=56.1-1
# shellcheck disable=SC2016 # the guest expands it
guest 'run() { # NAME
	timeout 40 fi_pingpong -p "verbs;ofi_rxm" -e rdm -I 10 -S 64 -s 10.1.0.1 >server 2>&1 & server=$!
	sleep 1
	timeout 40 fi_pingpong -p "verbs;ofi_rxm" -e rdm -I 10 -S 64 -s 10.1.0.1 10.1.0.1 >client 2>&1
	status=0
	wait "$server" || status=$?
	echo "$1: server $status $(grep -o "fi_enable.*" server)"
}
run unset; export FI_UNIVERSE_SIZE; for FI_UNIVERSE_SIZE in 128 127; do run "$FI_UNIVERSE_SIZE"; done'
for n in unset 128; do expect "$said" "^$n: server 22 fi_enable.*ret=-22 \(Invalid argument\)" "FI_UNIVERSE_SIZE $n: no EINVAL"; done
expect "$said" '^127: server 0 $' "FI_UNIVERSE_SIZE 127 does not pass"

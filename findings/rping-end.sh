#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/rping-end.sh
#
# Software: rping of rdmacm-utils 56.1, over soft RoCE (rxe) of Linux 7.2.12.
# Behaviour: the end of the server does not show whether the run succeeded. -C, by the manual page the number of messages, applies only to the
# client; the server runs until the connection ends. After a complete run it writes a failure to standard error, "wait for RDMA_READ_ADV state
# 10", and exits with 0. Message and status are the same when the client has sent fewer pings than the server expects, more, or was killed. So a
# script must check the client, or count the lines of -v.
# Seen: server -C 10, client -C 3: 3 pings; server -C 2, client -C 5: 5 pings; the same last line and status 0 both times, and with a killed client.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
unpack "$work/packages" rdmacm-utils=56.1-1 librdmacm1t64=56.1-1 libibverbs1=56.1-1 ibverbs-providers=56.1-1
# shellcheck disable=SC2016 # the guest expands it
guest 'run() { # SERVER-COUNT CLIENT-COUNT PORT
	rping -s -v -a 10.1.0.1 -p "$3" -C "$1" >out 2>err & server=$!
	sleep 1
	if [ "$2" = killed ]; then
		rping -c -a 10.1.0.1 -p "$3" -C 1000000 >/dev/null 2>&1 & client=$!
		sleep 2
		kill -KILL "$client"
	else
		rping -c -a 10.1.0.1 -p "$3" -C "$2" >/dev/null 2>&1
		echo "client -C $2: status $?"
	fi
	status=0
	wait "$server" || status=$?
	pings=$(grep -c "^server ping data: " out)
	[ "$2" != killed ] || pings=some
	echo "server -C $1, client $2: $pings pings, status $status, last words: $(tail -n 1 err)"
}
run 10 3 7001; run 2 5 7002; run 5 5 7003; run 5 killed 7004'
for end in '10, client 3: 3' '2, client 5: 5' '5, client 5: 5' '5, client killed: some'; do
	expect "$said" "^server -C $end pings, status 0, last words: wait for RDMA_READ_ADV state 10$" "the server has another result: -C $end"
done

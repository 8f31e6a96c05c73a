#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/cmtime-one-device.sh
#
# Software: cmtime of rdmacm-utils 56.1, and ib_cm of Linux 7.2.12, over soft RoCE (rxe).
# Behaviour: cmtime, the benchmark of the connection manager, cannot run with both ends on one device. Its test with queue pairs passes, but
# its test without them is rejected. For the latter, both ends invent QPNs from 1000 upwards. The connection manager keeps the peers' QPNs of
# a device in one table, so it takes the server's 1000 for an existing connection, and rejects it as stale (reason 10 at the server; the client
# gets 28, a consumer's reject). With -q, which shifts the numbers of one end, both tests pass.
# Seen: without -q both ends exit with 1, with RDMA_CM_EVENT_REJECTED, error 10, at the server; with -q 100000 at the client both exit with 0.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
unpack "$work/packages" rdmacm-utils=56.1-1 librdmacm1t64=56.1-1 libibverbs1=56.1-1 ibverbs-providers=56.1-1
# shellcheck disable=SC2016 # the guest expands it
guest 'run() { # PORT WHAT CLIENT-OPTION...
	port=$1 what=$2
	shift 2
	timeout 60 cmtime -b 10.1.0.1 -p "$port" -c 20 >server 2>&1 & server=$!
	sleep 2
	client=0
	timeout 60 cmtime -b 10.1.0.1 -s 10.1.0.1 -p "$port" -c 20 "$@" >client 2>&1 || client=$?
	status=0
	wait "$server" || status=$?
	echo "$what: server $status, client $client; $(cat server client | grep -o "RDMA_CM_EVENT_REJECTED.*" | head -n 1)"
	grep -h "QPs test\|no QPs" server
}
run 7001 plain; run 7002 moved -q 100000'
expect "$said" '^plain: server 1, client 1; RDMA_CM_EVENT_REJECTED, error: 10$' "the run without -q has another result"
expect "$said" '^moved: server 0, client 0; $' "with -q it does not pass"

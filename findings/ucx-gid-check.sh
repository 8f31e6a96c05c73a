#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/ucx-gid-check.sh
#
# Software: UCX 1.18.1 (ud_verbs), over soft RoCE (rxe) of Linux 7.2.12.
# Behaviour: UCX's check of datagrams drops all of them if the GID is an IPv4 one and the device is not mlx5. UCX looks for the destination GID in
# the first 40 bytes of a datagram, and has to know whether these contain a GRH or an IPv4 header. It takes that from the service level of the
# completion, where only mlx5 writes the kind of packet; with any other device it compares the wrong bytes. So no connection request arrives, and
# after UCX_UD_TIMEOUT the endpoint gives up. With an IPv6 GID the same program works, and with UCX_UD_ETH_DGID_CHECK=n. UCX 1.19 repairs this.
# Seen: ucx_perftest with the GID of 10.1.0.1 ends with an endpoint timeout; with the link-local GID, and without the check, it prints its result.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
unpack "$work/packages" ucx-utils=1.18.1+ds-2+b1 libucx0=1.18.1+ds-2+b1 libopenmpi40=5.0.7-1 libpmix2t64=5.0.7-1 libfabric1=2.1.0-1.1 libpsm2-2=11.2.185-2.1 \
	libhwloc15=2.12.0-4 libgomp1=14.2.0-19 libnuma1=2.0.19-1 libmunge2=0.5.16-1.1~deb13u1 \
	libevent-core-2.1-7t64=2.1.13-stable-1~deb13u1 libevent-pthreads-2.1-7t64=2.1.13-stable-1~deb13u1 \
	libibverbs1=56.1-1 ibverbs-providers=56.1-1 librdmacm1t64=56.1-1
# shellcheck disable=SC2016 # the guest expands it
guest 'export UCX_NET_DEVICES=rxe0:1 UCX_TLS=ud_verbs UCX_IB_GID_INDEX=$RXE_GID UCX_UD_TIMEOUT=15s
run() { # NAME PORT VARIABLE...
	name=$1 port=$2
	shift 2
	env "$@" timeout 100 ucx_perftest -P 0 -p "$port" -e >server 2>&1 & server=$!
	sleep 2
	client=0
	env "$@" timeout 100 ucx_perftest -P 0 -p "$port" -t ucp_am_lat -n 200 -w 20 -e 127.0.0.1 >client 2>&1 || client=$?
	kill "$server" 2>/dev/null
	wait "$server"
	echo "$name: status $client; $(grep -o "^Final:" client)$(grep -o "Endpoint timeout" client | head -n 1)"
}
run "IPv4 GID" 7001 A=
run "IPv6 GID" 7002 UCX_IB_GID_INDEX=0
run "IPv4 GID without the check" 7003 UCX_UD_ETH_DGID_CHECK=n'
expect "$said" '^IPv4 GID: status [1-9][0-9]*; Endpoint timeout$' "an IPv4 GID works"
expect "$said" '^IPv6 GID: status 0; Final:$' "an IPv6 GID does not work"
expect "$said" '^IPv4 GID without the check: status 0; Final:$' "an IPv4 GID without the check does not work"

# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154,SC2034
# The links between the guests of scripts/vm: the uplinks of each NIC, the bridge of `--link tap`, and the link layer of the RDMA ports.
# Sourced by scripts/vm; the functions use its variables.

# check_link_layer: refuses options that do not fit the link layer, and sets the default of $link
check_link_layer() {
	if [ "$link_layer" = ethernet ]; then
		[ -n "$sm" ] || die "--no-sm is for InfiniBand ports: add --link-layer ib"
		[ -z "$topology" ] || die "--topology is for InfiniBand ports: add --link-layer ib"
		: "${link:=unix}"
		return
	fi
	[ "$peer/$device" = /verbena ] || die "--link-layer ib: rxe has no InfiniBand ports, so --peer rxe and --device rxe need an Ethernet"
	: "${link:=one-process}"
	[ "$vms" = 1 ] || [ "$link" = one-process ] || [ -z "$topology" ] ||
		die "--topology: the file has the adapters of all guests, so they need one NIC process (--link one-process)"
	[ "$vms" -le 2 ] || [ "$link" != tap ] || die "--link tap: two guests with InfiniBand ports, not $vms (--vms), share a bridge: use --link udp"
}
# link_layer_options K...: prints the options for the InfiniBand ports of guests with these numbers, which share a NIC process
link_layer_options() {
	local n=0 k refused=''
	[ "$link_layer" = ib ] || return 0
	printf '%s\n' --link-layer ib
	[ -z "$topology" ] || printf '%s\n' --topology "$run/topology"
	[ -n "$sm" ] || return 0
	for k; do
		n=$((n + 1))
		[ "$k" = 1 ] || refused+=,$n
	done
	[ -z "$refused" ] || printf '%s\n' --no-smi "${refused#,}"
}

# Other runs have other addresses, except by chance.
loopback=127.$((RANDOM % 250 + 2)).$((RANDOM % 250 + 2))
# uplinks K: prints the options for the uplinks of guest K's NIC
uplinks() {
	local k=$1 j tunnels=udp:$loopback.$1:4790
	[ "$vms" != 1 ] && [ "$link" != one-process ] || return 0
	for ((j = 1; j <= vms; j++)); do
		[ "$j" != "$k" ] || continue
		[ "$link" != unix ] || printf '%s\n' --uplink "unix:$sock/$k/to$j,$sock/$j/to$k"
		tunnels+=,$loopback.$j:4790
		# A link of InfiniBand has two ends, so each peer has a tunnel of its own.
		[ "$link/$link_layer" != udp/ib ] || printf '%s\n' --uplink "udp:$loopback.$k:$((4790 + j)),$loopback.$j:$((4790 + k))"
	done
	[ "$link/$link_layer" != udp/ethernet ] || printf '%s\n' --uplink "$tunnels"
	[ "$link" != tap ] || printf '%s\n' --uplink "tap:port$k"
}
# make_bridge: makes a network namespace with a bridge, and a TAP device for each guest. All of it lives as long as the process $holder.
enter=()
make_bridge() {
	local k
	host_tools iproute2
	unshare --net sleep infinity &
	holder=$!
	enter=(nsenter "--net=/proc/$holder/ns/net")
	for ((k = 0; k < 50; k++)); do
		[ "$(readlink "/proc/$holder/ns/net")" = "$(readlink /proc/self/ns/net)" ] || break
		sleep 0.1
	done
	# The bridge has no address, and forwards all multicast groups.
	# shellcheck disable=SC2016 # the inner shell expands it
	"${enter[@]}" sh -ec '
		echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
		ip link add bridge mtu 9216 type bridge mcast_snooping 0
		for k in $(seq "$0"); do
			ip tuntap add "port$k" mode tap
			ip link set "port$k" mtu 9216 txqueuelen 16384 master bridge up
		done
		ip link set bridge up' "$vms" || die "--link tap: cannot make a bridge of TAP devices on this host, see above"
}

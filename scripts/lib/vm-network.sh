# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154,SC2034
# The links between the guests of scripts/vm: the uplinks of each NIC, and the bridge of `--link tap`. Sourced by scripts/vm with $vms,
# $link and $sock set.
# `--link tap`.

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
	done
	[ "$link" != udp ] || printf '%s\n' --uplink "$tunnels"
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

# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154,SC2034
#
# What joins the guests of scripts/vm, which sources this with $vms, $link and $sock set: the arguments of each NIC, and the bridge of
# `--link tap`.

# Other runs have other addresses.
loopback=127.$((RANDOM % 250 + 2)).$((RANDOM % 250 + 2))
# uplinks K: what joins guest K's NIC with the others'
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
# make_bridge: a network namespace with a bridge, and a TAP device of it for each guest; all of it goes with the process that holds it
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
	# It has no address itself, and hands on all groups.
	# shellcheck disable=SC2016 # the other shell's
	"${enter[@]}" sh -ec '
		echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
		ip link add bridge mtu 9216 type bridge mcast_snooping 0
		for k in $(seq "$0"); do
			ip tuntap add "port$k" mode tap
			ip link set "port$k" mtu 9216 txqueuelen 16384 master bridge up
		done
		ip link set bridge up' "$vms" || die "--link tap: no bridge of TAP devices on this host"
}

# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# Shared by the scripts of findings/: a temporary directory, pinned packages of Debian's archive in it, a guest with the stock kernel and rxe, and
# the exit statuses. A script sources this file first and then calls `session "$@"`, so that all processes that it starts end with it.
#
# Exit status of each script: 0, the behaviour is as the script's head says; 1, the behaviour has changed; 77, the archive no longer has a pinned
# version, which a message names; 125, the script could not run.

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib/common.sh"

die() { printf 'error: %s\n' "$*" >&2; exit 125; }
kernel=7.2.12+deb13-amd64 # the stock kernel with which the findings in guests were seen
case ${1:-} in
	--help | -h) usage; exit 0 ;;
	'') ;;
	*) die "unknown argument '$1': this script takes none (--help)" ;;
esac

# temporary: makes the directory $work, which is removed when the script ends
temporary() {
	work=$(mktemp -d /tmp/finding.XXXXXX)
	trap 'rm -rf --one-file-system "$work"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	trap 'die "a command of this script failed"' ERR
	mkdir "$work/share"
}

# changed SENTENCE: ends the script, because the behaviour is not as the script's head says
changed() { printf 'CHANGED: %s\n' "$*" >&2; exit 1; }
# gone SENTENCE: ends the script, because a pinned version is not available
gone() { printf 'SKIPPED: %s\n' "$*" >&2; exit 77; }
# expect TEXT REGEX SENTENCE: TEXT must have a line that matches REGEX (grep -E); else ends the script with SENTENCE
expect() { grep -qE -e "$2" <<<"$1" || changed "$3"; }
# refuse TEXT REGEX SENTENCE: TEXT must have no such line
refuse() { ! grep -qE -e "$2" <<<"$1" || changed "$3"; }

# Runs apt with separate lists in the temporary directory, so that neither the host's release nor its sources matter.
_own_apt() {
	local d=$work/apt
	"$@" -q -o Dir::Etc::sourcelist="$d/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State="$d/state" \
		-o Dir::State::status="$d/status" -o Dir::Cache="$d/cache" -o Dir::Etc::preferencesparts=/dev/null \
		-o Dir::Etc::preferences=/dev/null -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root
}
# lists SUITE...: reads the lists of these Debian releases
lists() {
	local d=$work/apt keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror suite
	host_tools debian-archive-keyring ca-certificates
	mirror=$(debian_mirror)
	rm -rf "$d"
	mkdir -p "$d/state/lists/partial" "$d/cache/archives/partial"
	: >"$d/status"
	for suite; do printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite"; done >"$d/sources.list"
	_own_apt apt-get update -o APT::Update::Error-Mode=any >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; die "the archive's lists cannot be read"; }
}
# pinned NAME=VERSION...: ends the script with 77 unless the archive has all of them. A NAME alone is a tool of the check, of any version.
pinned() {
	local p
	for p; do
		[[ $p == *=* ]] || continue
		_own_apt apt-cache madison "${p%%=*}" 2>/dev/null | awk -F'|' -v v="${p#*=}" '{ gsub(/ /, "", $2) } $2 == v { f = 1 } END { exit !f }' ||
			gone "Debian's archive no longer has ${p%%=*} ${p#*=}, with which this was seen"
	done
}
# unpack DIRECTORY NAME=VERSION...: unpacks packages, without their dependencies
unpack() {
	local dir=$1 debs f
	shift
	pinned "$@"
	debs=$(mktemp -d "$work/debs.XXXXXX")
	mkdir -p "$dir"
	(cd "$debs" && _own_apt apt-get download "$@") >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; die "cannot fetch $*"; }
	for f in "$debs"/*.deb; do dpkg-deb -x "$f" "$dir"; done
	rm -rf "$debs"
}
# root NAME=VERSION...: makes a Debian root in $work/root with these packages and their dependencies, from the first suite of `lists`
root() {
	local options=() line suite
	need_root
	host_tools mmdebstrap
	pinned "$@"
	suite=$(awk 'NR == 1 { print $4 }' "$work/apt/sources.list")
	while read -r line; do [ -z "$line" ] || options+=("--aptopt=$line"); done < <(apt_transport)
	TMPDIR=$work mmdebstrap --quiet --variant=essential --mode=root "${options[@]}" --include="$(IFS=,; echo "$*")" "$suite" "$work/root" \
		"deb $(debian_mirror) $suite main" >"$work/root.log" 2>&1 || { tail -n 20 "$work/root.log" >&2; die "cannot make a root with $*"; }
	mkdir -p "$work/root/share"
}
# crate NAME VERSION: copies the sources of a crate to $work/crate
crate() {
	"$top/scripts/in-root" cargo info "$1@$2" >"$work/cargo.log" 2>&1 || {
		cat "$work/cargo.log" >&2
		! grep -q 'could not find' "$work/cargo.log" || gone "crates.io no longer has $1 $2, with which this was seen"
		die "cannot fetch the crate $1 $2"
	}
	cp -r "${cache:?}"/cargo/registry/src/*/"$1-$2" "$work/crate"
}
# in_root COMMAND...: runs a command in that root, where $work/share is /share, in its own network namespace
in_root() {
	# shellcheck disable=SC2016 # the inner shell expands it
	unshare --mount --net bash -ec '
		mount --rbind /dev "$1/root/dev"
		mount --rbind /proc "$1/root/proc"
		mount --rbind /sys "$1/root/sys"
		mount --bind "$1/share" "$1/root/share"
		ip link set lo up 2>/dev/null || true
		root=$1/root
		shift
		exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$root" "$@"' in_root "$work" "$@"
}

# fabric: writes $work/share/fabric, which a shell in that root sources. It starts ibsim with a switch and four adapters, H1 to H4, and
# `on_fabric COMMAND...` then runs a program on H1. The root needs ibsim-utils and libumad2sim0.
fabric() {
	cat >"$work/share/net" <<'NET'
switchguid=0x0900000000000090
Switch	8 "S1"
[1]	"H1"[1]
[2]	"H2"[1]
[3]	"H3"[1]
[4]	"H4"[1]

caguid=0x0500000000000050
Hca	1 "H1"
[1]	"S1"[1]

caguid=0x0100000000000040
Hca	1 "H2"
[1]	"S1"[2]

caguid=0x0200000000000030
Hca	1 "H3"
[1]	"S1"[3]

caguid=0x0300000000000020
Hca	1 "H4"
[1]	"S1"[4]
NET
	cat >"$work/share/fabric" <<'FABRIC'
mkdir /tmp/sim && cd /tmp/sim && mkdir cache
export OSM_CACHE_DIR=/tmp/sim/cache OSM_TMP_DIR=/tmp/sim IBSIM_SOCKNAME=finding
sleep 1000 | ibsim -s /share/net >sim.log 2>&1 &
for i in 1 2 3 4 5 6 7 8 9 10; do
	grep -q "simulator ready" sim.log && break
	sleep 1
done
on_fabric() { LD_PRELOAD=/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so SIM_HOST=H1 timeout -k 1 60 "$@"; }
FABRIC
}
# guest COMMAND: boots the stock kernel with rxe0, with the addresses of $RXE_NETDEV (10.1.0.1; $RXE_GID is the index of its RoCE v2 GID). Unpacks
# $work/packages over the guest's own files, and runs COMMAND with `sh` in /tmp; $work/share is /mnt/host. Prints the output, and sets $said to it.
# The guest has no module, no NIC and no provider of Verbena; `begin` checks that and the kernel's version before COMMAND runs.
guest() {
	local rc=0
	need_root
	mkdir -p "$work/packages"
	tar -C "$work/packages" -cf "$work/share/packages.tar" .
	printf 'cd /tmp\n%s\n' "$1" >"$work/share/command"
	cat >"$work/share/begin" <<-'BEGIN'
		rm -f /etc/libibverbs.d/verbena.driver /usr/lib/x86_64-linux-gnu/libibverbs/libverbena-*
		tar -C / --keep-directory-symlink -xf /mnt/host/packages.tar && ldconfig || exit 3
		case $(cat /proc/modules) in *verbena*) echo "Verbena's module is loaded"; exit 3 ;; esac
		[ "$(ls /sys/class/infiniband)" = rxe0 ] || { echo "rxe0 is not the only RDMA device"; exit 3; }
		[ "$(uname -r)" = "$1" ] || { echo "$(uname -r)" >/mnt/host/other-kernel; exit 77; }
	BEGIN
	VERBENA_NIC=/nonexistent VERBENA_KERNEL=stock VERBENA_KERNEL_VERSION="" "$top/scripts/vm" --quiet --no-build --no-module --rxe --timeout 300 --run-dir "$work/vm" --share "$work/share" \
		-- "sh /mnt/host/begin $kernel && sh /mnt/host/command" >"$work/said" || rc=$?
	[ ! -s "$work/share/other-kernel" ] || gone "the guests now have Linux $(<"$work/share/other-kernel"); this was seen with $kernel"
	said=$(<"$work/said")
	printf '%s\n' "$said"
	[ "$rc" = 0 ] || die "the guest ended with $rc"
}
# pyverbs: unpacks the packages that the guests' Python programs need, and copies findings/lib/rc.py
pyverbs() {
	unpack "$work/packages" python3-pyverbs=56.1-1 libibverbs1=56.1-1 ibverbs-providers=56.1-1 librdmacm1t64=56.1-1
	cp "$top/findings/lib/rc.py" "$work/share/"
}

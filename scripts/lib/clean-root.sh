# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154
#
# A clean Debian 13 to test packages and the image in. Source it with $work set to a directory; the root is $work/root. Its user `tester`
# has uid 1000, and subordinate ids for rootless containers.

root=$work/root
_environment=(/usr/bin/env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive)

# clean_root PACKAGE...: makes the root with these packages; an argument with a blank is a list of dependencies. Packages of Debian are kept
# in the cache.
clean_root() {
	local d
	needs_errexit
	cp -a "$("$top/scripts/rootfs" clean)" "$root"
	# A mount, so that one command removes all mounts in it.
	mount --bind "$root" "$root"
	for d in dev proc sys; do mount --rbind "/$d" "$root/$d"; done
	mkdir -p "$root/var/cache/apt/archives/partial" "$cache/package-archives/partial"
	mount --bind "$cache/package-archives" "$root/var/cache/apt/archives"
	cp -L /etc/resolv.conf "$root/etc/resolv.conf"
	inside useradd --create-home --uid 1000 tester
	inside apt-get update
	inside apt-get satisfy -y --no-install-recommends "$@"
}
# drop_root: removes the root
drop_root() {
	umount -R -l "$root" 2>/dev/null || true
	mount | grep -qF "$root" || rm -rf --one-file-system "$root"
}

# inside COMMAND...: runs a command as root there. offline: without network. user: as the ordinary user, without network
inside() { chroot "$root" "${_environment[@]}" HOME=/root "$@"; }
offline() { unshare --net -- chroot "$root" "${_environment[@]}" HOME=/root "$@"; }
# shellcheck disable=SC2016 # the inner shell expands it
user() { unshare --net -- chroot --userspec=1000:1000 "$root" "${_environment[@]}" HOME=/home/tester sh -c 'cd && exec "$@"' - "$@"; }

# rootless COMMAND...: runs a command as the ordinary user in a machine of its own, as far as a rootless container tells: the clean root is
# the root of all processes, because the kernel makes no user namespace for a process that has changed its root directory; /dev has the
# permissions of Debian 13; and the control groups are of version 2 alone. There is no network.
rootless() {
	unshare --mount --pid --net --fork --kill-child bash -c "$_rootless" rootless "$root" "${_environment[@]}" HOME=/home/tester USER=tester \
		XDG_RUNTIME_DIR=/run/user/1000 "$@"
}
# shellcheck disable=SC2016 # the inner shell expands it
_rootless='
set -e
mount --make-rprivate /
umount -R -l "$1"
mount --bind "$1" "$1"
cd "$1"
shift
mount -t tmpfs -o mode=755 dev dev
for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "fuse 10 229" "tun 10 200"; do
	read -r name major minor <<<"$node"
	mknod -m 666 "dev/$name" c "$major" "$minor"
done
mkdir dev/net dev/pts dev/shm
mv dev/tun dev/net/
[ ! -e /dev/kvm ] || mknod -m 666 dev/kvm c 10 232
ln -s /proc/self/fd dev/fd
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 run run
install -d -o 1000 -g 1000 -m 700 run/user/1000
ip link set lo up
pivot_root . mnt
umount -l /mnt
mount --make-rshared /
cd /home/tester
exec setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set=+all "$@"
'

# timed COMMAND...: runs a command, and prints how long it took
timed() {
	local begin rc=0
	begin=$(date +%s%N)
	"$@" || rc=$?
	awk -v ns=$(($(date +%s%N) - begin)) 'BEGIN { printf "took %.1f s\n", ns / 1e9 }'
	return $rc
}
# said TEXT: prints the time of the last try
said() { sed -n "s/^took /  $1: /p" "$work/out"; }

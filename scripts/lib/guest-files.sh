# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154
#
# The files that a guest's first root has besides the guest image: programs, provider, modules, helpers. Sourced by scripts/vm and
# scripts/build.

put() { # SOURCE DIRECTORY [NAME]
	mkdir -p "$over/$2"
	cp "$1" "$over/$2/${3:-$(basename "$1")}"
}
# put_python: installs the Python package as pip does, with the metadata by which pytest finds the plugin
put_python() {
	local from=$top/tools/nic/faults/python packages=usr/lib/python3/dist-packages about f
	about=$over/$packages/verbena_faults-$(sed -n 's/^version = "\(.*\)"$/\1/p' "$from/pyproject.toml").dist-info
	for f in "$from"/verbena_faults/*; do [ ! -f "$f" ] || put "$f" $packages/verbena_faults; done
	mkdir -p "$about"
	{
		echo 'Metadata-Version: 2.1'
		sed -nE 's/^name = "(verbena-.*)"$/Name: \1/p; s/^version = "(.*)"$/Version: \1/p' "$from/pyproject.toml"
	} >"$about/METADATA"
	{
		echo '[pytest11]'
		sed -n '/^\[project.entry-points.pytest11\]$/,/^$/s/^"\(.*\)" = "\(.*\)"$/\1 = \2/p' "$from/pyproject.toml"
	} >"$about/entry_points.txt"
}
# guest_files OVERLAY MODULES TREE RELEASE: copies into the directory OVERLAY what the guest copies to its root directory: the modules in the
# directory MODULES, with an index for the kernel RELEASE, whose own modules are in TREE, and all that does not depend on the kernel
guest_files() {
	local over=$1 modules=$2 module_tree=$3 release=$4 provider=$programs/libverbena_provider.so f kos index new
	mkdir -p "$over/usr/lib/verbena" "$over/root"
	put "$top/scripts/guest/init" usr/lib/verbena
	for f in "$top"/scripts/guest/*; do [ ! -f "$f" ] || put "$f" usr/lib/verbena; done
	put "$top/Documentation/containers.md" usr/lib/verbena
	put_python
	for f in "$top"/scripts/guest/{users,fault-table,libraries,verbena_guest}/*.py; do put "$f" "usr/lib/verbena/$(basename "${f%/*}")"; done
	for f in "$programs"/verbena-guest-* "$programs"/{verbenactl,verbena-recovery}; do
		case $f in *.d) continue ;; esac
		[ ! -x "$f" ] || put "$f" usr/lib/verbena
	done
	for f in "$examples"/*; do
		[ ! -x "$f" ] || put "$f" "usr/lib/verbena/examples/$(basename "$f")"
	done
	for f in "$top"/examples/*/rule.toml; do put "$f" "usr/lib/verbena/examples/$(basename "$(dirname "$f")")"; done
	# A login shell, or a program with Debian's default PATH, finds the commands too.
	mkdir -p "$over/usr/local/bin"
	for f in "$over"/usr/lib/verbena/*; do
		case $f in */init) continue ;; esac
		[ ! -f "$f" ] || [ ! -x "$f" ] || ln -s "/usr/lib/verbena/${f##*/}" "$over/usr/local/bin/"
	done
	if [ -e "$provider" ]; then
		put "$provider" "usr/lib/$triplet/libibverbs" libverbena-rdmav34.so
		mkdir -p "$over/etc/libibverbs.d"
		echo 'driver verbena' >"$over/etc/libibverbs.d/verbena.driver"
	fi
	# The guest unpacks and copies these files before anything else, and nine tenths of them are debug information.
	"$top/scripts/in-root" --root kernel --bind "$over" find "$over/usr/lib" \( -name 'verbena-guest-*' -o -name verbenactl -o -name verbena-recovery -o -name '*.so' \) -exec "$triplet-strip" --strip-debug {} +
	mapfile -t kos < <(find "$modules" -name '*.ko' 2>/dev/null | sort)
	if [ ${#kos[@]} -gt 0 ]; then
		# The module index depends on the modules alone, so it is kept between runs.
		index=$build/vm/index-$(cat "${kos[@]}" <(echo "$module_tree") | hash_of)
		if [ ! -e "$index/.done" ]; then
			find "$build/vm" -maxdepth 1 -name 'index-*' -mmin +600 -exec rm -rf {} +
			new=$(mktemp -d "$build/vm/index-new.XXXXXX")
			cp -rs "$module_tree/usr" "$new/"
			ln -s usr/lib "$new/lib"
			for f in "${kos[@]}"; do
				mkdir -p "$new/usr/lib/modules/$release/updates"
				"$top/scripts/in-root" --root kernel "$triplet-strip" --strip-debug -o "$new/usr/lib/modules/$release/updates/$(basename "$f")" "$f"
			done
			"$top/scripts/in-root" depmod -b "$new" "$release"
			rm -rf "$new/usr/lib/modules/$release/kernel"
			find "$new" -type l -delete
			touch "$new/.done"
			# The rename is atomic. If another run has made the same index meanwhile, that one is used.
			mv -T "$new" "$index" 2>/dev/null || rm -rf "$new"
		fi
		touch "$index"
		mkdir -p "$over/usr/lib/modules"
		cp -r "$index/usr/lib/modules/$release" "$over/usr/lib/modules/"
	fi
}
# guest_init: prints the first program of a guest, which copies these files to the disk and changes to it
guest_init() {
	cat <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc p /proc
$b mount -t devtmpfs d /dev
for m in /modules/*.ko; do [ ! -e $m ] || $b insmod $m; done
$b mount -t ext4 -o noatime /dev/vda /root || exec $b poweroff -f
# -f replaces symbolic links of the image, such as that of a library to its file.
$b cp -af /overlay/. /root/
# A kernel that is not of the image has its modules on a disk.
if [ -b /dev/vdb ]; then
	d=/root/usr/lib/modules/$($b uname -r)/kernel
	$b mkdir -p $d
	$b mount -t ext4 -o ro /dev/vdb $d || exec $b poweroff -f
fi
exec $b switch_root /root /usr/lib/verbena/init
INIT
}

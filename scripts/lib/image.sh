# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154
#
# The OCI image of scripts/package, which sources this file: layers, bill of materials, archive. No container daemon takes part: umoci
# writes the image. The image has three layers, so that an update replaces only the last one in most cases:
#
#   1. the runtime root: QEMU, and the libraries of the NIC     changes with Debian's packages on the host's side
#   2. the guest's disk image and kernel                        changes with Debian's packages in the guest
#   3. the packages verbena and verbena-guest without those     changes with each commit
#
# The same files make the same bytes: names are sorted, times are limited, and owners are numbers.

# The files of the second layer.
image_guest=(usr/lib/verbena/guest/disk.qcow2 usr/lib/verbena/guest/vmlinux)
# The contents of these directories, and these files, are of the machine that made the root: no part of the image.
image_without=(dev/\* proc/\* sys/\* run/\* tmp/\* var/tmp/\* var/log/\* var/cache/\* etc/hostname etc/resolv.conf etc/apt var/lib/apt
	var/lib/dpkg/{lock,lock-frontend,status-old,available-old} var/lib/dpkg/triggers/Lock .done .used)
# The programs whose crates the bill of materials lists.
image_programs=(verbena verbena-nic verbenactl verbena-provider verbena-lab-guest verbena-recovery verbena-vm)

# names ROOT [FIND OPTION...]: prints the paths of the image in ROOT, relative to it, each ended by a zero byte
names() {
	local root=$1 without=() pattern
	for pattern in "${image_without[@]}"; do without+=(-o -path "./$pattern"); done
	(cd "$root" && find . -mindepth 1 \( "${without[@]:1}" \) -prune -o "${@:2}" -print0)
}
# layer FILE TIME ROOT: writes a layer with the paths of standard input, as of names(). No file in it is younger than TIME.
layer() {
	LC_ALL=C sort -z -u | tar --create --file "$1" --directory "$3" --null --no-recursion --files-from=- --format=gnu --numeric-owner --mtime="@$2" --clamp-mtime
}

# image_root TREE MARK: makes a copy of the runtime root and installs the packages there; MARK is a file older than all that this changes
image_root() {
	local gone
	cp -a "$runtime" "$1"
	names "$1" | LC_ALL=C sort -z >"$2.before"
	touch "$2"
	# The times of files have a granularity, that of the kernel's clock.
	sleep 0.1
	in_package_root dpkg --root="$1" --force-unsafe-io --install "$out/verbena_${version}_amd64.deb" "$out/verbena-guest_${version}_amd64.deb"
	# The directory in which the image's commands start: no guest can have / of the image.
	mkdir "$1/work"
	gone=$(names "$1" | LC_ALL=C sort -z | LC_ALL=C comm -z -23 "$2.before" - | tr '\0' ' ')
	[ -z "$gone" ] || die "installing the packages has removed these files, which a layer cannot express: $gone"
}
# bill_of_materials TREE FILE: writes the SPDX document of all Debian packages of the image and of its guests, and of all crates
bill_of_materials() {
	local work=$2.parts file part created
	created=$(date -u -d "@$commit_time" +%Y-%m-%dT%H:%M:%SZ)
	rm -rf "$work"
	mkdir -p "$work"/{image,guest}/var/lib/{dpkg,apt/lists}
	cp "$1/var/lib/dpkg/status" "$work/image/var/lib/dpkg/"
	guest_status >"$work/guest/var/lib/dpkg/status"
	for part in image guest; do
		sbom generate --root "$work/$part" --distro-name "$part" --spdx-namespace "urn:verbena:$part:$(hash_of <"$work/$part/var/lib/dpkg/status")" \
			--timestamp "$created" --out "$work/$part"
	done
	file=$work/programs.spdx.json
	"$top/scripts/in-root" cargo tree --locked "${image_programs[@]/#/--package=}" --edges normal --prefix none --format '{p}|{l}' >"$work/tree"
	in_package_root python3 "$top/scripts/lib/sbom_crates.py" "$top/Cargo.lock" "$created" <"$work/tree" >"$file"
	sbom merge --distro-name verbena --distro-version "$version" --spdx-namespace "urn:verbena:$version:$(cat "$work"/*.spdx.json | hash_of)" \
		--timestamp "$created" --validate --out "$work/all" "$work"/{image,guest,programs}.spdx.json
	mv "$work/all.spdx.json" "$2"
	rm -r "$work"
}
# debsbom writes packages in the order of a set of Python.
sbom() { in_package_root env PYTHONHASHSEED=0 debsbom "$1" --sbom-type spdx "${@:2}"; }
# The database of the guest's disk image, and the packages that the guest has beside it: its kernel and the first program of its boot.
guest_status() {
	local deb
	in_package_root debugfs -R 'cat /var/lib/dpkg/status' "$guest/disk.img" 2>/dev/null
	for deb in "$toolchain"/kernel-debs/*.deb; do
		dpkg-deb --field "$deb"
		printf 'Status: install ok installed\n\n'
	done
	dpkg-query --admindir="$toolchain/var/lib/dpkg" --status busybox-static
	echo
}

# write_image LAYOUT LAYER...: writes the image in the layout of OCI, with its settings
write_image() {
	local layout=$1 image=$1:$image_name created texts label=org.opencontainers.image
	shift
	created=$(date -u -d "@$commit_time" +%Y-%m-%dT%H:%M:%SZ)
	texts=(
		"$label.title=verbena" "$label.description=commands in virtual machines that have an RDMA device" "$label.version=$version"
		"$label.revision=$(git -C "$top" rev-parse HEAD)" "$label.created=$created" "$label.licenses=GPL-2.0-only OR MIT"
	)
	umoci init --layout "$layout"
	umoci new --image "$image"
	for part; do
		umoci raw add-layer --image "$image" --history.created "$created" --history.created_by 'scripts/package image' --history.comment "$(basename "$part" .tar)" "$part"
	done
	umoci config --image "$image" --no-history --created "$created" --os linux --architecture amd64 --clear config.entrypoint --config.entrypoint verbena \
		--clear config.cmd --config.cmd --help --config.workingdir /work --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		"${texts[@]/#/--config.label=}" "${texts[@]/#/--manifest.annotation=}"
	umoci gc --layout "$layout"
	# docker reads the image by this file.
	# shellcheck disable=SC2016 # jq's own variables
	in_package_root jq -r '.manifests[0].digest | sub(":"; "/")' "$layout/index.json" >"$layout/digest"
	# shellcheck disable=SC2016
	in_package_root jq -c --arg name "$image_name" 'def blob: "blobs/" + sub(":"; "/"); [{Config: (.config.digest | blob), RepoTags: [$name], Layers: [.layers[].digest | blob]}]' \
		"$layout/blobs/$(<"$layout/digest")" >"$layout/manifest.json"
	rm "$layout/digest"
	chmod -R a+rX "$layout"
}
umoci() { in_package_root umoci "$@"; }

_image() {
	local work=$out/image-stage tree=$out/image-stage/tree layers
	needs_errexit
	rm -rf "$work"
	mkdir -p "$work"
	image_root "$tree" "$work/mark"
	bill_of_materials "$tree" "$work/sbom.spdx.json"
	install -m 644 "$work/sbom.spdx.json" "$tree/usr/share/verbena/"
	layers=("$work"/{runtime,guest,programs}.tar)
	names "$runtime" | layer "${layers[0]}" "$image_time" "$runtime"
	printf '%s\0' ./usr/lib/verbena ./usr/lib/verbena/guest "${image_guest[@]/#/./}" | layer "${layers[1]}" "$image_time" "$tree"
	names "$tree" -cnewer "$work/mark" | grep -zvxF -f <(printf './%s\n' "${image_guest[@]}" usr/lib/verbena/guest usr/lib/verbena) | layer "${layers[2]}" "$commit_time" "$tree"
	rm -rf "$tree"
	write_image "$work/layout" "${layers[@]}"
	(cd "$work/layout" && find . -type f -printf '%P\0' | layer "$work/image.tar" "$commit_time" .)
	mv "$work/image.tar" "$out/$image_file.tar"
	mv "$work/sbom.spdx.json" "$out/$image_file.spdx.json"
	rm -rf "$work"
}
image() {
	runtime=$("$top/scripts/rootfs" runtime)
	toolchain=$("$top/scripts/rootfs" toolchain)
	deb
	# A name of an image has no tilde.
	image_name=localhost/verbena:${version//\~/-}
	image_file=verbena-image_${version//\~/-}_amd64
	step package-image "OCI image" with_lock "$out/.lock" _image
	(cd "$out" && sha256sum "$image_file".* >>SHA256SUMS)
	printf '%6d kB  %s\n' "$(($(stat -c %s "$out/$image_file.tar") / 1000))" "$image_file.tar"
}

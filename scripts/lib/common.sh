# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# Shared by all scripts: directories, messages, locks. It is sourced, and changes nothing by itself. Outputs that are costly to make are in
# the cache, in directories named after a hash of their inputs:
#
#   $cache/toolchain-HASH/      a Debian root: toolchain and QEMU          (scripts/rootfs toolchain)
#   $cache/kernel-HASH/         a root of another suite or for arm64, to build modules for its kernel (scripts/rootfs kernel)
#   $cache/linux-DEB-HASH/      the prepared kernel tree                   (scripts/kernel)
#   $cache/guest-HASH/          guest disk, kernel, module tree            (scripts/rootfs guest)
#   $cache/users-HASH/          a root to build external suites in     (scripts/rootfs users)
#   $cache/browser-HASH/        a root with a browser                      (scripts/rootfs browser)
#   $cache/fabric-HASH/         a root with opensm, infiniband-diags and ibsim (scripts/rootfs fabric)
#   $cache/{package,runtime,clean}-HASH/  roots to make packages and the image in, and to test them (scripts/rootfs)
#   $cache/package-archives/    packages of Debian that the tests of packages install
#   $cache/cross-arm64-HASH/   a root to build for arm64                   (scripts/rootfs cross-arm64)
#   $cache/suites-HASH/         external suites                        (scripts/lib/users-suites)
#   $cache/cargo/               Cargo's registry
#
# The outputs of this checkout are in $top/build.

top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
cache=$(realpath -m "${VERBENA_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/verbena}")
build=$top/build
started=${VERBENA_STARTED:-$(date +%s)}
# The time of what is made for images and archives, so that those of the same files have the same bytes. Unchanged files of Debian's packages
# are older and keep their times, which compiled Python files name.
# shellcheck disable=SC2034 # scripts that source this file use it
image_time=1795910400
# Each run has its own logs, so that runs at the same time do not mix. The first step makes the directory.
logs=${VERBENA_LOGS:-$build/log/$(date -d "@$started" +%m%d-%H%M%S).$$}
export VERBENA_STARTED=$started VERBENA_CACHE=$cache VERBENA_LOGS=$logs

# Prints a line of progress, with the seconds since the command began.
say() { printf '[%4ds] %s\n' $(($(date +%s) - started)) "$*" >&2; }
# The exit status of die(). A script that also passes on the status of another program sets it to a value of its own.
failure=1
die() { printf 'error: %s\n' "$*" >&2; exit "$failure"; }

# usage: prints the comment block at the head of the calling script, after the licence line
usage() { sed -n '3,/^[^#]/{/^#/!d;/^# shellcheck/d;s/^# \{0,1\}//;p}' "$0"; }

# unknown_option OPTION: ends the script; suggests the option in the script's head with the smallest edit distance, if that is small
unknown_option() {
	local near
	near=$(sed -nE 's/^#( +| usage:.*)(--[a-z][a-z-]*)( .*|$)/\2/p' "$0" | sort -u | awk -v word="$1" '
		function least(a, b) { return a < b ? a : b }
		function distance(a, b,    i, j, up, corner, row) {
			for (j = 0; j <= length(b); j++) row[j] = j
			for (i = 1; i <= length(a); i++) {
				corner = row[0]
				row[0] = i
				for (j = 1; j <= length(b); j++) {
					up = row[j]
					row[j] = least(least(up, row[j - 1]) + 1, corner + (substr(a, i, 1) != substr(b, j, 1)))
					corner = up
				}
			}
			return row[length(b)]
		}
		{ far = distance(word, $0) }
		NR == 1 || far < best { best = far; name = $0 }
		END { if (NR && best <= (length(word) - 2) / 3) print name }')
	die "unknown option $1${near:+, did you mean $near?} (see --help; COMMAND comes after --)"
}

need_root() { [ "$(id -u)" = 0 ] || die "$(basename "$0") needs root, because it makes Debian roots and mounts: run it with sudo"; }
# need_namespaces: in a container, root may lack CAP_SYS_ADMIN (bit 21), which mounts and namespaces need
need_namespaces() {
	local effective
	effective=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
	[ $((0x${effective:-0} >> 21 & 1)) = 1 ] ||
		die "root may neither mount nor make namespaces here, because it lacks CAP_SYS_ADMIN, as in most containers: start the container with --privileged, or use a virtual machine"
}

# session "$@": the first call of a command that starts other processes. Runs the command again in its own PID and mount namespaces, so that
# none of its processes and mounts outlives it. Scripts that it calls stay in the same session. A signal that would end the command ends all
# of its processes within three seconds.
session() {
	local child rc=0 stat rest i
	if [ -n "${VERBENA_SESSION:-}" ] || [ "$(id -u)" != 0 ]; then return 0; fi
	need_namespaces
	_ended_by=0
	trap '_ended_by=130' INT
	trap '_ended_by=143' TERM
	trap '_ended_by=129' HUP
	VERBENA_SESSION=$$ setpriv --pdeathsig KILL env --default-signal=INT,QUIT unshare --mount --pid --fork --kill-child --mount-proc \
		bash "$top/scripts/lib/session.sh" "$0" "$@" <&0 &
	child=$!
	wait "$child" || rc=$?
	if [ "$_ended_by" != 0 ]; then
		for ((i = 0; i < 30; i++)); do
			kill -0 "$child" 2>/dev/null || break
			# The signal goes to the first process in the namespace, the child of unshare, which does not pass signals on.
			for stat in /proc/[0-9]*/stat; do
				read -r rest <"$stat" || continue
				rest=${rest##*) }
				rest=${rest#* }
				if [ "${rest%% *}" = "$child" ]; then kill -TERM "${stat//[^0-9]/}" || true; fi
			done
			sleep 0.1
		done 2>/dev/null
		kill -KILL "$child" 2>/dev/null || true
		wait "$child" 2>/dev/null || true
		rc=$_ended_by
	fi
	exit "$rc"
}

# make_logs: makes the directory of this run's logs
make_logs() {
	local d
	[ ! -d "$logs" ] || return 0
	mkdir -p "$logs"
	# Keeps the newest thirty runs, and those of the last day, which may still be running.
	find "$build/log" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\n' | sort -rn | tail -n +31 | cut -d ' ' -f 2- |
		while IFS= read -r d; do [ -z "$(find "$d" -maxdepth 0 -mmin +1440)" ] || rm -rf "$d"; done
}
# log_of NAME: prints the name of the log of a step in this run; build/log/NAME.log links to the newest log of that name
log_of() {
	make_logs
	[[ $logs != "$build/log/"* ]] || ln -sfn "${logs##*/}/$1.log" "$build/log/$1.log"
	printf '%s\n' "$logs/$1.log"
}

need_host() {
	[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] ||
		die "this host is $(_os), but the scripts need Debian 12 or 13 on amd64: on the machine, in a virtual machine, or in a container of Debian that was started with --privileged"
	_has_debian_archive
}
# Prints the name of the host's system, and its architecture.
_os() { (. /etc/os-release 2>/dev/null; echo "${PRETTY_NAME:-of an unknown kind} ($(uname -m))"); }
# apt of another system, for example Ubuntu, has no Debian archive.
_has_debian_archive() {
	[ -n "${VERBENA_MIRROR:-}" ] || [ "$(. /etc/os-release && echo "${ID:-}")" = debian ] ||
		die "this host is $(_os), whose apt has no Debian archive, and the guest needs one: name it, for example VERBENA_MIRROR=http://MIRROR/debian"
}
# need_space DIRECTORY GIB: ends the script if the file system of DIRECTORY has less free space
need_space() {
	local free
	mkdir -p "$1"
	free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }')
	[ "$free" -ge "$2" ] || die "$1 has $free GiB of free disk, but $2 GiB are needed: make room, or name another directory by VERBENA_CACHE"
}

# failures LOG: prints the first twenty lines that report failures
failures() { grep -aE '^(FAILED|test .* FAILED|error(\[|:)|thread .* panicked)' "$1" | head -n 20 || true; }

# step NAME TEXT COMMAND...: runs COMMAND with its output in a log. Every 10 seconds, prints the time and the last line of the log. If COMMAND
# fails, prints the name of the step, the end of the log, and the name of the log.
step() {
	local name=$1 text=$2 log pid rc=0 n=0 t0 last
	shift 2
	log=$(log_of "$name")
	t0=$(date +%s)
	say "$text ..."
	"$@" >"$log" 2>&1 </dev/null &
	pid=$!
	# If the script is interrupted, the step must not continue in the background.
	trap 'kill "$pid" 2>/dev/null || true; exit 130' INT TERM
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		n=$((n + 1))
		if [ $((n % 50)) = 0 ]; then
			last=$(tail -c 300 "$log" | tr '\r' '\n' | grep -v '^ *$' | tail -n 1 | cut -c 1-100 || true)
			say "  $text: $(($(date +%s) - t0)) s so far${last:+: $last}"
		fi
	done
	wait "$pid" || rc=$?
	trap - INT TERM
	if [ "$rc" != 0 ]; then
		{
			printf '\nFAILED: %s (exit status %d)\n' "$text" "$rc"
			failures "$log" | sed 's/^/  | /'
			printf 'The end of its log:\n'
			tail -n 25 "$log" | sed 's/^/  | /'
			printf 'The whole log: %s\n' "$log"
		} >&2
		return "$rc"
	fi
}

# needs_errexit: called first by a function that relies on `set -e`. In all that is called within `if`, `while`, `!`, `&&` or `||`, including
# functions and subshells, bash ignores `set -e`, and a failed step would not end the function.
needs_errexit() {
	# shellcheck disable=SC2155 # the status is not needed
	local went_on=$(set -e; false; echo on)
	[ -z "$went_on" ] || die "${FUNCNAME[1]} of $0 was called where bash ignores \`set -e\`, so it would not see failures: this is a bug of the script"
}

# with_lock NAME COMMAND...: runs COMMAND with an exclusive lock among all users of the cache; a NAME with a slash is the lock file itself.
# shared_lock: the same with a shared lock.
with_lock() { _lock -x "$@"; }
shared_lock() { _lock -s "$@"; }
_lock() {
	local how=$1 lock=$2
	shift 2
	case $lock in */*) ;; *) lock=$cache/.lock-$lock ;; esac
	mkdir -p "${lock%/*}"
	(
		if ! flock -n "$how" 9; then
			say "waiting for another run that holds $lock"
			flock "$how" 9
		fi
		"$@"
	) 9>>"$lock"
}

# alone NAME: waits until no other run of that name uses this checkout, and makes later ones wait until this one ends
alone() {
	local fd
	mkdir -p "$build"
	exec {fd}>>"$build/.lock-$1"
	flock -n "$fd" || { say "waiting for another $1 in this checkout"; flock "$fd"; }
}

# content_of FILE-OR-DIRECTORY...: prints a hash of the names and the contents of all files there
content_of() { find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | hash_of; }

# made STAMP KEY: true if the outputs were made with that key, and have not changed since. note_made STAMP KEY OUTPUT...: notes that they
# are made. The key is a hash of the sources' contents, so a change of times alone causes no build.
made() {
	[ -e "$1" ] && [ "$(head -n 1 "$1")" = "$2" ] || return 1
	[ "$(tail -n +2 "$1")" = "$(tail -n +2 "$1" | cut -d ' ' -f 3- | tr '\n' '\0' | _stat 2>/dev/null)" ]
}
note_made() {
	{ echo "$2" && printf '%s\0' "${@:3}" | _stat; } >"$1.new.$$" && mv "$1.new.$$" "$1"
}
_stat() { xargs -0 stat -c '%s %.9Y %n'; }

# host_tools PACKAGE...: installs missing packages with the host's own apt
host_tools() {
	local missing=() p
	for p; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
	done
	[ ${#missing[@]} = 0 ] && return 0
	command -v apt-get >/dev/null || die "packages are missing on this host, and there is no apt-get to install them: ${missing[*]}"
	step host-tools "installing on the host: ${missing[*]}" _apt_install "${missing[@]}"
}
_apt_install() {
	export DEBIAN_FRONTEND=noninteractive
	# A broken third-party source does not matter. If a package is missing, the installation fails.
	apt-get -o DPkg::Lock::Timeout=300 update || true
	apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

# Prints VERBENA_MIRROR, or the archive that the host's apt uses for the host's release.
debian_mirror() {
	local codename uri=${VERBENA_MIRROR:-}
	if [ -n "$uri" ]; then
		printf '%s\n' "${uri%/}"
		return
	fi
	_has_debian_archive
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	uri=$(_archive_of "$codename")
	# apt takes the archive of a release from its lists, which a new machine may lack.
	if [ -z "$uri" ] && [ "$(id -u)" = 0 ]; then
		apt-get update >&2 || true
		uri=$(_archive_of "$codename")
	fi
	[ -n "$uri" ] || die "apt on this host has no archive for '$codename main', which the scripts use as mirror: run \`apt-get update\`, or set VERBENA_MIRROR=URL"
	printf '%s\n' "${uri%/}"
}
# shellcheck disable=SC2016 # apt's own variables
_archive_of() { apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null | awk -v c="$1" '$1 == c && $2 == "main" && !n++ { print $3 }'; }

# Prints apt's options for reaching that archive (proxies and the like), one `Name "value";` a line.
apt_transport() {
	apt-config dump 2>/dev/null | grep -E '^Acquire::(https?|ftp|Retries|ForceIPv)' | grep -v ' "";$' || true
}

# rdma_core_release DIR: prints the release of the sources of rdma-core in that directory
rdma_core_release() { sed -nE 's/^set\(PACKAGE_VERSION "([0-9.]+)"\)$/\1/p' "$1/CMakeLists.txt"; }

# used DIRECTORY: marks a directory of the cache as used now. forget_unused: removes directories that no checkout has used for two weeks,
# and files that interrupted builds have left.
used() { touch "$1/.used" 2>/dev/null || true; }
forget_unused() {
	local d
	for d in "$cache"/{toolchain,kernel,linux,guest,users,browser,fabric,package,runtime,clean,cross-arm64,suites}-*/; do
		[ -e "$d/.used" ] || continue
		[ -z "$(find "$d/.used" -mtime +14)" ] || rm -rf --one-file-system "$d"
	done
	find "$cache" -maxdepth 1 -name 'mmdebstrap.*' -mmin +120 -exec rm -rf --one-file-system {} +
}

# rust_of CONFIGURATION: prints the version of Rust that built a kernel, which its configuration has as 108501 for 1.85.1
rust_of() { sed -nE 's/^CONFIG_RUSTC_VERSION=//p' "$1" | awk '{ printf "%d.%d.%d\n", $1 / 100000, $1 / 100 % 1000, $1 % 100 }'; }

hash_of() { sha256sum | cut -c 1-12; }

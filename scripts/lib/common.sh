# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# What every script here shares: where things are, how progress and failures are told, locks. Source it; it does nothing
# by itself. Artifacts that are costly to make live in the cache, named by the hash of what they were made from:
#
#   $cache/toolchain-HASH/      a Debian root: toolchain and QEMU          (scripts/rootfs toolchain)
#   $cache/linux-DEB-HASH/      the prepared kernel tree                   (scripts/kernel)
#   $cache/guest-HASH/          guest disk, kernel, module tree            (scripts/rootfs guest)
#   $cache/users-HASH/          a root in which suites of others are built (scripts/rootfs users)
#   $cache/browser-HASH/        a root with a browser                      (scripts/rootfs browser)
#   $cache/suites-HASH/         such suites                                (scripts/lib/users-suites)
#   $cache/cargo/               Cargo's registry
#
# What belongs to this checkout lives in $top/build.

top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
cache=$(realpath -m "${VERBENA_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/verbena}")
build=$top/build
started=${VERBENA_STARTED:-$(date +%s)}
# Each run has its own logs, so that two at once do not write into each other's. Made by the first step.
logs=${VERBENA_LOGS:-$build/log/$(date -d "@$started" +%m%d-%H%M%S).$$}
export VERBENA_STARTED=$started VERBENA_CACHE=$cache VERBENA_LOGS=$logs

# A line of progress, with the seconds since the command began.
say() { printf '[%4ds] %s\n' $(($(date +%s) - started)) "$*" >&2; }
# A script whose callers have to tell its own failures from another's sets `failure`.
failure=1
die() { printf 'error: %s\n' "$*" >&2; exit "$failure"; }

# usage: print the comment block at the head of the calling script, after the licence line.
usage() { sed -n '3,/^[^#]/{/^#/!d;/^# shellcheck/d;s/^# \{0,1\}//;p}' "$0"; }

# unknown_option OPTION: ends with the option of the script's head that differs from it in the fewest letters, if these are few
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

need_root() { [ "$(id -u)" = 0 ] || die "$(basename "$0") needs root, because it makes Debian roots and mounts: run it by sudo"; }
# need_namespaces: root of a container may lack what mounts and makes namespaces, CAP_SYS_ADMIN, which is bit 21
need_namespaces() {
	local effective
	effective=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
	[ $((0x${effective:-0} >> 21 & 1)) = 1 ] ||
		die "root may neither mount nor make namespaces here (CAP_SYS_ADMIN), as in most containers: start the container with --privileged, or use a virtual machine"
}

# session "$@": what a command that starts others calls first. It goes on in PID and mount namespaces of its own, so that none of
# its processes and mounts outlives it, however it ends; scripts that it calls are in the same session. A signal that would
# end the command ends all of them, within three seconds.
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
			# To the first process in there, the child of unshare, which does not pass signals on.
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

# log_of NAME: the file for the log of a step in this run; build/log/NAME.log leads to the newest of that name.
log_of() {
	local d
	if ! [ -d "$logs" ]; then
		mkdir -p "$logs"
		# The newest thirty runs are kept, and what may still be running.
		find "$build/log" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\n' | sort -rn | tail -n +31 | cut -d ' ' -f 2- |
			while IFS= read -r d; do [ -z "$(find "$d" -maxdepth 0 -mmin +1440)" ] || rm -rf "$d"; done
	fi
	[[ $logs != "$build/log/"* ]] || ln -sfn "${logs##*/}/$1.log" "$build/log/$1.log"
	printf '%s\n' "$logs/$1.log"
}

need_host() {
	[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] ||
		die "this host is $(_os), and Debian 12 or 13 on amd64 is needed: on the machine, in a virtual machine, or in a container of Debian that was started with --privileged"
	_has_debian_archive
}
# The name of the host's system, and which it is.
_os() { (. /etc/os-release 2>/dev/null; echo "${PRETTY_NAME:-of an unknown kind} ($(uname -m))"); }
# Another system's apt, Ubuntu's for one, knows no archive of Debian's.
_has_debian_archive() {
	[ -n "${VERBENA_MIRROR:-}" ] || [ "$(. /etc/os-release && echo "${ID:-}")" = debian ] ||
		die "this host is $(_os), whose apt knows no archive of Debian's, from which the guest comes: name one, for example VERBENA_MIRROR=http://MIRROR/debian"
}
# need_space DIRECTORY GIB: what is about to be made there needs so much
need_space() {
	local free
	mkdir -p "$1"
	free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }')
	[ "$free" -ge "$2" ] || die "$1 has $free GiB of free disk, and $2 GiB are needed (VERBENA_CACHE names another place)"
}

# failures LOG: the lines that say what failed, the first twenty
failures() { grep -aE '^(FAILED|test .* FAILED|error(\[|:)|thread .* panicked)' "$1" | head -n 20 || true; }

# step NAME TEXT COMMAND...: run COMMAND with its output in a log; every 10 seconds say that it is still at it, and what it
# said last. When it fails: which step, the end of the log, and where the log is.
step() {
	local name=$1 text=$2 log pid rc=0 n=0 t0 last
	shift 2
	log=$(log_of "$name")
	t0=$(date +%s)
	say "$text ..."
	"$@" >"$log" 2>&1 </dev/null &
	pid=$!
	# A step that is interrupted must not go on in the background.
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

# needs_errexit: bash ignores `set -e` in all that is called within `if`, `while`, `!`, `&&` or `||`, functions and subshells included, so that a step
# that fails would not end what relies on it. A function that does calls this first.
needs_errexit() {
	# shellcheck disable=SC2155 # its status is not wanted
	local went_on=$(set -e; false; echo on)
	[ -z "$went_on" ] || die "${FUNCNAME[1]} of $0 was called where bash ignores \`set -e\`, and cannot see what fails: a bug of this script"
}

# with_lock NAME COMMAND...: one at a time, for everybody who shares the cache; a NAME with a slash is the file itself.
# shared_lock: as many as like, while nobody has it by with_lock.
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

# alone NAME: waits until no other run of that name is at it in this checkout, and keeps others waiting until this one ends
alone() {
	local fd
	mkdir -p "$build"
	exec {fd}>>"$build/.lock-$1"
	flock -n "$fd" || { say "waiting for another $1 in this checkout"; flock "$fd"; }
}

# content_of FILE-OR-DIRECTORY...: a hash of the names and the contents of all files there
content_of() { find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | hash_of; }

# made STAMP KEY: was it made with that key, and has nobody touched it since? note_made STAMP KEY OUTPUT...: it is made now.
# What is up to date by its content is not built again, whatever the times of its sources say.
made() {
	[ -e "$1" ] && [ "$(head -n 1 "$1")" = "$2" ] || return 1
	[ "$(tail -n +2 "$1")" = "$(tail -n +2 "$1" | cut -d ' ' -f 3- | tr '\n' '\0' | _stat 2>/dev/null)" ]
}
note_made() {
	{ echo "$2" && printf '%s\0' "${@:3}" | _stat; } >"$1.new.$$" && mv "$1.new.$$" "$1"
}
_stat() { xargs -0 stat -c '%s %.9Y %n'; }

# host_tools PACKAGE...: install what is missing, with the host's own apt.
host_tools() {
	local missing=() p
	for p; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
	done
	[ ${#missing[@]} = 0 ] && return 0
	command -v apt-get >/dev/null || die "missing on this host, and there is no apt-get to install it: ${missing[*]}"
	step host-tools "installing on the host: ${missing[*]}" _apt_install "${missing[@]}"
}
_apt_install() {
	export DEBIAN_FRONTEND=noninteractive
	# One broken third-party source must not matter; a missing package shows in the install itself.
	apt-get -o DPkg::Lock::Timeout=300 update || true
	apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

# The archive that the host's own apt uses for its own release, unless VERBENA_MIRROR says which.
debian_mirror() {
	local codename uri=${VERBENA_MIRROR:-}
	if [ -n "$uri" ]; then
		printf '%s\n' "${uri%/}"
		return
	fi
	_has_debian_archive
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	uri=$(_archive_of "$codename")
	# Which release an archive has, apt knows from its lists, which a new machine may lack.
	if [ -z "$uri" ] && [ "$(id -u)" = 0 ]; then
		apt-get update >&2 || true
		uri=$(_archive_of "$codename")
	fi
	[ -n "$uri" ] || die "apt on this host names no archive for '$codename main', from which the scripts take the mirror: run \`apt-get update\`, or name one: VERBENA_MIRROR=URL"
	printf '%s\n' "${uri%/}"
}
# shellcheck disable=SC2016 # apt's own variables
_archive_of() { apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null | awk -v c="$1" '$1 == c && $2 == "main" && !n++ { print $3 }'; }

# Options with which apt reaches that archive (proxies and such), one `Name "value";` a line.
apt_transport() {
	apt-config dump 2>/dev/null | grep -E '^Acquire::(https?|ftp|Retries|ForceIPv)' | grep -v ' "";$' || true
}

# used DIRECTORY: marks what the cache holds as used now; forget_unused: removes what no checkout has used for two weeks,
# and what interrupted builds left.
used() { touch "$1/.used" 2>/dev/null || true; }
forget_unused() {
	local d
	for d in "$cache"/{toolchain,linux,guest,users,browser,suites}-*/; do
		[ -e "$d/.used" ] || continue
		[ -z "$(find "$d/.used" -mtime +14)" ] || rm -rf --one-file-system "$d"
	done
	find "$cache" -maxdepth 1 -name 'mmdebstrap.*' -mmin +120 -exec rm -rf --one-file-system {} +
}

hash_of() { sha256sum | cut -c 1-12; }

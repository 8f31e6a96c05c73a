# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154
#
# Results of scripts that test scripts. Source it with $work set to a directory. `summary`, at the end, prints the counts, and fails if
# a test failed.
. "$top/scripts/guest/records.sh"
records_begin
passed=0 failed=0
verdict() { # NAME [WHY]
	if [ -z "${2:-}" ]; then
		echo "ok $1"
		record passed "$1"
		passed=$((passed + 1))
	else
		echo "FAILED $1: $2"
		record failed "$1" "$2"
		tail -n 5 "$work/out" | sed 's/^/  | /'
		failed=$((failed + 1))
	fi
}
# try NAME STATUS PATTERN COMMAND...: the command must exit with STATUS and print a line like PATTERN (with a leading !: no such line)
try() {
	local name=$1 status=$2 pattern=$3 rc=0
	shift 3
	"$@" >"$work/out" 2>&1 </dev/null || rc=$?
	if [ "$rc" != "$status" ]; then
		verdict "$name" "exit status $rc, not $status"
	elif [[ $pattern = !* ]] && grep -qE -e "${pattern#!}" "$work/out"; then
		verdict "$name" "the output has a line like '${pattern#!}'"
	elif [[ $pattern != !* ]] && ! grep -qE -e "$pattern" "$work/out"; then
		verdict "$name" "the output has no line like '$pattern'"
	else
		verdict "$name"
	fi
}
# skip NAME WHY: a test that cannot run here. scripts/lib/skips lists those that may be skipped.
skip() {
	echo "skipped $1: $2"
	record skipped "$1" "$2"
}
summary() {
	records_end
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
}

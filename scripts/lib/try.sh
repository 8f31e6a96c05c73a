# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154
#
# How scripts that test scripts count: source it with $work set to a directory. `told`, at the end, says how many passed, and fails if one failed.
passed=0 failed=0
verdict() { # NAME [WHY]
	if [ -z "${2:-}" ]; then
		echo "ok $1"
		passed=$((passed + 1))
	else
		echo "FAILED $1: $2"
		tail -n 5 "$work/out" | sed 's/^/  | /'
		failed=$((failed + 1))
	fi
}
# try NAME STATUS PATTERN COMMAND...: ends so, and says so; a pattern that begins with ! must not be there
try() {
	local name=$1 status=$2 pattern=$3 rc=0
	shift 3
	"$@" >"$work/out" 2>&1 </dev/null || rc=$?
	if [ "$rc" != "$status" ]; then
		verdict "$name" "exit status $rc, not $status"
	elif [[ $pattern = !* ]] && grep -qE -e "${pattern#!}" "$work/out"; then
		verdict "$name" "says '${pattern#!}'"
	elif [[ $pattern != !* ]] && ! grep -qE -e "$pattern" "$work/out"; then
		verdict "$name" "does not say '$pattern'"
	else
		verdict "$name"
	fi
}
told() {
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
}

# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# Sourced in the guest by `namespaces` and `containers`: tries the commands of Documentation/containers.md as they stand there, and counts.
page=/usr/lib/verbena/containers.md
passed=0 failed=0
ok() { echo "ok $1"; passed=$((passed + 1)); }
bad() { echo "FAILED $1: $2"; failed=$((failed + 1)); }
# try NAME COMMAND...: one test
try() {
	local name=$1 said rc=0
	shift
	said=$("$@" 2>&1) || rc=$?
	if [ $rc = 0 ]; then ok "$name"; else bad "$name" "status $rc: $(tail -n 3 <<<"$said" | paste -s -d '|')"; fi
}
slow() { echo $(($1 * ${VERBENA_SLOW:-1})); }
# again COMMAND...: until it succeeds, or for ten seconds
again() {
	local end=$((SECONDS + $(slow 10)))
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.2
	done
}
# words HEADING: the commands of a section of the page, but for those of the host
words() {
	awk -v "heading=## $1" '/^## / { in_it = $0 == heading } /^```/ { on_host = !on_host } in_it && !on_host && /^    / { print substr($0, 5) }' "$page"
}
# counted: the last line, and the exit status
counted() {
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
}

# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# Sourced in the guest by `namespaces` and `containers`: tests the commands of Documentation/containers.md, word for word, and counts results.
page=/usr/lib/verbena/containers.md
# shellcheck source=records.sh
. /usr/lib/verbena/records.sh
records_begin
passed=0 failed=0
ok() {
	echo "ok $1"
	record passed "$1"
	passed=$((passed + 1))
}
bad() {
	echo "FAILED $1: $2"
	record failed "$1" "$2"
	failed=$((failed + 1))
}
# try NAME COMMAND...: a test that passes if COMMAND succeeds
try() {
	local name=$1 said rc=0
	shift
	said=$("$@" 2>&1) || rc=$?
	if [ $rc = 0 ]; then ok "$name"; else bad "$name" "status $rc: $(tail -n 3 <<<"$said" | paste -s -d '|')"; fi
}
slow() { echo $(($1 * ${VERBENA_SLOW:-1})); }
# again COMMAND...: repeats COMMAND until it succeeds, for up to ten seconds
again() {
	local end=$((SECONDS + $(slow 10)))
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.2
	done
}
# words HEADING: prints the guest's commands in a section of the page, without those of the host
words() {
	awk -v "heading=## $1" '/^## / { in_it = $0 == heading } /^```/ { on_host = !on_host } in_it && !on_host && /^    / { print substr($0, 5) }' "$page"
}
# counted: prints the counts as the last line; fails if a test failed
counted() {
	records_end
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
}

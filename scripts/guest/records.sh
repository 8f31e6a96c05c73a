# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# Records of test results for scripts/test (tools/lab/harness/src/records.rs), which names a file for them by $VERBENA_RESULTS. Sourced by
# programs in guests, where the file is a port to the host, and by scripts/lib/try.sh. Without that variable these functions do nothing.
_records=${VERBENA_RESULTS:-} _records_where=''
# The programs that this one starts report to it, and not to scripts/test.
unset VERBENA_RESULTS
[ ! -c "$_records" ] || _records_where=$(uname -n)

# records_begin: the program begins. Its name is that of the script.
records_begin() {
	_records_program=${0##*/} _records_count=0 _records_since=${EPOCHREALTIME//[!0-9]/}
	_record '"event":"begin"'
}
# record VERDICT NAME [REASON]: a test has passed, failed or was skipped. The test took the time since the last one.
record() {
	local now=${EPOCHREALTIME//[!0-9]/} took name
	took=$(((now - _records_since) / 1000))
	_records_since=$now
	_records_count=$((_records_count + 1))
	_json "$2"
	name=$REPLY
	_json "${3:-}"
	printf -v took '%d.%03d' $((took / 1000)) $((took % 1000))
	_record "\"event\":\"test\",\"name\":$name,\"verdict\":\"$1\",\"reason\":$REPLY,\"seconds\":$took"
}
# reporting COMMAND...: runs a command that reports its own results to scripts/test, unlike those that this program starts otherwise
reporting() { VERBENA_RESULTS=$_records "$@"; }
# records_end: the program ends
records_end() { _record "\"event\":\"end\",\"tests\":$_records_count"; }

# _json TEXT: sets REPLY to the first thousand characters of TEXT as a JSON string
_json() {
	local text=${1:0:1000}
	text=${text//\\/\\\\}
	text=${text//\"/\\\"}
	text=${text//$'\n'/\\n}
	text=${text//$'\t'/ }
	REPLY="\"${text//[[:cntrl:]]/?}\""
}
# _record FIELDS: appends a line, which must reach the file in a single write, because other programs may write to it too
_record() {
	local line i
	[ -n "$_records" ] || return 0
	_json "$_records_program"
	line="{$1,\"program\":$REPLY,\"process\":$$"
	_json "$_records_where"
	line+=",\"where\":$REPLY}"
	# A port can be opened by one process at a time.
	for ((i = 0; i < 200; i++)); do
		if { printf '%s\n' "$line" >>"$_records"; } 2>/dev/null; then return 0; fi
		sleep 0.05
	done
	echo "cannot write a record of a result to $_records" >&2
}

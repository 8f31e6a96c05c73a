# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# The first process of a session's PID namespace, see session() in common.sh: runs the command that its arguments are. When it
# is told to end it tells everything else in the namespace, gives the command two seconds to tidy up, and ends; the
# kernel then kills whatever is left.
set -u
ending=''
# A Ctrl-C reaches everything that the terminal started, this process too.
trap 'ending=INT' INT
trap 'ending=TERM' TERM HUP
# What bash starts in the background ignores Ctrl-C unless told otherwise.
env --default-signal=INT,QUIT "$@" <&0 &
command=$!
rc=0
wait "$command" || rc=$?
if [ -n "$ending" ]; then
	kill -TERM -1 2>/dev/null
	for _ in {1..20}; do
		kill -0 "$command" 2>/dev/null || break
		sleep 0.1
	done
	rc=143
	[ "$ending" = TERM ] || rc=130
fi
exit "$rc"

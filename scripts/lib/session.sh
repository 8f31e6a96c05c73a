# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# The first process of a session's PID namespace (session() in common.sh). Runs the command that its arguments are. On a signal it
# sends SIGTERM to all other processes in the namespace, waits two seconds for the command to clean up, and exits; the kernel then kills
# the processes that are left.
set -u
ending=''
# Ctrl-C reaches all processes of the terminal, including this one.
trap 'ending=INT' INT
trap 'ending=TERM' TERM HUP
# bash starts background processes with SIGINT ignored.
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

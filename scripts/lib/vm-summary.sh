# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash disable=SC2154
#
# The last three lines of scripts/vm: the cause of a failure, the places of recording, capture and page, and the command that repeats the run.
# judge() has set the exit status of each guest in ${codes[K]}, the errors that the host has seen in ${reasons[K]}, and a pattern of expected
# crashes in ${excused[K]}.

# named STATUS: describes an exit status
named() {
	case $1 in
		124) echo 'status 124 (as timeout(1) ends)' ;;
		126) echo 'status 126 (the command cannot be executed)' ;;
		127) echo 'status 127 (a command was not found)' ;;
		129 | 1[3-8][0-9] | 19[0-2]) echo "status $1 (SIG$(kill -l $(($1 - 128)) 2>/dev/null || echo " $(($1 - 128))"))" ;;
		*) echo "status $1" ;;
	esac
}
# crash_of K: prints the first process of guest K that the kernel ended after a fault or for lack of memory
crash_of() {
	grep -a -E '[^ ]+\[[0-9]+\]: segfault at |traps: [^ ]+\[[0-9]+\] |[Oo]ut of memory: Killed process ' "$(run_of "$1")/kernel.log" |
		grep -a -v -m 1 -E -e "${excused[$1]:-^$}" |
		sed -E 's/^\[ *[0-9.]+\] //; s/^traps: //; s/ ip:? ?[0-9a-f]+ sp:? ?[0-9a-f]+ error:? ?[0-9a-f]+//; s/ likely on CPU.*//; s/, UID.*//' |
		tr -cd '[:print:]' | cut -c 1-200
}
# said_by K: prints the last line with a word that COMMAND of guest K printed, on standard error if it printed there. Before it comes the line
# before the last, which often says more, unless it belongs to a trace. If a line refuses an argument of the command line, that line comes
# instead, because a program prints its usage after it.
said_by() {
	local f lines=() refused='(unrecognized|unknown|invalid|illegal|ambiguous|unexpected) (option|argument|command|subcommand)|requires an argument'
	for f in stderr stdout; do
		mapfile -t lines < <(tail -n 40 "$(run_of "$1")/$f" 2>/dev/null | tr -d '\r' | tr -c '[:print:]\n' ' ' | grep -a '[[:alnum:]]' |
			awk -v refused="$refused" '!found && tolower($0) ~ refused { found = $0 } { last = now; now = $0 }
				END { if (found && found != now) print found; else if (NR > 1) print last; if (NR) print now }' |
			sed -E '1{$!{/^(  |Traceback)/d}}; s/^ +//; s/(.{200}).*/\1.../')
		[ ${#lines[@]} = 0 ] || break
	done
	[ ${#lines[@]} = 0 ] || echo "${lines[0]}${lines[1]:+ / ${lines[1]}}"
}
# flight_of K STATUS: prints the errors in the guest's flight recording, after the time of the first (0: no error); nothing without a recording
flight_of() {
	local d
	d=$(run_of "$1")
	# A NIC that could not write its recording at the end may have written one when the device died.
	[ -s "$d/flight.record" ] || [ ! -s "$d/death.record" ] || cp "$d/death.record" "$d/flight.record"
	[ ! -s "$d/flight.record" ] || "$top/scripts/in-root" --bind "$run" verbenactl record finish "$d/flight.record" --time --status "$2" 2>&1 | tr '\n' ' '
}
# summarize_guest K FAILED: prints a line `TIME K error|- TEXT` about guest K, where `error` says that its recording has an error; prints nothing
# if nothing happened in the guest
summarize_guest() {
	local k=$1 parts=() flight time='' recorded=- ended crash='' code=${codes[$1]} said=''
	[ -z "$(shell_of "$k")" ] || code=0
	flight=$(flight_of "$k" "$2")
	if [[ $flight =~ ^[1-9][0-9]*\  ]]; then time=${flight%% *} recorded=error; fi
	flight=${flight#[0-9]* } flight=${flight% }
	[ "$code" = 0 ] || crash=$(crash_of "$k")
	if [ -n "${reasons[k]:-}" ]; then parts+=("${reasons[k]}"); fi
	# 124 and 125 with a reason come from scripts/vm, not from COMMAND.
	if [ "$code" != 0 ] && { [ -z "${reasons[k]:-}" ] || [[ $code != 12[45] ]]; }; then parts=("$(named "$code")" "${parts[@]}"); fi
	[ -z "$crash" ] || parts+=("$crash")
	if [ -n "$time" ]; then
		parts+=("$flight")
	elif [ "$code" != 0 ] && [ -z "$crash" ]; then
		if [ "$code" != 125 ] || [ -z "${reasons[k]:-}" ]; then
			said=$(said_by "$k")
			parts+=("it printed ${said:+last: }${said:-nothing}")
		fi
		[ -z "$flight" ] || parts+=("$flight")
	fi
	[ ${#parts[@]} -gt 0 ] || return 0
	if [ "$code" != 0 ] && [ -n "$VM_TOGETHER" ] && [ -e "$VM_TOGETHER/ended.vm$k" ]; then
		ended=$(date -r "$VM_TOGETHER/ended.vm$k" +%s%N)
		[ -n "$time" ] && [ "$time" -lt "$ended" ] || time=$ended
	fi
	flight=''
	[ "$vms" = 1 ] || flight="vm$k: "
	flight+=$(printf '%s; ' "${parts[@]}")
	echo "${time:-$(date +%s%N)} $k $recorded ${flight%; }"
}
# summarize_run: prints the three lines if something failed. The guest that failed first comes first.
summarize_run() {
	local k line all='' guests=() first='' where='' failed=$worst
	# The status of a shell is that of the last command in it.
	[ -z "$interactive" ] || failed=0
	for ((k = 1; k <= vms; k++)); do
		line=$(summarize_guest "$k" "$failed")
		[ -z "$line" ] || all+="$line"$'\n'
		[ ! -e "$(run_of "$k")/flight.html" ] || where+="${where:+, }$(run_of "$k")/flight.html"
	done
	[ -n "$all" ] || return 0
	mapfile -t guests < <(sort -n <<<"${all%$'\n'}" | cut -d ' ' -f 2-)
	for line in "${guests[@]}"; do
		if [[ $line =~ ^[0-9]+\ error\  ]]; then first=${line%% *}; break; fi
	done
	first=$(run_of "${first:-${guests[0]%% *}}")
	[ -e "$first/flight.html" ] || first=${where%%/flight.html*}
	guests=("${guests[@]#* * }")
	[ "$vms" = 1 ] || guests=("${guests[@]%.}")
	printf -v all '%s; ' "${guests[@]}"
	echo "what happened: ${all%; }"
	if [ -n "$where" ]; then
		echo "where: $where, and beside it flight.pcapng, flight.record; all errors: scripts/in-root verbenactl why --file $first/flight.record"
	else
		echo "where: $run, the logs of the run; there is no recording"
	fi
	for k in VERBENA_NIC VERBENA_KERNEL VERBENA_KERNEL_VERSION; do [ -z "${!k:-}" ] || again="$k=$(quoted "${!k}") $again"; done
	echo "again: $again"
}

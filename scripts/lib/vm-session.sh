# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck shell=bash
#
# The part of scripts/vm that runs in the toolchain root, in its own PID namespace: the NIC, then QEMU. Its arguments are for the NIC. All
# its processes end with it.
#
# If several guests share a NIC process, one session runs only the NIC (VM_ROLE `nic`) until the file `over` exists, and the sessions of the
# guests run no NIC (`guest`). With VM_REBOOTS, a reset boots again in the same QEMU; and if guest K writes kill-nic.vmK into the shared
# directory, the NIC is killed, and NIC and QEMU start again (with a shared NIC only QEMU). They also start again, up to three times, after
# a boot that the emulator broke (boots.awk).
set -euo pipefail

nic='' name=vm$VM_NUMBER spoilt=0
has_sockets() { [ -S "$VM_SOCK/nic" ] && [ -S "$VM_SOCK/net" ] && [ -S "$VM_SOCK/control" ]; }
# start_nic ARGUMENT...: starts the NIC, if it belongs to this session, and waits for its sockets
start_nic() {
	if [ "$VM_ROLE" != guest ]; then
		export RUST_BACKTRACE=1
		if [ "$VM_ROLE" != nic ]; then
			rm -f "$VM_SOCK"/{nic,net,control}
			set -- --socket "$VM_SOCK/nic" --netdev-socket "$VM_SOCK/net" --mac "$VM_MAC,$VM_MACS" --control "$VM_SOCK/control" --record-dump "$VM_RUN/death.record" "$@"
		fi
		"$VM_NIC" "$@" >>"$VM_RUN/nic.log" 2>&1 &
		nic=$!
	fi
	[ "$VM_ROLE" != nic ] || return 0
	for ((i = 0; i < 100; i++)); do
		if has_sockets; then break; fi
		[ -z "$nic" ] || kill -0 "$nic" 2>/dev/null || break
		sleep 0.1
	done
	if ! has_sockets; then
		[ -n "$nic" ] || exit 125
		if kill -0 "$nic" 2>/dev/null; then echo "did not open its sockets within 10 s"; else
			rc=0
			wait "$nic" || rc=$?
			echo "exited with $rc at start"
		fi >"$VM_RUN/nic.failed"
		cat "$VM_RUN/nic.log" >&2
		exit 125
	fi
	[ -z "$VM_CAPTURE" ] || verbenactl --socket "$VM_SOCK/control" capture "$VM_RUN/rdma.pcapng" >>"$VM_RUN/nic.log" 2>&1 &
}

# First the files of all guests, then those of this guest: the kernel unpacks one archive after the other.
[ "$VM_ROLE" = nic ] || for part in "$VM_INITRD" "$VM_RUN/own"; do (cd "$part" && find . | cpio --quiet -o -H newc -R 0:0); done >"$VM_RUN/initrd.cpio"

# maxcpus is at least 2: with one possible CPU, TCG emits no atomic and no fencing instructions, which other processes need.
maxcpus=$((VM_SMP > 2 ? VM_SMP : 2))
accel=$VM_ACCEL
[ "$accel" != tcg ] || accel=tcg,thread=multi
# Under TCG the guest reads the host's TSC, so the TSC is reliable, and its frequency is half of the BogoMIPS. On a busy host, the guest's own
# measurement may be wrong by any factor, and the guest would then use the slow HPET.
clock='' emulator=qemu-system-x86_64 machine=q35 cpu=max console=ttyS0
if [ "$VM_ARCH" = arm64 ]; then
	# A processor without pointer authentication and scalable vectors, which take an emulator long. MSI-X needs the third interrupt controller.
	emulator=qemu-system-aarch64 machine=virt,gic-version=3 cpu=neoverse-n1 console=ttyAMA0
elif [ "$VM_ACCEL" = tcg ]; then
	clock=$(awk '$1 == "bogomips" { printf " tsc=reliable tsc_early_khz=%d", $3 * 500; exit }' /proc/cpuinfo)
fi
# nowhere N: a link whose packets are accepted and dropped. The second port accepts them: a hub never accepts a packet if its only port is
# the sender's, so the guest's transmit queue would stall.
nowhere() { qemu+=(-netdev "hubport,id=n$1,hubid=$1" -netdev "hubport,id=n$1-end,hubid=$1"); }
qemu=("$emulator" -nodefaults -no-user-config -display none
	-machine "$machine,memory-backend=m" -object "memory-backend-memfd,id=m,size=${VM_MEM}M,share=on" -m "$VM_MEM"
	-accel "$accel" -cpu "$cpu" -smp "$VM_SMP,maxcpus=$maxcpus"
	-kernel "$VM_KERNEL" -initrd "$VM_RUN/initrd.cpio"
	-append "console=$console loglevel=7 panic=-1 oops=panic sysctl.kernel.hung_task_timeout_secs=20 sysctl.kernel.hung_task_warnings=-1$clock$VM_KERNEL_ARGS"
	-drive "file=$VM_GUEST/disk.img,format=raw,if=virtio,snapshot=on"
	-chardev "file,id=log,append=on,path=$VM_RUN/kernel.log" -serial chardev:log
	-device virtio-serial-pci
	-chardev "file,id=status,path=$VM_RUN/status" -device "virtserialport,chardev=status,name=verbena.status")
# Each record arrives in a single write, so guests can share the file.
[ -z "${VERBENA_RESULTS:-}" ] ||
	qemu+=(-chardev "file,id=results,append=on,path=$VERBENA_RESULTS" -device "virtserialport,chardev=results,name=verbena.results")
guard=()
[ -n "$VM_REBOOTS" ] || qemu+=(-no-reboot)
[ -z "$VM_MODULES" ] || qemu+=(-drive "file=$VM_MODULES,format=raw,if=virtio,snapshot=on")
if [ -n "$VM_INTERACTIVE" ]; then
	qemu+=(-chardev "stdio,id=tty,mux=on,signal=off" -device "virtconsole,chardev=tty")
else
	[ -z "$VM_INPUT" ] || qemu+=(-chardev "stdio,id=in,signal=off" -device "virtserialport,chardev=in,name=verbena.stdin")
	qemu+=(-chardev "file,id=out,append=on,path=$VM_RUN/stdout" -device "virtserialport,chardev=out,name=verbena.stdout"
		-chardev "file,id=err,append=on,path=$VM_RUN/stderr" -device "virtserialport,chardev=err,name=verbena.stderr")
fi
if [ -n "$VM_NIC" ]; then
	# Behind a root port, the function has a PCI Express link, whose speed programs read.
	qemu+=(-netdev "stream,id=n0,server=off,addr.type=unix,addr.path=$VM_SOCK/net"
		-device "pcie-root-port,id=rdma"
		-device '{"driver":"vfio-user-pci","bus":"rdma","socket":{"type":"unix","path":"'"$VM_SOCK/nic"'"}}'
		-chardev "socket,id=control,path=$VM_SOCK/control,server=off" -device "virtserialport,chardev=control,name=verbena.control")
	# QEMU knows that ivshmem with `master=off` cannot migrate. With this device QEMU refuses `migrate` and `savevm`, which would lose
	# what the NIC wrote (Documentation/snapshots.md).
	[ -n "$VM_SNAPSHOTS" ] || guard=(-object "memory-backend-ram,id=verbena-forbids-migration-and-snapshots,size=4096,share=on"
		-device '{"driver":"ivshmem-plain","memdev":"verbena-forbids-migration-and-snapshots","master":"off"}')
else
	nowhere 0
fi
qemu+=(-device "virtio-net-pci,netdev=n0,mac=$VM_MAC,speed=100000,duplex=full,romfile=")
if [ -n "$VM_RXE" ]; then
	if [ -z "$VM_TOGETHER" ]; then
		nowhere 1
	elif [ "$VM_NUMBER" = 1 ]; then
		qemu+=(-netdev "stream,id=n1,server=on,addr.type=unix,addr.path=$VM_RXE_LINK")
	else
		qemu+=(-netdev "stream,id=n1,server=off,addr.type=unix,addr.path=$VM_RXE_LINK,reconnect-ms=500")
	fi
	qemu+=(-device "virtio-net-pci,netdev=n1,mac=$VM_RXE_MAC,romfile=")
fi
[ -z "$VM_TOGETHER" ] || qemu+=(-virtfs "local,path=$VM_TOGETHER,mount_tag=together,security_model=none,multidevs=remap")
[ -z "$VM_SHARE" ] || qemu+=(-virtfs "local,path=$VM_SHARE,mount_tag=host,security_model=passthrough,multidevs=remap")
# Last, so that this device does not change the addresses of the others.
qemu+=("${guard[@]}")
[ -z "$VM_MONITOR" ] || qemu+=(-qmp "unix:$VM_SOCK/qmp,server=on,wait=off")
qemu+=(-qmp "unix:$VM_SOCK/watch,server=on,wait=off")
read -ra more <<<"$VM_QEMU_ARGS"
qemu+=("${more[@]}")
if [ -n "$VM_INPUT" ]; then
	# QEMU reads a pipe, because it changes the mode of the file that it reads, which other processes may have open.
	exec {input}<&0 < <(exec cat <&"$input")
	exec {input}<&-
fi

# watch: ends a guest that does not boot, or that QEMU has paused after an error
watch() {
	exec python3 "${0%/*}/watch.py" "$VM_SOCK/watch" "$VM_RUN/kernel.log" "$VM_SILENCE" "$VM_ACCEL" "$VM_RUN/boot.failed" </dev/null
}
# killer QEMU-PID: waits until the guest asks for it, then kills the NIC, and QEMU, which cannot continue without it
killer() {
	local wish=$VM_TOGETHER/kill-nic.$name
	until [ -e "$wish" ]; do sleep 0.1; done
	[ -z "$nic" ] || kill -KILL "$nic"
	sleep 0.5
	! kill -0 "$1" 2>/dev/null || kill -TERM "$1"
}
if [ "$VM_ROLE" = nic ]; then
	start_nic "$@"
	while kill -0 "$nic" 2>/dev/null && ! [ -e "$VM_RUN/over" ]; do sleep 0.1; done
fi
rc=0
while [ "$VM_ROLE" != nic ]; do
	[ -z "$VM_NIC" ] || start_nic "$@"
	limit=()
	[ -z "$VM_TIMEOUT" ] || limit=(timeout --foreground -k 5 $((VM_TIMEOUT > SECONDS ? VM_TIMEOUT - SECONDS : 1)))
	rc=0
	watch &
	watcher=$!
	if [ -z "$VM_REBOOTS" ]; then
		"${limit[@]}" "${qemu[@]}" || rc=$?
		kill $watcher 2>/dev/null || true
		boots=0
		awk -f "${0%/*}/boots.awk" "$VM_RUN/kernel.log" >/dev/null || boots=$?
		if [ $rc != 0 ] || [ $boots != 3 ] || [ "$VM_ACCEL" != tcg ] || [ $((spoilt += 1)) -gt 3 ]; then break; fi
		echo "the emulator executed an int3 that the kernel had removed (see $VM_RUN/kernel.log): the guest boots again" >>"$VM_RUN/stderr"
	else
		"${limit[@]}" "${qemu[@]}" <&0 &
		qemu_pid=$!
		killer "$qemu_pid" 2>/dev/null &
		killer=$!
		wait $qemu_pid || rc=$?
		kill $killer $watcher 2>/dev/null || true
		[ -e "$VM_TOGETHER/kill-nic.$name" ] || break
	fi
	if [ -n "$nic" ]; then
		kill -KILL "$nic" 2>/dev/null || true
		wait "$nic" || true
	fi
	rm -f "$VM_TOGETHER/kill-nic.$name"
done
[ "$rc" != 137 ] || [ -z "$VM_TIMEOUT" ] || rc=124

if [ -n "$nic" ]; then
	# QEMU has ended. A NIC with a single guest may have ended by itself; otherwise it gets SIGTERM. In both cases it must end without error.
	for ((i = 0; i < 10; i++)); do
		kill -0 "$nic" 2>/dev/null || break
		sleep 0.05
	done
	ended=''
	if kill -0 "$nic" 2>/dev/null; then
		ended=1
		kill -TERM "$nic" 2>/dev/null || true
		for ((i = 0; i < 60; i++)); do
			kill -0 "$nic" 2>/dev/null || break
			sleep 0.05
		done
		if kill -0 "$nic" 2>/dev/null; then
			echo "did not end within 3 s of SIGTERM" >"$VM_RUN/nic.failed"
			kill -KILL "$nic"
		fi
	fi
	nic_rc=0
	wait "$nic" || nic_rc=$?
	if grep -qa "panicked at" "$VM_RUN/nic.log"; then
		echo "panicked: $(grep -a -A1 -m1 'panicked at' "$VM_RUN/nic.log" | tr '\n' ' ')" >"$VM_RUN/nic.failed"
	elif [ "$nic_rc" != 0 ] && ! { [ -n "$ended" ] && [ "$nic_rc" = 143 ]; } && ! [ -s "$VM_RUN/nic.failed" ]; then
		echo "exited with $nic_rc" >"$VM_RUN/nic.failed"
	fi
fi
exit "$rc"

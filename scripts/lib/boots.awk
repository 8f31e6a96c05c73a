# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# usage: awk -f scripts/lib/boots.awk KERNEL.LOG
#
# Prints the log of a guest's kernel without the boots that the emulator broke and that were repeated. Exits with 3 if the last boot is
# broken.
#
# To patch code, the kernel writes an int3 for a short time. With a thread for each CPU, TCG discards its translation of code before it
# writes to the code. A CPU that translates between these two keeps the int3, and executes it long after the kernel has removed it. This
# happened once in thousands of boots, in sched_clock_tick(), which all CPUs run at each tick. Before /init nothing of Verbena runs in
# the guest, so Verbena cannot be the cause. After /init an int3 counts as any other oops.
function boot_ends() {
	if (!spoilt) printf "%s", boot
	boot = ""
	spoilt = init = 0
}
/^\[ *0\.0+\] Linux version / { boot_ends() }
/Run .*init as init process/ { init = 1 }
/Oops: int3: / && !init { spoilt = 1 }
{ boot = boot $0 "\n" }
END {
	printf "%s", boot
	exit spoilt ? 3 : 0
}

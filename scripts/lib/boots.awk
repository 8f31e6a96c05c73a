# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# usage: awk -f scripts/lib/boots.awk KERNEL.LOG
#
# The log of a guest's kernel without the boots that the emulator spoilt and that were followed by another; exits with 3 if the
# last one is such.
#
# Where code is to be changed, the kernel puts an int3 for a moment. With a thread for each CPU, TCG drops what it has translated of
# code before it writes to it: a CPU that translates between the two keeps the int3 for good, and runs into it when the kernel has
# long forgotten it. It was seen once in thousands of boots, where sched_clock_tick(), which all CPUs run at each tick, is patched.
# Before /init there is nothing of Verbena in the guest that could be the cause; after it an int3 counts as any other oops.
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

#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/rdma-cm-credentials.sh
#
# Software: rdma_ucm of Linux 7.2.12, librdmacm 56.1.
# Behaviour: a daemon that opens its event channel as root and then becomes an ordinary user, as daemons with a privileged port do, cannot use that
# channel any more. Each call fails with EACCES, whatever the permissions of /dev/infiniband/rdma_cm, and the kernel logs that the process changed
# security contexts. The kernel requires that a process that writes a command has the credentials of the process that opened the file
# (ib_safe_file_access). A channel that the same process opens as the ordinary user works. So a daemon must drop its privileges before
# rdma_create_event_channel, and not, as with TCP, after it has bound the listener.
# Seen: "root: ok", "nobody, channel of root: Permission denied", "nobody, own channel: ok".
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
unpack "$work/packages" librdmacm1t64=56.1-1 libibverbs1=56.1-1 ibverbs-providers=56.1-1
cat >"$work/share/test.py" <<'PY'
import ctypes
import os

lib = ctypes.CDLL("librdmacm.so.1", use_errno=True)
lib.rdma_create_event_channel.restype = ctypes.c_void_p
RDMA_PS_TCP = 0x106


def create_id(channel):
    """Returns the result of rdma_create_id on that channel."""
    made = ctypes.c_void_p()
    failed = lib.rdma_create_id(ctypes.c_void_p(channel), ctypes.byref(made), None, RDMA_PS_TCP)
    return os.strerror(ctypes.get_errno()) if failed else "ok"


channel = lib.rdma_create_event_channel()
print("root:", create_id(channel))
os.chmod("/dev/infiniband/rdma_cm", 0o666)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print("nobody, channel of root:", create_id(channel))
print("nobody, own channel:", create_id(lib.rdma_create_event_channel()))
PY
guest 'python3 /mnt/host/test.py; dmesg | grep -o "changed security contexts.*"'
expect "$said" '^root: ok$' "the call fails for root too"
expect "$said" '^nobody, channel of root: Permission denied$' "the channel of root works for nobody"
expect "$said" '^nobody, own channel: ok$' "an own channel does not work"
expect "$said" '^changed security contexts after opening file descriptor' "the kernel log has no such message"

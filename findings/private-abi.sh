#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/private-abi.sh
#
# Software: libibverbs 44.0 (Debian 12) and 56.1 (Debian 13); no device.
# Behaviour: libibverbs kept the number of its private ABI when a layout changed. Providers register by a symbol with the number in its name and its
# version (verbs_register_driver_34, IBVERBS_PRIVATE_34), so that a provider for another layout is not loaded. Both libraries have 34, but the
# provider's struct verbs_qp differs: the struct ibv_qp_ex at its beginning has one more function, so the mask after it, by which the library
# recognises an extended queue pair, is eight bytes later. Each library loads a provider that was built for the other, and takes its extended queue
# pairs for ordinary ones. Shown by ibv_qp_to_qp_ex, which reads that mask, on a structure of zeros with one bit set.
# Seen: both have verbs_register_driver_34; the mask is at offset 352 in 44.0 and at 360 in 56.1.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie bookworm
root python3 libibverbs1=56.1-1
unpack "$work/share/old" libibverbs1=44.0-2
cat >"$work/share/layout.py" <<'PY'
import ctypes
import sys

VERBS_QP_EX = 2  # the bit of verbs_qp.comp_mask
lib = ctypes.CDLL(sys.argv[1])
lib.verbs_register_driver_34  # AttributeError if there is none
lib.ibv_qp_to_qp_ex.restype = ctypes.c_void_p
lib.ibv_qp_to_qp_ex.argtypes = [ctypes.c_void_p]
found = []
for offset in range(0, 1024, 4):
    structure = ctypes.create_string_buffer(1024)
    structure[offset] = VERBS_QP_EX
    if lib.ibv_qp_to_qp_ex(ctypes.addressof(structure)):
        found.append(offset)
print(f"{sys.argv[2]}: verbs_register_driver_34, comp_mask at {found}")
PY
said=$(in_root python3 /share/layout.py /share/old/usr/lib/x86_64-linux-gnu/libibverbs.so.1 44.0
	in_root python3 /share/layout.py libibverbs.so.1 56.1)
printf '%s\n' "$said"
expect "$said" '^44.0: verbs_register_driver_34, comp_mask at \[352\]$' "the layout of 44.0 differs"
expect "$said" '^56.1: verbs_register_driver_34, comp_mask at \[360\]$' "the layout of 56.1 differs"

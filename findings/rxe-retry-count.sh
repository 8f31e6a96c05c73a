#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/rxe-retry-count.sh
#
# Software: the kernel's soft RoCE (rxe) of Linux 7.2.12.
# Behaviour: a queue pair with retry_cnt 7 never gives up. Seven is the largest value of the 3-bit field, and for retry_cnt it means seven retries
# (only for rnr_retry 7 means unlimited retries). Smaller values of retry_cnt work on rxe.
# Input: a SEND to a QPN that does not exist, with a local ACK timeout of 8 (1 ms), so that no acknowledgement arrives.
# Seen: retry_cnt 0, 1 and 6 end with IBV_WC_RETRY_EXC_ERR after 12, 18 and 60 ms; 7 has no completion in 6 s, a hundred times as long as 6.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
pyverbs
cat >"$work/share/test.py" <<'PY'
import time

from rc import Rc

for retries in (0, 1, 6, 7):
    a = Rc()
    a.connect(0xABCD, retry_cnt=retries)
    a.send(1)
    begun = time.monotonic()
    found = a.poll(6)
    print(f"retry_cnt {retries}: {found[0].status.name if found else 'no completion'} ({time.monotonic() - begun:.3f} s)")
PY
guest 'python3 /mnt/host/test.py'
for n in 0 1 6; do expect "$said" "^retry_cnt $n: IBV_WC_RETRY_EXC_ERR" "retry_cnt $n does not end with RETRY_EXC_ERR"; done
expect "$said" '^retry_cnt 7: no completion' "retry_cnt 7 ends"

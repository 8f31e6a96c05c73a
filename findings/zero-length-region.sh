#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/zero-length-region.sh
#
# Software: ib_core (ib_umem_get) and soft RoCE (rxe) of Linux 7.2.12.
# Behaviour: whether a memory region of zero bytes can be registered depends on its address. At a multiple of the page size the registration fails
# with EINVAL; at any other address it succeeds. The kernel counts the pages from that of the first byte to the end, rounded up: none at the
# beginning of a page, and one elsewhere.
# Seen: at offset 0 of a page errno 22, at 1, 8 and 4095 a region.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
pyverbs
cat >"$work/share/test.py" <<'PY'
import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
from rc import base, pd

for offset in (0, 1, 8, 4095, 4096):
    try:
        MR(pd, 0, e.IBV_ACCESS_LOCAL_WRITE, address=base + offset).close()
        print(f"0 bytes at offset {offset}: a region")
    except PyverbsRDMAError as error:
        print(f"0 bytes at offset {offset}: errno {error.error_code}")
PY
guest 'python3 /mnt/host/test.py'
for n in 0 4096; do expect "$said" "^0 bytes at offset $n: errno 22$" "the beginning of a page is not refused"; done
for n in 1 8 4095; do expect "$said" "^0 bytes at offset $n: a region$" "offset $n is refused"; done

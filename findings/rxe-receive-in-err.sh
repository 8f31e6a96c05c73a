#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/rxe-receive-in-err.sh
#
# Software: the kernel's soft RoCE (rxe) of Linux 7.2.12.
# Behaviour: a receive that is posted to a queue pair in ERR is not flushed until the process also posts a send to that queue pair. A receive that
# was posted before the queue pair went to ERR is flushed at once. By the specification both complete with a flush error (IBTA 10.3.1). Programs rely
# on that to learn that a queue pair is empty: they post one more receive, and wait for it.
# Seen: the receive posted before ERR has IBV_WC_WR_FLUSH_ERR; the one posted in ERR has no completion in 3 s; after a SEND is posted, both are
# flushed.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
pyverbs
cat >"$work/share/test.py" <<'PY'
from rc import pair

a, b = pair()


def report(what, found):
    print(f"{what}: {' '.join(sorted(f'{w.wr_id}={w.status.name}' for w in found)) or 'nothing'}")


b.receive(1)
b.to_err()
report("receive posted before ERR", b.poll())
b.receive(2)
report("receive posted in ERR", b.poll(3))
b.send(3)
report("and a send", b.poll(5, 2))
PY
guest 'python3 /mnt/host/test.py'
expect "$said" '^receive posted before ERR: 1=IBV_WC_WR_FLUSH_ERR$' "a receive posted before ERR is not flushed"
expect "$said" '^receive posted in ERR: nothing$' "a receive posted in ERR is flushed"
expect "$said" '^and a send: 2=IBV_WC_WR_FLUSH_ERR 3=IBV_WC_WR_FLUSH_ERR$' "after a send, not both are flushed"

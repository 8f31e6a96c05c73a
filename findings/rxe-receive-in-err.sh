#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/rxe-receive-in-err.sh
#
# Software: the kernel's soft RoCE (rxe) of Linux 7.2.12.
# Behaviour: a receive that is posted to a queue pair in ERR is not flushed until the process posts a send to that queue pair too. A receive
# that was there when the queue pair went to ERR is flushed at once. The specification has both complete with a flush error (IBTA 10.3.1),
# which programs use to learn that a queue pair is empty: they post one more receive, and wait for it.
# Seen: the receive posted before has IBV_WC_WR_FLUSH_ERR; the one posted after has nothing in 3 s; as soon as a SEND is posted, both are
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


def told(what, found):
    print(f"{what}: {' '.join(sorted(f'{w.wr_id}={w.status.name}' for w in found)) or 'nothing'}")


b.receive(1)
b.to_err()
told("receive posted before ERR", b.poll())
b.receive(2)
told("receive posted in ERR", b.poll(3))
b.send(3)
told("and a send", b.poll(5, 2))
PY
guest 'python3 /mnt/host/test.py'
expect "$said" '^receive posted before ERR: 1=IBV_WC_WR_FLUSH_ERR$' "a receive that is there is not flushed"
expect "$said" '^receive posted in ERR: nothing$' "a receive posted in ERR is flushed by now"
expect "$said" '^and a send: 2=IBV_WC_WR_FLUSH_ERR 3=IBV_WC_WR_FLUSH_ERR$' "a send does not bring both"

#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/rxe-completion-flags.sh
#
# Software: the kernel's soft RoCE (rxe) of Linux 7.2.12, and the crate async-rdma 0.5.0.
# Behaviour: on rxe each completion of a receive has the flag IBV_WC_GRH, also on a reliable connection, where the buffer has no GRH (the data begin
# at its first byte). By ibv_poll_cq(3) the flag is only for datagrams. The completion of a send with immediate data has IBV_WC_WITH_IMM at the
# sender, although wc_flags and imm_data are about received data. An effect of both: async-rdma compares the whole of wc_flags with a constant of 3
# (GRH and WITH_IMM). By default it finds immediate data on rxe, but not on an adapter that reports 2, unless set_imm_flag_in_wc(2) was called.
# (This script only reads the crate. It builds only with its own Cargo.lock, because versions that it depends on were withdrawn from crates.io.)
# Seen: receive of a SEND 1, of a SEND and of a WRITE with immediate data 3; sender 0, 2, 2; the buffer begins with the data.
# "IBV_WC_WITH_IMM: u32 = 3" and "wc_flags == unsafe { IBV_WC_WITH_IMM }" in the crate.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
crate async-rdma 0.5.0
crate=$(cat "$work/crate/src/completion_queue.rs")
expect "$crate" 'IBV_WC_WITH_IMM: u32 = 3;' "async-rdma has another constant"
expect "$crate" 'wc_flags == unsafe \{ IBV_WC_WITH_IMM \}' "async-rdma compares the flags differently"
lists trixie
pyverbs
cat >"$work/share/test.py" <<'PY'
import pyverbs.enums as e
from rc import memory, pair

memory[:8] = b"payload."
a, b = pair()
for name, opcode in (("SEND", e.IBV_WR_SEND), ("SEND with immediate", e.IBV_WR_SEND_WITH_IMM), ("WRITE with immediate", e.IBV_WR_RDMA_WRITE_WITH_IMM)):
    b.receive(1)
    a.send(2, opcode, imm=5)
    (at_b,), (at_a,) = b.poll(), a.poll()
    print(f"{name}: receiver {at_b.wc_flags}, sender {at_a.wc_flags}")
    if name == "SEND":
        print("buffer begins with", memory[4096:4104].decode())
PY
guest 'python3 /mnt/host/test.py'
expect "$said" '^SEND: receiver 1, sender 0$' "the flags of a SEND differ"
expect "$said" '^SEND with immediate: receiver 3, sender 2$' "the flags of a SEND with immediate data differ"
expect "$said" '^WRITE with immediate: receiver 3, sender 2$' "the flags of a WRITE with immediate data differ"
expect "$said" '^buffer begins with payload\.$' "the buffer does not begin with the data"

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Reliable connected queue pairs of one device for tests, with pyverbs: two connected ones, or one connected to itself."""
from __future__ import annotations

import os
import time
from typing import Any, Optional

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ROOM = 1 << 20
PATIENCE = 60 * int(os.environ.get("VERBENA_SLOW", "1"))
_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


class NoDevice(Exception):
    """The RDMA device cannot be opened."""


class WorkFailed(AssertionError):
    """A work request completed with an error. `status` is a number of ibv_wc_status."""

    def __init__(self, text: str, status: int, vendor_err: int) -> None:
        super().__init__(text)
        self.status, self.vendor_err = status, vendor_err


def status_name(status: int) -> str:
    """Returns the name of a completion status in C."""
    names = (name for name in dir(e) if name.startswith("IBV_WC_") and name.endswith(("_ERR", "_SUCCESS")))
    return next((name for name in names if getattr(e, name) == status), f"status {status}")


def open_device() -> Context:
    """Opens the device that $DEVICE names, verbena0 by default."""
    name = os.environ.get("DEVICE", "verbena0")
    try:
        return Context(name=name)
    except PyverbsError as error:
        raise NoDevice(
            f"the RDMA device {name} cannot be opened: {error}. `ibv_devices` lists the devices; set DEVICE to another one."
            " A guest of scripts/vm has verbena0, except with --no-module"
        ) from None


class Pair:
    """Two queue pairs: `qp` writes to the memory of `peer`. With `is_loop` both are the same queue pair.

    `qpn` and `peer_qpn` are their numbers. `context`, `pd`, `cq`, `source` and `target` are objects of pyverbs, which
    a test can use directly. `source` and `target` are memory regions of `ROOM` bytes.
    """

    def __init__(self, is_loop: bool = False) -> None:
        self.context = open_device()
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        self.source, self.target = (MR(self.pd, ROOM, _ACCESS) for _ in range(2))
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = _ACCESS
        self.qp = QP(self.pd, init, attr)
        self.peer = self.qp if is_loop else QP(self.pd, init, attr)
        self.connect(self.qp, self.peer)
        if not is_loop:
            self.connect(self.peer, self.qp)
        self.qpn, self.peer_qpn, self.length = int(self.qp.qp_num), int(self.peer.qp_num), 0

    def connect(self, qp: QP, peer: QP, step: Any = QP.to_rts) -> None:
        """Connects a queue pair in RESET with `peer`. `step` is the method that moves it: `QP.to_rtr` or `QP.to_rts`."""
        index = int(os.environ.get("VERBENA_GID") or os.environ.get("GID") or "0")
        route = GlobalRoute(dgid=GID(str(self.context.query_gid(1, index))), sgid_index=index, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags, attr.ah_attr = _ACCESS, AHAttr(port_num=1, is_global=1, gr=route)
        attr.dest_qp_num, attr.path_mtu = peer.qp_num, e.IBV_MTU_1024
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        step(qp, attr)

    def write(self, data: bytes, rkey: Optional[int] = None) -> None:
        """Posts an RDMA WRITE of up to `ROOM` bytes and waits for its completion. `rkey` replaces the R_Key of `target`.

        Raises `WorkFailed` if the WRITE completes with an error, and `TimeoutError` if it does not complete.
        """
        __tracebackhide__ = True
        self.length = len(data)
        self.source.write(data, self.length)
        self.target.write(b"\0" * self.length, self.length)
        wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(self.source.buf, self.length, self.source.lkey)])
        wr.set_wr_rdma(self.target.rkey if rkey is None else rkey, self.target.buf)
        self.qp.post_send(wr)
        done = self.completion()
        if done.status != e.IBV_WC_SUCCESS:
            status = f"{status_name(done.status)} ({done.status})"
            text = f"the RDMA WRITE of QP {self.qpn:#x} completed with {status}, vendor_err {done.vendor_err:#x}"
            raise WorkFailed(text, done.status, done.vendor_err)

    def completion(self) -> Any:
        """Waits for the next completion of either queue pair, and returns it as pyverbs does."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            count, found = self.cq.poll(1)
            if count:
                return found[0]
            time.sleep(0.0005)
        raise TimeoutError(f"no completion for QP {self.qpn:#x} within {PATIENCE} s")

    def written(self) -> bytes:
        """Returns the bytes in the memory of `target`, as many as the last `write` had."""
        told: bytes = self.target.read(self.length, 0)
        return told

    def close(self) -> None:
        """Destroys all objects."""
        for thing in dict.fromkeys((self.qp, self.peer, self.cq, self.source, self.target, self.pd, self.context)):
            thing.close()

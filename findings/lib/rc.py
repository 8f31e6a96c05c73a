# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Queue pairs of rxe0, by pyverbs. A module shared by the programs of findings/, which run in the guest."""
import ctypes
import mmap
import os
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

GID = int(os.environ["RXE_GID"])
ALL = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
context = Context(name="rxe0")
pd = PD(context)
memory = mmap.mmap(-1, 65536)  # its address is a multiple of the page size
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
mr = MR(pd, len(memory), ALL, address=base)


class Rc:
    """A reliable connected queue pair with its own CQ, in RESET."""

    def __init__(self):
        self.cq = CQ(context, 64)
        self.qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(16, 16, 1, 1, 0), sq_sig_all=1))

    def connect(self, qpn, retry_cnt=6, timeout=8, mtu=e.IBV_MTU_1024):
        """Moves to RTS, with queue pair `qpn` of the same device as peer; `timeout` is that of verbs, 4.096 us * 2^timeout."""
        a = QPAttr(port_num=1)
        a.dest_qp_num, a.path_mtu, a.qp_access_flags = qpn, mtu, ALL
        a.max_rd_atomic = a.max_dest_rd_atomic = a.min_rnr_timer = 1
        a.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=context.query_gid(1, GID), sgid_index=GID))
        a.timeout, a.retry_cnt, a.rnr_retry, a.rq_psn, a.sq_psn = timeout, retry_cnt, 7, 0, 0
        self.qp.to_rts(a)

    def receive(self, wr_id, size=64):
        self.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[SGE(base + 4096, size, mr.lkey)]))

    def send(self, wr_id, opcode=e.IBV_WR_SEND, size=8, imm=0):
        wr = SendWR(wr_id=wr_id, num_sge=1, sg=[SGE(base, size, mr.lkey)], opcode=opcode, imm_data=imm)
        if opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM):
            wr.set_wr_rdma(mr.rkey, base + 8192)
        self.qp.post_send(wr)

    def poll(self, seconds=5, count=1):
        """Returns up to `count` completions that arrive within that many seconds."""
        found, end = [], time.monotonic() + seconds
        while len(found) < count and time.monotonic() < end:
            found += self.cq.poll(count - len(found))[1]
        return found

    def to_err(self):
        a = QPAttr()
        a.qp_state = e.IBV_QPS_ERR
        self.qp.modify(a, e.IBV_QP_STATE)


def pair(**more):
    """Returns two queue pairs that are connected to each other."""
    a, b = Rc(), Rc()
    a.connect(b.qp.qp_num, **more)
    b.connect(a.qp.qp_num, **more)
    return a, b

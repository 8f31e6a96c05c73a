# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Two reliable connected queue pairs of one device, one of which writes to the other: pyverbs."""
import os
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ROOM = 1 << 20
PATIENCE = 60 * int(os.environ.get("VERBENA_SLOW", "1"))


class Pair:
    def __init__(self):
        self.context = Context(name=os.environ.get("DEVICE", "verbena0"))
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.source, self.target = (MR(self.pd, ROOM, access) for _ in range(2))
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        self.qp, self.peer = (QP(self.pd, init, attr) for _ in range(2))
        self._connect(self.qp, self.peer, access)
        self._connect(self.peer, self.qp, access)
        self.qpn, self.length = self.qp.qp_num, 0

    def _connect(self, qp, peer, access):
        index = int(os.environ.get("VERBENA_GID", "0"))
        route = GlobalRoute(dgid=GID(str(self.context.query_gid(1, index))), sgid_index=index, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags, attr.ah_attr = access, AHAttr(port_num=1, is_global=1, gr=route)
        attr.dest_qp_num, attr.path_mtu = peer.qp_num, e.IBV_MTU_1024
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        qp.to_rts(attr)

    def write(self, data):
        """An RDMA WRITE, with its completion."""
        self.length = len(data)
        self.source.write(data, self.length)
        self.target.write(b"\0" * self.length, self.length)
        wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(self.source.buf, self.length, self.source.lkey)])
        wr.set_wr_rdma(self.target.rkey, self.target.buf)
        self.qp.post_send(wr)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            count, found = self.cq.poll(1)
            if count:
                assert found[0].status == e.IBV_WC_SUCCESS, f"status {found[0].status}, vendor_err {found[0].vendor_err:#x}"
                return
            time.sleep(0.0005)
        raise TimeoutError("no completion")

    def written(self):
        """What the other end has."""
        return self.target.read(self.length, 0)

    def close(self):
        for thing in (self.qp, self.peer, self.cq, self.source, self.target, self.pd, self.context):
            thing.close()

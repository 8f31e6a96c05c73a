# SPDX-License-Identifier: GPL-2.0 OR MIT
"""At least one row for each asynchronous event. Events of a queue pair are delivered to its own program, so those rows use pyverbs. Events
of the device and of the port are delivered to ibv_asyncwatch."""
import os
import re
import subprocess
import tempfile
import time

import pyverbs.enums as e
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr

from row import QUIET, Row, applied, events, faults, next_completion, said, state
from statuses import SEND, WRITE, changed

Failed, Pair, wire = faults.Failed, faults.Pair, faults.wire


class OnSrq(wire.End):
    """A queue pair that takes its receives from an SRQ."""

    def create(self, kind, family):
        made = super().create(kind, family)
        self.qp.close()
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=16, max_sge=1)))
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = self.access
        cap = QPCap(max_send_wr=16, max_recv_wr=0, max_send_sge=1, max_recv_sge=0)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, srq=self.srq, sq_sig_all=1), attr)
        return made | {"qpn": self.qp.qp_num}

    def receive(self, length):
        self.srq.post_recv(wire.RecvWR(**self.sges(length)))

    def close(self):
        super().close()
        if getattr(self, "srq", None):
            self.srq.close()
            self.srq = None


def srq_pair():
    """Returns two queue pairs, the second on an SRQ."""
    return Pair(there=OnSrq)


def of_pair(of, wanted, program, test, rules=(), kind=Pair, **more):
    """A row in which `test` causes an event with a pair. `wanted`: all events of the end named by `at` in `more`, sorted."""
    at = more.pop("at", "here")

    def run():
        pair = kind()
        try:
            with applied(rules):
                found = test(pair) or {}
                end = getattr(pair, at)
                return {"event": events(end.context, len(wanted)), "state": state(end)} | found
        finally:
            pair.close()

    return Row(of, said(rules) if rules else "the program asks for it", f"pyverbs: {program}", {"event": wanted, **more}, run)


def write(pair):
    """Posts a WRITE, without waiting for its completion."""
    pair.here.begin(e.IBV_WR_RDMA_WRITE, faults.LENGTH)


def refused(pair):
    write(pair)
    done = next_completion(pair.here)
    return {"peer_status": done["status"], "peer_vendor_err": done["vendor_err"], "peer_state": state(pair.here)}


def send(pair):
    for _ in range(3):
        pair.there.receive(100)
    pair.here.begin(e.IBV_WR_SEND, 100)


def communication_established():
    """Two messages for a queue pair in RTR cause one event."""
    here, there = wire.End(), wire.End()
    ends = [end.create("RC", "GID") for end in (here, there)]

    class InRtr:
        """Keeps the second queue pair in RTR."""
        def __init__(self, qp):
            self.qp, self.qp_num = qp, qp.qp_num

        def to_rts(self, attr):
            self.qp.to_rtr(attr)

    own = there.qp
    try:
        there.qp = InRtr(own)
        there.connect(ends[0], faults.MTU)
        there.qp = own
        here.connect(ends[1], faults.MTU)
        for _ in range(2):
            there.receive(100)
            here.post(e.IBV_WR_SEND, 100)
        return {"event": events(there.context, 1), "state": state(there)}
    finally:
        here.close()
        there.close()


def drained(pair):
    write(pair)
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    attr.en_sqd_async_notify = 1
    pair.here.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)


def below_limit(pair):
    """With four receives and a limit of four, the first message causes the event, and only this one."""
    for _ in range(4):
        pair.there.receive(100)
    pair.there.srq.modify(SrqAttr(max_wr=16, max_sge=1, srq_limit=4), e.IBV_SRQ_LIMIT)
    for _ in range(2):
        pair.here.begin(e.IBV_WR_SEND, 100)
        next_completion(pair.here)
    return {"limit": pair.there.srq.query().srq_limit}


def watched(of, door, wanted, cause, after=faults.until_works):
    """A row that runs ibv_asyncwatch during `cause`, and counts the events that it prints."""
    def run():
        with tempfile.TemporaryFile("w+") as out:
            watch = subprocess.Popen(["ibv_asyncwatch", "-d", os.environ["DEVICE"]], stdout=out, stderr=subprocess.STDOUT)

            def reported():
                # pread, because the program shares the descriptor and its offset.
                return re.findall(rf"event_type {of} ", os.pread(out.fileno(), 1 << 16, 0).decode())

            try:
                deadline = time.monotonic() + 20 * faults.SLOW
                while b"async event FD" not in os.pread(out.fileno(), 1 << 16, 0):
                    if time.monotonic() > deadline:
                        raise Failed("ibv_asyncwatch does not open the device")
                    time.sleep(0.05)
                cause()
                deadline = time.monotonic() + 20 * faults.SLOW
                while not reported() and time.monotonic() < deadline:
                    time.sleep(0.05)
                time.sleep(QUIET * faults.SLOW)
                return {"event": [of] * len(reported())}
            finally:
                watch.kill()
                watch.wait()
                after()
    return Row(of, door, "ibv_asyncwatch", {"event": wanted}, run)


def link(*ways):
    for way in ways:
        subprocess.run(["ip", "link", "set", os.environ["VERBENA_NETDEV"], way], check=True)
        time.sleep(1)


def up_again():
    link("up")
    faults.until_works()


def address(way):
    subprocess.run(["ip", "address", way, "10.77.0.1/24", "dev", os.environ["VERBENA_NETDEV"]], check=True)


FATAL = [("fatal", {**SEND, "nth": 5})]


def dies():
    with applied(FATAL):
        if not faults.pingpong()[0]:
            raise Failed("ibv_rc_pingpong succeeds although the device died")


def repeated():
    """A repeated completion event finds an empty CQ, which the program must tolerate."""
    with applied(REPEATED):
        status, out = faults.pingpong("-e")
    return {"ended": status}


REPEATED = [({"repeat": 1}, {"on": "event", "event": "COMPLETION", "nth": 3})]
KEY, LONG = changed("rkey", 0xDEAD00), changed("dma_length", 0x80000001)
FIRST = {"opcode": "RDMA WRITE First", "limit": 1}
LAST = {"opcode": "RDMA WRITE Last", "limit": 1}
TAKEN = {"direction": "in", **SEND, "limit": 1}
ROWS = [
    Row("COMPLETION", said(REPEATED), "ibv_rc_pingpong -e", {"ended": 0}, repeated),
    of_pair("IBV_EVENT_CQ_ERR", ["IBV_EVENT_CQ_ERR", "IBV_EVENT_QP_FATAL"], "RDMA WRITE", write, [({"cq_overflow": "send"}, LAST)], state="ERR"),
    of_pair("IBV_EVENT_QP_FATAL", ["IBV_EVENT_QP_FATAL"], "RDMA WRITE", write, [("qp_error", {**WRITE, "nth": 2})], state="ERR"),
    of_pair("IBV_EVENT_QP_REQ_ERR", ["IBV_EVENT_QP_REQ_ERR"], "RDMA WRITE", refused, [(LONG, FIRST)], at="there", state="ERR", peer_status="IBV_WC_REM_INV_REQ_ERR",
            peer_vendor_err=0x901, peer_state="ERR"),
    of_pair("IBV_EVENT_QP_ACCESS_ERR", ["IBV_EVENT_QP_ACCESS_ERR"], "RDMA WRITE", refused, [(KEY, FIRST)], at="there", state="ERR", peer_status="IBV_WC_REM_ACCESS_ERR",
            peer_vendor_err=0xA01, peer_state="ERR"),
    Row("IBV_EVENT_COMM_EST", "the program asks for it", "pyverbs: SEND to a queue pair in RTR", {"event": ["IBV_EVENT_COMM_EST"], "state": "RTR"}, communication_established),
    of_pair("IBV_EVENT_SQ_DRAINED", ["IBV_EVENT_SQ_DRAINED"], "SQD with en_sqd_async_notify", drained, state="SQD"),
    of_pair("IBV_EVENT_QP_LAST_WQE_REACHED", ["IBV_EVENT_QP_FATAL", "IBV_EVENT_QP_LAST_WQE_REACHED"], "SEND to a queue pair on an SRQ", send, [("qp_error", TAKEN)], srq_pair,
            at="there", state="ERR"),
    of_pair("IBV_EVENT_SRQ_LIMIT_REACHED", ["IBV_EVENT_SRQ_LIMIT_REACHED"], "a limit", below_limit, (), srq_pair, at="there", state="RTS", limit=0),
    of_pair("IBV_EVENT_SRQ_ERR", ["IBV_EVENT_QP_FATAL", "IBV_EVENT_QP_LAST_WQE_REACHED", "IBV_EVENT_SRQ_ERR"], "SEND to a queue pair on an SRQ", send, [("kill_srq", TAKEN)], srq_pair,
            at="there", state="ERR"),
    watched("IBV_EVENT_PORT_ERR", "the net device goes down", ["IBV_EVENT_PORT_ERR"], lambda: link("down"), up_again),
    watched("IBV_EVENT_PORT_ACTIVE", "the net device goes down and up", ["IBV_EVENT_PORT_ACTIVE"], lambda: link("down", "up")),
    watched("IBV_EVENT_GID_CHANGE", "an address more", ["IBV_EVENT_GID_CHANGE"], lambda: address("add"), lambda: address("del")),
    watched("IBV_EVENT_DEVICE_FATAL", said(FATAL), ["IBV_EVENT_DEVICE_FATAL"], dies),
]

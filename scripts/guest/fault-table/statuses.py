# SPDX-License-Identifier: GPL-2.0 OR MIT
"""At least one row for each status of completions, in the order of their numbers."""
import pyverbs.enums as e
from pyverbs.mr import MR, MW, MWBindInfo

import stock
from row import Row, applied, faults, next_completion, said, state

Pair, wire = faults.Pair, faults.wire
# The state of an undisturbed responder: the server of a perftest that only answers stays in RTR.
UP = "RTR"
# Options for messages of several packets, and of one packet.
MANY, ONE = ("-F", "-n", 5, "-s", 4096), ("-F", "-n", 5, "-s", 512)
WRITE, SEND = {"opcode": "RDMA WRITE"}, {"opcode": "SEND"}
RECEIVED = {"direction": "in", "opcode": "RDMA WRITE", "nth": 2}


def changed(field, value):
    return {"corrupt": {"field": field, "value": value, "icrc": "right"}}


def completes(of, vendor_err, command="ib_write_bw", opcode="RDMA_WRITE"):
    """A rule completes a send with the status `of` instead of executing it."""
    how = {"status": of, "vendor_err": vendor_err} if vendor_err != 0x1302 else of
    return stock.row(of, vendor_err, [({"complete": how}, {"on": "send", "opcode": opcode, "nth": 2})], command, *MANY, peer={"state": UP})


def answered(of, vendor_err, nak):
    """A rule sends a NAK in the name of a responder, which does not take part."""
    return stock.row(of, vendor_err, [({"nak": nak}, RECEIVED)], "ib_write_bw", *MANY, peer={"state": UP})


def own(of, vendor_err, program, test, state="ERR", rules=(), **more):
    """A small program with pyverbs: `test` gets a pair of queue pairs."""
    def run():
        pair = Pair(rnr_retry=2)
        try:
            with applied(rules):
                return test(pair)
        finally:
            pair.close()
    door = said(rules) if rules else "the program asks for it"
    return Row(of, door, f"pyverbs: {program}", {"status": of, "vendor_err": vendor_err, "state": state, **more}, run)


def both_states(pair):
    return {"state": state(pair.here), "peer_state": state(pair.there)}


def receiver_never_ready(pair):
    pair.there.receive(100)
    pair.here.begin(e.IBV_WR_SEND, 100)
    return next_completion(pair.here) | both_states(pair)


def wrong_local_key(pair):
    sge = wire.SGE(pair.here.mr.buf, 100, pair.here.mr.lkey ^ 0xff)
    wr = wire.SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge])
    pair.here.qp.post_send(wr)
    return next_completion(pair.here) | both_states(pair)


def invalidated(pair):
    """The corrupted packet asks for an invalidation with the immediate as key. The receive reports that this key cannot be invalidated. The
    sender has made no mistake."""
    pair.there.receive(100)
    pair.here.qp.post_send(wire.SendWR(opcode=e.IBV_WR_SEND_WITH_IMM, imm_data=0x1234, **pair.here.sges(100)))
    sent = next_completion(pair.here)
    return next_completion(pair.there) | {"state": state(pair.there), "peer_status": sent["status"], "peer_state": state(pair.here)}


def bound(pair):
    """A memory window is bound to a region that does not allow binding."""
    region = MR(pair.here.pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
    window = MW(pair.here.pd, e.IBV_MW_TYPE_2)
    try:
        wr = wire.SendWR(opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_bind_wr(window, MWBindInfo(region, region.buf, 4096, e.IBV_ACCESS_REMOTE_WRITE))
        pair.here.qp.post_send(wr)
        return next_completion(pair.here) | both_states(pair)
    finally:
        window.close()
        region.close()


def datagram_write():
    """RDMA WRITE is not an operation of UD. Only the send queue goes to an error state."""
    end = wire.End()
    end.connect(end.create("UD", "GID"), faults.MTU)
    try:
        wr = wire.SendWR(opcode=e.IBV_WR_RDMA_WRITE, **end.sges(100))
        wr.set_wr_ud(end.ah, end.qp.qp_num, wire.QKEY)
        end.qp.post_send(wr)
        return next_completion(end) | {"state": state(end)}
    finally:
        end.close()


# The last packet of a message is changed to a middle one, and so is the first of the next, so the message is longer than its receive.
ENDLESS = [
    (changed("opcode", 0x01), {"opcode": "SEND Last", "nth": 1}),
    (changed("opcode", 0x01), {"opcode": "SEND First", "while": "1", "limit": 1}),
]
INVALIDATE = [(changed("opcode", 0x17), {"opcode": "SEND Only with Immediate", "limit": 1})]
ROWS = [
    stock.row("IBV_WC_SUCCESS", 0, [("drop", {**WRITE, "packet_of_message": 3, "limit": 1})], "ib_write_bw", *MANY, state="RTS", peer={"state": UP}),
    # With a long timeout, because a retransmission would begin messages too.
    stock.row("IBV_WC_LOC_LEN_ERR", 0x101, ENDLESS, "ib_send_bw", *MANY, "-u", 18, at="server", peer={"status": "IBV_WC_REM_INV_REQ_ERR", "vendor_err": 0x901, "state": "ERR"}),
    completes("IBV_WC_LOC_QP_OP_ERR", 0x202),
    Row("IBV_WC_LOC_QP_OP_ERR", "the program asks for it", "pyverbs: RDMA WRITE as a datagram",
        {"status": "IBV_WC_LOC_QP_OP_ERR", "vendor_err": 0x202, "state": "SQE"}, datagram_write),
    completes("IBV_WC_LOC_PROT_ERR", 0x401),
    own("IBV_WC_LOC_PROT_ERR", 0x401, "an L_Key that is none", wrong_local_key, peer_state="RTS"),
    stock.row("IBV_WC_WR_FLUSH_ERR", 0x1, [("qp_error", {**WRITE, "nth": 2})], "ib_write_bw", *MANY, peer={"state": UP}),
    own("IBV_WC_MW_BIND_ERR", 0x602, "SEND with immediate", invalidated, rules=INVALIDATE, peer_status="IBV_WC_SUCCESS", peer_state="RTS"),
    own("IBV_WC_MW_BIND_ERR", 0x604, "a memory window where none may be", bound, peer_state="RTS"),
    stock.row("IBV_WC_BAD_RESP_ERR", 0x701, [(changed("opcode", 0x10), {"direction": "in", "opcode": "ATOMIC Acknowledge", "nth": 2})],
              "ib_atomic_bw", "-F", "-n", 5, peer={"state": UP}),
    stock.row("IBV_WC_LOC_ACCESS_ERR", 0x801, [(changed("rkey", 0xDEAD00), {"opcode": "RDMA WRITE Only with Immediate", "nth": 2})],
              "ib_write_bw", "--write_with_imm", *ONE, at="server", peer={"status": "IBV_WC_REM_ACCESS_ERR", "vendor_err": 0xA01, "state": "ERR"}),
    answered("IBV_WC_REM_INV_REQ_ERR", 0x901, "invalid request"),
    stock.row("IBV_WC_REM_INV_REQ_ERR", 0x901, [(changed("dma_length", 0x80000001), {"opcode": "RDMA WRITE First", "nth": 2})], "ib_write_bw", *MANY,
              peer={"state": "ERR"}),
    answered("IBV_WC_REM_ACCESS_ERR", 0xA01, "remote access error"),
    stock.row("IBV_WC_REM_ACCESS_ERR", 0xA01, [(changed("rkey", 0xDEAD00), {"opcode": "RDMA WRITE First", "nth": 2})], "ib_write_bw", *MANY,
              peer={"state": "ERR"}),
    stock.row("IBV_WC_REM_ACCESS_ERR", None, [(changed("rkey", 0xDEAD00), {"opcode": "RDMA READ request", "nth": 2})], "rping", "-C", 5, at="server", state=None),
    answered("IBV_WC_REM_OP_ERR", 0xB01, "remote operational error"),
    stock.row("IBV_WC_REM_OP_ERR", 0xB01, [("kill_srq", {"direction": "in", **SEND, "nth": 1})], "ibv_srq_pingpong", "-n", 50, "-q", 1,
              peer={"state": "ERR"}),
    stock.row("IBV_WC_RETRY_EXC_ERR", 0xC01, [("drop", WRITE)], "ib_write_bw", *MANY, peer={"state": UP}),
    stock.row("IBV_WC_RETRY_EXC_ERR", 0xC01, [("port_down", {**SEND, "qp_created": 2, "nth": 3})], "ibv_rc_pingpong", "-n", 20),
    own("IBV_WC_RNR_RETRY_EXC_ERR", 0xD01, "rnr_retry 2", receiver_never_ready, rules=[({"rnr": 1}, {"direction": "in", **SEND})], peer_state="RTS"),
    stock.row("IBV_WC_REM_ABORT_ERR", 0x1001, [("drop", {"opcode": "SEND Middle", "nth": 2})], "ib_send_bw", "-c", "UC", "--use-srq", *MANY, at="server",
              state=UP),
    completes("IBV_WC_FATAL_ERR", 0x1302),
    completes("IBV_WC_RESP_TIMEOUT_ERR", 0x1302),
    completes("IBV_WC_GENERAL_ERR", 0x1302),
]

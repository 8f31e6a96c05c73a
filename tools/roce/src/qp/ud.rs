// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Unreliable datagrams, for the GSI and for UD queue pairs. A sender is done when its datagram has left; a receiver
//! never answers, and what it cannot take it drops and counts.

use super::{failed, requester::Requester, responder::Responder, Budget, Core, QpState, QpType};
use crate::host::{
    Completion, CopyFault, DatagramSource, Host, Source, Syndrome, Take, Target, WcOpcode, WcStatus,
};
use crate::packet::{Kind, Packet, SendTail};

/// Bytes before the payload in a receive's buffers: room for a GRH.
pub const GRH_BYTES: u32 = 40;
/// Q_Key of the general services interface (IBTA 3.5.3).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Sends what is posted. An error takes the send queue to SQE.
pub(crate) fn run<H: Host>(
    core: &mut Core,
    req: &mut Requester,
    host: &mut H,
    budget: &mut Budget,
) -> Result<bool, Syndrome> {
    while core.state == QpState::Rts {
        if budget.is_spent() {
            return Ok(true);
        }
        match req.datagram(core, host)? {
            Some(length) => budget.spend(length),
            None => break,
        }
    }
    Ok(false)
}

/// Takes a datagram. A cause returned takes the queue pair to ERR.
pub(crate) fn receive<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    packet: Packet,
) -> Option<Syndrome> {
    if !matches!(
        core.state,
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    ) {
        core.counters.dropped_state += 1;
        return None;
    }
    let (Some(datagram), Kind::Send(tail)) = (packet.datagram.as_deref(), packet.kind) else {
        core.counters.dropped_invalid += 1;
        return None;
    };
    let imm = match tail {
        SendTail::None => None,
        SendTail::Imm(imm) => Some(imm),
        SendTail::Invalidate(_) => {
            core.counters.dropped_invalid += 1;
            return None;
        }
    };
    let qkey = if core.config.qp_type == QpType::Gsi {
        GSI_QKEY
    } else {
        core.attr.qkey
    };
    if datagram.qkey != qkey {
        core.counters.dropped_qkey += 1;
        return None;
    }
    resp.note_arrival(core, host);
    if !resp.recv_held {
        resp.recv.sges.clear();
        match host.take_recv(&mut resp.recv) {
            Take::Taken => resp.recv_capacity = resp.recv.capacity(),
            Take::Empty => {
                core.counters.dropped_no_receive += 1;
                return None;
            }
            Take::Malformed(cause) => {
                return Some(fail_recv(core, resp, host, WcStatus::LocQpOpErr, cause));
            }
            Take::Dead(cause) => return Some(cause),
        }
        resp.recv_held = true;
    }
    let length = packet.payload.len() + GRH_BYTES;
    if u64::from(length) > resp.recv_capacity {
        core.counters.dropped_too_long += 1;
        // A receive of an SRQ cannot go back, so it tells; one of the RQ waits for the next datagram.
        if core.config.has_srq {
            fail_recv(
                core,
                resp,
                host,
                WcStatus::LocLenErr,
                Syndrome::RecvTooSmall,
            );
        }
        return None;
    }
    let target = |offset| Target::Scatter {
        pd: resp.recv.pd,
        privileged: resp.recv.privileged,
        sges: &resp.recv.sges,
        offset,
    };
    let mut copied = host.copy(target(0), Source::Bytes(&datagram.grh));
    if copied.is_ok() && !packet.payload.is_empty() {
        copied = host.copy(target(GRH_BYTES), packet.payload.source());
    }
    if let Err(CopyFault::Source(cause) | CopyFault::Target(cause)) = copied {
        return Some(fail_recv(core, resp, host, WcStatus::LocProtErr, cause));
    }
    resp.recv_held = false;
    let completion = Completion {
        wr_id: resp.recv.wr_id,
        wqe_index: resp.recv.index,
        status: WcStatus::Success,
        syndrome: None,
        opcode: WcOpcode::Recv,
        byte_len: length,
        imm,
        invalidated: None,
        solicited: packet.solicited,
        source: Some(DatagramSource {
            qpn: packet.src_qpn,
            path: datagram.path,
        }),
    };
    core.complete(host, &completion);
    None
}

/// Completes the receive that was taken in error.
fn fail_recv<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    status: WcStatus,
    cause: Syndrome,
) -> Syndrome {
    resp.recv_held = false;
    let completion = failed(
        resp.recv.wr_id,
        resp.recv.index,
        WcOpcode::Recv,
        status,
        cause,
    );
    core.complete(host, &completion);
    cause
}

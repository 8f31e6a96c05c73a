// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Unreliable datagrams, for QP0, the GSI and UD queue pairs. A send completes when its datagram has
//! left. A receiver never answers, and drops and counts the datagrams that it cannot take.

use super::requester::Requester;
use super::responder::{Responder, UnreliableDrop};
use super::{Budget, Core, QpState, QpType};
use crate::host::{
    CopyFault, CopySource, CopyTarget, DatagramSource, Host, Syndrome, ViolatedKey, WcStatus,
    WorkCompletion,
};
use crate::packet::{Packet, PacketKind, SendTail};

/// Bytes before the payload in a receive's buffers: room for a GRH.
pub const GRH_BYTES: u32 = 40;
/// Q_Key of the general services interface (IBTA 3.5.3).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Sends the posted datagrams. Returns true if the budget is spent; an error moves the send queue
/// to SQE.
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
        match req.send_datagram(core, host)? {
            Some(length) => budget.spend(length),
            None => break,
        }
    }
    Ok(false)
}

/// Handles a datagram. A returned cause moves the queue pair to ERR.
pub(crate) fn receive<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    packet: Packet,
) -> Option<Syndrome> {
    if !Responder::is_receiving(core.state) {
        core.counters.dropped_state += 1;
        return None;
    }
    // A datagram is a SEND of one packet, with or without immediate (IBTA 9.8.3).
    let imm = match packet.kind {
        PacketKind::Send(SendTail::None) => None,
        PacketKind::Send(SendTail::Imm(imm)) => Some(imm),
        _ => return invalid(core),
    };
    let Some(datagram) = packet.datagram.as_deref() else {
        return invalid(core);
    };
    if !packet.first || !packet.last || packet.psns != 1 {
        return invalid(core);
    }
    let qkey = if core.config.qp_type == QpType::Gsi {
        GSI_QKEY
    } else {
        core.attr.qkey
    };
    // QP0 checks no Q_Key (IBTA 9.6.1.4.1).
    if datagram.qkey != qkey && core.config.qp_type != QpType::Smi {
        core.counters.dropped_qkey += 1;
        host.on_key_violation(ViolatedKey::QKey, &packet);
        return None;
    }
    match resp.require_recv_unacknowledged(core, host) {
        Ok(()) => {}
        Err(UnreliableDrop::Counted) => return None,
        Err(UnreliableDrop::Error(cause)) => return Some(cause),
    }
    let length = packet.payload.len().saturating_add(GRH_BYTES);
    if u64::from(length) > resp.recv_capacity {
        core.counters.dropped_too_long += 1;
        // A receive from an SRQ cannot go back, so it completes in error. One of the RQ waits for
        // the next datagram.
        if core.config.has_srq {
            resp.fail_recv(core, host, WcStatus::LocLenErr, Syndrome::RecvTooSmall);
        }
        return None;
    }
    let target = |offset| CopyTarget::Scatter {
        pd: resp.recv.pd,
        privileged: resp.recv.privileged,
        sges: &resp.recv.sges,
        offset,
    };
    let mut copied = host.copy(target(0), CopySource::Bytes(&datagram.grh));
    if copied.is_ok() && !packet.payload.is_empty() {
        copied = host.copy(target(GRH_BYTES), packet.payload.source());
    }
    match copied {
        Ok(()) => {}
        Err(CopyFault::Target(cause)) => {
            resp.fail_recv(core, host, WcStatus::LocProtErr, cause);
            return Some(cause);
        }
        // A datagram that cannot be read counts as lost. A receive of the RQ waits for the next
        // one.
        Err(CopyFault::Source(_)) => {
            if core.config.has_srq {
                resp.fail_recv(core, host, WcStatus::RemAbortErr, Syndrome::Aborted);
            }
            return invalid(core);
        }
    }
    let owed = resp.pending_completion.take()?;
    let completion = WorkCompletion {
        byte_len: length,
        imm,
        solicited: packet.solicited,
        source: Some(DatagramSource {
            qpn: packet.src_qpn,
            path: datagram.path,
            pkey: packet.pkey,
        }),
        ..owed.success()
    };
    core.complete(host, &completion);
    None
}

fn invalid(core: &mut Core) -> Option<Syndrome> {
    core.counters.dropped_invalid += 1;
    None
}

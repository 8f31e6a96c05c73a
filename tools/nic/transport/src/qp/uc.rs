// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder of an unreliable connection. It never answers (IBTA 9.8.2). A gap in the sequence,
//! or a packet that does not continue the message, abandons the message. Its receive is used for
//! the next message (class D1); one from an SRQ cannot go back, so it completes as aborted (class
//! E). An invalid request is dropped and counted (class D), and the queue pair stays up. Only a
//! receive that cannot be used moves the queue pair to ERR (class A).

use super::responder::{MessageInProgress, Responder, UnreliableDrop};
use super::Core;
use crate::host::{CopyFault, CopyTarget, Host, KeyAccess, KeyUse, Syndrome, WcOpcode, WcStatus};
use crate::packet::{Packet, PacketKind, Payload, Reth, SendTail};
use crate::psn;
use verbena_abi::ctx::access;

/// Length of the longest message of the protocol in bytes (C9-94).
const MAX_LENGTH: u32 = 1 << 31;

/// Handles a request. A returned cause moves the queue pair to ERR.
pub(super) fn receive<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    packet: Packet,
) -> Option<Syndrome> {
    if !Responder::is_receiving(core.state) {
        core.counters.dropped_state += 1;
        return None;
    }
    resp.on_arrival(core, host);
    if packet.psn != resp.expected_psn {
        core.counters.out_of_sequence += u64::from(packet.psns);
        abandon(core, resp, host);
    }
    // The next packet is expected after this one, even if this one is dropped (IBTA 9.8.2.2).
    let next = psn::add(packet.psn, packet.psns);
    resp.expected_psn = next;
    if packet.first {
        abandon(core, resp, host);
    } else if resp.message.is_none() {
        // The packet belongs to a message that was abandoned.
        core.counters.dropped_invalid += u64::from(packet.psns);
        return None;
    }
    let result = execute(core, resp, host, packet);
    resp.expected_psn = next;
    match result {
        Ok(()) => None,
        Err(UnreliableDrop::Counted) => {
            abandon(core, resp, host);
            None
        }
        Err(UnreliableDrop::Error(cause)) => Some(cause),
    }
}

/// Abandons the message in progress, if there is one.
fn abandon<H: Host>(core: &mut Core, resp: &mut Responder, host: &mut H) {
    resp.offset = 0;
    if resp.message.take().is_some() {
        core.counters.aborted_messages += 1;
    }
    if resp.pending_completion.is_some() && core.config.has_srq {
        resp.fail_recv(core, host, WcStatus::RemAbortErr, Syndrome::Aborted);
    }
}

fn invalid(core: &mut Core) -> UnreliableDrop {
    core.counters.dropped_invalid += 1;
    UnreliableDrop::Counted
}

fn execute<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    mut packet: Packet,
) -> Result<(), UnreliableDrop> {
    match packet.kind {
        PacketKind::Send(tail) if !matches!(tail, SendTail::Invalidate(_)) => {
            send(core, resp, host, &packet, tail)
        }
        PacketKind::Write { reth, imm } => {
            // The immediate belongs to the last packet alone.
            if imm.is_some() && packet.psns > 1 {
                let count = packet.psns.saturating_sub(1);
                let front = packet.split_front(count, core.attr.path_mtu);
                write(core, resp, host, &front, reth, None)?;
                return write(core, resp, host, &packet, None, imm);
            }
            write(core, resp, host, &packet, reth, imm)
        }
        _ => Err(invalid(core)),
    }
}

fn send<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    packet: &Packet,
    tail: SendTail,
) -> Result<(), UnreliableDrop> {
    let in_order = packet.first || matches!(resp.message, Some(MessageInProgress::Send));
    if !in_order || !Responder::has_valid_length(core, packet) {
        return Err(invalid(core));
    }
    if packet.first {
        resp.require_recv_unacknowledged(core, host)?;
    }
    let room = resp.recv_capacity.min(MAX_LENGTH.into());
    let room = room.saturating_sub(resp.offset.into());
    if u64::from(packet.payload.len()) > room {
        // The packets before the first one that does not fit are copied to the receive.
        let mtu = core.attr.path_mtu;
        let good = room.checked_div(mtu.into()).unwrap_or(0) as u32;
        let part = packet.payload.slice(0, good.saturating_mul(mtu));
        scatter(core, resp, host, &part)?;
        core.counters.dropped_too_long += 1;
        // A receive from an SRQ cannot go back, so it completes in error. One of the RQ waits for
        // the next message.
        if core.config.has_srq {
            resp.fail_recv(core, host, WcStatus::LocLenErr, Syndrome::RecvTooSmall);
        }
        return Err(UnreliableDrop::Counted);
    }
    scatter(core, resp, host, &packet.payload)?;
    let length = resp.offset.saturating_add(packet.payload.len());
    resp.message = Some(MessageInProgress::Send);
    resp.on_executed(packet);
    if packet.last {
        let imm = match tail {
            SendTail::Imm(imm) => Some(imm),
            _ => None,
        };
        resp.complete_recv(
            core,
            host,
            WcOpcode::Recv,
            length,
            imm,
            None,
            packet.solicited,
        );
    }
    Ok(())
}

/// Copies a payload into the buffers of the receive. A fault of these buffers is a fault of the
/// queue pair.
fn scatter<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    payload: &Payload,
) -> Result<(), UnreliableDrop> {
    if payload.is_empty() {
        return Ok(());
    }
    let target = CopyTarget::Scatter {
        pd: resp.recv.pd,
        privileged: resp.recv.privileged,
        sges: &resp.recv.sges,
        offset: resp.offset,
    };
    match host.copy(target, payload.source()) {
        Ok(()) => Ok(()),
        Err(CopyFault::Target(cause)) => {
            resp.fail_recv(core, host, WcStatus::LocProtErr, cause);
            Err(UnreliableDrop::Error(cause))
        }
        // A payload that cannot be read counts as lost.
        Err(CopyFault::Source(_)) => Err(invalid(core)),
    }
}

fn write<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    packet: &Packet,
    reth: Option<Reth>,
    imm: Option<[u8; 4]>,
) -> Result<(), UnreliableDrop> {
    let reth = match (resp.message, reth) {
        (_, Some(reth)) if packet.first => reth,
        (Some(MessageInProgress::Write { reth }), None) if !packet.first => reth,
        _ => return Err(invalid(core)),
    };
    let length = packet.payload.len();
    let rest = reth.length.saturating_sub(resp.offset);
    let whole = if packet.last {
        length == rest
    } else {
        length < rest
    };
    if !whole
        || reth.length > MAX_LENGTH
        || !Responder::has_valid_length(core, packet)
        || core.attr.access_flags & access::REMOTE_WRITE == 0
    {
        return Err(invalid(core));
    }
    if packet.first && reth.length > 0 {
        let key = KeyUse {
            pd: core.config.pd,
            owner: core.config.owner,
            privileged: false,
            key: reth.rkey,
            addr: reth.addr,
            length: u64::from(reth.length),
            access: KeyAccess::RemoteWrite,
        };
        if host.check(&key).is_err() {
            return Err(invalid(core));
        }
    }
    // UC has no retransmission, so a refused request takes no receive.
    if imm.is_some() {
        resp.require_recv_unacknowledged(core, host)?;
    }
    if length > 0 {
        let target = CopyTarget::Region {
            pd: core.config.pd,
            owner: core.config.owner,
            key: reth.rkey,
            addr: reth.addr.wrapping_add(u64::from(resp.offset)),
        };
        if host.copy(target, packet.payload.source()).is_err() {
            return Err(invalid(core));
        }
    }
    resp.message = Some(MessageInProgress::Write { reth });
    resp.on_executed(packet);
    if imm.is_some() {
        resp.complete_recv(
            core,
            host,
            WcOpcode::RecvRdmaWithImm,
            reth.length,
            imm,
            None,
            packet.solicited,
        );
    }
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder of an unreliable connection. It never answers (IBTA 9.8.2). A gap in the sequence,
//! or a packet that does not continue the message, abandons the message. Its receive is used for
//! the next message (class D1); one from an SRQ cannot go back, so it completes as aborted (class
//! E). An invalid request is dropped and counted (class D), and the queue pair stays up. Only a
//! receive that cannot be used moves the queue pair to ERR (class A).

use super::responder::{Lost, Message, Responder};
use super::Core;
use crate::host::{Access, CopyFault, Host, KeyUse, Syndrome, Target, WcOpcode, WcStatus};
use crate::packet::{Kind, Packet, Payload, Reth, SendTail};
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
    resp.note_arrival(core, host);
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
        Err(Lost::Counted) => {
            abandon(core, resp, host);
            None
        }
        Err(Lost::Error(cause)) => Some(cause),
    }
}

/// Abandons the message in progress, if there is one.
fn abandon<H: Host>(core: &mut Core, resp: &mut Responder, host: &mut H) {
    resp.offset = 0;
    if resp.message.take().is_some() {
        core.counters.aborted_messages += 1;
    }
    if resp.owed.is_some() && core.config.has_srq {
        resp.fail_recv(core, host, WcStatus::RemAbortErr, Syndrome::Aborted);
    }
}

fn invalid(core: &mut Core) -> Lost {
    core.counters.dropped_invalid += 1;
    Lost::Counted
}

fn execute<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    mut packet: Packet,
) -> Result<(), Lost> {
    match packet.kind {
        Kind::Send(tail) if !matches!(tail, SendTail::Invalidate(_)) => {
            send(core, resp, host, &packet, tail)
        }
        Kind::Write { reth, imm } => {
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
) -> Result<(), Lost> {
    let in_order = packet.first || matches!(resp.message, Some(Message::Send));
    if !in_order || !Responder::fits(core, packet) {
        return Err(invalid(core));
    }
    if packet.first {
        resp.take_silently(core, host)?;
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
        return Err(Lost::Counted);
    }
    scatter(core, resp, host, &packet.payload)?;
    let length = resp.offset.saturating_add(packet.payload.len());
    resp.message = Some(Message::Send);
    resp.executed(packet);
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
) -> Result<(), Lost> {
    if payload.is_empty() {
        return Ok(());
    }
    let target = Target::Scatter {
        pd: resp.recv.pd,
        privileged: resp.recv.privileged,
        sges: &resp.recv.sges,
        offset: resp.offset,
    };
    match host.copy(target, payload.source()) {
        Ok(()) => Ok(()),
        Err(CopyFault::Target(cause)) => {
            resp.fail_recv(core, host, WcStatus::LocProtErr, cause);
            Err(Lost::Error(cause))
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
) -> Result<(), Lost> {
    let reth = match (resp.message, reth) {
        (_, Some(reth)) if packet.first => reth,
        (Some(Message::Write { reth }), None) if !packet.first => reth,
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
        || !Responder::fits(core, packet)
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
            access: Access::RemoteWrite,
        };
        if host.check(&key).is_err() {
            return Err(invalid(core));
        }
    }
    // UC has no retransmission, so a refused request takes no receive.
    if imm.is_some() {
        resp.take_silently(core, host)?;
    }
    if length > 0 {
        let target = Target::Region {
            pd: core.config.pd,
            owner: core.config.owner,
            key: reth.rkey,
            addr: reth.addr.wrapping_add(u64::from(resp.offset)),
        };
        if host.copy(target, packet.payload.source()).is_err() {
            return Err(invalid(core));
        }
    }
    resp.message = Some(Message::Write { reth });
    resp.executed(packet);
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

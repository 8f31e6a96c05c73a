// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder of an unreliable connection. It never answers. A gap in the sequence, or anything that does not fit,
//! abandons the message; its receive is used for the next one, or, since one of an SRQ cannot go back, completes as
//! aborted. Whatever is wrong with a request is dropped and counted, and the queue pair stays up.

use super::responder::{Message, Responder};
use super::{failed, Core, QpState};
use crate::host::{Access, CopyFault, Host, KeyUse, Syndrome, Take, Target, WcOpcode, WcStatus};
use crate::packet::{Kind, Packet, Reth, SendTail};
use crate::psn;
use verbena_abi::ctx::access;

/// Why a packet was not executed.
enum Drop {
    /// A counter was counted; the message is over.
    Message,
    /// The receive is in error: the queue pair goes to ERR.
    Error(Syndrome),
}

/// Takes a request. A cause returned takes the queue pair to ERR.
pub(super) fn receive<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    mut packet: Packet,
) -> Option<Syndrome> {
    if !matches!(
        core.state,
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    ) {
        core.counters.dropped_state += 1;
        return None;
    }
    resp.note_arrival(core, host);
    if packet.psn != resp.expected_psn {
        core.counters.out_of_sequence += u64::from(packet.psns);
        abandon(core, resp, host);
    }
    // The next packet is expected after this one, whatever becomes of it (IBTA 9.8.2).
    resp.expected_psn = psn::add(packet.psn, packet.psns);
    if packet.first {
        abandon(core, resp, host);
    } else if resp.message.is_none() {
        // The rest of a message that was given up.
        core.counters.dropped_invalid += u64::from(packet.psns);
        return None;
    }
    let mtu = core.attr.path_mtu;
    let result = match packet.kind {
        Kind::Send(tail) if !matches!(tail, SendTail::Invalidate(_)) => {
            send(core, resp, host, &packet, tail)
        }
        Kind::Write { reth, imm } if imm.is_some() && packet.psns > 1 => {
            let front = packet.split_front(packet.psns - 1, mtu);
            write(core, resp, host, &front, reth, None)
                .and_then(|()| write(core, resp, host, &packet, None, imm))
        }
        Kind::Write { reth, imm } => write(core, resp, host, &packet, reth, imm),
        _ => {
            core.counters.dropped_invalid += 1;
            Err(Drop::Message)
        }
    };
    match result {
        Ok(()) => None,
        Err(Drop::Message) => {
            resp.message = None;
            resp.offset = 0;
            None
        }
        Err(Drop::Error(cause)) => Some(cause),
    }
}

/// Gives up the message that is under way, if there is one.
fn abandon<H: Host>(core: &mut Core, resp: &mut Responder, host: &mut H) {
    resp.offset = 0;
    if resp.message.take().is_some() {
        core.counters.aborted_messages += 1;
        if resp.recv_held && core.config.has_srq {
            fail_recv(core, resp, host, WcStatus::RemAbortErr, Syndrome::Aborted);
        }
    }
}

fn fail_recv<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    status: WcStatus,
    cause: Syndrome,
) {
    resp.recv_held = false;
    core.complete(
        host,
        &failed(
            resp.recv.wr_id,
            resp.recv.index,
            WcOpcode::Recv,
            status,
            cause,
        ),
    );
}

fn invalid(core: &mut Core) -> Drop {
    core.counters.dropped_invalid += 1;
    Drop::Message
}

fn take<H: Host>(core: &mut Core, resp: &mut Responder, host: &mut H) -> Result<(), Drop> {
    if resp.recv_held {
        return Ok(());
    }
    resp.recv.sges.clear();
    match host.take_recv(&mut resp.recv) {
        Take::Taken => {
            resp.recv_held = true;
            resp.recv_capacity = resp.recv.capacity();
            Ok(())
        }
        Take::Empty => {
            core.counters.dropped_no_receive += 1;
            Err(Drop::Message)
        }
        Take::Malformed(cause) => {
            fail_recv(core, resp, host, WcStatus::LocQpOpErr, cause);
            Err(Drop::Error(cause))
        }
        Take::Dead(cause) => Err(Drop::Error(cause)),
    }
}

fn send<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    packet: &Packet,
    tail: SendTail,
) -> Result<(), Drop> {
    let in_order = packet.first || matches!(resp.message, Some(Message::Send));
    if !in_order || !Responder::fits(core, packet) {
        return Err(invalid(core));
    }
    if packet.first {
        take(core, resp, host)?;
    }
    let length = u64::from(resp.offset) + u64::from(packet.payload.len());
    if length > resp.recv_capacity || length > u64::from(u32::MAX) {
        core.counters.dropped_too_long += 1;
        if core.config.has_srq {
            fail_recv(
                core,
                resp,
                host,
                WcStatus::LocLenErr,
                Syndrome::RecvTooSmall,
            );
        }
        return Err(Drop::Message);
    }
    if !packet.payload.is_empty() {
        let target = Target::Scatter {
            pd: resp.recv.pd,
            privileged: resp.recv.privileged,
            sges: &resp.recv.sges,
            offset: resp.offset,
        };
        if let Err(CopyFault::Target(cause) | CopyFault::Source(cause)) =
            host.copy(target, packet.payload.source())
        {
            fail_recv(core, resp, host, WcStatus::LocProtErr, cause);
            return Err(Drop::Error(cause));
        }
    }
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
            length as u32,
            imm,
            None,
            packet.solicited,
        );
    }
    Ok(())
}

fn write<H: Host>(
    core: &mut Core,
    resp: &mut Responder,
    host: &mut H,
    packet: &Packet,
    reth: Option<Reth>,
    imm: Option<[u8; 4]>,
) -> Result<(), Drop> {
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
        || !Responder::fits(core, packet)
        || core.attr.access_flags & access::REMOTE_WRITE == 0
    {
        return Err(invalid(core));
    }
    if imm.is_some() {
        take(core, resp, host)?;
    }
    if packet.first && reth.length > 0 {
        let key = KeyUse {
            pd: core.config.pd,
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
    if length > 0 {
        let addr = reth.addr.wrapping_add(u64::from(resp.offset));
        let target = Target::Region {
            pd: core.config.pd,
            key: reth.rkey,
            addr,
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

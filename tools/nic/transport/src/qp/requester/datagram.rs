// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Datagrams, and copies of payloads for packets that outlive their work request.

use super::Requester;
use crate::host::{CopyFault, CopyTarget, Host, Syndrome, WcStatus, WqeOpcode};
use crate::packet::{DatagramHeaders, PacketKind, Payload, SendTail};
use crate::psn;
use crate::qp::Core;
use crate::{frame, wire};
use alloc::rc::Rc;

impl Requester {
    /// Sends one datagram and returns its length in bytes. None if nothing is posted.
    pub(in crate::qp) fn send_datagram<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
    ) -> Result<Option<u32>, Syndrome> {
        if self.slots.len() == 0 && !self.fetch(core, host) {
            return Ok(None);
        }
        let Some(slot) = self.slots.front() else {
            return Ok(None);
        };
        if let Some(fault) = slot.fault {
            return Err(self.fail_oldest(core, host, fault.status, fault.syndrome));
        }
        let length = slot.length();
        let Some(dest) = slot.wqe.datagram.as_deref() else {
            return Err(self.fail_oldest(
                core,
                host,
                WcStatus::LocQpOpErr,
                Syndrome::AddressHandleGid,
            ));
        };
        if length > core.attr.path_mtu {
            // A datagram over the MTU is not sent, and that is no error (IBTA C10-93.1.1).
            core.counters.over_mtu += 1;
            self.complete_oldest(core, host);
            return Ok(Some(0));
        }
        let tail = match slot.wqe.opcode {
            WqeOpcode::SendImm => SendTail::Imm(slot.wqe.imm),
            _ => SendTail::None,
        };
        let mut packet = core.packet(PacketKind::Send(tail), self.next_psn, 1);
        packet.solicited = slot.wqe.solicited;
        packet.dst_qpn = dest.qpn;
        packet.pkey = dest.pkey.unwrap_or(packet.pkey);
        let datagram = DatagramHeaders {
            path: dest.path,
            // If the top bit is set, the Q_Key of the queue pair is sent (IBTA 10.2.5).
            qkey: if dest.qkey & 1 << 31 != 0 {
                core.attr.qkey
            } else {
                dest.qkey
            },
            grh: wire::stored_grh(
                &dest.path,
                frame::datagram_udp_length(length, matches!(tail, SendTail::Imm(_))),
            ),
        };
        packet.datagram = Some(match host.pool() {
            Some(pool) => pool.datagram(datagram),
            None => Rc::new(datagram),
        });
        // The work request completes when the packet leaves, so the packet must not need its
        // buffers.
        let payload = Payload::Gather {
            gather: Rc::clone(&slot.gather),
            offset: 0,
            length,
        };
        match copy_payload(host, &payload) {
            Ok(payload) => packet.payload = payload,
            Err(cause) => return Err(self.fail_oldest(core, host, WcStatus::LocProtErr, cause)),
        }
        self.next_psn = psn::add(self.next_psn, 1);
        self.una_psn = self.next_psn;
        self.sent_psn = self.next_psn;
        core.transmit(host, packet);
        self.complete_oldest(core, host);
        Ok(Some(length))
    }
}

/// Copies a payload into a buffer of its own.
pub(super) fn copy_payload<H: Host>(host: &mut H, payload: &Payload) -> Result<Payload, Syndrome> {
    if payload.is_empty() {
        return Ok(Payload::None);
    }
    let length = payload.len() as usize;
    let mut bytes = host
        .pool()
        .map(|pool| pool.buffer(length))
        .unwrap_or_default();
    if let Some(buffer) = Rc::get_mut(&mut bytes) {
        // A longer buffer keeps its length, because growing it again would have to fill it.
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        if let Some(place) = buffer.get_mut(..length) {
            host.copy(CopyTarget::Buffer(place), payload.source())
                .map_err(|fault| match fault {
                    CopyFault::Source(cause) | CopyFault::Target(cause) => cause,
                })?;
        }
    }
    if let Some(pool) = host.pool() {
        pool.keep_buffer(&bytes);
    }
    Ok(Payload::Bytes {
        bytes,
        offset: 0,
        length: payload.len(),
    })
}

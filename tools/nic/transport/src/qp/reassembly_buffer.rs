// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets that arrive ahead of a gap and are kept until the gap closes: requests by a responder,
//! responses by a requester.
//!
//! Kept packets own their bytes. They are limited by distance, by the bytes of the queue pair and
//! by an account that several queue pairs share.

use crate::host::{CopySource, CopyTarget, Host};
use crate::packet::{Packet, Payload};
use crate::psn;
use crate::qp::Core;
use crate::reassembly_quota::QuotaReservation;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec;

/// Distance from the PSN expected at which packets are no longer kept; so also the maximum number
/// of kept packets.
const MAX_DISTANCE: u32 = 128;
/// Cost of a packet in bytes beside its payload, so that small packets are not free.
pub const PACKET_BYTES: u32 = 256;

#[derive(Debug)]
struct BufferedPacket {
    packet: Packet,
    cost: u32,
    _reservation: Option<QuotaReservation>,
}

/// Kept packets in PSN order.
#[derive(Debug, Default)]
pub(super) struct ReassemblyBuffer {
    packets: VecDeque<BufferedPacket>,
    bytes: u32,
    /// Of a responder: the PSN of the gap before the kept packets, if it arrived without AckReq.
    pub(super) closed_gap: Option<u32>,
}

impl ReassemblyBuffer {
    /// Keeps a packet that is ahead of `expected`, if it is alive, arrived over a wire, is near
    /// enough and there is room for it. If two packets with the same PSN differ, neither is kept.
    pub(super) fn insert<H: Host>(
        store: &mut Option<Box<Self>>,
        core: &mut Core,
        host: &mut H,
        mut packet: Packet,
        expected: u32,
    ) {
        let ahead = psn::ahead(packet.psn, expected);
        let is_single = packet.psns == 1 && !core.attr.local_peer;
        let may_be = is_single && ahead < MAX_DISTANCE && packet.payload.is_alive();
        if core.config.reassembly_bytes == 0 || !may_be {
            return;
        }
        let store = store.get_or_insert_default();
        let at = store
            .packets
            .partition_point(|kept| psn::ahead(kept.packet.psn, expected) < ahead);
        if let Some(kept) = store.packets.get_mut(at) {
            if kept.packet.psn == packet.psn {
                if is_same_packet(host, &kept.packet, &packet) {
                    kept.packet.ack_req |= packet.ack_req;
                } else {
                    // One of the two is not of this connection, and the store cannot know which.
                    let gone = store.packets.remove(at).map_or(0, |kept| kept.cost);
                    store.bytes = store.bytes.saturating_sub(gone);
                }
                return;
            }
        }
        let cost = packet.payload.len().saturating_add(PACKET_BYTES);
        if store.bytes.saturating_add(cost) > core.config.reassembly_bytes {
            return;
        }
        let held = match &core.config.reassembly_quota {
            None => None,
            Some(allowance) => match allowance.reserve(cost) {
                Some(held) => Some(held),
                None => return,
            },
        };
        let Some(payload) = to_owned_payload(host, &packet.payload) else {
            return;
        };
        packet.payload = payload;
        core.counters.kept += 1;
        store.bytes = store.bytes.saturating_add(cost);
        store.packets.insert(
            at,
            BufferedPacket {
                packet,
                cost,
                _reservation: held,
            },
        );
    }

    /// Returns the packet that is expected, if it was kept, and discards the packets before it.
    pub(super) fn take_expected(store: &mut Option<Box<Self>>, expected: u32) -> Option<Packet> {
        Self::discard_before(store, expected);
        let kept = store.as_mut()?;
        (kept.packets.front()?.packet.psn == expected).then(|| kept.pop_front())?
    }

    /// Discards the packets before the PSN expected.
    pub(super) fn discard_before(store: &mut Option<Box<Self>>, expected: u32) {
        let Some(kept) = store else {
            return;
        };
        while let Some(first) = kept.packets.front() {
            if !psn::is_behind(first.packet.psn, expected) {
                return;
            }
            kept.pop_front();
        }
        *store = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// True if the packet with this PSN is kept.
    pub(super) fn contains(&self, psn: u32) -> bool {
        self.packets.iter().any(|kept| kept.packet.psn == psn)
    }

    fn pop_front(&mut self) -> Option<Packet> {
        let kept = self.packets.pop_front()?;
        self.bytes = self.bytes.saturating_sub(kept.cost);
        Some(kept.packet)
    }
}

/// Returns the payload in bytes that no other code can change or free. None if it cannot be read.
fn to_owned_payload<H: Host>(host: &mut H, payload: &Payload) -> Option<Payload> {
    let length = payload.len();
    match payload {
        Payload::None => return Some(Payload::None),
        // A small payload is copied out of a large buffer, which would be held for it.
        Payload::Bytes { bytes, .. } if bytes.capacity() as u64 <= 2 * u64::from(length) + 256 => {
            return Some(payload.clone())
        }
        _ => {}
    }
    let mut bytes = vec![0; length as usize];
    host.copy(CopyTarget::Buffer(&mut bytes), payload.source())
        .ok()?;
    Some(Payload::Bytes {
        bytes: Rc::new(bytes),
        offset: 0,
        length,
    })
}

/// True if two packets are equal but for AckReq.
fn is_same_packet<H: Host>(host: &mut H, kept: &Packet, packet: &Packet) -> bool {
    let marks = |p: &Packet| (p.kind, p.first, p.last, p.solicited, p.srqn);
    if marks(kept) != marks(packet) || kept.payload.len() != packet.payload.len() {
        return false;
    }
    match (payload_bytes(&kept.payload), payload_bytes(&packet.payload)) {
        (Some(ours), Some(theirs)) => ours == theirs,
        // The new payload is a reference. If it cannot be read, the packet counts as lost.
        (Some(ours), None) => {
            let theirs = to_owned_payload(host, &packet.payload);
            theirs.is_none_or(|theirs| payload_bytes(&theirs) == Some(ours))
        }
        _ => false,
    }
}

fn payload_bytes(payload: &Payload) -> Option<&[u8]> {
    match payload.source() {
        CopySource::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests ahead of a gap, which a reliable responder on a wire keeps (Documentation/transport.md:
//! an exception to IBTA 9.7.4.1) and executes in order when the gap closes. A requester keeps
//! responses in the same way.

use super::requester::ReferenceRequester;
use super::responder::ReferenceResponder;
use super::tables::near;
use super::{RequestEffects, Surroundings};
use verbena_transport::packet::{Packet, PacketKind, Payload};
use verbena_transport::QpState;

/// Distance in PSNs from which on no packet is kept.
const REACH: u64 = 128;
/// Bytes that a kept packet costs in addition to its payload.
const COST: u64 = 256;

/// True if both are copies of the same packet.
fn same(a: &Packet, b: &Packet) -> bool {
    let bytes = match (&a.payload, &b.payload) {
        (Payload::Bytes { .. }, Payload::Bytes { .. }) => {
            format!("{:?}", a.payload.source()) == format!("{:?}", b.payload.source())
        }
        _ => a.payload.len() == b.payload.len(),
    };
    let marks = |p: &Packet| (p.kind, p.first, p.last, p.solicited);
    marks(a) == marks(b) && bytes
}

/// Adds a packet ahead of a gap to the kept ones if there is room for it. If it differs from a kept
/// packet of the same PSN, neither is kept.
fn insert_packet(
    kept: &mut Vec<(u64, Packet)>,
    room: u64,
    packet: &Packet,
    psn: u64,
    readable: bool,
) {
    if let Some(found) = kept.iter().position(|(at, _)| *at == psn) {
        if !readable {
            return;
        }
        let (_, ours) = &mut kept[found];
        if same(ours, packet) {
            ours.ack_req |= packet.ack_req;
        } else {
            kept.remove(found);
        }
        return;
    }
    let cost = |packet: &Packet| u64::from(packet.payload.len()) + COST;
    let total: u64 = kept.iter().map(|(_, packet)| cost(packet)).sum();
    if total + cost(packet) <= room && readable {
        kept.push((psn, packet.clone()));
    }
}

/// Removes and returns the packet that the engine reports as kept.
fn take(kept: &mut Vec<(u64, Packet)>, packet: &Packet, psn: u64) -> Packet {
    let found = kept.iter().position(|(at, _)| *at == psn);
    let found = found.expect("reference: an executed request never arrived");
    let (_, ours) = kept.remove(found);
    assert!(
        same(&ours, packet) && ours.ack_req == packet.ack_req,
        "reference: what was kept is {ours:?}, not {packet:?}"
    );
    ours
}

impl ReferenceRequester {
    /// Keeps a response that is ahead of a missing one.
    pub(super) fn buffer_response(&mut self, packet: &Packet, psn: u64) {
        let missing = self.missing(psn).expect("there is a gap");
        let reaches = psn - missing < REACH && !self.attr.local_peer && packet.psns == 1;
        if reaches && self.keep_bytes > 0 {
            insert_packet(&mut self.kept, self.keep_bytes, packet, psn, true);
        }
    }

    /// Checks a kept response that the engine takes.
    pub fn on_reassembled(
        &mut self,
        packet: &Packet,
        now: u64,
        stores: &dyn Fn(usize, u64, u64) -> bool,
    ) {
        if self.is_unjudged {
            return;
        }
        let psn = near(self.una, packet.psn);
        assert_eq!(
            self.missing(psn + 1),
            Some(psn),
            "reference: 9.7.5.1: a response is taken out of order"
        );
        let ours = take(&mut self.kept, packet, psn);
        let aeth = match ours.kind {
            PacketKind::ReadResponse(aeth) => aeth,
            PacketKind::AtomicResponse(aeth, _) => Some(aeth),
            _ => None,
        };
        self.on_single_response(&ours, aeth, now, stores);
    }

    /// Checks at the end of a call that no kept response is due.
    pub(super) fn check_kept(&mut self) {
        if !self.runs() {
            self.kept.clear();
        }
        if self.is_unjudged || !self.runs() || self.failure.is_some() {
            return;
        }
        let missing = self.missing(self.hi);
        self.kept
            .retain(|(psn, _)| missing.is_some_and(|missing| *psn >= missing));
        let due = self.kept.iter().find(|(psn, _)| Some(*psn) == missing);
        assert!(
            due.is_none(),
            "reference: a response that was missing is there, and what was kept is not taken: {due:?}"
        );
    }
}

impl ReferenceResponder {
    /// Keeps a request that is ahead of the expected PSN.
    pub(super) fn on_out_of_order(&mut self, packet: &Packet, psn: u64, world: &impl Surroundings) {
        let has = |psn| self.kept.iter().any(|(at, _)| *at == psn);
        if self.closed.is_some() && has(self.expected) && has(psn) {
            self.until = psn + 1;
        } else if !self.gap_or_rnr_reported {
            self.owe_gap_nak();
        }
        let reaches = psn - self.expected < REACH && !self.attr.local_peer;
        let may_keep = self.gap || self.closed.is_some();
        if !may_keep || self.setup.keep_bytes == 0 || !reaches {
            return;
        }
        let readable = world.readable(&packet.payload);
        insert_packet(&mut self.kept, self.setup.keep_bytes, packet, psn, readable);
    }

    /// Notes that a NAK is owed for the gap before the kept requests.
    fn owe_gap_nak(&mut self) {
        (self.gap_or_rnr_reported, self.gap) = (true, true);
        (self.closed, self.until) = (None, 0);
        self.answers.owe_sequence();
    }

    /// Handles the arrival of the expected request, which may close a gap that the peer knows of.
    pub(super) fn on_gap_closed(&mut self, packet: &Packet, psn: u64) {
        let was_told = self.gap && !self.answers.owes_sequence();
        if !was_told || self.kept.is_empty() {
            return;
        }
        if self.asks_alone.is_some() || packet.ack_req && !packet.last {
            self.asks_alone = Some(psn + 1);
        } else if !packet.ack_req {
            self.closed = Some(psn);
        }
    }

    /// Handles the repetition of a request that was executed.
    pub(super) fn on_repeated_request(&mut self, packet: &Packet, psn: u64) {
        if packet.ack_req && self.closed == Some(psn) {
            self.closed = None;
            self.asks_alone = Some(psn + 1);
            self.update_reassembly();
        } else if self
            .asks_alone
            .is_some_and(|next| (next ^ psn) & 0x7fff == 0)
            && !packet.ack_req
        {
            // The peer sends everything again, and not only the packets that it asked for. The engine
            // compares only 15 bits too.
            self.asks_alone = None;
        }
    }

    /// Decides after a request was executed or refused whether the kept requests are due, are ahead
    /// of another gap, or are dropped.
    pub(super) fn update_reassembly(&mut self) {
        let ends = self.refusal.is_some() || self.failed_invalidate.is_some() || self.is_unjudged;
        // 9.7.5.2.8: the requests that follow one without a receive are dropped too.
        if ends || self.gap_or_rnr_reported && !self.gap {
            self.kept.clear();
        }
        let expected = self.expected;
        self.kept.retain(|(psn, _)| *psn >= expected);
        if self.kept.is_empty() {
            (self.closed, self.until) = (None, 0);
        }
        let waits = self.closed.is_some() && expected >= self.until;
        let is_gap = self.kept.iter().all(|(psn, _)| *psn > expected);
        if !self.kept.is_empty() && is_gap && !waits {
            self.owe_gap_nak();
        }
    }

    /// Checks a kept request that the engine executes. `seen` holds the effects of the request
    /// before it.
    pub fn on_reassembled(
        &mut self,
        packet: &Packet,
        seen: &RequestEffects,
        world: &impl Surroundings,
    ) {
        let established = std::mem::take(&mut self.due.established);
        let due = std::mem::take(&mut self.due);
        if self.is_unjudged {
            return;
        }
        assert_eq!(
            *seen, due,
            "reference: what a request does, before one that was kept (left: the engine)"
        );
        self.due.established = established;
        let psn = near(self.expected, packet.psn);
        assert_eq!(
            psn, self.expected,
            "reference: 9.7.4.1: what was kept is executed out of order"
        );
        assert!(
            self.closed.is_none() || psn < self.until,
            "reference: what was kept is executed, and the peer has neither asked for it nor sent it again"
        );
        let ours = take(&mut self.kept, packet, psn);
        self.on_single_request(&ours, world);
    }

    /// Checks at the end of a call that no kept request is due.
    pub(super) fn check_kept(&mut self, state: QpState) {
        if matches!(state, QpState::Err | QpState::Reset) {
            self.kept.clear();
        }
        // A NAK for the expected request is owed or sent, whether or not a copy of the request is
        // kept.
        let waits = self.closed.is_some() && self.expected >= self.until;
        if waits || self.gap_or_rnr_reported && self.gap {
            return;
        }
        let due = self.kept.iter().find(|(psn, _)| *psn == self.expected);
        assert!(
            due.is_none(),
            "reference: a gap is closed, and what was kept is not executed: {due:?}"
        );
    }
}

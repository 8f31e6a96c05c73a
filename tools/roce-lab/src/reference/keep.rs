// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests ahead of a gap, which a reliable responder behind a wire keeps (Documentation/transport.md: an exception to IBTA 9.7.4.1),
//! and executes in order when the gap closes.

use super::responder::Responder;
use super::tables::near;
use super::{Effects, World};
use verbena_roce::packet::{Packet, Payload};
use verbena_roce::QpState;

/// From so many PSNs on nothing is kept.
const REACH: u64 = 128;
/// A packet costs so much beside its payload.
const COST: u64 = 256;

/// Whether a copy is one of the same packet.
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

impl Responder {
    /// A request is ahead of the PSN expected.
    pub(super) fn is_ahead(&mut self, packet: &Packet, psn: u64, world: &impl World) {
        if !self.told {
            (self.told, self.gap) = (true, true);
            self.answers.owe_sequence();
        }
        let reaches = psn - self.expected < REACH && !self.attr.local_peer;
        if !self.gap || self.setup.keep_bytes == 0 || !reaches {
            return;
        }
        let found = self.kept.iter().position(|(at, _)| *at == psn);
        if let Some(found) = found {
            if !world.readable(&packet.payload) {
                return;
            }
            let (_, ours) = &mut self.kept[found];
            if same(ours, packet) {
                ours.ack_req |= packet.ack_req;
            } else {
                self.kept.remove(found);
            }
            return;
        }
        let cost = |packet: &Packet| u64::from(packet.payload.len()) + COST;
        let total: u64 = self.kept.iter().map(|(_, packet)| cost(packet)).sum();
        let fits = total + cost(packet) <= self.setup.keep_bytes;
        if fits && world.readable(&packet.payload) {
            self.kept.push((psn, packet.clone()));
        }
    }

    /// Something was executed, or refused: what is kept is due, is ahead of another gap, or is gone.
    pub(super) fn look_ahead(&mut self) {
        let ends = self.refusal.is_some() || self.dies.is_some() || self.loose;
        // 9.7.5.2.8: without a receive, too, what follows is dropped.
        if ends || self.told && !self.gap {
            self.kept.clear();
        }
        let expected = self.expected;
        self.kept.retain(|(psn, _)| *psn >= expected);
        if !self.kept.is_empty() && self.kept.iter().all(|(psn, _)| *psn > expected) {
            (self.told, self.gap) = (true, true);
            self.answers.owe_sequence();
        }
    }

    /// The engine executes a request that it had kept. `seen`: what the request before it has done.
    pub fn goes_on(&mut self, packet: &Packet, seen: &Effects, world: &impl World) {
        let established = std::mem::take(&mut self.due.established);
        let due = std::mem::take(&mut self.due);
        if self.loose {
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
        let found = self.kept.iter().position(|(at, _)| *at == psn);
        let found = found.expect("reference: a request is executed that never came");
        let (_, ours) = self.kept.remove(found);
        assert!(
            same(&ours, packet) && ours.ack_req == packet.ack_req,
            "reference: what was kept is {ours:?}, not {packet:?}"
        );
        self.single(&ours, world);
    }

    /// The call is over: nothing is left that is due.
    pub(super) fn check_kept(&mut self, state: QpState) {
        if matches!(state, QpState::Err | QpState::Reset) {
            self.kept.clear();
        }
        let due = self.kept.iter().find(|(psn, _)| *psn == self.expected);
        assert!(
            due.is_none(),
            "reference: a gap is closed, and what was kept is not executed: {due:?}"
        );
    }
}

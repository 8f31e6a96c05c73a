// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Congestion: what the links have marked, and the notifications (CNPs) that have to follow (annex A17.9).

use super::lab::Lab;
use verbena_roce::packet::{Kind, Packet};
use verbena_roce::QpType;

/// Between two CNPs of a queue pair, in nanoseconds.
const DISTANCE_NS: u64 = 50_000;

/// The CNPs of one end.
#[derive(Clone, Copy, Debug)]
pub struct Cnps {
    /// It answers what is marked.
    pub controls: bool,
    /// When it sent the last one.
    last: Option<u64>,
    /// A request that was marked is being handled: it may send one now.
    may: bool,
    /// And it has to.
    must: bool,
}

impl Cnps {
    /// None was sent.
    pub fn new(controls: bool) -> Self {
        Self {
            controls,
            last: None,
            may: false,
            must: false,
        }
    }
}

impl Lab {
    /// A packet is about to be handed to the engine.
    pub(super) fn expect_cnp(&mut self, me: usize, packet: &Packet) {
        let now = self.now;
        let end = &mut self.ends[me];
        let is_marked = packet.marked && packet.kind.is_request();
        let controls = end.cnps.controls && end.is_modern() && end.qp_type == QpType::Rc;
        let is_far = end.cnps.last.is_none_or(|last| now >= last + DISTANCE_NS);
        end.cnps.may = is_marked && controls && is_far;
        // A forged one may not get as far.
        end.cnps.must = end.cnps.may && end.strict && end.hears();
    }

    /// Judges a CNP that was sent.
    pub(super) fn observe_cnp(&mut self, me: usize, packet: &Packet) {
        let now = self.now;
        let end = &mut self.ends[me];
        assert!(
            end.cnps.may,
            "a CNP for nothing that was marked, or too soon"
        );
        assert_eq!((packet.psn, packet.psns, packet.marked), (0, 1, false));
        assert_eq!(packet.dst_qpn, end.attr.dest_qpn);
        assert!(packet.payload.is_empty() && !packet.ack_req && !packet.solicited);
        (end.cnps.may, end.cnps.must, end.cnps.last) = (false, false, Some(now));
    }

    /// The packet was handled. A CNP for an end that has failed with its CQ meanwhile is owed to nobody.
    pub(super) fn after_marked(&mut self, me: usize) {
        let end = &mut self.ends[me];
        let is_owed = end.cnps.must && end.hears() && !self.queues[end.queue].dead;
        assert!(!is_owed, "what was marked is answered by no CNP");
        (end.cnps.may, end.cnps.must) = (false, false);
    }
}

/// Whether it is a CNP.
pub fn is_cnp(packet: &Packet) -> bool {
    packet.kind == Kind::Cnp
}

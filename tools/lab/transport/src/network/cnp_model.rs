// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Congestion: the marks of the links, and the notifications (CNPs) that have to follow (annex
//! A17.9).

use super::model::NetworkModel;
use verbena_transport::packet::{Packet, PacketKind};
use verbena_transport::QpType;

/// Shortest time between two CNPs of a queue pair, in nanoseconds.
const DISTANCE_NS: u64 = 50_000;

/// The CNPs of one end.
#[derive(Clone, Copy, Debug)]
pub struct CnpModel {
    /// True if the end answers marked packets.
    pub controls: bool,
    /// Time in ns at which the end sent its last CNP.
    last_cnp_ns: Option<u64>,
    /// True if a marked request is being handled, so that the end may send a CNP now.
    may: bool,
    /// True if the end also has to send that CNP.
    must: bool,
}

impl CnpModel {
    /// Returns the state of an end that has sent no CNP.
    pub fn new(controls: bool) -> Self {
        Self {
            controls,
            last_cnp_ns: None,
            may: false,
            must: false,
        }
    }
}

impl NetworkModel {
    /// Decides whether a packet that is about to be handed to the engine allows or requires a CNP.
    pub(super) fn expect_cnp(&mut self, me: usize, packet: &Packet) {
        let now = self.now_ns;
        let end = &mut self.qps[me];
        let is_marked = packet.marked && packet.kind.is_request();
        let controls = end.cnps.controls && end.recovers_early() && end.qp_type == QpType::Rc;
        let is_far = end
            .cnps
            .last_cnp_ns
            .is_none_or(|last| now >= last + DISTANCE_NS);
        end.cnps.may = is_marked && controls && is_far;
        // The engine may drop a forged packet before it looks at the mark.
        end.cnps.must = end.cnps.may && end.strict && end.processes_requests();
    }

    /// Judges a CNP that was sent.
    pub(super) fn observe_cnp(&mut self, me: usize, packet: &Packet) {
        let now = self.now_ns;
        let end = &mut self.qps[me];
        assert!(
            end.cnps.may,
            "a CNP without a marked packet, or before the interval has passed"
        );
        assert_eq!((packet.psn, packet.psns, packet.marked), (0, 1, false));
        assert_eq!(packet.dst_qpn, end.attr.dest_qpn);
        assert!(packet.payload.is_empty() && !packet.ack_req && !packet.solicited);
        (end.cnps.may, end.cnps.must, end.cnps.last_cnp_ns) = (false, false, Some(now));
    }

    /// Checks after a packet was handled that no CNP is missing. An end that has failed with its CQ
    /// meanwhile owes none.
    pub(super) fn check_cnp_sent(&mut self, me: usize) {
        let end = &mut self.qps[me];
        let is_owed =
            end.cnps.must && end.processes_requests() && !self.queues[end.queue].is_failed;
        assert!(!is_owed, "no CNP answers a marked packet");
        (end.cnps.may, end.cnps.must) = (false, false);
    }
}

/// True if the packet is a CNP.
pub fn is_cnp(packet: &Packet) -> bool {
    packet.kind == PacketKind::Cnp
}

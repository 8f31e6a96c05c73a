// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Congestion notifications (annex A17.9): the sender of a packet learns that a router has marked
//! it.
//!
//! A CNP answers each marked request, whatever else happens to the request; one CNP in
//! [`CNP_INTERVAL_NS`] is enough. A marked response informs the requester itself that it has
//! requested too much. A marked acknowledgement has no effect: there is hardly less that could be
//! sent.

use super::{Core, QpState};
use crate::counters::CongestionCounters;
use crate::host::Host;
use crate::packet::{Packet, PacketKind};
use alloc::boxed::Box;

/// Minimum time between two CNPs of one queue pair, in nanoseconds.
pub const CNP_INTERVAL_NS: u64 = 50_000;

/// Answers and counts marked packets. A queue pair without congestion has no memory for this.
#[derive(Debug, Default)]
pub(super) struct CnpGenerator(Option<Box<CnpState>>);

/// State of a queue pair that has met congestion.
#[derive(Debug, Default)]
struct CnpState {
    /// Time before which no CNP is sent.
    next_cnp_ns: u64,
    counters: CongestionCounters,
}

impl CnpGenerator {
    fn state(&mut self) -> &mut CnpState {
        self.0.get_or_insert_with(Box::default)
    }

    /// Returns the counters; `spurious` is the number of spurious retransmissions since RESET.
    pub(super) fn counters(&self, spurious: u64) -> CongestionCounters {
        let met = self.0.as_ref();
        let mut counters = met.map_or_else(Default::default, |met| met.counters);
        counters.spurious_retransmits += spurious;
        counters
    }

    /// Keeps the count of spurious retransmissions of a path that RESET is about to forget.
    pub(super) fn add_spurious(&mut self, count: u64) {
        if count > 0 {
            self.state().counters.spurious_retransmits += count;
        }
    }

    /// Counts a CNP; `is_heeded` is true if congestion control acts on it.
    pub(super) fn on_cnp(&mut self, is_heeded: bool) {
        let counters = &mut self.state().counters;
        if is_heeded {
            counters.rp_cnp_handled += 1;
        } else {
            counters.rp_cnp_ignored += 1;
        }
    }

    /// Counts a packet that a router has marked, and sends a CNP if it is a request.
    pub(super) fn on_marked_packet<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        now: u64,
    ) {
        let met = self.state();
        met.counters.np_ecn_marked_roce_packets += u64::from(packet.psns);
        let hears = matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !core.controls_congestion()
            || !packet.kind.is_request()
            || !hears
            || now < met.next_cnp_ns
        {
            return;
        }
        met.next_cnp_ns = now.saturating_add(CNP_INTERVAL_NS);
        met.counters.np_cnp_sent += 1;
        let cnp = core.packet(PacketKind::Cnp, 0, 1);
        core.transmit(host, cnp);
    }
}

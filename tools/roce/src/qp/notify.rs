// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Congestion notifications (annex A17.9): what routers have marked is told to who has sent it.
//!
//! A request that is marked is answered by a CNP, whatever else becomes of it; one in [`CNP_INTERVAL_NS`] is enough. A response that is
//! marked tells the requester itself that it has asked for too much. An acknowledgement that is marked tells nothing: there
//! is hardly less that could be sent.

use super::{Core, QpState};
use crate::counters::CongestionCounters;
use crate::host::Host;
use crate::packet::{Kind, Packet};
use alloc::boxed::Box;

/// Between two CNPs of one queue pair, in nanoseconds.
pub const CNP_INTERVAL_NS: u64 = 50_000;

/// Answers what is marked, and counts. A queue pair that never met congestion has nothing of it.
#[derive(Debug, Default)]
pub(super) struct Notifier(Option<Box<Met>>);

/// Congestion was met.
#[derive(Debug, Default)]
struct Met {
    /// No CNP before this time.
    next: u64,
    counters: CongestionCounters,
}

impl Notifier {
    fn met(&mut self) -> &mut Met {
        self.0.get_or_insert_with(Box::default)
    }

    /// `spurious`: the spurious retransmissions since RESET.
    pub(super) fn counters(&self, spurious: u64) -> CongestionCounters {
        let met = self.0.as_ref();
        let mut counters = met.map_or_else(Default::default, |met| met.counters);
        counters.spurious_retransmits += spurious;
        counters
    }

    /// Keeps the count of spurious retransmissions of a path that RESET is about to forget.
    pub(super) fn keep_spurious(&mut self, count: u64) {
        if count > 0 {
            self.met().counters.spurious_retransmits += count;
        }
    }

    /// A CNP came.
    pub(super) fn note_cnp(&mut self, is_heeded: bool) {
        let counters = &mut self.met().counters;
        if is_heeded {
            counters.rp_cnp_handled += 1;
        } else {
            counters.rp_cnp_ignored += 1;
        }
    }

    /// A packet came that a router has marked.
    pub(super) fn note_marked<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        now: u64,
    ) {
        let met = self.met();
        met.counters.np_ecn_marked_roce_packets += u64::from(packet.psns);
        let hears = matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !core.controls_congestion() || !packet.kind.is_request() || !hears || now < met.next {
            return;
        }
        met.next = now.saturating_add(CNP_INTERVAL_NS);
        met.counters.np_cnp_sent += 1;
        let cnp = core.packet(Kind::Cnp, 0, 1);
        core.transmit(host, cnp);
    }
}

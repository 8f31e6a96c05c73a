// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The path to a peer over a wire, as the requester observes it: the round trip, whether the peer
//! keeps packets that arrive ahead of a gap, and retransmissions that are not answered yet. Queue
//! pairs of one device have no path.

use super::congestion_window::CongestionWindow;
use crate::packet::{Packet, PacketKind};
use crate::psn;
use crate::qp::QpConfig;

/// Limit of the backoff: the timeout grows up to 2 to this power times its shortest value.
const MAX_BACKOFF: u32 = 6;

/// Knowledge of whether the peer keeps requests that arrive ahead of a gap, as this engine does.
/// The specification's responder drops them. The answers of the peer show which kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerReassembly {
    Unknown,
    No,
    Yes,
}

/// A retransmission that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Retransmission {
    /// PSN after its last one.
    end_psn: u32,
    /// Number of packets. None: everything that is not acknowledged.
    count: Option<u32>,
    /// True if the peer has reported the gap. Then its answer shows whether it has kept later
    /// packets.
    gap_reported: bool,
    /// True if responses answer it, not acknowledgements.
    awaits_response: bool,
    /// True for the second retransmission, which was made because nothing else could be sent.
    is_second: bool,
    /// True if it is the end of a message, for which two acknowledgements may arrive.
    ends_message: bool,
}

/// A retransmission of a few packets alone that is to be made.
#[derive(Clone, Copy, Debug)]
struct PendingRetransmit {
    /// Number of packets, from the oldest on.
    count: u32,
    /// True if the peer has reported the gap.
    gap_reported: bool,
    /// True for the second retransmission.
    is_second: bool,
}

/// State of the path to a peer.
#[derive(Debug)]
pub(super) struct PathState {
    /// Smoothed round trip and its mean deviation, in nanoseconds; 0 if none was measured.
    smoothed_rtt_ns: u64,
    rtt_deviation_ns: u64,
    /// PSN whose round trip is measured, and the time when it was sent. Only one is measured at a
    /// time.
    rtt_sample: Option<(u32, u64)>,
    /// True if an earlier packet was retransmitted, so that the answer to `rtt_sample` is late.
    is_sample_delayed: bool,
    /// Upper bound of the round trip in nanoseconds, until one is measured.
    rtt_bound_ns: Option<u64>,
    peer_reassembly: PeerReassembly,
    retransmission: Option<Retransmission>,
    pending: Option<PendingRetransmit>,
    /// Set if everything unacknowledged is to be retransmitted and nothing of it was yet; true if
    /// the peer has reported a gap.
    pending_go_back: Option<bool>,
    /// True if no other packet is sent before the answer.
    awaits_answer: bool,
    /// Set if the oldest packet was retransmitted because its answer was late; true if something
    /// was acknowledged since.
    probe_progress: Option<bool>,
    /// Until this time, an answer to nothing is the second acknowledgement of the end of a message.
    second_ack_until_ns: u64,
    /// Time within which that acknowledgement arrives: much less than any retransmission timeout.
    second_ack_window_ns: u64,
    /// Number of spurious retransmissions in a row. Each of them doubles the timeout; a measured
    /// round trip resets the number.
    backoff: u32,
    /// Packets that a timer has retransmitted and that have no second answer. A path that keeps the
    /// order of packets delivers that answer before the answer to any packet sent later.
    unconfirmed_probes: u32,
    /// Packets that a timer has retransmitted although the peer answers their first copy too.
    spurious: u64,
    congestion: Option<CongestionWindow>,
}

impl PathState {
    /// Creates a path; `first` is the first PSN.
    pub(super) fn new(config: &QpConfig, first: u32) -> Self {
        Self {
            smoothed_rtt_ns: 0,
            rtt_deviation_ns: 0,
            rtt_sample: None,
            is_sample_delayed: false,
            rtt_bound_ns: None,
            peer_reassembly: PeerReassembly::Unknown,
            retransmission: None,
            pending: None,
            pending_go_back: None,
            awaits_answer: false,
            probe_progress: None,
            second_ack_until_ns: 0,
            second_ack_window_ns: config.min_probe_ns / 2,
            backoff: 0,
            unconfirmed_probes: 0,
            spurious: 0,
            congestion: config
                .congestion_control
                .then(|| CongestionWindow::new(config.wire_window, first)),
        }
    }

    /// Returns the smoothed round trip and its mean deviation in nanoseconds, if one was measured.
    pub(super) fn round_trip_ns(&self) -> Option<(u64, u64)> {
        (self.smoothed_rtt_ns > 0).then_some((self.smoothed_rtt_ns, self.rtt_deviation_ns))
    }

    /// Returns the number of spurious retransmissions on this path.
    pub(super) fn spurious(&self) -> u64 {
        self.spurious
    }

    /// Returns the time in nanoseconds to wait for an answer before a retransmission: the smoothed
    /// round trip and four mean deviations, or at most `unknown` if no round trip was measured. The
    /// time is at least `least`, and grows with the backoff.
    pub(super) fn retransmission_timeout_ns(&self, unknown: u64, least: u64) -> u64 {
        let timeout_ns = if self.smoothed_rtt_ns == 0 {
            self.rtt_bound_ns
                .map_or(unknown, |bound| bound.min(unknown))
        } else {
            let longest = self.rtt_deviation_ns.saturating_mul(4);
            self.smoothed_rtt_ns.saturating_add(longest)
        };
        timeout_ns.max(least) << self.backoff
    }

    /// Notes that the oldest packet is retransmitted because its answer is late.
    pub(super) fn on_probe(&mut self) {
        if self.probe_progress == Some(true) {
            self.backoff = 0;
        }
        // A retransmission for a reported gap may be answered twice too, although it was needed.
        let gap_reported = self
            .retransmission
            .is_some_and(|retransmission| retransmission.gap_reported);
        self.probe_progress = (!gap_reported).then_some(false);
    }

    /// Notes a second answer: a retransmission was spurious, because its first copy was not lost.
    /// The exception is the second acknowledgement that a responder like this one sends for a copy
    /// of the end of a message.
    pub(super) fn on_duplicate_answer(&mut self, now: u64) {
        if now < core::mem::take(&mut self.second_ack_until_ns) {
            return;
        }
        if self.probe_progress.take().is_some() && self.backoff < MAX_BACKOFF {
            self.backoff += 1;
        }
        // The packets after it need no retransmission either.
        self.retransmission = self
            .retransmission
            .filter(|retransmission| retransmission.gap_reported);
        self.pending = self.pending.filter(|pending| pending.gap_reported);
        if let Some(left) = self.unconfirmed_probes.checked_sub(1) {
            self.unconfirmed_probes = left;
            self.spurious += 1;
        }
    }

    /// Notes a packet that is about to be sent in its turn. The first packet of a retransmission
    /// asks for an answer. `end` is the PSN after its last one; for a READ, after its responses.
    pub(super) fn on_send(&mut self, packet: &mut Packet, end: u32, is_new: bool, now: u64) {
        if let Some(congestion) = &mut self.congestion {
            congestion.on_send(packet.psn, end, now);
        }
        if let Some(gap_reported) = self.pending_go_back.take() {
            packet.ack_req = true;
            self.set_retransmission(packet, end, None, gap_reported);
        }
        self.start_rtt_sample(packet, is_new, now);
    }

    /// Begins to measure a round trip with a new packet that asks for an answer, if none is
    /// measured.
    pub(super) fn start_rtt_sample(&mut self, packet: &Packet, is_new: bool, now: u64) {
        if is_new && packet.ack_req && self.rtt_sample.is_none() {
            // In a super-packet, the last packet asks.
            let asks = psn::add(packet.psn, packet.psns.saturating_sub(1));
            self.rtt_sample = Some((asks, now));
            self.is_sample_delayed = false;
        }
    }

    fn set_retransmission(
        &mut self,
        packet: &Packet,
        end: u32,
        count: Option<u32>,
        gap_reported: bool,
    ) {
        self.retransmission = Some(Retransmission {
            end_psn: end,
            count,
            gap_reported,
            awaits_response: !matches!(packet.kind, PacketKind::Send(_) | PacketKind::Write { .. }),
            is_second: self.pending.is_some_and(|pending| pending.is_second),
            ends_message: packet.last,
        });
    }

    /// Notes that everything before `una` is acknowledged.
    pub(super) fn on_ack(&mut self, una: u32, now: u64) {
        self.pending = None;
        self.awaits_answer = false;
        self.probe_progress = self.probe_progress.map(|_| true);
        if self.retransmission.is_some_and(|retransmission| {
            retransmission.ends_message && !retransmission.awaits_response
        }) {
            self.second_ack_until_ns = now.saturating_add(self.second_ack_window_ns);
        }
        self.end_rtt_sample(una, now);
        if let Some(congestion) = &mut self.congestion {
            congestion.on_ack(una);
        }
    }

    /// Ends the measured round trip if its packet is acknowledged.
    fn end_rtt_sample(&mut self, una: u32, now: u64) {
        let Some((psn, since)) = self.rtt_sample else {
            return;
        };
        if psn::is_behind(psn, una) {
            self.rtt_sample = None;
            let trip = now.saturating_sub(since).max(1);
            if self.is_sample_delayed {
                self.rtt_bound_ns = Some(self.rtt_bound_ns.map_or(trip, |bound| bound.min(trip)));
            } else {
                self.update_rtt(trip);
                (self.probe_progress, self.backoff, self.unconfirmed_probes) = (None, 0, 0);
                if let Some(congestion) = &mut self.congestion {
                    congestion.on_rtt_sample(trip, self.rtt_deviation_ns, psn, now);
                }
            }
        }
    }

    /// Adds one round trip, with the weights of TCP (RFC 6298).
    fn update_rtt(&mut self, trip: u64) {
        if self.smoothed_rtt_ns == 0 {
            (self.smoothed_rtt_ns, self.rtt_deviation_ns) = (trip, trip / 2);
            return;
        }
        let off = self.smoothed_rtt_ns.abs_diff(trip);
        self.rtt_deviation_ns = self.rtt_deviation_ns.saturating_mul(3).saturating_add(off) / 4;
        self.smoothed_rtt_ns =
            (self.smoothed_rtt_ns.saturating_mul(7).saturating_add(trip) / 8).max(1);
    }

    /// Makes the retransmission of the oldest packet due. Returns false if all packets sent after
    /// it have to follow, since the peer has reported a gap and keeps nothing.
    pub(super) fn request_retransmit(&mut self, gap_reported: bool) -> bool {
        if gap_reported && self.peer_reassembly == PeerReassembly::No {
            return false;
        }
        self.pending = Some(PendingRetransmit {
            count: 1,
            gap_reported,
            is_second: false,
        });
        true
    }

    /// Returns the number of packets that are to be retransmitted alone.
    pub(super) fn pending_packets(&self) -> u32 {
        self.pending.map_or(0, |pending| pending.count)
    }

    /// Repeats the retransmission of a packet that the peer has reported missing, if nothing else
    /// can be sent now. If the first retransmission were lost, only the probe timer would detect
    /// it.
    pub(super) fn repeat_retransmit(&mut self) {
        let Some(retransmission) = self.retransmission else {
            return;
        };
        let is_one = retransmission.count == Some(1)
            && !retransmission.is_second
            && !retransmission.awaits_response;
        if is_one && retransmission.gap_reported && self.peer_reassembly == PeerReassembly::Yes {
            self.pending = Some(PendingRetransmit {
                count: 1,
                gap_reported: true,
                is_second: true,
            });
        }
    }

    /// Returns the maximum number of packets in flight, of `most` that are configured.
    pub(super) fn window(&self, most: u32) -> u32 {
        self.congestion
            .as_ref()
            .map_or(most, |congestion| congestion.packets().min(most))
    }

    /// True if nothing may be sent now: an answer has to arrive first, or congestion control
    /// pauses.
    pub(super) fn is_blocked(&mut self, now: u64) -> bool {
        let congestion = self.congestion.as_mut();
        self.awaits_answer || congestion.is_some_and(|congestion| congestion.is_paced(now))
    }

    /// Returns the end of a pause that held packets back since [`resume`](Self::resume).
    pub(super) fn resumes_at_ns(&self) -> Option<u64> {
        self.congestion.as_ref()?.resumes_at_ns()
    }

    /// Forgets a pause that held packets back, because sending is tried again.
    pub(super) fn clear_pacing(&mut self) {
        if let Some(congestion) = &mut self.congestion {
            congestion.clear_pacing();
        }
    }

    /// Handles a congestion notification: a router has marked requests or responses of this
    /// requester. False if congestion control is off.
    pub(super) fn on_cnp(&mut self, now: u64) -> bool {
        if let Some(congestion) = &mut self.congestion {
            congestion.on_cnp(now);
        }
        self.congestion.is_some()
    }

    /// Notes a packet that is retransmitted alone, as number `count`. Unless the peer is known to
    /// keep packets, nothing else is sent before the answer.
    pub(super) fn on_retransmit(&mut self, packet: &mut Packet, end: u32, count: u32) {
        packet.ack_req = true;
        // Later packets are acknowledged late. Before the first measurement, such a trip is an
        // upper bound.
        self.is_sample_delayed = true;
        let is_timed = self.rtt_sample.is_some_and(|(psn, _)| psn == packet.psn);
        if is_timed || self.smoothed_rtt_ns > 0 {
            self.rtt_sample = None;
        }
        self.awaits_answer = self.peer_reassembly != PeerReassembly::Yes;
        let gap_reported = self.pending.is_some_and(|pending| pending.gap_reported);
        self.probe_progress = self.probe_progress.filter(|_| !gap_reported);
        self.unconfirmed_probes = self
            .unconfirmed_probes
            .saturating_add(u32::from(!gap_reported));
        self.set_retransmission(packet, end, Some(count), gap_reported);
    }

    /// Notes that no further packet is to be retransmitted alone.
    pub(super) fn clear_pending(&mut self) {
        self.pending = None;
    }

    /// Notes that everything unacknowledged is to be retransmitted; `gap_reported` is true for a gap that
    /// the peer has reported. The round trip is not measured, because an answer may be for either
    /// copy.
    pub(super) fn on_go_back(&mut self, gap_reported: bool) {
        self.rtt_sample = None;
        self.pending = None;
        self.awaits_answer = false;
        self.retransmission = None;
        self.probe_progress = None;
        self.pending_go_back = Some(gap_reported);
    }

    /// Handles an acknowledgement; `asks` is true for a NAK, which itself says where to go on. If
    /// no more than the retransmission is acknowledged, the packets sent after it have not arrived.
    /// Returns true if all of them are to be retransmitted. To a peer that may keep packets they go
    /// in growing parts, since that peer may have the rest.
    pub(super) fn on_answer(&mut self, una: u32, asks: bool) -> bool {
        let Some(retransmission) = self.retransmission else {
            return false;
        };
        if psn::is_behind(una, retransmission.end_psn) {
            // Earlier packets of the retransmission, or some of its responses, are answered.
            if asks {
                self.retransmission = None;
            }
            return false;
        }
        self.retransmission = None;
        let exact = una == retransmission.end_psn;
        if !exact && retransmission.gap_reported {
            self.peer_reassembly = PeerReassembly::Yes;
        }
        if !exact || asks {
            return false;
        }
        if retransmission.gap_reported && !retransmission.awaits_response {
            self.peer_reassembly = match self.peer_reassembly {
                PeerReassembly::Yes => PeerReassembly::Unknown,
                _ => PeerReassembly::No,
            };
        }
        let Some(count) = retransmission.count else {
            return false;
        };
        if self.peer_reassembly == PeerReassembly::No {
            return true;
        }
        if retransmission.awaits_response && self.peer_reassembly == PeerReassembly::Yes {
            // It is not known whether more responses arrive.
            return false;
        }
        self.pending = Some(PendingRetransmit {
            count: count.saturating_mul(2),
            gap_reported: false,
            is_second: false,
        });
        false
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The path to a peer over a wire, as the requester observes it: the round trip, whether the peer
//! keeps packets that arrive ahead of a gap, and retransmissions that are not answered yet. Queue
//! pairs of one device have no path.

use super::congestion::Congestion;
use crate::packet::{Kind, Packet};
use crate::psn;
use crate::qp::Config;

/// Limit of the backoff: the timeout grows up to 2 to this power times its shortest value.
const MOST_IN_VAIN: u32 = 6;

/// Knowledge of whether the peer keeps requests that arrive ahead of a gap, as this engine does.
/// The specification's responder drops them. The answers of the peer show which kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Unknown,
    No,
    Yes,
}

/// A retransmission that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// PSN after its last one.
    end: u32,
    /// Number of packets. None: everything that is not acknowledged.
    count: Option<u32>,
    /// True if the peer has reported the gap. Then its answer shows whether it has kept later
    /// packets.
    told: bool,
    /// True if responses answer it, not acknowledgements.
    responds: bool,
    /// True for the second retransmission, which was made because nothing else could be sent.
    twice: bool,
    /// True if it is the end of a message, for which two acknowledgements may arrive.
    ends: bool,
}

/// A retransmission of a few packets alone that is to be made.
#[derive(Clone, Copy, Debug)]
struct Due {
    /// Number of packets, from the oldest on.
    count: u32,
    /// True if the peer has reported the gap.
    told: bool,
    /// True for the second retransmission.
    twice: bool,
}

/// State of the path to a peer.
#[derive(Debug)]
pub(super) struct Path {
    /// Smoothed round trip and its mean deviation, in nanoseconds; 0 if none was measured.
    smoothed: u64,
    deviation: u64,
    /// PSN whose round trip is measured, and the time when it was sent. Only one is measured at a
    /// time.
    timed: Option<(u32, u64)>,
    /// True if an earlier packet was retransmitted, so that the answer to `timed` is late.
    is_late: bool,
    /// Upper bound of the round trip in nanoseconds, until one is measured.
    bound: Option<u64>,
    keeps: Keeps,
    again: Option<Again>,
    due: Option<Due>,
    /// Set if everything unacknowledged is to be retransmitted and nothing of it was yet; true if
    /// the peer has reported a gap.
    back: Option<bool>,
    /// True if no other packet is sent before the answer.
    holds: bool,
    /// Set if the oldest packet was retransmitted because its answer was late; true if something
    /// was acknowledged since.
    probed: Option<bool>,
    /// Until this time, an answer to nothing is the second acknowledgement of the end of a message.
    second: u64,
    /// Time within which that acknowledgement arrives: much less than any retransmission timeout.
    soon: u64,
    /// Number of spurious retransmissions in a row. Each of them doubles the timeout; a measured
    /// round trip resets the number.
    in_vain: u32,
    /// Packets that a timer has retransmitted and that have no second answer. A path that keeps the
    /// order of packets delivers that answer before the answer to any packet sent later.
    unasked: u32,
    /// Packets that a timer has retransmitted although the peer answers their first copy too.
    spurious: u64,
    congestion: Option<Congestion>,
}

impl Path {
    /// Creates a path; `first` is the first PSN.
    pub(super) fn new(config: &Config, first: u32) -> Self {
        Self {
            smoothed: 0,
            deviation: 0,
            timed: None,
            is_late: false,
            bound: None,
            keeps: Keeps::Unknown,
            again: None,
            due: None,
            back: None,
            holds: false,
            probed: None,
            second: 0,
            soon: config.min_probe_ns / 2,
            in_vain: 0,
            unasked: 0,
            spurious: 0,
            congestion: config
                .congestion_control
                .then(|| Congestion::new(config.wire_window, first)),
        }
    }

    /// Returns the smoothed round trip and its mean deviation in nanoseconds, if one was measured.
    pub(super) fn round_trip(&self) -> Option<(u64, u64)> {
        (self.smoothed > 0).then_some((self.smoothed, self.deviation))
    }

    /// Returns the number of spurious retransmissions on this path.
    pub(super) fn spurious(&self) -> u64 {
        self.spurious
    }

    /// Returns the time in nanoseconds to wait for an answer before a retransmission: the smoothed
    /// round trip and four mean deviations, or at most `unknown` if no round trip was measured. The
    /// time is at least `least`, and grows with the backoff.
    pub(super) fn patience(&self, unknown: u64, least: u64) -> u64 {
        let patience = if self.smoothed == 0 {
            self.bound.map_or(unknown, |bound| bound.min(unknown))
        } else {
            let longest = self.deviation.saturating_mul(4);
            self.smoothed.saturating_add(longest)
        };
        patience.max(least) << self.in_vain
    }

    /// Notes that the oldest packet is retransmitted because its answer is late.
    pub(super) fn probes(&mut self) {
        if self.probed == Some(true) {
            self.in_vain = 0;
        }
        // A retransmission for a reported gap may be answered twice too, although it was needed.
        let told = self.again.is_some_and(|again| again.told);
        self.probed = (!told).then_some(false);
    }

    /// Notes a second answer: a retransmission was spurious, because its first copy was not lost.
    /// The exception is the second acknowledgement that a responder like this one sends for a copy
    /// of the end of a message.
    pub(super) fn answered_twice(&mut self, now: u64) {
        if now < core::mem::take(&mut self.second) {
            return;
        }
        if self.probed.take().is_some() && self.in_vain < MOST_IN_VAIN {
            self.in_vain += 1;
        }
        // The packets after it need no retransmission either.
        self.again = self.again.filter(|again| again.told);
        self.due = self.due.filter(|due| due.told);
        if let Some(left) = self.unasked.checked_sub(1) {
            self.unasked = left;
            self.spurious += 1;
        }
    }

    /// Notes a packet that is about to be sent in its turn. The first packet of a retransmission
    /// asks for an answer. `end` is the PSN after its last one; for a READ, after its responses.
    pub(super) fn sends(&mut self, packet: &mut Packet, end: u32, is_new: bool, now: u64) {
        if let Some(congestion) = &mut self.congestion {
            congestion.sent(packet.psn, end, now);
        }
        if let Some(told) = self.back.take() {
            packet.ack_req = true;
            self.note_again(packet, end, None, told);
        }
        self.times(packet, is_new, now);
    }

    /// Begins to measure a round trip with a new packet that asks for an answer, if none is
    /// measured.
    pub(super) fn times(&mut self, packet: &Packet, is_new: bool, now: u64) {
        if is_new && packet.ack_req && self.timed.is_none() {
            // In a super-packet, the last packet asks.
            let asks = psn::add(packet.psn, packet.psns.saturating_sub(1));
            self.timed = Some((asks, now));
            self.is_late = false;
        }
    }

    fn note_again(&mut self, packet: &Packet, end: u32, count: Option<u32>, told: bool) {
        self.again = Some(Again {
            end,
            count,
            told,
            responds: !matches!(packet.kind, Kind::Send(_) | Kind::Write { .. }),
            twice: self.due.is_some_and(|due| due.twice),
            ends: packet.last,
        });
    }

    /// Notes that everything before `una` is acknowledged.
    pub(super) fn acknowledged(&mut self, una: u32, now: u64) {
        self.due = None;
        self.holds = false;
        self.probed = self.probed.map(|_| true);
        if self
            .again
            .is_some_and(|again| again.ends && !again.responds)
        {
            self.second = now.saturating_add(self.soon);
        }
        self.end_trip(una, now);
        if let Some(congestion) = &mut self.congestion {
            congestion.acknowledged(una);
        }
    }

    /// Ends the measured round trip if its packet is acknowledged.
    fn end_trip(&mut self, una: u32, now: u64) {
        let Some((psn, since)) = self.timed else {
            return;
        };
        if psn::is_behind(psn, una) {
            self.timed = None;
            let trip = now.saturating_sub(since).max(1);
            if self.is_late {
                self.bound = Some(self.bound.map_or(trip, |bound| bound.min(trip)));
            } else {
                self.measured(trip);
                (self.probed, self.in_vain, self.unasked) = (None, 0, 0);
                if let Some(congestion) = &mut self.congestion {
                    congestion.measured(trip, self.deviation, psn, now);
                }
            }
        }
    }

    /// Adds one round trip, with the weights of TCP (RFC 6298).
    fn measured(&mut self, trip: u64) {
        if self.smoothed == 0 {
            (self.smoothed, self.deviation) = (trip, trip / 2);
            return;
        }
        let off = self.smoothed.abs_diff(trip);
        self.deviation = self.deviation.saturating_mul(3).saturating_add(off) / 4;
        self.smoothed = (self.smoothed.saturating_mul(7).saturating_add(trip) / 8).max(1);
    }

    /// Makes the retransmission of the oldest packet due. Returns false if all packets sent after
    /// it have to follow, since the peer has reported a gap and keeps nothing.
    pub(super) fn ask_alone(&mut self, told: bool) -> bool {
        if told && self.keeps == Keeps::No {
            return false;
        }
        self.due = Some(Due {
            count: 1,
            told,
            twice: false,
        });
        true
    }

    /// Returns the number of packets that are to be retransmitted alone.
    pub(super) fn due(&self) -> u32 {
        self.due.map_or(0, |due| due.count)
    }

    /// Repeats the retransmission of a packet that the peer has reported missing, if nothing else
    /// can be sent now. If the first retransmission were lost, only the probe timer would detect
    /// it.
    pub(super) fn ask_twice(&mut self) {
        let Some(again) = self.again else {
            return;
        };
        let is_one = again.count == Some(1) && !again.twice && !again.responds;
        if is_one && again.told && self.keeps == Keeps::Yes {
            self.due = Some(Due {
                count: 1,
                told: true,
                twice: true,
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
    pub(super) fn holds(&mut self, now: u64) -> bool {
        let congestion = self.congestion.as_mut();
        self.holds || congestion.is_some_and(|congestion| congestion.pauses(now))
    }

    /// Returns the end of a pause that held packets back since [`resume`](Self::resume).
    pub(super) fn resumes_at(&self) -> Option<u64> {
        self.congestion.as_ref()?.resumes_at()
    }

    /// Forgets a pause that held packets back, because sending is tried again.
    pub(super) fn resume(&mut self) {
        if let Some(congestion) = &mut self.congestion {
            congestion.resume();
        }
    }

    /// Handles a congestion notification: a router has marked requests or responses of this
    /// requester. False if congestion control is off.
    pub(super) fn notified(&mut self, now: u64) -> bool {
        if let Some(congestion) = &mut self.congestion {
            congestion.notified(now);
        }
        self.congestion.is_some()
    }

    /// Notes a packet that is retransmitted alone, as number `count`. Unless the peer is known to
    /// keep packets, nothing else is sent before the answer.
    pub(super) fn sends_alone(&mut self, packet: &mut Packet, end: u32, count: u32) {
        packet.ack_req = true;
        // Later packets are acknowledged late. Before the first measurement, such a trip is an
        // upper bound.
        self.is_late = true;
        let is_timed = self.timed.is_some_and(|(psn, _)| psn == packet.psn);
        if is_timed || self.smoothed > 0 {
            self.timed = None;
        }
        self.holds = self.keeps != Keeps::Yes;
        let told = self.due.is_some_and(|due| due.told);
        self.probed = self.probed.filter(|_| !told);
        self.unasked = self.unasked.saturating_add(u32::from(!told));
        self.note_again(packet, end, Some(count), told);
    }

    /// Notes that no further packet is to be retransmitted alone.
    pub(super) fn sent_alone(&mut self) {
        self.due = None;
    }

    /// Notes that everything unacknowledged is to be retransmitted; `told` is true for a gap that
    /// the peer has reported. The round trip is not measured, because an answer may be for either
    /// copy.
    pub(super) fn went_back(&mut self, told: bool) {
        self.timed = None;
        self.due = None;
        self.holds = false;
        self.again = None;
        self.probed = None;
        self.back = Some(told);
    }

    /// Handles an acknowledgement; `asks` is true for a NAK, which itself says where to go on. If
    /// no more than the retransmission is acknowledged, the packets sent after it have not arrived.
    /// Returns true if all of them are to be retransmitted. To a peer that may keep packets they go
    /// in growing parts, since that peer may have the rest.
    pub(super) fn answered(&mut self, una: u32, asks: bool) -> bool {
        let Some(again) = self.again else {
            return false;
        };
        if psn::is_behind(una, again.end) {
            // Earlier packets of the retransmission, or some of its responses, are answered.
            if asks {
                self.again = None;
            }
            return false;
        }
        self.again = None;
        let exact = una == again.end;
        if !exact && again.told {
            self.keeps = Keeps::Yes;
        }
        if !exact || asks {
            return false;
        }
        if again.told && !again.responds {
            self.keeps = match self.keeps {
                Keeps::Yes => Keeps::Unknown,
                _ => Keeps::No,
            };
        }
        let Some(count) = again.count else {
            return false;
        };
        if self.keeps == Keeps::No {
            return true;
        }
        if again.responds && self.keeps == Keeps::Yes {
            // It is not known whether more responses arrive.
            return false;
        }
        self.due = Some(Due {
            count: count.saturating_mul(2),
            told: false,
            twice: false,
        });
        false
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The path to a peer behind a wire, as the requester finds it: how long an answer takes, whether the peer keeps what comes
//! ahead of a gap, and what was sent again and is not answered. Between queue pairs of one device there is none.

use super::congestion::Congestion;
use crate::packet::{Kind, Packet};
use crate::psn;
use crate::qp::Config;

/// The longest patience is 2 to this times the shortest.
const MOST_IN_VAIN: u32 = 6;

/// Whether the peer keeps requests that come ahead of a gap, as this engine does. The specification's responder does not; what it
/// answers tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Unknown,
    No,
    Yes,
}

/// What was sent again, and its answer is not there.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// One after its last PSN.
    end: u32,
    /// So many packets. None: all that is not acknowledged.
    count: Option<u32>,
    /// The peer has told of the gap: what it answers says whether it has kept what came behind.
    told: bool,
    /// It is answered by responses.
    responds: bool,
    /// Sent a second time, since nothing else could be sent.
    twice: bool,
    /// The end of a message, which may be acknowledged by two packets.
    ends: bool,
}

/// What is to be sent again alone.
#[derive(Clone, Copy, Debug)]
struct Due {
    /// So many packets, from the oldest on.
    count: u32,
    /// The peer has told of the gap.
    told: bool,
    /// For the second time.
    twice: bool,
}

/// The path to a peer.
#[derive(Debug)]
pub(super) struct Path {
    /// Round trip, smoothed, and its mean deviation, in nanoseconds. Of none that was measured yet, 0.
    smoothed: u64,
    deviation: u64,
    /// The PSN of which the round trip is measured, and when it was sent. One at a time.
    timed: Option<(u32, u64)>,
    /// Something before it was sent again, so its answer comes late.
    is_late: bool,
    /// Before anything was measured: the trip is not longer than this.
    bound: Option<u64>,
    keeps: Keeps,
    again: Option<Again>,
    due: Option<Due>,
    /// All is to be sent again, and nothing of it was. True: the peer has told of a gap.
    back: Option<bool>,
    /// Nothing else is sent before the answer.
    holds: bool,
    /// The oldest packet was sent again because its answer was late. True: it is answered by now.
    probed: Option<bool>,
    /// Until then, what comes in vain is the second acknowledgement of the end of a message.
    second: u64,
    /// How soon that comes: much sooner than anything is sent again.
    soon: u64,
    /// How often in a row that was in vain: each time the answer is waited for twice as long. A trip that is measured ends it.
    in_vain: u32,
    /// Packets that a timer has sent again, and of which no second answer has come. A path that keeps the order of packets
    /// delivers that answer before the answer to any packet sent later.
    unasked: u32,
    /// Packets that a timer has sent again although the peer answers their first copy too.
    spurious: u64,
    congestion: Option<Congestion>,
}

impl Path {
    /// `first`: the first PSN.
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

    /// Round trip, smoothed, and its mean deviation, in nanoseconds, if one was measured.
    pub(super) fn round_trip(&self) -> Option<(u64, u64)> {
        (self.smoothed > 0).then_some((self.smoothed, self.deviation))
    }

    /// Spurious retransmissions on this path.
    pub(super) fn spurious(&self) -> u64 {
        self.spurious
    }

    /// How long to wait for an answer before asking again: the smoothed round trip and four deviations.
    /// `unknown` if there was none yet, and never less than `least`.
    pub(super) fn patience(&self, unknown: u64, least: u64) -> u64 {
        let patience = if self.smoothed == 0 {
            self.bound.map_or(unknown, |bound| bound.min(unknown))
        } else {
            let longest = self.deviation.saturating_mul(4);
            self.smoothed.saturating_add(longest)
        };
        patience.max(least) << self.in_vain
    }

    /// The oldest packet is sent again because its answer is late.
    pub(super) fn probes(&mut self) {
        if self.probed == Some(true) {
            self.in_vain = 0;
        }
        // What was sent again for a gap may be answered twice too.
        let told = self.again.is_some_and(|again| again.told);
        self.probed = (!told).then_some(false);
    }

    /// Something was answered twice: what was sent again was on its way all the time. Unless it is the second acknowledgement that
    /// a responder as this one sends for a copy of the end of a message.
    pub(super) fn answered_twice(&mut self, now: u64) {
        if now < core::mem::take(&mut self.second) {
            return;
        }
        if self.probed.take().is_some() && self.in_vain < MOST_IN_VAIN {
            self.in_vain += 1;
        }
        // Nor need what is behind it be sent again.
        self.again = self.again.filter(|again| again.told);
        self.due = self.due.filter(|due| due.told);
        if let Some(left) = self.unasked.checked_sub(1) {
            self.unasked = left;
            self.spurious += 1;
        }
    }

    /// A packet is about to be sent in its turn. The first of what is sent again asks for an answer. `end`: one after
    /// its last PSN, of a READ after its responses.
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

    /// An answer to a new packet is timed, if none is.
    pub(super) fn times(&mut self, packet: &Packet, is_new: bool, now: u64) {
        if is_new && packet.ack_req && self.timed.is_none() {
            // The last of a super-packet asks.
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

    /// Everything before `una` is acknowledged.
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

    /// The trip that was timed is over, if it is.
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

    /// One more round trip, weighted as TCP weights it (RFC 6298).
    fn measured(&mut self, trip: u64) {
        if self.smoothed == 0 {
            (self.smoothed, self.deviation) = (trip, trip / 2);
            return;
        }
        let off = self.smoothed.abs_diff(trip);
        self.deviation = self.deviation.saturating_mul(3).saturating_add(off) / 4;
        self.smoothed = (self.smoothed.saturating_mul(7).saturating_add(trip) / 8).max(1);
    }

    /// The oldest packet has to be sent again. False: with all that was sent behind it, since the peer has told of a gap and keeps
    /// nothing.
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

    /// How many packets are to be sent again alone.
    pub(super) fn due(&self) -> u32 {
        self.due.map_or(0, |due| due.count)
    }

    /// Nothing else can be sent now. What the peer has told that it misses goes a second time: were it lost again, only the probe
    /// timer would find out.
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

    /// Packets that may be under way, if so many are configured.
    pub(super) fn window(&self, most: u32) -> u32 {
        self.congestion
            .as_ref()
            .map_or(most, |congestion| congestion.packets().min(most))
    }

    /// Whether nothing may be sent now: before an answer has come, or lest there be more than the path takes.
    pub(super) fn holds(&mut self, now: u64) -> bool {
        let congestion = self.congestion.as_mut();
        self.holds || congestion.is_some_and(|congestion| congestion.pauses(now))
    }

    /// When a pause ends that was met since [`resume`](Self::resume).
    pub(super) fn resumes_at(&self) -> Option<u64> {
        self.congestion.as_ref()?.resumes_at()
    }

    /// It is tried again whether something may be sent.
    pub(super) fn resume(&mut self) {
        if let Some(congestion) = &mut self.congestion {
            congestion.resume();
        }
    }

    /// A router has marked what was sent, or what was asked for. False: nobody heeds it.
    pub(super) fn notified(&mut self, now: u64) -> bool {
        if let Some(congestion) = &mut self.congestion {
            congestion.notified(now);
        }
        self.congestion.is_some()
    }

    /// A packet leaves again alone, or the last so far of `count`. To a peer that may keep nothing, nothing else is sent until it
    /// is answered.
    pub(super) fn sends_alone(&mut self, packet: &mut Packet, end: u32, count: u32) {
        packet.ack_req = true;
        // What is behind it is acknowledged late. Before anything was measured that is better than nothing.
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

    /// There is nothing more to be sent again.
    pub(super) fn sent_alone(&mut self) {
        self.due = None;
    }

    /// All that is not acknowledged is to be sent again; `told`: for a gap that the peer has told of. What was under way is not
    /// timed: an answer may be to either copy.
    pub(super) fn went_back(&mut self, told: bool) {
        self.timed = None;
        self.due = None;
        self.holds = false;
        self.again = None;
        self.probed = None;
        self.back = Some(told);
    }

    /// Something was acknowledged; `asks`: by a NAK, which says itself where to go on. If that is no more than what was sent
    /// again, what was sent behind it has not come: true if all of it is to be sent again. To a peer that keeps something it
    /// goes in growing parts, as the peer may have the rest.
    pub(super) fn answered(&mut self, una: u32, asks: bool) -> bool {
        let Some(again) = self.again else {
            return false;
        };
        if psn::is_behind(una, again.end) {
            // Packets before the last of them, or responses, one after the other.
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
            // Whether there is more to come is not known.
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

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The congestion window of a path: the number of packets that may be in flight, so that queues in
//! front of links stay short and senders that share a link share it evenly.
//!
//! Two signals show a queue: a round trip longer than the minimum RTT, and the marks of routers
//! (ECN). A lost packet does not shrink the window, because links also lose packets by chance. The
//! window grows by three quarters of a packet in each round trip. It shrinks by a part of itself,
//! at most once in a round trip, and never below one packet. It begins with the configured window,
//! and keeps that until a signal shows a queue.
//!
//! The tolerated excess over the minimum RTT depends on the window, as in Swift (Kumar et al.,
//! SIGCOMM 2020): a sender with a small window tolerates more. So a sender that knows the path less
//! well than another does not starve.
//!
//! The minimum RTT comes from the shortest trips. All of them may have met a queue, of other
//! senders or of this one. So when no trip was nearly as short for a while, the sender has only one
//! packet in flight for some trips (a look, which BBR has too): the queue drains. The other senders
//! also measure shorter trips then, and so all of them come to look at the same time.

use crate::psn;

/// One packet, in the unit of the window.
const ONE: u64 = 1 << 10;
/// Longest pause for each packet, in nanoseconds, however long the last trip was.
const LONGEST_PAUSE_NS: u64 = 5_000_000;
/// Tolerated excess of a round trip over the minimum RTT, in nanoseconds: a constant part, and a
/// part that is divided by the root of the window.
const TOLERATED_NS: u64 = 50_000;
const TOLERATED_MORE_NS: u64 = 150_000;
/// Excess over the minimum RTT, in nanoseconds, up to which a trip counts as nearly as short.
const NEARLY_NS: u64 = 25_000;
/// Time for which the minimum RTT is trusted although no trip confirms it: a number of nanoseconds,
/// or a number of trips if those take longer.
const BELIEVED_NS: u64 = 25_000_000;
const BELIEVED_TRIPS: u64 = 25;
/// A look begins at the latest after this many of those times: a queue that has existed from the
/// beginning looks like the minimum RTT.
const LOOK_AT_LEAST: u64 = 20;
/// Length of a look in round trips.
const LOOK_TRIPS: u64 = 3;
/// Number of looks whose shortest trips count: a single look may have met the queue of other
/// senders.
const LOOKS: usize = 4;

/// The congestion window of a path and its signals.
#[derive(Debug)]
pub(super) struct Congestion {
    /// Packets that may be in flight, in parts of [`ONE`].
    window: u64,
    /// Upper limit of the window, in parts of [`ONE`].
    most: u64,
    /// Shortest round trips in nanoseconds, each of which two trips in a row have reached: the one
    /// since the last look, then those of the looks before. `u64::MAX`: none.
    shortest: [u64; LOOKS],
    /// Time of the last trip that was nearly as short, or of the last mark.
    seen: u64,
    /// Time when the present look ends; 0 if there is none.
    looks: u64,
    /// Time when the last look ended.
    looked: u64,
    /// Last round trip in nanoseconds; 0 if none was measured.
    last: u64,
    /// True if the last two trips were too long.
    is_late: bool,
    /// PSN after the last one that was sent when the window shrank. Only a signal from packets sent
    /// after that shrinks the window again.
    shrunk: u32,
    /// PSN after the last one that was sent.
    end: u32,
    /// PSN before which everything is acknowledged.
    una: u32,
    /// Time before which nothing is sent.
    next: u64,
    /// True if a packet was held back for that.
    pauses: bool,
}

impl Congestion {
    /// Creates a window of `most` packets, which is also its upper limit; `first` is the first PSN.
    pub(super) fn new(most: u32, first: u32) -> Self {
        let most = u64::from(most).saturating_mul(ONE).max(ONE);
        Self {
            window: most,
            most,
            shortest: [u64::MAX; LOOKS],
            seen: 0,
            looks: 0,
            looked: 0,
            last: 0,
            is_late: false,
            shrunk: first,
            end: first,
            una: first,
            next: 0,
            pauses: false,
        }
    }

    /// Returns the number of packets that may be in flight, at least one.
    pub(super) fn packets(&self) -> u32 {
        if self.looks > 0 {
            return 1;
        }
        u32::try_from(self.window / ONE).unwrap_or(u32::MAX).max(1)
    }

    /// True if nothing may be sent now.
    pub(super) fn pauses(&mut self, now: u64) -> bool {
        self.pauses = now < self.next;
        self.pauses
    }

    /// Returns the end of the pause for which a packet was held back.
    pub(super) fn resumes_at(&self) -> Option<u64> {
        self.pauses.then_some(self.next)
    }

    /// Forgets that a packet was held back, because sending is tried again.
    pub(super) fn resume(&mut self) {
        self.pauses = false;
    }

    /// Notes that the packets from one PSN to before another are sent; for a READ, that its
    /// responses are requested. If they exceed the window, a pause makes up for that.
    pub(super) fn sent(&mut self, from: u32, end: u32, now: u64) {
        if psn::is_behind(self.end, end) {
            self.end = end;
        }
        let packets = u64::from(psn::ahead(end, from)).saturating_mul(ONE);
        if packets > self.window {
            let pause = self.last.saturating_mul(packets) / self.window;
            self.next = now.saturating_add(pause.min(packets / ONE * LONGEST_PAUSE_NS));
        }
    }

    /// Notes that everything before `una` is acknowledged. The window grows, unless trips are too
    /// long or a look runs.
    pub(super) fn acknowledged(&mut self, una: u32) {
        let packets = psn::ahead(una, self.una);
        self.una = una;
        if psn::is_behind(self.shrunk, una) {
            // A PSN that falls back by more than half of the PSN space would count as ahead.
            self.shrunk = una;
        }
        if self.is_late || self.looks > 0 {
            return;
        }
        let more = (ONE * ONE * 3 / 4).saturating_mul(packets.into()) / self.window;
        self.window = self.window.saturating_add(more).min(self.most);
    }

    /// Handles the measured round trip of packet `of`. A single long trip may have met a busy host
    /// and a single short trip an idle one, so two in a row count. `deviation` is the mean
    /// deviation of round trips.
    pub(super) fn measured(&mut self, trip: u64, deviation: u64, of: u32, now: u64) {
        let before = if self.last == 0 { trip } else { self.last };
        self.last = trip;
        let (short, long) = (trip.min(before), trip.max(before));
        let way = self.way(long);
        if short <= way.saturating_add(NEARLY_NS.max(way / 8)) {
            self.seen = now;
        }
        self.look(now);
        let target = way.saturating_add(self.tolerated().max(deviation.saturating_mul(2)));
        self.is_late = short > target && self.looks == 0;
        if self.is_late && !psn::is_behind(of, self.shrunk) {
            let fitting = u128::from(self.window) * u128::from(target) / u128::from(short);
            let fitting = u64::try_from(fitting).unwrap_or(u64::MAX);
            self.window = fitting.max(self.window / 2).max(ONE);
            self.shrunk = self.end;
        }
    }

    /// Records that two trips in a row took at most `long`, and returns the minimum RTT.
    fn way(&mut self, long: u64) -> u64 {
        let [newest, ..] = &mut self.shortest;
        *newest = long.min(*newest);
        self.shortest.iter().copied().fold(long, u64::min)
    }

    /// Returns the tolerated excess of a trip in nanoseconds.
    fn tolerated(&self) -> u64 {
        // The root of the window in packets, in 32nds.
        let root = self.window.isqrt();
        TOLERATED_NS + TOLERATED_MORE_NS * 32 / root
    }

    /// Begins or ends a look for the minimum RTT.
    fn look(&mut self, now: u64) {
        if self.looks == 0 {
            let believed = BELIEVED_NS.max(self.last.saturating_mul(BELIEVED_TRIPS));
            let is_over =
                |since: u64, times| now > since.saturating_add(believed.saturating_mul(times));
            if is_over(self.seen, 1) || is_over(self.looked, LOOK_AT_LEAST) {
                self.looks = now.saturating_add(self.last.saturating_mul(LOOK_TRIPS));
                self.shortest.rotate_right(1);
                self.shortest[0] = u64::MAX;
            }
        } else if now >= self.looks {
            (self.looks, self.looked, self.seen) = (0, now, now);
        }
    }

    /// Shrinks the window because a router has marked requests or responses.
    pub(super) fn notified(&mut self, now: u64) {
        self.seen = now;
        if !psn::is_behind(self.una, self.shrunk) {
            self.window = (self.window - self.window / 4).max(ONE);
            self.shrunk = self.end;
        }
    }
}

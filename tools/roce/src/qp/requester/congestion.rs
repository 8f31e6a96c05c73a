// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The congestion window of a path: how many packets may be under way, so that queues in front of links stay short and senders
//! that share a link share it evenly.
//!
//! Two things tell of a queue: a round trip that takes longer than the way alone does, and what routers mark (ECN). A loss tells
//! of none: links lose packets by chance too. The window grows by three quarters of a packet in each round trip, and shrinks by a part
//! of itself, at most once in a round trip, never below one packet. It begins with all that is configured, as long as nobody has told
//! of a queue.
//!
//! How much longer a trip may take depends on the window, as in Swift (Kumar et al., SIGCOMM 2020): who has little under way tolerates
//! more, so that a sender that knows less of the way than another does not starve.
//!
//! How long the way alone takes is known from the shortest trips. All of them may have met a queue, of others or of the sender itself.
//! So when none was nearly as short for a while, one packet only is under way for some trips (a look, as BBR has it): the queue
//! drains. Others notice that too, and so they come to look at the same time.

use crate::psn;

/// One packet, in the unit that the window has.
const ONE: u64 = 1 << 10;
/// The longest pause for each packet, in nanoseconds, however long the last trip was.
const LONGEST_PAUSE_NS: u64 = 5_000_000;
/// What a round trip may take more than the way alone, in nanoseconds, and, divided by the root of the window, what it may take beside that.
const TOLERATED_NS: u64 = 50_000;
const TOLERATED_MORE_NS: u64 = 150_000;
/// About as short: by so many nanoseconds.
const NEARLY_NS: u64 = 25_000;
/// For how long the way is believed in that no trip has shown again, in nanoseconds, and in trips.
const BELIEVED_NS: u64 = 25_000_000;
const BELIEVED_TRIPS: u64 = 25;
/// It is looked for after so many times that anyway: a queue that everybody has left from the beginning looks like the way.
const LOOK_AT_LEAST: u64 = 20;
/// Trips of a look.
const LOOK_TRIPS: u64 = 3;
/// Looks of which the shortest trip counts: one alone may have met others' queue.
const LOOKS: usize = 4;

/// The congestion window of a path.
#[derive(Debug)]
pub(super) struct Congestion {
    /// Packets that may be under way, in parts of [`ONE`].
    window: u64,
    /// What it never exceeds.
    most: u64,
    /// The shortest round trips, in nanoseconds, as two in a row have shown them: since the last look, and as the looks before have
    /// found. `u64::MAX`: none.
    shortest: [u64; LOOKS],
    /// When a trip was about as short, or a router has marked.
    seen: u64,
    /// Until when the way is looked for; 0: it is not.
    looks: u64,
    /// When the last look ended.
    looked: u64,
    /// The last trip; 0: none was measured.
    last: u64,
    /// The last two took too long.
    is_late: bool,
    /// One after the PSN that was sent last when the window shrank: it shrinks again when what is sent from then on tells to.
    shrunk: u32,
    /// One after the PSN that was sent last.
    end: u32,
    /// All before it is acknowledged.
    una: u32,
    /// Nothing is sent before this time.
    next: u64,
    /// Something was held back for that.
    pauses: bool,
}

impl Congestion {
    /// `most`: packets that may be under way without congestion; `first`: the first PSN.
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

    /// Packets that may be under way: at least one.
    pub(super) fn packets(&self) -> u32 {
        if self.looks > 0 {
            return 1;
        }
        u32::try_from(self.window / ONE).unwrap_or(u32::MAX).max(1)
    }

    /// Whether nothing may be sent now.
    pub(super) fn pauses(&mut self, now: u64) -> bool {
        self.pauses = now < self.next;
        self.pauses
    }

    /// When the pause ends for which something was held back.
    pub(super) fn resumes_at(&self) -> Option<u64> {
        self.pauses.then_some(self.next)
    }

    /// It is tried again.
    pub(super) fn resume(&mut self) {
        self.pauses = false;
    }

    /// Packets from one PSN to before another are sent; of a READ, so many responses are asked for. More at once than the window
    /// has are made up for by a pause.
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

    /// All before a PSN is acknowledged.
    pub(super) fn acknowledged(&mut self, una: u32) {
        let packets = psn::ahead(una, self.una);
        self.una = una;
        if psn::is_behind(self.shrunk, una) {
            // It does not fall behind by more than can be told.
            self.shrunk = una;
        }
        if self.is_late || self.looks > 0 {
            return;
        }
        let more = (ONE * ONE * 3 / 4).saturating_mul(packets.into()) / self.window;
        self.window = self.window.saturating_add(more).min(self.most);
    }

    /// A round trip was measured, of the packet `of`. A single one that was long may have met a busy host, a single one that was
    /// short an idle one; so two count. `deviation`: by how much round trips differ anyway.
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

    /// How long the way alone takes, when two trips have taken no more than `long`.
    fn way(&mut self, long: u64) -> u64 {
        let [newest, ..] = &mut self.shortest;
        *newest = long.min(*newest);
        self.shortest.iter().copied().fold(long, u64::min)
    }

    /// What a trip may take more.
    fn tolerated(&self) -> u64 {
        // The root of the window in packets, in 32nds.
        let root = self.window.isqrt();
        TOLERATED_NS + TOLERATED_MORE_NS * 32 / root
    }

    /// Begins to look for the way alone, or ends it.
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

    /// A router has marked what was sent, or what was asked for.
    pub(super) fn notified(&mut self, now: u64) {
        self.seen = now;
        if !psn::is_behind(self.una, self.shrunk) {
            self.window = (self.window - self.window / 4).max(ONE);
            self.shrunk = self.end;
        }
    }
}

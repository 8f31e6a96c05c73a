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
const MAX_PACING_NS: u64 = 5_000_000;
/// Tolerated excess of a round trip over the minimum RTT, in nanoseconds: a constant part, and a
/// part that is divided by the root of the window.
const BASE_QUEUE_DELAY_NS: u64 = 50_000;
const FLOW_QUEUE_DELAY_NS: u64 = 150_000;
/// Excess over the minimum RTT, in nanoseconds, up to which a trip counts as nearly as short.
const MIN_RTT_SLACK_NS: u64 = 25_000;
/// Time for which the minimum RTT is trusted although no trip confirms it: a number of nanoseconds,
/// or a number of trips if those take longer.
const MIN_RTT_EXPIRY_NS: u64 = 25_000_000;
const MIN_RTT_EXPIRY_TRIPS: u64 = 25;
/// A look begins at the latest after this many of those times: a queue that has existed from the
/// beginning looks like the minimum RTT.
const PROBE_RTT_INTERVALS: u64 = 20;
/// Length of a look in round trips.
const PROBE_RTT_TRIPS: u64 = 3;
/// Number of looks whose shortest trips count: a single look may have met the queue of other
/// senders.
const MIN_RTT_SAMPLES: usize = 4;

/// The congestion window of a path and its signals.
#[derive(Debug)]
pub(super) struct CongestionWindow {
    /// Packets that may be in flight, in parts of [`ONE`].
    window: u64,
    /// Upper limit of the window, in parts of [`ONE`].
    max_window: u64,
    /// Shortest round trips in nanoseconds, each of which two trips in a row have reached: the one
    /// since the last look, then those of the looks before. `u64::MAX`: none.
    min_rtts_ns: [u64; MIN_RTT_SAMPLES],
    /// Time of the last trip that was nearly as short, or of the last mark.
    min_rtt_confirmed_ns: u64,
    /// Time when the present look ends; 0 if there is none.
    probe_rtt_until_ns: u64,
    /// Time when the last look ended.
    probe_rtt_ended_ns: u64,
    /// Last round trip in nanoseconds; 0 if none was measured.
    last_rtt_ns: u64,
    /// True if the last two trips were too long.
    is_rtt_high: bool,
    /// PSN after the last one that was sent when the window shrank. Only a signal from packets sent
    /// after that shrinks the window again.
    reduced_psn: u32,
    /// PSN after the last one that was sent.
    sent_psn: u32,
    /// PSN before which everything is acknowledged.
    una_psn: u32,
    /// Time before which nothing is sent.
    next_send_ns: u64,
    /// True if a packet was held back for that.
    is_paced: bool,
}

impl CongestionWindow {
    /// Creates a window of `most` packets, which is also its upper limit; `first` is the first PSN.
    pub(super) fn new(most: u32, first: u32) -> Self {
        let most = u64::from(most).saturating_mul(ONE).max(ONE);
        Self {
            window: most,
            max_window: most,
            min_rtts_ns: [u64::MAX; MIN_RTT_SAMPLES],
            min_rtt_confirmed_ns: 0,
            probe_rtt_until_ns: 0,
            probe_rtt_ended_ns: 0,
            last_rtt_ns: 0,
            is_rtt_high: false,
            reduced_psn: first,
            sent_psn: first,
            una_psn: first,
            next_send_ns: 0,
            is_paced: false,
        }
    }

    /// Returns the number of packets that may be in flight, at least one.
    pub(super) fn packets(&self) -> u32 {
        if self.probe_rtt_until_ns > 0 {
            return 1;
        }
        u32::try_from(self.window / ONE).unwrap_or(u32::MAX).max(1)
    }

    /// True if nothing may be sent now.
    pub(super) fn is_paced(&mut self, now: u64) -> bool {
        self.is_paced = now < self.next_send_ns;
        self.is_paced
    }

    /// Returns the end of the pause for which a packet was held back.
    pub(super) fn resumes_at_ns(&self) -> Option<u64> {
        self.is_paced.then_some(self.next_send_ns)
    }

    /// Forgets that a packet was held back, because sending is tried again.
    pub(super) fn clear_pacing(&mut self) {
        self.is_paced = false;
    }

    /// Notes that the packets from one PSN to before another are sent; for a READ, that its
    /// responses are requested. If they exceed the window, a pause makes up for that.
    pub(super) fn on_send(&mut self, from: u32, end: u32, now: u64) {
        if psn::is_behind(self.sent_psn, end) {
            self.sent_psn = end;
        }
        let packets = u64::from(psn::ahead(end, from)).saturating_mul(ONE);
        if packets > self.window {
            let pause = self.last_rtt_ns.saturating_mul(packets) / self.window;
            self.next_send_ns = now.saturating_add(pause.min(packets / ONE * MAX_PACING_NS));
        }
    }

    /// Notes that everything before `una` is acknowledged. The window grows, unless trips are too
    /// long or a look runs.
    pub(super) fn on_ack(&mut self, una: u32) {
        let packets = psn::ahead(una, self.una_psn);
        self.una_psn = una;
        if psn::is_behind(self.reduced_psn, una) {
            // A PSN that falls back by more than half of the PSN space would count as ahead.
            self.reduced_psn = una;
        }
        if self.is_rtt_high || self.probe_rtt_until_ns > 0 {
            return;
        }
        let more = (ONE * ONE * 3 / 4).saturating_mul(packets.into()) / self.window;
        self.window = self.window.saturating_add(more).min(self.max_window);
    }

    /// Handles the measured round trip of packet `of`. A single long trip may have met a busy host
    /// and a single short trip an idle one, so two in a row count. `deviation` is the mean
    /// deviation of round trips.
    pub(super) fn on_rtt_sample(&mut self, trip: u64, deviation: u64, of: u32, now: u64) {
        let before = if self.last_rtt_ns == 0 {
            trip
        } else {
            self.last_rtt_ns
        };
        self.last_rtt_ns = trip;
        let (short, long) = (trip.min(before), trip.max(before));
        let way = self.update_min_rtt_ns(long);
        if short <= way.saturating_add(MIN_RTT_SLACK_NS.max(way / 8)) {
            self.min_rtt_confirmed_ns = now;
        }
        self.update_probe_rtt(now);
        let target = way.saturating_add(
            self.queue_delay_target_ns()
                .max(deviation.saturating_mul(2)),
        );
        self.is_rtt_high = short > target && self.probe_rtt_until_ns == 0;
        if self.is_rtt_high && !psn::is_behind(of, self.reduced_psn) {
            let fitting = u128::from(self.window) * u128::from(target) / u128::from(short);
            let fitting = u64::try_from(fitting).unwrap_or(u64::MAX);
            self.window = fitting.max(self.window / 2).max(ONE);
            self.reduced_psn = self.sent_psn;
        }
    }

    /// Records that two trips in a row took at most `long`, and returns the minimum RTT.
    fn update_min_rtt_ns(&mut self, long: u64) -> u64 {
        let [newest, ..] = &mut self.min_rtts_ns;
        *newest = long.min(*newest);
        self.min_rtts_ns.iter().copied().fold(long, u64::min)
    }

    /// Returns the tolerated excess of a trip in nanoseconds.
    fn queue_delay_target_ns(&self) -> u64 {
        // The root of the window in packets, in 32nds.
        let root = self.window.isqrt();
        BASE_QUEUE_DELAY_NS + FLOW_QUEUE_DELAY_NS * 32 / root
    }

    /// Begins or ends a look for the minimum RTT.
    fn update_probe_rtt(&mut self, now: u64) {
        if self.probe_rtt_until_ns == 0 {
            let believed =
                MIN_RTT_EXPIRY_NS.max(self.last_rtt_ns.saturating_mul(MIN_RTT_EXPIRY_TRIPS));
            let is_over =
                |since: u64, times| now > since.saturating_add(believed.saturating_mul(times));
            if is_over(self.min_rtt_confirmed_ns, 1)
                || is_over(self.probe_rtt_ended_ns, PROBE_RTT_INTERVALS)
            {
                self.probe_rtt_until_ns =
                    now.saturating_add(self.last_rtt_ns.saturating_mul(PROBE_RTT_TRIPS));
                self.min_rtts_ns.rotate_right(1);
                self.min_rtts_ns[0] = u64::MAX;
            }
        } else if now >= self.probe_rtt_until_ns {
            (
                self.probe_rtt_until_ns,
                self.probe_rtt_ended_ns,
                self.min_rtt_confirmed_ns,
            ) = (0, now, now);
        }
    }

    /// Shrinks the window because a router has marked requests or responses.
    pub(super) fn on_cnp(&mut self, now: u64) {
        self.min_rtt_confirmed_ns = now;
        if !psn::is_behind(self.una_psn, self.reduced_psn) {
            self.window = (self.window - self.window / 4).max(ONE);
            self.reduced_psn = self.sent_psn;
        }
    }
}

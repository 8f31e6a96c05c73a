// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The waits of a requester whose peer has no receive.
//!
//! Behind a wire only the RNR NAK timer counts (IBTA 9.7.5.2.8). A peer on the same NIC tells its
//! requester of new receives as soon as they are posted, so that two more rules apply:
//!
//! * A message for which the peer has said that it has no receive is held back for a while, because
//!   the peer would only refuse it.
//! * News of receives ends the wait after an RNR NAK.
//!
//! Neither changes how long a requester tries whose peer posts nothing. The first wait after an RNR
//! NAK counts from the moment at which the message was held back. And if the message that went early is
//! refused, because another queue pair took the receive of a shared receive queue, the wait that
//! the news ended goes on, without a further retry.

/// Time in nanoseconds for which a message is held back if the number of retries is limited: the
/// shortest RNR NAK timer (IBTA table 45), so that the hold is always part of the first wait.
const HOLD_NS: u64 = 10_000;
/// Time in nanoseconds for which a message is held back if the requester retries for ever.
const LONG_HOLD_NS: u64 = 5_000_000;
/// Number of retries that stands for ever (IBTA 9.7.5).
pub(super) const FOR_EVER: u8 = 7;

/// A message that is held back.
#[derive(Clone, Copy, Debug, Default)]
enum Hold {
    /// No message is held back.
    #[default]
    None,
    /// A message is held back since the present call.
    Begins,
    /// A message is held back, from one time to another.
    Until { began_ns: u64, ends_ns: u64 },
    /// The message may go, although the peer has not reported a receive for it.
    Over,
}

/// The waits of one connection. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct ReceiveWait {
    hold: Hold,
    /// Time from which the next wait after an RNR NAK counts, instead of the time of the NAK.
    counts_from_ns: Option<u64>,
    /// End of the wait that was ended early by news of receives.
    ended_early_ns: Option<u64>,
}

/// The wait that follows an RNR NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RnrWait {
    /// Time at which the message is sent again.
    pub until_ns: u64,
    /// True if the wait costs a retry.
    pub costs_retry: bool,
}

impl RnrWait {
    /// Returns the wait of this delay after an RNR NAK that arrived at `from`.
    pub(super) fn new(from: u64, delay_ns: u64) -> Self {
        Self {
            until_ns: from.saturating_add(delay_ns),
            costs_retry: true,
        }
    }
}

impl ReceiveWait {
    /// True if the next message has to wait. Called for a message for which the peer has no
    /// receive, as far as the requester knows.
    #[inline]
    pub(super) fn holds(&mut self) -> bool {
        if matches!(self.hold, Hold::None) {
            self.hold = Hold::Begins;
        }
        !matches!(self.hold, Hold::Over)
    }

    /// Ends a hold whose time has come. Called before messages are sent.
    #[inline]
    pub(super) fn begin_call(&mut self, now: u64) {
        if let Hold::Until { began_ns, ends_ns } = self.hold {
            if now >= ends_ns {
                self.hold = Hold::Over;
                self.counts_from_ns = Some(began_ns);
            }
        }
    }

    /// Starts the time of a hold that began in this call.
    #[inline]
    pub(super) fn end_call(&mut self, now: u64, rnr_retry: u8) {
        if matches!(self.hold, Hold::Begins) {
            let time = if rnr_retry == FOR_EVER {
                LONG_HOLD_NS
            } else {
                HOLD_NS
            };
            self.hold = Hold::Until {
                began_ns: now,
                ends_ns: now.saturating_add(time),
            };
        }
    }

    /// Returns the time at which the hold ends, if a message is held back.
    #[inline]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        match self.hold {
            Hold::Until { ends_ns, .. } => Some(ends_ns),
            _ => None,
        }
    }

    /// Notes that the peer has receives. `rnr_until_ns` is the end of the wait that this news ends, if
    /// there is one.
    pub(super) fn on_news(&mut self, rnr_until_ns: Option<u64>) {
        self.hold = Hold::None;
        if rnr_until_ns.is_some() {
            self.ended_early_ns = rnr_until_ns;
        }
    }

    /// Notes that the peer has taken a message.
    #[inline]
    pub(super) fn on_progress(&mut self) {
        if matches!(self.hold, Hold::Over) {
            self.hold = Hold::None;
        }
        self.counts_from_ns = None;
        self.ended_early_ns = None;
    }

    /// Returns the wait that follows an RNR NAK with this delay.
    pub(super) fn on_rnr_nak(&mut self, now: u64, delay_ns: u64) -> RnrWait {
        if let Some(until_ns) = self.ended_early_ns.take().filter(|until| *until > now) {
            return RnrWait {
                until_ns,
                costs_retry: false,
            };
        }
        let wait = RnrWait::new(self.counts_from_ns.take().unwrap_or(now), delay_ns);
        if wait.until_ns < now {
            self.counts_from_ns = Some(wait.until_ns);
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY_NS: u64 = 4_000;

    /// Holds a message back from `now` to the end of the hold, which is returned.
    fn hold(wait: &mut ReceiveWait, now: u64, rnr_retry: u8) -> u64 {
        wait.begin_call(now);
        assert!(wait.holds());
        wait.end_call(now, rnr_retry);
        let end = wait.deadline_ns().expect("a hold ends");
        wait.begin_call(end - 1);
        assert!(wait.holds());
        wait.begin_call(end);
        assert!(!wait.holds());
        assert_eq!(wait.deadline_ns(), None);
        end
    }

    #[test]
    fn a_hold_is_part_of_the_waits_after_rnr_naks() {
        let mut wait = ReceiveWait::default();
        let mut now = hold(&mut wait, 1000, 6);
        assert_eq!(now, 1000 + HOLD_NS);
        let mut ends = [0; 4];
        for end in &mut ends {
            let next = wait.on_rnr_nak(now, DELAY_NS);
            assert!(next.costs_retry);
            *end = next.until_ns;
            now = now.max(next.until_ns);
        }
        // As if the first message had not been held back.
        assert_eq!(ends, [1, 2, 3, 4].map(|n| 1000 + n * DELAY_NS));
        assert_eq!(
            wait.on_rnr_nak(now + 5, DELAY_NS).until_ns,
            now + 5 + DELAY_NS
        );
    }

    #[test]
    fn a_requester_that_retries_for_ever_holds_longer() {
        let mut wait = ReceiveWait::default();
        assert_eq!(hold(&mut wait, 0, FOR_EVER), LONG_HOLD_NS);
    }

    #[test]
    fn a_message_that_went_early_costs_no_retry() {
        let mut wait = ReceiveWait::default();
        let first = wait.on_rnr_nak(0, DELAY_NS);
        wait.on_news(Some(first.until_ns));
        let again = RnrWait {
            until_ns: DELAY_NS,
            costs_retry: false,
        };
        assert_eq!(wait.on_rnr_nak(10, DELAY_NS), again);
        // After the end of that wait, the message would have gone anyway.
        wait.on_news(Some(DELAY_NS));
        assert!(wait.on_rnr_nak(DELAY_NS, DELAY_NS).costs_retry);
        // The same holds after a message that was taken.
        wait.on_news(Some(5 * DELAY_NS));
        wait.on_progress();
        assert!(wait.on_rnr_nak(2 * DELAY_NS, DELAY_NS).costs_retry);
    }

    #[test]
    fn news_end_a_hold() {
        let mut wait = ReceiveWait::default();
        assert!(wait.holds());
        wait.end_call(7, 6);
        wait.on_news(None);
        assert_eq!(wait.deadline_ns(), None);
        // The next hold begins anew, and nothing of the first is left.
        assert!(wait.holds());
        wait.on_news(None);
        assert_eq!(wait.on_rnr_nak(9, DELAY_NS).until_ns, 9 + DELAY_NS);
    }
}

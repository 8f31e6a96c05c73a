// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The waits of a requester whose peer has no receive.
//!
//! Behind a wire only the RNR NAK timer counts (IBTA 9.7.5.2.8). A peer on the same NIC tells its
//! requester of new receives as soon as they are posted, so that two more rules apply:
//!
//! * News of receives ends the wait after an RNR NAK.
//! * A requester that retries for ever holds a message back for a while if the peer has said that it
//!   has no receive for it, because the peer would only refuse the message.
//!
//! Neither changes how long a requester tries whose peer posts nothing. If a message that went early
//! is refused, because another queue pair took the receive of a shared receive queue, the wait that
//! the news ended goes on, without a further retry.

/// Time in nanoseconds for which a message is held back.
const HOLD_NS: u64 = 5_000_000;
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
    /// A message is held back until this time.
    Until(u64),
    /// The message may go, although the peer has not reported a receive for it.
    Over,
}

/// The waits of one connection. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct ReceiveWait {
    hold: Hold,
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
    /// Returns the wait of this delay after an RNR NAK that arrives at `now`.
    pub(super) fn new(now: u64, delay_ns: u64) -> Self {
        Self {
            until_ns: now.saturating_add(delay_ns),
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
        if matches!(self.hold, Hold::Until(end) if now >= end) {
            self.hold = Hold::Over;
        }
    }

    /// Starts the time of a hold that began in this call.
    #[inline]
    pub(super) fn end_call(&mut self, now: u64) {
        if matches!(self.hold, Hold::Begins) {
            self.hold = Hold::Until(now.saturating_add(HOLD_NS));
        }
    }

    /// Returns the time at which the hold ends, if a message is held back.
    #[inline]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        match self.hold {
            Hold::Until(end) => Some(end),
            _ => None,
        }
    }

    /// Notes that the peer has receives. `rnr_until_ns` is the end of the wait that this news ends,
    /// if there is one.
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
        self.ended_early_ns = None;
    }

    /// Returns the wait that follows an RNR NAK with this delay.
    pub(super) fn on_rnr_nak(&mut self, now: u64, delay_ns: u64) -> RnrWait {
        match self.ended_early_ns.take().filter(|until| *until > now) {
            Some(until_ns) => RnrWait {
                until_ns,
                costs_retry: false,
            },
            None => RnrWait::new(now, delay_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY_NS: u64 = 4_000;

    #[test]
    fn a_hold_ends() {
        let mut wait = ReceiveWait::default();
        wait.begin_call(7);
        assert!(wait.holds());
        wait.end_call(7);
        assert_eq!(wait.deadline_ns(), Some(7 + HOLD_NS));
        wait.begin_call(6 + HOLD_NS);
        assert!(wait.holds());
        wait.begin_call(7 + HOLD_NS);
        assert!(!wait.holds());
        assert_eq!(wait.deadline_ns(), None);
        // The next message is held back again.
        wait.on_progress();
        assert!(wait.holds());
    }

    #[test]
    fn news_end_a_hold() {
        let mut wait = ReceiveWait::default();
        assert!(wait.holds());
        wait.end_call(7);
        wait.on_news(None);
        assert_eq!(wait.deadline_ns(), None);
        assert_eq!(wait.on_rnr_nak(9, DELAY_NS), RnrWait::new(9, DELAY_NS));
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
}

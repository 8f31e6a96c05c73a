// SPDX-License-Identifier: GPL-2.0 OR MIT

//! End-to-end credits at the requester (IBTA 9.7.7.2): the messages that the peer has receives for.
//!
//! Messages are numbered from 1 by their send sequence number (SSN), as the peer counts them in its
//! MSN. An AETH with MSN m and c credits permits messages up to m + c: the limit sequence number
//! (LSN). A message that takes no receive needs no credit, and moves the limit on.
//!
//! The first message beyond the limit may go without a credit: the acknowledgement or RNR NAK that
//! it causes reports more. Any message may go if none that takes a receive is outstanding. So the
//! queue never stops for ever, whatever the peer counts.

use crate::psn;
use crate::qp::credits;

/// The credit limit of one connection.
#[derive(Debug)]
pub(super) struct CreditLimit {
    /// SSN of the message that started last.
    ssn: u32,
    /// Limit (LSN): messages up to this SSN have a credit.
    lsn: u32,
    /// Outstanding messages that take a receive.
    outstanding: u32,
    validity: Validity,
}

/// Validity of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Validity {
    /// The limit holds, and the peer has not reported credits yet.
    Initial,
    /// The limit holds, and follows from credits that the peer has reported.
    Reported,
    /// There is no limit, because this side or the peer does not use credits.
    Unlimited,
}

/// True if `a` comes after `b`, on the shorter way round.
fn is_after(a: u32, b: u32) -> bool {
    a != b && !psn::is_behind(a, b)
}

impl CreditLimit {
    pub(super) fn new(lifted: bool) -> Self {
        Self {
            ssn: 0,
            lsn: 0,
            outstanding: 0,
            validity: if lifted {
                Validity::Unlimited
            } else {
                Validity::Initial
            },
        }
    }

    /// True if the peer has said that it has no receive for the next message that takes one.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.validity == Validity::Reported && is_after(psn::add(self.ssn, 1), self.lsn)
    }

    /// True if messages that take a receive are outstanding. Their acknowledgement reports credits.
    #[inline]
    pub(super) fn will_hear(&self) -> bool {
        self.outstanding > 0
    }

    /// Returns the SSN of the next message. None if that has to wait for a credit.
    #[inline]
    pub(super) fn start(&mut self, takes_receive: bool) -> Option<u32> {
        let ssn = psn::add(self.ssn, 1);
        if self.validity != Validity::Unlimited {
            let next = psn::add(self.lsn, 1);
            let is_beyond = is_after(ssn, next);
            if !takes_receive && !is_beyond {
                self.lsn = next;
            } else if takes_receive && is_beyond && self.outstanding > 0 {
                return None;
            }
        }
        self.outstanding = self.outstanding.saturating_add(takes_receive.into());
        self.ssn = ssn;
        Some(ssn)
    }

    /// Notes that a message that takes a receive is complete.
    #[inline]
    pub(super) fn on_complete(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// True if a message that has started has no credit.
    #[inline]
    pub(super) fn is_beyond(&self, ssn: u32) -> bool {
        self.validity != Validity::Unlimited && is_after(ssn, self.lsn)
    }

    /// Takes the MSN and the code of credits from an AETH.
    #[inline]
    pub(super) fn on_aeth(&mut self, msn: u32, code: u8) {
        if self.validity == Validity::Unlimited {
            return;
        }
        match credits::decode(code) {
            // A peer that once does not use credits never uses them.
            None => self.validity = Validity::Unlimited,
            Some(count) => {
                self.validity = Validity::Reported;
                let lsn = psn::add(msn, count);
                if is_after(lsn, self.lsn) {
                    self.lsn = lsn;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beyond(limit: &CreditLimit) -> bool {
        limit.is_beyond(limit.ssn)
    }

    #[test]
    fn credits_count_from_the_msn() {
        let mut limit = CreditLimit::new(false);
        assert_eq!(limit.start(true), Some(1));
        assert!(beyond(&limit));
        assert_eq!(limit.start(true), None);
        // The peer has executed message 1 and has 2 receives left.
        limit.on_aeth(1, credits::encode(2));
        limit.on_complete();
        assert_eq!((limit.start(true), limit.start(true)), (Some(2), Some(3)));
        assert!(!beyond(&limit));
        assert_eq!(limit.start(true), Some(4));
        assert!(beyond(&limit), "message 4 has no credit");
        assert_eq!(limit.start(true), None);
    }

    #[test]
    fn a_message_that_takes_no_receive_moves_the_limit() {
        let mut limit = CreditLimit::new(false);
        for ssn in 1..=5 {
            assert_eq!(limit.start(false), Some(ssn));
        }
        assert_eq!(limit.start(true), Some(6));
        assert_eq!(limit.start(true), None);
        // After a message without a credit the limit does not move, because that message still has
        // no credit.
        assert_eq!(limit.start(false), Some(7));
        assert!(limit.is_beyond(6) && limit.start(true).is_none());
        // The peer counts such messages in its MSN too: 7 are executed, and 1 receive is left.
        limit.on_aeth(7, 1);
        assert_eq!(limit.start(true), Some(8));
        assert!(!beyond(&limit));
    }

    #[test]
    fn a_late_count_does_not_lower_the_limit() {
        let mut limit = CreditLimit::new(false);
        limit.on_aeth(0, credits::encode(8));
        limit.on_aeth(0, credits::encode(2));
        for ssn in 1..=9 {
            assert_eq!(limit.start(true), Some(ssn));
        }
        assert_eq!(limit.start(true), None);
    }

    #[test]
    fn numbers_wrap_at_24_bits() {
        let mut limit = CreditLimit::new(false);
        (limit.ssn, limit.lsn) = (0xff_fffe, 0xff_fffe);
        limit.on_aeth(0xff_fffe, credits::encode(3));
        let starts: [_; 5] = core::array::from_fn(|_| limit.start(true));
        assert_eq!(starts, [Some(0xff_ffff), Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn the_invalid_code_lifts_the_limit_for_good() {
        let mut limit = CreditLimit::new(false);
        limit.on_aeth(0, credits::INVALID);
        limit.on_aeth(0, 0);
        for ssn in 1..100 {
            assert_eq!(limit.start(true), Some(ssn));
            assert!(!beyond(&limit));
        }
    }

    #[test]
    fn a_peer_with_a_wrong_msn_does_not_stop_the_requester() {
        let mut limit = CreditLimit::new(false);
        for ssn in 1..100 {
            assert_eq!(limit.start(true), Some(ssn));
            limit.on_aeth(0, 0);
            assert!(ssn == 1 || limit.start(true).is_none());
            limit.on_complete();
        }
    }
}

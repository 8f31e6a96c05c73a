// SPDX-License-Identifier: GPL-2.0 OR MIT

//! End-to-end credits to which a requester has to keep (IBTA 9.7.7.2). Beyond the messages that the
//! peer has counted, the requester may send as many messages that take a receive as it has credits,
//! and one more without a credit.

use super::tables::{credits_of, near};
use verbena_transport::packet::{Aeth, AethSyndrome};

/// The messages that credits allow.
#[derive(Debug, Default)]
pub struct CreditReference {
    /// For each message in order: the number of messages up to it that take a receive.
    takers: Vec<u64>,
    /// Number of messages that take a receive and may be sent; `None` if there is no limit.
    limit: Option<u64>,
    /// Number of messages that the peer has counted.
    msn: u64,
}

impl CreditReference {
    /// Starts anew. `kept` is true if the queue pair keeps to credits at all.
    pub fn begin(&mut self, kept: bool) {
        *self = Self {
            limit: kept.then_some(0),
            ..Self::default()
        };
    }

    /// Counts a message that is sent for the first time. Returns true if it is sent without a
    /// credit.
    pub fn on_transmit(&mut self, takes: bool) -> bool {
        let taken = self.takers.last().copied().unwrap_or(0) + u64::from(takes);
        self.takers.push(taken);
        let Some(limit) = self.limit.filter(|_| takes) else {
            return false;
        };
        assert!(
            taken <= limit + 1,
            "reference: 9.7.7.2: {taken} messages that take a receive, with credits for {limit}"
        );
        taken > limit
    }

    /// True if the peer has no receive for the next message that takes one, as far as its reports
    /// show.
    pub fn is_spent(&self) -> bool {
        let taken = self.takers.last().copied().unwrap_or(0);
        self.limit.is_some_and(|limit| taken >= limit)
    }

    /// True if there is a credit by now for every message that was sent.
    pub fn has_credits(&self) -> bool {
        let taken = self.takers.last().copied().unwrap_or(0);
        self.limit.is_none_or(|limit| taken <= limit)
    }

    /// Applies the credits of an acknowledgement.
    pub fn on_aeth(&mut self, aeth: &Aeth) {
        let AethSyndrome::Ack { credits } = aeth.syndrome else {
            return;
        };
        match credits_of(credits) {
            Some(credits) => self.on_counts(aeth.msn, credits),
            None => self.limit = None,
        }
    }

    /// Notes that `taken` messages that take a receive have found one.
    pub fn on_receives_found(&mut self, taken: u64) {
        self.limit = self.limit.map(|limit| limit.max(taken));
    }

    /// Notes that the peer has executed `msn` messages and has `credits` receives for more.
    pub fn on_counts(&mut self, msn: u32, credits: u64) {
        let Some(limit) = self.limit else {
            return;
        };
        let msn = near(self.msn + (1 << 24), msn).saturating_sub(1 << 24);
        self.msn = self.msn.max(msn);
        // An answer from before the last reset may count more messages than were sent. The
        // reference leaves open how many such an answer allows.
        let Some(counted) = self.takers.get(..msn as usize) else {
            self.limit = None;
            return;
        };
        let taken = counted.last().copied().unwrap_or(0);
        self.limit = Some(limit.max(taken + credits));
    }
}

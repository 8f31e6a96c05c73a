// SPDX-License-Identifier: GPL-2.0 OR MIT

//! End-to-end credits as a requester has to keep to them (IBTA 9.7.7.2): of what takes a receive, so many messages may follow
//! those that the peer has counted, and one more on trust.

use super::tables::{credits_of, near};
use verbena_roce::packet::{Aeth, AethSyndrome};

/// What may be sent.
#[derive(Debug, Default)]
pub struct Limits {
    /// Of each message in its order: how many up to it take a receive.
    takers: Vec<u64>,
    /// So many of those may be sent. None: any number.
    limit: Option<u64>,
    /// Messages that the peer has counted.
    msn: u64,
}

impl Limits {
    /// A life begins. `kept`: the queue pair keeps to credits at all.
    pub fn begin(&mut self, kept: bool) {
        *self = Self {
            limit: kept.then_some(0),
            ..Self::default()
        };
    }

    /// A message is sent for the first time. True: on trust, since there is no credit for it.
    pub fn sends(&mut self, takes: bool) -> bool {
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

    /// Whether there is a credit by now for all that was sent.
    pub fn are_kept(&self) -> bool {
        let taken = self.takers.last().copied().unwrap_or(0);
        self.limit.is_none_or(|limit| taken <= limit)
    }

    /// The peer tells its count.
    pub fn hears(&mut self, aeth: &Aeth) {
        let AethSyndrome::Ack { credits } = aeth.syndrome else {
            return;
        };
        match credits_of(credits) {
            Some(credits) => self.counts(aeth.msn, credits),
            None => self.limit = None,
        }
    }

    /// So many messages that take a receive have found one.
    pub fn takes(&mut self, taken: u64) {
        self.limit = self.limit.map(|limit| limit.max(taken));
    }

    /// The peer has executed so many messages, and has receives for more.
    pub fn counts(&mut self, msn: u32, credits: u64) {
        let Some(limit) = self.limit else {
            return;
        };
        let msn = near(self.msn + (1 << 24), msn).saturating_sub(1 << 24);
        self.msn = self.msn.max(msn);
        // An answer of an earlier life may count more than was sent: what it allows is left open.
        let Some(counted) = self.takers.get(..msn as usize) else {
            self.limit = None;
            return;
        };
        let taken = counted.last().copied().unwrap_or(0);
        self.limit = Some(limit.max(taken + credits));
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Numbers that tell apart objects that had the same QPN or SRQN one after the other.

/// The numbers of QPs and SRQs that were created so far. No number is given twice before a reset.
#[derive(Debug, Default)]
pub struct Created {
    qps: u64,
    srqs: u64,
}

impl Created {
    /// Returns the `owner` value of a new QP, from 1 on.
    pub fn next_qp(&mut self) -> u64 {
        self.qps += 1;
        self.qps
    }

    /// Returns the `life` value of a new SRQ, from 1 on.
    pub fn next_srq(&mut self) -> u64 {
        self.srqs += 1;
        self.srqs
    }

    /// Returns the number of QPs so far.
    pub fn qps(&self) -> u64 {
        self.qps
    }
}

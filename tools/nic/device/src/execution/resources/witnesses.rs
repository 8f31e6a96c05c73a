// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs that have met a CQ or an SRQ in error.

/// The queue pairs that noticed the error of a CQ or an SRQ during a call, until the device moves
/// them, and then the other users of the queue, to ERR.
#[derive(Debug, Default)]
pub struct Witnesses(Vec<u32>);

impl Witnesses {
    /// Adds a queue pair.
    pub fn add(&mut self, qpn: u32) {
        self.0.push(qpn);
    }

    /// Takes a queue pair. The last one that was added comes first.
    pub fn next(&mut self) -> Option<u32> {
        self.0.pop()
    }

    /// True if there is no such queue pair.
    #[inline]
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }
}

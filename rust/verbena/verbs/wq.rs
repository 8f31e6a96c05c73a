// SPDX-License-Identifier: GPL-2.0

//! What the driver keeps of a kernel queue pair's queues: the outstanding work requests.
//!
//! The kernel's `wr_id` is a pointer that the core calls, so it is never taken from a completion. It
//! stays here; a completion only names the index, which must lie among the outstanding ones, and
//! each request is handed out at most once.

use kernel::prelude::*;
use rdma::enums::WcOpcode;

/// A request that was posted.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// What its owner knows it by.
    pub(crate) wr_id: u64,
    /// What it completes as.
    pub(crate) opcode: WcOpcode,
    /// Bytes of its buffers.
    pub(crate) length: u32,
}

/// Fills places that were not used yet.
const NONE: Request = Request {
    wr_id: 0,
    opcode: WcOpcode::Send,
    length: 0,
};

/// A send or receive queue.
pub(crate) struct WorkQueue {
    requests: KVVec<Request>,
    producer: u32,
    consumer: u32,
}

impl WorkQueue {
    /// A queue of 2^log_size entries; none of a process' queue, which keeps its own.
    pub(crate) fn new(kernel: bool, log_size: u8) -> Result<Self> {
        let mut requests = KVVec::new();
        if kernel {
            requests.resize(1 << log_size, NONE, GFP_KERNEL)?;
        }
        Ok(Self {
            requests,
            producer: 0,
            consumer: 0,
        })
    }

    fn place(&self, index: u32) -> usize {
        // The size is a power of two, or 0 and then nothing is found.
        index as usize & self.requests.len().wrapping_sub(1)
    }

    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    /// Index of the next request, if there is room for it.
    pub(crate) fn next(&self) -> Option<u32> {
        ((self.outstanding() as usize) < self.requests.len()).then_some(self.producer)
    }

    /// Adds the request at [`next`](Self::next).
    pub(crate) fn push(&mut self, request: Request) {
        let place = self.place(self.producer);
        if let Some(slot) = self.requests.get_mut(place) {
            *slot = request;
            self.producer = self.producer.wrapping_add(1);
        }
    }

    /// Producer index.
    pub(crate) fn producer(&self) -> u32 {
        self.producer
    }

    /// Takes the request at `index`, and all before it. `None` if it is not outstanding.
    pub(crate) fn complete(&mut self, index: u32) -> Option<Request> {
        if index.wrapping_sub(self.consumer) >= self.outstanding() {
            return None;
        }
        let request = *self.requests.get(self.place(index))?;
        self.consumer = index.wrapping_add(1);
        Some(request)
    }

    /// Takes the oldest request, to flush it.
    pub(crate) fn flush(&mut self) -> Option<Request> {
        self.complete(self.consumer)
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding() == 0
    }

    /// Forgets everything: the queue pair went to RESET.
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.consumer = 0;
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The state of the model: all queue pairs, their surroundings, and the call in progress.

use super::beside::Beside;
use super::cover::Coverage;
use super::end::End;
use super::memory::Memory;
use super::work::{Op, Recv, RecvQueue};
use std::ops::Range;
use verbena_transport::pool::Pool;
use verbena_transport::QpType;

/// The call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A call without a packet, such as poll, modify or failure.
    Own,
    /// A request arrives.
    Request {
        /// First PSN of the packet.
        first: u64,
        /// PSN after the last one of the packet.
        end: u64,
        /// The work request that the packet belongs to, where the model knows it.
        op: Option<u32>,
    },
    /// A response arrives.
    Response {
        /// PSN after the last one of the packet.
        end: u64,
    },
}

/// The whole state of the model.
#[derive(Debug)]
pub struct Lab {
    /// Virtual time in nanoseconds.
    pub now: u64,
    /// Memory of all ends.
    pub memory: Memory,
    /// Send work requests of all ends.
    pub ops: Vec<Op>,
    /// Receives of all queues.
    pub recvs: Vec<Recv>,
    /// Receive queues of all ends.
    pub queues: Vec<RecvQueue>,
    /// Ends, one for each queue pair.
    pub ends: Vec<End>,
    /// The reference of each end.
    pub(super) beside: Vec<Beside>,
    /// The call in progress.
    pub call: Call,
    /// Counts of the situations that were met.
    pub cover: Coverage,
    /// Function that prints lines of the trace.
    pub trace: Option<fn(&str)>,
    /// Buffers for frames and payloads.
    pub pool: Pool,
    /// Bytes of a copy and their places, kept to reuse the allocation.
    pub(super) scratch: Vec<u8>,
    pub(super) ranges: Vec<Range<usize>>,
}

impl Lab {
    /// Returns an empty model.
    pub fn new() -> Self {
        Self {
            now: 0,
            memory: Memory::default(),
            ops: Vec::new(),
            recvs: Vec::new(),
            queues: Vec::new(),
            ends: Vec::new(),
            beside: Vec::new(),
            call: Call::Own,
            cover: Coverage::default(),
            trace: None,
            pool: Pool::default(),
            scratch: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Clears everything except the coverage.
    pub fn clear(&mut self) {
        self.now = 0;
        self.memory.clear();
        self.ops.clear();
        self.recvs.clear();
        self.queues.clear();
        self.ends.clear();
        self.beside.clear();
        self.call = Call::Own;
    }

    /// Writes a line of the trace.
    pub fn say(&self, me: usize, line: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            let end = &self.ends[me];
            trace(&format!(
                "{:>12} ns  qp {:#x} {:<5} {}",
                self.now,
                end.qpn,
                end.state.name(),
                line()
            ));
        }
    }

    /// Returns the work request of a queue pair that has a PSN.
    pub fn op_at(&self, qp: usize, psn: u64) -> Option<u32> {
        let sq = &self.ends[qp].sq;
        let sent = &sq[..self.ends[qp].assign.min(sq.len())];
        let after = sent.partition_point(|op| self.ops[*op as usize].first <= psn);
        sent[..after]
            .iter()
            .rev()
            .find(|op| self.ops[**op as usize].psns > 0)
            .copied()
            .filter(|op| psn < self.ops[*op as usize].end())
    }

    /// Returns the work request that a responder has to execute now, and its bytes executed so far.
    pub(super) fn cursor(&self, me: usize) -> (u32, u32) {
        let end = &self.ends[me];
        let Call::Request {
            first,
            end: last,
            op,
        } = self.call
        else {
            panic!("qp {:#x}: a responder acts without a request", end.qpn);
        };
        if end.qp_type == QpType::Rc {
            assert!(
                first <= end.expected && end.expected < last,
                "qp {:#x} executes PSNs {first:#x}..{last:#x} when {:#x} is expected",
                end.qpn,
                end.expected
            );
            let op = self.op_at(end.peer, end.expected);
            let op = op.expect("a request that was never sent is executed");
            (op, self.ops[op as usize].done)
        } else if end.qp_type == QpType::Uc {
            let (op, done) = end.message.expect("an abandoned message is executed");
            let due = (first - self.ops[op as usize].first) as u32 * end.attr.path_mtu;
            assert!(
                done >= due && last > first,
                "qp {:#x}: a part of a message is missing",
                end.qpn
            );
            (op, done)
        } else {
            (op.expect("a datagram that was never sent"), 0)
        }
    }
}

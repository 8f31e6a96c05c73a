// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The state of the model: all queue pairs, their surroundings, and the call in progress.

use super::coverage::Coverage;
use super::memory::MemoryModel;
use super::qp_model::QpModel;
use super::reference_run::ReferenceRun;
use super::work::{RecvModel, RecvQueueModel, SendModel};
use std::ops::Range;
use verbena_transport::pool::Pool;
use verbena_transport::QpType;

/// The call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpCall {
    /// A call without a packet, such as poll, modify or failure.
    NoPacket,
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
pub struct NetworkModel {
    /// Virtual time in nanoseconds.
    pub now_ns: u64,
    /// Memory of all ends.
    pub memory: MemoryModel,
    /// Send work requests of all ends.
    pub ops: Vec<SendModel>,
    /// Receives of all queues.
    pub recvs: Vec<RecvModel>,
    /// Receive queues of all ends.
    pub queues: Vec<RecvQueueModel>,
    /// Ends, one for each queue pair.
    pub qps: Vec<QpModel>,
    /// The reference of each end.
    pub(super) references: Vec<ReferenceRun>,
    /// The call in progress.
    pub call: QpCall,
    /// Counts of the situations that were met.
    pub coverage: Coverage,
    /// Function that prints lines of the trace.
    pub trace: Option<fn(&str)>,
    /// Buffers for frames and payloads.
    pub pool: Pool,
    /// Bytes of a copy and their places, kept to reuse the allocation.
    pub(super) scratch: Vec<u8>,
    pub(super) ranges: Vec<Range<usize>>,
}

impl NetworkModel {
    /// Returns an empty model.
    pub fn new() -> Self {
        Self {
            now_ns: 0,
            memory: MemoryModel::default(),
            ops: Vec::new(),
            recvs: Vec::new(),
            queues: Vec::new(),
            qps: Vec::new(),
            references: Vec::new(),
            call: QpCall::NoPacket,
            coverage: Coverage::default(),
            trace: None,
            pool: Pool::default(),
            scratch: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Clears everything except the coverage.
    pub fn clear(&mut self) {
        self.now_ns = 0;
        self.memory.clear();
        self.ops.clear();
        self.recvs.clear();
        self.queues.clear();
        self.qps.clear();
        self.references.clear();
        self.call = QpCall::NoPacket;
    }

    /// Writes a line of the trace.
    pub fn trace(&self, me: usize, line: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            let end = &self.qps[me];
            trace(&format!(
                "{:>12} ns  qp {:#x} {:<5} {}",
                self.now_ns,
                end.qpn,
                end.state.name(),
                line()
            ));
        }
    }

    /// Returns the work request of a queue pair that has a PSN.
    pub fn op_at(&self, qp: usize, psn: u64) -> Option<u32> {
        let sq = &self.qps[qp].sq;
        let sent = &sq[..self.qps[qp].assign.min(sq.len())];
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
        let end = &self.qps[me];
        let QpCall::Request {
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

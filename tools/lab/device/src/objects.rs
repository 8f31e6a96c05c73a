// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects of the device as the model knows them: queue pairs, queues, requests and completions.

use crate::memory::{Domain, RegionModel, PAGE};
use std::collections::VecDeque;
use verbena_abi::cmd::{CreateQp, QpType};
use verbena_abi::cqe::Cqe;
use verbena_abi::ctx::{AddressVector, QpAttr, QpState, Translation};
use verbena_abi::doorbell::Arm;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

/// Data segment of a work request: address, length and key.
pub type DataSegment = (u64, u32, u32);

/// A send request that the program has posted.
#[derive(Clone, Debug)]
pub struct PostedSend {
    /// Index of the request's WQE.
    pub index: u32,
    /// `wr_id` that the completion has to return.
    pub wr_id: u64,
    /// Opcode of the WQE.
    pub opcode: WqeOpcode,
    /// `send_flags` of the WQE.
    pub flags: u8,
    /// Data segments of the request.
    pub sges: Vec<DataSegment>,
    /// Inline data; empty if the request has data segments.
    pub inline: Vec<u8>,
    /// Address and rkey of the memory at the peer.
    pub remote: (u64, u32),
    /// Immediate data, or the key that the request invalidates.
    pub imm: [u8; 4],
    /// Operands of an atomic: compare or add value, and swap value.
    pub operands: (u64, u64),
    /// For datagrams: index of the destination QP, and the Q_Key.
    pub to: (usize, u32),
    /// Syndrome of the defect of a malformed request.
    pub malformed: Option<Syndrome>,
    /// Raw byte of the WQE that differs from the fields above: offset and value.
    pub patch: Option<(usize, u8)>,
    /// True if the peer has executed the request, so that only its completion is pending.
    pub executed_by_peer: bool,
    /// Address vector of a datagram.
    pub path: AddressVector,
    /// True if the address handle of a datagram belongs to another PD.
    pub foreign: bool,
    /// State that a fast registration gives to its key.
    pub registers: Option<Box<RegionModel>>,
    /// True if the request may have been executed without a completion, because its QP was in SQD.
    pub may_be_executed: bool,
}

impl PostedSend {
    /// Returns the index of the key that the request changes.
    pub fn changes_key(&self) -> Option<u32> {
        use WqeOpcode::*;
        match self.opcode {
            FastReg => self.registers.as_ref().map(|r| r.key >> 8),
            LocalInv | SendInv => Some(u32::from_le_bytes(self.imm) >> 8),
            _ => None,
        }
    }

    /// True if the requester executes the request without the peer.
    pub fn is_local(&self) -> bool {
        matches!(self.opcode, WqeOpcode::FastReg | WqeOpcode::LocalInv)
    }

    /// True if the request consumes a receive of the peer.
    pub fn takes_receive(&self) -> bool {
        use WqeOpcode::*;
        matches!(self.opcode, Send | SendImm | SendInv | RdmaWriteImm)
    }

    /// True if the response carries data for the requester.
    pub fn fetches(&self) -> bool {
        use WqeOpcode::*;
        matches!(self.opcode, RdmaRead | CompareSwap | FetchAdd)
    }

    /// Returns the length of the message in bytes.
    pub fn length(&self) -> u32 {
        if self.inline.is_empty() {
            self.sges.iter().map(|s| s.1).sum()
        } else {
            self.inline.len() as u32
        }
    }
}

/// A receive request that the program has posted.
#[derive(Clone, Debug)]
pub struct PostedRecv {
    /// Index of the request's WQE.
    pub index: u32,
    /// `wr_id` that the completion has to return.
    pub wr_id: u64,
    /// Data segments that receive the message.
    pub sges: Vec<DataSegment>,
    /// True if the request has more data segments than a receive may have.
    pub malformed: bool,
}

impl PostedRecv {
    /// Returns the total length of the data segments in bytes.
    pub fn room(&self) -> u32 {
        self.sges.iter().map(|s| s.1).sum()
    }
}

/// A completion that the device has written.
#[derive(Clone, Debug)]
pub struct ObservedCqe {
    /// Completion queue entry as it was read.
    pub cqe: Cqe,
    /// Index of the entry in the CQ.
    pub at: u32,
    /// Status from the tail of the entry.
    pub status: u8,
    /// Opcode from the tail of the entry.
    pub opcode: u8,
    /// `wc_flags` from the tail of the entry.
    pub flags: u8,
}

/// Memory of a ring: one contiguous range, or 4 KiB pages in any order.
#[derive(Clone, Debug)]
pub struct RingMemory {
    /// Addresses of the pages; only the first one if the ring is contiguous.
    pub pages: Vec<u64>,
    /// Translation that the device was given for the ring.
    pub raw: Translation,
    /// Length of the ring in bytes.
    pub len: usize,
}

impl RingMemory {
    /// Returns the address of the byte at an offset of the ring.
    pub fn at(&self, offset: u64) -> u64 {
        match self.raw.levels {
            0 => self.pages[0] + offset,
            _ => self.pages[(offset / PAGE) as usize] + offset % PAGE,
        }
    }
}

/// A completion queue of the program.
#[derive(Debug)]
pub struct Cq {
    /// Number of the CQ.
    pub cqn: u32,
    /// Number of the EQ that takes its events.
    pub eqn: u32,
    /// Doorbell area and slot of the CQ.
    pub place: (u32, usize),
    /// Memory of the CQ's ring.
    pub ring: RingMemory,
    /// log2 of the number of entries.
    pub log_size: u8,
    /// Index of the entry at the start of the ring.
    pub base: u32,
    /// Consumer index of the program.
    pub ci: u32,
    /// Number of entries that the model has seen.
    pub seen: u32,
    /// Entries that the model has seen and the program has not consumed.
    pub waiting: VecDeque<[u8; 64]>,
    /// Indexes of the entries that count as solicited.
    pub solicited: Vec<u32>,
    /// Last arm that the program has written.
    pub arm: Arm,
    /// Sequence number of the last arm that the device has served.
    pub served: u32,
    /// Producer index of the last notification, from the published context.
    pub notified: u32,
    /// Moderation: number of completions, and period in microseconds.
    pub moderation: (u16, u16),
    /// True after the CQ has overflowed.
    pub dead: bool,
}

impl Cq {
    /// Returns the number of entries that the device can still write.
    pub fn room(&self) -> u32 {
        (1 << self.log_size) - self.seen.wrapping_sub(self.ci)
    }
}

/// A shared receive queue of the program.
#[derive(Debug)]
pub struct Srq {
    /// Number of the SRQ.
    pub srqn: u32,
    /// PD of the SRQ.
    pub pd: u32,
    /// Doorbell area and slot of the SRQ.
    pub place: (u32, usize),
    /// Memory of the SRQ's ring.
    pub ring: RingMemory,
    /// Producer index of the program.
    pub pi: u32,
    /// Receives that have not completed.
    pub posted: VecDeque<PostedRecv>,
    /// Armed limit; 0 if none is armed.
    pub limit: u32,
    /// Consumer index at the last comparison.
    pub taken: u32,
    /// True if a message found no receive in this step.
    pub found_empty: bool,
    /// True if the model cannot tell exactly which receives the QPs have taken, because one of the
    /// QPs has ended in the middle of a message.
    pub is_uncertain: bool,
}

impl Srq {
    /// Returns the domain for the key checks of the SRQ's receives, for a QP of this privilege.
    pub fn domain(&self, privileged: bool) -> Domain {
        Domain {
            pd: self.pd,
            privileged,
        }
    }
}

/// A queue pair of the program.
#[derive(Debug)]
pub struct Qp {
    /// Number of the QP.
    pub qpn: u32,
    /// Transport type of the QP.
    pub kind: QpType,
    /// Command that has created the QP.
    pub create: CreateQp,
    /// Attributes that the program has set.
    pub attr: QpAttr,
    /// Address vector that the program has set.
    pub av: AddressVector,
    /// GID indexes of the QP and of its peer.
    pub ends: [u16; 2],
    /// PD of the QP, and if the QP is privileged.
    pub pd: Domain,
    /// `QP_*` flags of the CREATE_QP command.
    pub flags: u8,
    /// Indexes of the send CQ and of the receive CQ.
    pub cqs: [usize; 2],
    /// Index of the SRQ, if the QP has one.
    pub srq: Option<usize>,
    /// Doorbell area and slot of the QP.
    pub place: (u32, usize),
    /// Memory of the send ring and of the receive ring.
    pub rings: [RingMemory; 2],
    /// Producer indexes of the send ring and of the receive ring.
    pub pi: [u32; 2],
    /// First index of the send ring whose slot may not be written yet.
    pub sq_free: u32,
    /// State of the QP in the model.
    pub state: QpState,
    /// Index of the peer QP.
    pub peer: usize,
    /// True if the QP has reached RTR since the last RESET.
    pub connected: bool,
    /// `qp_access_flags` of the QP.
    pub rights: u32,
    /// Number of RNR retries; 7 means without limit.
    pub rnr_retry: u8,
    /// log2 of the path MTU in bytes.
    pub log_mtu: u8,
    /// Q_Key of the QP.
    pub qkey: u32,
    /// Sends that have not completed.
    pub sends: VecDeque<PostedSend>,
    /// Receives that have not completed.
    pub recvs: VecDeque<PostedRecv>,
    /// Completions since the last comparison, for sends and for receives.
    pub completions: [VecDeque<ObservedCqe>; 2],
    /// State of the QP at the start of the step.
    pub state_before: QpState,
    /// State of the QP in its published context.
    pub device_state: QpState,
    /// True if the QP went to ERR with a NAK, which it may repeat to its peer.
    pub refused: bool,
    /// True while the COMM_EST event is pending.
    pub comm_est: bool,
    /// True if requests of the QP were flushed in this step, which needs a cause for ERR.
    pub was_flushed: bool,
    /// True if one of the flushed requests would have failed.
    pub has_failing_request: bool,
    /// True if the program has moved the QP to ERR in this step.
    pub moved_to_err: bool,
    /// True while an SQ_DRAINED event that the program asked for is pending.
    pub drain_event_pending: bool,
}

impl Qp {
    /// True if the QP processed requests of its peer at the start of the step.
    pub fn received(&self) -> bool {
        use QpState::*;
        matches!(self.state_before, Rtr | Rts | Sqd | Sqe)
    }

    /// True if the QP processes requests of its peer.
    pub fn receives(&self) -> bool {
        use QpState::*;
        matches!(self.state, Rtr | Rts | Sqd | Sqe)
    }
}

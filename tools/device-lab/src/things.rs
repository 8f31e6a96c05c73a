// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the model knows of each object.

use crate::memory::{Domain, Region, PAGE};
use std::collections::VecDeque;
use verbena_abi::cmd::{CreateQp, QpType};
use verbena_abi::cqe::Cqe;
use verbena_abi::ctx::{AddressVector, QpAttr, QpState, Translation};
use verbena_abi::doorbell::Arm;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

/// An element of a work request: address, length, key.
pub type Element = (u64, u32, u32);

/// A send that was posted.
#[derive(Clone, Debug)]
pub struct Send {
    /// Index of its WQE.
    pub index: u32,
    /// Comes back.
    pub wr_id: u64,
    /// Operation.
    pub opcode: WqeOpcode,
    /// `send_flags`.
    pub flags: u8,
    /// Where the data is.
    pub sges: Vec<Element>,
    /// Inline data.
    pub inline: Vec<u8>,
    /// Address and key at the peer.
    pub remote: (u64, u32),
    /// Immediate data, or a key to invalidate.
    pub imm: [u8; 4],
    /// Operands of an atomic: compare or add, and swap.
    pub operands: (u64, u64),
    /// Datagrams: index of the queue pair that it is for, and the Q_Key.
    pub to: (usize, u32),
    /// What is malformed in it.
    pub malformed: Option<Syndrome>,
    /// Raw bytes that differ from what is told above: offset and value.
    pub patch: Option<(usize, u8)>,
    /// The peer has executed it: only its completion is to come.
    pub done: bool,
    /// Datagrams: the path.
    pub path: AddressVector,
    /// Datagrams: its address handle is of another PD.
    pub foreign: bool,
    /// What a fast registration makes of its key.
    pub registers: Option<Box<Region>>,
    /// It may be done, without a word: its queue pair was in SQD.
    pub maybe: bool,
}

impl Send {
    /// Index of the key that it changes.
    pub fn changes_key(&self) -> Option<u32> {
        use WqeOpcode::*;
        match self.opcode {
            FastReg => self.registers.as_ref().map(|r| r.key >> 8),
            LocalInv | SendInv => Some(u32::from_le_bytes(self.imm) >> 8),
            _ => None,
        }
    }

    /// Whether its own side alone executes it.
    pub fn is_local(&self) -> bool {
        matches!(self.opcode, WqeOpcode::FastReg | WqeOpcode::LocalInv)
    }

    /// Whether it needs a receive.
    pub fn takes_receive(&self) -> bool {
        use WqeOpcode::*;
        matches!(self.opcode, Send | SendImm | SendInv | RdmaWriteImm)
    }

    /// Whether its responder has something for it.
    pub fn fetches(&self) -> bool {
        use WqeOpcode::*;
        matches!(self.opcode, RdmaRead | CompareSwap | FetchAdd)
    }

    /// Bytes of its message.
    pub fn length(&self) -> u32 {
        if self.inline.is_empty() {
            self.sges.iter().map(|s| s.1).sum()
        } else {
            self.inline.len() as u32
        }
    }
}

/// A receive that was posted.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Index of its WQE.
    pub index: u32,
    /// Comes back.
    pub wr_id: u64,
    /// Where the data goes.
    pub sges: Vec<Element>,
    /// It has more elements than a receive may have.
    pub malformed: bool,
}

impl Recv {
    /// Bytes that it has room for.
    pub fn room(&self) -> u32 {
        self.sges.iter().map(|s| s.1).sum()
    }
}

/// A completion that the device wrote.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The entry.
    pub cqe: Cqe,
    /// Its index in the CQ.
    pub at: u32,
    /// Status.
    pub status: u8,
    /// Opcode.
    pub opcode: u8,
    /// Flags.
    pub flags: u8,
}

/// Memory of a ring: pages of 4 KiB, in any order.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Addresses of its pages; only the first if it is contiguous.
    pub pages: Vec<u64>,
    /// As the device was told.
    pub raw: Translation,
    /// Bytes.
    pub len: usize,
}

impl Ring {
    /// Address of a byte.
    pub fn at(&self, offset: u64) -> u64 {
        match self.raw.levels {
            0 => self.pages[0] + offset,
            _ => self.pages[(offset / PAGE) as usize] + offset % PAGE,
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// Number.
    pub cqn: u32,
    /// Event queue.
    pub eqn: u32,
    /// Area and slot.
    pub place: (u32, usize),
    /// Ring.
    pub ring: Ring,
    /// Log of its size.
    pub log_size: u8,
    /// Index of the ring's first entry.
    pub base: u32,
    /// Consumer index.
    pub ci: u32,
    /// Entries that the model has seen.
    pub seen: u32,
    /// Those of them that were not consumed.
    pub waiting: VecDeque<[u8; 64]>,
    /// Index of each entry that counts as solicited.
    pub solicited: Vec<u32>,
    /// Last arm.
    pub arm: Arm,
    /// Sequence number of the last arm that was served.
    pub served: u32,
    /// Producer index of the last notification, as the context tells.
    pub notified: u32,
    /// Moderation: completions, microseconds.
    pub moderation: (u16, u16),
    /// It has overflowed.
    pub dead: bool,
}

impl Cq {
    /// Entries that have room.
    pub fn room(&self) -> u32 {
        (1 << self.log_size) - self.seen.wrapping_sub(self.ci)
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Number.
    pub srqn: u32,
    /// PD.
    pub pd: u32,
    /// Area and slot.
    pub place: (u32, usize),
    /// Ring.
    pub ring: Ring,
    /// Producer index.
    pub pi: u32,
    /// Receives that did not complete.
    pub posted: VecDeque<Recv>,
    /// Armed limit.
    pub limit: u32,
    /// Entries taken when the model looked last.
    pub taken: u32,
    /// Somebody waits for a receive.
    pub starved: bool,
    /// What its queue pairs have taken cannot be told exactly: one of them has ended in the middle of a message.
    pub vague: bool,
}

impl Srq {
    /// By what its receives are checked, for a queue pair that is privileged or not.
    pub fn domain(&self, privileged: bool) -> Domain {
        Domain {
            pd: self.pd,
            privileged,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Number.
    pub qpn: u32,
    /// Type.
    pub kind: QpType,
    /// As it was created.
    pub create: CreateQp,
    /// Its attributes as they were set.
    pub attr: QpAttr,
    /// Its path as it was set.
    pub av: AddressVector,
    /// GIDs of its own and of its peer, by index.
    pub ends: [u16; 2],
    /// PD, and whether it is privileged.
    pub pd: Domain,
    /// `QP_*`.
    pub flags: u8,
    /// Indexes of its CQs: of sends, of receives.
    pub cqs: [usize; 2],
    /// Index of its SRQ.
    pub srq: Option<usize>,
    /// Area and slot.
    pub place: (u32, usize),
    /// Rings.
    pub rings: [Ring; 2],
    /// Producer indexes.
    pub pi: [u32; 2],
    /// First index of the send ring whose slot may not be written yet.
    pub sq_free: u32,
    /// State.
    pub state: QpState,
    /// Index of its peer.
    pub peer: usize,
    /// Connected: in RTR or beyond since the last RESET.
    pub connected: bool,
    /// `qp_access_flags`.
    pub rights: u32,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Log of the path MTU in bytes.
    pub log_mtu: u8,
    /// Q_Key.
    pub qkey: u32,
    /// Sends that are not complete.
    pub sends: VecDeque<Send>,
    /// Receives that are not complete.
    pub recvs: VecDeque<Recv>,
    /// What came for it since the last settling, by queue.
    pub got: [VecDeque<Seen>; 2],
    /// Its state when the step began.
    pub was: QpState,
    /// Its state as the device shows it.
    pub real: QpState,
    /// It ended in a refusal that it may repeat to its peer.
    pub refused: bool,
    /// COMM_EST is still to come.
    pub comm_est: bool,
    /// Some of its work requests were cut short: by its own end in ERR, which has to have a cause.
    pub cut: bool,
    /// One of those would have failed.
    pub excused: bool,
    /// The program has moved it to ERR.
    pub pushed: bool,
    /// The program wants to be told when SQD is reached.
    pub drains: bool,
}

impl Qp {
    /// Whether it took requests when the step began.
    pub fn received(&self) -> bool {
        use QpState::*;
        matches!(self.was, Rtr | Rts | Sqd | Sqe)
    }

    /// Whether it takes requests.
    pub fn receives(&self) -> bool {
        use QpState::*;
        matches!(self.state, Rtr | Rts | Sqd | Sqe)
    }
}

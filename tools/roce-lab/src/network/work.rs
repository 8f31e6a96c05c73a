// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests as the model knows them: what was posted, what is wrong with it on purpose, and how far it has come.

use verbena_roce::host::{SendWqe, Sge, Syndrome, WcStatus, WqeError, WqeOpcode};

/// What is wrong with a work request on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The remote key is unknown.
    RkeyUnknown,
    /// The remote range ends beyond its region.
    RkeyBounds,
    /// The remote region does not allow it.
    RkeyAccess,
    /// The remote region is of another protection domain.
    RkeyPd,
    /// The peer does not allow the operation.
    Disabled,
    /// An atomic whose address is not a multiple of 8.
    Misaligned,
    /// The local key is unknown.
    LkeyUnknown,
    /// The local range ends beyond its region.
    LkeyBounds,
    /// Longer than the queue pair allows.
    TooLong,
    /// An atomic whose buffer has not 8 bytes.
    AtomicLength,
    /// The host finds that the WQE is malformed.
    Malformed,
    /// A READ or atomic where none may be outstanding.
    NoReads,
    /// More READs than the peer takes.
    TooManyReads,
    /// An operation that the service does not have.
    Opcode,
    /// A local invalidate of a key that is not there.
    LocalInvalidate,
    /// A remote invalidate of a key that is not there.
    RemoteInvalidate,
    /// A datagram with another Q_Key.
    Qkey,
    /// A datagram over the path MTU.
    OverMtu,
    /// A datagram without a destination.
    NoDestination,
    /// A receive that is too short for the message.
    RecvShort,
    /// A receive with an unknown key.
    RecvKey,
    /// A receive that is malformed.
    RecvMalformed,
    /// Memory that goes away at any time.
    Vanishing,
    /// The local region of a READ or atomic may not be written.
    LkeyAccess,
}

impl Fault {
    /// All.
    pub const ALL: &'static [Fault] = &[
        Fault::None,
        Fault::RkeyUnknown,
        Fault::RkeyBounds,
        Fault::RkeyAccess,
        Fault::RkeyPd,
        Fault::Disabled,
        Fault::Misaligned,
        Fault::LkeyUnknown,
        Fault::LkeyBounds,
        Fault::TooLong,
        Fault::AtomicLength,
        Fault::Malformed,
        Fault::NoReads,
        Fault::TooManyReads,
        Fault::Opcode,
        Fault::LocalInvalidate,
        Fault::RemoteInvalidate,
        Fault::Qkey,
        Fault::OverMtu,
        Fault::NoDestination,
        Fault::RecvShort,
        Fault::RecvKey,
        Fault::RecvMalformed,
        Fault::Vanishing,
        Fault::LkeyAccess,
    ];

    /// Whether the sender finds it itself, so that nothing is sent.
    pub fn is_local(self) -> bool {
        matches!(
            self,
            Fault::LkeyUnknown
                | Fault::LkeyBounds
                | Fault::LkeyAccess
                | Fault::TooLong
                | Fault::AtomicLength
                | Fault::Malformed
                | Fault::NoReads
                | Fault::Opcode
                | Fault::LocalInvalidate
                | Fault::NoDestination
        )
    }

    /// Whether the peer refuses the request for its memory's sake.
    pub fn is_remote_access(self) -> bool {
        matches!(
            self,
            Fault::RkeyUnknown | Fault::RkeyBounds | Fault::RkeyAccess | Fault::RkeyPd
        )
    }

    /// Whether a responder refuses it for any reason that lies in the request.
    pub fn is_remote(self) -> bool {
        self.is_remote_access()
            || matches!(
                self,
                Fault::Disabled | Fault::Misaligned | Fault::TooManyReads
            )
    }

    /// What the requester of a reliable connection completes with, by table 58 of IBTA 10.10.3 and its like.
    pub fn status(self) -> WcStatus {
        match self {
            Fault::None | Fault::RemoteInvalidate | Fault::Vanishing => WcStatus::Success,
            Fault::Qkey | Fault::OverMtu => WcStatus::Success,
            Fault::RkeyUnknown | Fault::RkeyBounds | Fault::RkeyAccess | Fault::RkeyPd => {
                WcStatus::RemAccessErr
            }
            Fault::Disabled | Fault::Misaligned | Fault::TooManyReads | Fault::RecvShort => {
                WcStatus::RemInvReqErr
            }
            Fault::LkeyUnknown | Fault::LkeyBounds | Fault::LkeyAccess => WcStatus::LocProtErr,
            Fault::TooLong | Fault::AtomicLength => WcStatus::LocLenErr,
            Fault::Malformed | Fault::NoReads | Fault::Opcode | Fault::NoDestination => {
                WcStatus::LocQpOpErr
            }
            Fault::LocalInvalidate => WcStatus::MwBindErr,
            Fault::RecvKey | Fault::RecvMalformed => WcStatus::RemOpErr,
        }
    }
}

/// A send work request.
#[derive(Debug, Default)]
pub struct Op {
    /// Queue pair that it was posted to.
    pub qp: usize,
    /// Header.
    pub wqe: SendWqe,
    /// Local buffers.
    pub sges: Vec<Sge>,
    /// Inline data.
    pub inline: Vec<u8>,
    /// What the host finds wrong.
    pub malformed: Option<WqeError>,
    /// Bytes of the message.
    pub length: u32,
    /// Where the message's bytes begin in the pattern.
    pub base: u32,
    /// What is wrong with it.
    pub fault: Fault,
    /// Datagrams: the queue pair it is for.
    pub to: usize,
    /// First PSN, without wrapping.
    pub first: u64,
    /// PSNs; 0 until it was first sent.
    pub psns: u32,
    /// READ: responses that one request asks for, but for the last.
    pub part: u32,
    /// Bytes that the responder has executed.
    pub done: u32,
    /// The responder has executed it.
    pub executed: bool,
    /// Bytes of a READ or atomic that came back.
    pub got: u32,
    /// Result of an atomic.
    pub value: u64,
    /// It is complete, or flushed, or dropped by a reset.
    pub over: bool,
    /// Its memory may go away.
    pub vanishing: bool,
    /// The receive that it took.
    pub recv: Option<u32>,
}

impl Op {
    /// Whether it ends by a response.
    pub fn responds(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
        ) || self.is_placed()
    }

    /// Whether a response of no bytes ends it.
    pub fn is_placed(&self) -> bool {
        matches!(self.wqe.opcode, WqeOpcode::AtomicWrite | WqeOpcode::Flush)
    }

    /// Bytes that come back.
    pub fn returns(&self) -> u32 {
        if self.responds() && !self.is_placed() {
            self.length
        } else {
            0
        }
    }

    /// Whether it brings bytes to the peer.
    pub fn brings(&self) -> bool {
        !self.responds() || self.wqe.opcode == WqeOpcode::AtomicWrite
    }

    /// Whether it is never sent: its own side refuses it, but not for where what it fetches would go.
    pub fn stays(&self) -> bool {
        let fetches = self.is_atomic() || self.wqe.opcode == WqeOpcode::RdmaRead;
        let lkey = matches!(
            self.fault,
            Fault::LkeyUnknown | Fault::LkeyBounds | Fault::LkeyAccess
        );
        self.fault.is_local() && !(fetches && lkey)
    }

    /// Whether it is an atomic.
    pub fn is_atomic(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
        )
    }

    /// Whether it sends nothing.
    pub fn is_silent(&self) -> bool {
        matches!(self.wqe.opcode, WqeOpcode::LocalInv | WqeOpcode::FastReg)
    }

    /// Whether it takes a receive of the other side: none but these may be solicited (IBTA 9.2.3).
    pub fn takes_receive(&self) -> bool {
        self.is_send() || self.wqe.opcode == WqeOpcode::RdmaWriteImm
    }

    /// Whether it is a SEND of any kind.
    pub fn is_send(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInv
        )
    }

    /// Whether it takes a receive.
    pub fn takes_recv(&self) -> bool {
        self.is_send() || self.wqe.opcode == WqeOpcode::RdmaWriteImm
    }

    /// Whether it has immediate data.
    pub fn has_imm(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::SendImm | WqeOpcode::RdmaWriteImm
        )
    }

    /// PSNs that it needs.
    pub fn needs(&self, mtu: u32) -> u32 {
        if self.is_silent() {
            0
        } else if self.is_atomic() || self.is_placed() {
            1
        } else {
            self.length.div_ceil(mtu).max(1)
        }
    }

    /// One after its last PSN.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.psns)
    }

    /// First PSN and one after the last of what is a message to the peer, and holds this PSN: a part of a READ, or all.
    pub fn message_at(&self, psn: u64) -> (u64, u64) {
        if self.wqe.opcode != WqeOpcode::RdmaRead {
            return (self.first, self.end());
        }
        let part = u64::from(self.part);
        let first = self.first + (psn - self.first) / part * part;
        (first, self.end().min(first + part))
    }
}

/// A receive.
#[derive(Debug, Default)]
pub struct Recv {
    /// `wr_id`.
    pub wr_id: u64,
    /// Index of its WQE.
    pub index: u32,
    /// Buffers.
    pub sges: Vec<Sge>,
    /// Protection domain of its queue.
    pub pd: u32,
    /// Bytes that they hold.
    pub capacity: u32,
    /// What is wrong with it.
    pub fault: Fault,
    /// What the host finds wrong.
    pub malformed: Option<Syndrome>,
    /// It is complete.
    pub over: bool,
    /// Its memory may go away.
    pub vanishing: bool,
}

/// A receive queue, of one queue pair or shared.
#[derive(Debug, Default)]
pub struct RecvQueue {
    /// What was posted since the last reset.
    pub posts: Vec<u32>,
    /// How many were taken.
    pub taken: usize,
    /// Receives that senders will want, and that are not posted yet.
    pub owed: u32,
    /// It is shared.
    pub shared: bool,
    /// It cannot be read any more.
    pub dead: bool,
}

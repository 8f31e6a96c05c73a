// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests as the model knows them: their contents, their deliberate faults, and their
//! progress.

use verbena_transport::host::{DecodedSendWqe, Sge, Syndrome, WcStatus, WqeError, WqeOpcode};

/// The deliberate fault of a work request or a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PlannedFault {
    /// No fault.
    #[default]
    None,
    /// The remote key is unknown.
    RkeyUnknown,
    /// The remote range ends beyond its region.
    RkeyBounds,
    /// The remote region does not allow the access.
    RkeyAccess,
    /// The remote region is of another protection domain.
    RkeyPd,
    /// The peer does not allow the operation.
    Disabled,
    /// The address of an atomic is not a multiple of 8.
    Misaligned,
    /// The local key is unknown.
    LkeyUnknown,
    /// The local range ends beyond its region.
    LkeyBounds,
    /// The message is longer than the queue pair allows.
    TooLong,
    /// The buffer of an atomic does not have 8 bytes.
    AtomicLength,
    /// The host finds that the WQE is malformed.
    Malformed,
    /// A READ or atomic is posted where none may be outstanding.
    NoReads,
    /// More READs are outstanding than the peer takes.
    TooManyReads,
    /// The service does not have the operation.
    Opcode,
    /// A local invalidate names an unknown key.
    LocalInvalidate,
    /// A remote invalidate names an unknown key.
    RemoteInvalidate,
    /// A datagram has another Q_Key than its destination.
    Qkey,
    /// A datagram is longer than the path MTU.
    OverMtu,
    /// A datagram has no destination.
    NoDestination,
    /// A receive is too short for the message.
    RecvShort,
    /// A receive has an unknown key.
    RecvKey,
    /// A receive is malformed.
    RecvMalformed,
    /// Memory may go away at any time.
    Vanishing,
    /// The local region of a READ or atomic may not be written.
    LkeyAccess,
}

impl PlannedFault {
    /// All faults in the order of their numbers.
    pub const ALL: &'static [PlannedFault] = &[
        PlannedFault::None,
        PlannedFault::RkeyUnknown,
        PlannedFault::RkeyBounds,
        PlannedFault::RkeyAccess,
        PlannedFault::RkeyPd,
        PlannedFault::Disabled,
        PlannedFault::Misaligned,
        PlannedFault::LkeyUnknown,
        PlannedFault::LkeyBounds,
        PlannedFault::TooLong,
        PlannedFault::AtomicLength,
        PlannedFault::Malformed,
        PlannedFault::NoReads,
        PlannedFault::TooManyReads,
        PlannedFault::Opcode,
        PlannedFault::LocalInvalidate,
        PlannedFault::RemoteInvalidate,
        PlannedFault::Qkey,
        PlannedFault::OverMtu,
        PlannedFault::NoDestination,
        PlannedFault::RecvShort,
        PlannedFault::RecvKey,
        PlannedFault::RecvMalformed,
        PlannedFault::Vanishing,
        PlannedFault::LkeyAccess,
    ];

    /// True if the sender detects the fault itself. It then sends no packet, unless the fault lies
    /// in the local buffers of a READ or atomic (see [`SendModel::is_rejected_locally`]).
    pub fn is_local(self) -> bool {
        matches!(
            self,
            PlannedFault::LkeyUnknown
                | PlannedFault::LkeyBounds
                | PlannedFault::LkeyAccess
                | PlannedFault::TooLong
                | PlannedFault::AtomicLength
                | PlannedFault::Malformed
                | PlannedFault::NoReads
                | PlannedFault::Opcode
                | PlannedFault::LocalInvalidate
                | PlannedFault::NoDestination
        )
    }

    /// True if the peer refuses the request because of its own memory regions.
    pub fn is_remote_access(self) -> bool {
        matches!(
            self,
            PlannedFault::RkeyUnknown
                | PlannedFault::RkeyBounds
                | PlannedFault::RkeyAccess
                | PlannedFault::RkeyPd
        )
    }

    /// True if a responder refuses the request for any reason that lies in the request.
    pub fn is_remote(self) -> bool {
        self.is_remote_access()
            || matches!(
                self,
                PlannedFault::Disabled | PlannedFault::Misaligned | PlannedFault::TooManyReads
            )
    }

    /// Returns the status with which the requester of a reliable connection completes, by table 58
    /// of IBTA 10.10.3 and similar rules.
    pub fn status(self) -> WcStatus {
        match self {
            PlannedFault::None | PlannedFault::RemoteInvalidate | PlannedFault::Vanishing => {
                WcStatus::Success
            }
            PlannedFault::Qkey | PlannedFault::OverMtu => WcStatus::Success,
            PlannedFault::RkeyUnknown
            | PlannedFault::RkeyBounds
            | PlannedFault::RkeyAccess
            | PlannedFault::RkeyPd => WcStatus::RemAccessErr,
            PlannedFault::Disabled
            | PlannedFault::Misaligned
            | PlannedFault::TooManyReads
            | PlannedFault::RecvShort => WcStatus::RemInvReqErr,
            PlannedFault::LkeyUnknown | PlannedFault::LkeyBounds | PlannedFault::LkeyAccess => {
                WcStatus::LocProtErr
            }
            PlannedFault::TooLong | PlannedFault::AtomicLength => WcStatus::LocLenErr,
            PlannedFault::Malformed
            | PlannedFault::NoReads
            | PlannedFault::Opcode
            | PlannedFault::NoDestination => WcStatus::LocQpOpErr,
            PlannedFault::LocalInvalidate => WcStatus::MwBindErr,
            PlannedFault::RecvKey | PlannedFault::RecvMalformed => WcStatus::RemOpErr,
        }
    }
}

/// A send work request.
#[derive(Debug, Default)]
pub struct SendModel {
    /// Index of the queue pair that the work request was posted to.
    pub qp: usize,
    /// Header of the WQE.
    pub wqe: DecodedSendWqe,
    /// Local buffers of the message.
    pub sges: Vec<Sge>,
    /// Inline data of the message.
    pub inline: Vec<u8>,
    /// Error that the host reports when the WQE is fetched.
    pub malformed: Option<WqeError>,
    /// Length of the message in bytes.
    pub length: u32,
    /// Place in the pattern at which the message's bytes begin.
    pub base: u32,
    /// Deliberate fault of the work request.
    pub fault: PlannedFault,
    /// Datagrams: index of the destination queue pair.
    pub destination: usize,
    /// First PSN, without wrapping.
    pub first: u64,
    /// Number of PSNs; 0 until the work request was first sent.
    pub psns: u32,
    /// READ: number of responses that each request but the last asks for.
    pub part: u32,
    /// Bytes that the responder has executed.
    pub done: u32,
    /// True if the responder has executed the work request.
    pub executed: bool,
    /// Bytes of a READ or atomic that came back.
    pub received: u32,
    /// Result of an atomic.
    pub value: u64,
    /// True if the work request is complete, flushed, or dropped by a reset.
    pub is_complete: bool,
    /// True if the work request's memory may go away.
    pub vanishing: bool,
    /// Index of the receive that the message took.
    pub recv: Option<u32>,
}

impl SendModel {
    /// True if a response completes the work request.
    pub fn awaits_response(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
        ) || self.is_placed()
    }

    /// True if a response of no bytes completes the work request.
    pub fn is_placed(&self) -> bool {
        matches!(self.wqe.opcode, WqeOpcode::AtomicWrite | WqeOpcode::Flush)
    }

    /// Returns the number of bytes that come back.
    pub fn response_length(&self) -> u32 {
        if self.awaits_response() && !self.is_placed() {
            self.length
        } else {
            0
        }
    }

    /// True if the work request brings bytes to the peer.
    pub fn sends_payload(&self) -> bool {
        !self.awaits_response() || self.wqe.opcode == WqeOpcode::AtomicWrite
    }

    /// True if the work request is never sent, because its own side refuses it. A READ or atomic
    /// with bad local buffers is sent, because the requester checks them when the response comes.
    pub fn is_rejected_locally(&self) -> bool {
        let fetches = self.is_atomic() || self.wqe.opcode == WqeOpcode::RdmaRead;
        let lkey = matches!(
            self.fault,
            PlannedFault::LkeyUnknown | PlannedFault::LkeyBounds | PlannedFault::LkeyAccess
        );
        self.fault.is_local() && !(fetches && lkey)
    }

    /// True if the work request is an atomic.
    pub fn is_atomic(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
        )
    }

    /// True if the work request sends no packet.
    pub fn is_silent(&self) -> bool {
        matches!(self.wqe.opcode, WqeOpcode::LocalInv | WqeOpcode::FastReg)
    }

    /// True if the message takes a receive of the other side. Only such messages may be solicited
    /// (IBTA 9.2.3).
    pub fn takes_receive(&self) -> bool {
        self.is_send() || self.wqe.opcode == WqeOpcode::RdmaWriteImm
    }

    /// True if the work request is a SEND of any kind.
    pub fn is_send(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInv
        )
    }

    /// True if the message takes a receive.
    pub fn takes_recv(&self) -> bool {
        self.is_send() || self.wqe.opcode == WqeOpcode::RdmaWriteImm
    }

    /// True if the message has immediate data.
    pub fn has_imm(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::SendImm | WqeOpcode::RdmaWriteImm
        )
    }

    /// Returns the number of PSNs that the work request needs.
    pub fn psns_needed(&self, mtu: u32) -> u32 {
        if self.is_silent() {
            0
        } else if self.is_atomic() || self.is_placed() {
            1
        } else {
            self.length.div_ceil(mtu).max(1)
        }
    }

    /// Returns the PSN after the last one.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.psns)
    }

    /// Returns the first PSN, and the PSN after the last, of the part that is one message to the
    /// peer and contains this PSN: a part of a READ, or the whole work request.
    pub fn message_at(&self, psn: u64) -> (u64, u64) {
        if self.wqe.opcode != WqeOpcode::RdmaRead {
            return (self.first, self.end());
        }
        let part = u64::from(self.part);
        let first = self.first + (psn - self.first) / part * part;
        (first, self.end().min(first + part))
    }
}

/// A receive work request.
#[derive(Debug, Default)]
pub struct RecvModel {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Index of the receive's WQE.
    pub index: u32,
    /// Buffers of the receive.
    pub sges: Vec<Sge>,
    /// Protection domain of the receive's queue.
    pub pd: u32,
    /// Number of bytes that the buffers hold.
    pub capacity: u32,
    /// Deliberate fault of the receive.
    pub fault: PlannedFault,
    /// Error that the host reports when the receive is taken.
    pub malformed: Option<Syndrome>,
    /// True if the receive is complete.
    pub is_complete: bool,
    /// True if the receive's memory may go away.
    pub vanishing: bool,
}

/// A receive queue of one queue pair, or a shared one.
#[derive(Debug, Default)]
pub struct RecvQueueModel {
    /// Receives that were posted since the last reset.
    pub posts: Vec<u32>,
    /// Number of receives that were taken.
    pub taken: usize,
    /// Number of receives that senders will need and that are not posted yet.
    pub owed: u32,
    /// True if the queue is an SRQ.
    pub shared: bool,
    /// True if the queue cannot be read any more.
    pub is_failed: bool,
}

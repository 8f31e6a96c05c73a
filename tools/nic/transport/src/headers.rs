// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The transport headers as valid values: the service and the operation of a packet, and the fields
//! of its headers. The wire format, packets and the interface to the host are all made of them.

use verbena_abi::ctx::access;
use verbena_abi::wqe::{flush_level, flush_placement};

/// Transport service, which the top three bits of a BTH opcode name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection (RC).
    Rc,
    /// Unreliable connection (UC).
    Uc,
    /// Unreliable datagram (UD).
    Ud,
    /// Extended reliable connection (annex A14).
    Xrc,
}

impl Transport {
    /// True if the responder acknowledges the requests of this service.
    #[inline]
    pub fn is_reliable(self) -> bool {
        matches!(self, Transport::Rc | Transport::Xrc)
    }
}

/// Header that the last packet of a SEND carries in addition to its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// No header in addition to the payload.
    None,
    /// Immediate data, in network order.
    Imm([u8; 4]),
    /// R_Key that the responder is to invalidate.
    Invalidate(u32),
}

/// RDMA extended transport header (IBTA 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address at the responder.
    pub addr: u64,
    /// R_Key of the memory region.
    pub rkey: u32,
    /// DMA length: number of bytes of the whole message.
    pub length: u32,
}

/// FLUSH extended transport header (IBTA A19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feth {
    /// Placement type: `flush_placement`, 4 bits.
    pub placement: u8,
    /// Selectivity level: `flush_level`, 2 bits.
    pub level: u8,
}

impl Feth {
    /// True if placement type and selectivity level have defined values.
    pub fn is_known(self) -> bool {
        let known = flush_placement::ALL;
        self.placement & known != 0
            && self.placement & !known == 0
            && matches!(self.level, flush_level::RANGE | flush_level::REGION)
    }

    /// True if the FLUSH is of a whole memory region.
    pub fn is_whole(self) -> bool {
        self.level == flush_level::REGION
    }

    /// Returns the access rights that the queue pair and the memory region must have.
    pub fn permission(self) -> u32 {
        let right = |placement, right| {
            if self.placement & placement != 0 {
                right
            } else {
                0
            }
        };
        right(flush_placement::GLOBAL, access::FLUSH_GLOBAL)
            | right(flush_placement::PERSISTENT, access::FLUSH_PERSISTENT)
    }
}

/// Code of a NAK (IBTA 9.7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// Code 0: PSN sequence error.
    Sequence,
    /// Code 1: invalid request.
    InvalidRequest,
    /// Code 2: remote access error.
    RemoteAccess,
    /// Code 3: remote operational error.
    RemoteOperational,
    /// Code 4: invalid RD request.
    InvalidRd,
    /// Between local peers only, never on a wire: the memory of the *sender* cannot be read.
    SourceFault,
}

/// Syndrome of an AETH (IBTA 9.7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AethSyndrome {
    /// Positive acknowledgement with a credit count code; 31 means that credits are not used.
    Ack {
        /// Credit count code, 5 bits.
        credits: u8,
    },
    /// Receiver not ready (RNR) NAK with a timer code.
    Rnr {
        /// Timer code: 5 bits, index of table 45.
        timer: u8,
    },
    /// Negative acknowledgement (NAK) with a code.
    Nak(NakCode),
}

/// ACK extended transport header (AETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Kind of the acknowledgement.
    pub syndrome: AethSyndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// An atomic operation on 8 aligned bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// Expected value of the memory.
        compare: u64,
        /// New value of the memory.
        swap: u64,
    },
    /// Adds `add` to the value.
    FetchAdd {
        /// Addend of the operation.
        add: u64,
    },
}

/// Operation of a packet, with the headers that belong to it. In a message of several packets,
/// `first` and `last` of the [`Packet`](crate::Packet) determine which headers the packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// SEND; the last packet has the tail.
    Send(SendTail),
    /// RDMA WRITE, with immediate data or without.
    Write {
        /// Header of the first packet.
        reth: Option<Reth>,
        /// Immediate data in network order, in the last packet of a WRITE with immediate.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ request with its RETH.
    ReadRequest(Reth),
    /// RDMA READ response; the first and the last packet have the AETH. The response to an ATOMIC
    /// WRITE or a FLUSH is a READ response of no bytes.
    ReadResponse(Option<Aeth>),
    /// Acknowledgement of any kind.
    Ack(Aeth),
    /// Atomic request with its operands.
    Atomic {
        /// Virtual address at the responder.
        addr: u64,
        /// R_Key of the memory region.
        rkey: u32,
        /// Atomic operation that the responder executes.
        op: AtomicOp,
    },
    /// ATOMIC WRITE; the payload is the value to write.
    AtomicWrite(Reth),
    /// FLUSH request with its headers.
    Flush(Feth, Reth),
    /// Atomic response, with the value before the operation.
    AtomicResponse(Aeth, u64),
    /// Congestion notification packet (CNP): a router has marked packets that the queue pair sent
    /// (A17.9.3).
    Cnp,
    /// Request with a reserved or unsupported operation, which is the lower five bits of its
    /// opcode. The headers after the BTH are not known, so the packet has no payload.
    Unknown(u8),
}

impl PacketKind {
    /// True for a request, which a responder handles.
    pub fn is_request(&self) -> bool {
        !matches!(
            self,
            PacketKind::ReadResponse(_)
                | PacketKind::Ack(_)
                | PacketKind::AtomicResponse(..)
                | PacketKind::Cnp
        )
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A packet as queue pairs exchange it: the valid representation of a frame's transport headers, and a payload that is
//! passed by reference between local peers.
//!
//! A *super-packet* stands for `psns` consecutive packets of one message. It has the effects of these packets one
//! after the other, and [`Packet::split`] makes them out of it where a real wire needs them.

mod join;

use crate::host::{self, Gather, Source, Syndrome};
use crate::psn;
use crate::wire::{self, Path};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use verbena_abi::ctx::access;
use verbena_abi::wqe::{flush_level, flush_placement};

/// Transport service, the top three bits of a BTH opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection (annex A14).
    Xrc,
}

impl Transport {
    /// Whether what is sent is acknowledged.
    #[inline]
    pub fn is_reliable(self) -> bool {
        matches!(self, Transport::Rc | Transport::Xrc)
    }
}

/// What the last packet of a SEND carries beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// Nothing.
    None,
    /// Immediate data, in network order.
    Imm([u8; 4]),
    /// Key to invalidate.
    Invalidate(u32),
}

/// RDMA extended transport header (IBTA 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub addr: u64,
    /// R_Key.
    pub rkey: u32,
    /// DMA length: bytes of the whole message.
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
    /// Whether it asks for something that exists.
    pub fn is_known(self) -> bool {
        let known = flush_placement::ALL;
        self.placement & known != 0
            && self.placement & !known == 0
            && matches!(self.level, flush_level::RANGE | flush_level::REGION)
    }

    /// Whether a whole memory region is meant.
    pub fn is_whole(self) -> bool {
        self.level == flush_level::REGION
    }

    /// The rights that the queue pair and the memory region have to have.
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
    /// 0: PSN sequence error.
    Sequence,
    /// 1: invalid request.
    InvalidRequest,
    /// 2: remote access error.
    RemoteAccess,
    /// 3: remote operational error.
    RemoteOperational,
    /// 4: invalid RD request.
    InvalidRd,
    /// Never on a wire: a local peer found that the *sender's* memory cannot be read.
    SourceFault,
}

/// Syndrome of an AETH (IBTA 9.7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AethSyndrome {
    /// Positive, with a credit count code; 31 means that credits are not used.
    Ack {
        /// 5 bits.
        credits: u8,
    },
    /// Receiver not ready, with a timer code.
    Rnr {
        /// 5 bits, index of table 45.
        timer: u8,
    },
    /// Negative.
    Nak(NakCode),
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Kind of acknowledgement.
    pub syndrome: AethSyndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// Operation of a packet, with the headers that belong to it. Where a message has several packets, `first` and `last`
/// of the [`Packet`] tell which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND; the tail comes with the last packet.
    Send(SendTail),
    /// RDMA WRITE.
    Write {
        /// With the first packet.
        reth: Option<Reth>,
        /// With the last packet of a WRITE with immediate, in network order.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ request.
    ReadRequest(Reth),
    /// RDMA READ response; the AETH comes with the first and the last packet. ATOMIC WRITE and FLUSH are answered by one of
    /// no bytes.
    ReadResponse(Option<Aeth>),
    /// Acknowledgement of any kind.
    Ack(Aeth),
    /// Atomic request.
    Atomic {
        /// Virtual address.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// The operation.
        op: crate::host::AtomicOp,
    },
    /// ATOMIC WRITE; the payload is what to write.
    AtomicWrite(Reth),
    /// FLUSH.
    Flush(Feth, Reth),
    /// Atomic response, with the value before the operation.
    AtomicResponse(Aeth, u64),
    /// Congestion notification (CNP): a router has marked what the queue pair sends (A17.9.3).
    Cnp,
    /// A request whose operation is reserved or not served: the lower five bits of its opcode. Nothing behind its BTH has a
    /// meaning, so it has no payload.
    Unknown(u8),
}

impl Kind {
    /// Whether it is a request, which a responder handles.
    pub fn is_request(&self) -> bool {
        !matches!(
            self,
            Kind::ReadResponse(_) | Kind::Ack(_) | Kind::AtomicResponse(..) | Kind::Cnp
        )
    }
}

/// What only datagrams carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The path from the sender's side.
    pub path: Path,
    /// Q_Key (DETH).
    pub qkey: u32,
    /// GRH as the receiver stores it: for IPv4, 20 bytes that mean nothing, then the IPv4 header.
    pub grh: [u8; 40],
}

impl Default for Datagram {
    fn default() -> Self {
        Self {
            path: Path::default(),
            qkey: 0,
            grh: [0; 40],
        }
    }
}

/// What a responder and its READ responses between local peers have in common.
#[derive(Debug)]
pub struct Lender {
    /// False once the responder was reset or destroyed.
    pub(crate) alive: Cell<bool>,
    /// The PSN at which a response could not be read, and why, when the peer's copy found that. The peer asks again from there,
    /// and is told.
    pub(crate) fault: Cell<Option<(u32, Syndrome)>>,
}

impl Default for Lender {
    fn default() -> Self {
        Self {
            alive: Cell::new(true),
            fault: Cell::default(),
        }
    }
}

/// Bytes of a packet.
#[derive(Clone, Debug, Default)]
pub enum Payload {
    /// None.
    #[default]
    None,
    /// A part of a local sender's message.
    Gather {
        /// The message.
        gather: Rc<Gather>,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        length: u32,
    },
    /// A part of a local responder's memory, for a READ response. Checked again when it is copied.
    Region {
        /// The responder that lends it.
        lender: Rc<Lender>,
        /// Protection domain of the responder.
        pd: u32,
        /// Key.
        key: u32,
        /// First address.
        addr: u64,
        /// Number of bytes.
        length: u32,
        /// The responder, as in [`KeyUse::owner`](crate::host::KeyUse::owner).
        owner: u64,
    },
    /// Bytes of a frame, or a copy of the sender's.
    Bytes {
        /// The buffer that they are in.
        bytes: Rc<Vec<u8>>,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        length: u32,
    },
}

impl Payload {
    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        match self {
            Payload::None => 0,
            Payload::Gather { length, .. }
            | Payload::Region { length, .. }
            | Payload::Bytes { length, .. } => *length,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Payload of bytes that were received.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Payload::None;
        }
        Payload::Bytes {
            bytes: Rc::new(bytes.to_vec()),
            offset: 0,
            length: bytes.len() as u32,
        }
    }

    /// Whether the bytes can still be read. A payload that cannot makes its packet a lost one.
    #[inline]
    pub fn is_alive(&self) -> bool {
        match self {
            Payload::Gather { gather, .. } => gather.is_alive(),
            Payload::Region { lender, .. } => lender.alive.get(),
            Payload::None | Payload::Bytes { .. } => true,
        }
    }

    /// A source for [`Host::copy`](crate::host::Host::copy).
    #[inline]
    pub fn source(&self) -> Source<'_> {
        match self {
            Payload::None => Source::Bytes(&[]),
            Payload::Gather {
                gather,
                offset,
                length,
            } => gather.source(*offset, *length),
            Payload::Region {
                pd,
                key,
                addr,
                length,
                owner,
                ..
            } => Source::Region {
                pd: *pd,
                owner: *owner,
                key: *key,
                addr: *addr,
                length: *length,
            },
            Payload::Bytes {
                bytes,
                offset,
                length,
            } => Source::Bytes(host::part(bytes, *offset, *length)),
        }
    }

    /// Bytes `offset..offset + length` of it.
    pub fn slice(&self, from: u32, count: u32) -> Payload {
        let from = from.min(self.len());
        let count = count.min(self.len().saturating_sub(from));
        if count == 0 {
            return Payload::None;
        }
        let mut part = self.clone();
        match &mut part {
            Payload::None => {}
            Payload::Gather { offset, length, .. } | Payload::Bytes { offset, length, .. } => {
                *offset = offset.saturating_add(from);
                *length = count;
            }
            Payload::Region { addr, length, .. } => {
                *addr = addr.wrapping_add(u64::from(from));
                *length = count;
            }
        }
        part
    }
}

/// A packet, or `psns` consecutive packets of one message.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Transport service.
    pub transport: Transport,
    /// Operation and headers.
    pub kind: Kind,
    /// Begins a message.
    pub first: bool,
    /// Ends a message.
    pub last: bool,
    /// Solicited event, valid with the last packet.
    pub solicited: bool,
    /// The requester wants an acknowledgement.
    pub ack_req: bool,
    /// Partition key.
    pub pkey: u16,
    /// Destination QPN.
    pub dst_qpn: u32,
    /// Source QPN. On a wire only datagrams have it.
    pub src_qpn: u32,
    /// First PSN.
    pub psn: u32,
    /// Number of packets this stands for; 1 on a wire.
    pub psns: u32,
    /// Requests of extended connections only: the shared receive queue at the responder.
    pub srqn: u32,
    /// A router on the way has marked it: congestion experienced (CE, RFC 3168). Nothing that is sent.
    pub marked: bool,
    /// Datagrams only.
    pub datagram: Option<Rc<Datagram>>,
    /// The bytes.
    pub payload: Payload,
}

impl Packet {
    /// Drops the first `count` of a super-packet's packets, which have `mtu` bytes each.
    pub fn trim_front(&mut self, count: u32, mtu: u32) {
        let count = count.min(self.psns.saturating_sub(1));
        if count == 0 {
            return;
        }
        let bytes = count.saturating_mul(mtu);
        let rest = self.payload.len().saturating_sub(bytes);
        self.payload = self.payload.slice(bytes, rest);
        self.psn = psn::add(self.psn, count);
        self.psns = self.psns.saturating_sub(count);
        self.first = false;
        match &mut self.kind {
            Kind::Write { reth, .. } => *reth = None,
            Kind::ReadResponse(aeth) if !self.last => *aeth = None,
            _ => {}
        }
    }

    /// Splits off the first `count` packets of a super-packet; what is left begins after them.
    pub fn split_front(&mut self, count: u32, mtu: u32) -> Packet {
        let count = count.min(self.psns.saturating_sub(1));
        let mut front = self.clone();
        front.psns = count;
        front.payload = self.payload.slice(0, count.saturating_mul(mtu));
        front.last = false;
        front.solicited = false;
        front.ack_req = false;
        match &mut front.kind {
            Kind::Send(tail) => *tail = SendTail::None,
            Kind::Write { imm, .. } => *imm = None,
            Kind::ReadResponse(aeth) if !front.first => *aeth = None,
            _ => {}
        }
        self.trim_front(count, mtu);
        front
    }

    /// The single packets of a super-packet, in order.
    pub fn split(self, mtu: u32) -> Split {
        Split {
            rest: Some(self),
            mtu,
        }
    }

    /// The BTH opcode.
    pub fn opcode(&self) -> u8 {
        wire::opcode::of(self)
    }
}

/// Iterator over the single packets of a super-packet.
#[derive(Debug)]
pub struct Split {
    rest: Option<Packet>,
    mtu: u32,
}

impl Iterator for Split {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        let rest = self.rest.as_mut()?;
        if rest.psns > 1 && !matches!(rest.kind, Kind::ReadRequest(_)) {
            Some(rest.split_front(1, self.mtu))
        } else {
            self.rest.take()
        }
    }
}

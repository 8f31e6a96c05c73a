// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A packet as queue pairs exchange it: the valid representation of a frame's transport headers,
//! and a payload that local peers pass by reference.
//!
//! A *super-packet* stands for `psns` consecutive packets of one message. It has the effects of
//! these packets in their order, and [`Packet::split`] makes the single packets for a real wire.

mod join;

use crate::copy::{self, CopySource};
use crate::gather::Gather;
pub use crate::headers::{
    Aeth, AethSyndrome, Feth, NakCode, PacketKind, Reth, SendTail, Transport,
};
use crate::psn;
use crate::wire::{self, Path};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use verbena_abi::syndrome::Syndrome;

/// Headers that only datagrams carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramHeaders {
    /// Path of the datagram from the sender's point of view.
    pub path: Path,
    /// Q_Key of the DETH.
    pub qkey: u32,
    /// GRH as the receiver stores it; for IPv4, 20 bytes without meaning and then the IPv4 header.
    /// The bytes have no meaning if the path has no GRH ([`Path::has_grh`]).
    pub grh: [u8; 40],
}

impl Default for DatagramHeaders {
    fn default() -> Self {
        Self {
            path: Path::default(),
            qkey: 0,
            grh: [0; 40],
        }
    }
}

/// State that a responder shares with its READ responses to local peers.
#[derive(Debug)]
pub struct ReadLease {
    /// False after the responder was reset or destroyed.
    pub(crate) alive: Cell<bool>,
    /// PSN and cause of a response that the local peer could not copy because the responder's
    /// memory could not be read. The peer repeats its request from this PSN, and the responder then
    /// refuses it with this cause.
    pub(crate) fault: Cell<Option<(u32, Syndrome)>>,
}

impl Default for ReadLease {
    fn default() -> Self {
        Self {
            alive: Cell::new(true),
            fault: Cell::default(),
        }
    }
}

/// Payload of a packet.
#[derive(Clone, Debug, Default)]
pub enum Payload {
    /// No payload.
    #[default]
    None,
    /// A part of the message of a local sender.
    Gather {
        /// Gather of the message.
        gather: Rc<Gather>,
        /// Offset of the first byte in the message.
        offset: u32,
        /// Number of bytes of the payload.
        length: u32,
    },
    /// A part of a local responder's memory, for a READ response. The copy checks its key again.
    Region {
        /// State of the responder that lends its memory.
        lease: Rc<ReadLease>,
        /// Protection domain of the responder.
        pd: u32,
        /// R_Key of the READ request.
        key: u32,
        /// First address of the part.
        addr: u64,
        /// Number of bytes of the payload.
        length: u32,
        /// Responder, as in [`KeyUse::owner`](crate::host::KeyUse::owner).
        owner: u64,
    },
    /// Bytes of a frame, or a copy of the sender's bytes.
    Bytes {
        /// Buffer that holds the bytes.
        bytes: Rc<Vec<u8>>,
        /// Offset of the first byte in the buffer.
        offset: u32,
        /// Number of bytes of the payload.
        length: u32,
    },
}

impl Payload {
    /// Returns the number of bytes of the payload.
    #[inline]
    pub fn len(&self) -> u32 {
        match self {
            Payload::None => 0,
            Payload::Gather { length, .. }
            | Payload::Region { length, .. }
            | Payload::Bytes { length, .. } => *length,
        }
    }

    /// True if the payload has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a payload with a copy of received bytes.
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

    /// True if the bytes can still be read. A packet with a payload that cannot be read counts as
    /// lost.
    #[inline]
    pub fn is_alive(&self) -> bool {
        match self {
            Payload::Gather { gather, .. } => gather.is_alive(),
            Payload::Region { lease: lender, .. } => lender.alive.get(),
            Payload::None | Payload::Bytes { .. } => true,
        }
    }

    /// Returns the payload as a source for [`Host::copy`](crate::host::Host::copy).
    #[inline]
    pub fn source(&self) -> CopySource<'_> {
        match self {
            Payload::None => CopySource::Bytes(&[]),
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
            } => CopySource::Region {
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
            } => CopySource::Bytes(copy::part(bytes, *offset, *length)),
        }
    }

    /// Returns bytes `from..from + count` of the payload, or fewer if the payload ends before.
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
    /// Transport service of the packet.
    pub transport: Transport,
    /// Operation and headers of the packet.
    pub kind: PacketKind,
    /// True if the packet begins a message.
    pub first: bool,
    /// True if the packet ends a message.
    pub last: bool,
    /// Solicited event bit, valid in the last packet.
    pub solicited: bool,
    /// Acknowledge request bit of the requester.
    pub ack_req: bool,
    /// Partition key of the sender.
    pub pkey: u16,
    /// QPN of the destination.
    pub dst_qpn: u32,
    /// QPN of the source. On a wire only datagrams have it.
    pub src_qpn: u32,
    /// PSN of the first packet.
    pub psn: u32,
    /// Number of packets that the super-packet stands for; 1 on a wire.
    pub psns: u32,
    /// Requests of extended connections: number of the shared receive queue at the responder.
    pub srqn: u32,
    /// Received packets: true if a router has marked the packet "congestion experienced" (CE,
    /// RFC 3168).
    pub marked: bool,
    /// Headers of a datagram; `None` for connections.
    pub datagram: Option<Rc<DatagramHeaders>>,
    /// Payload of the packet.
    pub payload: Payload,
}

impl Packet {
    /// Drops the first `count` packets of a super-packet, which have `mtu` bytes each.
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
            PacketKind::Write { reth, .. } => *reth = None,
            PacketKind::ReadResponse(aeth) if !self.last => *aeth = None,
            _ => {}
        }
    }

    /// Splits off and returns the first `count` packets of a super-packet; the super-packet then
    /// begins after them.
    pub fn split_front(&mut self, count: u32, mtu: u32) -> Packet {
        let count = count.min(self.psns.saturating_sub(1));
        let mut front = self.clone();
        front.psns = count;
        front.payload = self.payload.slice(0, count.saturating_mul(mtu));
        front.last = false;
        front.solicited = false;
        front.ack_req = false;
        match &mut front.kind {
            PacketKind::Send(tail) => *tail = SendTail::None,
            PacketKind::Write { imm, .. } => *imm = None,
            PacketKind::ReadResponse(aeth) if !front.first => *aeth = None,
            _ => {}
        }
        self.trim_front(count, mtu);
        front
    }

    /// Returns the single packets of a super-packet, in order.
    pub fn split(self, mtu: u32) -> SinglePackets {
        SinglePackets {
            rest: Some(self),
            mtu,
        }
    }

    /// Returns the BTH opcode of the packet.
    pub fn opcode(&self) -> u8 {
        wire::opcode::of(self.transport, &self.kind, (self.first, self.last))
    }
}

/// Iterator over the single packets of a super-packet.
#[derive(Debug)]
pub struct SinglePackets {
    rest: Option<Packet>,
    mtu: u32,
}

impl Iterator for SinglePackets {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        let rest = self.rest.as_mut()?;
        if rest.psns > 1 && !matches!(rest.kind, PacketKind::ReadRequest(_)) {
            Some(rest.split_front(1, self.mtu))
        } else {
            self.rest.take()
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A second requester and responder, deliberately simple, written from the rules alone (`Documentation/rules.md` and IBTA
//! chapter 9) by someone who had not read the engine. They are handed the packets that the engine is handed, and what it
//! sends, completes and does to memory is compared with what they say.
//!
//! | file | what |
//! | --- | --- |
//! | `tables.rs` | timers and codes of the specification, written down a second time; PSNs that do not wrap |
//! | `responder.rs`, `execute.rs` | reliable connections: what each request does |
//! | `keep.rs` | requests that come ahead of a gap |
//! | `refuse.rs` | what a refusal consists of |
//! | `answers.rs` | answers that are owed or allowed, and every answer that leaves |
//! | `requester.rs`, `work.rs` | reliable connections: when what may be sent, and when it has to complete |
//! | `responses.rs` | what each response acknowledges, and which retry it costs |
//! | `limits.rs` | end-to-end credits of the requester |
//! | `unreliable.rs` | responders of UC and UD |
//!
//! Neither knows which work request of the peer a packet belongs to: they judge by packets, keys and receives alone, so
//! forged packets and those of an earlier life are judged like any others. A super-packet is its packets, one after the
//! other. Where the specification leaves the moment open, an obligation is noted; it has to be met when the queue pair
//! says that it has nothing to do.
//!
//! What they leave alone is *loose* until the next life: a sender's or a responder's memory that went away under a packet
//! between local peers, and packets that no frame can carry.

pub mod answers;
pub mod execute;
pub mod keep;
pub mod limits;
pub mod refuse;
pub mod requester;
pub mod responder;
pub mod responses;
pub mod tables;
pub mod unreliable;
pub mod work;

use verbena_roce::host::{AtomicOp, KeyUse, WcOpcode, WcStatus};
use verbena_roce::packet::{Kind, Packet, Payload, Transport};

/// A receive that can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// From its work request.
    pub wr_id: u64,
    /// Bytes that it holds.
    pub capacity: u64,
    /// It cannot be used.
    pub malformed: bool,
}

/// What the next receive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// None is posted.
    Empty,
    /// None ever will be.
    Dead,
    /// This one.
    Receive(Receive),
}

/// What a responder asks of its surroundings.
pub trait World {
    /// Whether a key may be used so.
    fn allows(&self, key: &KeyUse) -> bool;
    /// Whether the sender's memory can be read.
    fn readable(&self, payload: &Payload) -> bool;
    /// The next receive of its queue.
    fn next_receive(&self) -> Next;
    /// Whether bytes `offset..offset + length` of a receive can be written.
    fn stores(&self, wr_id: u64, offset: u64, length: u64) -> bool;
    /// Whether a key can be invalidated.
    fn invalidates(&self, key: u32) -> bool;
}

/// A receive that completes. In error only the first two count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// From its work request.
    pub wr_id: u64,
    /// Status.
    pub status: WcStatus,
    /// What arrived.
    pub opcode: WcOpcode,
    /// Bytes.
    pub byte_len: u64,
    /// Immediate data.
    pub imm: Option<[u8; 4]>,
    /// Key that was invalidated.
    pub invalidated: Option<u32>,
    /// Solicited event.
    pub solicited: bool,
}

impl Received {
    /// One in error.
    pub fn failed(wr_id: u64, status: WcStatus) -> Self {
        Self {
            wr_id,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: true,
        }
    }
}

/// What one request does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Memory written: key, address, bytes.
    pub written: Option<(u32, u64, u64)>,
    /// Bytes put into the receive: offset, bytes.
    pub stored: Option<(u64, u64)>,
    /// Atomic executed: key, address, operation.
    pub atomic: Option<(u32, u64, AtomicOp)>,
    /// Key that was to be invalidated.
    pub invalidated: Option<u32>,
    /// Receive taken.
    pub taken: Option<u64>,
    /// Receives completed, but for what a refusal says of them: with an SRQ, one that is given up may be the first of two.
    pub received: Vec<Received>,
    /// COMM_EST.
    pub established: bool,
}

impl Effects {
    /// A receive completes.
    pub fn complete(&mut self, received: Received) {
        self.received.push(received);
    }

    /// Bytes are written to memory.
    pub fn write(&mut self, key: u32, addr: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (_, from, so_far) = *self.written.get_or_insert((key, addr, 0));
        let next = from.wrapping_add(so_far);
        assert_eq!(next, addr, "a request writes to two places");
        self.written = Some((key, from, so_far + length));
    }

    /// Bytes are put into a receive.
    pub fn store(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (from, so_far) = *self.stored.get_or_insert((offset, 0));
        assert_eq!(from + so_far, offset, "a SEND is put into two places");
        self.stored = Some((from, so_far + length));
    }
}

/// Whether a frame can carry it: headers and place in the message go together.
pub fn is_possible(packet: &Packet) -> bool {
    let place = match packet.kind {
        Kind::Write { reth, imm } => {
            reth.is_some() == packet.first && (imm.is_none() || packet.last)
        }
        Kind::Send(tail) => tail == verbena_roce::packet::SendTail::None || packet.last,
        Kind::ReadResponse(aeth) => aeth.is_some() == (packet.first || packet.last),
        Kind::AtomicWrite(_) => packet.first && packet.last,
        _ => packet.first && packet.last && packet.payload.is_empty(),
    };
    let solicits = matches!(
        packet.kind,
        Kind::Send(_) | Kind::Write { imm: Some(_), .. }
    );
    place && (solicits || !packet.solicited || packet.kind.is_request())
}

/// Whether a packet is of the queue pair's service and partition (IBTA 9.6.1.1, 10.9.3).
pub fn belongs(packet: &Packet, transport: Transport, pkey: u16) -> bool {
    let full = (packet.pkey | pkey) & 0x8000 != 0;
    packet.transport == transport && (packet.pkey ^ pkey) & 0x7fff == 0 && full
}

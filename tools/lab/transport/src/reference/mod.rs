// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A second requester and responder, deliberately simple, written from the rules alone
//! (`Documentation/rules.md` and IBTA chapter 9) by an author who had not read the engine. Both are
//! given the packets that the engine is given. The packets, completions and memory accesses of the
//! engine are compared with those that the reference requires.
//!
//! | file | contents |
//! | --- | --- |
//! | `tables.rs` | timers and codes of the specification, a second time; PSNs that do not wrap |
//! | `responder.rs`, `execute.rs` | reliable connections: the effects of each request |
//! | `reassembly.rs` | requests that arrive ahead of a gap |
//! | `refuse.rs` | the parts of a refusal |
//! | `answers.rs` | answers that are owed or allowed, and every answer that leaves |
//! | `requester.rs`, `work.rs` | reliable connections: when a request may be sent, must complete |
//! | `responses.rs` | the requests that each response acknowledges, and the retry that it costs |
//! | `credit_reference.rs` | end-to-end credits of the requester |
//! | `unreliable.rs` | responders of UC and UD |
//!
//! Neither half knows to which work request of the peer a packet belongs. Both judge by packets,
//! keys and receives alone, so forged packets and packets from before the last reset are judged
//! like any others. A super-packet is judged as its packets, one after the other. Where the
//! specification leaves the moment open, the reference records an obligation, which has to be met
//! when the queue pair says that it has nothing to do.
//!
//! In two cases the reference makes no statement and is *loose* until the queue pair goes to RTR
//! again: a sender's or a responder's memory that went away under a packet between local peers, and
//! packets that no frame can carry.

pub mod answers;
pub mod credit_reference;
pub mod execute;
pub mod reassembly;
pub mod refuse;
pub mod requester;
pub mod responder;
pub mod responses;
pub mod tables;
pub mod unreliable;
pub mod work;

use verbena_transport::host::{AtomicOp, KeyUse, WcOpcode, WcStatus};
use verbena_transport::packet::{Packet, PacketKind, Payload, Transport};

/// A receive that a message can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedReceive {
    /// Identifier from the receive's work request.
    pub wr_id: u64,
    /// Bytes that the receive holds.
    pub capacity: u64,
    /// True if the receive's WQE is malformed and cannot be used.
    pub malformed: bool,
}

/// The state of the receive queue as the responder finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextReceive {
    /// No receive is posted.
    Empty,
    /// The queue is in error and never supplies a receive.
    QueueError,
    /// The next receive of the queue.
    Receive(PostedReceive),
}

/// The surroundings that a responder consults while it judges a packet.
pub trait Surroundings {
    /// True if the key allows this access.
    fn allows(&self, key: &KeyUse) -> bool;
    /// True if the sender's memory under this payload can be read.
    fn readable(&self, payload: &Payload) -> bool;
    /// Returns the next receive of the responder's queue.
    fn next_receive(&self) -> NextReceive;
    /// True if bytes `offset..offset + length` of a receive can be written.
    fn stores(&self, wr_id: u64, offset: u64, length: u64) -> bool;
    /// True if the key can be invalidated.
    fn invalidates(&self, key: u32) -> bool;
}

/// A receive that completes. In error only the first two fields count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveCompletion {
    /// Identifier from the receive's work request.
    pub wr_id: u64,
    /// Status of the completion.
    pub status: WcStatus,
    /// Opcode of the completion.
    pub opcode: WcOpcode,
    /// Bytes of the message that arrived.
    pub byte_len: u64,
    /// Immediate data of the message.
    pub imm: Option<[u8; 4]>,
    /// Key that the message invalidated.
    pub invalidated: Option<u32>,
    /// True if the sender asked for a solicited event.
    pub solicited: bool,
}

impl ReceiveCompletion {
    /// Returns a receive that completes in error.
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

/// The effects of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestEffects {
    /// Memory written: key, address, bytes.
    pub written: Option<(u32, u64, u64)>,
    /// Bytes put into the receive: offset, bytes.
    pub stored: Option<(u64, u64)>,
    /// Atomic executed: key, address, operation.
    pub atomic: Option<(u32, u64, AtomicOp)>,
    /// Key that the request asked to invalidate.
    pub invalidated: Option<u32>,
    /// Identifier of the receive that the request took.
    pub taken: Option<u64>,
    /// Receives completed, except those that a refusal completes. With an SRQ there may be two,
    /// because an abandoned receive may complete before another.
    pub received: Vec<ReceiveCompletion>,
    /// True if COMM_EST is due.
    pub established: bool,
}

impl RequestEffects {
    /// Adds a receive that completes.
    pub fn complete(&mut self, received: ReceiveCompletion) {
        self.received.push(received);
    }

    /// Adds bytes written to memory, which have to continue those written before.
    pub fn write(&mut self, key: u32, addr: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (_, from, so_far) = *self.written.get_or_insert((key, addr, 0));
        let next = from.wrapping_add(so_far);
        assert_eq!(next, addr, "a request writes to two places");
        self.written = Some((key, from, so_far + length));
    }

    /// Adds bytes put into a receive, which have to continue those put there before.
    pub fn store(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (from, so_far) = *self.stored.get_or_insert((offset, 0));
        assert_eq!(from + so_far, offset, "a SEND is put into two places");
        self.stored = Some((from, so_far + length));
    }
}

/// True if a frame can carry the packet: its headers fit its place in the message.
pub fn is_possible(packet: &Packet) -> bool {
    let place = match packet.kind {
        PacketKind::Write { reth, imm } => {
            reth.is_some() == packet.first && (imm.is_none() || packet.last)
        }
        PacketKind::Send(tail) => tail == verbena_transport::packet::SendTail::None || packet.last,
        PacketKind::ReadResponse(aeth) => aeth.is_some() == (packet.first || packet.last),
        PacketKind::AtomicWrite(_) => packet.first && packet.last,
        _ => packet.first && packet.last && packet.payload.is_empty(),
    };
    let solicits = matches!(
        packet.kind,
        PacketKind::Send(_) | PacketKind::Write { imm: Some(_), .. }
    );
    place && (solicits || !packet.solicited || packet.kind.is_request())
}

/// True if a packet is of the queue pair's service and partition (IBTA 9.6.1.1, 10.9.3).
pub fn belongs(packet: &Packet, transport: Transport, pkey: u16) -> bool {
    let full = (packet.pkey | pkey) & 0x8000 != 0;
    packet.transport == transport && (packet.pkey ^ pkey) & 0x7fff == 0 && full
}

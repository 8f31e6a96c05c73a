// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table of opcodes: the position of the packet in its message and the headers after the BTH,
//! for each opcode (IBTA 9.2, tables of opcodes; 9.3). Both directions of [`frame`](crate::frame)
//! use the table, and no other code contains the order of the headers.

use crate::headers::{AtomicOp, PacketKind, SendTail, Transport};

/// Operations: the lower five bits of an opcode.
#[allow(missing_docs)]
pub mod op {
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_LAST_IMM: u8 = 0x03;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMM: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_LAST_IMM: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMM: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub const READ_RESPONSE_LAST: u8 = 0x0f;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACKNOWLEDGE: u8 = 0x11;
    pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    /// Reliable datagrams (RD) only.
    pub const RESYNC: u8 = 0x15;
    pub const SEND_LAST_INVALIDATE: u8 = 0x16;
    pub const SEND_ONLY_INVALIDATE: u8 = 0x17;
    /// Memory placement extensions (annex A19).
    pub const FLUSH: u8 = 0x1c;
    /// Memory placement extensions (annex A19).
    pub const ATOMIC_WRITE: u8 = 0x1d;
}

/// Transport services: the upper three bits of an opcode.
#[allow(missing_docs)]
pub mod service {
    pub const RC: u8 = 0x00;
    pub const UC: u8 = 0x20;
    pub const RD: u8 = 0x40;
    pub const UD: u8 = 0x60;
    /// Congestion notification packets of RoCEv2 (A17) only.
    pub const CNP: u8 = 0x80;
    /// Extended reliable connection (annex A14).
    pub const XRC: u8 = 0xa0;
}

/// Opcode of the congestion notification packet, which has no row in the table.
pub const CNP: u8 = service::CNP | 0x01;

/// Number of bytes between the BTH and the ICRC of a CNP.
pub const CNP_PAYLOAD: usize = 16;

/// Mask of the operation bits of an opcode.
pub const OPERATION: u8 = 0x1f;

/// A header that may follow the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionHeader {
    /// Datagram extended transport header (DETH).
    Deth,
    /// XRC extended transport header (XRCETH).
    Xrceth,
    /// RDMA extended transport header (RETH).
    Reth,
    /// Atomic extended transport header (AtomicETH).
    AtomicEth,
    /// ACK extended transport header (AETH).
    Aeth,
    /// Atomic acknowledge extended transport header (AtomicAckETH).
    AtomicAckEth,
    /// Immediate data (ImmDt).
    ImmDt,
    /// Invalidate extended transport header (IETH).
    Ieth,
    /// FLUSH extended transport header (FETH).
    Feth,
}

impl ExtensionHeader {
    /// Returns the number of bytes of the header.
    pub const fn length(self) -> usize {
        match self {
            ExtensionHeader::Deth => super::deth::LEN,
            ExtensionHeader::Reth => super::reth::LEN,
            ExtensionHeader::AtomicEth => super::atomic_eth::LEN,
            ExtensionHeader::Aeth => super::aeth::LEN,
            ExtensionHeader::AtomicAckEth => super::atomic_ack_eth::LEN,
            ExtensionHeader::ImmDt => super::imm_dt::LEN,
            ExtensionHeader::Ieth => super::ieth::LEN,
            ExtensionHeader::Xrceth => super::xrceth::LEN,
            ExtensionHeader::Feth => super::feth::LEN,
        }
    }
}

/// Operation of a packet; its [`OpcodeRow`] has the position of the packet in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND of any kind.
    Send,
    /// RDMA WRITE, with immediate data or without.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledge: a positive or negative acknowledgement.
    Acknowledge,
    /// ATOMIC Acknowledge, the response to CmpSwap and FetchAdd.
    AtomicAcknowledge,
    /// CmpSwap, an atomic request.
    CompareSwap,
    /// FetchAdd, an atomic request.
    FetchAdd,
    /// FLUSH request of annex A19.
    Flush,
    /// ATOMIC WRITE request of annex A19.
    AtomicWrite,
    /// Operation that has a place in the table and is not supported yet.
    NotServed,
}

/// Row of the table: one operation.
#[derive(Clone, Copy, Debug)]
pub struct OpcodeRow {
    /// Name of the operation in the specification.
    pub name: &'static str,
    /// Operation that the packet requests or answers.
    pub operation: Operation,
    /// True if the packet begins a message.
    pub first: bool,
    /// True if the packet ends a message.
    pub last: bool,
    /// Headers after the BTH and after the headers of the service, in their order.
    pub headers: &'static [ExtensionHeader],
    /// True if a payload may follow the headers.
    pub payload: bool,
}

/// One transport service.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Name of the service.
    pub name: &'static str,
    /// Transport service in a [`Packet`](crate::Packet); `None` if it is not supported yet.
    pub transport: Option<Transport>,
    /// Headers before those of the operation.
    headers: &'static [ExtensionHeader],
    /// Operations that the service has, one bit for each.
    operations: u32,
}

impl Operation {
    /// True if the operation answers a request.
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
        )
    }
}

impl Service {
    /// Returns the headers before those of an operation: a response of an extended connection has
    /// no XRCETH (A14).
    pub fn headers_of(&self, row: &OpcodeRow) -> &'static [ExtensionHeader] {
        match self.transport {
            Some(Transport::Xrc) if row.operation.is_response() => &[],
            _ => self.headers,
        }
    }
}

const fn row(
    name: &'static str,
    operation: Operation,
    (first, last): (bool, bool),
    headers: &'static [ExtensionHeader],
    payload: bool,
) -> Option<OpcodeRow> {
    Some(OpcodeRow {
        name,
        operation,
        first,
        last,
        headers,
        payload,
    })
}

const FIRST: (bool, bool) = (true, false);
const MIDDLE: (bool, bool) = (false, false);
const LAST: (bool, bool) = (false, true);
const ONLY: (bool, bool) = (true, true);

/// Rows of the table, indexed by operation.
#[rustfmt::skip]
static ROWS: [Option<OpcodeRow>; 32] = {
    use ExtensionHeader::*;
    use Operation::*;
    [
        row("SEND First", Send, FIRST, &[], true),
        row("SEND Middle", Send, MIDDLE, &[], true),
        row("SEND Last", Send, LAST, &[], true),
        row("SEND Last with Immediate", Send, LAST, &[ImmDt], true),
        row("SEND Only", Send, ONLY, &[], true),
        row("SEND Only with Immediate", Send, ONLY, &[ImmDt], true),
        row("RDMA WRITE First", Write, FIRST, &[Reth], true),
        row("RDMA WRITE Middle", Write, MIDDLE, &[], true),
        row("RDMA WRITE Last", Write, LAST, &[], true),
        row("RDMA WRITE Last with Immediate", Write, LAST, &[ImmDt], true),
        row("RDMA WRITE Only", Write, ONLY, &[Reth], true),
        row("RDMA WRITE Only with Immediate", Write, ONLY, &[Reth, ImmDt], true),
        row("RDMA READ request", ReadRequest, ONLY, &[Reth], false),
        row("RDMA READ response First", ReadResponse, FIRST, &[Aeth], true),
        row("RDMA READ response Middle", ReadResponse, MIDDLE, &[], true),
        row("RDMA READ response Last", ReadResponse, LAST, &[Aeth], true),
        row("RDMA READ response Only", ReadResponse, ONLY, &[Aeth], true),
        row("Acknowledge", Acknowledge, ONLY, &[Aeth], false),
        row("ATOMIC Acknowledge", AtomicAcknowledge, ONLY, &[Aeth, AtomicAckEth], false),
        row("CmpSwap", CompareSwap, ONLY, &[AtomicEth], false),
        row("FetchAdd", FetchAdd, ONLY, &[AtomicEth], false),
        row("RESYNC", NotServed, ONLY, &[], false),
        row("SEND Last with Invalidate", Send, LAST, &[Ieth], true),
        row("SEND Only with Invalidate", Send, ONLY, &[Ieth], true),
        None,
        None,
        None,
        None,
        row("FLUSH", Flush, ONLY, &[Feth, Reth], false),
        row("ATOMIC WRITE", AtomicWrite, ONLY, &[Reth], true),
        None,
        None,
    ]
};

const fn bit(operation: u8) -> u32 {
    1 << operation
}

/// Returns the bits of all operations up to and including `operation`.
const fn up_to(operation: u8) -> u32 {
    (2 << operation) - 1
}

const RELIABLE: u32 = up_to(op::FETCH_ADD)
    | bit(op::SEND_LAST_INVALIDATE)
    | bit(op::SEND_ONLY_INVALIDATE)
    | bit(op::FLUSH)
    | bit(op::ATOMIC_WRITE);

/// Services, indexed by the upper three bits of an opcode.
#[rustfmt::skip]
static SERVICES: [Option<Service>; 8] = {
    const fn service(
        name: &'static str,
        transport: Option<Transport>,
        headers: &'static [ExtensionHeader],
        operations: u32,
    ) -> Option<Service> {
        Some(Service { name, transport, headers, operations })
    }
    [
        service("RC", Some(Transport::Rc), &[], RELIABLE),
        service("UC", Some(Transport::Uc), &[], up_to(op::WRITE_ONLY_IMM)),
        // Reliable datagrams: no known device supports them, and RoCE omits them.
        None,
        service("UD", Some(Transport::Ud), &[ExtensionHeader::Deth], bit(op::SEND_ONLY) | bit(op::SEND_ONLY_IMM)),
        // The CNP has no row, because it is no operation and has no headers. Its number would be
        // that of SEND Middle.
        None,
        // The responses of XRC have no XRCETH: see [`Service::headers_of`].
        service("XRC", Some(Transport::Xrc), &[ExtensionHeader::Xrceth], RELIABLE),
        None,
        None,
    ]
};

/// Returns service and row of an opcode that the specification defines for the connections and
/// datagrams of RoCEv2. [`is_served`] reports whether the opcode is supported.
pub fn lookup(opcode: u8) -> Option<(&'static Service, &'static OpcodeRow)> {
    let service = SERVICES.get(usize::from(opcode >> 5))?.as_ref()?;
    let operation = opcode & OPERATION;
    if service.operations & bit(operation) == 0 {
        return None;
    }
    let row = ROWS.get(usize::from(operation))?.as_ref()?;
    Some((service, row))
}

/// True if the opcode is supported.
pub fn is_served(opcode: u8) -> bool {
    lookup(opcode).is_some_and(|(service, row)| {
        service.transport.is_some() && row.operation != Operation::NotServed
    })
}

/// True if the opcode belongs to a reliable connection and its operation is reserved or not
/// supported. Such a packet has a place in the sequence, and the responder refuses it
/// (IBTA 9.7.4.1). A packet of any other service with such an operation is dropped.
pub fn is_refused(opcode: u8) -> bool {
    matches!(opcode & !OPERATION, service::RC | service::XRC) && !is_served(opcode)
}

/// Returns the opcode of a single packet. `place` says whether the packet begins its message, and
/// whether it ends the message.
pub fn of(transport: Transport, kind: &PacketKind, place: (bool, bool)) -> u8 {
    if *kind == PacketKind::Cnp {
        return CNP;
    }
    let service = match transport {
        Transport::Rc => service::RC,
        Transport::Uc => service::UC,
        Transport::Ud => service::UD,
        Transport::Xrc => service::XRC,
    };
    service
        | match *kind {
            PacketKind::Send(tail) => match (place, tail) {
                (FIRST, _) => op::SEND_FIRST,
                (MIDDLE, _) => op::SEND_MIDDLE,
                (LAST, SendTail::None) => op::SEND_LAST,
                (LAST, SendTail::Imm(_)) => op::SEND_LAST_IMM,
                (LAST, SendTail::Invalidate(_)) => op::SEND_LAST_INVALIDATE,
                (ONLY, SendTail::None) => op::SEND_ONLY,
                (ONLY, SendTail::Imm(_)) => op::SEND_ONLY_IMM,
                (ONLY, SendTail::Invalidate(_)) => op::SEND_ONLY_INVALIDATE,
            },
            PacketKind::Write { imm, .. } => match (place, imm) {
                (FIRST, _) => op::WRITE_FIRST,
                (MIDDLE, _) => op::WRITE_MIDDLE,
                (LAST, None) => op::WRITE_LAST,
                (LAST, Some(_)) => op::WRITE_LAST_IMM,
                (ONLY, None) => op::WRITE_ONLY,
                (ONLY, Some(_)) => op::WRITE_ONLY_IMM,
            },
            PacketKind::ReadRequest(_) => op::READ_REQUEST,
            PacketKind::ReadResponse(_) => match place {
                FIRST => op::READ_RESPONSE_FIRST,
                MIDDLE => op::READ_RESPONSE_MIDDLE,
                LAST => op::READ_RESPONSE_LAST,
                ONLY => op::READ_RESPONSE_ONLY,
            },
            PacketKind::Ack(_) => op::ACKNOWLEDGE,
            PacketKind::AtomicResponse(..) => op::ATOMIC_ACKNOWLEDGE,
            PacketKind::AtomicWrite(_) => op::ATOMIC_WRITE,
            PacketKind::Flush(..) => op::FLUSH,
            PacketKind::Cnp => CNP & OPERATION,
            PacketKind::Unknown(operation) => operation & OPERATION,
            PacketKind::Atomic {
                op: AtomicOp::CompareSwap { .. },
                ..
            } => op::COMPARE_SWAP,
            PacketKind::Atomic {
                op: AtomicOp::FetchAdd { .. },
                ..
            } => op::FETCH_ADD,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn served() -> Vec<u8> {
        (0..=0xff).filter(|opcode| is_served(*opcode)).collect()
    }

    #[test]
    fn each_service_has_its_operations() {
        let rc = (0x00..=0x14).chain(0x16..=0x17).chain(0x1c..=0x1d);
        let uc = 0x20..=0x2b;
        let ud = [0x64, 0x65];
        let xrc = (0xa0..=0xb4).chain(0xb6..=0xb7).chain(0xbc..=0xbd);
        let all: Vec<u8> = rc.chain(uc).chain(ud).chain(xrc).collect();
        assert_eq!(served(), all);
    }

    #[test]
    fn flush_has_its_headers_and_unsupported_opcodes_are_not_served() {
        let headers =
            |opcode| lookup(opcode).map(|(service, row)| (service.headers_of(row), row.headers));
        let flush: &[ExtensionHeader] = &[ExtensionHeader::Feth, ExtensionHeader::Reth];
        assert_eq!(headers(service::RC | op::FLUSH), Some((&[][..], flush)));
        for opcode in [
            service::RD | op::SEND_ONLY,
            service::RD | op::RESYNC,
            service::RC | op::RESYNC,
            CNP,
        ] {
            assert!(!is_served(opcode), "{opcode:#x}");
        }
    }

    #[test]
    fn unsupported_operations_of_reliable_connections_are_refused() {
        let refused: Vec<u8> = (0..=0xff).filter(|opcode| is_refused(*opcode)).collect();
        let operations = [0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f];
        let xrc = operations.map(|operation| service::XRC | operation);
        assert_eq!(refused, [operations, xrc].concat());
    }

    #[test]
    fn requests_of_extended_connections_name_a_queue_and_responses_do_not() {
        for operation in 0..32 {
            let Some((service, row)) = lookup(service::XRC | operation) else {
                continue;
            };
            let expected: &[ExtensionHeader] = match operation {
                op::READ_RESPONSE_FIRST..=op::ATOMIC_ACKNOWLEDGE => &[],
                _ => &[ExtensionHeader::Xrceth],
            };
            assert_eq!(service.headers_of(row), expected, "{operation:#x}");
        }
    }

    #[test]
    fn names_differ() {
        let mut names: Vec<_> = ROWS.iter().flatten().map(|row| row.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

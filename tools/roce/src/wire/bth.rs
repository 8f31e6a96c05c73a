// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Base transport header (IBTA 9.2) and the opcodes.

use super::{field, field24, put, put24, Malformed};
use crate::host::AtomicOp;
use crate::packet::{Kind, Packet, SendTail, Transport};

/// Bytes.
pub const LEN: usize = 12;

mod at {
    pub const OPCODE: usize = 0;
    pub const FLAGS: usize = 1;
    pub const PKEY: usize = 2;
    /// FECN, BECN and reserved bits: outside of the ICRC.
    pub const VARIANT: usize = 4;
    pub const DEST_QP: usize = 5;
    pub const ACK_REQ: usize = 8;
    pub const PSN: usize = 9;
}

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;

/// Operations: the lower five bits of an opcode (IBTA 9.2).
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
    pub const SEND_LAST_INVALIDATE: u8 = 0x16;
    pub const SEND_ONLY_INVALIDATE: u8 = 0x17;
}

/// Transport services: the upper three bits of an opcode.
#[allow(missing_docs)]
pub mod service {
    pub const RC: u8 = 0x00;
    pub const UC: u8 = 0x20;
    pub const UD: u8 = 0x60;
}

/// Bytes of which the header is complete.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    /// Checks length and version.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        if bytes[at::FLAGS] & 0xf != 0 {
            return Err(Malformed::TransportVersion);
        }
        Ok(Self(bytes))
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.0[LEN..]
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Service and operation.
    pub opcode: u8,
    /// Solicited event.
    pub solicited: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// Acknowledge request.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: u32,
}

impl Repr {
    /// Reads it.
    pub fn parse(view: View<'_>) -> Self {
        let bytes = view.0;
        Self {
            opcode: bytes[at::OPCODE],
            solicited: bytes[at::FLAGS] & SOLICITED != 0,
            pad: bytes[at::FLAGS] >> 4 & 3,
            pkey: u16::from_be_bytes(field(bytes, at::PKEY)),
            dest_qpn: field24(bytes, at::DEST_QP),
            ack_req: bytes[at::ACK_REQ] & 0x80 != 0,
            psn: field24(bytes, at::PSN),
        }
    }

    /// Writes it.
    pub fn emit(&self, bytes: &mut [u8]) {
        let flags = if self.solicited { SOLICITED } else { 0 } | MIG_REQ | (self.pad & 3) << 4;
        put(bytes, at::OPCODE, &[self.opcode, flags]);
        put(bytes, at::PKEY, &self.pkey.to_be_bytes());
        put(bytes, at::VARIANT, &[0]);
        put24(bytes, at::DEST_QP, self.dest_qpn);
        put(bytes, at::ACK_REQ, &[u8::from(self.ack_req) << 7]);
        put24(bytes, at::PSN, self.psn);
    }
}

/// The header with the fields that may change set to ones, for the ICRC.
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    masked[at::VARIANT] = 0xff;
    masked
}

/// The opcode of a single packet.
pub fn opcode_of(packet: &Packet) -> u8 {
    let service = match packet.transport {
        Transport::Rc => service::RC,
        Transport::Uc => service::UC,
        Transport::Ud => service::UD,
    };
    let place = (packet.first, packet.last);
    service
        | match packet.kind {
            Kind::Send(tail) => match (place, tail) {
                ((true, false), _) => op::SEND_FIRST,
                ((false, false), _) => op::SEND_MIDDLE,
                ((false, true), SendTail::None) => op::SEND_LAST,
                ((false, true), SendTail::Imm(_)) => op::SEND_LAST_IMM,
                ((false, true), SendTail::Invalidate(_)) => op::SEND_LAST_INVALIDATE,
                ((true, true), SendTail::None) => op::SEND_ONLY,
                ((true, true), SendTail::Imm(_)) => op::SEND_ONLY_IMM,
                ((true, true), SendTail::Invalidate(_)) => op::SEND_ONLY_INVALIDATE,
            },
            Kind::Write { imm, .. } => match (place, imm) {
                ((true, false), _) => op::WRITE_FIRST,
                ((false, false), _) => op::WRITE_MIDDLE,
                ((false, true), None) => op::WRITE_LAST,
                ((false, true), Some(_)) => op::WRITE_LAST_IMM,
                ((true, true), None) => op::WRITE_ONLY,
                ((true, true), Some(_)) => op::WRITE_ONLY_IMM,
            },
            Kind::ReadRequest(_) => op::READ_REQUEST,
            Kind::ReadResponse(_) => match place {
                (true, false) => op::READ_RESPONSE_FIRST,
                (false, false) => op::READ_RESPONSE_MIDDLE,
                (false, true) => op::READ_RESPONSE_LAST,
                (true, true) => op::READ_RESPONSE_ONLY,
            },
            Kind::Ack(_) => op::ACKNOWLEDGE,
            Kind::AtomicResponse(..) => op::ATOMIC_ACKNOWLEDGE,
            Kind::Atomic {
                op: AtomicOp::CompareSwap { .. },
                ..
            } => op::COMPARE_SWAP,
            Kind::Atomic {
                op: AtomicOp::FetchAdd { .. },
                ..
            } => op::FETCH_ADD,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let repr = Repr {
            opcode: op::SEND_ONLY,
            solicited: true,
            pad: 2,
            pkey: 0xffff,
            dest_qpn: 0x01_0203,
            ack_req: true,
            psn: 0xfe_dcba,
        };
        let mut bytes = [0; LEN];
        repr.emit(&mut bytes);
        assert_eq!(
            bytes,
            [0x04, 0xe0, 0xff, 0xff, 0, 1, 2, 3, 0x80, 0xfe, 0xdc, 0xba]
        );
        assert_eq!(View::new(&bytes).map(Repr::parse).unwrap(), repr);
    }

    #[test]
    fn unknown_versions_are_refused() {
        let mut bytes = [0; LEN];
        bytes[1] = 1;
        assert_eq!(View::new(&bytes).unwrap_err(), Malformed::TransportVersion);
        assert_eq!(View::new(&bytes[..11]).unwrap_err(), Malformed::Truncated);
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Base transport header (IBTA 9.2).

use super::opcode::CNP;
use super::{field, field24, put, put24, split, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 12;
/// Destination QPN of every packet to a multicast group (IBTA 3.5.11).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

mod at {
    pub const OPCODE: usize = 0;
    pub const FLAGS: usize = 1;
    pub const PKEY: usize = 2;
    /// FECN, BECN and six reserved bits (resv8a of InfiniBand), which the ICRC does not cover.
    pub const VARIANT: usize = 4;
    pub const DEST_QP: usize = 5;
    pub const ACK_REQ: usize = 8;
    pub const PSN: usize = 9;
}

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD: u8 = 0x30;
const VERSION: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

/// Bytes that begin with a complete header.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks that the header is complete.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = split(bytes)?;
        Ok(Self { header, payload })
    }

    fn byte(&self, at: usize) -> u8 {
        let [byte] = field(self.header, at);
        byte
    }

    /// Returns service and operation ([`opcode`](super::opcode)).
    pub fn opcode(&self) -> u8 {
        self.byte(at::OPCODE)
    }

    /// Returns the solicited event bit.
    pub fn solicited(&self) -> bool {
        self.byte(at::FLAGS) & SOLICITED != 0
    }

    /// Returns the MigReq bit (migration state): true if the sender does not use the alternate
    /// path.
    pub fn mig_req(&self) -> bool {
        self.byte(at::FLAGS) & MIG_REQ != 0
    }

    /// Returns the number of bytes of padding after the payload, 0 to 3.
    pub fn pad(&self) -> u8 {
        (self.byte(at::FLAGS) & PAD) >> 4
    }

    /// Returns the version of the transport header.
    pub fn version(&self) -> u8 {
        self.byte(at::FLAGS) & VERSION
    }

    /// Returns the partition key.
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::PKEY))
    }

    /// Returns the bit of forward explicit congestion notification (FECN).
    pub fn fecn(&self) -> bool {
        self.byte(at::VARIANT) & FECN != 0
    }

    /// Returns the bit of backward explicit congestion notification (BECN).
    pub fn becn(&self) -> bool {
        self.byte(at::VARIANT) & BECN != 0
    }

    /// Returns the QPN of the destination.
    pub fn dest_qpn(&self) -> u32 {
        field24(self.header, at::DEST_QP)
    }

    /// Returns the acknowledge request bit.
    pub fn ack_req(&self) -> bool {
        self.byte(at::ACK_REQ) & ACK_REQ != 0
    }

    /// Returns the packet sequence number (PSN).
    pub fn psn(&self) -> u32 {
        field24(self.header, at::PSN)
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header. MigReq is sent as 1, because RoCE has no alternate path; FECN, BECN and
/// reserved bits are sent as 0. But a CNP is sent with BECN as 1 and MigReq as 0 (A17.9.3). All of
/// these bits are ignored on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Service and operation of the packet.
    pub opcode: u8,
    /// Solicited event bit of the packet.
    pub solicited: bool,
    /// Number of bytes of padding after the payload, 0 to 3.
    pub pad: u8,
    /// Partition key of the sender.
    pub pkey: u16,
    /// QPN of the destination.
    pub dest_qpn: u32,
    /// Acknowledge request bit of the packet.
    pub ack_req: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Repr {
    /// Reads the fields of the header. Refuses unknown versions (IBTA 9.6.1.1).
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        if view.version() != 0 {
            return Err(Malformed::TransportVersion);
        }
        Ok(Self {
            opcode: view.opcode(),
            solicited: view.solicited(),
            pad: view.pad(),
            pkey: view.pkey(),
            dest_qpn: view.dest_qpn(),
            ack_req: view.ack_req(),
            psn: view.psn(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        let solicited = if self.solicited { SOLICITED } else { 0 };
        let (mig_req, variant) = match self.opcode {
            CNP => (0, BECN),
            _ => (MIG_REQ, 0),
        };
        let flags = solicited | mig_req | self.pad << 4 & PAD;
        let ack_req = if self.ack_req { ACK_REQ } else { 0 };
        put(bytes, at::OPCODE, &[self.opcode, flags]);
        put(bytes, at::PKEY, &self.pkey.to_be_bytes());
        put(bytes, at::VARIANT, &[variant]);
        put24(bytes, at::DEST_QP, self.dest_qpn);
        put(bytes, at::ACK_REQ, &[ack_req]);
        put24(bytes, at::PSN, self.psn);
    }
}

/// Returns the header with the fields that may change set to ones, for the ICRC (IBTA A17.3).
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    put(&mut masked, at::VARIANT, &[0xff]);
    masked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::opcode::op;

    const REPR: Repr = Repr {
        opcode: op::SEND_ONLY,
        solicited: true,
        pad: 2,
        pkey: 0xffff,
        dest_qpn: 0x01_0203,
        ack_req: true,
        psn: 0xfe_dcba,
    };
    const BYTES: [u8; LEN] = [0x04, 0xe0, 0xff, 0xff, 0, 1, 2, 3, 0x80, 0xfe, 0xdc, 0xba];

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let mut bytes = [0; LEN];
        REPR.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
        let view = View::new(&bytes).unwrap();
        assert!(view.mig_req() && !view.fecn() && !view.becn());
        assert_eq!(Repr::parse(view), Ok(REPR));
        assert_eq!(View::new(&bytes[..11]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn unknown_versions_are_refused() {
        for version in 1..16 {
            let mut bytes = BYTES;
            bytes[at::FLAGS] |= version;
            let wrong = View::new(&bytes).and_then(Repr::parse);
            assert_eq!(wrong, Err(Malformed::TransportVersion));
        }
    }

    #[test]
    fn migration_congestion_and_reserved_bits_are_ignored() {
        let mut bytes = BYTES;
        bytes[at::FLAGS] &= !MIG_REQ;
        bytes[at::VARIANT] = 0xff;
        bytes[at::ACK_REQ] |= 0x7f;
        let view = View::new(&bytes).unwrap();
        assert!(!view.mig_req() && view.fecn() && view.becn());
        assert_eq!(Repr::parse(view), Ok(REPR));
    }
}

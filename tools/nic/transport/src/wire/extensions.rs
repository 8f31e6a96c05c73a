// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The headers between BTH and payload together, in the order of the table of opcodes.

use super::opcode::{ExtensionHeader, OpcodeRow, Operation};
use super::{aeth, atomic_ack_eth, atomic_eth, deth, feth, ieth, imm_dt, reth, xrceth, Malformed};
use crate::headers::{AtomicOp, PacketKind, SendTail};
use alloc::vec::Vec;

/// Maximum number of bytes of these headers together: XRCETH and AtomicETH.
pub const MAX_LEN: usize = 32;

/// Headers of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// DETH of a datagram.
    pub deth: Option<deth::Repr>,
    /// XRCETH of a request of an extended connection.
    pub xrceth: Option<xrceth::Repr>,
    /// FETH of a FLUSH.
    pub feth: Option<feth::Repr>,
    /// RETH of an RDMA request, ATOMIC WRITE or FLUSH.
    pub reth: Option<reth::Repr>,
    /// AtomicETH of an atomic request.
    pub atomic_eth: Option<atomic_eth::Repr>,
    /// AETH of an acknowledgement or response.
    pub aeth: Option<aeth::Repr>,
    /// AtomicAckETH of an atomic response.
    pub atomic_ack_eth: Option<atomic_ack_eth::Repr>,
    /// ImmDt of a message with immediate data.
    pub imm_dt: Option<imm_dt::Repr>,
    /// IETH of a SEND with invalidate.
    pub ieth: Option<ieth::Repr>,
}

impl Repr {
    /// Reads these headers from the start of `bytes` and adds them. Returns the bytes after them.
    pub fn parse<'a>(
        &mut self,
        headers: &[ExtensionHeader],
        mut bytes: &'a [u8],
    ) -> Result<&'a [u8], Malformed> {
        macro_rules! read {
            ($header:ident) => {{
                let view = $header::View::new(bytes)?;
                bytes = view.payload();
                self.$header = Some($header::Repr::parse(view)?);
            }};
        }
        for header in headers {
            match header {
                ExtensionHeader::Deth => read!(deth),
                ExtensionHeader::Reth => read!(reth),
                ExtensionHeader::AtomicEth => read!(atomic_eth),
                ExtensionHeader::Aeth => read!(aeth),
                ExtensionHeader::AtomicAckEth => read!(atomic_ack_eth),
                ExtensionHeader::ImmDt => read!(imm_dt),
                ExtensionHeader::Ieth => read!(ieth),
                ExtensionHeader::Xrceth => read!(xrceth),
                ExtensionHeader::Feth => read!(feth),
            }
        }
        Ok(bytes)
    }

    /// Appends these headers to `out`. A missing header is written as zeros, so that a frame always
    /// has the length that its opcode requires.
    pub fn emit(&self, headers: &[ExtensionHeader], out: &mut Vec<u8>) {
        for header in headers {
            let start = out.len();
            out.resize(start.saturating_add(header.length()), 0);
            let Some(place) = out.get_mut(start..) else {
                continue;
            };
            macro_rules! write {
                ($header:ident) => {
                    if let Some(header) = &self.$header {
                        header.emit(place);
                    }
                };
            }
            match header {
                ExtensionHeader::Deth => write!(deth),
                ExtensionHeader::Reth => write!(reth),
                ExtensionHeader::AtomicEth => write!(atomic_eth),
                ExtensionHeader::Aeth => write!(aeth),
                ExtensionHeader::AtomicAckEth => write!(atomic_ack_eth),
                ExtensionHeader::ImmDt => write!(imm_dt),
                ExtensionHeader::Ieth => write!(ieth),
                ExtensionHeader::Xrceth => write!(xrceth),
                ExtensionHeader::Feth => write!(feth),
            }
        }
    }

    /// Returns the headers of an operation. Those of the service (DETH, XRCETH) are missing.
    pub fn of(kind: &PacketKind) -> Self {
        let mut all = Self::default();
        match *kind {
            PacketKind::Send(SendTail::None) | PacketKind::Cnp | PacketKind::Unknown(_) => {}
            PacketKind::Send(SendTail::Imm(data)) => all.imm_dt = Some(imm_dt::Repr { data }),
            PacketKind::Send(SendTail::Invalidate(rkey)) => all.ieth = Some(ieth::Repr { rkey }),
            PacketKind::Write { reth, imm } => {
                all.reth = reth;
                all.imm_dt = imm.map(|data| imm_dt::Repr { data });
            }
            PacketKind::ReadRequest(reth) | PacketKind::AtomicWrite(reth) => all.reth = Some(reth),
            PacketKind::Flush(feth, reth) => (all.feth, all.reth) = (Some(feth), Some(reth)),
            PacketKind::ReadResponse(aeth) => all.aeth = aeth,
            PacketKind::Ack(aeth) => all.aeth = Some(aeth),
            PacketKind::AtomicResponse(aeth, original) => {
                all.aeth = Some(aeth);
                all.atomic_ack_eth = Some(atomic_ack_eth::Repr { original });
            }
            PacketKind::Atomic { addr, rkey, op } => {
                all.atomic_eth = Some(atomic_eth::Repr::new(addr, rkey, op));
            }
        }
        all
    }

    /// Returns the operation of a packet with the opcode of this row and these headers.
    pub fn kind(&self, row: &OpcodeRow) -> Result<PacketKind, Malformed> {
        let atomic = |op: fn(&atomic_eth::Repr) -> AtomicOp| {
            self.atomic_eth.as_ref().map(|header| PacketKind::Atomic {
                addr: header.addr,
                rkey: header.rkey,
                op: op(header),
            })
        };
        let imm = self.imm_dt.map(|header| header.data);
        match row.operation {
            Operation::Send => Some(PacketKind::Send(match (imm, self.ieth) {
                (Some(imm), _) => SendTail::Imm(imm),
                (None, Some(header)) => SendTail::Invalidate(header.rkey),
                (None, None) => SendTail::None,
            })),
            Operation::Write => Some(PacketKind::Write {
                reth: self.reth,
                imm,
            }),
            Operation::ReadRequest => self.reth.map(PacketKind::ReadRequest),
            Operation::ReadResponse => Some(PacketKind::ReadResponse(self.aeth)),
            Operation::Acknowledge => self.aeth.map(PacketKind::Ack),
            Operation::AtomicAcknowledge => match (self.aeth, self.atomic_ack_eth) {
                (Some(aeth), Some(header)) => {
                    Some(PacketKind::AtomicResponse(aeth, header.original))
                }
                _ => None,
            },
            Operation::CompareSwap => atomic(atomic_eth::Repr::compare_swap),
            Operation::FetchAdd => atomic(atomic_eth::Repr::fetch_add),
            Operation::AtomicWrite => self.reth.map(PacketKind::AtomicWrite),
            Operation::Flush => match (self.feth, self.reth) {
                (Some(feth), Some(reth)) => Some(PacketKind::Flush(feth, reth)),
                _ => None,
            },
            Operation::NotServed => None,
        }
        .ok_or(Malformed::Opcode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::opcode;

    #[test]
    fn the_longest_headers_have_the_stated_length() {
        let lengths = (0..=0xff)
            .filter(|opcode| opcode::is_served(*opcode))
            .filter_map(opcode::lookup)
            .map(|(service, row)| {
                let headers = service.headers_of(row).iter().chain(row.headers);
                headers.map(|header| header.length()).sum::<usize>()
            });
        assert_eq!(lengths.max(), Some(MAX_LEN));
    }

    #[test]
    fn headers_follow_each_other() {
        let mut repr = Repr {
            reth: Some(reth::Repr {
                addr: 1,
                rkey: 2,
                length: 3,
            }),
            ..Repr::default()
        };
        let headers = [ExtensionHeader::Reth, ExtensionHeader::ImmDt];
        let mut bytes = std::vec![];
        repr.emit(&headers, &mut bytes);
        // The missing immediate data is emitted as zeros.
        assert_eq!(bytes.len(), reth::LEN + imm_dt::LEN);
        bytes.push(9);
        let mut parsed = Repr::default();
        assert_eq!(parsed.parse(&headers, &bytes), Ok(&[9][..]));
        repr.imm_dt = Some(imm_dt::Repr { data: [0; 4] });
        assert_eq!(parsed, repr);
        let short = Repr::default().parse(&headers, &bytes[..19]);
        assert_eq!(short, Err(Malformed::Truncated));
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Extension headers, which follow the BTH as the opcode says (IBTA 9.3): RETH, AtomicETH, AETH, AtomicAckETH, DETH,
//! ImmDt and IETH. Each is a type with a length, `read` from a [`Reader`] and `write` to a [`Writer`].

use super::Malformed;
use crate::host::AtomicOp;
use crate::packet::{Aeth, AethSyndrome, NakCode, Reth};
use alloc::vec::Vec;

/// Takes headers from the front of a packet.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    /// The next `N` bytes.
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }
}

/// Appends headers.
pub type Writer = Vec<u8>;

/// Virtual address (8), R_Key (4), DMA length (4).
pub fn read_reth(reader: &mut Reader<'_>) -> Result<Reth, Malformed> {
    Ok(Reth {
        addr: reader.u64()?,
        rkey: reader.u32()?,
        length: reader.u32()?,
    })
}

/// Writes a RETH.
pub fn write_reth(writer: &mut Writer, reth: &Reth) {
    writer.extend(reth.addr.to_be_bytes());
    writer.extend(reth.rkey.to_be_bytes());
    writer.extend(reth.length.to_be_bytes());
}

/// Virtual address (8), R_Key (4), swap or add data (8), compare data (8).
pub fn read_atomic(
    reader: &mut Reader<'_>,
    compare_swap: bool,
) -> Result<(u64, u32, AtomicOp), Malformed> {
    let (addr, rkey) = (reader.u64()?, reader.u32()?);
    let (swap_add, compare) = (reader.u64()?, reader.u64()?);
    let op = if compare_swap {
        AtomicOp::CompareSwap {
            compare,
            swap: swap_add,
        }
    } else {
        AtomicOp::FetchAdd { add: swap_add }
    };
    Ok((addr, rkey, op))
}

/// Writes an AtomicETH.
pub fn write_atomic(writer: &mut Writer, addr: u64, rkey: u32, op: &AtomicOp) {
    let (swap_add, compare) = match *op {
        AtomicOp::CompareSwap { compare, swap } => (swap, compare),
        AtomicOp::FetchAdd { add } => (add, 0),
    };
    writer.extend(addr.to_be_bytes());
    writer.extend(rkey.to_be_bytes());
    writer.extend(swap_add.to_be_bytes());
    writer.extend(compare.to_be_bytes());
}

/// Syndrome (1), MSN (3). The syndrome is 0, two bits of kind, and five of value (IBTA 9.7.5).
pub fn read_aeth(reader: &mut Reader<'_>) -> Result<Aeth, Malformed> {
    let word = reader.u32()?;
    let (syndrome, msn) = ((word >> 24) as u8, word & 0xff_ffff);
    let value = syndrome & 0x1f;
    let syndrome = match syndrome >> 5 {
        0b000 => AethSyndrome::Ack { credits: value },
        0b001 => AethSyndrome::Rnr { timer: value },
        0b011 => AethSyndrome::Nak(match value {
            0 => NakCode::Sequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            4 => NakCode::InvalidRd,
            _ => return Err(Malformed::Syndrome),
        }),
        _ => return Err(Malformed::Syndrome),
    };
    Ok(Aeth { syndrome, msn })
}

/// Writes an AETH. A fault of the sender's memory, which never reaches a wire, would be a sequence NAK: "send again".
pub fn write_aeth(writer: &mut Writer, aeth: &Aeth) {
    let syndrome = match aeth.syndrome {
        AethSyndrome::Ack { credits } => credits & 0x1f,
        AethSyndrome::Rnr { timer } => 0x20 | timer & 0x1f,
        AethSyndrome::Nak(code) => {
            0x60 | match code {
                NakCode::Sequence | NakCode::SourceFault => 0,
                NakCode::InvalidRequest => 1,
                NakCode::RemoteAccess => 2,
                NakCode::RemoteOperational => 3,
                NakCode::InvalidRd => 4,
            }
        }
    };
    writer.extend((u32::from(syndrome) << 24 | aeth.msn & 0xff_ffff).to_be_bytes());
}

/// The value before an atomic operation (8).
pub fn read_atomic_ack(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    reader.u64()
}

/// Q_Key (4), reserved (1), source QPN (3).
pub fn read_deth(reader: &mut Reader<'_>) -> Result<(u32, u32), Malformed> {
    Ok((reader.u32()?, reader.u32()? & 0xff_ffff))
}

/// Writes a DETH.
pub fn write_deth(writer: &mut Writer, qkey: u32, src_qpn: u32) {
    writer.extend(qkey.to_be_bytes());
    writer.extend((src_qpn & 0xff_ffff).to_be_bytes());
}

/// Immediate data (4): opaque, so it stays in network order.
pub fn read_imm(reader: &mut Reader<'_>) -> Result<[u8; 4], Malformed> {
    reader.take()
}

/// R_Key to invalidate (4).
pub fn read_ieth(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    reader.u32()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn reth_bytes() {
        let reth = Reth {
            addr: 0x0102_0304_0506_0708,
            rkey: 0x1122_3344,
            length: 0x55,
        };
        let mut bytes = vec![];
        write_reth(&mut bytes, &reth);
        assert_eq!(
            bytes,
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0x55]
        );
        assert_eq!(read_reth(&mut Reader(&bytes)), Ok(reth));
        assert_eq!(
            read_reth(&mut Reader(&bytes[..15])),
            Err(Malformed::Truncated)
        );
    }

    #[test]
    fn aeth_syndromes() {
        for (byte, syndrome) in [
            (0x1f, AethSyndrome::Ack { credits: 31 }),
            (0x2c, AethSyndrome::Rnr { timer: 12 }),
            (0x60, AethSyndrome::Nak(NakCode::Sequence)),
            (0x61, AethSyndrome::Nak(NakCode::InvalidRequest)),
            (0x62, AethSyndrome::Nak(NakCode::RemoteAccess)),
            (0x63, AethSyndrome::Nak(NakCode::RemoteOperational)),
            (0x64, AethSyndrome::Nak(NakCode::InvalidRd)),
        ] {
            let aeth = Aeth {
                syndrome,
                msn: 0x01_0203,
            };
            let mut bytes = vec![];
            write_aeth(&mut bytes, &aeth);
            assert_eq!(bytes, [byte, 1, 2, 3]);
            assert_eq!(read_aeth(&mut Reader(&bytes)), Ok(aeth));
        }
        for reserved in [0x40, 0x65, 0x7f, 0x80, 0xff] {
            assert_eq!(
                read_aeth(&mut Reader(&[reserved, 0, 0, 0])),
                Err(Malformed::Syndrome)
            );
        }
    }

    #[test]
    fn atomic_operands_are_swap_then_compare() {
        let mut bytes = vec![];
        let op = AtomicOp::CompareSwap {
            compare: 1,
            swap: 2,
        };
        write_atomic(&mut bytes, 8, 3, &op);
        assert_eq!(
            bytes[12..],
            [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(read_atomic(&mut Reader(&bytes), true), Ok((8, 3, op)));
    }

    #[test]
    fn deth_has_24_bits_of_qpn() {
        let mut bytes = vec![];
        write_deth(&mut bytes, 0x8001_0000, 0xff00_0001);
        assert_eq!(bytes, [0x80, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(read_deth(&mut Reader(&bytes)), Ok((0x8001_0000, 1)));
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! ACK extended transport header (IBTA 9.3, syndromes 9.7.5).

use super::{field, field24, put, put24, split, Malformed};
pub use crate::headers::Aeth as Repr;
use crate::headers::{AethSyndrome, NakCode};

/// Number of bytes of the header.
pub const LEN: usize = 4;

mod at {
    pub const SYNDROME: usize = 0;
    pub const MSN: usize = 1;
}

/// A syndrome is a zero bit, two bits of kind, and five bits of value.
const VALUE: u8 = 0x1f;
const KIND: u8 = !VALUE;
const ACK: u8 = 0x00;
const RNR: u8 = 0x20;
const NAK: u8 = 0x60;

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

    /// Returns the syndrome byte, which may be reserved.
    pub fn syndrome(&self) -> u8 {
        let [byte] = field(self.header, at::SYNDROME);
        byte
    }

    /// Returns the message sequence number (MSN).
    pub fn msn(&self) -> u32 {
        field24(self.header, at::MSN)
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

impl Repr {
    /// Reads the fields of the header. Refuses reserved syndromes, so that they are silently
    /// dropped.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        let value = view.syndrome() & VALUE;
        let syndrome = match view.syndrome() & KIND {
            ACK => AethSyndrome::Ack { credits: value },
            RNR => AethSyndrome::Rnr { timer: value },
            NAK => AethSyndrome::Nak(match value {
                0 => NakCode::Sequence,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidRd,
                _ => return Err(Malformed::Syndrome),
            }),
            _ => return Err(Malformed::Syndrome),
        };
        Ok(Self {
            syndrome,
            msn: view.msn(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::SYNDROME, &[self.syndrome.to_wire()]);
        put24(bytes, at::MSN, self.msn);
    }
}

impl AethSyndrome {
    /// Returns the syndrome byte of the header. A fault of the sender's memory, which is never sent
    /// on a wire, is encoded as a sequence error, which requests a retransmission.
    pub fn to_wire(self) -> u8 {
        match self {
            AethSyndrome::Ack { credits } => ACK | credits & VALUE,
            AethSyndrome::Rnr { timer } => RNR | timer & VALUE,
            AethSyndrome::Nak(code) => {
                NAK | match code {
                    NakCode::Sequence | NakCode::SourceFault => 0,
                    NakCode::InvalidRequest => 1,
                    NakCode::RemoteAccess => 2,
                    NakCode::RemoteOperational => 3,
                    NakCode::InvalidRd => 4,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_are_those_of_the_specification() {
        for (byte, syndrome) in [
            (0x00, AethSyndrome::Ack { credits: 0 }),
            (0x1f, AethSyndrome::Ack { credits: 31 }),
            (0x2c, AethSyndrome::Rnr { timer: 12 }),
            (0x60, AethSyndrome::Nak(NakCode::Sequence)),
            (0x61, AethSyndrome::Nak(NakCode::InvalidRequest)),
            (0x62, AethSyndrome::Nak(NakCode::RemoteAccess)),
            (0x63, AethSyndrome::Nak(NakCode::RemoteOperational)),
            (0x64, AethSyndrome::Nak(NakCode::InvalidRd)),
        ] {
            let repr = Repr {
                syndrome,
                msn: 0x01_0203,
            };
            let mut bytes = [0xff; LEN];
            repr.emit(&mut bytes);
            assert_eq!(bytes, [byte, 1, 2, 3]);
            assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
            assert_eq!(View::new(&bytes[..3]).unwrap_err(), Malformed::Truncated);
        }
    }

    #[test]
    fn reserved_syndromes_are_refused() {
        let reserved = |byte: &u8| (0x40..0x60).contains(byte) || *byte >= 0x65;
        for byte in (0..=0xff).filter(reserved) {
            let wrong = View::new(&[byte, 0, 0, 0]).and_then(Repr::parse);
            assert_eq!(wrong, Err(Malformed::Syndrome), "{byte:#x}");
        }
    }
}

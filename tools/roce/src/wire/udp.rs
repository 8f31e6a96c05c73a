// SPDX-License-Identifier: GPL-2.0 OR MIT

//! UDP header. Its checksum is sent as 0 and not looked at: the ICRC covers more (IBTA A17.3).

use super::{field, put, Malformed};

/// Bytes.
pub const LEN: usize = 8;
/// The port of RoCEv2.
pub const PORT: u16 = 4791;

mod at {
    pub const SOURCE: usize = 0;
    pub const DESTINATION: usize = 2;
    pub const LENGTH: usize = 4;
    pub const CHECKSUM: usize = 6;
}

/// A header and what its length says belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    /// Checks the lengths.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        let length = usize::from(u16::from_be_bytes(field(bytes, at::LENGTH)));
        if length < LEN || length > bytes.len() {
            return Err(Malformed::Length);
        }
        Ok(Self(&bytes[..length]))
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.0[LEN..]
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Bytes after the header.
    pub payload_len: u16,
}

impl Repr {
    /// Reads it.
    pub fn parse(view: View<'_>) -> Self {
        Self {
            source: u16::from_be_bytes(field(view.0, at::SOURCE)),
            destination: u16::from_be_bytes(field(view.0, at::DESTINATION)),
            payload_len: (view.0.len() - LEN) as u16,
        }
    }

    /// Writes it.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::SOURCE, &self.source.to_be_bytes());
        put(bytes, at::DESTINATION, &self.destination.to_be_bytes());
        put(
            bytes,
            at::LENGTH,
            &self.payload_len.saturating_add(LEN as u16).to_be_bytes(),
        );
        put(bytes, at::CHECKSUM, &[0, 0]);
    }
}

/// The header with its checksum set to ones, for the ICRC.
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    masked[at::CHECKSUM..].fill(0xff);
    masked
}

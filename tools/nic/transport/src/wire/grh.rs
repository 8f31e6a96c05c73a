// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Global route header (GRH) of InfiniBand (IBTA 8.3). It has the bits of an IPv6 header, so this
//! file uses those of `ipv6.rs`; the next header is a BTH instead of UDP.

use super::{ipv6, Malformed, Path};
pub use ipv6::{View, LEN};

/// Next header of a GRH that a BTH follows.
const NEXT_HEADER_BTH: u8 = 0x1b;

/// Fields of the header. `payload_len` is the number of bytes from the BTH to the ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr(pub ipv6::Repr);

impl Repr {
    /// Returns the header of a packet on a path.
    pub fn from_path(path: &Path, payload_len: u16) -> Self {
        Self(ipv6::Repr::from_path(path, payload_len))
    }

    /// Sets the fields of a path that the header determines.
    pub fn to_path(self, path: &mut Path) {
        self.0.to_path(path);
    }

    /// Reads the fields of the header. Refuses other versions, and next headers other than a BTH
    /// (IBTA 9.6.1.2).
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        if view.version() != 6 || view.next_header() != NEXT_HEADER_BTH {
            return Err(Malformed::Grh);
        }
        Ok(Self(ipv6::Repr::of(view)))
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        self.0.emit_before(NEXT_HEADER_BTH, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ipv4_to_gid, ipv6};

    fn repr() -> Repr {
        Repr(ipv6::Repr {
            traffic_class: 0xab,
            flow_label: 0x1_2345,
            hop_limit: 63,
            source: [1; 16],
            destination: [2; 16],
            payload_len: 2,
        })
    }

    fn emitted(repr: Repr) -> [u8; 42] {
        let mut bytes = [0; 42];
        repr.emit(&mut bytes);
        bytes
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let bytes = emitted(repr());
        assert_eq!(bytes[..8], [0x6a, 0xb1, 0x23, 0x45, 0, 2, 0x1b, 63]);
        assert_eq!(
            (&bytes[8..24], &bytes[24..40]),
            (&[1; 16][..], &[2; 16][..])
        );
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr()));
    }

    #[test]
    fn other_versions_and_next_headers_are_refused() {
        for (at, value) in [(0, 0x4a), (0, 0x7a), (6, 17), (6, 0)] {
            let mut bytes = emitted(repr());
            bytes[at] = value;
            let wrong = View::new(&bytes).and_then(Repr::parse);
            assert_eq!(wrong, Err(Malformed::Grh));
        }
    }

    #[test]
    fn every_gid_is_valid() {
        let mut gids = repr();
        gids.0.source = ipv4_to_gid([10, 0, 0, 1]);
        let bytes = emitted(gids);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(gids));
    }
}

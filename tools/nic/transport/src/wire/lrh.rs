// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Local route header (LRH) of InfiniBand (IBTA 7.7). [`View`] also gives the packet that the
//! packet length of the header describes, and the VCRC after it.

use super::{field, put, split, vcrc, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 8;
/// Virtual lane of packets to QP0, which data never uses (IBTA 7.6).
pub const MANAGEMENT_VL: u8 = 15;
/// Permissive LID: a port accepts it before it has a LID of its own, on QP0 only.
pub const PERMISSIVE_LID: u16 = 0xffff;

mod at {
    pub const VL_VERSION: usize = 0;
    pub const SL_NEXT: usize = 1;
    pub const DLID: usize = 2;
    /// Five reserved bits and the packet length.
    pub const PACKET_LENGTH: usize = 4;
    pub const SLID: usize = 6;
}

const VERSION: u8 = 0x0f;
const NEXT_HEADER: u8 = 0x03;
const PACKET_LENGTH: u16 = 0x07ff;
/// Number of bytes that the packet length counts as one.
const WORD: usize = 4;

/// Header after the LRH (link next header, LNH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHeader {
    /// BTH: the packet stays in its subnet.
    Bth = 2,
    /// GRH, and the BTH after it.
    Grh = 3,
}

/// A complete header, and the packet that its packet length gives.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    packet: &'a [u8],
    payload: &'a [u8],
    vcrc: &'a [u8; vcrc::LEN],
}

impl<'a> View<'a> {
    /// Checks that the header, the packet and its VCRC are complete.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, _) = split::<LEN>(bytes)?;
        let length = usize::from(packet_length(header)).saturating_mul(WORD);
        let (packet, rest) = bytes.split_at_checked(length).ok_or(Malformed::Truncated)?;
        let (vcrc, _) = split(rest)?;
        Ok(Self {
            header,
            packet,
            payload: packet.get(LEN..).ok_or(Malformed::Length)?,
            vcrc,
        })
    }

    fn byte(&self, at: usize) -> u8 {
        let [byte] = field(self.header, at);
        byte
    }

    /// Returns the virtual lane (VL), 4 bits.
    pub fn vl(&self) -> u8 {
        self.byte(at::VL_VERSION) >> 4
    }

    /// Returns the version of the link layer (LVer), 4 bits.
    pub fn version(&self) -> u8 {
        self.byte(at::VL_VERSION) & VERSION
    }

    /// Returns the service level (SL), 4 bits.
    pub fn sl(&self) -> u8 {
        self.byte(at::SL_NEXT) >> 4
    }

    /// Returns the header after this one; `None` for raw packets, which have no BTH.
    pub fn next_header(&self) -> Option<NextHeader> {
        match self.byte(at::SL_NEXT) & NEXT_HEADER {
            2 => Some(NextHeader::Bth),
            3 => Some(NextHeader::Grh),
            _ => None,
        }
    }

    /// Returns the LID of the destination.
    pub fn dlid(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::DLID))
    }

    /// Returns the number of words of four bytes from this header to the ICRC.
    pub fn packet_length(&self) -> u16 {
        packet_length(self.header)
    }

    /// Returns the LID of the source.
    pub fn slid(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::SLID))
    }

    /// Returns the bytes from this header to the ICRC, which the VCRC covers.
    pub fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// Returns the bytes of [`View::packet`] after this header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the VCRC after the packet.
    pub fn vcrc(&self) -> [u8; vcrc::LEN] {
        *self.vcrc
    }
}

fn packet_length(header: &[u8; LEN]) -> u16 {
    u16::from_be_bytes(field(header, at::PACKET_LENGTH)) & PACKET_LENGTH
}

/// Returns the packet length of a packet with `bytes` bytes from its LRH to its ICRC.
pub fn words(bytes: usize) -> u16 {
    (bytes / WORD).min(PACKET_LENGTH.into()) as u16
}

/// Fields of the header. Reserved bits are sent as 0 and ignored on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Virtual lane (VL), 4 bits.
    pub vl: u8,
    /// Service level (SL), 4 bits.
    pub sl: u8,
    /// Header after this one.
    pub next_header: NextHeader,
    /// LID of the destination.
    pub dlid: u16,
    /// Number of words of four bytes from this header to the ICRC, 11 bits.
    pub packet_length: u16,
    /// LID of the source.
    pub slid: u16,
}

impl Repr {
    /// Reads the fields of the header. Refuses unknown versions, and raw packets (IBTA 7.7).
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        if view.version() != 0 {
            return Err(Malformed::LinkVersion);
        }
        Ok(Self {
            vl: view.vl(),
            sl: view.sl(),
            next_header: view.next_header().ok_or(Malformed::Raw)?,
            dlid: view.dlid(),
            packet_length: view.packet_length(),
            slid: view.slid(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::VL_VERSION, &[self.vl << 4]);
        put(bytes, at::SL_NEXT, &[self.sl << 4 | self.next_header as u8]);
        put(bytes, at::DLID, &self.dlid.to_be_bytes());
        let length = self.packet_length & PACKET_LENGTH;
        put(bytes, at::PACKET_LENGTH, &length.to_be_bytes());
        put(bytes, at::SLID, &self.slid.to_be_bytes());
    }
}

/// Returns the header with its VL set to ones, for the ICRC of a packet without a GRH
/// (IBTA 7.8.1).
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    let [first]: [u8; 1] = field(header, at::VL_VERSION);
    put(&mut masked, at::VL_VERSION, &[first | !VERSION]);
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPR: Repr = Repr {
        vl: 7,
        sl: 1,
        next_header: NextHeader::Bth,
        dlid: 0x375c,
        packet_length: 3,
        slid: 0x17d2,
    };
    const BYTES: [u8; 14] = [0x70, 0x12, 0x37, 0x5c, 0, 3, 0x17, 0xd2, 1, 2, 3, 4, 5, 6];

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let mut bytes = BYTES;
        bytes[..LEN].fill(0);
        REPR.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
        let view = View::new(&bytes).unwrap();
        assert_eq!(Repr::parse(view), Ok(REPR));
        assert_eq!(view.packet(), &BYTES[..12]);
        assert_eq!((view.payload(), view.vcrc()), (&[1, 2, 3, 4][..], [5, 6]));
        assert_eq!(View::new(&bytes[..13]).unwrap_err(), Malformed::Truncated);
        assert_eq!(View::new(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn other_versions_and_raw_packets_are_refused() {
        for version in 1..16 {
            let mut bytes = BYTES;
            bytes[at::VL_VERSION] |= version;
            let wrong = View::new(&bytes).and_then(Repr::parse);
            assert_eq!(wrong, Err(Malformed::LinkVersion));
        }
        for raw in [0, 1] {
            let mut bytes = BYTES;
            bytes[at::SL_NEXT] = raw;
            let wrong = View::new(&bytes).and_then(Repr::parse);
            assert_eq!(wrong, Err(Malformed::Raw));
        }
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = BYTES;
        bytes[at::SL_NEXT] |= 0x0c;
        bytes[at::PACKET_LENGTH] |= 0xf8;
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(REPR));
    }

    #[test]
    fn a_packet_length_shorter_than_the_header_is_refused() {
        for length in [0, 1] {
            let mut bytes = BYTES;
            bytes[5] = length;
            assert_eq!(View::new(&bytes).unwrap_err(), Malformed::Length);
        }
    }
}

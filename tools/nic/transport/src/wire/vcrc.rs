// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Variant CRC (VCRC) of InfiniBand (IBTA 7.8.2): CRC-16 with the polynomial 0x100b over all bytes
//! from the LRH to the ICRC. The least significant bit of each byte is the first. The CRC begins
//! with ones, is inverted at the end, and is stored least significant byte first.

/// Number of bytes of the VCRC.
pub const LEN: usize = 2;

/// The polynomial with its bits in the order of the CRC.
const POLYNOMIAL: u16 = 0x100b_u16.reverse_bits();
/// Number of bytes that one step of the CRC takes.
const STEP: usize = 8;
/// `TABLES[n][b]` is the CRC of byte `b` and `n` zero bytes after it.
const TABLES: [[u16; 256]; STEP] = tables();

#[allow(
    clippy::indexing_slicing,
    reason = "the compiler evaluates the function"
)]
const fn tables() -> [[u16; 256]; STEP] {
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bits = 0;
        while bits < 8 * STEP {
            crc = crc >> 1 ^ if crc & 1 != 0 { POLYNOMIAL } else { 0 };
            bits += 1;
            if bits % 8 == 0 {
                tables[bits / 8 - 1][byte] = crc;
            }
        }
        byte += 1;
    }
    tables
}

/// Computes the VCRC of a packet from its LRH to its ICRC.
pub fn compute(packet: &[u8]) -> [u8; LEN] {
    let steps = packet.chunks_exact(STEP);
    let rest = steps.remainder();
    let crc = steps.fold(u16::MAX, take_step);
    (!rest.iter().fold(crc, take_byte)).to_le_bytes()
}

fn lookup(zeros: usize, byte: u8) -> u16 {
    let table = TABLES.get(zeros);
    let crc = table.and_then(|table| table.get(usize::from(byte)));
    crc.copied().unwrap_or(0)
}

fn take_byte(crc: u16, byte: &u8) -> u16 {
    let [low, high] = crc.to_le_bytes();
    u16::from(high) ^ lookup(0, low ^ byte)
}

fn take_step(crc: u16, bytes: &[u8]) -> u16 {
    let mut step: [u8; STEP] = super::field(bytes, 0);
    for (byte, crc) in step.iter_mut().zip(crc.to_le_bytes()) {
        *byte ^= crc;
    }
    let zeros = (0..STEP).rev();
    let parts = step.into_iter().zip(zeros);
    parts.fold(0, |crc, (byte, zeros)| crc ^ lookup(zeros, byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::samples::{directed_route_smp, GLOBAL_DATAGRAM, LOCAL_ACKNOWLEDGE};
    use std::vec::Vec;

    /// Computes the CRC bit by bit, as the specification describes it.
    fn bit_by_bit(packet: &[u8]) -> [u8; LEN] {
        let bits = packet
            .iter()
            .flat_map(|byte| (0..8).map(move |n| byte >> n & 1));
        let crc = bits.fold(0xffff_u16, |crc, bit| {
            let top = crc >> 15 ^ u16::from(bit);
            crc << 1 ^ if top != 0 { 0x100b } else { 0 }
        });
        (!crc.reverse_bits()).to_le_bytes()
    }

    #[test]
    fn vcrc_of_packets_from_hardware() {
        for packet in [
            &LOCAL_ACKNOWLEDGE[..],
            &GLOBAL_DATAGRAM,
            &directed_route_smp(),
        ] {
            let (covered, crc) = packet.split_last_chunk().unwrap();
            assert_eq!(compute(covered), *crc);
        }
    }

    #[test]
    fn every_length_has_the_crc_of_its_bits() {
        let bytes: Vec<u8> = (0..100_u8).map(|n| n.wrapping_mul(0x9d)).collect();
        for length in 0..bytes.len() {
            assert_eq!(compute(&bytes[..length]), bit_by_bit(&bytes[..length]));
        }
    }
}

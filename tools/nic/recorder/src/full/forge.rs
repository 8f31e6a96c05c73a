// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Made-up payload with the length and the sum of the recorded payload.
//!
//! The sum is the CRC-32 of the ICRC (IBTA A17.3.3). If two byte strings have the same length and
//! CRC-32, one can replace the other within a longer string without a change of its CRC. So a frame
//! with made-up payload has the ICRC of the real one, and payloads that consist of pieces can be
//! compared by their sums.

const POLYNOMIAL: u32 = 0xedb8_8320;

/// Returns the sum of some bytes.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Returns `length` bytes with the sum `wanted`. With fewer than four bytes there may be no
/// solution; then the bytes are only the nearest.
pub fn forge(length: usize, wanted: u32) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let (front, end) = bytes.split_at_mut(length.saturating_sub(4));
    // The loop computes the register before four zero bytes, backwards bit by bit.
    let mut register = !wanted;
    for _ in 0..32 {
        register = match register >> 31 {
            1 => (register ^ POLYNOMIAL) << 1 | 1,
            _ => register << 1,
        };
    }
    let last = (register ^ !crc32(front)).to_le_bytes();
    let few = last.len() - end.len();
    for (byte, value) in end.iter_mut().zip(last.iter().skip(few)) {
        *byte = *value;
    }
    bytes
}

/// Smallest path MTU in bytes. A payload that is sent in several packets is cut at multiples of it.
const PART_BYTES: usize = 256;

/// Returns the lengths of the parts of a payload that begins at `offset` of the message.
fn parts(mut length: usize, offset: usize) -> impl Iterator<Item = usize> {
    let mut room = PART_BYTES - offset % PART_BYTES;
    std::iter::from_fn(move || {
        let part = length.min(room);
        length -= part;
        room = PART_BYTES;
        (part > 0).then_some(part)
    })
}

/// Returns the sums of the parts of a payload that packets may carry. The payload begins at
/// `offset` of the message. A part of up to four bytes is stored as it is.
pub fn part_crcs(mut bytes: &[u8], offset: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(4 + bytes.len() / PART_BYTES * 4 + 4);
    for length in parts(bytes.len(), offset) {
        let (part, rest) = bytes.split_at(length);
        bytes = rest;
        match part.len() {
            ..=4 => all.extend_from_slice(part),
            _ => all.extend_from_slice(&crc32(part).to_le_bytes()),
        }
    }
    all
}

/// Returns payload whose parts have these sums. Parts without a sum are zero.
pub fn forge_parts(length: usize, offset: usize, mut sums: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(length);
    for part in parts(length, offset) {
        let (sum, rest) = sums.split_at(sums.len().min(part.min(4)));
        sums = rest;
        match (part, sum.first_chunk()) {
            (5.., Some(sum)) => all.extend(forge(part, u32::from_le_bytes(*sum))),
            _ => all.extend_from_slice(sum),
        }
    }
    all.resize(length, 0);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_bytes_have_the_wanted_crc_alone_and_within_others() {
        let real: Vec<u8> = (0..5000u32).map(|i| (i * i >> 3) as u8).collect();
        for length in [4, 5, 64, 65, 1024, 5000] {
            let part = &real[..length];
            let forged = forge(length, crc32(part));
            assert_eq!(crc32(&forged), crc32(part), "{length}");
            let whole = |part: &[u8]| crc32(&[b"before", part, b"behind"].concat());
            assert_eq!(whole(&forged), whole(part));
            // A flipped bit changes both sums in the same way.
            let flip = |bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                bytes[2] ^= 1;
                crc32(&bytes)
            };
            assert_eq!(flip(&forged), flip(part));
        }
        // The sums also match after a cut where packets are cut.
        for (offset, length) in [
            (0, 5000),
            (100, 700),
            (255, 300),
            (253, 4),
            (256, 65),
            (3, 10),
        ] {
            let part = &real[..length];
            let forged = forge_parts(length, offset, &part_crcs(part, offset));
            for cut in (0..length).filter(|cut| (offset + cut) % PART_BYTES == 0) {
                assert_eq!(crc32(&forged[..cut]), crc32(&part[..cut]), "{offset} {cut}");
                assert_eq!(crc32(&forged[cut..]), crc32(&part[cut..]), "{offset} {cut}");
            }
        }
        assert_eq!(forge_parts(300, 0, &[1, 2]).len(), 300);
        assert_eq!(forge(0, 7), []);
        assert_eq!(forge(3, 7).len(), 3);
    }
}

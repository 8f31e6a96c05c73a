// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Payload that stands for what was recorded by its length and its sum.
//!
//! The sum is the CRC-32 of the ICRC (IBTA A17.3.3). Two runs of bytes with the same length and CRC-32 leave the CRC of whatever they
//! are a part of the same. So a frame with a payload that is made up has the ICRC of the real one, and payloads that are put together
//! of pieces can be compared by their sums.

const POLYNOMIAL: u32 = 0xedb8_8320;

/// The sum of some bytes.
pub fn sum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Bytes of this length with this sum. Of fewer than four there may be none; then they are the nearest.
pub fn forge(length: usize, wanted: u32) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let (front, end) = bytes.split_at_mut(length.saturating_sub(4));
    // What the register has to be before four bytes of zeros, backwards bit by bit.
    let mut register = !wanted;
    for _ in 0..32 {
        register = match register >> 31 {
            1 => (register ^ POLYNOMIAL) << 1 | 1,
            _ => register << 1,
        };
    }
    let last = (register ^ !sum(front)).to_le_bytes();
    let few = last.len() - end.len();
    for (byte, value) in end.iter_mut().zip(last.iter().skip(few)) {
        *byte = *value;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_bytes_have_the_sum_alone_and_as_a_part() {
        let real: Vec<u8> = (0..5000u32).map(|i| (i * i >> 3) as u8).collect();
        for length in [4, 5, 64, 65, 1024, 5000] {
            let part = &real[..length];
            let forged = forge(length, sum(part));
            assert_eq!(sum(&forged), sum(part), "{length}");
            let whole = |part: &[u8]| sum(&[b"before", part, b"behind"].concat());
            assert_eq!(whole(&forged), whole(part));
            // One bit changes the same in both.
            let flip = |bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                bytes[2] ^= 1;
                sum(&bytes)
            };
            assert_eq!(flip(&forged), flip(part));
        }
        assert_eq!(forge(0, 7), []);
        assert_eq!(forge(3, 7).len(), 3);
    }
}

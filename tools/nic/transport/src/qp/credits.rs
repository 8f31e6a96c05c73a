// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The credit count of a positive AETH: the number of receives that the responder has, as a code of
//! 5 bits (IBTA 9.7.7.2).

/// Code for "credits are not used". A queue pair with an SRQ sends it, or one with credits
/// disabled.
pub const INVALID: u8 = 31;

/// Number of receives for each code: 0 to 4, then steps of a half and a third.
const COUNTS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Returns the code for a number of receives, rounded down so that it does not promise too many.
pub const fn encode(receives: u32) -> u8 {
    if receives < 4 {
        return receives as u8;
    }
    let log = receives.ilog2();
    if log >= 15 {
        return 30;
    }
    // From 4 on, each power of two has two codes: for itself and for one and a half times as many.
    let half = (receives >> (log - 1)) & 1;
    (2 * log + half) as u8
}

/// Returns the number of receives that a code stands for. None if credits are not used.
pub fn decode(code: u8) -> Option<u32> {
    COUNTS.get(usize::from(code)).map(|count| u32::from(*count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_code() {
        for (code, count) in COUNTS.iter().enumerate() {
            assert_eq!(encode(u32::from(*count)), code as u8);
            assert_eq!(decode(code as u8), Some(u32::from(*count)));
        }
        assert_eq!(decode(INVALID), None);
    }

    #[test]
    fn counts_are_rounded_down() {
        for receives in (0..70_000).chain([u32::MAX]) {
            let code = encode(receives);
            assert!(decode(code).is_some_and(|count| count <= receives));
            assert!(decode(code + 1).is_none_or(|count| count > receives));
        }
    }
}

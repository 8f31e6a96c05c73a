// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Byte patterns in which every part is different, so that a misplaced byte is detected.

/// A small generator (splitmix64): deterministic, and good enough to produce distinct patterns.
#[derive(Clone)]
pub struct PatternRng(u64);

impl PatternRng {
    pub fn new(seed: u64) -> PatternRng {
        PatternRng(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`; `n` must be greater than 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }
}

/// Returns `len` bytes that are specific to `seed`.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = PatternRng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Compares two byte strings. The error describes the first difference.
pub fn compare(what: &str, got: &[u8], want: &[u8]) -> Result<(), String> {
    if got == want {
        return Ok(());
    }
    if got.len() != want.len() {
        return Err(format!(
            "{what}: {} bytes instead of {}",
            got.len(),
            want.len()
        ));
    }
    let at = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(0);
    let wrong = got.iter().zip(want).filter(|(a, b)| a != b).count();
    Err(format!(
        "{what}: byte {at} of {} is {:#04x}, not {:#04x} ({wrong} bytes differ)",
        want.len(),
        got[at],
        want[at]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_repeat() {
        assert_eq!(bytes(1, 100), bytes(1, 100));
        assert_ne!(bytes(1, 100), bytes(2, 100));
        assert_eq!(bytes(1, 13), bytes(1, 100)[..13]);
    }

    #[test]
    fn compare_names_the_first_difference() {
        let err = compare("x", &[1, 2, 3], &[1, 9, 9]).unwrap_err();
        assert!(
            err.contains("byte 1 of 3") && err.contains("2 bytes differ"),
            "{err}"
        );
    }
}

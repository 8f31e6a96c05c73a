// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packet sequence numbers: 24 bits that wrap (IBTA 9.7.1).

/// Number of different PSNs.
pub const PSN_COUNT: u32 = 1 << 24;
/// Mask of the bits of a PSN.
pub const PSN_MASK: u32 = PSN_COUNT - 1;
/// Half of the PSN space: a PSN that is ahead of another by less than this number is later, and any
/// other PSN is a duplicate (IBTA 9.7.1: the duplicate region). Also the maximum number of PSNs
/// that a requester may have outstanding.
pub const PSN_WINDOW: u32 = 1 << 23;

/// Returns `psn + count`, modulo 2^24.
#[inline]
pub const fn add(psn: u32, count: u32) -> u32 {
    psn.wrapping_add(count) & PSN_MASK
}

/// Returns the distance from `from` to `psn`, counted forwards: 0 to 2^24 - 1.
#[inline]
pub const fn ahead(psn: u32, from: u32) -> u32 {
    psn.wrapping_sub(from) & PSN_MASK
}

/// True if `psn` is in the half of the PSN space before `expected`, which counts as duplicates.
#[inline]
pub const fn is_behind(psn: u32, expected: u32) -> bool {
    ahead(psn, expected) >= PSN_WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(add(0xff_ffff, 1), 0);
        assert_eq!(ahead(0, 0xff_ffff), 1);
        assert!(is_behind(0xff_ffff, 0));
        assert!(!is_behind(0, 0xff_ffff));
    }

    #[test]
    fn half_of_the_numbers_are_behind() {
        assert!(!is_behind(add(5, PSN_WINDOW - 1), 5));
        assert!(is_behind(add(5, PSN_WINDOW), 5));
        assert!(!is_behind(5, 5));
    }
}

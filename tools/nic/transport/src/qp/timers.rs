// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The two timers of a requester, with times in nanoseconds.

/// RNR NAK timer of each code, in steps of 10 us (IBTA table 45; code 0 is the longest).
const RNR_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns the time in nanoseconds that a requester waits after an RNR NAK with this timer code.
pub fn rnr_delay_ns(code: u8) -> u64 {
    let steps = RNR_10US.get(usize::from(code & 31)).copied();
    u64::from(steps.unwrap_or(0)) * 10_000
}

/// Returns the local ACK timeout of a code in nanoseconds: 4.096 us * 2^code. None for code 0,
/// which is no timeout (IBTA 9.7.6).
pub fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code & 31 {
        0 => None,
        code => Some(4_096 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_table_has_the_values_of_the_specification() {
        assert_eq!(rnr_delay_ns(0), 655_360_000);
        assert_eq!(rnr_delay_ns(1), 10_000);
        assert_eq!(rnr_delay_ns(12), 640_000);
        assert_eq!(rnr_delay_ns(31), 491_520_000);
    }

    #[test]
    fn rnr_delays_are_powers_of_two_and_half_as_much_more() {
        for half in 1..16 {
            assert_eq!(rnr_delay_ns(2 * half), 10_000 << half);
            assert_eq!(rnr_delay_ns(2 * half + 1), 15_000 << half);
        }
    }

    #[test]
    fn ack_timeout_is_a_power_of_two() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8_192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(8_796_093_022_208));
    }
}

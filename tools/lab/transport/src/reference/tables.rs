// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tables of the specification, written down a second time, and PSNs that do not wrap.

use verbena_transport::host::WcStatus;
use verbena_transport::packet::NakCode;

/// Start of the numbers that do not wrap, so that there are numbers before the first PSN.
pub const BASE: u64 = 1 << 32;

/// Delay that each 5-bit code of an RNR NAK asks for, in units of 10 us (IBTA 9.7.5.2.8, table 45).
const RNR_10_US: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// Returns the delay in ns during which the requester may send nothing after an RNR NAK.
pub fn rnr_ns(timer: u8) -> u64 {
    RNR_10_US[usize::from(timer & 31)] * 10_000
}

/// Returns the number of receives for a credit code (IBTA 9.7.7.2, table 46), and `None` for
/// "invalid".
pub fn credits_of(code: u8) -> Option<u64> {
    const COUNTS: [u64; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
        1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768,
    ];
    COUNTS.get(usize::from(code)).copied()
}

/// Returns the credit code of the largest count that does not exceed the number of receives.
pub fn code_of(receives: u64) -> u8 {
    let fits = |code: &u8| credits_of(*code).is_some_and(|count| count <= receives);
    (0..31).rev().find(fits).unwrap_or(0)
}

/// Returns the status with which the requester completes a request that such a NAK refuses (IBTA
/// 9.9.2, class B), and `None` if the request is sent again.
pub fn status_of(code: NakCode) -> Option<WcStatus> {
    match code {
        NakCode::Sequence | NakCode::SourceFault => None,
        NakCode::InvalidRequest => Some(WcStatus::RemInvReqErr),
        NakCode::RemoteAccess => Some(WcStatus::RemAccessErr),
        NakCode::RemoteOperational => Some(WcStatus::RemOpErr),
        NakCode::InvalidRd => Some(WcStatus::BadRespErr),
    }
}

/// Returns the number of a PSN or an MSN that is nearest to another number. 2^23 of the 2^24 values
/// lie before that number (IBTA 9.7.1).
pub fn near(to: u64, psn: u32) -> u64 {
    let turn = 1 << 24;
    let ahead = (u64::from(psn) + turn - to % turn) % turn;
    if ahead < turn / 2 {
        to + ahead
    } else {
        to + ahead - turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_rounded_down() {
        for (count, code) in [(0, 0), (1, 1), (5, 4), (6, 5), (7, 5), (40_000, 30)] {
            assert_eq!(code_of(count), code, "{count}");
        }
        assert_eq!(credits_of(31), None);
    }

    #[test]
    fn half_of_the_numbers_are_behind() {
        let to = BASE + 5;
        assert_eq!(near(to, 5), to);
        assert_eq!(near(to, 4), to - 1);
        assert_eq!(near(to, 5 + (1 << 23)), to - (1 << 23));
        assert_eq!(near(to, 4 + (1 << 23)), to + (1 << 23) - 1);
    }

    #[test]
    fn an_rnr_timer_of_0_is_the_longest() {
        assert_eq!(
            [rnr_ns(0), rnr_ns(1), rnr_ns(31)],
            [655_360_000, 10_000, 491_520_000]
        );
    }
}

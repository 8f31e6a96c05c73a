// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The ways in which people write codes: numbers, names in any spelling, and names that are nearly
//! right.

pub(super) use verbena_faults::{normalized, similar_names};

/// Parses a number in decimal or hexadecimal.
pub(super) fn number(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("0x").or(word.strip_prefix("0X"));
    digits.map_or_else(
        || word.parse().ok(),
        |hex| u32::from_str_radix(hex, 16).ok(),
    )
}

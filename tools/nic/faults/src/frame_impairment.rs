// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The impairment of the frames that leave by an uplink, as an action of a rule.

use serde::{Deserialize, Serialize};

/// Denominator of all probabilities.
pub const MILLION: u32 = 1_000_000;
/// Longest delay including its jitter, in nanoseconds.
pub const MAX_DELAY_NS: u64 = 10_000_000_000;
/// Lowest rate, in bits per second.
pub const MIN_RATE_BPS: u64 = 1_000;

/// The impairment of the frames that leave by an uplink. With all fields zero there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrameImpairment {
    /// Share of frames that are lost, in millionths.
    #[serde(skip_serializing_if = "is_zero")]
    pub loss_ppm: u32,
    /// Share of frames that are sent twice, in millionths.
    #[serde(skip_serializing_if = "is_zero")]
    pub duplicate_ppm: u32,
    /// Share of frames with a flipped bit after the Ethernet header, in millionths.
    #[serde(skip_serializing_if = "is_zero")]
    pub corrupt_ppm: u32,
    /// Share of frames that leave without the delay, before waiting frames, in millionths.
    #[serde(skip_serializing_if = "is_zero")]
    pub reorder_ppm: u32,
    /// Delay of each frame, in nanoseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ns: u64,
    /// Largest deviation from the delay in nanoseconds, drawn for each frame.
    #[serde(skip_serializing_if = "is_zero")]
    pub jitter_ns: u64,
    /// Rate in bits per second; 0 for the rate of the uplink.
    #[serde(skip_serializing_if = "is_zero")]
    pub rate_bps: u64,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl FrameImpairment {
    /// Checks that the values are possible.
    ///
    /// # Errors
    ///
    /// The text names the wrong value and the next step.
    pub fn check(&self) -> Result<(), String> {
        for (name, ppm) in [
            ("loss", self.loss_ppm),
            ("duplicate", self.duplicate_ppm),
            ("corrupt", self.corrupt_ppm),
            ("reorder", self.reorder_ppm),
        ] {
            if ppm > MILLION {
                return Err(format!(
                    "{name}: {ppm} ppm is more than 100% of the frames ({MILLION} ppm)"
                ));
            }
        }
        if self.delay_ns.saturating_add(self.jitter_ns) > MAX_DELAY_NS {
            return Err(String::from(
                "delay and jitter: together more than 10 s, the limit",
            ));
        }
        if self.jitter_ns > self.delay_ns {
            return Err(String::from(
                "jitter: longer than the delay, which it also shortens: give a longer delay or a shorter jitter",
            ));
        }
        if self.reorder_ppm > 0 && self.delay_ns == 0 {
            return Err(String::from(
                "reorder: reordered frames leave before delayed frames: give a delay, too",
            ));
        }
        if (1..MIN_RATE_BPS).contains(&self.rate_bps) {
            return Err(format!(
                "rate: {} bit/s is less than 1 kbit/s, the limit",
                self.rate_bps
            ));
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Impairments of uplinks: faults of the frames that leave by an uplink.

use crate::{Question, Request};
use serde::{Deserialize, Serialize};

/// Denominator of all probabilities.
pub const MILLION: u32 = 1_000_000;
/// Longest delay including its jitter, in nanoseconds.
pub const MAX_DELAY: u64 = 10_000_000_000;
/// Lowest rate, in bits per second.
pub const MIN_RATE: u64 = 1_000;

/// The impairment of the frames that leave by an uplink. With all fields zero there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Impairment {
    /// Share of frames that are lost, in millionths.
    pub loss_ppm: u32,
    /// Share of frames that are sent twice, in millionths.
    pub duplicate_ppm: u32,
    /// Share of frames with a flipped bit after the Ethernet header, in millionths.
    pub corrupt_ppm: u32,
    /// Share of frames that leave without the delay, before waiting frames, in millionths.
    pub reorder_ppm: u32,
    /// Delay of each frame, in nanoseconds.
    pub delay_ns: u64,
    /// Largest deviation from the delay in nanoseconds, drawn for each frame, so that frames may be
    /// reordered.
    pub jitter_ns: u64,
    /// Rate in bits per second; 0 for the rate of the uplink.
    pub rate_bps: u64,
    /// Seed of all random decisions. The same frames with the same seed have the same faults.
    pub seed: u64,
}

impl Impairment {
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
        if self.delay_ns.saturating_add(self.jitter_ns) > MAX_DELAY {
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
        if (1..MIN_RATE).contains(&self.rate_bps) {
            return Err(format!(
                "rate: {} bit/s is less than 1 kbit/s, the limit",
                self.rate_bps
            ));
        }
        Ok(())
    }
}

/// Counts of the effects of an impairment since it was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toll {
    /// Frames that were to be sent.
    pub frames: u64,
    /// Frames that were lost.
    pub lost: u64,
    /// Frames that were sent twice.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames that left without the delay.
    pub reordered: u64,
    /// Frames that were lost because too many frames waited.
    pub overflowed: u64,
    /// Frames that wait now.
    pub waiting: u64,
}

/// An uplink with its impairment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Impaired {
    /// Number of the uplink, from 0 in the order of the `--uplink` options of the NIC. An uplink
    /// with several peers has a number for each peer.
    pub uplink: u8,
    /// Impairment of the uplink, if there is one.
    pub impairment: Option<Impairment>,
    /// Effects of the impairment since it was set.
    pub toll: Option<Toll>,
}

/// The answer to [`Request::Impair`] and [`Request::Impairments`]: all uplinks as they are
/// afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldImpairments {
    /// All uplinks of the NIC.
    pub uplinks: Vec<Impaired>,
}

impl Question for ToldImpairments {
    const REQUEST: Request = Request::Impairments;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_value_is_named() {
        let sound = Impairment {
            loss_ppm: MILLION,
            reorder_ppm: 1,
            delay_ns: 5,
            jitter_ns: 5,
            rate_bps: MIN_RATE,
            ..Impairment::default()
        };
        assert_eq!(
            (sound.check(), Impairment::default().check()),
            (Ok(()), Ok(()))
        );
        for (change, name) in [
            ((|i| i.loss_ppm += 1) as fn(&mut Impairment), "loss"),
            (|i| i.duplicate_ppm = MILLION + 1, "duplicate"),
            (|i| i.corrupt_ppm = u32::MAX, "corrupt"),
            (|i| i.reorder_ppm = u32::MAX, "reorder"),
            (|i| i.jitter_ns = 6, "jitter"),
            (|i| i.delay_ns = u64::MAX, "delay"),
            (|i| i.rate_bps = 1, "rate"),
            (
                |i| (i.delay_ns, i.jitter_ns) = (0, 0),
                "reorder: reordered frames",
            ),
        ] {
            let mut bad = sound;
            change(&mut bad);
            let error = bad.check().unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
    }
}

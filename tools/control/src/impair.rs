// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Impairments of uplinks: what is to go wrong with what leaves by them.

use crate::{Question, Request};
use serde::{Deserialize, Serialize};

/// All of what is drawn by lot is in parts of this.
pub const MILLION: u32 = 1_000_000;
/// The longest delay, with its jitter, in nanoseconds.
pub const MAX_DELAY: u64 = 10_000_000_000;
/// The lowest rate, in bits per second.
pub const MIN_RATE: u64 = 1_000;

/// What is to go wrong with the frames that leave by an uplink. All zero is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Impairment {
    /// So many of a million are lost.
    pub loss_ppm: u32,
    /// So many leave twice.
    pub duplicate_ppm: u32,
    /// In so many a bit is flipped, behind the Ethernet header.
    pub corrupt_ppm: u32,
    /// So many leave without the delay, ahead of what waits.
    pub reorder_ppm: u32,
    /// How long each waits, in nanoseconds.
    pub delay_ns: u64,
    /// And up to so much less or more, drawn for each: so they may leave in another order.
    pub jitter_ns: u64,
    /// Bits per second that leave; 0: as many as the uplink takes.
    pub rate_bps: u64,
    /// Seed of all chance: the same frames have the same fate with the same seed.
    pub seed: u64,
}

impl Impairment {
    /// Whether it makes sense.
    ///
    /// # Errors
    ///
    /// What does not, and what to do.
    pub fn check(&self) -> Result<(), String> {
        for (name, ppm) in [
            ("loss", self.loss_ppm),
            ("duplicate", self.duplicate_ppm),
            ("corrupt", self.corrupt_ppm),
            ("reorder", self.reorder_ppm),
        ] {
            if ppm > MILLION {
                return Err(format!("{name}: more than 100% of all frames"));
            }
        }
        if self.delay_ns.saturating_add(self.jitter_ns) > MAX_DELAY {
            return Err(String::from("delay and jitter: more than 10 s together"));
        }
        if self.jitter_ns > self.delay_ns {
            return Err(String::from(
                "jitter: longer than the delay, which it makes shorter and longer: give a longer delay",
            ));
        }
        if self.reorder_ppm > 0 && self.delay_ns == 0 {
            return Err(String::from(
                "reorder: what is reordered leaves ahead of what is delayed: give a delay, too",
            ));
        }
        if (1..MIN_RATE).contains(&self.rate_bps) {
            return Err(String::from("rate: less than 1 kbit/s"));
        }
        Ok(())
    }
}

/// What became of frames since an impairment was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toll {
    /// Frames that were to leave.
    pub frames: u64,
    /// Lost.
    pub lost: u64,
    /// Left twice.
    pub duplicated: u64,
    /// A bit was flipped.
    pub corrupted: u64,
    /// Left without the delay.
    pub reordered: u64,
    /// Lost, since too many waited.
    pub overflowed: u64,
    /// Wait now.
    pub waiting: u64,
}

/// An uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Impaired {
    /// Its number, from 0 on: the first `--uplink` of the NIC; one with several peers has a number for each.
    pub uplink: u8,
    /// What goes wrong there, if anything does.
    pub impairment: Option<Impairment>,
    /// What became of frames since.
    pub toll: Option<Toll>,
}

/// The answer to [`Request::Impair`] and [`Request::Impairments`]: all uplinks, as they are then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldImpairments {
    /// The uplinks.
    pub uplinks: Vec<Impaired>,
}

impl Question for ToldImpairments {
    const REQUEST: Request = Request::Impairments;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_named() {
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
                "reorder: what is reordered",
            ),
        ] {
            let mut bad = sound;
            change(&mut bad);
            let error = bad.check().unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
    }
}

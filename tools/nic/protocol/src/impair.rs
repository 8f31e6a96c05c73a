// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Impairments of uplinks: faults of the frames that leave by an uplink.

use crate::{ControlRequest, QueryReply};
use serde::{Deserialize, Serialize};
use verbena_faults::FrameImpairment;

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
    /// Returns the impairment of a rule whose file has this seed.
    pub fn of(how: FrameImpairment, seed: u64) -> Self {
        Self {
            loss_ppm: how.loss_ppm,
            duplicate_ppm: how.duplicate_ppm,
            corrupt_ppm: how.corrupt_ppm,
            reorder_ppm: how.reorder_ppm,
            delay_ns: how.delay_ns,
            jitter_ns: how.jitter_ns,
            rate_bps: how.rate_bps,
            seed,
        }
    }

    /// Returns the impairment as the action of a rule, which has no seed of its own.
    pub fn action(&self) -> FrameImpairment {
        FrameImpairment {
            loss_ppm: self.loss_ppm,
            duplicate_ppm: self.duplicate_ppm,
            corrupt_ppm: self.corrupt_ppm,
            reorder_ppm: self.reorder_ppm,
            delay_ns: self.delay_ns,
            jitter_ns: self.jitter_ns,
            rate_bps: self.rate_bps,
        }
    }

    /// Checks that the values are possible.
    ///
    /// # Errors
    ///
    /// A value is not possible. The text names the value and says how to correct it.
    pub fn check(&self) -> Result<(), String> {
        self.action().check()
    }
}

/// Counts of the effects of an impairment since it was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImpairmentCounters {
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
pub struct UplinkImpairment {
    /// Number of the uplink, from 0 in the order of the `--uplink` options of the NIC. An uplink
    /// with several peers has a number for each peer.
    pub uplink: u8,
    /// Impairment of the uplink, if there is one.
    pub impairment: Option<Impairment>,
    /// Effects of the impairment since it was set.
    #[serde(rename = "toll")]
    pub counters: Option<ImpairmentCounters>,
}

/// The answer to [`ControlRequest::Impair`] and [`ControlRequest::Impairments`]: all uplinks as
/// they are afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImpairmentsReply {
    /// All uplinks of the NIC.
    pub uplinks: Vec<UplinkImpairment>,
}

impl QueryReply for ImpairmentsReply {
    const REQUEST: ControlRequest = ControlRequest::Impairments;
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_faults::{MILLION, MIN_RATE_BPS};

    #[test]
    fn an_impossible_value_is_named() {
        let sound = Impairment {
            loss_ppm: MILLION,
            reorder_ppm: 1,
            delay_ns: 5,
            jitter_ns: 5,
            rate_bps: MIN_RATE_BPS,
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

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A random stream for each rule, derived from a seed and the name of the rule, so that the rules
//! do not influence each other.

/// The random stream of a rule (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct RuleRng(u64);

impl RuleRng {
    /// Creates the stream of a rule.
    pub(crate) fn of(seed: u64, name: &str) -> Self {
        // The hash is FNV-1a.
        let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        let hash = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold);
        let mut rng = Self(seed ^ hash);
        rng.next();
        rng
    }

    /// Creates the stream of `verbena-nic --drop`, which is derived from the seed alone, so that
    /// recordings from before this was a rule have the same losses.
    pub(crate) fn of_loss_option(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns true in this percentage of the draws, as `verbena-nic --drop` draws.
    pub(crate) fn is_hit_percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// Returns true with this probability.
    pub(crate) fn is_hit(&mut self, probability: f64) -> bool {
        // A float has no more than 53 bits of precision.
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

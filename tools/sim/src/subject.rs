// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is run by seed: the transport on its simulated network, or the whole device.

use verbena_roce_lab::network::cover::Coverage;
use verbena_roce_lab::Network;

/// Something that a seed is run in.
pub trait Subject {
    /// The command that replays one of its seeds.
    const REPLAY: &'static str;

    /// One that nothing was run in.
    fn fresh() -> Self;

    /// Runs a seed. Panics if it breaks a rule; then no other seed is to be run in it.
    fn run(&mut self, seed: u64);

    /// What was met since the last call.
    fn take_coverage(&mut self) -> Coverage;

    /// Adds what was met elsewhere.
    fn add_coverage(&mut self, coverage: &Coverage);
}

impl Subject for Network {
    const REPLAY: &'static str = "make sim SEED=";

    fn fresh() -> Self {
        Self::new()
    }

    fn run(&mut self, seed: u64) {
        Network::run(self, seed);
    }

    fn take_coverage(&mut self) -> Coverage {
        Network::take_coverage(self)
    }

    fn add_coverage(&mut self, coverage: &Coverage) {
        Network::add_coverage(self, coverage);
    }
}

/// The laboratory of the device model. What it meets is not counted, but for time.
#[cfg(feature = "device")]
#[derive(Debug)]
pub struct Device(Coverage);

#[cfg(feature = "device")]
impl Subject for Device {
    const REPLAY: &'static str = "make sim-device SEED=";

    fn fresh() -> Self {
        Self(Coverage::default())
    }

    fn run(&mut self, seed: u64) {
        self.0.time += verbena_device_lab::run(seed, None).time;
    }

    fn take_coverage(&mut self) -> Coverage {
        std::mem::take(&mut self.0)
    }

    fn add_coverage(&mut self, coverage: &Coverage) {
        self.0.merge(coverage);
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The simulations that can be run by seed: the transport on its simulated network, or the whole
//! device.

use verbena_lab_transport::network::coverage::Coverage;
use verbena_lab_transport::SimNetwork;

/// A simulation in which seeds are run.
pub trait Subject {
    /// Command that replays one of the subject's seeds.
    const REPLAY: &'static str;

    /// Returns a subject in which no seed was run.
    fn new_subject() -> Self;

    /// Runs a seed. Panics if the seed breaks a rule; after that no other seed may be run in this
    /// subject.
    fn run(&mut self, seed: u64);

    /// Returns the coverage since the last call, and resets it.
    fn take_coverage(&mut self) -> Coverage;

    /// Adds the coverage of another subject.
    fn add_coverage(&mut self, coverage: &Coverage);
}

impl Subject for SimNetwork {
    const REPLAY: &'static str = "make sim SEED=";

    fn new_subject() -> Self {
        Self::new()
    }

    fn run(&mut self, seed: u64) {
        SimNetwork::run(self, seed);
    }

    fn take_coverage(&mut self) -> Coverage {
        SimNetwork::take_coverage(self)
    }

    fn add_coverage(&mut self, coverage: &Coverage) {
        SimNetwork::add_coverage(self, coverage);
    }
}

/// The laboratory of the device model. Only virtual time is counted as coverage.
#[cfg(feature = "device")]
#[derive(Debug)]
pub struct DeviceSubject(Coverage);

#[cfg(feature = "device")]
impl Subject for DeviceSubject {
    const REPLAY: &'static str = "make sim-device SEED=";

    fn new_subject() -> Self {
        Self(Coverage::default())
    }

    fn run(&mut self, seed: u64) {
        self.0.time_ns += verbena_lab_device::run(seed, None).time_ns;
    }

    fn take_coverage(&mut self) -> Coverage {
        std::mem::take(&mut self.0)
    }

    fn add_coverage(&mut self, coverage: &Coverage) {
        self.0.merge(coverage);
    }
}

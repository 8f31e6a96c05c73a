// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replays of full recordings of the laboratory's programs, without memory and without a driver.

use std::sync::{Arc, Mutex};
use verbena_device::{replay, FullRecordingRequest};

/// Seeds that are run with every `cargo test`.
const SEEDS: u64 = 60;

#[test]
fn a_replay_repeats_what_a_seed_did() {
    let mut work = 0;
    for seed in 0..SEEDS {
        let file = Arc::new(Mutex::new(Vec::new()));
        let to = file.clone();
        let wish = FullRecordingRequest {
            number: 0,
            sink: Box::new(move |piece| {
                to.lock().unwrap().extend(piece);
                Ok(())
            }),
            // No program has rules.
            json: |_| String::new(),
            power_on: 0,
        };
        verbena_lab_device::run_recorded(seed, wish);
        let file = file.lock().unwrap();
        let found = replay(&file, |_| Err(String::from("there are no rules")));
        let found = found.unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        assert_eq!(found.end.as_deref(), Some("the seed is over"));
        work += found.work_requests;
    }
    assert!(work > 10 * SEEDS, "{work}");
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A short run of the laboratory: no seed breaks a rule.

/// Seeds that are run with every `cargo test`.
const SEEDS: u64 = 300;

#[test]
fn no_seed_breaks_a_rule() {
    for seed in 0..SEEDS {
        verbena_device_lab::run(seed, None);
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The first 10,000 seeds, in parts so that all cores are used. `make sim SEEDS=N` runs more.

use verbena_lab_sim::replay;

/// Runs the seeds of one part of eight.
fn part(number: u64) {
    let mut network = verbena_lab_transport::SimNetwork::new();
    for seed in (0..10_000).filter(|seed| seed % 8 == number) {
        if let Err(message) = replay::run_caught(&mut network, seed) {
            panic!("seed {seed} breaks a rule: {message}\nreplay: make sim SEED={seed}");
        }
    }
}

macro_rules! parts {
    ($($name:ident $number:literal,)*) => {
        $(
            #[test]
            fn $name() {
                part($number);
            }
        )*
    };
}

parts! {
    seeds_keep_all_rules_0 0,
    seeds_keep_all_rules_1 1,
    seeds_keep_all_rules_2 2,
    seeds_keep_all_rules_3 3,
    seeds_keep_all_rules_4 4,
    seeds_keep_all_rules_5 5,
    seeds_keep_all_rules_6 6,
    seeds_keep_all_rules_7 7,
}

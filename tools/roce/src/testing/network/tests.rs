// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The first seeds of every climate. Many more run in `tools/sim`.

use super::{Climate, Mode, Network};

#[test]
fn seeds_of_every_climate_keep_all_rules() {
    let mut network = Network::new();
    for seed in 0..400 {
        network.run(seed);
    }
}

#[test]
fn the_way_of_travel_does_not_change_the_outcome() {
    let mut network = Network::new();
    for seed in 0..60 {
        for climate in [Climate::Fair, Climate::Weather] {
            let local = network.run_as(seed, climate, Some(Mode::Local)).digest;
            for mode in [Mode::Split, Mode::Wire] {
                let outcome = network.run_as(seed, climate, Some(mode));
                assert_eq!(outcome.digest, local, "seed {seed}, {climate:?}, {mode:?}");
            }
        }
    }
}

#[test]
fn a_seed_has_one_outcome() {
    let outcome = |seed| Network::new().run(seed);
    for seed in 0..32 {
        assert_eq!(outcome(seed), outcome(seed));
    }
}

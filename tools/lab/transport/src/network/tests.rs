// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The first seeds of every climate. Many more run in `tools/lab/sim`.

use super::{Climate, Mode, Network};
use crate::tap::{Sight, Tap};
use std::cell::RefCell;
use std::rc::Rc;
use verbena_transport::wire::frame;

#[test]
fn seeds_of_every_climate_keep_all_rules() {
    let mut network = Network::new();
    for seed in 0..400 {
        network.run(seed);
    }
}

#[test]
fn the_mode_does_not_change_the_outcome() {
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

#[derive(Debug, Default)]
struct Watcher {
    frames: u32,
    unknown: u32,
}

impl Tap for Watcher {
    fn see(&mut self, sight: &Sight<'_>) {
        self.frames += 1;
        self.unknown += u32::from(sight.work.is_none());
        let packet = frame::parse(sight.frame).unwrap().packet;
        assert_eq!(
            (packet.psn, packet.opcode(), packet.payload.len()),
            (
                sight.packet.psn,
                sight.packet.opcode(),
                sight.packet.payload.len()
            )
        );
    }
}

#[test]
fn a_tap_sees_every_packet_and_changes_nothing() {
    let watcher = Rc::new(RefCell::new(Watcher::default()));
    let mut watched = Network::new();
    watched.tap = Some(Box::new(Rc::clone(&watcher)));
    for seed in 0..32 {
        assert_eq!(watched.run(seed), Network::new().run(seed));
    }
    let watcher = watcher.borrow();
    assert!(
        watcher.frames > 1000 && watcher.unknown < watcher.frames / 2,
        "{watcher:?}"
    );
}

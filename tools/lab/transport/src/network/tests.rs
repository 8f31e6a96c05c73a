// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The first seeds of every scenario. Many more run in `tools/lab/sim`.

use super::{LinkMode, Scenario, SimNetwork};
use crate::tap::{FrameTap, TappedFrame};
use std::cell::RefCell;
use std::rc::Rc;
use verbena_transport::frame;

#[test]
fn seeds_of_every_scenario_keep_all_rules() {
    let mut network = SimNetwork::new();
    for seed in 0..400 {
        network.run(seed);
    }
}

#[test]
fn the_mode_does_not_change_the_outcome() {
    let mut network = SimNetwork::new();
    for seed in 0..60 {
        for scenario in [Scenario::Fair, Scenario::Lossy] {
            let local = network.run_as(seed, scenario, Some(LinkMode::Local)).digest;
            for mode in [LinkMode::Split, LinkMode::Wire] {
                let outcome = network.run_as(seed, scenario, Some(mode));
                assert_eq!(outcome.digest, local, "seed {seed}, {scenario:?}, {mode:?}");
            }
        }
    }
}

#[test]
fn a_seed_has_one_outcome() {
    let outcome = |seed| SimNetwork::new().run(seed);
    for seed in 0..32 {
        assert_eq!(outcome(seed), outcome(seed));
    }
}

#[derive(Debug, Default)]
struct FrameWatcher {
    frames: u32,
    unknown: u32,
}

impl FrameTap for FrameWatcher {
    fn on_frame(&mut self, sight: &TappedFrame<'_>) {
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
    let watcher = Rc::new(RefCell::new(FrameWatcher::default()));
    let mut watched = SimNetwork::new();
    watched.tap = Some(Box::new(Rc::clone(&watcher)));
    for seed in 0..32 {
        assert_eq!(watched.run(seed), SimNetwork::new().run(seed));
    }
    let watcher = watcher.borrow();
    assert!(
        watcher.frames > 1000 && watcher.unknown < watcher.frames / 2,
        "{watcher:?}"
    );
}

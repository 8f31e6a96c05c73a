// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Panics, resets and floods of an engine.

use super::*;
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::OwnedFd;
use verbena_abi::regs;
use verbena_device::Device;

fn engine() -> Engine {
    let shared = Arc::new(Shared::new().unwrap());
    let network = Arc::new(Network::new(shared.clone(), [2, 0, 0, 0, 0, 1], vec![]));
    Engine::new(shared, Config::default(), network)
}

fn status(engine: &Engine) -> u32 {
    engine.shared.regs.read(regs::STATUS)
}

fn call<T>(engine: &mut Engine, call: impl FnOnce(&mut Device) -> T) -> Option<T> {
    engine.model.slice().call(|device, _| call(device))
}

/// Vector 0 of an engine whose gate is open.
fn interrupt(engine: &Engine) -> OwnedFd {
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let theirs = fd.try_clone().unwrap();
    engine.shared.set_vector(0, Some(theirs));
    engine.shared.set_bus_master(true);
    fd
}

fn was_raised(interrupt: &OwnedFd) -> bool {
    rustix::io::read(interrupt, &mut [0; 8]).is_ok()
}

#[test]
fn every_panic_is_told_and_a_fatal_error_until_reset() {
    let mut engine = engine();
    let interrupt = interrupt(&engine);
    for again in 0..3 {
        assert_eq!(
            call(&mut engine, |_| -> u32 { panic!("the first, on purpose") }),
            None
        );
        assert_eq!(status(&engine), regs::STATUS_FATAL, "{again}");
        assert!(was_raised(&interrupt));
        assert_eq!(call(&mut engine, |_| 5), Some(5));
        assert_eq!(
            call(&mut engine, |_| -> u32 { panic!("the second, on purpose") }),
            None
        );
        assert!(was_raised(&interrupt));
        assert_eq!(call(&mut engine, |_| 5), None);
        engine.shared.reset();
        engine.take_mail();
        assert_eq!(status(&engine), 0);
        assert_eq!(call(&mut engine, |_| 5), Some(5));
    }
}

#[test]
fn an_engine_that_ends_is_followed_by_one_that_a_reset_heals() {
    let mut engine = engine();
    let interrupt = interrupt(&engine);
    engine.start_over();
    assert_eq!(status(&engine), regs::STATUS_FATAL);
    assert!(was_raised(&interrupt));
    assert_eq!(call(&mut engine, |_| 5), None);
    // It may end with a reset in its hands, and with another one waiting.
    engine.shared.reset();
    drop(engine.shared.mail(0, false));
    engine.shared.reset();
    engine.start_over();
    assert!(!engine.shared.resetting());
    assert_eq!((status(&engine), call(&mut engine, |_| 5)), (0, Some(5)));
    engine.shared.reset();
    engine.take_mail();
    assert_eq!((status(&engine), call(&mut engine, |_| 5)), (0, Some(5)));
}

#[test]
fn of_two_resets_only_the_last_is_done_and_what_came_before_is_void() {
    let mut engine = engine();
    engine.shared.act(Action::EnableCmdq);
    engine.shared.reset();
    engine.shared.act(Action::EnableCmdq);
    engine.shared.reset();
    assert!(engine.take_mail());
    // Enabling without a version would have been a fatal error.
    assert_eq!(status(&engine), 0);
    assert!(!engine.shared.resetting() && !engine.take_mail());
}

#[test]
fn a_flood_of_frames_waits_its_turn() {
    let mut engine = engine();
    engine.shared.set_bus_master(true);
    let count = 10 * FRAMES;
    for _ in 0..count {
        engine.shared.receive(vec![0; 64]);
    }
    engine.shared.act(Action::EnableCmdq);
    assert!(engine.take_mail());
    // It was looked at, although frames wait: no version was chosen.
    assert_eq!(status(&engine), regs::STATUS_FATAL);
    let mut turns = 1;
    while engine.take_mail() {
        turns += 1;
    }
    assert_eq!(turns, count / FRAMES);
}

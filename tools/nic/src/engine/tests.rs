// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Panics, resets and floods of a VM in the engine's hands, and what the others notice of them.

use super::vm::{portion, COPIES, FRAMES};
use super::*;
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::OwnedFd;
use verbena_abi::regs;
use verbena_device::misbehave::{Kind, Misbehaviour, ALWAYS};
use verbena_device::{Action, Device};

/// An engine with so many VMs.
fn engine(vms: u8) -> Engine {
    let common = Arc::new(Common::new().unwrap());
    let new = |n| {
        let shared = Arc::new(Shared::beside(&common, Misbehaviour::default()));
        (shared, [2, 0, 0, 0, 0, n])
    };
    let vms: Vec<_> = (1..=vms).map(new).collect();
    let network = Arc::new(Network::new(&common, &vms, vec![]));
    let vms = vms.into_iter().map(|(shared, mac)| {
        let config = Config {
            mac,
            ..Config::default()
        };
        (shared, config)
    });
    Engine::new(vms.collect(), network)
}

/// The one of an engine with one VM.
fn single() -> Vm {
    engine(1).vms.remove(0)
}

fn status(vm: &Vm) -> u32 {
    vm.shared.regs.read(regs::STATUS)
}

fn call<T>(vm: &mut Vm, call: impl FnOnce(&mut Device) -> T) -> Option<T> {
    vm.model.slice().call(|device, _| call(device))
}

/// Vector 0 of a VM whose gate is open.
fn interrupt(vm: &Vm) -> OwnedFd {
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let theirs = fd.try_clone().unwrap();
    vm.shared.set_vector(0, Some(theirs));
    vm.shared.set_bus_master(true);
    fd
}

fn was_raised(interrupt: &OwnedFd) -> bool {
    rustix::io::read(interrupt, &mut [0; 8]).is_ok()
}

#[test]
fn every_panic_is_told_and_a_fatal_error_until_reset() {
    let mut vm = single();
    let interrupt = interrupt(&vm);
    for again in 0..3 {
        assert_eq!(
            call(&mut vm, |_| -> u32 { panic!("the first, on purpose") }),
            None
        );
        assert_eq!(status(&vm), regs::STATUS_FATAL, "{again}");
        assert!(was_raised(&interrupt));
        assert_eq!(call(&mut vm, |_| 5), Some(5));
        assert_eq!(
            call(&mut vm, |_| -> u32 { panic!("the second, on purpose") }),
            None
        );
        assert!(was_raised(&interrupt));
        assert_eq!(call(&mut vm, |_| 5), None);
        vm.shared.reset();
        vm.take_mail();
        assert_eq!(status(&vm), 0);
        assert_eq!(call(&mut vm, |_| 5), Some(5));
    }
}

#[test]
fn an_engine_that_ends_is_followed_by_one_that_a_reset_heals() {
    let mut vm = single();
    let interrupt = interrupt(&vm);
    vm.start_over();
    assert_eq!(status(&vm), regs::STATUS_FATAL);
    assert!(was_raised(&interrupt));
    assert_eq!(call(&mut vm, |_| 5), None);
    // It may end with a reset in its hands, and with another one waiting.
    vm.shared.reset();
    drop(vm.shared.mail(0, false));
    vm.shared.reset();
    vm.start_over();
    assert!(!vm.shared.resetting());
    assert_eq!((status(&vm), call(&mut vm, |_| 5)), (0, Some(5)));
    vm.shared.reset();
    vm.take_mail();
    assert_eq!((status(&vm), call(&mut vm, |_| 5)), (0, Some(5)));
}

#[test]
fn an_engine_that_ends_in_a_guests_turn_is_the_end_of_that_guests_device_alone() {
    let mut engine = engine(3);
    for dead in 0..3 {
        engine.vms[dead].shared.misbehave.set(Kind::EngineDies, 1);
        assert!(catch_unwind(AssertUnwindSafe(|| engine.turn())).is_err());
        engine.start_over();
        // A turn, not a round, whose rest has no end where this thread was kept from running long enough.
        engine.turn();
        for (n, vm) in engine.vms.iter().enumerate() {
            let fatal = if n == dead { regs::STATUS_FATAL } else { 0 };
            assert_eq!(status(vm), fatal, "{n}");
        }
        engine.vms[dead].shared.reset();
        engine.turn();
        assert!(engine.vms.iter().all(|vm| status(vm) == 0));
    }
}

#[test]
fn one_that_stalls_keeps_its_mail_and_nobody_elses() {
    let mut engine = engine(2);
    engine.vms[0].shared.misbehave.set(Kind::Stall, ALWAYS);
    for vm in &engine.vms {
        vm.shared.set_bus_master(true);
        vm.shared.act(Action::EnableCmdq);
    }
    engine.turn();
    // No version was chosen: a fatal error of the one that looked.
    let seen = |engine: &Engine| [0, 1].map(|n| status(&engine.vms[n]) != 0);
    assert_eq!(seen(&engine), [false, true]);
    engine.vms[0].shared.misbehave.set(Kind::Stall, 0);
    engine.turn();
    assert_eq!(seen(&engine), [true, true]);
}

#[test]
fn of_two_resets_only_the_last_is_done_and_what_came_before_is_void() {
    let mut vm = single();
    vm.shared.act(Action::EnableCmdq);
    vm.shared.reset();
    vm.shared.act(Action::EnableCmdq);
    vm.shared.reset();
    assert!(vm.take_mail());
    // Enabling without a version would have been a fatal error.
    assert_eq!(status(&vm), 0);
    assert!(!vm.shared.resetting() && !vm.take_mail());
}

#[test]
fn a_flood_of_frames_waits_its_turn() {
    let mut vm = single();
    vm.shared.set_bus_master(true);
    let count = 10 * FRAMES;
    for _ in 0..count {
        vm.shared.receive(vec![0; 64]);
    }
    vm.shared.act(Action::EnableCmdq);
    assert!(vm.take_mail());
    // It was looked at, although frames wait: no version was chosen.
    assert_eq!(status(&vm), regs::STATUS_FATAL);
    let mut turns = 1;
    while vm.take_mail() {
        turns += 1;
    }
    assert_eq!(turns, count / FRAMES);
}

#[test]
fn what_was_recorded_is_saved_when_a_model_panics_and_when_the_engine_ends() {
    use verbena_abi::eqe::EventType;
    use verbena_abi::syndrome::Syndrome;
    use verbena_record::{Recording, What};
    let name = format!("verbena-death-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let read = || {
        // A thread of its own writes the file, which appears as a whole. The limit is for a file that never comes.
        let begun = std::time::Instant::now();
        while !path.exists() {
            assert!(
                begun.elapsed().as_secs() < 60,
                "the recording of a death was not saved: {}",
                path.display()
            );
            std::thread::yield_now();
        }
        let recording = Recording::from_bytes(&std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        recording
    };
    for engine_ends in [false, true] {
        let mut vm = single();
        vm.shared.dump.set(path.clone()).unwrap();
        vm.shared.set_bus_master(true);
        call(&mut vm, |device| device.record(1024, 0)).unwrap();
        if engine_ends {
            vm.start_over();
        } else {
            let dies = |_: &mut Device| -> u32 { panic!("on purpose") };
            assert_eq!(call(&mut vm, dies), None);
            vm.turn();
        }
        let recording = read();
        assert_eq!(recording.reason, "the device died: EngineFailure");
        assert_eq!(recording.mac, [2, 0, 0, 0, 0, 1]);
        let fatal = What::Event {
            kind: EventType::DeviceFatal.to_raw(),
            number: 0,
            syndrome: Syndrome::EngineFailure.to_raw(),
        };
        let last = recording.entries.last().map(|entry| entry.what);
        // An engine that ends has no model that could write anything down.
        assert_eq!(last, (!engine_ends).then_some(fatal));
        // It goes on over the reset.
        vm.shared.reset();
        vm.take_mail();
        let recorded = vm.model.recorded(0, 9).unwrap();
        assert!(recorded.total > 0 && recorded.capacity == 1024);
        // The next life may die as well.
        vm.shared.set_bus_master(true);
        vm.forget_saved();
        call(&mut vm, |_| -> u32 { panic!("on purpose") });
        vm.turn();
        assert_eq!(read().reason, "the device died: EngineFailure");
    }
}

/// Guest RAM is held for a portion: of frames to groups, each of which is copied to as many as the group has members, one.
#[test]
fn a_frame_to_a_group_is_the_last_of_its_portion() {
    let (one, group): (&[u8], &[u8]) = (&[2, 0], &[0x33, 0x33]);
    let mut frames = [one, one, group, group, one].into_iter().chain([one; 20]);
    let mut next = frames.next();
    let mut counts = Vec::new();
    while next.is_some() {
        counts.push(portion(&mut next, &mut frames).count());
    }
    assert_eq!(counts, [3, 1, 16, 5]);
}

/// Frames to groups, each of which may be for hundreds, take no more of a turn than slices do.
#[test]
fn frames_to_groups_wait_for_the_next_turn_when_there_were_many() {
    let mut vm = single();
    vm.shared.set_bus_master(true);
    let (one, group): (&[u8], &[u8]) = (&[2, 0], &[0x33, 0x33]);
    vm.copies = COPIES - 1;
    vm.hear([one, group, group].into_iter(), 0);
    assert!(vm.shared.mail(FRAMES, false).frames.is_empty());
    vm.copies = COPIES;
    vm.hear([group, one, group].into_iter(), 0);
    assert_eq!(vm.shared.mail(FRAMES, false).frames, [group, group]);
    vm.turn();
    assert_eq!(vm.copies, 0);
    vm.hear([group].into_iter(), 0);
    assert!(vm.shared.mail(FRAMES, false).frames.is_empty());
}

/// A frame is kept back by a thread that finds nobody asleep, after the engine has asked when the next one goes on.
#[test]
fn nobody_falls_asleep_over_a_frame_that_is_kept_back() {
    let mut engine = engine(1);
    let common = engine.common.clone();
    common.impairments.set_uplinks(1);
    let late = verbena_control::Impairment {
        delay_ns: 1000,
        ..Default::default()
    };
    common.impairments.set(None, Some(late)).unwrap();
    assert!(!engine.park(Duration::ZERO, |_| true));
    assert!(common.impairments.take(0, &[&[1]], 500));
    assert!(engine.park(Duration::ZERO, |at| at == 1500));
    assert!(!engine.park(Duration::ZERO, |at| at < 1500));
}

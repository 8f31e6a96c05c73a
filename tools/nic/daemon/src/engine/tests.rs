// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Panics, resets and floods of one VM in the engine, and their effects on other VMs.

use super::vm::{portion, MAX_FRAMES, MAX_GROUP_COPIES};
use super::*;
use crate::frame_address::PortLink;
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::OwnedFd;
use verbena_abi::regs;
use verbena_device::misbehave::{Kind, Misbehaviour, ALWAYS};
use verbena_device::{Action, Device};

/// Returns an engine with `vms` VMs.
fn engine(vms: u8) -> Engine {
    let process = Arc::new(ProcessState::new().unwrap());
    let new = |n| {
        let shared = Arc::new(VmState::with_process(&process, Misbehaviour::default()));
        (shared, [2, 0, 0, 0, 0, n])
    };
    let vms: Vec<_> = (1..=vms).map(new).collect();
    let network = Arc::new(Network::new(&process, &vms, vec![]));
    let vms = vms.into_iter().map(|(shared, mac)| {
        let config = Config {
            mac,
            ..Config::default()
        };
        (shared, config)
    });
    Engine::new(vms.collect(), network)
}

/// Returns the VM of an engine that has one VM.
fn single() -> Vm {
    engine(1).vms.remove(0)
}

fn status(vm: &Vm) -> u32 {
    vm.shared.regs.read(regs::STATUS)
}

fn call<T>(vm: &mut Vm, call: impl FnOnce(&mut Device) -> T) -> Option<T> {
    vm.device.slice().call(|device, _| call(device))
}

/// Opens the gate of a VM. Returns the eventfd of its vector 0.
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
fn each_panic_raises_vector_0_and_is_a_fatal_error_until_reset() {
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
        vm.shared.begin_reset();
        vm.take_mail();
        assert_eq!(status(&vm), 0);
        assert_eq!(call(&mut vm, |_| 5), Some(5));
    }
}

#[test]
fn after_an_engine_failure_a_reset_revives_the_device() {
    let mut vm = single();
    let interrupt = interrupt(&vm);
    vm.start_over();
    assert_eq!(status(&vm), regs::STATUS_FATAL);
    assert!(was_raised(&interrupt));
    assert_eq!(call(&mut vm, |_| 5), None);
    // The engine fails after it has taken a reset, while another reset waits.
    vm.shared.begin_reset();
    drop(vm.shared.take_mail(0, false));
    vm.shared.begin_reset();
    vm.start_over();
    assert!(!vm.shared.is_resetting());
    assert_eq!((status(&vm), call(&mut vm, |_| 5)), (0, Some(5)));
    vm.shared.begin_reset();
    vm.take_mail();
    assert_eq!((status(&vm), call(&mut vm, |_| 5)), (0, Some(5)));
}

#[test]
fn an_engine_failure_in_the_turn_of_a_guest_ends_that_guests_device_alone() {
    let mut engine = engine(3);
    for dead in 0..3 {
        engine.vms[dead].shared.misbehave.set(Kind::EngineDies, 1);
        assert!(catch_unwind(AssertUnwindSafe(|| engine.turn())).is_err());
        engine.start_over();
        // A turn, not a round: a round sleeps if the VMs have been idle for long enough, which they
        // are if this thread did not run for that time.
        engine.turn();
        for (n, vm) in engine.vms.iter().enumerate() {
            let fatal = if n == dead { regs::STATUS_FATAL } else { 0 };
            assert_eq!(status(vm), fatal, "{n}");
        }
        engine.vms[dead].shared.begin_reset();
        engine.turn();
        assert!(engine.vms.iter().all(|vm| status(vm) == 0));
    }
}

#[test]
fn a_stalled_vm_keeps_its_mail_and_other_vms_take_theirs() {
    let mut engine = engine(2);
    engine.vms[0].shared.misbehave.set(Kind::Stall, ALWAYS);
    for vm in &engine.vms {
        vm.shared.set_bus_master(true);
        vm.shared.post_action(Action::EnableCmdq);
    }
    engine.turn();
    // The driver has selected no version, so a VM that takes the action has a fatal error.
    let seen = |engine: &Engine| [0, 1].map(|n| status(&engine.vms[n]) != 0);
    assert_eq!(seen(&engine), [false, true]);
    engine.vms[0].shared.misbehave.set(Kind::Stall, 0);
    engine.turn();
    assert_eq!(seen(&engine), [true, true]);
}

#[test]
fn of_two_resets_only_the_last_is_done_and_earlier_actions_are_void() {
    let mut vm = single();
    vm.shared.post_action(Action::EnableCmdq);
    vm.shared.begin_reset();
    vm.shared.post_action(Action::EnableCmdq);
    vm.shared.begin_reset();
    assert!(vm.take_mail());
    // To enable the queue without a version would have been a fatal error.
    assert_eq!(status(&vm), 0);
    assert!(!vm.shared.is_resetting() && !vm.take_mail());
}

#[test]
fn a_flood_of_frames_is_handled_in_portions_and_does_not_delay_actions() {
    let mut vm = single();
    vm.shared.set_bus_master(true);
    let count = 10 * MAX_FRAMES;
    for _ in 0..count {
        vm.shared.post_frame(vec![0; 64]);
    }
    vm.shared.post_action(Action::EnableCmdq);
    assert!(vm.take_mail());
    // The action was taken although frames wait: without a version it is a fatal error.
    assert_eq!(status(&vm), regs::STATUS_FATAL);
    let mut turns = 1;
    while vm.take_mail() {
        turns += 1;
    }
    assert_eq!(turns, count / MAX_FRAMES);
}

#[test]
fn the_recorded_entries_are_saved_after_a_panic_of_the_model_and_of_the_engine() {
    use verbena_abi::eqe::EventType;
    use verbena_abi::syndrome::Syndrome;
    use verbena_recorder::{EntryKind, FlightRecording};
    let name = format!("verbena-death-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let read = || {
        // Another thread writes the file and renames it when it is complete. The limit is for the
        // case that there is never a file.
        let begun = std::time::Instant::now();
        while !path.exists() {
            assert!(
                begun.elapsed().as_secs() < 60,
                "the recording of a death was not saved: {}",
                path.display()
            );
            std::thread::yield_now();
        }
        let recording = FlightRecording::from_bytes(&std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        recording
    };
    for engine_ends in [false, true] {
        let mut vm = single();
        vm.shared.dump.set(path.clone()).unwrap();
        vm.shared.set_bus_master(true);
        call(&mut vm, |device| device.begin_flight_recording(1024, 0)).unwrap();
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
        let fatal = EntryKind::Event {
            event_type: EventType::DeviceFatal.to_raw(),
            number: 0,
            syndrome: Syndrome::EngineFailure.to_raw(),
        };
        let last = recording.entries.last().map(|entry| entry.kind);
        // After a panic of the engine the model is replaced, so nothing records the failure.
        assert_eq!(last, (!engine_ends).then_some(fatal));
        // The recorder continues after the reset.
        vm.shared.begin_reset();
        vm.take_mail();
        let recorded = vm.device.flight_recording(0, 9).unwrap();
        assert!(recorded.total > 0 && recorded.capacity == 1024);
        // The next failure is saved as well.
        vm.shared.set_bus_master(true);
        vm.end_save_interval();
        call(&mut vm, |_| -> u32 { panic!("on purpose") });
        vm.turn();
        assert_eq!(read().reason, "the device died: EngineFailure");
    }
}

/// A portion is handled under one lock of guest RAM. It contains at most one frame to a group,
/// because such a frame is copied to each member of the group.
#[test]
fn a_frame_to_a_group_is_the_last_of_its_portion() {
    let (one, group): (&[u8], &[u8]) = (&[2, 0], &[0x33, 0x33]);
    let mut frames = [one, one, group, group, one].into_iter().chain([one; 20]);
    let mut next = frames.next();
    let mut counts = Vec::new();
    while next.is_some() {
        counts.push(portion(PortLink::Ethernet, &mut next, &mut frames).count());
    }
    assert_eq!(counts, [3, 1, 16, 5]);
}

/// A frame to a group may be copied to hundreds of members, so the number of copies in a turn is
/// limited.
#[test]
fn frames_to_groups_wait_for_the_next_turn_after_many_copies() {
    let mut vm = single();
    vm.shared.set_bus_master(true);
    let (one, group): (&[u8], &[u8]) = (&[2, 0], &[0x33, 0x33]);
    vm.copies = MAX_GROUP_COPIES - 1;
    vm.receive_from_uplink([one, group, group].into_iter(), 0);
    assert!(vm.shared.take_mail(MAX_FRAMES, false).frames.is_empty());
    vm.copies = MAX_GROUP_COPIES;
    vm.receive_from_uplink([group, one, group].into_iter(), 0);
    assert_eq!(
        vm.shared.take_mail(MAX_FRAMES, false).frames,
        [group, group]
    );
    vm.turn();
    assert_eq!(vm.copies, 0);
    vm.receive_from_uplink([group].into_iter(), 0);
    assert!(vm.shared.take_mail(MAX_FRAMES, false).frames.is_empty());
}

/// Another thread delays a frame after the engine has computed when it must wake, and before the
/// engine sleeps: the engine then must not sleep past the time of the frame.
#[test]
fn the_engine_does_not_sleep_past_a_delayed_frame() {
    let mut engine = engine(1);
    let process = engine.process.clone();
    process.impairments.set_uplinks(1);
    let late = verbena_protocol::Impairment {
        delay_ns: 1000,
        ..Default::default()
    };
    process.impairments.set(None, Some(late)).unwrap();
    assert!(!engine.park(Duration::ZERO, |_| true));
    assert!(process.impairments.impair(0, &[&[1]], 500));
    assert!(engine.park(Duration::ZERO, |at| at == 1500));
    assert!(!engine.park(Duration::ZERO, |at| at < 1500));
}

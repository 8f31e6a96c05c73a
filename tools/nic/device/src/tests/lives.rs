// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The life cycle of the device: the start of the command queue, the fatal state, and a reset,
//! after which no state is left.

use super::*;
use crate::memory::GuestMemory;
use crate::mock::{flat, GuestWords, SendWr};
use crate::{Config, Device, Registers};
use std::sync::Arc;
use verbena_abi::cmd::*;
use verbena_abi::cqe::{Cqe, Tail};
use verbena_abi::doorbell::{self, ArmMode, Words, AREA_SIZE};
use verbena_abi::eqe::{EventType, EQE_SIZE, LOG_EQE_SIZE};
use verbena_abi::regs::{self, *};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

fn raw(cause: Syndrome) -> u32 {
    cause.to_raw().into()
}

fn fill_cq(d: &mut Driver, cqn: u32, count: u32) {
    let tail = Tail {
        status: 0,
        opcode: 0,
        wc_flags: 0,
    };
    for _ in 0..count {
        let shared = &mut d.device.shared;
        shared.write_cqe(&d.ram, cqn, &Cqe::default(), tail, false);
    }
}

/// Returns a device with pending work of every kind.
fn busy() -> Driver {
    let mut p = Pair::on(Driver::with(Config {
        drop_percent: 5,
        ..Config::default()
    }));
    let mut srq = p.share();
    p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.connect(&p.a, &p.b);
    let (at, key) = p.d.region(8192, 1);
    p.d.must(&SetPort {
        up: 1,
        mtu: 4,
        port: 1,
        ..Default::default()
    });
    // Messages that take receives of the SRQ, and a queue pair whose peer is on another machine.
    for i in 0..5 {
        p.d.post_srq(&mut srq, i, &[(at, 64, key)]);
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, i, &[(at, 64, key)]));
    }
    p.d.pass(1_000_000);
    let mut far = p.d.create_qp(&p.cq_a, &p.cq_b);
    p.d.to_init(far.qpn).unwrap();
    p.d.to_rtr(far.qpn, 77, Driver::path(0, 8)).unwrap();
    p.d.to_rts(far.qpn).unwrap();
    p.d.post_send(
        &mut far,
        &SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 2000, key)]),
    );
    p.d.run();
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    p.d.run();
    // An interrupt, events that wait for room, a moderated CQ with a collapsed event, and a CQ that
    // overflows later.
    for number in 0..40 {
        let shared = &mut p.d.device.shared;
        shared.async_event(&p.d.ram, EventType::CommEst, number, None);
    }
    let mut slow = p.d.create_cq(4);
    p.d.must(&ModifyCq {
        cqn: slow.cqn.into(),
        moderation_count: 9.into(),
        moderation_period: 1000.into(),
        ..Default::default()
    });
    p.d.arm(&mut slow, ArmMode::Next);
    fill_cq(&mut p.d, slow.cqn, 1);
    p.d.device.run_slice(&p.d.ram, p.d.now);
    fill_cq(&mut p.d, slow.cqn, 1);
    let tiny = p.d.create_cq(0);
    // A command in progress and commands that wait for it, a doorbell area that sleeps, one that
    // was rung, and a survey of the counters in progress.
    let large = p.d.create_cq(14);
    fill_cq(&mut p.d, large.cqn, 9000);
    let addr = p.d.alloc(AREA_SIZE as u64);
    p.d.must(&CreateUar {
        uar: 3.into(),
        addr: addr.into(),
        ..Default::default()
    });
    p.d.room_for::<verbena_abi::ctx::QpContext>(Table::Qpc, 700);
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    request.qpn = 600.into();
    p.d.must(&request);
    p.d.device.fall_asleep(&p.d.ram);
    let ring = p.d.alloc(64 << 14);
    p.d.begin_cmd(
        1,
        &ResizeCq {
            cqn: large.cqn.into(),
            log_size: 14,
            ring: flat(ring),
            ..Default::default()
        },
    );
    p.d.begin_cmd(2, &QueryDevice::default());
    p.d.device.ring(0);
    p.d.device.run_slice(&p.d.ram, p.d.now);
    p.d.device.run_slice(&p.d.ram, p.d.now);
    p.d.device.ring(3);
    assert_eq!(p.d.device.survey(), None);
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, 9, &[]));
    p.d.device.note_posts(&p.d.ram, p.a.qpn);
    let (qpn, now) = (p.a.qpn, p.d.now);
    p.d.device.with_qp(&p.d.ram, qpn, |transport, host| {
        transport.poll(host, now, &mut verbena_transport::sched::turn())
    });
    p.d.device.make_ready(qpn);
    p.d.device.shared.interrupt(3);
    p.d.device.rounds.stand_at(5, 6);
    p.d.device.areas.go_on();
    fill_cq(&mut p.d, slow.cqn, 1);
    fill_cq(&mut p.d, tiny.cqn, 2);
    p.d.device.shared.interrupt(9);
    p.d
}

/// Returns the debug text of a device as lines, to compare two devices.
fn lines(device: &Device) -> Vec<String> {
    let text = format!("{device:#?}");
    text.lines().map(str::to_string).collect()
}

#[test]
fn a_reset_leaves_no_state() {
    let mut d = busy();
    let (device, shared) = (&d.device, &d.device.shared);
    let (awake, rung) = device.areas.lists();
    // Pending work of each kind is there before the reset.
    let under_way = [
        device.commands.running().is_some(),
        device.commands.waiting() != 0,
        device.survey.is_some(),
        !awake.is_empty() && !rung.is_empty(),
        !device.turns.are_none(),
        device.turns.next_deadline().is_some(),
        device.egress.len() != 0,
        !shared.outgoing.is_empty(),
        !shared.witnesses.are_none(),
        shared.cqs.next_deadline().is_some(),
        shared.eqs.get(0).is_some_and(|eq| eq.has_waiting()),
        shared.interrupts.are_pending(),
    ];
    assert_eq!(under_way, [true; 12]);
    d.regs.write(regs::CONTROL, CONTROL_RESET);
    let beats = d.regs.read(HEARTBEAT);
    d.device.reset();
    let regs = Arc::new(Registers::default());
    (0..beats).for_each(|_| regs.beat());
    let new = Device::new(d.device_config().clone(), regs);
    let (new, old) = (lines(&new), lines(&d.device));
    let differs = new.iter().zip(&old).find(|(a, b)| a != b);
    assert_eq!(differs, None);
    assert_eq!(new.len(), old.len());
    // No later effect follows: no write to memory, no interrupt, no frame.
    let before = d.bytes(crate::mock::BASE, 32 << 20);
    d.now += 10_000_000_000;
    let next = d.device.run_slice(&d.ram, d.now);
    assert_eq!((next.busy, next.deadline), (false, None));
    assert_eq!(d.device.take_interrupts(), 0);
    assert!(d.device.next_frame().is_none());
    assert!(before == d.bytes(crate::mock::BASE, 32 << 20));
    // Tokens that were used before the reset can be used again.
    d.bring_up();
    d.must(&QueryDevice::default());
}

/// Writes the registers of the command queue, which is not enabled by that.
fn set_up(d: &Driver, version: u32, base: u64, slots: u32) {
    for (at, value) in [
        (VERSION_SELECT, version),
        (CMDQ_BASE_LO, base as u32),
        (CMDQ_BASE_HI, (base >> 32) as u32),
        (CMDQ_SLOTS, slots),
    ] {
        d.regs.write(at, value);
    }
}

#[test]
fn a_failure_before_the_queue_runs_raises_no_interrupt_and_stays() {
    let version = u32::from(verbena_abi::ABI_VERSION);
    for (chosen, base, cause) in [
        (version + 1, crate::mock::BASE, Syndrome::CmdVersion),
        // Both version and queue are wrong. The device reports the version, and does not look at
        // the queue of a driver whose version it does not support.
        (0, 0, Syndrome::CmdVersion),
        (version, 0, Syndrome::CmdQueueUnreachable),
    ] {
        let mut d = Driver::cold(Config::default());
        set_up(&d, chosen, base, 1);
        d.device.enable_cmdq(&d.ram);
        let told = |d: &Driver| (d.regs.read(STATUS), d.regs.read(FATAL_SYNDROME));
        assert_eq!(told(&d), (STATUS_FATAL, raw(cause)));
        assert_eq!(
            d.device.take_interrupts(),
            0,
            "the driver polls the status, so there is no interrupt"
        );
        // Correct registers do not end the fatal state; a reset does.
        set_up(&d, version, crate::mock::BASE, 1);
        d.device.enable_cmdq(&d.ram);
        assert_eq!(told(&d), (STATUS_FATAL, raw(cause)));
        d.device.fail(&d.ram, Syndrome::EngineFailure);
        assert_eq!(
            told(&d),
            (STATUS_FATAL, raw(cause)),
            "the first cause stays"
        );
        assert_eq!(d.device.take_interrupts(), 0);
        d.device.reset();
        assert_eq!(told(&d), (0, 0));
        set_up(&d, version, crate::mock::BASE, 1);
        d.device.enable_cmdq(&d.ram);
        assert_eq!(told(&d), (STATUS_READY, 0));
        assert_eq!(d.device.take_interrupts(), 0);
    }
}

#[test]
fn queue_registers_have_no_effect_after_the_queue_is_enabled() {
    let mut d = Driver::new();
    let version = u32::from(verbena_abi::ABI_VERSION);
    set_up(&d, version + 1, 0, 0);
    d.must(&QueryDevice::default());
    d.device.enable_cmdq(&d.ram);
    assert_eq!(d.regs.read(STATUS), STATUS_READY);
    d.must(&QueryDevice::default());
}

/// Returns a device with doorbell areas 0 and 5 whose EQ 0 is on vector 3, the addresses of the
/// areas, and the addresses of the ring and of the consumer index of EQ 0.
fn on_another_vector() -> (Driver, [u64; 2], u64, u64) {
    let mut d = Driver::new();
    for eqn in [1, 0] {
        d.must(&DestroyEq {
            id: eqn.into(),
            ..Default::default()
        });
    }
    let (ring, ci_addr) = (d.alloc(4096), d.alloc(4096));
    d.must(&CreateEq {
        vector: 3.into(),
        log_size: 4,
        log_entry_size: LOG_EQE_SIZE,
        ring: flat(ring),
        ci_addr: ci_addr.into(),
        ..Default::default()
    });
    d.create_eq(1).unwrap();
    let second = d.alloc(AREA_SIZE as u64);
    d.must(&CreateUar {
        uar: 5.into(),
        addr: second.into(),
        ..Default::default()
    });
    d.device.take_interrupts();
    let areas = [d.area, second];
    (d, areas, ring, ci_addr)
}

#[test]
fn each_fatal_error_is_reported_once() {
    type Kill = fn(&mut Driver);
    let causes: [(Syndrome, Kill); 4] = [
        (Syndrome::EngineFailure, |d| {
            d.device.fail(&d.ram, Syndrome::EngineFailure);
        }),
        (Syndrome::CmdQueueUnreachable, |d| {
            d.begin_cmd(1, &QueryDevice::default());
            d.ram.hide(d.cmdq_memory() + SLOT_SIZE as u64, 4);
            d.device.run_slice(&d.ram, d.now);
        }),
        (Syndrome::EqUnwritable, |d| {
            d.ram.hide(d.eq_memory(1).0, 4);
            let mut cq = d.create_cq(4);
            d.arm(&mut cq, ArmMode::Next);
            fill_cq(d, cq.cqn, 1);
            d.device.run_slice(&d.ram, d.now);
        }),
        // If EQ 0 cannot be written, only vector 0 reports the error.
        (Syndrome::EqUnwritable, |d| {
            let ring = d.device.shared.eqs.get(0).unwrap().ring.entry(0);
            d.ram.hide(ring, 4);
            let shared = &mut d.device.shared;
            shared.async_event(&d.ram, EventType::CommEst, 9, None);
        }),
    ];
    for (n, (cause, kill)) in causes.into_iter().enumerate() {
        let (mut d, areas, ring, _) = on_another_vector();
        kill(&mut d);
        d.ram.unhide();
        let told = |d: &Driver| (d.regs.read(STATUS), d.regs.read(FATAL_SYNDROME));
        assert_eq!(told(&d), (STATUS_READY | STATUS_FATAL, raw(cause)));
        let event = (EventType::DeviceFatal as u32, 0, raw(cause));
        let entry = |d: &Driver, i: u64| -> (u32, u32, u32) {
            let e: verbena_abi::eqe::Eqe = d.ram.read_struct(ring + i * EQE_SIZE as u64).unwrap();
            (e.tail.get() & 0xff, e.number.get(), e.syndrome.get())
        };
        let vectors = d.device.take_interrupts();
        if n == 3 {
            assert_eq!((vectors & 0b1001, entry(&d, 0).0), (1, 0));
        } else {
            assert_eq!((vectors & 0b1001, entry(&d, 0)), (0b1001, event), "{n}");
        }
        // Every doorbell area shows that it is no longer served.
        for area in areas {
            let words = GuestWords {
                ram: &d.ram,
                base: area,
            };
            assert_eq!(words.load(doorbell::ALIVE), 0, "{cause:?}");
        }
        // A later failure changes nothing.
        d.device.fail(&d.ram, Syndrome::EngineFailure);
        d.device.shared.fatal(&d.ram, Syndrome::EqUnwritable);
        d.device.run_slice(&d.ram, d.now + 1_000_000_000);
        assert_eq!(told(&d).1, raw(cause));
        assert_eq!((entry(&d, 1).0, d.device.take_interrupts()), (0, 0));
    }
}

#[test]
fn without_an_event_queue_vector_0_reports_a_fatal_error() {
    let mut d = Driver::new();
    for eqn in [1, 0] {
        d.must(&DestroyEq {
            id: eqn.into(),
            ..Default::default()
        });
    }
    d.device.take_interrupts();
    d.device.fail(&d.ram, Syndrome::EngineFailure);
    assert_eq!(d.device.take_interrupts(), 1);
    assert_eq!(d.regs.read(FATAL_SYNDROME), raw(Syndrome::EngineFailure));
}

#[test]
fn a_device_in_the_fatal_state_only_answers_commands() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 64, key)]).to(at + 64, key);
    p.d.post_send(&mut p.a, &wr);
    p.d.run();
    // Work of every kind is pending when the device fails, and more is posted afterwards.
    let mut lost = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.to_init(lost.qpn).unwrap();
    p.d.to_rtr(lost.qpn, 77, Driver::path(0, 8)).unwrap();
    p.d.to_rts(lost.qpn).unwrap();
    p.d.post_send(&mut lost, &wr);
    p.d.run();
    let frame = p.d.device.next_frame().unwrap();
    p.d.post_send(&mut p.a, &wr);
    p.d.device.make_ready(p.a.qpn);
    p.d.device.fail(&p.d.ram, Syndrome::EngineFailure);
    p.d.device.take_interrupts();
    p.d.post_send(&mut p.a, &wr);
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    doorbell::post_send(&p.d.words(), p.b.slot.into(), 1000, || {});
    p.d.device.ring(0);
    let (memory, objects) = (p.d.bytes(crate::mock::BASE, 32 << 20), p.d.objects());
    let stats = p.d.device.stats();
    for _ in 0..5 {
        p.d.now += 1_000_000_000;
        let next = p.d.device.run_slice(&p.d.ram, p.d.now);
        assert_eq!((next.busy, next.deadline), (false, None));
        p.d.device.receive_frame(&p.d.ram, &frame, p.d.now);
        // The device has no work that keeps it awake.
        assert!(p.d.device.fall_asleep(&p.d.ram));
    }
    assert!(memory == p.d.bytes(crate::mock::BASE, 32 << 20));
    assert_eq!(objects, p.d.objects());
    assert_eq!(stats, p.d.device.stats());
    assert_eq!(p.d.device.take_interrupts(), 0);
    // Each command is answered, and does nothing.
    for opcode in Opcode::ALL {
        let e =
            p.d.raw_cmd(opcode.to_raw(), &[0; PAYLOAD_SIZE])
                .unwrap_err();
        let fatal = (CmdStatus::Fatal, Syndrome::DeviceFatal);
        assert_eq!((e.status, e.syndrome), fatal, "{opcode:?}");
    }
    assert_eq!(objects, p.d.objects());
    // A slice executes one CREATE_CQ. The device is busy until it has answered the last one.
    for slot in 0..3 {
        p.d.begin_cmd(slot, &CreateCq::default());
    }
    for slot in 0..3 {
        let next = p.d.device.run_slice(&p.d.ram, p.d.now);
        assert_eq!((next.busy, p.d.is_answered(slot)), (slot != 2, true));
    }
    p.d.device.reset();
    p.d.bring_up();
    let mut again = Pair::on(p.d);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 2, &[]);
    again.d.post_send(&mut again.a, &write);
    assert_eq!(again.d.drain(&mut again.cq_a).len(), 1);
}

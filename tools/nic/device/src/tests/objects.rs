// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects: creation, contexts, destruction, event queues, reset.

use super::Pair;
use crate::error::CmdError;
use crate::memory::GuestMemory;
use crate::mock::{Driver, SendWr, BASE};
use crate::Config;
use crate::Cursor;
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::*;
use verbena_abi::doorbell;
use verbena_abi::eqe::EventType;
use verbena_abi::regs;
use verbena_abi::stats::NUM_COUNTERS;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

fn failure<T: std::fmt::Debug>(result: Result<T, CmdError>) -> (CmdStatus, Syndrome) {
    let e = result.unwrap_err();
    (e.status, e.syndrome)
}

#[test]
fn the_version_is_checked_before_the_queue_runs() {
    let mut d = Driver::cold(Config::default());
    d.regs.write(regs::VERSION_SELECT, 999);
    d.device.enable_cmdq(&d.ram);
    assert!(d.regs.is_fatal());
    let cause = d.regs.read(regs::FATAL_SYNDROME);
    assert_eq!(cause, Syndrome::CmdVersion.to_raw().into());
    d.device.reset();
    d.bring_up();
}

#[test]
fn the_command_queue_has_to_be_in_memory() {
    let d = &mut Driver::cold(Config::default());
    d.regs
        .write(regs::VERSION_SELECT, verbena_abi::ABI_VERSION.into());
    d.regs.write(regs::CMDQ_BASE_HI, 7);
    d.regs.write(regs::CMDQ_SLOTS, 1);
    d.device.enable_cmdq(&d.ram);
    let cause = d.regs.read(regs::FATAL_SYNDROME);
    assert_eq!(cause, Syndrome::CmdQueueUnreachable.to_raw().into());
}

#[test]
fn the_command_queue_has_1_to_64_slots_and_begins_a_page() {
    for (base, slots, works) in [
        (BASE, 1, true),
        (BASE, 64, true),
        (BASE, 0, false),
        (BASE, 65, false),
        (BASE + 64, 1, false),
        (BASE - 4096, 1, false),
        (BASE + (32 << 20) - 4096, 8, true),
        (BASE + (32 << 20) - 4096, 9, false),
    ] {
        let mut d = Driver::cold(Config::default());
        d.regs
            .write(regs::VERSION_SELECT, verbena_abi::ABI_VERSION.into());
        d.regs.write(regs::CMDQ_BASE_LO, base as u32);
        d.regs.write(regs::CMDQ_SLOTS, slots);
        d.device.enable_cmdq(&d.ram);
        let status = d.regs.read(regs::STATUS);
        assert_eq!(
            status == regs::STATUS_READY,
            works,
            "{slots} slots at {base:#x}"
        );
        assert_eq!(d.regs.is_fatal(), !works);
    }
}

#[test]
fn unknown_commands_are_unsupported() {
    let mut d = Driver::new();
    let got = failure(d.raw_cmd(0x7f, &[]));
    assert_eq!(got, (CmdStatus::Unsupported, Syndrome::CmdOpcode));
}

#[test]
fn each_command_raises_vector_0() {
    let mut d = Driver::new();
    d.run();
    let before = d.interrupts.get(&0).copied().unwrap_or(0);
    d.must(&QueryDevice::default());
    d.run();
    assert_eq!(d.interrupts.get(&0), Some(&(before + 1)));
}

#[test]
fn numbers_and_slots_in_use_are_refused() {
    let mut p = Pair::new();
    let request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    p.d.cmd(&request).unwrap();
    assert_eq!(failure(p.d.cmd(&request)).0, CmdStatus::Exists);
    let mut same_slot = request;
    same_slot.qpn = 99.into();
    assert_eq!(failure(p.d.cmd(&same_slot)).0, CmdStatus::Exists);
    let mut big = request;
    big.qpn = (1 << 23).into();
    assert_eq!(failure(p.d.cmd(&big)).1, Syndrome::CmdNumber);
    let mut beyond_table = request;
    beyond_table.qpn = 300.into();
    beyond_table.slot = 100.into();
    assert_eq!(failure(p.d.cmd(&beyond_table)).1, Syndrome::CmdTableSlot);
}

#[test]
fn rings_have_to_be_in_memory() {
    let mut p = Pair::new();
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    request.sq.addr = (1u64 << 40).into();
    let got = failure(p.d.cmd(&request));
    assert_eq!(got, (CmdStatus::BadAddress, Syndrome::CmdTranslation));
    request.sq.levels = 3;
    assert_eq!(failure(p.d.cmd(&request)).0, CmdStatus::Invalid);
}

#[test]
fn a_context_shows_its_object_until_it_is_destroyed() {
    let mut p = Pair::new();
    let context = p.d.query_qp(p.a.qpn);
    assert_eq!(context.valid, 1);
    assert_eq!(context.attr.qp_state, QpState::Rts.to_raw());
    assert_eq!(context.attr.dest_qpn.get(), p.b.qpn);
    assert_eq!(context.attr.rq_psn.get(), 0xff_fffe);
    assert_eq!(context.seq.get() & 1, 0);
    let at = p.d.table(Table::Qpc) + u64::from(p.a.qpn) * size_of::<QpContext>() as u64;
    p.d.must(&DestroyQp {
        id: p.a.qpn.into(),
        ..Default::default()
    });
    let after: QpContext = p.d.ram.read_struct(at).unwrap();
    assert_eq!(after.valid, 0);
    assert_ne!(after.seq, context.seq);
}

#[test]
fn objects_in_use_are_busy() {
    let mut p = Pair::new();
    let uar = DestroyUar::default();
    assert_eq!(failure(p.d.cmd(&uar)).0, CmdStatus::Busy);
    let eq = DestroyEq {
        id: 1.into(),
        ..Default::default()
    };
    assert_eq!(failure(p.d.cmd(&eq)).0, CmdStatus::Busy);
}

#[test]
fn everything_can_be_destroyed_and_created_again() {
    let mut p = Pair::new();
    for round in 0..3 {
        for qp in [p.a.qpn, p.b.qpn] {
            p.d.must(&DestroyQp {
                id: qp.into(),
                ..Default::default()
            });
        }
        for cq in [p.cq_a.cqn, p.cq_b.cqn] {
            p.d.must(&DestroyCq {
                id: cq.into(),
                ..Default::default()
            });
        }
        let again = Pair::on(std::mem::take(&mut p.d));
        p = again;
        let wr = SendWr::new(WqeOpcode::RdmaWrite, round, &[]);
        p.d.post_send(&mut p.a, &wr);
        assert_eq!(p.d.drain(&mut p.cq_a), [(round, WcStatus::Success)]);
    }
}

#[test]
fn transitions_need_their_attributes() {
    let mut p = Pair::new();
    let qp = p.d.create_qp(&p.cq_a, &p.cq_a);
    let transition = (CmdStatus::Invalid, Syndrome::CmdTransition);
    let attribute = (CmdStatus::Invalid, Syndrome::CmdAttribute);
    for state in [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe] {
        assert_eq!(failure(p.d.move_to(qp.qpn, state)), transition, "{state:?}");
    }
    assert_eq!(failure(p.d.move_to(qp.qpn, QpState::Init)), attribute);
    p.d.to_init(qp.qpn).unwrap();
    assert_eq!(failure(p.d.to_rts(qp.qpn)), transition);
    let mut no_gid = Driver::path(0, 1);
    no_gid.sgid_index = 9.into();
    assert_eq!(failure(p.d.to_rtr(qp.qpn, 5, no_gid)), attribute);
    let state = p.d.query_qp(qp.qpn).attr.qp_state;
    assert_eq!(state, QpState::Init.to_raw());
    p.d.to_rtr(qp.qpn, 5, Driver::path(0, 1)).unwrap();
    let surplus = QpAttr {
        qp_state: QpState::Rts.to_raw(),
        timeout: 10,
        ..Default::default()
    };
    let all = qp_mask::STATE
        | qp_mask::SQ_PSN
        | qp_mask::TIMEOUT
        | qp_mask::RETRY_CNT
        | qp_mask::RNR_RETRY
        | qp_mask::MAX_QP_RD_ATOMIC;
    let with_port = p.d.modify(qp.qpn, all | qp_mask::PORT, surplus);
    assert_eq!(failure(with_port), attribute);
    p.d.to_rts(qp.qpn).unwrap();
}

#[test]
fn events_wait_for_room_and_none_is_lost() {
    let mut p = Pair::new();
    // More queue pairs fail than the event queue has entries.
    let mut qps = vec![];
    for _ in 0..20 {
        let (x, y) = (
            p.d.create_qp(&p.cq_a, &p.cq_a),
            p.d.create_qp(&p.cq_b, &p.cq_b),
        );
        p.d.connect(&x, &y);
        qps.push(x);
    }
    for qp in &qps {
        doorbell::post_send(&p.d.words(), qp.slot.into(), 1000, || {});
    }
    p.d.run();
    let mut seen = vec![];
    for _ in 0..5 {
        seen.extend(p.d.events(0).iter().map(|e| (e.kind, e.number)));
        p.d.pass(1_000_000);
    }
    let expected: Vec<_> = qps.iter().map(|q| (EventType::QpFatal, q.qpn)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn one_interrupt_reports_several_events() {
    let mut p = Pair::new();
    p.d.run();
    let before = p.d.interrupts.get(&0).copied().unwrap_or(0);
    for qp in [p.a.clone(), p.b.clone()] {
        doorbell::post_send(&p.d.words(), qp.slot.into(), 1000, || {});
        p.d.run();
    }
    // The driver has not taken the first event when the second one is reported.
    assert_eq!(p.d.interrupts.get(&0), Some(&(before + 1)));
    assert_eq!(p.d.events(0).len(), 2);
}

#[test]
fn a_reset_drops_objects_posts_and_counters() {
    let mut p = Pair::new();
    p.d.device.reset();
    assert_eq!(p.d.regs.read(regs::STATUS), 0);
    let all = p.d.device.contexts(Cursor::default(), 9);
    assert!(all.contexts.is_empty() && all.next.is_none());
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    p.d.device.run_slice(&p.d.ram, p.d.now);
    assert!(p.d.poll(&mut p.cq_a).is_none());
    assert_eq!(p.d.device.stats(), [0; NUM_COUNTERS], "counters too");
    p.d.bring_up();
}

#[test]
fn a_fatal_error_is_reported_and_commands_are_answered() {
    let mut p = Pair::new();
    p.d.device.fail(&p.d.ram, Syndrome::EngineFailure);
    let events = p.d.events(0);
    assert_eq!(events[0].kind, EventType::DeviceFatal);
    use verbena_abi::doorbell::Words;
    assert_eq!(p.d.words().load(doorbell::ALIVE), 0);
    let got = failure(p.d.cmd(&QueryDevice::default()));
    assert_eq!(got, (CmdStatus::Fatal, Syndrome::DeviceFatal));
}

#[test]
fn translations_are_walked_at_each_level() {
    for levels in [1, 2] {
        let mut p = Pair::new();
        // Pages in reverse order, so that no page is contiguous with the next one of the list.
        let pages = 700u64;
        let base = p.d.alloc(pages * 4096);
        let list: Vec<u64> = (0..pages).rev().map(|i| base + i * 4096).collect();
        let leaves = p.d.alloc(pages * 8);
        for (i, page) in list.iter().enumerate() {
            p.d.ram.store64(leaves + i as u64 * 8, *page).unwrap();
        }
        let mut table = leaves;
        if levels == 2 {
            table = p.d.alloc(4096);
            for leaf in 0..2 {
                p.d.ram
                    .store64(table + leaf * 8, leaves + leaf * 4096)
                    .unwrap();
            }
        }
        let key = 0x5011;
        p.d.must(&CreateMr {
            key: key.into(),
            pdn: 7.into(),
            access: 0xf.into(),
            iova: 0x7000_0123.into(),
            length: (pages * 4096 - 0x123).into(),
            page_offset: 0x123.into(),
            pages: Translation {
                addr: table.into(),
                num_pages: (pages as u32).into(),
                log_page_size: 12,
                levels,
                ..Default::default()
            },
            ..Default::default()
        });
        let (from, lkey) = p.d.region(20_000, 3);
        let to = 0x7000_0123 + 510 * 4096;
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 20_000, lkey)]).to(to, key);
        p.d.post_send(&mut p.a, &wr);
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
        let mut landed = p.d.bytes(list[510] + 0x123, 4096 - 0x123);
        for page in &list[511..515] {
            landed.extend(p.d.bytes(*page, 4096));
        }
        landed.truncate(20_000);
        assert_eq!(landed, p.d.bytes(from, landed.len()));
    }
}

#[test]
fn silent_areas_sleep_while_another_is_busy() {
    use verbena_abi::doorbell::Words;
    let mut p = Pair::new();
    let mut bases = vec![];
    for uar in 1..10 {
        let addr = p.d.alloc(doorbell::AREA_SIZE as u64);
        bases.push(addr);
        p.d.must(&CreateUar {
            uar: uar.into(),
            addr: addr.into(),
            ..Default::default()
        });
    }
    for i in 0..100 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
        p.d.pass(100_000);
        assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
    }
    assert_eq!(p.d.words().load(doorbell::SLEEP), 0);
    for base in bases {
        assert_eq!(
            p.d.ram.load32(base + doorbell::SLEEP as u64).unwrap() & 1,
            1
        );
    }
}

#[test]
fn the_interrupt_is_raised_again_if_the_driver_leaves_entries() {
    let mut p = Pair::new();
    p.d.run();
    let before = p.d.interrupts.get(&0).copied().unwrap_or(0);
    doorbell::post_send(&p.d.words(), p.a.slot.into(), 1000, || {});
    p.d.pass(40_000_000);
    assert_eq!(p.d.interrupts.get(&0), Some(&(before + 1)));
    p.d.pass(20_000_000);
    assert_eq!(p.d.interrupts.get(&0), Some(&(before + 2)));
    assert_eq!(p.d.events(0).len(), 1);
    p.d.pass(500_000_000);
    assert_eq!(p.d.interrupts.get(&0), Some(&(before + 2)));
    let next = p.d.device.run_slice(&p.d.ram, p.d.now);
    assert_eq!(next.deadline, None);
}

#[test]
fn packets_from_before_a_reset_are_not_delivered_after_it() {
    let mut p = Pair::new();
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]);
    p.d.post_send(&mut p.a, &wr);
    let (device, ram, now) = (&mut p.d.device, &p.d.ram, p.d.now);
    assert!(device.note_posts(ram, p.a.qpn));
    let mut turn = verbena_transport::sched::turn();
    device.with_qp(ram, p.a.qpn, |transport, host| {
        transport.poll(host, now, &mut turn)
    });
    assert_eq!(
        p.d.device.shared.outgoing.len(),
        1,
        "the packet waits for delivery"
    );
    // One slice executes these commands before it delivers packets.
    let gone = DestroyQp {
        id: p.a.qpn.into(),
        ..Default::default()
    };
    p.d.begin_cmd(1, &gone);
    let [reset, init, rtr] = [QpState::Reset, QpState::Init, QpState::Rtr].map(|to| ModifyQp {
        qpn: p.b.qpn.into(),
        attr: QpAttr {
            qp_state: to.to_raw(),
            port_num: 1,
            path_mtu: 3,
            dest_qpn: p.a.qpn.into(),
            rq_psn: 0xff_fffe.into(),
            ..Default::default()
        },
        av: Driver::path(1, 0),
        mask: match to {
            QpState::Reset => qp_mask::STATE,
            QpState::Init => {
                qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::ACCESS_FLAGS
            }
            _ => {
                let responder = qp_mask::MAX_DEST_RD_ATOMIC | qp_mask::MIN_RNR_TIMER;
                qp_mask::STATE
                    | qp_mask::AV
                    | qp_mask::PATH_MTU
                    | qp_mask::DEST_QPN
                    | qp_mask::RQ_PSN
                    | responder
            }
        }
        .into(),
        ..Default::default()
    });
    p.d.begin_cmd(2, &reset);
    p.d.begin_cmd(3, &init);
    p.d.begin_cmd(4, &rtr);
    p.d.run();
    for slot in 1..5 {
        assert_eq!(p.d.answer(slot).0, CmdStatus::Ok, "slot {slot}");
    }
    // If the packet were delivered, the device would report COMM_EST.
    assert_eq!(p.d.events(0), []);
}

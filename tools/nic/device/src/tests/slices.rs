// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The bounds of a slice, which count work and never time.

use super::eqs::Many;
use super::Pair;
use crate::device::cmd::long::{FLUSHED_REQUESTS, MOVED_ENTRIES};
use crate::device::sched::{FOLLOW_COST, SLICE_FOLLOWED, SLICE_LOOKS};
use crate::device::snapshot::LOOKS;
use crate::execution::resources::FLUSHED_EVENTS;
use crate::execution::resources::SLICE_DEADLINES;
use crate::memory::GuestMemory;
use crate::mock::{flat, CqHandle, Driver, SendWr};
use crate::objects::port::Outgoing;
use crate::{Cursor, Snapshot};
use std::collections::HashSet;
use std::mem::discriminant;
use verbena_abi::cmd::*;
use verbena_abi::cqe::{Cqe, Tail, WcStatus};
use verbena_abi::ctx::{qp_mask as m, CqContext, QpAttr, QpContext, QpState};
use verbena_abi::doorbell::{self, Words, AREA_SIZE, AREA_SLOTS};
use verbena_abi::eqe::{EventType, EQE_SIZE, LOG_EQE_SIZE};
use verbena_abi::stats::{Counter, NUM_COUNTERS};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

fn write_cqes(d: &mut Driver, cq: &CqHandle, ids: std::ops::Range<u32>) {
    let tail = Tail {
        status: 0,
        opcode: 0,
        wc_flags: 0,
    };
    for id in ids {
        let body = Cqe {
            wr_id: u64::from(id).into(),
            ..Default::default()
        };
        let shared = &mut d.device.shared;
        shared.write_cqe(&d.ram, cq.cqn, &body, tail, false);
    }
}

#[test]
fn a_large_cq_in_use_is_resized_over_several_slices() {
    let mut d = Driver::new();
    let mut cq = d.create_cq(14);
    let count = 2 * MOVED_ENTRIES + 5;
    write_cqes(&mut d, &cq, 0..count);
    d.poll(&mut cq).unwrap();
    d.resize_cq(&mut cq, 14).unwrap();
    // One slice looks up the ring, and three move the entries.
    assert_eq!(d.slices, 1 + 3);
    // The same, while entries are written.
    let request = ResizeCq {
        cqn: cq.cqn.into(),
        log_size: 14,
        ring: flat(d.alloc(64 << 14)),
        ..Default::default()
    };
    d.begin_cmd(0, &request);
    d.device.run_slice(&d.ram, d.now);
    assert!(!d.is_answered(0));
    write_cqes(&mut d, &cq, count..count + 10);
    d.run();
    assert!(d.is_answered(0));
    (cq.ring, cq.base) = (request.ring.addr.get(), cq.ci);
    let ids: Vec<u64> = d.drain(&mut cq).iter().map(|done| done.0).collect();
    assert!(ids.into_iter().eq(1..u64::from(count) + 10));
}

#[test]
fn a_cq_that_outgrows_its_new_ring_is_not_resized() {
    let mut d = Driver::new();
    let mut cq = d.create_cq(14);
    let room = 1 << 13;
    write_cqes(&mut d, &cq, 0..room);
    let request = ResizeCq {
        cqn: cq.cqn.into(),
        log_size: 13,
        ring: flat(d.alloc(64 << 13)),
        ..Default::default()
    };
    d.begin_cmd(0, &request);
    for _ in 0..2 {
        d.device.run_slice(&d.ram, d.now);
    }
    assert!(!d.is_answered(0) && MOVED_ENTRIES < room);
    write_cqes(&mut d, &cq, room..room + 1);
    d.run();
    let refused = Syndrome::CmdSize.to_raw();
    assert_eq!(d.answer(0), (CmdStatus::Invalid, refused));
    let ids: Vec<u64> = d.drain(&mut cq).iter().map(|done| done.0).collect();
    assert!(ids.into_iter().eq(0..=u64::from(room)));
}

#[test]
fn a_cq_that_overflows_meanwhile_is_not_resized() {
    let mut d = Driver::new();
    let mut cq = d.create_cq(13);
    write_cqes(&mut d, &cq, 0..MOVED_ENTRIES + 1);
    let request = ResizeCq {
        cqn: cq.cqn.into(),
        log_size: 14,
        ring: flat(d.alloc(64 << 14)),
        ..Default::default()
    };
    d.begin_cmd(0, &request);
    d.device.run_slice(&d.ram, d.now);
    write_cqes(&mut d, &cq, 0..8000);
    d.run();
    let died = Syndrome::CqOverflow.to_raw();
    assert_eq!(d.answer(0), (CmdStatus::Invalid, died));
    assert_eq!(d.drain(&mut cq).len(), 1 << 13);
}

#[test]
fn counters_are_added_up_over_several_slices() {
    let mut p = Pair::new();
    p.d.room_for::<QpContext>(Table::Qpc, 1300);
    for qpn in [700, 1024, 1200] {
        let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
        request.qpn = qpn.into();
        p.a = p.d.create_qp_by(&request).unwrap();
        p.b = p.d.create_qp(&p.cq_b.clone(), &p.cq_b.clone());
        p.d.connect(&p.a.clone(), &p.b.clone());
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        p.d.pass(1_000_000_000);
    }
    let told = p.d.query_stats(None, NUM_COUNTERS as u32).unwrap();
    assert_eq!(p.d.slices, 3);
    let sent = |all: &[u64; NUM_COUNTERS]| all[Counter::TxPackets as usize];
    let all = p.d.device.stats();
    assert!(sent(&all) > 1);
    assert_eq!(told[Counter::TxPackets as usize], sent(&all));
    // A queue pair that is destroyed during the survey is counted once, whether or not the survey
    // has reached it.
    for qpn in [700, 1024, 1200] {
        assert_eq!(p.d.device.survey(), None);
        assert_eq!(p.d.device.survey(), None);
        p.d.must(&DestroyQp {
            id: qpn.into(),
            ..Default::default()
        });
        let told = p.d.device.survey().unwrap();
        assert_eq!(sent(&told), sent(&all));
        assert_eq!(sent(&p.d.device.stats()), sent(&all));
    }
}

#[test]
fn contexts_are_listed_in_portions() {
    let mut p = Pair::new();
    p.d.create_srq();
    p.d.region(64, 1);
    let names = |all: &[Snapshot]| -> Vec<_> {
        all.iter().map(|c| (discriminant(c), c.number())).collect()
    };
    let whole = p.d.device.contexts(Cursor::default(), 1000);
    assert_eq!(whole.next, None);
    let kinds: HashSet<_> = whole.contexts.iter().map(discriminant).collect();
    assert_eq!(kinds.len(), 5);
    let (mut parts, mut next) = (vec![], Some(Cursor::default()));
    while let Some(from) = next {
        let portion = p.d.device.contexts(from, 2);
        assert!(portion.contexts.len() <= 2);
        parts.extend(portion.contexts);
        next = portion.next;
    }
    assert_eq!(names(&parts), names(&whole.contexts));
}

#[test]
fn unused_numbers_count_as_work_of_a_portion() {
    let mut d = Driver::new();
    let cqn = 3 * LOOKS;
    let per_chunk = (TABLE_CHUNK_SIZE / size_of::<CqContext>()) as u32;
    d.give_chunk(Table::Cqc, cqn / per_chunk);
    let ring = d.alloc(4096);
    d.must(&CreateCq {
        cqn: cqn.into(),
        eqn: 1.into(),
        log_size: 2,
        ring: flat(ring),
        ..Default::default()
    });
    let (mut found, mut portions, mut next) = (vec![], 0, Some(Cursor::default()));
    while let Some(from) = next {
        let portion = d.device.contexts(from, 1000);
        let cqs = portion.contexts.iter();
        let cqs = cqs.filter(|c| matches!(c, Snapshot::Cq(_)));
        found.extend(cqs.map(Snapshot::number));
        next = portion.next;
        portions += 1;
    }
    assert_eq!((found, portions), (vec![cqn], 1 + cqn / LOOKS));
}

#[test]
fn a_send_queue_in_sqe_is_flushed_over_several_slices() {
    let mut d = Driver::new();
    let mut cq = d.create_cq(13);
    let log_size = 12;
    let mut request = d.qp_request(&cq, &cq);
    request.qp_type = QpType::Ud.to_raw();
    request.log_sq_size = log_size;
    // WQEs of zeros are RDMA WRITEs, which a datagram queue pair refuses.
    request.sq = flat(d.alloc(1 << (log_size + request.log_sq_stride)));
    let qp = d.create_qp_by(&request).unwrap();
    let attr = |state: QpState| QpAttr {
        qp_state: state.to_raw(),
        port_num: 1,
        ..Default::default()
    };
    let init = m::STATE | m::PKEY_INDEX | m::PORT | m::QKEY;
    d.modify(qp.qpn, init, attr(QpState::Init)).unwrap();
    d.modify(qp.qpn, m::STATE, attr(QpState::Rtr)).unwrap();
    let rts = m::STATE | m::SQ_PSN;
    d.modify(qp.qpn, rts, attr(QpState::Rts)).unwrap();
    doorbell::post_send(&d.words(), qp.slot.into(), 1, || {});
    assert_eq!(d.drain(&mut cq), [(0, WcStatus::LocQpOpErr)]);
    let posted = 3 * FLUSHED_REQUESTS;
    let word = doorbell::sq_producer(qp.slot.into());
    d.words().store_release(word, 1 + posted);
    d.modify(qp.qpn, m::STATE, attr(QpState::Rts)).unwrap();
    assert!(d.slices >= 3, "{} slices", d.slices);
    let done = d.drain(&mut cq);
    assert_eq!(done.len(), posted as usize);
    assert!(done.iter().all(|d| d.1 == WcStatus::WrFlushErr));
    assert_eq!(d.query_qp(qp.qpn).attr.qp_state, QpState::Rts.to_raw());
    // Requests that are posted from now on are executed.
    doorbell::post_send(&d.words(), qp.slot.into(), 2 + posted, || {});
    assert_eq!(d.drain(&mut cq), [(0, WcStatus::LocQpOpErr)]);
}

#[test]
fn queue_pairs_follow_a_cq_in_error_over_several_slices() {
    const COUNT: u32 = 300;
    let mut p = Pair::new();
    let tiny = p.d.create_cq(2);
    p.d.room_for::<QpContext>(Table::Qpc, COUNT + 200);
    let areas = COUNT.div_ceil(AREA_SLOTS as u32);
    let area = p.d.alloc(u64::from(areas) * AREA_SIZE as u64);
    for n in 0..areas {
        p.d.must(&CreateUar {
            uar: (1 + n).into(),
            addr: (area + u64::from(n) * AREA_SIZE as u64).into(),
            ..Default::default()
        });
    }
    let template = p.d.qp_request(&tiny, &p.cq_a.clone());
    for n in 0..COUNT {
        let mut request = template;
        request.qpn = (100 + n).into();
        request.uar = (1 + n / AREA_SLOTS as u32).into();
        request.slot = ((n % AREA_SLOTS as u32) as u16).into();
        let qp = p.d.create_qp_by(&request).unwrap();
        p.d.to_init(qp.qpn).unwrap();
    }
    p.a = p.d.create_qp(&tiny, &p.cq_a.clone());
    p.b = p.d.create_qp(&p.cq_b.clone(), &p.cq_b.clone());
    p.d.connect(&p.a.clone(), &p.b.clone());
    for i in 0..5 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
    }
    let dead = |d: &Driver| -> u32 {
        let states = d.device.qps.iter().map(|(_, qp)| qp.transport.state());
        states.filter(|s| *s == QpState::Err).count() as u32
    };
    let most = SLICE_FOLLOWED / FOLLOW_COST + 1;
    let (mut before, mut slices) = (0, 0);
    loop {
        let next = p.d.device.run_slice(&p.d.ram, p.d.now);
        let now = dead(&p.d);
        assert!(now - before <= most, "{} in a slice", now - before);
        slices += u32::from(now != before);
        before = now;
        if !next.busy {
            break;
        }
    }
    assert_eq!(before, COUNT + 1);
    assert!(slices >= COUNT / most);
    // The queue pair with another CQ stays in RTS.
    assert_eq!(p.d.query_qp(p.b.qpn).attr.qp_state, QpState::Rts.to_raw());
}

#[test]
fn the_last_queue_pair_follows_after_many_unused_qpns() {
    let mut p = Pair::new();
    let tiny = p.d.create_cq(1);
    const FAR: u32 = 5 * SLICE_FOLLOWED;
    p.d.room_for::<QpContext>(Table::Qpc, FAR + 1);
    let mut request = p.d.qp_request(&tiny, &p.cq_a.clone());
    (request.qpn, request.slot) = (FAR.into(), 77.into());
    let far = p.d.create_qp_by(&request).unwrap();
    p.d.to_init(far.qpn).unwrap();
    p.a = p.d.create_qp(&tiny, &p.cq_a.clone());
    p.b = p.d.create_qp(&p.cq_b.clone(), &p.cq_b.clone());
    p.d.connect(&p.a.clone(), &p.b.clone());
    for i in 0..3 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
    }
    // Between the QPNs of the two there are more unused QPNs than a slice checks, and the device
    // has no other work.
    p.d.run();
    let state = |qpn| {
        let qp = p.d.device.qps.iter().find(|(n, _)| *n == qpn);
        qp.unwrap().1.transport.state()
    };
    assert_eq!((state(p.a.qpn), state(FAR)), (QpState::Err, QpState::Err));
}

#[test]
fn a_run_delivers_up_to_32_packets() {
    let mut p = Pair::new();
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let (device, ram, now) = (&mut p.d.device, &p.d.ram, p.d.now);
    assert!(device.note_posts(ram, p.a.qpn));
    let mut turn = verbena_transport::sched::turn();
    device.with_qp(ram, p.a.qpn, |transport, host| {
        transport.poll(host, now, &mut turn)
    });
    let first = device.shared.outgoing.pop().unwrap();
    // Copies of the packet, which the receiver handles as duplicates.
    for _ in 1..40 {
        device.shared.outgoing.push(Outgoing {
            packet: first.packet.clone(),
            path: first.path.clone(),
            ..first
        });
    }
    let to = first.packet.dst_qpn;
    assert_eq!(device.deliver(ram, first).packets, 32);
    let left = device.shared.outgoing.iter();
    assert_eq!(left.filter(|out| out.packet.dst_qpn == to).count(), 8);
}

#[test]
fn a_slice_looks_at_a_limited_number_of_slots() {
    let count = SLICE_LOOKS + 3 * AREA_SLOTS as u32;
    let mut many = Many::armed(count);
    let all = count / AREA_SLOTS as u32;
    assert_eq!(many.seen(), 0);
    let next = many.d.device.run_slice(&many.d.ram, many.d.now);
    assert!(next.busy);
    assert_eq!(many.seen(), SLICE_LOOKS / AREA_SLOTS as u32);
    many.d.device.run_slice(&many.d.ram, many.d.now);
    assert_eq!(many.seen(), all);
}

#[test]
fn areas_that_are_never_silent_starve_no_other() {
    let count = SLICE_LOOKS + 3 * AREA_SLOTS as u32;
    let mut many = Many::armed(count);
    for slice in 0..2 {
        assert!(many.seen() < count / AREA_SLOTS as u32, "slice {slice}");
        many.d.device.run_slice(&many.d.ram, many.d.now);
        // The CQs that were looked at are armed again, which would fill the next slice.
        for cqn in 0..SLICE_LOOKS {
            many.arm(cqn);
        }
    }
    assert_eq!(many.seen(), count / AREA_SLOTS as u32);
}

#[test]
fn fall_asleep_looks_at_a_limited_number_of_slots() {
    let count = SLICE_LOOKS + 3 * AREA_SLOTS as u32;
    let mut many = Many::armed(count);
    let all = count / AREA_SLOTS as u32;
    assert!(!many.d.device.fall_asleep(&many.d.ram));
    // One look for the counter of a group, and one for each of its slots.
    assert!((1..=SLICE_LOOKS / AREA_SLOTS as u32).contains(&many.seen()));
    // The other areas stay awake, so that the next slices find their arms.
    many.d.run();
    assert_eq!(many.seen(), all);
    assert!(many.d.device.fall_asleep(&many.d.ram));
}

#[test]
fn a_slice_handles_a_limited_number_of_deadlines() {
    let count = 2 * SLICE_DEADLINES + 10;
    let mut d = Driver::new();
    for qpn in 0..count {
        d.device.turns.set_again(qpn, d.now);
    }
    d.now += 100_000;
    for left in [count - SLICE_DEADLINES, 10, 0] {
        let next = d.device.run_slice(&d.ram, d.now);
        let set = (0..count).filter(|&qpn| d.device.turns.deadline(qpn).is_some());
        assert_eq!(set.count() as u32, left);
        assert!(left == 0 || next.deadline.unwrap() <= d.now);
    }
}

#[test]
fn a_slice_writes_a_limited_number_of_waiting_events() {
    const LOG_SIZE: u8 = 12;
    let mut d = Driver::new();
    for eqn in [1, 0] {
        d.must(&DestroyEq {
            id: eqn.into(),
            ..Default::default()
        });
    }
    let ci_addr = d.alloc(4);
    let ring = d.alloc((EQE_SIZE as u64) << LOG_SIZE);
    d.must(&CreateEq {
        log_size: LOG_SIZE,
        log_entry_size: LOG_EQE_SIZE,
        ring: flat(ring),
        ci_addr: ci_addr.into(),
        ..Default::default()
    });
    let waits = 2 * FLUSHED_EVENTS + 10;
    for number in 0..(1 << LOG_SIZE) + waits {
        let shared = &mut d.device.shared;
        shared.async_event(&d.ram, EventType::SrqLimitReached, number, None);
    }
    let waiting = |d: &Driver| d.device.shared.eqs.get(0).unwrap().context().waiting.get();
    d.device.run_slice(&d.ram, d.now);
    assert_eq!(waiting(&d), waits);
    d.ram.store32(ci_addr, 1 << LOG_SIZE).unwrap();
    for left in [waits - FLUSHED_EVENTS, 10, 0] {
        let next = d.device.run_slice(&d.ram, d.now);
        assert_eq!(waiting(&d), left);
        assert!(left == 0 || next.deadline.unwrap() <= d.now);
    }
}

#[test]
fn a_slice_raises_a_limited_number_of_collapsed_events() {
    let count = 2 * SLICE_DEADLINES + 10;
    let mut many = Many::new(count);
    for cqn in 0..count {
        many.d.must(&ModifyCq {
            cqn: cqn.into(),
            moderation_count: 10.into(),
            moderation_period: 50.into(),
            ..Default::default()
        });
        many.arm(cqn);
        many.complete(cqn);
    }
    many.d.run();
    let waiting = |many: &Many| {
        let cqs = many.d.device.shared.cqs.iter();
        cqs.filter(|(_, cq)| cq.collapsed_since.is_some()).count() as u32
    };
    assert_eq!(waiting(&many), count);
    many.d.now += 100_000;
    for left in [count - SLICE_DEADLINES, 10, 0] {
        let next = many.d.device.run_slice(&many.d.ram, many.d.now);
        assert_eq!(waiting(&many), left);
        assert!(left == 0 || next.deadline.unwrap() <= many.d.now);
    }
}

#[test]
fn a_destroyed_cq_drops_its_collapsed_event() {
    let mut many = Many::new(3);
    many.d.must(&ModifyCq {
        cqn: 1.into(),
        moderation_count: 10.into(),
        moderation_period: 50.into(),
        ..Default::default()
    });
    many.arm(1);
    many.complete(1);
    many.d.run();
    many.d.must(&DestroyCq {
        id: 1.into(),
        ..Default::default()
    });
    assert_eq!(many.d.device.shared.cqs.next_deadline(), None);
}

#[test]
fn a_slice_executes_one_command_that_looks_up_a_ring() {
    let mut d = Driver::new();
    let ring = d.alloc(4096);
    for n in 0..3u32 {
        let request = CreateCq {
            cqn: (50 + n).into(),
            eqn: 1.into(),
            slot: (50 + n as u16).into(),
            log_size: 2,
            ring: flat(ring),
            ..Default::default()
        };
        d.begin_cmd(n, &request);
    }
    for n in 0..3 {
        assert!(!d.is_answered(n));
        d.device.run_slice(&d.ram, d.now);
        assert!(d.is_answered(n));
    }
}

#[test]
fn a_command_slot_that_is_rung_twice_is_executed_once() {
    let mut d = Driver::new();
    let executed = |d: &Driver| d.device.stats()[Counter::Commands as usize];
    let before = executed(&d);
    let request = CreateMr {
        key: 0x4201.into(),
        pdn: 7.into(),
        pages: flat(d.area),
        ..Default::default()
    };
    d.begin_cmd(3, &request);
    d.device.command(3);
    d.run();
    assert_eq!((executed(&d), d.answer(3).0), (before + 1, CmdStatus::Ok));
    // A second execution would have found the key in use.
    d.device.command(3);
    d.run();
    assert_eq!((executed(&d), d.answer(3).0), (before + 1, CmdStatus::Ok));
    d.begin_cmd(3, &request);
    d.run();
    assert_eq!(executed(&d), before + 2);
    assert_eq!(
        d.answer(3),
        (CmdStatus::Exists, Syndrome::CmdInUse.to_raw())
    );
    for slot in 0..1000 {
        d.device.command(slot);
        d.device.command(slot % 64);
    }
    assert_eq!(d.device.commands.waiting(), 64);
}

#[test]
fn a_device_in_the_fatal_state_answers_a_command_in_progress() {
    let mut d = Driver::new();
    let cq = d.create_cq(14);
    write_cqes(&mut d, &cq, 0..2 * MOVED_ENTRIES);
    let request = ResizeCq {
        cqn: cq.cqn.into(),
        log_size: 14,
        ring: flat(d.alloc(64 << 14)),
        ..Default::default()
    };
    d.begin_cmd(0, &request);
    d.device.run_slice(&d.ram, d.now);
    d.device.fail(&d.ram, Syndrome::EngineFailure);
    d.run();
    assert_eq!(d.answer(0).0, CmdStatus::Fatal);
    assert!(d.ram.contains(cq.ring, 64));
}

#[test]
fn a_slice_without_pending_posts_returns_the_count_of_unpolled_entries() {
    let mut p = Pair::new();
    let slice = |p: &mut Pair| p.d.device.run_slice(&p.d.ram, p.d.now);
    let write = |id| SendWr::new(WqeOpcode::RdmaWrite, id, &[]);
    // Before the completions are written, and in slices that write none, the count is 0.
    for (posts, expected) in [(3, 3), (2, 5), (0, 0)] {
        (0..posts).for_each(|id| p.d.post_send(&mut p.a, &write(id)));
        let mut told = Vec::new();
        while told.len() < 20 {
            told.push(slice(&mut p).untaken);
        }
        told.retain(|count| *count != 0);
        assert_eq!(told.last().copied().unwrap_or(0), expected, "{told:?}");
    }
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 5);
    p.d.post_send(&mut p.a, &write(9));
    let most = (0..20).map(|_| slice(&mut p).untaken).max();
    assert_eq!(most, Some(1));
    // If the consumer index is too large, the count is at most the size of the CQ.
    let at = doorbell::cq_consumer(p.cq_a.slot.into());
    p.d.words().store(at, u32::MAX / 2);
    p.d.post_send(&mut p.a, &write(10));
    let most = (0..20).map(|_| slice(&mut p).untaken).max();
    assert!(most.is_some_and(|count| count <= 1 << p.cq_a.log_size));
}

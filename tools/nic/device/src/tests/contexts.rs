// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fields of contexts after an object was created, used, changed, put in error and destroyed.

use super::*;
use crate::memory::GuestMemory;
use crate::mock::{flat, SendWr};
use crate::{Cursor, Snapshot};
use verbena_abi::cmd::*;
use verbena_abi::ctx::*;
use verbena_abi::doorbell::{Arm, ArmMode};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Returns the published context of an object.
fn context<C: FromBytes + IntoBytes + Immutable + KnownLayout>(
    d: &Driver,
    table: Table,
    number: u32,
) -> C {
    let at = d.table(table) + u64::from(number) * size_of::<C>() as u64;
    d.ram.read_struct(at).expect("a context")
}

fn cq(d: &mut Driver, cqn: u32) -> CqContext {
    d.must(&QueryCq {
        id: cqn.into(),
        ..Default::default()
    });
    context(d, Table::Cqc, cqn)
}

fn srq(d: &mut Driver, srqn: u32) -> SrqContext {
    d.must(&QuerySrq {
        id: srqn.into(),
        ..Default::default()
    });
    context(d, Table::Srqc, srqn)
}

#[test]
fn of_a_completion_queue() {
    let mut d = Driver::new();
    d.create_eq(3).unwrap();
    let mut q = d.create_cq(4);
    let ring = d.alloc(4096);
    let request = CreateCq {
        cqn: 40.into(),
        eqn: 3.into(),
        slot: 90.into(),
        log_size: 5,
        ring: flat(ring),
        moderation_count: 11.into(),
        moderation_period: 12.into(),
        ..Default::default()
    };
    d.must(&request);
    let mut expected = CqContext {
        seq: 2.into(),
        cqn: 40.into(),
        state: QueueState::Ok.to_raw(),
        log_size: 5,
        slot: 90.into(),
        eqn: 3.into(),
        ring: flat(ring),
        moderation_count: 11.into(),
        moderation_period: 12.into(),
        ..Default::default()
    };
    assert_eq!(context::<CqContext>(&d, Table::Cqc, 40), expected);
    d.must(&ModifyCq {
        cqn: 40.into(),
        moderation_count: 21.into(),
        moderation_period: 22.into(),
        ..Default::default()
    });
    (expected.moderation_count, expected.moderation_period) = (21.into(), 22.into());
    expected.seq = 4.into();
    assert_eq!(context::<CqContext>(&d, Table::Cqc, 40), expected);
    d.must(&DestroyCq {
        id: 40.into(),
        ..Default::default()
    });
    let gone = CqContext {
        seq: 6.into(),
        ..Default::default()
    };
    assert_eq!(context::<CqContext>(&d, Table::Cqc, 40), gone);
    // The sequence counter goes on with the next object of that number, so that a slow reader
    // notices the change.
    d.must(&request);
    assert_eq!(context::<CqContext>(&d, Table::Cqc, 40).seq.get(), 8);

    // The CQ in use: three entries, one of them polled, and an arm for the next entry, which is
    // served.
    let mut p = Pair::on(d);
    let before = cq(&mut p.d, q.cqn);
    let mut a = p.d.create_qp(&q.clone(), &p.cq_a.clone());
    let b = p.d.create_qp(&p.cq_b.clone(), &p.cq_b.clone());
    p.d.connect(&a, &b);
    for i in 0..3 {
        p.d.post_send(&mut a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
    }
    p.d.run();
    p.d.poll(&mut q).expect("an entry");
    p.d.arm(&mut q, ArmMode::Next);
    p.d.post_send(&mut a, &SendWr::new(WqeOpcode::RdmaWrite, 3, &[]));
    p.d.run();
    let after = cq(&mut p.d, q.cqn);
    let arm = Arm {
        index: 1,
        seq: 1,
        mode: ArmMode::Next,
    };
    let expected = CqContext {
        seq: (before.seq.get() + 2).into(),
        users: 1.into(),
        producer_index: 4.into(),
        consumer_index: 1.into(),
        arm: arm.pack().into(),
        // The three entries that existed already have served the arm.
        notified_index: 3.into(),
        served_seq: 1.into(),
        ..before
    };
    assert_eq!(after, expected);
    // The other ring begins with the oldest entry, and the indexes go on.
    p.d.resize_cq(&mut q, 6).unwrap();
    let moved = cq(&mut p.d, q.cqn);
    let expected = CqContext {
        seq: (after.seq.get() + 4).into(),
        log_size: 6,
        ring: flat(q.ring),
        ..expected
    };
    assert_eq!(moved, expected);
    let users = cq(&mut p.d, p.cq_a.cqn).users.get();
    assert_eq!(
        users, 3,
        "both queues of the first, the receives of the second"
    );
    // The CQ overflows.
    for i in 0..65 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
        p.d.run();
    }
    let dead: CqContext = context(&p.d, Table::Cqc, p.cq_a.cqn);
    assert_eq!(dead.state, QueueState::Err.to_raw());
    assert_eq!(dead.syndrome.get(), Syndrome::CqOverflow.to_raw().into());
    assert_eq!(
        (dead.producer_index.get(), dead.consumer_index.get()),
        (64, 0)
    );
}

#[test]
fn of_a_shared_receive_queue() {
    let mut p = Pair::new();
    let mut handle = p.share();
    let ring = handle.ring;
    let mut expected = SrqContext {
        seq: srq(&mut p.d, handle.srqn).seq,
        srqn: handle.srqn.into(),
        state: QueueState::Ok.to_raw(),
        log_size: 4,
        slot: handle.slot.into(),
        pdn: 7.into(),
        users: 1.into(),
        log_stride: 6,
        ring: flat(ring),
        ..Default::default()
    };
    assert_eq!(
        context::<SrqContext>(&p.d, Table::Srqc, handle.srqn),
        expected
    );
    p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.connect(&p.a, &p.b);
    for i in 0..5 {
        p.d.post_srq(&mut handle, i, &[]);
    }
    for i in 0..2 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, i, &[]));
    }
    p.d.run();
    p.d.must(&ModifySrq {
        srqn: handle.srqn.into(),
        limit: 3.into(),
        ..Default::default()
    });
    let now = srq(&mut p.d, handle.srqn);
    expected.seq = now.seq;
    (
        expected.producer_index,
        expected.consumer_index,
        expected.limit,
    ) = (5.into(), 2.into(), 3.into());
    assert_eq!(now, expected);
    p.d.must(&DestroyQp {
        id: p.b.qpn.into(),
        ..Default::default()
    });
    assert_eq!(srq(&mut p.d, handle.srqn).users.get(), 0);
    p.d.must(&DestroySrq {
        id: handle.srqn.into(),
        ..Default::default()
    });
    let gone: SrqContext = context(&p.d, Table::Srqc, handle.srqn);
    let expected = SrqContext {
        seq: gone.seq,
        ..Default::default()
    };
    assert_eq!(gone, expected);
    // An SRQ that is created with a limit.
    p.d.must(&CreateSrq {
        srqn: 90.into(),
        pdn: 9.into(),
        slot: 100.into(),
        log_size: 3,
        log_stride: 5,
        limit: 8.into(),
        ring: flat(ring),
        ..Default::default()
    });
    let limited = srq(&mut p.d, 90);
    let told = (
        limited.limit.get(),
        limited.pdn.get(),
        limited.log_size,
        limited.log_stride,
    );
    assert_eq!(told, (8, 9, 3, 5));
}

#[test]
fn of_a_memory_region() {
    let mut d = Driver::new();
    let table = d.alloc(4096);
    let pages = Translation {
        addr: table.into(),
        num_pages: 4.into(),
        log_page_size: 16,
        levels: 1,
        ..Default::default()
    };
    let request = CreateMr {
        key: 0x4321.into(),
        pdn: 9.into(),
        access: 0x2b.into(),
        flags: mr_flags::PRIVILEGED.into(),
        iova: 0x1234_5678_9000.into(),
        length: 0x1_2345.into(),
        page_offset: 0x77.into(),
        pages,
    };
    d.must(&request);
    let mut expected = MemoryEntry {
        seq: 2.into(),
        key: 0x4321.into(),
        state: MrState::Valid.to_raw(),
        pdn: 9.into(),
        access: 0x2b.into(),
        flags: mr_flags::PRIVILEGED.into(),
        iova: request.iova,
        length: request.length,
        page_offset: request.page_offset,
        pages,
        ..Default::default()
    };
    assert_eq!(context::<MemoryEntry>(&d, Table::Mpt, 0x43), expected);
    d.must(&ModifyMr {
        key: 0x4399.into(),
        pdn: 10.into(),
        access: 1.into(),
        flags: mr_flags::FAST_REG.into(),
        iova: 5.into(),
        length: 6.into(),
        page_offset: 7.into(),
        ..Default::default()
    });
    expected = MemoryEntry {
        seq: 4.into(),
        key: 0x4399.into(),
        state: MrState::Free.to_raw(),
        pdn: 10.into(),
        access: 1.into(),
        flags: mr_flags::FAST_REG.into(),
        iova: 5.into(),
        length: 6.into(),
        page_offset: 7.into(),
        ..Default::default()
    };
    assert_eq!(context::<MemoryEntry>(&d, Table::Mpt, 0x43), expected);
    d.must(&DestroyMr {
        id: 0x4399.into(),
        ..Default::default()
    });
    let gone = MemoryEntry {
        seq: 6.into(),
        ..Default::default()
    };
    assert_eq!(context::<MemoryEntry>(&d, Table::Mpt, 0x43), gone);
}

#[test]
fn of_an_event_queue() {
    let mut d = Driver::new();
    let (ring, ci_addr) = (d.alloc(4096), d.alloc(8));
    d.must(&CreateEq {
        eqn: 9.into(),
        vector: 30.into(),
        log_size: 6,
        log_entry_size: 4,
        ring: flat(ring),
        ci_addr: (ci_addr + 4).into(),
        ..Default::default()
    });
    let expected = EqContext {
        seq: 2.into(),
        eqn: 9.into(),
        state: QueueState::Ok.to_raw(),
        log_size: 6,
        vector: 30.into(),
        ring: flat(ring),
        ci_addr: (ci_addr + 4).into(),
        ..Default::default()
    };
    assert_eq!(context::<EqContext>(&d, Table::Eqc, 9), expected);
    d.must(&DestroyEq {
        id: 9.into(),
        ..Default::default()
    });
    let gone = EqContext {
        seq: 4.into(),
        ..Default::default()
    };
    assert_eq!(context::<EqContext>(&d, Table::Eqc, 9), gone);
}

#[test]
fn of_a_queue_pair() {
    let mut p = Pair::new();
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_b.clone());
    request.flags = QP_PRIVILEGED | QP_SIGNAL_ALL;
    request.pdn = 9.into();
    let mut a = p.d.create_qp_by(&request).unwrap();
    let mut expected = QpContext {
        seq: 2.into(),
        qpn: request.qpn,
        qp_type: QpType::Rc.to_raw(),
        flags: request.flags,
        valid: 1,
        pdn: 9.into(),
        send_cqn: p.cq_a.cqn.into(),
        recv_cqn: p.cq_b.cqn.into(),
        slot: request.slot,
        log_sq_size: request.log_sq_size,
        log_rq_size: request.log_rq_size,
        sq_ring: request.sq,
        rq_ring: request.rq,
        ..Default::default()
    };
    assert_eq!(context::<QpContext>(&p.d, Table::Qpc, a.qpn), expected);
    let mut b = p.d.create_qp(&p.cq_b, &p.cq_b);
    p.d.connect(&a, &b);
    // The queue pair sends two messages, of one packet and of two, and receives one.
    let (at, lkey) = p.d.region(4096, 1);
    let mr = ModifyMr {
        key: lkey.into(),
        pdn: 9.into(),
        access: 0xf.into(),
        iova: at.into(),
        length: 4096.into(),
        pages: flat(at),
        ..Default::default()
    };
    p.d.must(&mr);
    let (to, rkey) = p.d.region(4096, 2);
    for i in 0..3 {
        p.d.post_recv(&mut a, i, &[]);
    }
    for (i, length) in [100, 2000].into_iter().enumerate() {
        let wr = SendWr::new(WqeOpcode::RdmaWrite, i as u64, &[(at, length, lkey)]).to(to, rkey);
        p.d.post_send(&mut a, &wr);
    }
    p.d.post_send(&mut b, &SendWr::new(WqeOpcode::Send, 7, &[]));
    p.d.run();
    let now = p.d.query_qp(a.qpn);
    expected = QpContext {
        seq: now.seq,
        attr: now.attr,
        av: Driver::path(0, 1),
        sq_pi: 2.into(),
        sq_next: 2.into(),
        sq_ci: 2.into(),
        rq_pi: 3.into(),
        rq_ci: 1.into(),
        // The first PSN is 0xfffffe.
        next_psn: 1.into(),
        una_psn: 1.into(),
        expected_psn: 0xff_ffff.into(),
        msn: 1.into(),
        retry_left: 7,
        rnr_left: 2,
        ..expected
    };
    assert_eq!(now, expected);
    let peer = p.d.query_qp(b.qpn);
    assert_eq!((peer.expected_psn.get(), peer.msn.get()), (1, 2));
    // After RESET the context is that after the creation, except for the sequence counter and the
    // last producer index.
    p.d.move_to(a.qpn, QpState::Reset).unwrap();
    let reset = p.d.query_qp(a.qpn);
    let rq_pi = reset.rq_pi;
    expected = QpContext {
        seq: reset.seq,
        attr: QpAttr::default(),
        av: AddressVector::default(),
        sq_pi: 0.into(),
        sq_next: 0.into(),
        sq_ci: 0.into(),
        rq_pi,
        rq_ci: 0.into(),
        next_psn: 0.into(),
        una_psn: 0.into(),
        expected_psn: 0.into(),
        msn: 0.into(),
        retry_left: 0,
        rnr_left: 0,
        ..expected
    };
    assert_eq!(reset, expected);
}

#[test]
fn of_a_queue_pair_in_error() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 64, key)]).to(at, key ^ 0xff00);
    p.d.post_send(&mut p.a, &wr);
    p.d.run();
    for (qp, cause) in [
        (&p.a, Syndrome::NakRemoteAccess),
        (&p.b, Syndrome::RkeyUnknown),
    ] {
        let shown: QpContext = context(&p.d, Table::Qpc, qp.qpn);
        assert_eq!(shown.attr.qp_state, QpState::Err.to_raw());
        assert_eq!(shown.syndrome.get(), u32::from(cause.to_raw()));
    }
}

#[test]
fn listed_contexts_are_the_published_ones() {
    let mut p = Pair::new();
    let srqn = p.share().srqn;
    let (_, key) = p.d.region(64, 1);
    p.d.query_qp(p.a.qpn);
    let (d, mut seen) = (&p.d, 0);
    for listed in p.d.device.contexts(Cursor::default(), 1000).contexts {
        let number = listed.number();
        // The listing has no sequence counter of the slot, and a change of `users` alone is not
        // published.
        match listed {
            Snapshot::Qp(c) if number == p.a.qpn => {
                let seq = c.seq;
                let published: QpContext = context(d, Table::Qpc, number);
                assert_eq!(*c, QpContext { seq, ..published });
            }
            Snapshot::Cq(c) if number == p.cq_a.cqn => {
                let (seq, users) = (c.seq, c.users);
                let published: CqContext = context(d, Table::Cqc, number);
                assert_eq!(
                    c,
                    CqContext {
                        seq,
                        users,
                        ..published
                    }
                );
            }
            Snapshot::Srq(c) if number == srqn => {
                let (seq, users) = (c.seq, c.users);
                let published: SrqContext = context(d, Table::Srqc, number);
                assert_eq!(
                    c,
                    SrqContext {
                        seq,
                        users,
                        ..published
                    }
                );
            }
            Snapshot::Mr(c) if number == key >> 8 => {
                let seq = c.seq;
                let published: MemoryEntry = context(d, Table::Mpt, number);
                assert_eq!(c, MemoryEntry { seq, ..published });
            }
            Snapshot::Eq(c) if number == 1 => {
                let seq = c.seq;
                let published: EqContext = context(d, Table::Eqc, number);
                assert_eq!(c, EqContext { seq, ..published });
            }
            _ => continue,
        }
        seen += 1;
    }
    assert_eq!(seen, 5, "one of each kind");
}

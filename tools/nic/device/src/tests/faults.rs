// SPDX-License-Identifier: GPL-2.0 OR MIT

//! INJECT_FAULT: each fault affects the object that it names once, and has the effects of a real
//! error.

use super::Pair;
use crate::mock::SendWr;
use verbena_abi::cmd::{CmdStatus, FaultKind, InjectFault};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

fn fault(kind: FaultKind, number: u32, status: WcStatus) -> InjectFault {
    InjectFault {
        kind: kind.to_raw(),
        status: status.to_raw(),
        number: number.into(),
        ..Default::default()
    }
}

fn write(p: &mut Pair, wr_id: u64) {
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, wr_id, &[]));
}

fn told(p: &mut Pair) -> Vec<(EventType, u32)> {
    let events = p.d.events(0);
    events.iter().map(|e| (e.kind, e.number)).collect()
}

#[test]
fn the_next_send_fails_with_the_requested_status() {
    for &status in WcStatus::ALL {
        if matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
            continue;
        }
        let mut p = Pair::new();
        write(&mut p, 1);
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
        p.d.must(&fault(FaultKind::Send, p.a.qpn, status));
        (2..=4).for_each(|wr_id| write(&mut p, wr_id));
        p.d.run();
        let first = p.d.poll(&mut p.cq_a).unwrap();
        assert_eq!((first.cqe.wr_id.get(), first.status()), (2, status));
        let cause = u32::from(Syndrome::Injected.to_raw());
        assert_eq!(first.cqe.vendor_err.get(), cause);
        let flushed = [(3, WcStatus::WrFlushErr), (4, WcStatus::WrFlushErr)];
        assert_eq!(p.d.drain(&mut p.cq_a), flushed);
        let context = p.d.query_qp(p.a.qpn);
        assert_eq!(context.attr.qp_state, QpState::Err.to_raw());
        assert_eq!(context.syndrome.get(), cause);
    }
}

#[test]
fn earlier_sends_do_not_fail() {
    let mut p = Pair::new();
    write(&mut p, 1);
    p.d.run();
    p.d.must(&fault(FaultKind::Send, p.a.qpn, WcStatus::GeneralErr));
    p.d.run();
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
    let other = p.b.qpn;
    assert_eq!(p.d.query_qp(other).attr.qp_state, QpState::Rts.to_raw());
}

#[test]
fn a_reset_of_the_queue_pair_cancels_the_fault() {
    let mut p = Pair::new();
    p.d.must(&fault(FaultKind::Send, p.a.qpn, WcStatus::FatalErr));
    for end in [&p.a, &p.b] {
        p.d.move_to(end.qpn, QpState::Reset).unwrap();
    }
    p.d.connect(&p.a, &p.b);
    write(&mut p, 1);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
}

#[test]
fn an_srq_fails_with_its_next_receive() {
    let (mut p, mut srq) = super::srqs::shared();
    for wr_id in 0..3 {
        p.d.post_srq(&mut srq, wr_id, &[]);
    }
    p.d.must(&fault(FaultKind::Srq, srq.srqn, WcStatus::Success));
    assert_eq!(told(&mut p), [], "no event before a receive is taken");
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 9, &[]));
    p.d.run();
    let events = told(&mut p);
    assert!(
        events.contains(&(EventType::SrqErr, srq.srqn)),
        "{events:?}"
    );
    let b = p.b.qpn;
    assert_eq!(p.d.query_qp(b).attr.qp_state, QpState::Err.to_raw());
    assert_eq!(
        p.d.drain(&mut p.cq_b),
        [],
        "receives of an SRQ are not flushed"
    );
    let context = super::srqs::context(&p, &srq);
    let cause = u32::from(Syndrome::Injected.to_raw());
    assert_eq!(context.syndrome.get(), cause);
}

#[test]
fn responses_before_the_nak_of_a_failed_srq_are_sent() {
    let (mut p, mut srq) = super::srqs::shared();
    p.d.post_srq(&mut srq, 0, &[]);
    p.d.must(&fault(FaultKind::Srq, srq.srqn, WcStatus::Success));
    let length: u32 = 4 << 20;
    let (to, lkey) = p.d.region(length, 1);
    let (from, rkey) = p.d.region(length, 2);
    let read = SendWr::new(WqeOpcode::RdmaRead, 1, &[(to, length, lkey)]);
    p.d.post_send(&mut p.a, &read.to(from, rkey));
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 2, &[]));
    p.d.run();
    let expected = [(1, WcStatus::Success), (2, WcStatus::RemOpErr)];
    assert_eq!(p.d.drain(&mut p.cq_a), expected);
    let b = p.d.query_qp(p.b.qpn);
    assert_eq!(b.attr.qp_state, QpState::Err.to_raw());
}

#[test]
fn a_cq_fails_with_its_next_entry() {
    let mut p = Pair::new();
    write(&mut p, 1);
    p.d.run();
    p.d.must(&fault(FaultKind::Cq, p.cq_a.cqn, WcStatus::Success));
    write(&mut p, 2);
    p.d.run();
    let events = told(&mut p);
    for expected in [
        (EventType::CqErr, p.cq_a.cqn),
        (EventType::QpFatal, p.a.qpn),
    ] {
        let count = events.iter().filter(|&&e| e == expected).count();
        assert_eq!(count, 1, "{events:?}");
    }
    // The earlier entry stays, and no other is written.
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
}

#[test]
fn the_device_fails_at_once() {
    let mut p = Pair::new();
    p.d.must(&fault(FaultKind::Device, 0, WcStatus::Success));
    assert!(p.d.device.shared.regs().is_fatal());
    assert_eq!(told(&mut p), [(EventType::DeviceFatal, 0)]);
}

#[test]
fn invalid_faults_are_refused() {
    let mut p = Pair::new();
    let good = fault(FaultKind::Send, p.a.qpn, WcStatus::BadRespErr);
    for (bad, status) in [
        (
            fault(FaultKind::Send, 999, WcStatus::BadRespErr),
            CmdStatus::NotFound,
        ),
        (
            fault(FaultKind::Srq, 999, WcStatus::Success),
            CmdStatus::NotFound,
        ),
        (
            fault(FaultKind::Cq, 999, WcStatus::Success),
            CmdStatus::NotFound,
        ),
        (
            fault(FaultKind::Device, 1, WcStatus::Success),
            CmdStatus::Invalid,
        ),
        (
            fault(FaultKind::Send, p.a.qpn, WcStatus::Success),
            CmdStatus::Invalid,
        ),
        (
            fault(FaultKind::Send, p.a.qpn, WcStatus::WrFlushErr),
            CmdStatus::Invalid,
        ),
        (
            fault(FaultKind::Cq, p.cq_a.cqn, WcStatus::FatalErr),
            CmdStatus::Invalid,
        ),
        (InjectFault { kind: 9, ..good }, CmdStatus::Invalid),
        (InjectFault { status: 77, ..good }, CmdStatus::Invalid),
    ] {
        assert_eq!(p.d.cmd(&bad).unwrap_err().status, status, "{bad:?}");
    }
    write(&mut p, 1);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
}

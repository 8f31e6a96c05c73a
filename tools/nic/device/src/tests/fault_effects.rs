// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Effects of rules that use the error paths of the device: each looks like a real error, and ends
//! when its rule says so.

use super::fault_hooks::{named, on_both, received};
use super::Pair;
use crate::mock::SendWr;
use verbena_abi::cmd::QueryDevice;
use verbena_abi::cqe::WcStatus::{self, Success};
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::ArmMode;
use verbena_abi::eqe::EventType;
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{Action, CompletionError, CompletionFault, Match, QpQueue, RuleHook};

const MS: u64 = 1_000_000;

fn third() -> Match {
    Match {
        packet_of_message: Some(3),
        limit: Some(1),
        ..Match::default()
    }
}

fn on(on: RuleHook) -> Match {
    Match {
        on,
        ..Match::default()
    }
}

fn at(ms: u64) -> Match {
    Match {
        after_ms: Some(ms),
        ..on(RuleHook::Time)
    }
}

fn post(p: &mut Pair, opcode: WqeOpcode) {
    p.d.post_send(&mut p.a, &SendWr::new(opcode, 7, &[]));
}

fn told(p: &mut Pair, eqn: u32) -> Vec<(EventType, u32)> {
    let events = p.d.events(eqn);
    events.iter().map(|e| (e.kind, e.number)).collect()
}

#[test]
fn a_port_stays_down_until_its_rule_is_removed() {
    on_both(|mut p| {
        p.rule(third(), Action::PortDown);
        assert_eq!(p.write().0, WcStatus::RetryExcErr);
        let all = p.d.query_stats(None, 200).unwrap();
        assert_eq!(all[Counter::LinkDowned as usize], 1);
    });
    on_both(|mut p| {
        let first = Match {
            nth: Some(1),
            ..Match::default()
        };
        p.rule(first, Action::PortDown);
        post(&mut p, WqeOpcode::RdmaWrite);
        p.d.run();
        assert_eq!((p.fired(), p.d.drain(&mut p.cq_a)), (1, vec![]));
        p.d.device.clear_rules();
        p.d.pass(20_000 * MS);
        assert_eq!(p.d.drain(&mut p.cq_a), [(7, Success)]);
    });
}

#[test]
fn a_port_comes_up_after_the_time_of_its_rule() {
    on_both(|mut p| {
        p.rule(third(), Action::PortDownMs(5));
        let before = p.d.now;
        assert_eq!(p.write(), (Success, 0, true));
        assert!(p.counter(p.a.qpn, Counter::LocalAckTimeoutErr) > 0);
        assert!(p.d.now - before >= 5 * MS);
        assert_eq!(p.write(), (Success, 0, true));
    });
}

#[test]
fn a_rule_brings_the_port_up_again() {
    on_both(|mut p| {
        p.rule(at(1), Action::PortDown);
        p.rule_named("up", at(3), Action::PortUp);
        p.d.pass(2 * MS);
        post(&mut p, WqeOpcode::RdmaWrite);
        p.d.run();
        assert_eq!(p.d.drain(&mut p.cq_a), []);
        p.d.pass(20_000 * MS);
        assert_eq!(p.d.drain(&mut p.cq_a), [(7, Success)]);
        assert!(p.counter(p.a.qpn, Counter::Retransmits) > 0);
    });
}

#[test]
fn a_rule_makes_a_cq_overflow() {
    on_both(|mut p| {
        let second = Match {
            nth: Some(2),
            ..named("RDMA WRITE")
        };
        p.rule(second, Action::CqOverflow(QpQueue::Send));
        for _ in 0..3 {
            post(&mut p, WqeOpcode::RdmaWrite);
            p.d.run();
        }
        let events = told(&mut p, 0);
        for expected in [
            (EventType::CqErr, p.cq_a.cqn),
            (EventType::QpFatal, p.a.qpn),
        ] {
            let count = events.iter().filter(|&&e| e == expected).count();
            assert_eq!(count, 1, "{events:?}");
        }
        // The earlier entry stays, and no other is written.
        assert_eq!(p.d.drain(&mut p.cq_a), [(7, Success)]);
        let cq = p.d.device.shared.cqs.get(p.cq_a.cqn).unwrap();
        assert_eq!(cq.error, Some(Syndrome::CqOverflow));
        assert_eq!(p.d.query_qp(p.a.qpn).attr.qp_state, QpState::Err.to_raw());
    });
}

#[test]
fn a_rule_puts_an_srq_in_error() {
    let (mut p, mut srq) = super::srqs::shared();
    (0..3).for_each(|wr_id| p.d.post_srq(&mut srq, wr_id, &[]));
    let second = Match {
        nth: Some(2),
        opcode: vec![String::from("SEND")],
        ..received(1)
    };
    p.rule(second, Action::KillSrq);
    post(&mut p, WqeOpcode::Send);
    p.d.run();
    assert!(!told(&mut p, 0).contains(&(EventType::SrqErr, srq.srqn)));
    post(&mut p, WqeOpcode::Send);
    p.d.run();
    let events = told(&mut p, 0);
    assert!(
        events.contains(&(EventType::SrqErr, srq.srqn)),
        "{events:?}"
    );
    assert_eq!(p.d.query_qp(p.b.qpn).attr.qp_state, QpState::Err.to_raw());
}

#[test]
fn a_stalled_queue_pair_continues_after_the_stall() {
    for arrives in [false, true] {
        on_both(|mut p| {
            let (matches, qpn) = match arrives {
                false => (third(), p.a.qpn),
                true => (received(3), p.b.qpn),
            };
            let qp = Some(qpn);
            p.rule(Match { qp, ..matches }, Action::StallMs(5));
            let (from, lkey) = p.d.region(10_000, 1);
            let (to, rkey) = p.d.region(10_000, 2);
            let sges = [(from, 10_000, lkey)];
            let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &sges).to(to, rkey);
            p.d.post_send(&mut p.a, &wr);
            p.d.pass(4 * MS);
            assert_eq!((p.fired(), p.d.drain(&mut p.cq_a)), (1, vec![]));
            p.d.pass(40 * MS);
            assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
            assert_eq!(p.d.bytes(from, 10_000), p.d.bytes(to, 10_000));
            p.d.device.clear_rules();
            assert!(p.d.device.shared.faults.is_none());
        });
    }
}

#[test]
fn a_stall_affects_one_queue_pair_and_ends_with_its_rule() {
    let mut p = Pair::new();
    let (a, cq_a) = (p.a.clone(), p.cq_a.clone());
    let own = Match {
        qp: Some(a.qpn),
        ..on(RuleHook::Send)
    };
    p.rule(own, Action::StallMs(60_000));
    post(&mut p, WqeOpcode::RdmaWrite);
    p.d.run();
    assert_eq!(p.d.drain(&mut p.cq_a), []);
    let (b, other) = (p.d.create_qp(&cq_a, &cq_a), p.d.create_qp(&cq_a, &cq_a));
    p.d.connect(&b, &other);
    let stalled = std::mem::replace(&mut p.a, other);
    post(&mut p, WqeOpcode::RdmaWrite);
    p.d.run();
    assert_eq!(p.d.drain(&mut p.cq_a), [(7, Success)]);
    assert!(p.d.device.remove_rule("x"));
    p.a = stalled;
    p.d.pass(100 * MS);
    post(&mut p, WqeOpcode::RdmaWrite);
    p.d.pass(100 * MS);
    assert_eq!(p.d.drain(&mut p.cq_a), [(7, Success), (7, Success)]);
}

#[test]
fn a_stalled_device_answers_after_the_stall() {
    let mut p = Pair::new();
    p.rule(at(1), Action::StallDeviceMs(5));
    p.d.pass(2 * MS);
    p.d.begin_cmd(5, &QueryDevice::default());
    post(&mut p, WqeOpcode::RdmaWrite);
    p.d.pass(3 * MS);
    assert!(!p.d.is_answered(5));
    assert_eq!(p.d.drain(&mut p.cq_a), []);
    p.d.pass(2 * MS);
    assert!(p.d.is_answered(5));
    assert_eq!(p.d.drain(&mut p.cq_a), [(7, Success)]);
    // A reset ends a stall too.
    p.d.device.clear_rules();
    p.rule(at(0), Action::StallDeviceMs(60_000));
    p.d.run();
    p.d.device.reset();
    assert!(p.d.device.run_slice(&p.d.ram, p.d.now).deadline.is_none());
}

#[test]
fn events_are_withheld_and_repeated() {
    for (action, times) in [(Action::Withhold, 0), (Action::Repeat(2), 3)] {
        let mut p = Pair::new();
        let fatal = Match {
            event: vec![String::from("QP_FATAL")],
            nth: Some(1),
            ..on(RuleHook::Event)
        };
        p.rule(fatal, action);
        p.d.device.fail_qp(&p.d.ram, p.a.qpn, Syndrome::Injected);
        p.d.device.fail_qp(&p.d.ram, p.b.qpn, Syndrome::Injected);
        p.d.run();
        let events = told(&mut p, 0);
        let count = |qpn| {
            let of = |e: &&(EventType, u32)| **e == (EventType::QpFatal, qpn);
            events.iter().filter(of).count()
        };
        assert_eq!(count(p.a.qpn), times, "{events:?}");
        assert_eq!(count(p.b.qpn), 1, "{events:?}");
    }
}

#[test]
fn an_interrupt_is_withheld_without_its_event() {
    let mut p = Pair::new();
    p.d.events(1);
    let of = |p: &Pair| p.d.interrupts.get(&1).copied().unwrap_or(0);
    let before = of(&p);
    let first = Match {
        vector: Some(1),
        nth: Some(1),
        ..on(RuleHook::Interrupt)
    };
    p.rule(first, Action::Withhold);
    for expected in [0, 1] {
        p.d.arm(&mut p.cq_a, ArmMode::Next);
        post(&mut p, WqeOpcode::RdmaWrite);
        p.d.run();
        assert_eq!(told(&mut p, 1), [(EventType::Completion, p.cq_a.cqn)]);
        assert_eq!(of(&p) - before, expected);
        assert_eq!(p.d.drain(&mut p.cq_a), [(7, Success)]);
    }
}

#[test]
fn a_send_completes_with_the_status_and_vendor_error_of_a_rule() {
    let mut p = Pair::new();
    let cause = u32::from(Syndrome::RetryExceeded.to_raw());
    let how = CompletionFault::WithCause(CompletionError {
        status: String::from("RETRY_EXC_ERR"),
        vendor_err: cause,
    });
    p.rule(on(RuleHook::Send), Action::Complete(how));
    let (status, vendor_err, _) = p.write();
    assert_eq!((status, vendor_err), (WcStatus::RetryExcErr, cause));
}

#[test]
fn a_rule_matches_the_packet_that_has_a_byte() {
    on_both(|mut p| {
        let sized = Match {
            byte: Some(9_999),
            limit: Some(1),
            ..named("RDMA WRITE")
        };
        p.rule(sized, Action::Drop);
        assert_eq!(p.write(), (Success, 0, true));
        assert_eq!(
            p.d.device.rules()[0].matched,
            2,
            "the dropped packet is retransmitted"
        );
    });
    let mut p = Pair::new();
    let beyond = Match {
        byte: Some(10_000),
        ..named("RDMA WRITE")
    };
    p.rule(beyond, Action::Drop);
    assert_eq!(p.write(), (Success, 0, true));
    assert_eq!(p.fired(), 0);
}

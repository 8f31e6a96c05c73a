// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The hooks of the fault injector: rules affect the packets, commands and times that they match,
//! by reference and through frames.

use super::Pair;
use crate::mock::{Driver, SendWr};
use crate::Config;
use verbena_abi::cmd::{CmdStatus, DestroyQp};
use verbena_abi::cqe::WcStatus::{self, Success};
use verbena_abi::ctx::QpState;
use verbena_abi::stats::{Counter, NUM_COUNTERS};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{
    Action, CompletionFault, Corruption, Direction, HeaderField, IcrcState, Match, Rule, RuleHook,
    RuleSet, VERSION,
};

/// Calls `test` with a pair that exchanges packets by reference, and with one that exchanges
/// frames.
pub(super) fn on_both(test: impl Fn(Pair)) {
    for wire_local in [false, true] {
        test(Pair::on(Driver::with(Config {
            wire_local,
            ..Config::default()
        })));
    }
}

/// Returns a rule that is not optional.
pub(super) fn rule(name: &str, matches: Match, action: Action) -> Rule {
    Rule {
        name: name.into(),
        optional: false,
        matches,
        action,
    }
}

impl Pair {
    /// Adds a rule with the name `x`.
    pub(super) fn rule(&mut self, matches: Match, action: Action) {
        self.rule_named("x", matches, action);
    }

    /// Adds a rule with this name.
    pub(super) fn rule_named(&mut self, name: &str, matches: Match, action: Action) {
        let set = RuleSet {
            version: VERSION,
            seed: 0,
            rule: vec![rule(name, matches, action)],
        };
        self.d.device.add_rules(&set, None, self.d.now).unwrap();
    }

    pub(super) fn fired(&self) -> u64 {
        self.d.device.rules()[0].fired
    }

    /// Executes a WRITE of ten packets of the first queue pair. Returns status and `vendor_err` of
    /// its completion, and true if all bytes have arrived.
    pub(super) fn write(&mut self) -> (WcStatus, u32, bool) {
        const BYTES: usize = 10_000;
        let (from, lkey) = self.d.region(BYTES as u32, 1);
        let (to, rkey) = self.d.region(BYTES as u32, 2);
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, BYTES as u32, lkey)]).to(to, rkey);
        self.d.post_send(&mut self.a, &wr);
        self.d.pass(20_000_000_000);
        let done = self.d.poll(&mut self.cq_a).unwrap();
        let same = self.d.bytes(from, BYTES) == self.d.bytes(to, BYTES);
        (done.status(), done.cqe.vendor_err.get(), same)
    }

    pub(super) fn counter(&mut self, qpn: u32, counter: Counter) -> u64 {
        let all = self.d.query_stats(Some(qpn), NUM_COUNTERS as u32).unwrap();
        all[counter as usize]
    }
}

/// Returns a match for packets with this opcode name.
pub(super) fn named(opcode: &str) -> Match {
    Match {
        opcode: vec![String::from(opcode)],
        ..Match::default()
    }
}

/// Returns a match for the n-th WRITE packet that is received.
pub(super) fn received(nth: u64) -> Match {
    Match {
        direction: Some(Direction::In),
        nth: Some(nth),
        ..named("RDMA WRITE")
    }
}

fn change(
    field: Option<HeaderField>,
    value: Option<u64>,
    payload: Option<u32>,
    icrc: IcrcState,
) -> Action {
    Action::Corrupt(Corruption {
        field,
        value,
        payload,
        icrc,
    })
}

/// Frames that are due at the same time are released one after the other. If the release of one
/// caused the release of the next, 2000 frames would overflow the stack.
#[test]
fn frames_that_are_due_together_are_released_without_recursion() {
    const BYTES: u32 = 2 << 20;
    let mut p = Pair::new();
    // This rule matches packets at the receiver and never fires.
    p.rule_named("in", received(1 << 40), Action::Drop);
    p.rule_named("late", named("RDMA WRITE"), Action::DelayUs(50));
    let (from, lkey) = p.d.region(BYTES, 1);
    let (to, rkey) = p.d.region(BYTES, 2);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, BYTES, lkey)]).to(to, rkey);
    p.d.post_send(&mut p.a, &wr);
    p.d.pass(20_000_000_000);
    assert_eq!(p.d.poll(&mut p.cq_a).unwrap().status(), Success);
    let rules = p.d.device.rules();
    let late = rules.iter().find(|told| told.rule.name == "late");
    let late = late.unwrap();
    assert!(late.fired >= 2000, "{}", late.fired);
}

/// A rule counts messages for each queue pair. A destroyed queue pair does not count, so a new
/// queue pair with the same number begins anew.
#[test]
fn messages_of_a_destroyed_queue_pair_do_not_count_for_the_next_one() {
    let mut p = Pair::new();
    let second = Match {
        message: Some(2),
        ..named("RDMA WRITE")
    };
    p.rule(second, Action::Drop);
    for life in 0..3 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        let done = p.d.drain(&mut p.cq_a);
        assert_eq!((done, p.fired()), (vec![(1, Success)], 0), "life {life}");
        p.d.must(&DestroyQp {
            id: p.a.qpn.into(),
            ..Default::default()
        });
        let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
        request.qpn = p.a.qpn.into();
        p.a = p.d.create_qp_by(&request).unwrap();
        p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
        p.d.connect(&p.a.clone(), &p.b.clone());
    }
}

#[test]
fn the_transport_repairs_faults_of_packets() {
    let third = || Match {
        packet_of_message: Some(3),
        limit: Some(1),
        ..Match::default()
    };
    let last = Match {
        nth: Some(1),
        ..named("RDMA WRITE Last")
    };
    let some = Match {
        every: Some(4),
        limit: Some(3),
        ..Match::default()
    };
    for (matches, action, is_lost) in [
        (third(), Action::Drop, true),
        (third(), change(None, None, Some(7), IcrcState::Wrong), true),
        (third(), Action::Reorder(2), false),
        (third(), Action::DelayUs(300), false),
        (third(), Action::Duplicate(3), false),
        (third(), Action::MarkEcn, false),
        (last, Action::Drop, true),
        (some, Action::Drop, true),
    ] {
        on_both(|mut p| {
            let qp = Some(p.a.qpn);
            p.rule(
                Match {
                    qp,
                    ..matches.clone()
                },
                action.clone(),
            );
            assert_eq!(p.write(), (Success, 0, true), "{action:?}");
            assert!(p.fired() > 0, "{action:?}");
            let again = p.counter(p.a.qpn, Counter::Retransmits);
            assert!(!is_lost || again > 0, "{action:?}");
        });
    }
}

#[test]
fn a_rule_can_drop_a_received_packet() {
    on_both(|mut p| {
        let qp = Some(p.b.qpn);
        p.rule(Match { qp, ..received(4) }, Action::Drop);
        assert_eq!(p.write(), (Success, 0, true));
        assert_eq!(p.fired(), 1);
    });
}

#[test]
fn a_rule_refuses_a_request_in_the_responders_name() {
    use Syndrome::{NakInvalidRequest, NakRemoteAccess, NakRemoteOperational};
    for (nak, status, cause) in [
        ("invalid request", WcStatus::RemInvReqErr, NakInvalidRequest),
        (
            "remote access error",
            WcStatus::RemAccessErr,
            NakRemoteAccess,
        ),
        (
            "remote operational error",
            WcStatus::RemOpErr,
            NakRemoteOperational,
        ),
    ] {
        on_both(|mut p| {
            p.rule(received(4), Action::Nak(String::from(nak)));
            let (got, vendor_err, _) = p.write();
            assert_eq!((got, vendor_err), (status, cause.to_raw().into()));
            let states = [p.a.qpn, p.b.qpn].map(|qpn| p.d.query_qp(qpn).attr.qp_state);
            // The responder does not change its state.
            assert_eq!(states, [QpState::Err.to_raw(), QpState::Rts.to_raw()]);
        });
    }
    on_both(|mut p| {
        p.rule(received(4), Action::Rnr(1));
        assert_eq!(p.write(), (Success, 0, true));
        assert_eq!(p.counter(p.a.qpn, Counter::RnrNakRetryErr), 1);
    });
}

#[test]
fn a_changed_field_is_accepted_if_the_icrc_is_right() {
    on_both(|mut p| {
        let wrong = change(
            Some(HeaderField::Rkey),
            Some(0xdead00),
            None,
            IcrcState::Right,
        );
        p.rule(named("RDMA WRITE First"), wrong);
        assert_eq!(p.write().0, WcStatus::RemAccessErr);
        let states = [p.a.qpn, p.b.qpn].map(|qpn| p.d.query_qp(qpn).attr.qp_state);
        assert_eq!(states, [QpState::Err.to_raw(); 2]);
    });
}

#[test]
fn rules_make_sends_commands_and_the_device_fail() {
    let on = |on| Match {
        on,
        ..Match::default()
    };
    on_both(|mut p| {
        let second = Match {
            nth: Some(2),
            ..on(RuleHook::Send)
        };
        p.rule(
            second,
            Action::Complete(CompletionFault::Status(String::from("RESP_TIMEOUT_ERR"))),
        );
        assert_eq!(p.write().0, Success);
        let cause = Syndrome::Injected.to_raw().into();
        let (status, vendor_err, _) = p.write();
        assert_eq!((status, vendor_err), (WcStatus::RespTimeoutErr, cause));
    });
    on_both(|mut p| {
        let create = Match {
            command: Some(String::from("CREATE_QP")),
            ..on(RuleHook::Command)
        };
        p.rule(create, Action::Errno(String::from("ENOMEM")));
        let request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
        let error = p.d.create_qp_by(&request).map(drop).unwrap_err();
        let expected = (CmdStatus::NoResources, Syndrome::Injected);
        assert_eq!((error.status, error.syndrome), expected);
        p.d.device.clear_rules();
        assert!(p.d.create_qp_by(&request).is_ok());
    });
    on_both(|mut p| {
        let later = Match {
            after_ms: Some(5),
            ..on(RuleHook::Time)
        };
        p.rule(later, Action::Fatal);
        p.d.pass(4_000_000);
        assert!(!p.d.device.shared.regs().is_fatal());
        p.d.pass(2_000_000);
        assert!(p.d.device.shared.regs().is_fatal());
    });
}

#[test]
fn a_rule_names_a_queue_pair_by_its_order_of_creation() {
    let mut p = Pair::new();
    let second = Match {
        qp_created: Some(2),
        ..named("RDMA WRITE")
    };
    p.rule(second, Action::Drop);
    p.write();
    assert_eq!(p.fired(), 0);
    let (cq_a, cq_b) = (p.cq_a.clone(), p.cq_b.clone());
    // The second queue pair that is created sends. The SRQ does not count as one.
    p.d.create_srq();
    p.b = p.d.create_qp(&cq_b, &cq_b);
    p.a = p.d.create_qp(&cq_a, &cq_a);
    p.d.connect(&p.a, &p.b);
    assert_eq!(p.write().0, WcStatus::RetryExcErr);
    assert!(p.fired() > 0);
}

#[test]
fn the_count_of_messages_continues_after_a_reset() {
    on_both(|mut p| {
        let second = Match {
            message: Some(2),
            ..named("RDMA WRITE")
        };
        p.rule(second, Action::Drop);
        let statuses = [p.write().0, p.write().0];
        assert_eq!(statuses, [Success, WcStatus::RetryExcErr]);
        let fired = p.fired();
        for qpn in [p.a.qpn, p.b.qpn] {
            p.d.move_to(qpn, QpState::Reset).unwrap();
        }
        p.d.connect(&p.a, &p.b);
        // The packets have the same PSNs as before the reset.
        let statuses = [p.write().0, p.write().0];
        assert_eq!((statuses, p.fired()), ([Success; 2], fired));
    });
}

#[test]
fn rules_stay_over_a_reset_and_leave_no_state_when_removed() {
    let late = || Match {
        packet_of_message: Some(2),
        ..Match::default()
    };
    let mut p = Pair::new();
    p.rule(late(), Action::DelayUs(1_000_000));
    p.d.device.reset();
    assert_eq!(p.d.device.rules().len(), 1);
    assert!(p.d.device.remove_rule("x") && p.d.device.shared.faults.is_none());
    let mut p = Pair::new();
    p.rule(late(), Action::DelayUs(1000));
    p.write();
    p.d.device.clear_rules();
    p.d.pass(1_000_000_000);
    assert!(p.d.device.shared.faults.is_none());
}

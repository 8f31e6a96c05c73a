// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults that the driver injects (INJECT_FAULT) are rules: listed, counted, recorded and removed.

use super::Pair;
use crate::mock::{Driver, SendWr};
use crate::Config;
use verbena_abi::cmd::{FaultKind, InjectFault};
use verbena_abi::cqe::WcStatus::{self, GeneralErr, Success};
use verbena_abi::ctx::QpState;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{Action, InjectedFault, Match, Rule, RuleHook, RuleSet, MAX_RULES, VERSION};
use verbena_recorder::{export_rules, EntryKind, FlightEntry, FlightRecording};

fn fault(kind: FaultKind, number: u32, status: WcStatus) -> InjectFault {
    InjectFault {
        kind: kind.to_raw(),
        status: status.to_raw(),
        number: number.into(),
        ..Default::default()
    }
}

impl Pair {
    fn post_write(&mut self, wr_id: u64) {
        self.d
            .post_send(&mut self.a, &SendWr::new(WqeOpcode::RdmaWrite, wr_id, &[]));
    }

    /// Returns each rule with its numbers of matches and firings.
    fn rules(&self) -> Vec<(Rule, u64, u64)> {
        let told = self.d.device.rules().into_iter();
        told.map(|told| (told.rule, told.matched, told.fired))
            .collect()
    }
}

#[test]
fn each_kind_is_a_rule_with_counts() {
    let (mut p, srq) = super::srqs::shared();
    let (qpn, cqn, srqn) = (p.a.qpn, p.cq_a.cqn, srq.srqn);
    p.d.must(&fault(FaultKind::Send, qpn, GeneralErr));
    p.d.must(&fault(FaultKind::Srq, srqn, Success));
    p.d.must(&fault(FaultKind::Cq, cqn, Success));
    let send = Rule::injected(InjectedFault::Send(qpn, GeneralErr));
    let expected = [
        (Rule::injected(InjectedFault::Cq(cqn)), 1, 1),
        (Rule::injected(InjectedFault::Srq(srqn)), 1, 1),
        (send.clone(), 0, 0),
    ];
    assert_eq!(p.rules(), expected);
    for (rule, ..) in &expected {
        rule.check().unwrap();
        assert!(rule.is_injected());
    }
    // The same fault again is the same rule.
    p.d.must(&fault(FaultKind::Srq, srqn, Success));
    assert_eq!(p.rules().len(), 3);
    p.post_write(1);
    p.d.run();
    assert!(p.rules().contains(&(send, 1, 1)));
    p.d.must(&fault(FaultKind::Device, 0, Success));
    assert_eq!(p.rules()[0].0, Rule::injected(InjectedFault::Device));
    // No such rule is left after a reset of the device.
    p.d.device.reset();
    assert!(p.rules().is_empty() && p.d.device.shared.faults.is_none());
}

#[test]
fn a_fault_that_is_removed_does_not_happen() {
    type Removal = fn(&mut Pair);
    let removals: [Removal; 2] = [
        |p| {
            let name = format!("inject send {}", p.a.qpn);
            assert!(p.d.device.remove_rule(&name));
        },
        |p| p.d.device.clear_rules(),
    ];
    for remove in removals {
        let mut p = Pair::new();
        p.d.must(&fault(FaultKind::Send, p.a.qpn, GeneralErr));
        remove(&mut p);
        assert!(p.d.device.shared.faults.is_none());
        p.post_write(1);
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
    }
}

#[test]
fn a_fault_ends_with_its_queue_pair_and_the_last_one_counts() {
    let mut p = Pair::new();
    p.d.must(&fault(FaultKind::Send, p.a.qpn, GeneralErr));
    p.d.must(&fault(FaultKind::Send, p.b.qpn, GeneralErr));
    p.d.move_to(p.a.qpn, QpState::Reset).unwrap();
    let names: Vec<String> = p.rules().into_iter().map(|(rule, ..)| rule.name).collect();
    assert_eq!(names, [format!("inject send {}", p.b.qpn)]);
    let mut p = Pair::new();
    p.d.must(&fault(FaultKind::Send, p.a.qpn, GeneralErr));
    p.d.must(&fault(FaultKind::Send, p.a.qpn, WcStatus::FatalErr));
    p.post_write(1);
    p.post_write(2);
    let flushed = (2, WcStatus::WrFlushErr);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::FatalErr), flushed]);
}

#[test]
fn a_fault_comes_before_the_rules_of_users_and_leaves_them_their_room() {
    let mut p = Pair::new();
    let users = (0..MAX_RULES).map(|n| Rule {
        name: format!("x{n}"),
        optional: true,
        matches: Match {
            on: RuleHook::Send,
            ..Match::default()
        },
        action: Action::StallMs(1),
    });
    p.d.must(&fault(FaultKind::Send, p.a.qpn, GeneralErr));
    let set = RuleSet {
        version: VERSION,
        seed: 0,
        rule: users.collect(),
    };
    p.d.device.add_rules(&set, None, p.d.now).unwrap();
    p.post_write(1);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, GeneralErr)]);
    p.d.device.reset();
    assert_eq!(p.rules().len(), MAX_RULES);
}

#[test]
fn a_fault_is_in_the_recording_and_that_of_a_send_can_be_exported() {
    let mut p = Pair::on(Driver::with(Config {
        record: 1 << 14,
        ..Config::default()
    }));
    p.d.must(&fault(FaultKind::Cq, p.cq_b.cqn, Success));
    p.d.must(&fault(FaultKind::Send, p.a.qpn, GeneralErr));
    p.post_write(1);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, GeneralErr)]);
    let recorded = p.d.device.flight_recording(0, usize::MAX).unwrap();
    let entries: Vec<FlightEntry> = recorded
        .entries
        .iter()
        .map(|w| FlightEntry::unpack(w).unwrap())
        .collect();
    let fired = entries.iter().filter_map(|entry| match entry.kind {
        EntryKind::Fired { on, .. } => Some(on),
        _ => None,
    });
    assert_eq!(fired.collect::<Vec<_>>(), [RuleHook::Time, RuleHook::Send]);
    let recording = FlightRecording {
        first: recorded.first,
        entries,
        ..FlightRecording::default()
    };
    let rules: Vec<_> = recorded.rules.into_iter().map(Some).collect();
    let exported = export_rules(&recording, &rules);
    let [rule] = &exported.set.rule[..] else {
        panic!("{exported:?}");
    };
    assert_eq!(
        (rule.matches.on, rule.matches.nth),
        (RuleHook::Send, Some(1))
    );
    assert!(rule.matches.qp_created.is_some() && rule.check().is_ok());
    assert!(
        exported.missing[0].contains("the driver injected"),
        "{exported:?}"
    );
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! With the same rules and seed the same rules fire at the same PSNs and times in each run: with
//! random matches on both queue pairs, and with matches that are relative to a queue pair.

use super::fault_hooks::rule;
use super::Pair;
use crate::mock::{Driver, SendWr};
use crate::Config;
use verbena_abi::cqe::WcStatus;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{Action, Direction, Match, RuleHook, RuleSet, VERSION};
use verbena_recorder::{EntryKind, FlightEntry};

const TIMES: usize = 100;
const BYTES: u32 = 20_000;

/// A firing: number of the rule, true for a received packet, opcode, queue pair by its order of
/// creation, PSN, time.
type Firing = (u16, bool, u16, u32, u32, u64);

fn rules(seed: u64, rules: &[(&str, Match, Action)]) -> RuleSet {
    let rule = |(name, matches, action): &(&str, Match, Action)| {
        rule(name, matches.clone(), action.clone())
    };
    RuleSet {
        version: VERSION,
        seed,
        rule: rules.iter().map(rule).collect(),
    }
}

/// Executes a READ or WRITE of one of the queue pairs.
fn transfer(p: &mut Pair, is_first: bool, opcode: WqeOpcode) {
    let (from, lkey) = p.d.region(BYTES, 1);
    let (to, rkey) = p.d.region(BYTES, 2);
    let wr = SendWr::new(opcode, 1, &[(from, BYTES, lkey)]).to(to, rkey);
    let (qp, cq) = match is_first {
        true => (&mut p.a, &mut p.cq_a),
        false => (&mut p.b, &mut p.cq_b),
    };
    p.d.post_send(qp, &wr);
    p.d.pass(20_000_000_000);
    assert_eq!(p.d.poll(cq).unwrap().status(), WcStatus::Success);
}

/// Returns the firings on a new device whose two queue pairs write to and read from each other.
fn run(wire_local: bool, set: &RuleSet) -> Vec<Firing> {
    let mut d = Driver::with(Config {
        wire_local,
        record: 1 << 17,
        ..Config::default()
    });
    d.device.add_rules(set, None, d.now).unwrap();
    let mut p = Pair::on(d);
    for _ in 0..5 {
        for is_first in [true, false] {
            transfer(&mut p, is_first, WqeOpcode::RdmaWrite);
            transfer(&mut p, is_first, WqeOpcode::RdmaRead);
        }
    }
    let recorded = p.d.device.flight_recording(0, usize::MAX).unwrap();
    let entries = recorded
        .entries
        .iter()
        .map(|w| FlightEntry::unpack(w).unwrap());
    let fired = entries.filter_map(|entry| match entry.kind {
        EntryKind::Fired {
            rule,
            on: RuleHook::Packet,
            direction,
            opcode,
            owner,
            psn,
            ..
        } => Some((
            rule,
            direction == Direction::In,
            opcode,
            owner,
            psn,
            entry.time_ns,
        )),
        _ => None,
    });
    fired.collect()
}

/// Returns the firings. Checks that they are the same in each run, and on both queue pairs.
fn always(wire_local: bool, set: &RuleSet) -> Vec<Firing> {
    let first = run(wire_local, set);
    let mut owners: Vec<u32> = first.iter().map(|(.., owner, _, _)| *owner).collect();
    owners.sort_unstable();
    owners.dedup();
    assert_eq!(owners, [1, 2], "{first:?}");
    for n in 1..TIMES {
        assert_eq!(run(wire_local, set), first, "run {n}");
    }
    first
}

#[test]
fn random_rules_on_both_queue_pairs_fire_the_same_in_100_runs() {
    let some = |qp_created, direction, probability| Match {
        qp_created: Some(qp_created),
        direction: Some(direction),
        probability: Some(probability),
        ..Match::default()
    };
    let chance = |seed| {
        rules(
            seed,
            &[
                ("lost", some(1, Direction::Out, 0.02), Action::Drop),
                ("late", some(2, Direction::Out, 0.02), Action::DelayUs(50)),
                ("twice", some(1, Direction::In, 0.02), Action::Duplicate(1)),
                ("gone", some(2, Direction::In, 0.02), Action::Drop),
            ],
        )
    };
    for wire_local in [false, true] {
        let hit = always(wire_local, &chance(7));
        for rule in 0..4 {
            assert!(hit.iter().any(|(n, ..)| *n == rule), "rule {rule}: {hit:?}");
        }
        assert_ne!(run(wire_local, &chance(8)), hit, "another seed");
    }
}

#[test]
fn rules_relative_to_a_queue_pair_fire_the_same_in_100_runs() {
    let write = |qp_created| Match {
        qp_created: Some(qp_created),
        opcode: vec![String::from("RDMA WRITE")],
        ..Match::default()
    };
    let third = Match {
        message: Some(1),
        packet_of_message: Some(3),
        limit: Some(1),
        opcode: Vec::new(),
        ..write(1)
    };
    let tenth = Match {
        packet: Some(10),
        limit: Some(1),
        ..write(2)
    };
    let set = rules(
        0,
        &[
            ("third", third, Action::Drop),
            ("tenth", tenth, Action::Duplicate(1)),
        ],
    );
    for wire_local in [false, true] {
        assert_eq!(always(wire_local, &set).len(), 2);
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder: its entries, the explanations that are made of them, and exact rules that
//! repeat random faults.

use super::fault_hooks::rule;
use super::Pair;
use crate::capture::capture_tap;
use crate::mock::{Driver, SendWr};
use crate::Config;
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{Action, Direction, Match, Rule, RuleHook, RuleSet, VERSION};
use verbena_recorder::{
    diagnose_qp, export_rules, DeviceHistory, EntryKind, FlightEntry, FlightRecording, LOST,
};

const ENTRIES: usize = 1 << 16;
const BYTES: usize = 20_000;

fn set(rule: Vec<Rule>) -> RuleSet {
    RuleSet {
        version: VERSION,
        seed: 7,
        rule,
    }
}

/// Returns a pair whose device records.
fn recorded() -> Pair {
    Pair::on(Driver::with(Config {
        record: ENTRIES,
        ..Config::default()
    }))
}

/// Returns a match for packets of RDMA WRITEs.
fn writes() -> Match {
    Match {
        opcode: vec![String::from("RDMA WRITE")],
        ..Match::default()
    }
}

/// Returns the recording of a device, and its rules by number.
fn taken(d: &Driver) -> (FlightRecording, Vec<Option<Rule>>) {
    let recorded = d.device.flight_recording(0, usize::MAX).unwrap();
    let entries = recorded
        .entries
        .iter()
        .map(|w| FlightEntry::unpack(w).unwrap());
    let recording = FlightRecording {
        first: recorded.first,
        entries: entries.collect(),
        ..FlightRecording::default()
    };
    (recording, recorded.rules.into_iter().map(Some).collect())
}

fn kinds(d: &Driver) -> Vec<EntryKind> {
    let entries = taken(d).0.entries;
    entries.into_iter().map(|entry| entry.kind).collect()
}

/// Returns the explanation of the state of a queue pair.
fn told(d: &Driver, qpn: u32) -> String {
    let (recording, rules) = taken(d);
    diagnose_qp(&DeviceHistory::new(recording, rules), qpn)
        .unwrap()
        .join("\n")
}

impl Pair {
    /// Executes a WRITE of many packets with this remote key, or with a valid one. Returns the
    /// status of its completion.
    fn send_recorded(&mut self, key: Option<u32>) -> WcStatus {
        let (from, lkey) = self.d.region(BYTES as u32, 1);
        let (to, rkey) = self.d.region(BYTES as u32, 2);
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, BYTES as u32, lkey)]);
        self.d
            .post_send(&mut self.a, &wr.to(to, key.unwrap_or(rkey)));
        self.d.pass(20_000_000_000);
        self.d.poll(&mut self.cq_a).unwrap().status()
    }
}

#[test]
fn a_write_is_recorded_from_its_beginning_to_its_completion() {
    let mut p = Pair::new();
    p.d.device.begin_flight_recording(ENTRIES, 0);
    assert_eq!(p.send_recorded(None), WcStatus::Success);
    let (a, b) = (p.a.qpn, p.b.qpn);
    let mut seen = Vec::new();
    for what in kinds(&p.d) {
        match what {
            EntryKind::Work { qpn, opcode: 0, .. } => seen.push(("work", qpn)),
            EntryKind::Sent(packet) => seen.push(("sent", packet.qpn)),
            EntryKind::Received(packet) => seen.push(("received", packet.qpn)),
            EntryKind::Completed { qpn, status: 0, .. } => seen.push(("completed", qpn)),
            EntryKind::Command { status: 0, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen.first(), Some(&("work", a)));
    assert_eq!(seen.last(), Some(&("completed", a)));
    for step in [("sent", a), ("received", b), ("sent", b), ("received", a)] {
        assert!(seen.contains(&step), "{step:?}");
    }
    // A super-packet is one entry with its count.
    let most = kinds(&p.d).into_iter().map(|what| match what {
        EntryKind::Sent(packet) => packet.count,
        _ => 0,
    });
    assert!(most.max() > Some(1));
    p.d.device.end_flight_recording();
    assert!(p.d.device.flight_recording(0, 1).is_none());
}

#[test]
fn creations_events_and_resets_are_recorded_and_passed_on() {
    let mut p = recorded();
    p.send_recorded(Some(0xdead00));
    let created = |what: &EntryKind| matches!(what, EntryKind::Created { .. });
    assert_eq!(kinds(&p.d).iter().filter(|what| created(what)).count(), 2);
    let fatal = EntryKind::Event {
        event_type: verbena_abi::eqe::EventType::DeviceFatal.to_raw(),
        number: 0,
        syndrome: Syndrome::EngineFailure.to_raw(),
    };
    p.d.device.fail(&p.d.ram, Syndrome::EngineFailure);
    assert_eq!(kinds(&p.d).last(), Some(&fatal));
    assert!(told(&p.d, p.a.qpn).contains("The device itself is dead: EngineFailure"));
    p.d.device.reset();
    assert_eq!(kinds(&p.d).last(), Some(&EntryKind::Reset));
    let mut other = crate::Device::new(Config::default(), std::sync::Arc::default());
    p.d.device.hand_over_observers(&mut other);
    assert!(other.flight_recording(0, 1).is_some() && p.d.device.flight_recording(0, 1).is_none());
}

#[test]
fn a_refused_key_is_explained_with_the_steps_of_both_ends() {
    for wire_local in [false, true] {
        let mut p = Pair::on(Driver::with(Config {
            record: ENTRIES,
            wire_local,
            ..Config::default()
        }));
        let status = p.send_recorded(Some(0xdead00));
        assert_eq!(status, WcStatus::RemAccessErr);
        let (a, b) = (p.a.qpn, p.b.qpn);
        let text = told(&p.d, a);
        for wanted in [
            format!("QP {a:#x} is in ERR, at "),
            String::from(
                "The RDMA_WRITE with wr_id 0x1 (index 0) completed with IBV_WC_REM_ACCESS_ERR",
            ),
            String::from("It received a NAK (AETH syndrome 0x62) for PSN "),
            format!("QP {b:#x} is in ERR, at "),
            String::from("RkeyUnknown (0x2001): A remote key is unknown"),
            String::from("R_Key 0xdead00"),
            String::from("What to do: poll its CQs"),
        ] {
            assert!(text.contains(&wanted), "{wanted:?} is not in:\n{text}");
        }
    }
}

#[test]
fn a_rule_that_lost_a_packet_is_not_blamed_for_a_later_one() {
    let mut p = recorded();
    let once = Match {
        limit: Some(1),
        ..writes()
    };
    let rules = set(vec![rule("x", once, Action::Drop)]);
    p.d.device.add_rules(&rules, None, p.d.now).unwrap();
    assert_eq!(p.send_recorded(Some(0xdead00)), WcStatus::RemAccessErr);
    let text = told(&p.d, p.b.qpn);
    assert!(!text.contains("did not send it so"), "{text}");
    assert!(text.contains("sent it for its work request"), "{text}");
}

#[test]
fn a_rule_that_is_added_again_keeps_its_number() {
    let mut p = recorded();
    let first = Match {
        nth: Some(1),
        ..writes()
    };
    for action in [Action::Drop, Action::DelayUs(1), Action::Drop] {
        let rules = set(vec![rule("x", first.clone(), action)]);
        p.d.device.remove_rule("x");
        p.d.device.add_rules(&rules, None, p.d.now).unwrap();
    }
    p.send_recorded(None);
    let fired = kinds(&p.d).into_iter().find_map(|what| match what {
        EntryKind::Fired { rule, .. } => Some(rule),
        _ => None,
    });
    assert_eq!(fired, Some(0), "the number of the first rule");
}

#[test]
fn the_refused_one_of_several_work_requests_is_named() {
    let mut p = recorded();
    let (from, lkey) = p.d.region(64, 1);
    let (to, rkey) = p.d.region(64, 2);
    for (wr_id, rkey) in [(1, rkey), (2, 0xdead00), (3, rkey)] {
        let wr = SendWr::new(WqeOpcode::RdmaWrite, wr_id, &[(from, 64, lkey)]);
        p.d.post_send(&mut p.a, &wr.to(to, rkey));
    }
    p.d.run();
    let text = told(&p.d, p.b.qpn);
    let wanted = "sent it for its work request RDMA_WRITE with wr_id 0x2 (index 1)";
    assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
}

#[test]
fn a_rule_that_contributed_to_an_error_is_named() {
    let write = |direction| Match {
        direction: Some(direction),
        ..writes()
    };
    let nak = Action::Nak(String::from("remote access error"));
    for (matches, action, wanted) in [
        (write(Direction::Out), Action::Drop, "rule \"x\" fired"),
        (write(Direction::In), Action::Drop, "never received it"),
        (write(Direction::In), nak, "Rule \"x\" made that NAK"),
        (
            write(Direction::Out),
            Action::QpError,
            "Rule \"x\" asked for it",
        ),
    ] {
        let mut p = recorded();
        let rules = set(vec![rule("x", matches, action.clone())]);
        p.d.device.add_rules(&rules, None, p.d.now).unwrap();
        assert_ne!(p.send_recorded(None), WcStatus::Success);
        let text = told(&p.d, p.a.qpn);
        assert!(
            text.contains(wanted),
            "{action:?}: {wanted:?} is not in:\n{text}"
        );
    }
}

/// Firings: true for a received packet, opcode, owner, number of the packet, time.
type Firings = Vec<(bool, u16, u32, u32, u64)>;

/// Runs 40 WRITEs between two queue pairs of a new device. Returns the firings on their packets,
/// random losses included, and what can be exported.
fn run(config: &Config, rules: &RuleSet) -> (Firings, verbena_recorder::ExportedRules) {
    let mut d = Driver::with(Config {
        record: 1 << 18,
        ..config.clone()
    });
    d.device.add_rules(rules, None, d.now).unwrap();
    let mut p = Pair::on(d);
    for _ in 0..40 {
        assert_eq!(p.send_recorded(None), WcStatus::Success);
    }
    let (recording, rules) = taken(&p.d);
    let mut firings = Firings::new();
    for entry in &recording.entries {
        match entry.kind {
            EntryKind::Fired {
                on: RuleHook::Packet,
                direction,
                opcode,
                owner,
                nth,
                ..
            } => firings.push((
                direction == Direction::In,
                opcode,
                owner,
                nth,
                entry.time_ns,
            )),
            EntryKind::Passed {
                flags,
                opcode,
                owner,
                nth,
                ..
            } if flags & LOST != 0 => {
                firings.push((false, opcode.into(), owner, nth, entry.time_ns));
            }
            _ => {}
        }
    }
    (firings, export_rules(&recording, &rules))
}

#[test]
fn exact_rules_repeat_random_firings_in_20_runs() {
    let some = |direction, probability| Match {
        direction: Some(direction),
        probability: Some(probability),
        ..Match::default()
    };
    let chance = set(vec![
        rule("loss", some(Direction::Out, 0.01), Action::Drop),
        rule("late", some(Direction::In, 0.01), Action::DelayUs(50)),
        rule("twice", some(Direction::Out, 0.005), Action::Duplicate(1)),
    ]);
    for wire_local in [false, true] {
        let config = Config {
            wire_local,
            ..Config::default()
        };
        let (first, exported) = run(&config, &chance);
        assert!(first.len() > 8, "{first:?}");
        assert_eq!(exported.missing, Vec::<String>::new());
        assert_eq!(exported.set.rule.len(), first.len());
        exported.set.check().unwrap();
        for _ in 0..20 {
            assert_eq!(run(&config, &exported.set).0, first);
        }
    }
}

/// Checks that exact rules repeat the losses of `drop_percent` and of the given rules. There have
/// to be more than `least`.
fn lose_again(rules: &RuleSet, least: usize) {
    let lossy = Config {
        wire_local: true,
        drop_percent: 2,
        ..Config::default()
    };
    let (first, exported) = run(&lossy, rules);
    assert!(first.len() > least, "{first:?}");
    assert_eq!(exported.missing, Vec::<String>::new());
    let whole = Config {
        drop_percent: 0,
        ..lossy
    };
    for _ in 0..20 {
        assert_eq!(run(&whole, &exported.set).0, first);
    }
}

#[test]
fn exact_rules_repeat_random_losses_of_the_nic() {
    lose_again(&set(vec![]), 8);
}

#[test]
fn exact_rules_repeat_losses_of_rules_and_of_the_nic() {
    let some = Match {
        direction: Some(Direction::Out),
        probability: Some(0.02),
        ..Match::default()
    };
    lose_again(&set(vec![rule("loss", some, Action::Drop)]), 16);
}

#[test]
fn each_firing_is_a_note_on_a_frame_of_the_capture() {
    let third = |direction| Match {
        direction: Some(direction),
        packet_of_message: Some(3),
        limit: Some(1),
        ..writes()
    };
    for wire_local in [false, true] {
        for direction in [Direction::Out, Direction::In] {
            for (action, name, frames) in [
                (Action::Drop, "drop", 1),
                (Action::DelayUs(20), "delay_us", 1),
                (Action::Reorder(2), "reorder", 1),
                (Action::Duplicate(1), "duplicate", 2),
                (Action::MarkEcn, "mark_ecn", 1),
                (Action::QpError, "qp_error", 1),
            ] {
                let mut p = Pair::on(Driver::with(Config {
                    wire_local,
                    ..Config::default()
                }));
                let rules = set(vec![rule("x", third(direction), action)]);
                p.d.device.add_rules(&rules, None, p.d.now).unwrap();
                let (to, watch) = capture_tap(4096, 1 << 24);
                assert!(p.d.device.attach_capture(to));
                p.send_recorded(None);
                let mut notes = Vec::new();
                while let Some(seen) = watch.try_next() {
                    notes.extend(seen.note);
                }
                let note = format!("rule \"x\": {name}");
                // Each copy of a sent packet is a frame of its own. A received packet came as one
                // frame.
                let frames = if direction == Direction::Out {
                    frames
                } else {
                    1
                };
                assert_eq!(notes, vec![note; frames], "{wire_local} {direction:?}");
            }
        }
    }
}

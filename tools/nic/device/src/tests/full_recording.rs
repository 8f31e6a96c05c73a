// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Full recordings: a replay without a guest repeats what the device did, and notices each change
//! of a recording.

use super::fault_hooks::rule;
use super::Pair;
use crate::mock::{Driver, SendWr};
use crate::{
    replay, Config, FullRecordingRequest, FullRecordingStatus, ReplayError, ReplaySummary,
};
use std::sync::{Arc, Mutex};
use verbena_abi::cmd::{SetGid, GID_TYPE_ROCE_V2};
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{Action, Corruption, Direction, IcrcState, Match, RuleSet, VERSION};
use verbena_recorder::full::{encode_piece, Bytes, FullRecordingReader, Item, RecordedPayload};

/// Destination of a recording, in memory.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl File {
    fn wish(&self) -> FullRecordingRequest {
        let to = self.0.clone();
        FullRecordingRequest {
            number: 0,
            sink: Box::new(move |piece| {
                to.lock().unwrap().extend(piece);
                Ok(())
            }),
            // All rule sets here are the same except for one value, which stands for the JSON of
            // the set.
            json: |set| value_of(set).map_or(String::new(), |value| value.to_string()),
            power_on: 0,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

fn again(bytes: &[u8]) -> Result<ReplaySummary, ReplayError> {
    replay(bytes, |json| match json {
        "" => Ok(rules()),
        value => value
            .parse()
            .map(with_value)
            .map_err(|_| format!("{value:?} is not a number")),
    })
}

fn rules() -> RuleSet {
    let some = |direction, probability| Match {
        direction: Some(direction),
        probability: Some(probability),
        ..Match::default()
    };
    let flip = Action::Corrupt(Corruption {
        field: None,
        value: None,
        payload: Some(1),
        icrc: IcrcState::Wrong,
    });
    RuleSet {
        version: VERSION,
        seed: 7,
        rule: vec![
            rule("loss", some(Direction::Out, 0.01), Action::Drop),
            rule("late", some(Direction::In, 0.01), Action::DelayUs(50)),
            rule("twice", some(Direction::Out, 0.01), Action::Duplicate(1)),
            rule("flip", some(Direction::Out, 0.01), flip),
        ],
    }
}

/// Returns the same rules with a value for the byte that the last rule changes.
fn with_value(value: u64) -> RuleSet {
    let mut set = rules();
    if let Action::Corrupt(how) = &mut set.rule[3].action {
        how.value = Some(value);
    }
    set
}

fn value_of(set: &RuleSet) -> Option<u64> {
    set.rule.iter().find_map(|rule| match &rule.action {
        Action::Corrupt(how) => how.value,
        _ => None,
    })
}

/// Runs a device with random faults, errors and a reset. Returns its recording.
fn lived(config: Config, rules: Option<RuleSet>) -> Vec<u8> {
    let file = File::default();
    let mut d = Driver::cold(config.clone());
    let begun = d.device.begin_full_recording(file.wish()).unwrap();
    assert!(matches!(begun, FullRecordingStatus::On(_)), "{begun:?}");
    d.bring_up();
    let mut p = Pair::on(d);
    if let Some(rules) = &rules {
        p.d.device.add_rules(rules, None, p.d.now).unwrap();
    }
    for n in 0..30u64 {
        let bytes = [1, 8, 60, 300, 20_000][n as usize % 5];
        let (from, lkey) = p.d.region(bytes, n as u8);
        let (to, rkey) = p.d.region(bytes, 2);
        let opcode = [WqeOpcode::RdmaWrite, WqeOpcode::RdmaRead][n as usize % 2];
        let wr = SendWr::new(opcode, n, &[(from, bytes, lkey)]).to(to, rkey);
        p.d.post_send(&mut p.a, &wr);
        p.d.pass(20_000_000_000);
        assert_eq!(p.d.poll(&mut p.cq_a).unwrap().status(), WcStatus::Success);
    }
    p.d.device.clear_rules();
    let (from, lkey) = p.d.region(300, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 99, &[(from, 300, lkey)]).to(from, 0xdead00);
    p.d.post_send(&mut p.a, &wr);
    p.d.pass(20_000_000_000);
    let status = p.d.poll(&mut p.cq_a).unwrap().status();
    assert_eq!(status, WcStatus::RemAccessErr);
    p.d.device.fall_asleep(&p.d.ram);
    p.d.device.engine_failed(&p.d.ram, Syndrome::EngineFailure);
    p.d.device.take_interrupts();
    p.d.device.reset();
    p.d.device.end_full_recording(0, "over");
    assert_eq!(p.d.device.full_recording_status(), FullRecordingStatus::Off);
    file.bytes()
}

fn wire_local() -> Config {
    Config {
        wire_local: true,
        ..Config::default()
    }
}

/// Returns the items of a recording, each in its encoded form.
fn items(bytes: &[u8]) -> Vec<Vec<u8>> {
    let bytes_of = |item: Result<Item<'_>, _>| {
        let mut own = Vec::new();
        item.unwrap().put(&mut own);
        own
    };
    FullRecordingReader::new(bytes)
        .unwrap()
        .map(bytes_of)
        .collect()
}

/// Returns a recording with this head and these items.
fn file(head: &[u8], items: &[Vec<u8>]) -> Vec<u8> {
    [head[..12].to_vec(), encode_piece(&items.concat())].concat()
}

fn item(bytes: &[u8]) -> Item<'_> {
    Item::take(&mut &*bytes).unwrap()
}

#[test]
fn a_replay_repeats_what_the_device_did() {
    for config in [Config::default(), wire_local()] {
        for rules in [None, Some(rules())] {
            let is_ruled = rules.is_some();
            let bytes = lived(config.clone(), rules);
            let found = again(&bytes).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(found.end.as_deref(), Some("over"));
            assert_eq!((found.work_requests, found.completions), (31, 31));
            assert_eq!(
                (found.resets, found.events),
                (1, 2),
                "QP_ACCESS_ERR and DEVICE_FATAL"
            );
            let moved = (found.packets, found.bytes);
            assert!(moved.0 > 60 && moved.1 > 50_000, "{moved:?}");
            assert_eq!(found.rules.len(), if is_ruled { 4 } else { 0 });
            // If payload is longer than a few bytes, the recording has only its length and its sum.
            let sums = items(&bytes).iter().any(|one| match item(one) {
                Item::ReadPayload { payload, .. } => matches!(payload, RecordedPayload::Sums(..)),
                _ => false,
            });
            assert_eq!(sums, config.wire_local || is_ruled);
        }
    }
}

#[test]
fn a_replay_repeats_the_hosts_decisions_about_gids() {
    let file = File::default();
    let mut d = Driver::cold(Config {
        asks_for_gids: true,
        ..wire_local()
    });
    d.device.begin_full_recording(file.wish()).unwrap();
    d.bring_up();
    d.denies = Some(Syndrome::GidInUse);
    let refused = d.cmd(&SetGid {
        index: 1.into(),
        valid: 1,
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        ..SetGid::default()
    });
    assert_eq!(refused.unwrap_err().syndrome, Syndrome::GidInUse);
    // The replay repeats packets between the two GIDs that were accepted.
    let mut p = Pair::on(d);
    let (from, lkey) = p.d.region(60, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 60, lkey)]).to(from, lkey);
    p.d.post_send(&mut p.a, &wr);
    p.d.pass(20_000_000_000);
    assert_eq!(p.d.poll(&mut p.cq_a).unwrap().status(), WcStatus::Success);
    p.d.device.end_full_recording(0, "over");
    let bytes = file.bytes();
    let decided = |one: &Vec<u8>| matches!(item(one), Item::Decided { .. });
    assert_eq!(items(&bytes).iter().filter(|one| decided(one)).count(), 3);
    let found = again(&bytes).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(found.completions, 1);
}

#[test]
fn a_replay_repeats_random_losses() {
    let bytes = lived(
        Config {
            drop_percent: 2,
            ..wire_local()
        },
        None,
    );
    again(&bytes).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn payload_that_a_rule_depends_on_is_recorded_in_full() {
    for value in [0x07, 0x55] {
        let bytes = lived(wire_local(), Some(with_value(value)));
        again(&bytes).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn a_changed_output_is_noticed_at_its_entry() {
    let bytes = lived(wire_local(), Some(rules()));
    let all = items(&bytes);
    let mut tried = 0;
    for (n, own) in all.iter().enumerate().skip(1) {
        let changed;
        let other = match item(own) {
            Item::Write { addr, bytes, done } => {
                let mut bytes = bytes.0.to_vec();
                let Some(last) = bytes.last_mut() else {
                    continue;
                };
                *last ^= 1;
                changed = bytes;
                Item::Write {
                    addr,
                    bytes: Bytes(&changed),
                    done,
                }
            }
            Item::Store32 { addr, value, done } => Item::Store32 {
                addr,
                value: value ^ 1,
                done,
            },
            Item::Payload { length, sum } => Item::Payload {
                length,
                sum: sum ^ 1,
            },
            Item::Next {
                busy,
                deadline,
                untaken,
            } => Item::Next {
                busy: !busy,
                deadline,
                untaken,
            },
            Item::Raised { vectors } => Item::Raised {
                vectors: vectors ^ 4,
            },
            Item::Copy {
                to,
                from,
                length,
                sum,
            } => Item::Copy {
                to: to + 1,
                from,
                length,
                sum,
            },
            _ => continue,
        };
        // One entry in seven is enough.
        if n % 7 != 0 {
            continue;
        }
        tried += 1;
        let mut changed = all.clone();
        changed[n].clear();
        other.put(&mut changed[n]);
        match again(&file(&bytes, &changed)) {
            Err(ReplayError::Different { entry, .. }) => assert_eq!(entry, n as u64),
            found => panic!("entry {n}: {found:?}"),
        }
    }
    assert!(tried > 30, "{tried}");
}

#[test]
fn a_changed_input_is_noticed_at_the_output_that_it_changes() {
    let bytes = lived(Config::default(), None);
    let all = items(&bytes);
    // A read of the WQE whose `wr_id` is 99.
    let is_wqe = |own: &Vec<u8>| matches!(item(own), Item::Read { bytes: Some(Bytes(b)), .. } if b.len() >= 64 && b[..16].contains(&99));
    let n = all.iter().rposition(is_wqe).unwrap();
    let Item::Read {
        addr,
        length,
        bytes: Some(Bytes(wqe)),
    } = item(&all[n])
    else {
        panic!("no read");
    };
    let at = wqe[..16].iter().position(|&b| b == 99).unwrap();
    let mut wqe = wqe.to_vec();
    wqe[at] = 98;
    let mut changed = all.clone();
    changed[n].clear();
    Item::Read {
        addr,
        length,
        bytes: Some(Bytes(&wqe)),
    }
    .put(&mut changed[n]);
    let Err(ReplayError::Different {
        entry, expected, ..
    }) = again(&file(&bytes, &changed))
    else {
        panic!("the replay does not notice the change");
    };
    // The replay notices the change at the completion, which has another `wr_id`.
    assert!(
        entry > n as u64 && expected.contains(" written at "),
        "{entry}: {expected}"
    );
}

#[test]
fn a_damaged_recording_is_an_error_without_a_panic() {
    let bytes = lived(wire_local(), Some(rules()));
    let all = items(&bytes);
    let mut dice = super::Dice(5);
    for _ in 0..100 {
        let mut changed = all.clone();
        for _ in 0..=dice.roll(3) {
            let n = dice.roll(changed.len() as u32) as usize;
            match dice.roll(4) {
                0 => changed[n] = all[dice.roll(all.len() as u32) as usize].clone(),
                1 => {
                    changed.remove(n);
                }
                2 => changed.truncate(n.max(1)),
                _ => {
                    let at = dice.roll(changed[n].len() as u32) as usize;
                    changed[n][at] ^= 1 << dice.roll(8);
                }
            }
        }
        if let Err(stopped) = again(&file(&bytes, &changed)) {
            assert!(!stopped.to_string().is_empty());
        }
    }
    let second = 12 + 8 + all.iter().map(Vec::len).sum::<usize>() / 2;
    for (cut, wanted) in [
        (4, "not a full recording"),
        (10, "middle of a piece"),
        (second, "middle of a piece"),
    ] {
        let error = again(&bytes[..cut]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let mut newer = bytes.clone();
    newer[8] = 2;
    let error = again(&newer).unwrap_err().to_string();
    assert!(
        error.contains("of version 2; this program reads version 1"),
        "{error}"
    );
    let mut other = bytes;
    other[40] ^= 1;
    let error = again(&other).unwrap_err().to_string();
    assert!(error.contains("the file is damaged"), "{error}");
}

#[test]
fn a_recording_begins_only_in_the_state_after_power_on() {
    let refused = |config: Config, wanted: &str| {
        let mut d = Driver::cold(config);
        let error = d
            .device
            .begin_full_recording(File::default().wish())
            .unwrap_err();
        assert!(error.contains(wanted), "{error}");
    };
    let neighbours = Config {
        neighbours: true,
        ..Config::default()
    };
    refused(neighbours, "by reference");
    // If the device is running, the recording waits for a reset.
    let file = File::default();
    let mut d = Driver::new();
    assert_eq!(
        d.device.begin_full_recording(file.wish()),
        Ok(FullRecordingStatus::Waiting)
    );
    assert!(d.device.begin_full_recording(file.wish()).is_err());
    d.device.add_rules(&rules(), None, d.now).unwrap();
    d.device.reset();
    let FullRecordingStatus::Ended(reason) = d.device.full_recording_status() else {
        panic!("{:?}", d.device.full_recording_status());
    };
    assert!(reason.contains("has rules already"), "{reason}");
    assert!(d.device.begin_full_recording(file.wish()).is_err());
    d.device.clear_rules();
    assert!(matches!(
        d.device.begin_full_recording(file.wish()),
        Ok(FullRecordingStatus::On(_))
    ));
    // A tap reads memory that a replay does not read, so a recorded device has no tap.
    assert!(!d.device.attach_capture(crate::capture::capture_tap(1, 1).0));
    d.device.end_full_recording(0, "over");
    assert_eq!(again(&file.bytes()).unwrap().entries, 2);
}

#[test]
fn ending_a_recording_ends_no_other_one() {
    let mut d = Driver::cold(Config::default());
    let first = FullRecordingRequest {
        number: 1,
        sink: Box::new(|_| Err(String::from("no room"))),
        ..File::default().wish()
    };
    let second = || FullRecordingRequest {
        number: 2,
        ..File::default().wish()
    };
    d.device.begin_full_recording(first).unwrap();
    d.device.fall_asleep(&d.ram);
    assert_eq!(
        d.device.full_recording_status(),
        FullRecordingStatus::Ended("no room".into())
    );
    d.device.begin_full_recording(second()).unwrap();
    d.device.end_full_recording(1, "over");
    assert!(matches!(
        d.device.full_recording_status(),
        FullRecordingStatus::On(_)
    ));
    d.device.end_full_recording(2, "over");
    assert_eq!(d.device.full_recording_status(), FullRecordingStatus::Off);
    // The same holds for a recording that waits for a reset.
    d.bring_up();
    assert_eq!(
        d.device.begin_full_recording(second()),
        Ok(FullRecordingStatus::Waiting)
    );
    d.device.end_full_recording(1, "over");
    assert_eq!(
        d.device.full_recording_status(),
        FullRecordingStatus::Waiting
    );
    d.device.end_full_recording(2, "over");
    assert_eq!(d.device.full_recording_status(), FullRecordingStatus::Off);
}

#[test]
fn a_recording_whose_sink_fails_ends_and_the_device_goes_on() {
    let mut d = Driver::cold(Config::default());
    let mut left = 3;
    let sink = move |_: Vec<u8>| {
        left -= 1;
        match left {
            0 => Err(String::from("no room")),
            _ => Ok(()),
        }
    };
    let wish = FullRecordingRequest {
        sink: Box::new(sink),
        ..File::default().wish()
    };
    d.device.begin_full_recording(wish).unwrap();
    d.bring_up();
    while matches!(d.device.full_recording_status(), FullRecordingStatus::On(_)) {
        d.device.fall_asleep(&d.ram);
        d.device.ring(0);
        d.device.run_slice(&d.ram, d.now);
    }
    assert_eq!(
        d.device.full_recording_status(),
        FullRecordingStatus::Ended("no room".into())
    );
    let mut p = Pair::on(d);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]);
    p.d.post_send(&mut p.a, &wr);
    p.d.run();
    assert_eq!(p.d.poll(&mut p.cq_a).unwrap().status(), WcStatus::Success);
}

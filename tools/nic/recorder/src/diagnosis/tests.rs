// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the explanations with made-up recordings. `tools/verbenactl` tests them with recordings
//! of a device.

use super::*;
use crate::entry::PacketEntry;
use crate::flight_recording::FlightRecording;
use verbena_abi::cqe::WcStatus;
use verbena_faults::{Action, Match, QpQueue, Rule};

/// Returns a rule that drops packets.
pub(crate) fn rule(name: &str) -> Rule {
    Rule {
        name: name.into(),
        optional: false,
        matches: Match::default(),
        action: Action::Drop,
    }
}

fn diagnosis(kinds: &[EntryKind], qpn: u32) -> String {
    let entries = (0..).zip(kinds);
    let recording = FlightRecording {
        entries: entries
            .map(|(n, &kind)| FlightEntry {
                time_ns: n * 1000,
                kind,
            })
            .collect(),
        ..FlightRecording::default()
    };
    let history = DeviceHistory::new(recording, vec![Some(rule("x"))]);
    diagnose_qp(&history, qpn).unwrap().join("\n")
}

pub(crate) fn created(qpn: u32) -> EntryKind {
    EntryKind::Created {
        qpn,
        owner: qpn,
        qp_type: 2,
        send_cqn: 5,
        recv_cqn: 6,
    }
}

pub(crate) fn state(qpn: u32, peer: u32, to: QpState, syndrome: Option<Syndrome>) -> EntryKind {
    EntryKind::State {
        qpn,
        owner: qpn,
        peer,
        is_local: None,
        from: 3,
        to: to.to_raw(),
        syndrome: syndrome.map_or(0, Syndrome::to_raw),
        next_psn: 9,
        una_psn: 7,
        expected_psn: 0,
    }
}

pub(crate) fn packet(qpn: u32, peer: u32, opcode: u8, psn: u32, detail: u32) -> PacketEntry {
    PacketEntry {
        qpn,
        peer,
        opcode,
        psn,
        count: 1,
        detail,
        ..PacketEntry::default()
    }
}

pub(crate) fn has(text: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
    }
}

#[test]
fn a_nak_is_explained_by_the_peers_check_and_the_request() {
    let (here, there) = (0x11, 0x12);
    let text = diagnosis(
        &[
            created(here),
            created(there),
            state(here, there, QpState::Rts, None),
            state(there, here, QpState::Rts, None),
            EntryKind::Work {
                qpn: here,
                owner: here,
                index: 3,
                opcode: 0,
                wr_id: 0xabc,
            },
            EntryKind::Sent(packet(here, there, 0x0a, 7, 0x77)),
            EntryKind::Received(packet(there, here, 0x0a, 7, 0x77)),
            state(there, here, QpState::Err, Some(Syndrome::RkeyUnknown)),
            EntryKind::Sent(packet(there, here, 0x11, 7, 0x62 << 24)),
            EntryKind::Received(packet(here, there, 0x11, 7, 0x62 << 24)),
            EntryKind::Completed {
                qpn: here,
                cqn: 5,
                index: 3,
                bytes: 0,
                status: WcStatus::RemAccessErr.to_raw(),
                flags: 2,
                syndrome: Syndrome::NakRemoteAccess.to_raw(),
                wr_id: 0xabc,
            },
            state(here, there, QpState::Err, Some(Syndrome::NakRemoteAccess)),
        ],
        here,
    );
    has(
        &text,
        &[
            "QP 0x11 is in ERR, at 0.000011 s (entry 11): NakRemoteAccess (0x0a01)",
            "RDMA_WRITE with wr_id 0xabc (index 3) completed with IBV_WC_REM_ACCESS_ERR",
            "received a NAK (AETH syndrome 0x62) for PSN 0x000007 from QP 0x12",
            "QP 0x12 is in ERR, at 0.000007 s (entry 7): RkeyUnknown (0x2001)",
            "[IBTA 9.7.4.1]",
            "The request was RDMA WRITE Only, PSN 0x000007, 0 bytes, R_Key 0x77",
            "QP 0x11 sent it for its work request RDMA_WRITE with wr_id 0xabc",
            "ibv_modify_qp to RESET at both ends",
        ],
    );
}

/// Returns the firing of a rule on a packet that this queue pair sent.
pub(crate) fn lost(qpn: u32) -> EntryKind {
    EntryKind::Fired {
        rule: 0,
        on: verbena_faults::RuleHook::Packet,
        direction: verbena_faults::Direction::Out,
        opcode: 0x0a,
        qpn,
        owner: qpn,
        base: 0,
        psn: 7,
        nth: 1,
    }
}

#[test]
fn exceeded_retries_are_explained_by_the_rule_that_dropped_the_packets() {
    let lost = lost(1);
    let sent = EntryKind::Sent(packet(1, 2, 0x0a, 7, 0));
    let text = diagnosis(
        &[
            created(1),
            sent,
            lost,
            sent,
            lost,
            state(1, 2, QpState::Err, Some(Syndrome::RetryExceeded)),
        ],
        1,
    );
    has(
        &text,
        &[
            "PSN 0x000007 was sent 2 times and not acknowledged",
            "rule \"x\" fired 2 times, first on RDMA WRITE Only sent, PSN 0x000007",
        ],
    );
}

#[test]
fn a_rule_that_altered_a_response_is_named() {
    let error = state(1, 2, QpState::Err, Some(Syndrome::ResponseOpcode));
    let text = diagnosis(&[created(1), lost(1), error], 1);
    has(&text, &["ResponseOpcode", "rule \"x\" fired once"]);
}

#[test]
fn a_cq_overflow_is_explained_with_its_event() {
    let text = diagnosis(
        &[
            created(1),
            EntryKind::Event {
                event_type: verbena_abi::eqe::EventType::CqErr.to_raw(),
                number: 6,
                syndrome: Syndrome::CqOverflow.to_raw(),
            },
            state(1, 2, QpState::Err, Some(Syndrome::CqDied)),
        ],
        1,
    );
    has(
        &text,
        &[
            "CQ 6, where it completes, died",
            "The CQ was full.",
            "with more",
        ],
    );
}

/// A CQ can also overflow by itself while a rule with another action exists.
#[test]
fn a_rule_that_overflowed_a_cq_is_named() {
    let died = EntryKind::Event {
        event_type: EventType::CqErr.to_raw(),
        number: 6,
        syndrome: Syndrome::CqOverflow.to_raw(),
    };
    let entries = [lost(1), died].map(|kind| FlightEntry { time_ns: 0, kind });
    let recording = FlightRecording {
        entries: entries.to_vec(),
        ..FlightRecording::default()
    };
    let text = |action| {
        let rule = Rule {
            action,
            ..rule("full")
        };
        let history = DeviceHistory::new(recording.clone(), vec![Some(rule)]);
        diagnose_event(&history, 1).unwrap().1.join("\n")
    };
    has(
        &text(Action::CqOverflow(QpQueue::Send)),
        &["CQ 6 died", "Rule \"full\" fired last before it"],
    );
    assert!(!text(Action::Drop).contains("full\""));
}

#[test]
fn every_cause_is_explained_and_an_unknown_queue_pair_is_refused() {
    for &cause in Syndrome::ALL {
        for to in [QpState::Err, QpState::Sqe] {
            let text = diagnosis(&[created(1), state(1, 2, to, Some(cause))], 1);
            has(
                &text,
                &[cause.name(), cause.explain().trim(), "What to do: "],
            );
        }
    }
    assert!(diagnosis(&[created(1), state(1, 2, QpState::Rts, None)], 1).contains("no error"));
    let error = diagnose_qp(&DeviceHistory::default(), 7).unwrap_err();
    assert_eq!(error, "there is no queue pair 0x7");
}

#[test]
fn a_destroyed_queue_pair_is_explained_apart_from_the_next_with_its_number() {
    let died = [
        created(1),
        state(1, 2, QpState::Err, Some(Syndrome::ModifiedToErr)),
        EntryKind::Destroyed { qpn: 1, owner: 1 },
    ];
    has(&diagnosis(&died, 1), &["was destroyed", "ModifiedToErr"]);
    let reset = [died[0], died[1], EntryKind::Reset];
    has(
        &diagnosis(&reset, 1),
        &["went with a reset", "ModifiedToErr"],
    );
    let again = [died[0], died[1], EntryKind::Reset, created(1)];
    has(&diagnosis(&again, 1), &["QP 0x1 is in RESET"]);
}

#[test]
fn without_a_recording_the_present_state_is_explained() {
    let qp = |qpn, peer, syndrome| QpSnapshot {
        qpn,
        state: QpState::Err,
        syndrome: Some(syndrome),
        peer,
        is_local: None,
        cqns: [1, 1],
        psns: [0; 3],
    };
    let history = DeviceHistory {
        qps: vec![
            qp(1, 2, Syndrome::NakRemoteAccess),
            qp(2, 1, Syndrome::RkeyBounds),
        ],
        ..DeviceHistory::default()
    };
    let text = diagnose_qp(&history, 1).unwrap().join("\n");
    has(
        &text,
        &["NakRemoteAccess", "RkeyBounds", "Nothing was recorded"],
    );
}

/// Two devices with the same history give their queue pairs the same numbers.
#[test]
fn a_peer_of_another_device_is_not_the_local_queue_pair_with_its_number() {
    let error = Some(Syndrome::NakRemoteAccess);
    let at = |local: Option<bool>| {
        let mut error = state(1, 1, QpState::Err, error);
        if let EntryKind::State { is_local, .. } = &mut error {
            *is_local = local;
        }
        diagnosis(&[created(1), error], 1)
    };
    has(&at(Some(false)), &["Its peer QP 0x1 is of another device"]);
    for local in [Some(true), None] {
        let text = at(local);
        has(&text, &["Its peer QP 0x1 is of this device too"]);
        assert_eq!(text.matches("QP 0x1 is in ERR").count(), 1, "{text}");
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints the page of a made-up recording: WRITEs from one queue pair to another, some of which are
//! lost and sent again. `page 100000` makes a recording with this number of packets.

use std::io::Write;
use verbena_abi::ctx::QpState;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Action, Direction, Match, Rule, RuleHook};
use verbena_recorder::{
    report, DeviceHistory, EntryKind, FlightEntry, FlightRecording, PacketEntry,
};

/// Number of packets between two losses.
const PACKETS_PER_LOSS: u32 = 97;

fn main() -> std::io::Result<()> {
    let count = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let count: u32 = count.unwrap_or(1000);
    let mut kinds = Vec::new();
    for qpn in [0x11, 0x12] {
        kinds.push(EntryKind::Created {
            qpn,
            owner: qpn,
            qp_type: 2,
            send_cqn: 1,
            recv_cqn: 1,
        });
        kinds.push(state(qpn, QpState::Rts, None));
    }
    for psn in 0..count / 2 {
        let packet = PacketEntry {
            qpn: 0x11,
            peer: 0x12,
            opcode: 7,
            psn,
            count: 1,
            bytes: 1024,
            ..PacketEntry::default()
        };
        kinds.push(EntryKind::Sent(packet));
        if psn % PACKETS_PER_LOSS == PACKETS_PER_LOSS - 1 {
            kinds.push(EntryKind::Fired {
                rule: 0,
                on: RuleHook::Packet,
                direction: Direction::Out,
                opcode: 7,
                qpn: 0x11,
                owner: 0x11,
                base: 0,
                psn,
                nth: psn + 1,
            });
            kinds.push(EntryKind::Sent(packet));
        }
        kinds.push(EntryKind::Received(PacketEntry {
            qpn: 0x12,
            peer: 0x11,
            ..packet
        }));
    }
    kinds.push(state(0x11, QpState::Err, Some(Syndrome::RetryExceeded)));
    let entries = (0..).zip(kinds);
    let recording = FlightRecording {
        entries: entries
            .map(|(n, kind)| FlightEntry {
                time_ns: n * 300,
                kind,
            })
            .collect(),
        reason: String::from("made up"),
        rules: vec![String::new()],
        ..FlightRecording::default()
    };
    let loss = Rule {
        name: String::from("loss"),
        optional: false,
        matches: Match::default(),
        action: Action::Drop,
    };
    let page = report(&DeviceHistory::new(recording, vec![Some(loss)]), "made up");
    std::io::stdout().write_all(page.as_bytes())
}

fn state(qpn: u32, to: QpState, syndrome: Option<Syndrome>) -> EntryKind {
    EntryKind::State {
        qpn,
        owner: qpn,
        peer: 0x23 - qpn,
        is_local: Some(true),
        from: 0,
        to: to.to_raw(),
        syndrome: syndrome.map_or(0, Syndrome::to_raw),
        next_psn: 0,
        una_psn: 0,
        expected_psn: 0,
    }
}

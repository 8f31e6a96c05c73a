// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints the page of a made-up recording: WRITEs from one queue pair to another, some of which are
//! lost and sent again. `page 100000` makes a recording with this number of packets.

use std::io::Write;
use verbena_abi::ctx::QpState;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Action, Direction, Match, On, Rule};
use verbena_recorder::{report, Entry, Facts, Packet, Recording, What};

/// Number of packets between two losses.
const LOSS: u32 = 97;

fn main() -> std::io::Result<()> {
    let count = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let count: u32 = count.unwrap_or(1000);
    let mut whats = Vec::new();
    for qpn in [0x11, 0x12] {
        whats.push(What::Created {
            qpn,
            owner: qpn,
            qp_type: 2,
            send_cqn: 1,
            recv_cqn: 1,
        });
        whats.push(state(qpn, QpState::Rts, None));
    }
    for psn in 0..count / 2 {
        let packet = Packet {
            qpn: 0x11,
            peer: 0x12,
            opcode: 7,
            psn,
            count: 1,
            bytes: 1024,
            ..Packet::default()
        };
        whats.push(What::Sent(packet));
        if psn % LOSS == LOSS - 1 {
            whats.push(What::Fired {
                rule: 0,
                on: On::Packet,
                way: Direction::Out,
                opcode: 7,
                qpn: 0x11,
                owner: 0x11,
                base: 0,
                psn,
                nth: psn + 1,
            });
            whats.push(What::Sent(packet));
        }
        whats.push(What::Received(Packet {
            qpn: 0x12,
            peer: 0x11,
            ..packet
        }));
    }
    whats.push(state(0x11, QpState::Err, Some(Syndrome::RetryExceeded)));
    let entries = (0..).zip(whats);
    let recording = Recording {
        entries: entries
            .map(|(n, what)| Entry {
                time: n * 300,
                what,
            })
            .collect(),
        reason: String::from("made up"),
        rules: vec![String::new()],
        ..Recording::default()
    };
    let loss = Rule {
        name: String::from("loss"),
        optional: false,
        matches: Match::default(),
        action: Action::Drop,
    };
    let page = report(&Facts::of(recording, vec![Some(loss)]), "made up");
    std::io::stdout().write_all(page.as_bytes())
}

fn state(qpn: u32, to: QpState, syndrome: Option<Syndrome>) -> What {
    What::State {
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

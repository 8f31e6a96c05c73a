// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A super-packet has the effects of its packets one after the other, with and without errors.

use super::by_hand::*;
use super::pattern;
use verbena_lab_transport::{ArenaBuffer, PairSetup, PairSide::*, QpPair, Rng};
use verbena_transport::host::{EventType, WorkCompletion};
use verbena_transport::packet::{AethSyndrome, Packet, PacketKind, Reth, SendTail, Transport};
use verbena_transport::{QpState, QpType};

/// Returns a responder without a message in progress, with receives of these sizes, and their
/// buffers.
fn prepared(qp_type: QpType, has_srq: bool, sizes: &[usize]) -> (QpPair, Vec<ArenaBuffer>) {
    let mut p = responder(PairSetup {
        qp_type,
        has_srq,
        // Queue pairs of one engine keep no requests ahead of a gap.
        recovers: false,
        ..PairSetup::default()
    });
    let mut buffers = Vec::new();
    for (i, size) in sizes.iter().enumerate() {
        let buffer = p.zeros(A, *size);
        p.post_recv(A, i as u64, &[buffer.sge()]);
        buffers.push(buffer);
    }
    (p, buffers)
}

/// Returns a random message as one super-packet. It may ask for an access that is not allowed. Its
/// lengths agree, because only queue pairs of the same engine make super-packets.
fn message(rng: &mut Rng, transport: Transport, at: u32, targets: &[ArenaBuffer]) -> Packet {
    let length = match rng.below(4) {
        0 => rng.below(10),
        1 => 256 * (1 + rng.below(4)),
        _ => rng.below(1500),
    } as usize;
    let target = targets[rng.below(targets.len() as u64) as usize];
    let reth = Reth {
        addr: target.addr.wrapping_add(if rng.chance(5) { 1 } else { 0 }),
        rkey: target.key ^ u32::from(rng.chance(3)),
        length: length as u32,
    };
    let imm = rng.chance(40).then_some([7; 4]);
    let kind = match rng.below(2) {
        0 => PacketKind::Send(imm.map_or(SendTail::None, SendTail::Imm)),
        _ => PacketKind::Write {
            reth: Some(reth),
            imm,
        },
    };
    let mut packet = request(kind, 0, &pattern(length, rng.below(256) as u8));
    packet.transport = transport;
    packet.psn = at;
    packet.psns = (length as u32).div_ceil(256).max(1);
    packet.solicited = rng.chance(50);
    packet
}

/// The observable state of a responder.
#[derive(Debug, PartialEq)]
struct ResponderState {
    state: QpState,
    expected: u32,
    msn: u32,
    completions: Vec<WorkCompletion>,
    events: Vec<EventType>,
    answers: Vec<(u32, AethSyndrome)>,
}

fn look(p: &mut QpPair) -> ResponderState {
    let answers = acks(&answers(p));
    let live = p.qps[0].snapshot();
    ResponderState {
        state: live.state,
        expected: live.expected_psn,
        msn: live.msn,
        completions: p.completions(A),
        events: p.events(A),
        answers,
    }
}

fn compare(seed: u64, qp_type: QpType, has_srq: bool) {
    let mut rng = Rng::new(seed);
    let transport = match qp_type {
        QpType::Rc => Transport::Rc,
        _ => Transport::Uc,
    };
    let sizes: Vec<usize> = (0..12).map(|_| rng.below(1600) as usize).collect();
    let (mut whole, buffers) = prepared(qp_type, has_srq, &sizes);
    let (mut split, _) = prepared(qp_type, has_srq, &sizes);
    for step in 0..20 {
        if whole.state(A) == QpState::Err {
            return;
        }
        let expected = whole.qps[0].snapshot().expected_psn;
        let mut packet = message(&mut rng, transport, expected, &buffers);
        match rng.below(10) {
            // The message is sent in two parts. The second may be lost, or be replaced by a copy of
            // the whole.
            0..=3 if packet.psns > 1 => {
                let rest = packet.clone();
                let count = 1 + rng.below(u64::from(packet.psns) - 1) as u32;
                let front = packet.split_front(count, 256);
                both(&mut whole, &mut split, front, seed, step);
                packet = if rng.chance(50) { rest } else { packet };
                if rng.chance(10) {
                    continue;
                }
            }
            4 => packet.psn = verbena_transport::psn::add(packet.psn, 2),
            5 => {
                packet.psn =
                    verbena_transport::psn::add(packet.psn, verbena_transport::psn::PSN_COUNT - 2)
            }
            _ => {}
        }
        both(&mut whole, &mut split, packet, seed, step);
        for buffer in &buffers {
            assert_eq!(
                whole.adapter.bytes(*buffer),
                split.adapter.bytes(*buffer),
                "seed {seed} step {step}: memory"
            );
        }
    }
}

fn both(whole: &mut QpPair, split: &mut QpPair, mut packet: Packet, seed: u64, step: u32) {
    if let (false, PacketKind::Write { reth, .. }) = (packet.first, &mut packet.kind) {
        *reth = None;
    }
    put(whole, packet.clone());
    for packet in packet.split(256) {
        put(split, packet);
    }
    let (a, mut b) = (look(whole), look(split));
    if b.state == QpState::Err {
        // The packets after the refused one may cause a repetition of the NAK.
        b.answers.truncate(a.answers.len());
    }
    assert_eq!(a, b, "seed {seed} step {step}");
}

#[test]
fn a_super_packet_has_the_effects_of_its_packets() {
    for seed in 0..300 {
        compare(seed, QpType::Rc, false);
        compare(seed, QpType::Uc, false);
        compare(seed, QpType::Uc, true);
    }
}

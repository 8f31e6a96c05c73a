// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A requester whose answers the test makes. The link loses every packet that the requester sends.

use super::by_hand::request;
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair};
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, Packet, PacketKind};
use verbena_transport::qp::credits;

pub use super::by_hand::psn;

/// Returns a pair in which A is the requester. PSN number 0 is its first PSN.
pub fn requester(setup: PairSetup) -> QpPair {
    requester_by(LinkMode::Split, setup)
}

/// Returns the same pair with a mode of transport.
pub fn requester_by(mode: LinkMode, setup: PairSetup) -> QpPair {
    let mut p = QpPair::new(PairSetup {
        mode,
        psns: [psn(0), 0],
        ..setup
    });
    p.link.record = true;
    p.link.loss = 100;
    p
}

/// Returns the packets that A has sent since the last call, up to the present time.
pub fn sent(p: &mut QpPair) -> Vec<Packet> {
    p.run_until(p.now_ns);
    let log = std::mem::take(&mut p.link.log);
    log.into_iter()
        .filter(|(side, _)| *side == A)
        .map(|(_, packet)| packet)
        .collect()
}

/// Returns the PSNs of those packets, counted from the first PSN.
pub fn numbers(p: &mut QpPair) -> Vec<u32> {
    sent(p)
        .iter()
        .map(|packet| verbena_transport::psn::ahead(packet.psn, psn(0)))
        .collect()
}

/// Delivers to A an answer with PSN number `n`.
pub fn answer(p: &mut QpPair, kind: PacketKind, n: u32, payload: &[u8]) {
    p.deliver(A, request(kind, n, payload));
}

/// Delivers to A one of several packets of an answer; `ends` says if it is the first and the last.
pub fn answer_part(p: &mut QpPair, kind: PacketKind, n: u32, payload: &[u8], ends: [bool; 2]) {
    let mut packet = request(kind, n, payload);
    [packet.first, packet.last] = ends;
    p.deliver(A, packet);
}

/// An AETH of a peer that does not use credits.
pub fn positive() -> Aeth {
    Aeth {
        syndrome: AethSyndrome::Ack {
            credits: credits::INVALID,
        },
        msn: 0,
    }
}

fn aeth(p: &mut QpPair, n: u32, syndrome: AethSyndrome, msn: u32) {
    answer(p, PacketKind::Ack(Aeth { syndrome, msn }), n, &[]);
}

/// Delivers an ACK of a peer that does not use credits.
pub fn ack(p: &mut QpPair, n: u32) {
    answer(p, PacketKind::Ack(positive()), n, &[]);
}

/// Delivers an ACK with an MSN and a number of receives.
pub fn ack_credits(p: &mut QpPair, n: u32, msn: u32, receives: u32) {
    let credits = credits::encode(receives);
    aeth(p, n, AethSyndrome::Ack { credits }, msn);
}

/// Delivers a NAK.
pub fn nak(p: &mut QpPair, n: u32, code: NakCode) {
    aeth(p, n, AethSyndrome::Nak(code), 0);
}

/// Delivers an RNR NAK with timer code 1, which is 10 us.
pub fn rnr(p: &mut QpPair, n: u32) {
    aeth(p, n, AethSyndrome::Rnr { timer: 1 }, 0);
}

/// Delivers the only response of a READ.
pub fn read_only(p: &mut QpPair, n: u32, payload: &[u8]) {
    answer(p, PacketKind::ReadResponse(Some(positive())), n, payload);
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that a responder keeps ahead of a gap, with peers that send everything again from the
//! gap on, and with unusual peers.

use super::answered::{ack, numbers, requester};
use super::by_hand::{
    completed, exchange, fetch_add, is_ack, is_ack_twice, part, psn, psns, quiet, read, receiving,
    request, responder, send, send_quietly, SEND, WRITE_NOTHING,
};
use super::pattern;
use verbena_lab_transport::{ArenaBuffer, PairSetup, PairSide::*, QpPair, Rng, SendPost};
use verbena_transport::host::WcStatus::*;
use verbena_transport::packet::{AethSyndrome, NakCode, Packet, PacketKind};
use verbena_transport::QpState;

#[test]
fn a_second_acknowledgement_of_the_end_of_a_message_shows_no_spurious_probe() {
    let mut p = requester(PairSetup::default());
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    for n in 0..8 {
        p.post(A, SendPost::write(n, &[src.sge()], dst));
    }
    assert_eq!(numbers(&mut p).len(), 8);
    p.run_until(100_000);
    assert_eq!(numbers(&mut p), [0], "a probe");
    // Only the first packet has arrived, and its acknowledgement was lost. The probe is the end of
    // a message, so two acknowledgements arrive.
    ack(&mut p, 0);
    ack(&mut p, 0);
    assert_eq!(numbers(&mut p), [1, 2]);
}

/// The packets that have AckReq.
#[derive(Clone, Copy, Debug)]
enum AckReqPattern {
    /// The last packet of a message or of the window, and a packet after each this number of
    /// others.
    Each(u32),
    Always,
    /// The last packet of a message or of the window, and random others.
    Random,
}

/// A peer that sends everything again from the gap on, or from the oldest packet on after a
/// timeout, as rxe does.
struct GoBackPeer {
    asks: AckReqPattern,
    /// For each packet of its messages in order: if it is the first and if it is the last of its
    /// message.
    packets: Vec<(bool, bool)>,
    /// Number of acknowledged packets, next packet to send, and number of packets that were ever
    /// sent.
    una: usize,
    next: usize,
    sent: usize,
    since_asked: u32,
    timeouts: u32,
}

impl GoBackPeer {
    fn new(asks: AckReqPattern, rng: &mut Rng, messages: usize, longest: u64) -> Self {
        let mut packets = Vec::new();
        for _ in 0..messages {
            let count = 1 + rng.below(longest);
            packets.extend((0..count).map(|n| (n == 0, n + 1 == count)));
        }
        Self {
            asks,
            packets,
            una: 0,
            next: 0,
            sent: 0,
            since_asked: 0,
            timeouts: 0,
        }
    }

    fn send(&mut self, rng: &mut Rng, window: usize) -> Packet {
        let n = self.next;
        let (first, last) = self.packets[n];
        let packet = request(SEND, n as u32, &pattern(256, n as u8));
        let asks = match self.asks {
            AckReqPattern::Each(count) => self.since_asked >= count,
            AckReqPattern::Always => true,
            AckReqPattern::Random => rng.chance(30),
        };
        self.since_asked += 1;
        let ack_req = asks || last || n + 1 == self.una + window;
        if ack_req {
            self.since_asked = 0;
        }
        self.next += 1;
        self.sent = self.sent.max(self.next);
        Packet {
            ack_req,
            ..part(first, last, packet)
        }
    }

    fn on_packet(&mut self, packet: &Packet) {
        let PacketKind::Ack(aeth) = packet.kind else {
            panic!("{packet:?}");
        };
        let at = verbena_transport::psn::ahead(packet.psn, psn(0)) as usize;
        let end = match aeth.syndrome {
            AethSyndrome::Ack { .. } => at.wrapping_add(1) & 0xff_ffff,
            AethSyndrome::Nak(NakCode::Sequence) => at,
            other => panic!("{other:?}"),
        };
        // An acknowledgement of the PSN before the first packet acknowledges nothing.
        if end > 1 << 23 {
            return;
        }
        assert!(end <= self.sent, "acknowledged what was never sent");
        self.una = self.una.max(end);
        self.next = self.next.max(self.una);
        if !matches!(aeth.syndrome, AethSyndrome::Ack { .. }) && end >= self.una {
            self.next = end;
        }
    }
}

/// Takes the next packet from the path, or the one after it, which has overtaken it. Returns None
/// if the packet is lost. A few packets are duplicated.
fn arrive(way: &mut Vec<Packet>, rng: &mut Rng, loss: u32, swap: u32) -> Option<Packet> {
    let at = usize::from(way.len() > 1 && rng.chance(swap));
    let packet = way.remove(at);
    if rng.chance(2) {
        way.push(packet.clone());
    }
    (!rng.chance(loss)).then_some(packet)
}

/// Transfers all messages over a bad link. They have to be executed in order and once, with the
/// help of the peer's timer.
fn transfer(asks: AckReqPattern, seed: u64, loss: u32) -> (QpPair, GoBackPeer) {
    let mut rng = Rng::new(seed);
    let mut p = responder(PairSetup::default());
    let longest = 1 + rng.below(80);
    let mut peer = GoBackPeer::new(asks, &mut rng, 12, longest);
    let buffers: Vec<ArenaBuffer> = (0..12).map(|_| p.zeros(A, 81 * 256)).collect();
    for (wr_id, buffer) in buffers.iter().enumerate() {
        p.post_recv(A, wr_id as u64, &[buffer.sge()]);
    }
    let whole = p.restrict(A, 1 << 20);
    let window = 1 + rng.below(200) as usize;
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let mut idle = 0;
    while peer.una < peer.packets.len() {
        let may_send = peer.next < peer.packets.len() && peer.next < peer.una + window;
        match rng.below(3) {
            0 if may_send => there.push(peer.send(&mut rng, window)),
            1 if !there.is_empty() => {
                if let Some(packet) = arrive(&mut there, &mut rng, loss, 10) {
                    back.extend(exchange(&mut p, packet));
                }
            }
            2 if !back.is_empty() => {
                if let Some(packet) = arrive(&mut back, &mut rng, loss, 0) {
                    let una = peer.una;
                    peer.on_packet(&packet);
                    idle = if peer.una > una { 0 } else { idle };
                }
            }
            _ if !may_send && there.is_empty() && back.is_empty() => {
                (peer.timeouts, idle) = (peer.timeouts + 1, idle + 1);
                peer.next = peer.una;
                assert!(idle < 100, "the transfer makes no progress");
            }
            _ => {}
        }
    }
    assert_eq!(completed(&mut p), (0..12).collect::<Vec<_>>());
    let mut n = 0;
    for (buffer, ends) in buffers
        .iter()
        .zip(peer.packets.split_inclusive(|(_, last)| *last))
    {
        let bytes = p.adapter.bytes(*buffer);
        for at in 0..ends.len() {
            assert_eq!(bytes[at * 256..][..256], pattern(256, n as u8));
            n += 1;
        }
    }
    assert_eq!(p.qps[0].snapshot().msn, 12);
    assert_eq!(
        whole.available(),
        1 << 20,
        "bytes of kept requests did not return"
    );
    (p, peer)
}

#[test]
fn a_peer_that_sends_everything_again_transfers_all_messages_with_any_ackreq() {
    for asks in [
        AckReqPattern::Each(64),
        AckReqPattern::Each(1000),
        AckReqPattern::Always,
        AckReqPattern::Random,
    ] {
        let (mut kept, mut naks, mut timeouts) = (0, 0, 0);
        for seed in 0..150 {
            let (p, peer) = transfer(asks, seed, [0, 2, 10, 30][seed as usize % 4]);
            kept += p.qps[0].counters().kept;
            naks += p.qps[0].counters().sequence_naks_sent;
            timeouts += peer.timeouts;
        }
        assert!(
            kept > 0 && naks > 0 && timeouts > 0,
            "{asks:?}: {kept}, {naks}, {timeouts}"
        );
    }
}

/// Returns a responder with a gap that closed without AckReq, so that the kept requests after it
/// wait, and its account.
fn waiting() -> (QpPair, std::rc::Rc<verbena_transport::ReassemblyQuota>) {
    let mut p = receiving(4);
    let whole = p.restrict(A, 10_000);
    send(&mut p, 1);
    send(&mut p, 2);
    send_quietly(&mut p, 0);
    assert_eq!(whole.available(), 10_000 - 2 * 264);
    (p, whole)
}

#[test]
fn bytes_of_kept_requests_return_to_the_account() {
    let (mut p, whole) = waiting();
    assert!(is_ack(&send(&mut p, 1), 1));
    assert_eq!(whole.available(), 10_000 - 264);
    assert!(is_ack(&send(&mut p, 2), 2));
    assert_eq!(whole.available(), 10_000);
    for state in [QpState::Err, QpState::Reset] {
        let (mut p, whole) = waiting();
        p.modify(A, state).unwrap();
        assert_eq!(whole.available(), 10_000, "{state:?}");
    }
    // The expected request differs from the kept one with its PSN, which is discarded.
    let (mut p, whole) = waiting();
    exchange(&mut p, request(SEND, 1, &[9; 8]));
    assert_eq!(whole.available(), 10_000 - 264);
    assert_eq!(
        p.statuses(A),
        [(0, Success), (1, Success)],
        "the expected request is executed"
    );
    // An RNR NAK discards all kept requests.
    let mut p = receiving(1);
    let whole = p.restrict(A, 10_000);
    send(&mut p, 2);
    send_quietly(&mut p, 0);
    send(&mut p, 1);
    assert_eq!(p.qps[0].counters().rnr_naks_sent, 1);
    assert_eq!(whole.available(), 10_000);
    // After that, a copy of the packet that closed the gap executes nothing.
    assert!(is_ack_twice(&send(&mut p, 0), 0));
}

#[test]
fn kept_reads_and_atomics_wait_and_are_executed_once() {
    let mut p = responder(PairSetup::default());
    let (word, far) = (p.zeros(A, 8), p.buffer(A, &pattern(600, 1)));
    let add = |n| request(fetch_add(word, 1), n, &[]);
    let all = |p: &mut QpPair, packet| psns(&exchange(p, packet));
    // 0: WRITE, 1: atomic, 2 to 4: READ, 5: atomic, 6: WRITE.
    assert_eq!(all(&mut p, add(1)), [psn(0)]);
    for packet in [
        request(read(far), 2, &[]),
        add(5),
        request(WRITE_NOTHING, 6, &[]),
        quiet(request(WRITE_NOTHING, 0, &[])),
    ] {
        assert!(all(&mut p, packet).is_empty());
    }
    assert_eq!(p.adapter.bytes(word), [0; 8]);
    // The second copy of the atomic is executed in its turn.
    assert_eq!(all(&mut p, add(1)), [psn(1)]);
    // The second copy of the READ is lost. The copy of request 5 shows that the peer has sent the
    // READ again.
    assert_eq!(all(&mut p, add(5)), (2..6).map(psn).collect::<Vec<_>>());
    assert_eq!(p.adapter.bytes(word), 2u64.to_le_bytes());
    assert_eq!(p.qps[0].snapshot().expected_psn, psn(6));
    assert_eq!(all(&mut p, add(5)), [psn(5)], "the stored result");
    assert_eq!(p.adapter.bytes(word), 2u64.to_le_bytes());
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The number of PSNs that a requester may have outstanding: up to half of the PSN space.

use super::answered::*;
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{Sge, WcStatus::*, WqeOpcode};
use verbena_transport::packet::{NakCode, PacketKind};

const HALF: u32 = verbena_transport::psn::PSN_WINDOW;

/// Returns a READ of any length. Its SGEs all refer to the same MiB.
fn read_of(p: &mut QpPair, wr_id: u64, bytes: u64) -> SendPost {
    let back = p.zeros(A, 1 << 20);
    let there = p.zeros(B, 8);
    let mut sges: Vec<Sge> = std::vec::Vec::new();
    let mut left = bytes;
    while left > 0 {
        let length = left.min(1 << 20) as u32;
        sges.push(back.part(0, length));
        left -= u64::from(length);
    }
    SendPost::new(wr_id, WqeOpcode::RdmaRead, &sges).at(there.addr, there.key)
}

#[test]
fn the_longest_read_fills_the_window() {
    // Between local peers, the READ is a single request.
    let mut p = requester_by(LinkMode::Local, PairSetup::default());
    let read = read_of(&mut p, 1, 1 << 31);
    p.post(A, read);
    p.post(A, SendPost::new(2, WqeOpcode::RdmaWrite, &[]));
    let packets = sent(&mut p);
    assert_eq!(packets.len(), 1, "the WRITE has no PSN yet");
    let PacketKind::ReadRequest(reth) = packets[0].kind else {
        panic!("{:?}", packets[0]);
    };
    assert_eq!(reth.length, 1 << 31);
    let shown = p.qps[0].snapshot();
    assert_eq!(
        verbena_transport::psn::ahead(shown.next_psn, shown.una_psn),
        HALF
    );
    // After one response, the WRITE gets a PSN.
    let kind = PacketKind::ReadResponse(Some(positive()));
    answer_part(&mut p, kind, 0, &[0; 256], [true, false]);
    // The WRITE still waits for the window of packets, which is counted from the oldest PSN.
    sent(&mut p);
    let shown = p.qps[0].snapshot();
    assert_eq!(
        verbena_transport::psn::ahead(shown.next_psn, shown.una_psn),
        HALF
    );
    // A response at the far end of the PSNs makes the requester ask for the lost ones.
    let kind = PacketKind::ReadResponse(None);
    answer_part(&mut p, kind, HALF - 2, &[0; 256], [false, false]);
    let again = sent(&mut p);
    let PacketKind::ReadRequest(reth) = again[0].kind else {
        panic!("{:?}", again[0]);
    };
    assert_eq!((again[0].psn, reth.length), (psn(1), (1 << 31) - 256));
    // The retries run out, and no PSN beyond the window is used.
    p.settle();
    assert_eq!(p.statuses(A), [(1, RetryExcErr), (2, WrFlushErr)]);
}

#[test]
fn no_more_than_half_of_the_psns_are_outstanding() {
    let given = |p: &QpPair| {
        let shown = p.qps[0].snapshot();
        verbena_transport::psn::ahead(shown.next_psn, shown.una_psn)
    };
    for (packets, fits) in [(1, true), (2, false)] {
        let mut p = requester_by(LinkMode::Local, PairSetup::default());
        let read = read_of(&mut p, 1, (1 << 31) - 256);
        p.post(A, read);
        let (src, there) = (p.zeros(A, 256 * packets), p.zeros(B, 512));
        p.post(A, SendPost::write(2, &[src.sge()], there));
        sent(&mut p);
        assert_eq!(given(&p), if fits { HALF } else { HALF - 1 });
        // After one response there is room for the WRITE.
        let kind = PacketKind::ReadResponse(Some(positive()));
        answer_part(&mut p, kind, 0, &[0; 256], [true, false]);
        sent(&mut p);
        assert_eq!(given(&p), if fits { HALF - 1 } else { HALF });
    }
}

#[test]
fn a_nak_and_an_ack_for_each_psn_of_the_window() {
    // The PSNs wrap within the window: 0xff_fffe to 5.
    for n in 0..8 {
        let mut p = requester(PairSetup {
            recovers: false,
            ..PairSetup::default()
        });
        let (src, dst) = (p.zeros(A, 256 * 8), p.zeros(B, 256 * 8));
        p.post(A, SendPost::write(1, &[src.sge()], dst));
        assert_eq!(sent(&mut p).len(), 8);
        ack(&mut p, 8);
        ack(&mut p, (1 << 24) - 1);
        assert_eq!(p.qps[0].snapshot().una_psn, psn(0));
        nak(&mut p, n, NakCode::Sequence);
        assert_eq!(p.qps[0].snapshot().una_psn, psn(n));
        assert_eq!(numbers(&mut p), (n..8).collect::<Vec<_>>());
        ack(&mut p, n);
        assert_eq!(p.qps[0].snapshot().una_psn, psn(n + 1));
        assert_eq!(p.statuses(A).len(), usize::from(n == 7));
    }
}

#[test]
fn the_window_limits_unacknowledged_packets() {
    for mode in [LinkMode::Local, LinkMode::Split] {
        let mut p = QpPair::new(PairSetup {
            mode,
            window: 10,
            psns: [psn(0), 0],
            ..PairSetup::default()
        });
        p.link.record = true;
        p.link.loss = 100;
        let (src, dst) = (p.zeros(A, 256 * 7), p.zeros(B, 256 * 7));
        for wr_id in 1..=3 {
            p.post(A, SendPost::write(wr_id, &[src.sge()], dst));
        }
        let packets: u32 = sent(&mut p).iter().map(|packet| packet.psns).sum();
        assert_eq!(packets, 10, "{mode:?}");
        ack(&mut p, 3);
        let packets: u32 = sent(&mut p).iter().map(|packet| packet.psns).sum();
        assert_eq!(packets, 4);
    }
}

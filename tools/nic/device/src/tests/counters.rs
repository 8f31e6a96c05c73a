// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters: each kind of traffic adds to certain counters and to no others. The counters of
//! commands, doorbells and interrupts are not compared.

use super::*;
use crate::mock::SendWr;
use verbena_abi::cmd::*;
use verbena_abi::ctx::{qp_mask, QpAttr, QpState};
use verbena_abi::stats::Counter::{self, *};
use verbena_abi::wqe::{WqeOpcode, DATA_OFFSET, DATA_OFFSET_ATOMIC, DATA_OFFSET_UD};

/// Calls `work`. Returns the counters that have changed, and by how much.
fn counted(p: &mut Pair, work: impl FnOnce(&mut Pair)) -> Vec<(Counter, u64)> {
    let before = p.d.device.stats();
    work(p);
    let after = p.d.device.stats();
    let own = [Commands, Doorbells, Interrupts];
    let all = Counter::ALL.iter().filter(|c| !own.contains(c));
    all.map(|&c| (c, after[c as usize] - before[c as usize]))
        .filter(|(_, n)| *n != 0)
        .collect()
}

fn post(p: &mut Pair, wr: SendWr) {
    p.d.post_send(&mut p.a, &wr);
    p.d.pass(1_000_000_000);
}

#[test]
fn of_writes() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let got = counted(&mut p, |p| {
        post(
            p,
            SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 2500, key)]).to(at, key),
        );
    });
    // Three packets of 1024 bytes at most, and one acknowledgement.
    let expected = [
        (TxPackets, 4),
        (RxPackets, 4),
        (TxBytes, 2500),
        (RxBytes, 2500),
        (RxWriteRequests, 1),
        (Posts, 1),
    ];
    assert_eq!(got, expected);
}

#[test]
fn of_sends() {
    // With credits the first message has no credit yet, so its first packet would request an
    // acknowledgement.
    let mut p = Pair::on(Driver::with(crate::Config {
        credits: false,
        ..Default::default()
    }));
    let (at, key) = p.d.region(4096, 1);
    let got = counted(&mut p, |p| {
        p.d.post_recv(&mut p.b, 1, &[(at, 2048, key)]);
        p.d.post_recv(&mut p.b, 2, &[(at, 2048, key)]);
        post(
            p,
            SendWr::new(WqeOpcode::SendImm, 1, &[(at + 2048, 2048, key)]),
        );
        post(
            p,
            SendWr::new(WqeOpcode::RdmaWriteImm, 1, &[(at + 2048, 10, key)]).to(at, key),
        );
    });
    let expected = [
        (TxPackets, 5),
        (RxPackets, 5),
        (TxBytes, 2058),
        (RxBytes, 2058),
        (RxWriteRequests, 1),
        (RxSends, 1),
        (Posts, 2),
        (Recvs, 2),
    ];
    assert_eq!(got, expected);
}

#[test]
fn of_reads_and_atomics() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let got = counted(&mut p, |p| {
        post(
            p,
            SendWr::new(WqeOpcode::RdmaRead, 1, &[(at, 2048, key)]).to(at + 2048, key),
        );
    });
    let expected = [
        (TxPackets, 3),
        (RxPackets, 3),
        (TxBytes, 2048),
        (RxBytes, 2048),
        (RxReadRequests, 1),
        (Posts, 1),
    ];
    assert_eq!(got, expected);
    let got = counted(&mut p, |p| {
        let mut wqe = SendWr::new(WqeOpcode::FetchAdd, 2, &[])
            .to(at, key)
            .encode();
        wqe[2] = 1;
        let sge = SendWr::new(WqeOpcode::Send, 2, &[(at + 8, 8, key)]).encode();
        wqe[DATA_OFFSET_ATOMIC..][..16].copy_from_slice(&sge[DATA_OFFSET..][..16]);
        p.d.post_raw(&mut p.a, &wqe);
        p.d.run();
    });
    let expected = [
        (TxPackets, 2),
        (RxPackets, 2),
        (RxAtomicRequests, 1),
        (Posts, 1),
    ];
    assert_eq!(got, expected);
}

#[test]
fn of_a_peer_without_receives() {
    let mut p = Pair::new();
    let got = counted(&mut p, |p| post(p, SendWr::new(WqeOpcode::Send, 1, &[])));
    // Two retries are allowed: three requests, three refusals.
    let expected = [
        (TxPackets, 6),
        (RxPackets, 6),
        (RxSends, 3),
        (RnrNakSent, 3),
        (RnrNakRetryErr, 3),
        (Retransmits, 2),
        (ReqRnrRetriesExceeded, 1),
        (ReqCqeError, 1),
        (Posts, 1),
        (OutOfBuffer, 3),
    ];
    assert_eq!(got, expected);
}

#[test]
fn of_a_peer_that_does_not_answer() {
    let mut p = Pair::new();
    p.d.move_to(p.b.qpn, QpState::Err).unwrap();
    let got = counted(&mut p, |p| {
        post(p, SendWr::new(WqeOpcode::RdmaWrite, 1, &[]))
    });
    let of = |counter| got.iter().find(|c| c.0 == counter).map_or(0, |c| c.1);
    // After seven retransmissions, the eighth timeout in a row ends the request.
    assert_eq!(
        (
            of(LocalAckTimeoutErr),
            of(ReqTransportRetriesExceeded),
            of(ReqCqeError)
        ),
        (8, 1, 1)
    );
    assert_eq!(of(TxPackets), 8);
    assert_eq!(of(Retransmits), 7);
    assert_eq!(of(ReqRnrRetriesExceeded), 0);
}

#[test]
fn of_a_refused_key() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let got = counted(&mut p, |p| {
        let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 8, key)]);
        post(p, write.to(at, key + 0x100));
    });
    let expected = [
        (TxPackets, 2),
        (RxPackets, 2),
        (TxBytes, 8),
        (RxBytes, 8),
        (RxWriteRequests, 1),
        (ReqCqeError, 1),
        (Posts, 1),
        (ReqRemoteAccessErrors, 1),
        (RespRemoteAccessErrors, 1),
    ];
    assert_eq!(got, expected);
}

#[test]
fn of_a_port_that_goes_down() {
    let mut p = Pair::new();
    let got = counted(&mut p, |p| {
        for up in [0, 0, 1, 0, 1] {
            p.d.must(&SetPort {
                port: 1,
                up,
                mtu: 5,
                ..Default::default()
            });
        }
    });
    assert_eq!(got, [(LinkDowned, 2)]);
}

/// Each of two queue pairs has counters of its own.
#[test]
fn of_each_queue_pair() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    p.d.post_recv(&mut p.b, 1, &[]);
    post(&mut p, SendWr::new(WqeOpcode::Send, 1, &[]));
    post(
        &mut p,
        SendWr::new(WqeOpcode::RdmaWrite, 2, &[(at, 8, key)]).to(at, 0),
    );
    let most = Counter::ALL.len() as u32;
    let of = |p: &mut Pair, qpn| {
        let told = p.d.query_stats(Some(qpn), most).unwrap();
        let all = Counter::ALL.iter().map(|&c| (c, told[c as usize]));
        all.filter(|(_, n)| *n != 0).collect::<Vec<_>>()
    };
    let (a, b) = (p.a.qpn, p.b.qpn);
    let (of_a, of_b) = (of(&mut p, a), of(&mut p, b));
    let expected = [
        (TxPackets, 2),
        (RxPackets, 2),
        (TxBytes, 8),
        (ReqCqeError, 1),
        (Posts, 2),
        (ReqRemoteAccessErrors, 1),
    ];
    assert_eq!(of_a, expected);
    let expected = [
        (TxPackets, 2),
        (RxPackets, 2),
        (RxBytes, 8),
        (RxWriteRequests, 1),
        (RxSends, 1),
        (Recvs, 1),
        (RespRemoteAccessErrors, 1),
    ];
    assert_eq!(of_b, expected);
}

#[test]
fn of_flushes() {
    let mut p = Pair::new();
    let got = counted(&mut p, |p| {
        p.d.post_recv(&mut p.a, 1, &[]);
        p.d.post_recv(&mut p.a, 2, &[]);
        p.d.run();
        p.d.move_to(p.a.qpn, QpState::Err).unwrap();
        for i in 0..3 {
            p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
        }
        p.d.run();
    });
    assert_eq!(
        got,
        [(ReqCqeFlush, 3), (RespCqeFlush, 2), (Recvs, 2)],
        "flushed sends are not counted as posts"
    );
}

#[test]
fn of_a_receive_in_error_and_a_cq_that_overflows() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let got = counted(&mut p, |p| {
        p.d.post_recv(&mut p.b, 1, &[(at, 4, key)]);
        post(p, SendWr::new(WqeOpcode::Send, 1, &[(at, 8, key)]));
    });
    let expected = [
        (TxPackets, 2),
        (RxPackets, 2),
        (TxBytes, 8),
        (RxBytes, 8),
        (RxSends, 1),
        (ReqCqeError, 1),
        (RespCqeError, 1),
        (Posts, 1),
        (Recvs, 1),
        (RespLocalLengthError, 1),
        (ReqRemoteInvalidRequest, 1),
    ];
    assert_eq!(got, expected);
    let small = p.d.create_cq(0);
    p.a = p.d.create_qp(&small, &p.cq_a);
    p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
    p.d.connect(&p.a, &p.b);
    let got = counted(&mut p, |p| {
        for i in 0..2 {
            post(p, SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
        }
    });
    assert!(got.contains(&(CqOverflow, 1)), "{got:?}");
}

#[test]
fn of_a_queue_pair_that_is_reset_or_destroyed() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    post(
        &mut p,
        SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 100, key)]).to(at, key),
    );
    let before = p.d.device.stats();
    let got = counted(&mut p, |p| {
        p.d.move_to(p.a.qpn, QpState::Reset).unwrap();
        for qpn in [p.a.qpn, p.b.qpn] {
            p.d.must(&DestroyQp {
                id: qpn.into(),
                ..Default::default()
            });
        }
    });
    assert_eq!(got, [], "the device keeps these counts");
    assert!(before[TxBytes as usize] >= 100);
}

#[test]
fn of_datagrams_that_are_dropped() {
    let mut p = Pair::new();
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    request.qp_type = QpType::Ud.to_raw();
    let mut sender = p.d.create_qp_by(&request).unwrap();
    let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
    request.qp_type = QpType::Ud.to_raw();
    let receiver = p.d.create_qp_by(&request).unwrap();
    use qp_mask::{PKEY_INDEX, PORT, QKEY, SQ_PSN, STATE};
    for qp in [&sender, &receiver] {
        for (to, mask) in [
            (QpState::Init, STATE | PKEY_INDEX | PORT | QKEY),
            (QpState::Rtr, STATE),
            (QpState::Rts, STATE | SQ_PSN),
        ] {
            let attr = QpAttr {
                qp_state: to.to_raw(),
                port_num: 1,
                qkey: 5.into(),
                ..Default::default()
            };
            p.d.modify(qp.qpn, mask, attr).unwrap();
        }
    }
    let mut av = Driver::path(0, 1);
    (av.dest_qpn, av.qkey, av.pdn) = (receiver.qpn.into(), 5.into(), 7.into());
    let mut wqe = SendWr::new(WqeOpcode::Send, 1, &[]).encode();
    let mut send = |p: &mut Pair, av: verbena_abi::ctx::AddressVector| {
        wqe[DATA_OFFSET..DATA_OFFSET_UD].copy_from_slice(zerocopy::IntoBytes::as_bytes(&av));
        p.d.post_raw(&mut sender, &wqe);
        p.d.run();
    };
    // The receiver has no receive.
    let got = counted(&mut p, |p| send(p, av));
    assert_eq!(
        got,
        [
            (TxPackets, 1),
            (RxPackets, 1),
            (RxSends, 1),
            (RxDropsUd, 1),
            (Posts, 1),
            (OutOfBuffer, 1),
        ]
    );
    // The Q_Key differs from the receiver's.
    let mut wrong = av;
    wrong.qkey = 6.into();
    let got = counted(&mut p, |p| send(p, wrong));
    assert_eq!(
        got,
        [
            (TxPackets, 1),
            (RxPackets, 1),
            (RxSends, 1),
            (RxDropsUd, 1),
            (Posts, 1)
        ]
    );
    // The destination queue pair does not exist.
    let mut nobody = av;
    nobody.dest_qpn = 120.into();
    let got = counted(&mut p, |p| send(p, nobody));
    assert_eq!(got, [(TxPackets, 1), (Posts, 1), (RxNoQp, 1)]);
}

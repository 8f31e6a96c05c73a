// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs on an InfiniBand link: paths with LIDs, and the P_Keys of QP0 and QP1.

use super::pattern;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{DatagramDest, ViolatedKey, WcStatus::*};
use verbena_transport::wire::{LocalRoute, Path};
use verbena_transport::{Attr, Qp, QpConfig, QpState, QpType};

const GSI_QKEY: u32 = 0x8001_0000;

fn path(has_grh: bool, slid: u16, dlid: u16) -> Path {
    let gid = |lid: u16| if has_grh { [lid as u8; 16] } else { [0; 16] };
    Path {
        sgid: gid(slid),
        dgid: gid(dlid),
        sl: 9,
        local_route: Some(LocalRoute {
            slid,
            dlid,
            has_grh,
        }),
        ..Path::default()
    }
}

/// Returns the usual attributes; the driver sets the well-known Q_Key for QP1.
fn attr(qp_type: QpType) -> Attr {
    let attr = PairSetup::default().attr;
    match qp_type {
        QpType::Gsi => Attr {
            qkey: GSI_QKEY,
            ..attr
        },
        _ => attr,
    }
}

/// Returns a pair whose packets travel on an InfiniBand link. With a QPN, both ends have it.
fn pair(qp_type: QpType, has_grh: bool, qpn: Option<u32>) -> QpPair {
    let mut p = QpPair::in_reset(PairSetup {
        qp_type,
        mode: LinkMode::Wire,
        paths: [path(has_grh, 1, 2), path(has_grh, 2, 1)],
        attr: attr(qp_type),
        ..PairSetup::default()
    });
    if let Some(qpn) = qpn {
        p.qps = [100, 101].map(|pd| Qp::new(QpConfig::new(qpn, qp_type, pd)));
    }
    p.connect(A);
    p.connect(B);
    p
}

/// Returns a datagram of 100 bytes.
fn send(from: ArenaBuffer, path: Path, qpn: u32, qkey: u32, pkey: Option<u16>) -> SendPost {
    let mut post = SendPost::send(7, &[from.sge()]);
    post.wqe.datagram = Some(Box::new(DatagramDest {
        path,
        qpn,
        qkey,
        pkey,
    }));
    post
}

#[test]
fn a_datagram_arrives_after_40_bytes_with_or_without_a_grh() {
    for has_grh in [false, true] {
        let mut p = pair(QpType::Ud, has_grh, None);
        let (src, dst) = (p.buffer(A, &pattern(100, 1)), p.zeros(B, 200));
        p.post_recv(B, 1, &[dst.sge()]);
        let path = path(has_grh, 1, 2);
        p.post(A, send(src, path, 0x11, 0x1234, None));
        p.settle();
        let got = p.completions(B);
        assert_eq!((got[0].status, got[0].byte_len), (Success, 140));
        let source = got[0].source.unwrap();
        assert_eq!((source.path, source.pkey), (path, 0xffff));
        assert_eq!(source.path.has_grh(), has_grh);
        let bytes = p.adapter.bytes(dst);
        assert_eq!(bytes[40..140], pattern(100, 1));
        if has_grh {
            // The payload length counts BTH, DETH, payload and ICRC.
            assert_eq!(bytes[4..8], [0, 12 + 8 + 100 + 4, 0x1b, 64]);
            assert_eq!(
                (&bytes[8..24], &bytes[24..40]),
                (&[1; 16][..], &[2; 16][..])
            );
        }
    }
}

#[test]
fn connections_work_by_lid() {
    for (qp_type, has_grh) in [(QpType::Rc, false), (QpType::Rc, true), (QpType::Uc, false)] {
        let mut p = pair(qp_type, has_grh, None);
        let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 1000));
        p.post(A, SendPost::write(7, &[src.sge()], dst));
        p.settle();
        assert_eq!(p.statuses(A), [(7, Success)]);
        assert_eq!(p.adapter.bytes(dst), pattern(1000, 1));
    }
}

#[test]
fn a_queue_pair_sends_and_checks_its_pkey() {
    for (pkey, taken) in [(0x8123_u16, true), (0x0123, false)] {
        let mut p = pair(QpType::Ud, false, None);
        let (src, dst) = (p.zeros(A, 100), p.zeros(B, 200));
        for (side, pkey) in [(A, pkey), (B, 0x0123)] {
            let attr = Attr {
                pkey,
                ..p.attr(side)
            };
            p.modify_attr(side, QpState::Rts, &attr).unwrap();
        }
        p.post_recv(B, 1, &[dst.sge()]);
        p.post(A, send(src, path(false, 1, 2), 0x11, 0x1234, None));
        p.settle();
        let pkeys = p.completions(B).into_iter();
        let pkeys: Vec<u16> = pkeys.map(|got| got.source.unwrap().pkey).collect();
        assert_eq!(pkeys, if taken { vec![pkey] } else { vec![] });
        assert_eq!(p.qps[1].counters().dropped_pkey, u64::from(!taken));
    }
}

#[test]
fn a_packet_that_is_dropped_for_a_key_is_reported_as_one_violation() {
    for (qkey, pkey, expected) in [
        (0x1234, 0xffff, vec![]),
        (0x9999, 0xffff, vec![ViolatedKey::QKey]),
        (0x1234, 0x8123, vec![ViolatedKey::PKey]),
        (0x9999, 0x8123, vec![ViolatedKey::PKey]),
    ] {
        let mut p = pair(QpType::Ud, false, None);
        let (src, dst) = (p.zeros(A, 100), p.zeros(B, 200));
        let attr = Attr { pkey, ..p.attr(A) };
        p.modify_attr(A, QpState::Rts, &attr).unwrap();
        p.post_recv(B, 1, &[dst.sge()]);
        p.post(A, send(src, path(false, 1, 2), 0x11, qkey, None));
        p.settle();
        assert_eq!(p.statuses(B).len(), usize::from(expected.is_empty()));
        assert_eq!(p.adapter.queues(B).violations, expected);
    }
}

#[test]
fn a_queue_pair_reports_violations_in_the_states_that_receive() {
    use QpState::*;
    for (states, is_reported) in [
        (&[][..], false),
        (&[Init], false),
        (&[Init, Rtr], true),
        (&[Init, Rtr, Rts, Err], false),
    ] {
        let mut p = QpPair::in_reset(PairSetup {
            qp_type: QpType::Ud,
            mode: LinkMode::Wire,
            paths: [path(false, 1, 2), path(false, 2, 1)],
            ..PairSetup::default()
        });
        p.connect(A);
        for to in states {
            p.modify(B, *to).unwrap();
        }
        let src = p.zeros(A, 100);
        let attr = Attr {
            pkey: 0x8123,
            ..p.attr(A)
        };
        p.modify_attr(A, Rts, &attr).unwrap();
        p.post(A, send(src, path(false, 1, 2), 0x11, 0x1234, None));
        p.settle();
        assert_eq!(p.qps[1].counters().dropped_pkey, 1, "{states:?}");
        let violations = &p.adapter.queues(B).violations;
        assert_eq!(violations.len(), usize::from(is_reported), "{states:?}");
    }
}

#[test]
fn qp1_sends_the_pkey_of_the_work_request_and_accepts_each_of_the_table() {
    for (table, taken) in [(vec![0x8123], vec![0x0123]), (vec![0x0123], vec![])] {
        let mut p = pair(QpType::Gsi, false, Some(1));
        p.adapter.pkeys = table;
        let (src, dst) = (p.zeros(A, 100), p.zeros(B, 200));
        p.post_recv(B, 1, &[dst.sge()]);
        p.post(A, send(src, path(false, 1, 2), 1, GSI_QKEY, Some(0x0123)));
        p.settle();
        let pkeys = p.completions(B).into_iter();
        let pkeys: Vec<u16> = pkeys.map(|got| got.source.unwrap().pkey).collect();
        assert_eq!(pkeys, taken);
    }
}

#[test]
fn qp1_of_a_roce_port_checks_its_pkey() {
    let mut p = QpPair::new(PairSetup {
        qp_type: QpType::Gsi,
        mode: LinkMode::Wire,
        attr: attr(QpType::Gsi),
        ..PairSetup::default()
    });
    let (src, dst) = (p.zeros(A, 100), p.zeros(B, 200));
    p.post_recv(B, 1, &[dst.sge()]);
    let path = verbena_lab_transport::pair::path(A);
    p.post(A, send(src, path, 1, GSI_QKEY, Some(0x0123)));
    p.settle();
    assert_eq!(p.statuses(B), []);
    assert_eq!(p.qps[1].counters().dropped_pkey, 1);
}

#[test]
fn qp0_checks_neither_qkey_nor_pkey() {
    let mut p = pair(QpType::Smi, false, Some(0));
    let (src, dst) = (p.buffer(A, &pattern(100, 1)), p.zeros(B, 200));
    p.post_recv(B, 1, &[dst.sge()]);
    p.post(A, send(src, path(false, 1, 2), 0, 0, Some(0x0123)));
    p.settle();
    assert_eq!(p.statuses(B), [(1, Success)]);
    assert_eq!(p.adapter.bytes(dst)[40..140], pattern(100, 1));
}

#[test]
fn the_traffic_class_of_a_grh_has_no_ecn_bits() {
    let path = path(true, 1, 2);
    assert_eq!(path.with_ect(), path);
}

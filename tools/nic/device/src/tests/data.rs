// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Data of each operation arrive at the right place, and the operation completes.

use super::Pair;
use crate::memory::GuestMemory;
use crate::mock::{Driver, SendWr};
use crate::Config;
use verbena_abi::cmd::{QpType, SetPort};
use verbena_abi::cqe::WcStatus::{LocQpOpErr, Success};
use verbena_abi::ctx::{qp_mask, QpAttr, QpState};
use verbena_abi::eqe::EventType;
use verbena_abi::stats::Counter;
use verbena_abi::wqe::{self, WqeOpcode};

/// Calls `test` with a pair that exchanges packets by reference, through frames, and through frames
/// of which 5% are lost.
fn on_every_path(test: impl Fn(Pair)) {
    test(Pair::new());
    for drop_percent in [0, 5] {
        let config = Config {
            wire_local: true,
            drop_percent,
            ..Config::default()
        };
        test(Pair::on(Driver::with(config)));
    }
}

impl Pair {
    /// Runs the device for 2 s, which is enough for retransmissions.
    fn settle(&mut self) {
        self.d.pass(2_000_000_000);
    }
}

#[test]
fn a_send_arrives_and_completes() {
    on_every_path(|mut p| {
        let (from, lkey) = p.d.region(5000, 1);
        let (to, rkey) = p.d.region(5000, 2);
        p.d.post_recv(&mut p.b, 21, &[(to, 5000, rkey)]);
        let wr = SendWr::new(WqeOpcode::Send, 11, &[(from, 4999, lkey)]);
        p.d.post_send(&mut p.a, &wr);
        p.settle();
        assert_eq!(p.d.drain(&mut p.cq_a), [(11, Success)]);
        let done = p.d.poll(&mut p.cq_b).unwrap();
        assert_eq!(done.cqe.byte_len.get(), 4999);
        assert_eq!(done.cqe.qpn.get(), p.b.qpn);
        assert_eq!(p.d.bytes(to, 4999), p.d.bytes(from, 4999));
        assert_ne!(p.d.bytes(to + 4999, 1), p.d.bytes(from + 4999, 1));
    });
}

#[test]
fn a_write_needs_no_receive() {
    on_every_path(|mut p| {
        let (from, lkey) = p.d.region(300_000, 1);
        let (to, rkey) = p.d.region(300_000, 2);
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 300_000, lkey)]).to(to, rkey);
        p.d.post_send(&mut p.a, &wr);
        p.settle();
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
        assert_eq!(p.d.drain(&mut p.cq_b), []);
        assert_eq!(p.d.bytes(to, 300_000), p.d.bytes(from, 300_000));
    });
}

#[test]
fn a_read_fetches_data_from_the_peer() {
    on_every_path(|mut p| {
        let (to, lkey) = p.d.region(70_000, 1);
        let (from, rkey) = p.d.region(70_000, 2);
        let wr = SendWr::new(WqeOpcode::RdmaRead, 1, &[(to, 70_000, lkey)]).to(from, rkey);
        p.d.post_send(&mut p.a, &wr);
        p.settle();
        let done = p.d.poll(&mut p.cq_a).unwrap();
        assert_eq!((done.status(), done.cqe.byte_len.get()), (Success, 70_000));
        assert_eq!(p.d.bytes(to, 70_000), p.d.bytes(from, 70_000));
    });
}

#[test]
fn sges_are_gathered_and_scattered_in_order() {
    on_every_path(|mut p| {
        let (from, lkey) = p.d.region(4096, 1);
        let (to, rkey) = p.d.region(4096, 2);
        p.d.post_recv(&mut p.b, 2, &[(to + 100, 10, rkey), (to, 100, rkey)]);
        let sges = [(from, 7, lkey), (from + 50, 0, 0), (from + 7, 33, lkey)];
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &sges));
        p.settle();
        assert_eq!(p.d.drain(&mut p.cq_b), [(2, Success)]);
        assert_eq!(p.d.bytes(to + 100, 10), p.d.bytes(from, 10));
        assert_eq!(p.d.bytes(to, 30), p.d.bytes(from + 10, 30));
    });
}

#[test]
fn inline_data_are_sent_from_the_wqe() {
    on_every_path(|mut p| {
        let (to, rkey) = p.d.region(4096, 2);
        p.d.post_recv(&mut p.b, 2, &[(to, 100, rkey)]);
        let mut wr = SendWr::new(WqeOpcode::SendImm, 1, &[]);
        wr.inline = b"inline data".to_vec();
        wr.imm = [1, 2, 3, 4];
        p.d.post_send(&mut p.a, &wr);
        p.settle();
        let done = p.d.poll(&mut p.cq_b).unwrap();
        assert_eq!(done.cqe.imm, [1, 2, 3, 4]);
        assert_eq!(p.d.bytes(to, 11), b"inline data");
    });
}

#[test]
fn many_messages_arrive_in_order() {
    on_every_path(|mut p| {
        let (from, lkey) = p.d.region(4096, 1);
        let (to, rkey) = p.d.region(4096, 2);
        for round in 0..20u64 {
            for i in 0..8 {
                p.d.post_recv(&mut p.b, round * 8 + i, &[(to, 4096, rkey)]);
            }
            for i in 0..8 {
                let wr = SendWr::new(WqeOpcode::Send, round * 8 + i, &[(from, 2000, lkey)]);
                p.d.post_send(&mut p.a, &wr);
            }
            p.settle();
            let expected: Vec<_> = (round * 8..round * 8 + 8).map(|i| (i, Success)).collect();
            assert_eq!(p.d.drain(&mut p.cq_a), expected);
            assert_eq!(p.d.drain(&mut p.cq_b), expected);
        }
    });
}

#[test]
fn an_atomic_returns_the_previous_value() {
    let mut p = Pair::new();
    let (to, lkey) = p.d.region(4096, 1);
    let (at, rkey) = p.d.region(4096, 2);
    p.d.ram.store64(at, 40).unwrap();
    let mut wqe = SendWr::new(WqeOpcode::FetchAdd, 1, &[])
        .to(at, rkey)
        .encode();
    wqe[2] = 1;
    let mut put = |at: usize, bytes: &[u8]| wqe[at..at + bytes.len()].copy_from_slice(bytes);
    put(wqe::DATA_OFFSET, &2u64.to_le_bytes());
    put(wqe::DATA_OFFSET_ATOMIC, &to.to_le_bytes());
    put(wqe::DATA_OFFSET_ATOMIC + 8, &8u32.to_le_bytes());
    put(wqe::DATA_OFFSET_ATOMIC + 12, &lkey.to_le_bytes());
    p.d.post_raw(&mut p.a, &wqe);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
    assert_eq!(p.d.ram.load64(at), Ok(42));
    assert_eq!(p.d.ram.load64(to), Ok(40));
}

#[test]
fn nothing_passes_a_port_that_is_down() {
    let mut p = Pair::new();
    p.d.set_port(false);
    let (to, rkey) = p.d.region(4096, 2);
    let (from, lkey) = p.d.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 8, lkey)]).to(to, rkey);
    p.d.post_send(&mut p.a, &wr);
    p.d.run();
    assert_eq!(p.d.drain(&mut p.cq_a), []);
    p.d.set_port(true);
    p.settle();
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
}

#[test]
fn posts_to_an_awake_device_need_no_doorbell() {
    let mut p = Pair::new();
    let (to, rkey) = p.d.region(4096, 2);
    let (from, lkey) = p.d.region(4096, 1);
    for _ in 0..100 {
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 8, lkey)]).to(to, rkey);
        p.d.post_send(&mut p.a, &wr);
        p.d.run();
        p.d.drain(&mut p.cq_a);
    }
    let stats = p.d.device.stats();
    assert_eq!(stats[Counter::Doorbells as usize], 0);
    assert_eq!(stats[Counter::Posts as usize], 100);
}

#[test]
fn a_sleeping_device_is_rung_once() {
    let mut p = Pair::new();
    assert!(p.d.device.fall_asleep(&p.d.ram));
    let (to, rkey) = p.d.region(4096, 2);
    let (from, lkey) = p.d.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 8, lkey)]).to(to, rkey);
    p.d.post_send(&mut p.a, &wr);
    p.d.post_send(&mut p.a, &wr);
    assert_eq!(p.d.rings.get(), 1);
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 2);
}

#[test]
fn a_post_that_was_not_scanned_keeps_the_device_awake() {
    let mut p = Pair::new();
    let (to, rkey) = p.d.region(4096, 2);
    let (from, lkey) = p.d.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 8, lkey)]).to(to, rkey);
    // The device has not scanned the area since the post, and its sleep word still says that it is
    // awake.
    p.d.post_send(&mut p.a, &wr);
    assert_eq!(p.d.rings.get(), 0);
    assert!(!p.d.device.fall_asleep(&p.d.ram));
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
}

#[test]
fn an_idle_connection_has_no_deadline() {
    let mut p = Pair::new();
    p.settle();
    let next = p.d.device.run_slice(&p.d.ram, p.d.now);
    assert_eq!((next.busy, next.deadline), (false, None));
}

#[test]
fn sends_wait_in_sqd_and_sq_drained_is_reported_once() {
    let mut p = Pair::new();
    let attr = QpAttr {
        qp_state: QpState::Sqd.to_raw(),
        en_sqd_async_notify: 1,
        ..Default::default()
    };
    let mask = qp_mask::STATE | qp_mask::EN_SQD_ASYNC_NOTIFY;
    p.d.modify(p.a.qpn, mask, attr).unwrap();
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    p.settle();
    assert_eq!(p.d.drain(&mut p.cq_a), []);
    let kinds: Vec<_> = p.d.events(0).iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [EventType::SqDrained]);
    p.d.move_to(p.a.qpn, QpState::Rts).unwrap();
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
    assert_eq!(p.d.events(0), []);
    assert_eq!(p.d.query_qp(p.a.qpn).attr.en_sqd_async_notify, 0);
    // The event was requested for the first move to SQD only.
    p.d.move_to(p.a.qpn, QpState::Sqd).unwrap();
    p.settle();
    assert_eq!(p.d.events(0), []);
}

#[test]
fn other_attributes_do_not_cancel_a_requested_sq_drained() {
    let mut p = Pair::new();
    let attr = QpAttr {
        qp_state: QpState::Sqd.to_raw(),
        en_sqd_async_notify: 1,
        min_rnr_timer: 9,
        ..Default::default()
    };
    let mask = qp_mask::STATE | qp_mask::EN_SQD_ASYNC_NOTIFY;
    // The send waits for its RNR timer, because the peer has no receive.
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
    p.d.run();
    p.d.modify(p.a.qpn, mask, attr).unwrap();
    p.d.modify(p.a.qpn, qp_mask::MIN_RNR_TIMER, attr).unwrap();
    assert_eq!(p.d.events(0), []);
    assert_eq!(p.d.query_qp(p.a.qpn).attr.en_sqd_async_notify, 1);
    p.d.post_recv(&mut p.b, 2, &[]);
    p.d.pass(1_000_000_000);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
    let kinds: Vec<_> = p.d.events(0).iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [EventType::SqDrained]);
}

#[test]
fn the_first_packet_in_rtr_reports_comm_est_once() {
    let mut d = Driver::new();
    let (mut cq_a, cq_b) = (d.create_cq(6), d.create_cq(6));
    let mut a = d.create_qp(&cq_a, &cq_a);
    let b = d.create_qp(&cq_b, &cq_b);
    d.to_init(a.qpn).unwrap();
    d.to_rtr(a.qpn, b.qpn, Driver::path(0, 1)).unwrap();
    d.to_rts(a.qpn).unwrap();
    d.to_init(b.qpn).unwrap();
    d.to_rtr(b.qpn, a.qpn, Driver::path(1, 0)).unwrap();
    for i in 0..2 {
        d.post_send(&mut a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
        assert_eq!(d.drain(&mut cq_a), [(i, Success)]);
    }
    let kinds: Vec<_> = d.events(0).iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [EventType::CommEst]);
}

#[test]
fn an_unreliable_connection_sends_and_writes() {
    let mut d = Driver::new();
    let (mut cq_a, mut cq_b) = (d.create_cq(6), d.create_cq(6));
    let mut qps = vec![];
    for cq in [&cq_a, &cq_b] {
        let mut request = d.qp_request(&cq.clone(), &cq.clone());
        request.qp_type = QpType::Uc.to_raw();
        qps.push(d.create_qp_by(&request).unwrap());
    }
    for (me, peer, from, to) in [(0, 1, 0, 1), (1, 0, 1, 0)] {
        let (qpn, peer): (u32, u32) = (qps[me].qpn, qps[peer].qpn);
        d.to_init(qpn).unwrap();
        let rtr = QpAttr {
            qp_state: QpState::Rtr.to_raw(),
            path_mtu: 3,
            dest_qpn: peer.into(),
            ..Default::default()
        };
        let mask =
            qp_mask::STATE | qp_mask::AV | qp_mask::PATH_MTU | qp_mask::DEST_QPN | qp_mask::RQ_PSN;
        d.modify_av(qpn, mask, rtr, Driver::path(from, to)).unwrap();
        let rts = QpAttr {
            qp_state: QpState::Rts.to_raw(),
            ..Default::default()
        };
        let mask = qp_mask::STATE | qp_mask::SQ_PSN;
        d.modify(qpn, mask, rts).unwrap();
    }
    let (from, lkey) = d.region(10_000, 1);
    let (to, rkey) = d.region(10_000, 2);
    d.post_recv(&mut qps[1], 9, &[(to, 5000, rkey)]);
    let send = SendWr::new(WqeOpcode::Send, 1, &[(from, 5000, lkey)]);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 2, &[(from + 5000, 5000, lkey)]);
    d.post_send(&mut qps[0], &send);
    d.post_send(&mut qps[0], &write.to(to + 5000, rkey));
    assert_eq!(d.drain(&mut cq_a), [(1, Success), (2, Success)]);
    assert_eq!(d.drain(&mut cq_b), [(9, Success)]);
    assert_eq!(d.bytes(to, 10_000), d.bytes(from, 10_000));
}

#[test]
fn inline_data_may_be_as_long_as_max_inline() {
    let mut p = Pair::new();
    let (to, rkey) = p.d.region(4096, 2);
    for (length, status) in [(128, Success), (129, LocQpOpErr)] {
        let mut wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]).to(to, rkey);
        wr.inline = vec![7; length];
        p.d.post_send(&mut p.a, &wr);
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, status)]);
    }
}

#[test]
fn long_messages_in_a_row_lose_no_packet() {
    // With the longest packets, a turn sends more than one call delivers.
    let mut p = Pair::new();
    p.d.must(&SetPort {
        up: 1,
        mtu: 5,
        port: 1,
        ..Default::default()
    });
    (p.a, p.b) = (
        p.d.create_qp(&p.cq_a, &p.cq_a),
        p.d.create_qp(&p.cq_b, &p.cq_b),
    );
    for (me, peer, from, to) in [(&p.a, &p.b, 0, 1), (&p.b, &p.a, 1, 0)] {
        p.d.to_init(me.qpn).unwrap();
        let attr = QpAttr {
            qp_state: QpState::Rtr.to_raw(),
            path_mtu: 5,
            dest_qpn: peer.qpn.into(),
            rq_psn: 0xff_fffe.into(),
            ..Default::default()
        };
        use qp_mask::*;
        let mask = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        p.d.modify_av(me.qpn, mask, attr, Driver::path(from, to))
            .unwrap();
        p.d.to_rts(me.qpn).unwrap();
    }
    let length = 200 << 10;
    let (from, key) = p.d.region(length, 3);
    let (to, rkey) = p.d.region(4 * length, 4);
    for i in 0..4u64 {
        let at = to + i * u64::from(length);
        let wr = SendWr::new(WqeOpcode::RdmaWrite, i, &[(from, length, key)]).to(at, rkey);
        p.d.post_send(&mut p.a, &wr);
    }
    let all: Vec<_> = (0..4).map(|i| (i, Success)).collect();
    assert_eq!(p.d.drain(&mut p.cq_a), all);
    let expected = p.d.bytes(from, length as usize);
    for i in 0..4u64 {
        assert_eq!(
            p.d.bytes(to + i * u64::from(length), length as usize),
            expected
        );
    }
    let stats = p.d.device.stats();
    assert_eq!(stats[Counter::LocalAckTimeoutErr as usize], 0);
    assert_eq!(stats[Counter::Retransmits as usize], 0);
}

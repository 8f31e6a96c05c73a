// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fields of a completion, for each operation at the requester and at the responder.

use super::*;
use crate::mock::{flat, SendWr, WqeBytes};
use verbena_abi::cmd::*;
use verbena_abi::cqe::{network_type, wc_flags, Cqe, Tail, WcOpcode, WcStatus};
use verbena_abi::ctx::{mr_flags, qp_mask as m, AddressVector, QpAttr, QpState};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{
    flush_placement, send_flags, FastRegSegment, WqeOpcode, DATA_OFFSET, DATA_OFFSET_ATOMIC,
    DATA_OFFSET_UD, FLUSH_OFFSET,
};
use zerocopy::IntoBytes;

/// Returns the completions of a CQ: the entries with the last word cleared, and the decoded last
/// words.
fn completions(p: &mut Pair, at_a: bool) -> Vec<(Cqe, Tail)> {
    p.d.run();
    let cq = if at_a { &mut p.cq_a } else { &mut p.cq_b };
    std::iter::from_fn(|| p.d.poll(cq))
        .map(|d| {
            let cqe = Cqe {
                tail: 0.into(),
                ..d.cqe
            };
            (cqe, d.tail)
        })
        .collect()
}

/// Returns the entry of a successful completion of a connected queue pair.
fn entry(p: &Pair, qpn: u32, wr_id: u64, wqe_index: u32, byte_len: u32) -> Cqe {
    Cqe {
        wr_id: wr_id.into(),
        wqe_index: wqe_index.into(),
        byte_len: byte_len.into(),
        qpn: qpn.into(),
        timestamp: p.d.now.into(),
        vlan: NO_VLAN.into(),
        ..Default::default()
    }
}

fn tail(opcode: WcOpcode, wc_flags: u8) -> Tail {
    Tail {
        status: 0,
        opcode: opcode.to_raw(),
        wc_flags,
    }
}

/// Returns a pair whose first queue pair is privileged, at a time that is not 0.
fn privileged() -> Pair {
    let mut p = Pair::new();
    p.d.pass(123_456);
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    request.flags = QP_PRIVILEGED;
    p.a = p.d.create_qp_by(&request).unwrap();
    p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
    p.d.connect(&p.a, &p.b);
    p
}

#[test]
fn of_sends_and_their_receives() {
    let mut p = privileged();
    let (at, key) = p.d.region(4096, 1);
    let data = [(at, 100, key)];
    let ops = [
        (WqeOpcode::Send, WcOpcode::Send, WcOpcode::Recv, 0),
        (
            WqeOpcode::SendImm,
            WcOpcode::Send,
            WcOpcode::Recv,
            wc_flags::WITH_IMM,
        ),
        (
            WqeOpcode::RdmaWriteImm,
            WcOpcode::RdmaWrite,
            WcOpcode::RecvRdmaWithImm,
            wc_flags::WITH_IMM,
        ),
    ];
    for (i, (opcode, sent, received, flags)) in ops.into_iter().enumerate() {
        let index = i as u32;
        p.d.post_recv(&mut p.b, 50 + u64::from(index), &[(at + 1000, 200, key)]);
        let mut wr = SendWr::new(opcode, 7, &data).to(at + 2000, key);
        wr.imm = [1, 2, 3, 4];
        p.d.post_send(&mut p.a, &wr);
        assert_eq!(
            completions(&mut p, true),
            [(entry(&p, p.a.qpn, 7, index, 100), tail(sent, 0))],
            "{opcode:?}"
        );
        let mut expected = entry(&p, p.b.qpn, 50 + u64::from(index), index, 100);
        if flags != 0 {
            expected.imm = [1, 2, 3, 4];
        }
        assert_eq!(
            completions(&mut p, false),
            [(expected, tail(received, flags))],
            "{opcode:?}"
        );
    }
}

#[test]
fn of_a_send_that_invalidates() {
    let mut p = privileged();
    let (at, key) = p.d.region(4096, 1);
    let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
    request.flags = QP_PRIVILEGED;
    p.b = p.d.create_qp_by(&request).unwrap();
    p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.connect(&p.a, &p.b);
    p.d.must(&CreateMr {
        key: 0x6000.into(),
        pdn: 7.into(),
        flags: mr_flags::FAST_REG.into(),
        ..Default::default()
    });
    let segment = FastRegSegment {
        key: 0x6077.into(),
        access: 0xf.into(),
        iova: 0x1000.into(),
        length: 4096.into(),
        pages: flat(at),
        ..Default::default()
    };
    let mut register = SendWr::new(WqeOpcode::FastReg, 1, &[]).encode();
    register[DATA_OFFSET..][..size_of::<FastRegSegment>()].copy_from_slice(segment.as_bytes());
    p.d.post_raw(&mut p.b, &register);
    assert_eq!(
        completions(&mut p, false),
        [(entry(&p, p.b.qpn, 1, 0, 0), tail(WcOpcode::FastReg, 0))]
    );
    p.d.post_recv(&mut p.b, 2, &[(at, 10, key)]);
    let mut wr = SendWr::new(WqeOpcode::SendInv, 3, &[(at, 10, key)]);
    wr.imm = 0x6077u32.to_le_bytes();
    p.d.post_send(&mut p.a, &wr);
    assert_eq!(
        completions(&mut p, true),
        [(entry(&p, p.a.qpn, 3, 0, 10), tail(WcOpcode::Send, 0))]
    );
    let mut expected = entry(&p, p.b.qpn, 2, 0, 10);
    expected.imm = 0x6077u32.to_le_bytes();
    assert_eq!(
        completions(&mut p, false),
        [(expected, tail(WcOpcode::Recv, wc_flags::WITH_INV))]
    );
    // The key is invalid now. After another registration its owner can invalidate it.
    p.d.post_raw(&mut p.b, &register);
    let mut invalidate = SendWr::new(WqeOpcode::LocalInv, 4, &[]);
    invalidate.imm = 0x6077u32.to_le_bytes();
    p.d.post_send(&mut p.b, &invalidate);
    let got = completions(&mut p, false);
    assert_eq!(
        got[0],
        (entry(&p, p.b.qpn, 1, 1, 0), tail(WcOpcode::FastReg, 0))
    );
    assert_eq!(
        got[1],
        (entry(&p, p.b.qpn, 4, 2, 0), tail(WcOpcode::LocalInv, 0))
    );
    assert_eq!(got.len(), 2);
}

#[test]
fn of_requests_without_a_completion_at_the_peer() {
    let mut p = privileged();
    let (at, key) = p.d.region(4096, 1);
    let atomic = |opcode| {
        let mut wqe: WqeBytes = SendWr::new(opcode, 9, &[]).to(at + 64, key).encode();
        wqe[2] = 1;
        let sge = SendWr::new(opcode, 9, &[(at, 8, key)]).encode();
        wqe[DATA_OFFSET_ATOMIC..][..16].copy_from_slice(&sge[DATA_OFFSET..][..16]);
        wqe
    };
    let plain = |opcode| {
        SendWr::new(opcode, 9, &[(at, 300, key)])
            .to(at + 1000, key)
            .encode()
    };
    let word = SendWr::new(WqeOpcode::AtomicWrite, 9, &[(at, 8, key)]).to(at + 64, key);
    let word = word.encode();
    let mut flush = SendWr::new(WqeOpcode::Flush, 9, &[]).to(at, key).encode();
    flush[FLUSH_OFFSET] = 64;
    flush[FLUSH_OFFSET + 4] = flush_placement::GLOBAL;
    let ops = [
        (plain(WqeOpcode::RdmaWrite), WcOpcode::RdmaWrite, 300),
        (plain(WqeOpcode::RdmaRead), WcOpcode::RdmaRead, 300),
        (atomic(WqeOpcode::CompareSwap), WcOpcode::CompSwap, 8),
        (atomic(WqeOpcode::FetchAdd), WcOpcode::FetchAdd, 8),
        (word, WcOpcode::AtomicWrite, 8),
        (flush, WcOpcode::Flush, 0),
    ];
    for (i, (wqe, opcode, byte_len)) in ops.into_iter().enumerate() {
        p.d.post_raw(&mut p.a, &wqe);
        let expected = entry(&p, p.a.qpn, 9, i as u32, byte_len);
        assert_eq!(
            completions(&mut p, true),
            [(expected, tail(opcode, 0))],
            "{opcode:?}"
        );
    }
    assert_eq!(completions(&mut p, false), []);
}

#[test]
fn of_receives_from_a_shared_queue() {
    let mut p = Pair::new();
    let mut srq = p.share();
    p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.connect(&p.a, &p.b);
    let (at, key) = p.d.region(4096, 1);
    for i in 0..3 {
        p.d.post_srq(&mut srq, 30 + i, &[(at, 64, key)]);
    }
    for i in 0..2u32 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[(at, 5, key)]));
        let mut expected = entry(&p, p.b.qpn, 30 + u64::from(i), i, 5);
        expected.srqn = srq.srqn.into();
        assert_eq!(
            completions(&mut p, false),
            [(expected, tail(WcOpcode::Recv, 0))]
        );
    }
    // Completions of sends do not name the SRQ.
    p.d.post_send(&mut p.b, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    assert_eq!(
        completions(&mut p, false),
        [(entry(&p, p.b.qpn, 1, 0, 0), tail(WcOpcode::RdmaWrite, 0))]
    );
}

#[test]
fn of_failed_requests() {
    let mut p = privileged();
    let (at, key) = p.d.region(4096, 1);
    p.d.post_recv(&mut p.b, 5, &[(at, 4, key)]);
    p.d.post_recv(&mut p.b, 6, &[]);
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[(at, 8, key)]));
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaRead, 2, &[]));
    let wrong =
        |p: &Pair, qpn, wr_id, index, (status, cause): (WcStatus, Syndrome), opcode: WcOpcode| {
            let cqe = Cqe {
                vendor_err: u32::from(cause.to_raw()).into(),
                ..entry(p, qpn, wr_id, index, 0)
            };
            let tail = Tail {
                status: status.to_raw(),
                opcode: opcode.to_raw(),
                wc_flags: 0,
            };
            (cqe, tail)
        };
    let flushed = (WcStatus::WrFlushErr, Syndrome::Flushed);
    let refused = (WcStatus::RemInvReqErr, Syndrome::NakInvalidRequest);
    let expected = [
        wrong(&p, p.a.qpn, 1, 0, refused, WcOpcode::Send),
        wrong(&p, p.a.qpn, 2, 1, flushed, WcOpcode::RdmaRead),
    ];
    assert_eq!(completions(&mut p, true), expected);
    let short = (WcStatus::LocLenErr, Syndrome::RecvTooSmall);
    let expected = [
        wrong(&p, p.b.qpn, 5, 0, short, WcOpcode::Recv),
        wrong(&p, p.b.qpn, 6, 1, flushed, WcOpcode::Recv),
    ];
    assert_eq!(completions(&mut p, false), expected);
}

/// Creates a datagram queue pair in RTS.
fn datagram(p: &mut Pair, at_a: bool) -> QpHandle {
    let cq = if at_a { p.cq_a.clone() } else { p.cq_b.clone() };
    let mut request = p.d.qp_request(&cq, &cq);
    request.qp_type = QpType::Ud.to_raw();
    let qp = p.d.create_qp_by(&request).unwrap();
    for (to, mask) in [
        (QpState::Init, m::STATE | m::PKEY_INDEX | m::PORT | m::QKEY),
        (QpState::Rtr, m::STATE),
        (QpState::Rts, m::STATE | m::SQ_PSN),
    ] {
        let attr = QpAttr {
            qp_state: to.to_raw(),
            port_num: 1,
            qkey: 5.into(),
            ..Default::default()
        };
        p.d.modify(qp.qpn, mask, attr).unwrap();
    }
    qp
}

#[test]
fn of_datagrams() {
    let mut p = Pair::new();
    let mac6 = [2, 4, 6, 8, 10, 12];
    for (index, vlan, gid) in [(4u16, 77u16, [0x20; 16]), (5, NO_VLAN, [0x21; 16])] {
        p.d.must(&SetGid {
            index: index.into(),
            valid: 1,
            vlan: vlan.into(),
            mac: mac6,
            gid,
            port: 1,
            gid_type: GID_TYPE_ROCE_V2,
            ..Default::default()
        });
    }
    let (mut x, mut y) = (datagram(&mut p, true), datagram(&mut p, false));
    let (at, key) = p.d.region(4096, 1);
    let to = y.qpn;
    let av = |from: u16, dgid, dmac| AddressVector {
        dmac,
        dest_qpn: to.into(),
        qkey: 5.into(),
        pdn: 7.into(),
        sgid_index: from.into(),
        dgid,
        sl: 6,
        traffic_class: 0xfc,
        flow_label: 0x12345.into(),
        hop_limit: 9,
        ..Default::default()
    };
    let v4 = |from: u16| av(from, Driver::path(0, 1).dgid, Driver::path(0, 1).dmac);
    let paths = [
        (v4(0), [2, 0, 0, 0, 0, 1], NO_VLAN, network_type::IPV4),
        (av(4, [0x20; 16], mac6), mac6, 77, network_type::IPV6),
        (av(5, [0x21; 16], mac6), mac6, NO_VLAN, network_type::IPV6),
    ];
    for (i, (av, smac, vlan, network)) in paths.into_iter().enumerate() {
        let index = i as u32;
        p.d.post_recv(&mut y, 5, &[(at, 200, key)]);
        let mut wr = SendWr::new(WqeOpcode::SendImm, 6, &[]);
        wr.imm = [9, 8, 7, 6];
        wr.flags |= send_flags::INLINE;
        let mut wqe = wr.encode();
        wqe[DATA_OFFSET..DATA_OFFSET_UD].copy_from_slice(av.as_bytes());
        wqe[4] = 10;
        wqe[DATA_OFFSET_UD..DATA_OFFSET_UD + 10].fill(0xaa);
        p.d.post_raw(&mut x, &wqe);
        assert_eq!(
            completions(&mut p, true),
            [(entry(&p, x.qpn, 6, index, 10), tail(WcOpcode::Send, 0))]
        );
        let expected = Cqe {
            imm: [9, 8, 7, 6],
            src_qp: x.qpn.into(),
            smac,
            vlan: vlan.into(),
            // As on a wire, the SL is the priority of the VLAN tag, if there is a tag.
            sl: if vlan == NO_VLAN { 0 } else { 6 },
            network_type: network,
            ..entry(&p, y.qpn, 5, index, 50)
        };
        let flags = wc_flags::WITH_IMM | wc_flags::GRH;
        assert_eq!(
            completions(&mut p, false),
            [(expected, tail(WcOpcode::Recv, flags))]
        );
        let got = p.d.bytes(at, 50);
        assert_eq!(got[40..], [0xaa; 10]);
        if network == network_type::IPV6 {
            // Version, traffic class without its ECN bits, flow label; hop limit; both GIDs.
            assert_eq!(got[..4], [0x6f, 0xc1, 0x23, 0x45]);
            assert_eq!(got[7], 9);
            assert_eq!((&got[8..24], &got[24..40]), (&av.dgid[..], &av.dgid[..]));
        }
    }
    // A datagram to a GID in another VLAN leaves the device, and the port would not accept it from
    // the link.
    p.d.post_recv(&mut y, 5, &[(at, 200, key)]);
    let mut wqe = SendWr::new(WqeOpcode::Send, 6, &[]).encode();
    wqe[DATA_OFFSET..DATA_OFFSET_UD].copy_from_slice(av(4, [0x21; 16], mac6).as_bytes());
    p.d.post_raw(&mut x, &wqe);
    assert_eq!(
        (
            completions(&mut p, true).len(),
            completions(&mut p, false).len()
        ),
        (1, 0)
    );
    let frame = p.d.device.next_frame().unwrap();
    assert_eq!(frame[12..16], [0x81, 0, 0xc0, 77]);
    assert!(!p.d.device.wants_frame(&frame));
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work queue entries: the operations of each type of queue pair, flags, sizes at their limits, and
//! full rings.

use super::Pair;
use crate::memory::GuestMemory;
use crate::mock::{Driver, QpHandle, SendWr, WqeBytes};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{qp_mask as m, AddressVector, QpAttr, QpState};
use verbena_abi::doorbell::{self, ArmMode};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{self, send_flags, WqeOpcode};
use zerocopy::IntoBytes;

/// Returns a queue pair of a type in RTS, created with these flags. An RC or UC queue pair has a
/// second one of its type as its peer.
fn running(p: &mut Pair, qp_type: QpType, flags: u8) -> QpHandle {
    let mut made = vec![];
    for _ in 0..2 {
        let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
        (request.qp_type, request.flags) = (qp_type.to_raw(), flags);
        if qp_type == QpType::Gsi {
            (request.qpn, request.port) = (1.into(), 1);
        }
        made.push(p.d.create_qp_by(&request).unwrap());
        if qp_type == QpType::Gsi {
            break;
        }
    }
    if qp_type == QpType::Rc {
        p.d.connect(&made[0], &made[1]);
    } else {
        let connected = qp_type == QpType::Uc;
        let attr = |state: QpState| QpAttr {
            qp_state: state.to_raw(),
            port_num: 1,
            path_mtu: 3,
            qp_access_flags: 0xf.into(),
            dest_qpn: made.last().unwrap().qpn.into(),
            ..Default::default()
        };
        let (key, rtr) = if connected {
            let rtr = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
            (m::ACCESS_FLAGS, rtr)
        } else {
            (m::QKEY, 0)
        };
        let port = if qp_type == QpType::Gsi { 0 } else { m::PORT };
        let steps = [
            (QpState::Init, m::PKEY_INDEX | port | key),
            (QpState::Rtr, rtr),
            (QpState::Rts, m::SQ_PSN),
        ];
        for (state, mask) in steps {
            let av = Driver::path(0, 1);
            p.d.modify_av(made[0].qpn, m::STATE | mask, attr(state), av)
                .unwrap();
        }
    }
    made[0].clone()
}

/// Posts a WQE. Returns the status and `vendor_err` of its completion.
fn outcome(p: &mut Pair, qp: &mut QpHandle, wqe: &WqeBytes) -> (WcStatus, u32) {
    p.d.post_raw(qp, wqe);
    p.d.run();
    let done = p.d.poll(&mut p.cq_a).unwrap();
    (done.status(), done.cqe.vendor_err.get())
}

fn refused(cause: Syndrome) -> (WcStatus, u32) {
    (WcStatus::LocQpOpErr, cause.to_raw().into())
}

/// Returns the completion of an ATOMIC WRITE whose length is not 8 bytes.
fn too_short() -> (WcStatus, u32) {
    (WcStatus::LocLenErr, Syndrome::AtomicLength.to_raw().into())
}

/// Writes an address vector to a datagram's WQE, for a queue pair that [`running`] has returned.
fn address(wqe: &mut WqeBytes, dest_qpn: u32) {
    let av = AddressVector {
        dest_qpn: dest_qpn.into(),
        pdn: 7.into(),
        ..Driver::path(0, 1)
    };
    wqe[wqe::DATA_OFFSET..wqe::DATA_OFFSET_UD].copy_from_slice(av.as_bytes());
}

#[test]
fn each_transport_refuses_operations_of_others() {
    use WqeOpcode::*;
    let all = [
        RdmaWrite,
        RdmaWriteImm,
        Send,
        SendImm,
        RdmaRead,
        CompareSwap,
        FetchAdd,
        LocalInv,
        SendInv,
        FastReg,
        BindMw,
        AtomicWrite,
        Flush,
    ];
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi] {
        let datagram = matches!(qp_type, QpType::Ud | QpType::Gsi);
        for opcode in all {
            for flags in [0, QP_PRIVILEGED] {
                let mut p = Pair::new();
                let mut qp = running(&mut p, qp_type, flags);
                let mut wqe = SendWr::new(opcode, 1, &[]).encode();
                if datagram {
                    address(&mut wqe, 0xdead);
                }
                p.d.post_raw(&mut qp, &wqe);
                p.d.run();
                let done = p.d.poll(&mut p.cq_a);
                let got = done.map(|d| (d.status(), d.cqe.vendor_err.get()));
                let what = format!("{opcode:?} of {qp_type:?}, {flags}");
                let known = match opcode {
                    Send | SendImm => true,
                    SendInv | RdmaRead | CompareSwap | FetchAdd | AtomicWrite | Flush => {
                        qp_type == QpType::Rc
                    }
                    _ => !datagram,
                };
                if !known {
                    assert_eq!(got, Some(refused(Syndrome::WqeOpcodeTransport)), "{what}");
                } else if matches!(opcode, LocalInv | FastReg | BindMw) {
                    let expected = match opcode {
                        FastReg if flags == 0 => refused(Syndrome::Privilege),
                        BindMw => (WcStatus::MwBindErr, Syndrome::BindWindow.to_raw().into()),
                        _ => (WcStatus::MwBindErr, Syndrome::KeyManagement.to_raw().into()),
                    };
                    assert_eq!(got, Some(expected), "{what}");
                } else if opcode == Flush {
                    // The FLUSH names no placement.
                    assert_eq!(got, Some(refused(Syndrome::FlushType)), "{what}");
                } else if got.is_some_and(|g| g.0 == WcStatus::LocQpOpErr) {
                    panic!("{what}: {got:?}");
                }
            }
        }
    }
}

#[test]
fn a_request_completes_if_it_is_signaled() {
    for qp_flags in [0, QP_SIGNAL_ALL] {
        for signaled in [0, send_flags::SIGNALED] {
            let mut p = Pair::new();
            let mut qp = running(&mut p, QpType::Rc, qp_flags);
            let mut wr = SendWr::new(WqeOpcode::RdmaWrite, 5, &[]);
            wr.flags = signaled;
            p.d.post_send(&mut qp, &wr);
            let done = p.d.drain(&mut p.cq_a).len();
            assert_eq!(done, usize::from(qp_flags != 0 || signaled != 0));
            // A request that fails completes even if it is unsignaled.
            wr.remote = (8, 8);
            wr.inline = vec![1];
            p.d.post_send(&mut qp, &wr);
            assert_eq!(p.d.drain(&mut p.cq_a), [(5, WcStatus::RemAccessErr)]);
        }
    }
}

#[test]
fn a_receive_is_solicited_if_the_request_is() {
    use WqeOpcode::*;
    for opcode in [Send, SendImm, RdmaWriteImm, RdmaWrite] {
        for solicited in [0, send_flags::SOLICITED] {
            for mode in [ArmMode::Solicited, ArmMode::Next] {
                let mut p = Pair::new();
                p.d.arm(&mut p.cq_b, mode);
                p.d.post_recv(&mut p.b, 3, &[]);
                let mut wr = SendWr::new(opcode, 1, &[]);
                wr.flags |= solicited;
                p.d.post_send(&mut p.a, &wr);
                p.d.run();
                let told: Vec<_> = p.d.events(1).iter().map(|e| e.number).collect();
                let asked = mode == ArmMode::Next || solicited != 0;
                let event = opcode != RdmaWrite && asked;
                assert_eq!(
                    told,
                    vec![p.cq_b.cqn; event.into()],
                    "{opcode:?} {solicited}"
                );
                // The completion of the sender is not solicited.
                p.d.arm(&mut p.cq_a, ArmMode::Solicited);
                p.d.run();
                assert_eq!(p.d.events(1), []);
            }
        }
    }
}

#[test]
fn a_fenced_request_waits_for_reads() {
    for fence in [0, send_flags::FENCE] {
        let mut p = Pair::new();
        let length = 4 << 20;
        let (at, key) = p.d.region(length, 1);
        p.d.post_recv(&mut p.b, 3, &[]);
        let read = SendWr::new(WqeOpcode::RdmaRead, 1, &[(at, length, key)]).to(at, key);
        p.d.post_send(&mut p.a, &read);
        let mut send = SendWr::new(WqeOpcode::Send, 2, &[]);
        send.flags |= fence;
        p.d.post_send(&mut p.a, &send);
        let mut early = false;
        while p.d.poll(&mut p.cq_b).is_none() {
            p.d.device.run_slice(&p.d.ram, p.d.now);
            early = p.d.poll(&mut p.cq_a).is_none();
        }
        assert_eq!(early, fence == 0);
    }
}

/// Returns a queue pair whose send ring has this stride, with these limits of elements and inline
/// bytes.
fn sized(log_stride: u8, max_send_sge: u8, max_inline: u32) -> (Pair, QpHandle) {
    let mut p = Pair::new();
    let (cq, peer) = (p.cq_a.clone(), p.cq_b.clone());
    let mut request = p.d.qp_request(&cq, &cq);
    (request.log_sq_stride, request.max_send_sge) = (log_stride, max_send_sge);
    request.max_inline = (max_inline as u16).into();
    request.log_sq_size = 2;
    p.a = p.d.create_qp_by(&request).unwrap();
    p.b = p.d.create_qp(&peer, &peer);
    p.d.connect(&p.a, &p.b);
    let qp = p.a.clone();
    (p, qp)
}

#[test]
fn elements_are_limited_by_max_send_sge_and_by_the_stride() {
    for (log_stride, agreed, most) in [
        (8, 4, 4),
        (8, 0, 0),
        (8, 1, 1),
        (8, 13, 13),
        (8, 14, 13),
        (6, 4, 1),
        (7, 9, 5),
    ] {
        for count in [0, 1, most, most + 1, 33, 255] {
            let (mut p, mut qp) = sized(log_stride, agreed, 0);
            let (at, key) = p.d.region(64, 1);
            let mut wqe = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]).encode();
            wqe[2] = count as u8;
            for i in 0..13 {
                let sge = wqe::DATA_OFFSET + i * 16;
                let length: u32 = if i % 3 == 0 { 0 } else { 8 };
                wqe[sge..sge + 8].copy_from_slice(&at.to_le_bytes());
                wqe[sge + 8..sge + 12].copy_from_slice(&length.to_le_bytes());
                wqe[sge + 12..sge + 16].copy_from_slice(&key.to_le_bytes());
            }
            wqe[24..32].copy_from_slice(&at.to_le_bytes());
            // All data together are written to the 64 bytes at `at`. More bytes exceed the region.
            wqe[32..36].copy_from_slice(&key.to_le_bytes());
            let big = (1..count.min(13)).filter(|i| i % 3 != 0).count() * 8 > 64;
            let got = outcome(&mut p, &mut qp, &wqe);
            let expected = if count > most {
                refused(Syndrome::WqeSgeCount)
            } else if big {
                (
                    WcStatus::RemAccessErr,
                    Syndrome::NakRemoteAccess.to_raw().into(),
                )
            } else {
                (WcStatus::Success, 0)
            };
            assert_eq!(got, expected, "{count} of {agreed} in 2^{log_stride}");
        }
    }
}

#[test]
fn inline_data_are_limited_by_max_inline_and_by_the_stride() {
    // Length, elements, log of the stride, `max_inline`, and true if the WQE is valid.
    for (length, sges, log_stride, agreed, good) in [
        (0u32, 0, 8, 128, true),
        (0, 0, 8, 0, true),
        (1, 0, 8, 0, false),
        (128, 0, 8, 128, true),
        (129, 0, 8, 128, false),
        (16, 0, 6, 128, true),
        (17, 0, 6, 128, false),
        (80, 0, 7, 81, true),
        (81, 0, 7, 81, false),
        (8, 1, 8, 128, false),
        (0, 1, 8, 128, false),
        (u32::MAX, 0, 8, 128, false),
    ] {
        let (mut p, mut qp) = sized(log_stride, 4, agreed);
        let (at, key) = p.d.region(256, 1);
        let mut wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]).to(at, key);
        wr.flags |= send_flags::INLINE;
        let mut wqe = wr.encode();
        wqe[wqe::DATA_OFFSET..].fill(0x77);
        wqe[2] = sges;
        wqe[4..8].copy_from_slice(&length.to_le_bytes());
        let got = outcome(&mut p, &mut qp, &wqe);
        if !good {
            assert_eq!(
                got,
                refused(Syndrome::WqeInline),
                "{length} {sges} 2^{log_stride}"
            );
            continue;
        }
        assert_eq!(
            got,
            (WcStatus::Success, 0),
            "{length} {sges} 2^{log_stride}"
        );
        let there = p.d.bytes(at, 256);
        assert_eq!(there[..length as usize], vec![0x77; length as usize]);
        assert!(there[length as usize] != 0x77);
    }
    // The 8 bytes of an ATOMIC WRITE may be inline whatever `max_inline` is.
    for (length, bytes, expected) in [
        (8, 0, (WcStatus::Success, 0)),
        (8, 4, (WcStatus::Success, 0)),
        (4, 0, too_short()),
        (9, 0, refused(Syndrome::WqeInline)),
        (9, 16, too_short()),
    ] {
        let (mut p, mut qp) = sized(6, 1, bytes);
        let (at, key) = p.d.region(64, 1);
        let mut wr = SendWr::new(WqeOpcode::AtomicWrite, 1, &[]).to(at + 8, key);
        wr.flags |= send_flags::INLINE;
        let mut wqe = wr.encode();
        wqe[4] = length;
        wqe[wqe::DATA_OFFSET..][..8].fill(0x5a);
        assert_eq!(outcome(&mut p, &mut qp, &wqe), expected, "{length} {bytes}");
        let written = expected.0 == WcStatus::Success;
        assert_eq!(p.d.bytes(at + 8, 8) == [0x5a; 8], written);
    }
    // READs and atomics have no inline data, because their data come from the peer.
    for opcode in [
        WqeOpcode::RdmaRead,
        WqeOpcode::FetchAdd,
        WqeOpcode::CompareSwap,
    ] {
        let (mut p, mut qp) = sized(8, 4, 128);
        let mut wr = SendWr::new(opcode, 1, &[]);
        wr.flags |= send_flags::INLINE;
        let mut wqe = wr.encode();
        wqe[4] = 8;
        assert_eq!(outcome(&mut p, &mut qp, &wqe), refused(Syndrome::WqeInline));
    }
}

#[test]
fn a_destination_qpn_has_24_bits() {
    let mut p = Pair::new();
    let mut qp = running(&mut p, QpType::Ud, 0);
    let (at, key) = p.d.region(64, 1);
    p.d.post_recv(&mut qp, 10, &[(at, 64, key)]);
    let mut wqe = SendWr::new(WqeOpcode::Send, 1, &[]).encode();
    address(&mut wqe, qp.qpn | 0x5a00_0000);
    p.d.post_raw(&mut qp, &wqe);
    let mut done = p.d.drain(&mut p.cq_a);
    done.sort_by_key(|d| d.0);
    assert_eq!(done, [(1, WcStatus::Success), (10, WcStatus::Success)]);
}

#[test]
fn elements_of_a_receive_are_limited_by_max_recv_sge_and_by_the_stride() {
    for (count, agreed, good) in [
        (0u8, 0u8, true),
        (1, 0, false),
        (1, 1, true),
        (2, 1, false),
        (3, 3, true),
        (3, 32, true),
        (4, 32, false),
        (255, 32, false),
    ] {
        let mut p = Pair::new();
        let cq = p.cq_b.clone();
        let mut request = p.d.qp_request(&cq, &cq);
        request.max_recv_sge = agreed;
        p.b = p.d.create_qp_by(&request).unwrap();
        p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
        p.d.connect(&p.a, &p.b);
        p.d.post_recv(&mut p.b, 6, &[]);
        p.d.ram.write(p.b.rq + 8, &[count]).unwrap();
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
        p.d.run();
        let sent = p.d.poll(&mut p.cq_a).unwrap().status();
        let recv = p.d.poll(&mut p.cq_b).unwrap();
        let got = (recv.status(), recv.cqe.vendor_err.get());
        assert_eq!(recv.cqe.wr_id.get(), 6);
        if good {
            assert_eq!((sent, got), (WcStatus::Success, (WcStatus::Success, 0)));
        } else {
            let malformed = refused(Syndrome::RecvWqeMalformed);
            assert_eq!((sent, got), (WcStatus::RemOpErr, malformed), "{count}");
        }
    }
}

/// Returns true if a queue pair has failed because of its producer index. Checks that it has
/// reported one event then, and none otherwise.
fn failed(p: &mut Pair, qpn: u32) -> bool {
    let state = p.d.query_qp(qpn).attr.qp_state;
    let events = p.d.events(0);
    if state != QpState::Err.to_raw() {
        assert_eq!(events, []);
        return false;
    }
    let cause = u32::from(Syndrome::ProducerIndex.to_raw());
    let told: Vec<_> = events
        .iter()
        .map(|e| (e.kind, e.number, e.syndrome))
        .collect();
    assert_eq!(told, [(EventType::QpFatal, qpn, cause)]);
    true
}

#[test]
fn a_send_producer_index_moves_forward_within_the_ring() {
    // Requests posted, requests completed, producer index stored then, and true if it is valid.
    for (posted, done, next, good) in [
        (0, 0, 16, true),
        (0, 0, 17, false),
        (5, 5, 21, true),
        (5, 5, 22, false),
        (5, 0, 16, true),
        (5, 0, 17, false),
        (5, 0, 5, true),
        (5, 0, 4, false),
        (5, 0, 1, false),
        (5, 5, 4, false),
        (5u64, 0usize, u32::MAX, false),
    ] {
        let mut p = Pair::new();
        for i in 0..posted {
            // A request completes only if the peer has a receive.
            if done != 0 {
                p.d.post_recv(&mut p.b, 1, &[]);
            }
            let wr = SendWr::new(WqeOpcode::Send, i, &[]);
            p.d.post_send(&mut p.a, &wr);
        }
        assert_eq!(p.d.drain(&mut p.cq_a).len(), done);
        doorbell::post_send(&p.d.words(), p.a.slot.into(), next, || {});
        p.d.run();
        let qpn = p.a.qpn;
        assert_eq!(failed(&mut p, qpn), !good, "{posted} {done} {next}");
    }
}

#[test]
fn a_receive_producer_index_moves_forward_within_the_ring() {
    for (taken, next, good) in [
        (0, 16, true),
        (0, 17, false),
        (3, 19, true),
        (3, 20, false),
        (3, 2, false),
    ] {
        let mut p = Pair::new();
        for i in 0..taken {
            p.d.post_recv(&mut p.b, i, &[]);
            p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, i, &[]));
            p.d.run();
        }
        doorbell::post_recv(&p.d.words(), p.b.slot.into(), next, || {});
        p.d.drain(&mut p.cq_a);
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 9, &[]));
        let status = if good {
            WcStatus::Success
        } else {
            WcStatus::RemOpErr
        };
        assert_eq!(p.d.drain(&mut p.cq_a), [(9, status)], "{taken} {next}");
        let qpn = p.b.qpn;
        assert_eq!(failed(&mut p, qpn), !good, "{taken} {next}");
    }
}

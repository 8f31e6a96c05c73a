// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work queues: the operations of each type of queue pair, the fields of a WQE that the device
//! uses, and the limits of a producer index.

use super::*;
use crate::mock::{GuestWords, SendWr, WqeBytes};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus::{self, *};
use verbena_abi::ctx::{qp_mask as m, AddressVector, QpAttr, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{send_flags, SendWqe, WqeOpcode, DATA_OFFSET};
use zerocopy::IntoBytes;

/// Returns a device with one queue pair of a type in RTS, whose peer is on another machine.
fn one(kind: QpType) -> (Driver, QpHandle, CqHandle) {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut request = d.qp_request(&cq, &cq);
    request.qp_type = kind.to_raw();
    if kind == QpType::Gsi {
        (request.qpn, request.port) = (1.into(), 1);
    }
    let qp = d.create_qp_by(&request).unwrap();
    let connected = matches!(kind, QpType::Rc | QpType::Uc);
    let rc = |mask| if kind == QpType::Rc { mask } else { 0 };
    let key = if connected { m::ACCESS_FLAGS } else { m::QKEY };
    let port = if kind == QpType::Gsi { 0 } else { m::PORT };
    let path = if connected {
        m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN
    } else {
        0
    };
    for (to, mask) in [
        (QpState::Init, m::PKEY_INDEX | key | port),
        (
            QpState::Rtr,
            path | rc(m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER),
        ),
        (
            QpState::Rts,
            m::SQ_PSN | rc(m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC),
        ),
    ] {
        let attr = QpAttr {
            qp_state: to.to_raw(),
            port_num: 1,
            path_mtu: 3,
            dest_qpn: 77.into(),
            qkey: 5.into(),
            max_rd_atomic: 4,
            ..Default::default()
        };
        d.modify_av(qp.qpn, m::STATE | mask, attr, Driver::path(0, 8))
            .unwrap();
    }
    (d, qp, cq)
}

/// Posts a WQE to a new queue pair of a type. Returns status and `vendor_err` if it fails, and None
/// if it was sent.
fn outcome(kind: QpType, wqe: &WqeBytes) -> Option<(WcStatus, u32)> {
    let (mut d, mut qp, mut cq) = one(kind);
    d.post_raw(&mut qp, wqe);
    d.run();
    let sent = std::iter::from_fn(|| d.device.next_frame()).count();
    let done = d
        .poll(&mut cq)
        .map(|c| (c.status(), c.cqe.vendor_err.get()));
    match done {
        Some((Success, 0)) => None,
        None => {
            assert_eq!(sent, 1);
            None
        }
        bad => bad,
    }
}

fn op_err(cause: Syndrome) -> Option<(WcStatus, u32)> {
    Some((LocQpOpErr, cause.to_raw().into()))
}

fn bad_key(cause: Syndrome) -> Option<(WcStatus, u32)> {
    Some((WcStatus::MwBindErr, cause.to_raw().into()))
}

/// Returns the shortest valid WQE of an operation for a type.
fn shortest(kind: QpType, opcode: WqeOpcode) -> WqeBytes {
    let mut wqe = SendWr::new(opcode, 1, &[]).encode();
    if matches!(kind, QpType::Ud | QpType::Gsi) {
        let av = AddressVector {
            dest_qpn: 77.into(),
            qkey: 5.into(),
            pdn: 7.into(),
            ..Driver::path(0, 8)
        };
        wqe[DATA_OFFSET..][..48].copy_from_slice(av.as_bytes());
    }
    wqe
}

const KINDS: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi];

#[test]
fn each_type_refuses_operations_of_others() {
    use WqeOpcode::*;
    for kind in KINDS {
        for &opcode in WqeOpcode::ALL {
            let expected = match (kind, opcode) {
                (_, Send | SendImm) => None,
                (QpType::Rc | QpType::Uc, RdmaWrite | RdmaWriteImm) => None,
                (QpType::Rc, RdmaRead | SendInv) => None,
                // These need eight bytes and a valid key.
                (QpType::Rc, CompareSwap | FetchAdd | AtomicWrite) => continue,
                // The FLUSH names no placement.
                (QpType::Rc, Flush) => op_err(Syndrome::FlushType),
                // Only a privileged queue pair has this operation.
                (QpType::Rc | QpType::Uc, FastReg) => op_err(Syndrome::Privilege),
                // The keys in these requests do not exist.
                (QpType::Rc | QpType::Uc, LocalInv) => bad_key(Syndrome::KeyManagement),
                (QpType::Rc | QpType::Uc, BindMw) => bad_key(Syndrome::BindWindow),
                _ => op_err(Syndrome::WqeOpcodeTransport),
            };
            let got = outcome(kind, &shortest(kind, opcode));
            assert_eq!(got, expected, "{kind:?} {opcode:?}");
        }
        for unknown in [13, 14, 0x80, 0xff] {
            let mut wqe = shortest(kind, Send);
            wqe[0] = unknown;
            assert_eq!(outcome(kind, &wqe), op_err(Syndrome::WqeOpcodeUnknown));
        }
    }
}

#[test]
fn unused_fields_of_a_wqe_are_ignored() {
    for kind in KINDS {
        let mut wqe = shortest(kind, WqeOpcode::Send);
        for (at, len) in [
            (std::mem::offset_of!(SendWqe, port), 1),
            (std::mem::offset_of!(SendWqe, remote_srqn), 4),
            (std::mem::offset_of!(SendWqe, pkey_index), 2),
        ] {
            wqe[at..at + len].fill(0xff);
        }
        if matches!(kind, QpType::Ud | QpType::Gsi) {
            // LIDs, the static rate, path bits.
            wqe[DATA_OFFSET + 0x2c..][..4].fill(0xff);
        }
        assert_eq!(outcome(kind, &wqe), None, "{kind:?}");
        // Each flag that exists may be set, and every other bit is refused.
        for bit in 0..8 {
            let mut wqe = shortest(kind, WqeOpcode::Send);
            wqe[1] |= 1 << bit;
            let expected = if send_flags::ALL & 1 << bit != 0 {
                None
            } else {
                op_err(Syndrome::WqeFlags)
            };
            assert_eq!(outcome(kind, &wqe), expected, "{kind:?}, bit {bit}");
        }
    }
}

#[test]
fn elements_and_inline_data_have_the_limits_of_the_queue_pair() {
    // The queue pairs have four elements and 128 bytes of inline data. The elements here are empty.
    for kind in KINDS {
        for (count, expected) in [(4, None), (5, op_err(Syndrome::WqeSgeCount))] {
            let mut wqe = shortest(kind, WqeOpcode::Send);
            wqe[2] = count;
            assert_eq!(outcome(kind, &wqe), expected, "{kind:?}: {count}");
        }
        let inline = |length: u32, elements: u8| {
            let mut wqe = shortest(kind, WqeOpcode::Send);
            wqe[1] |= send_flags::INLINE;
            wqe[2] = elements;
            wqe[4..8].copy_from_slice(&length.to_le_bytes());
            outcome(kind, &wqe)
        };
        assert_eq!(inline(128, 0), None, "{kind:?}");
        for (length, elements) in [(129, 0), (u32::MAX, 0), (8, 1), (0, 1)] {
            assert_eq!(inline(length, elements), op_err(Syndrome::WqeInline));
        }
    }
    // READs and atomics have no inline data.
    for opcode in [WqeOpcode::RdmaRead, WqeOpcode::CompareSwap] {
        let mut wqe = shortest(QpType::Rc, opcode);
        wqe[1] |= send_flags::INLINE;
        assert_eq!(outcome(QpType::Rc, &wqe), op_err(Syndrome::WqeInline));
    }
}

/// Returns the state and the syndrome of a queue pair, and the events of event queue 0.
fn fate(p: &mut Pair, qpn: u32) -> (u8, u32, Vec<(EventType, u32)>) {
    let context = p.d.query_qp(qpn);
    let events = p.d.events(0);
    let events = events.iter().map(|e| (e.kind, e.syndrome)).collect();
    (context.attr.qp_state, context.syndrome.get(), events)
}

#[test]
fn a_send_producer_index_beyond_the_ring_or_back_is_an_error() {
    let cause = u32::from(Syndrome::ProducerIndex.to_raw());
    let (rts, err) = (QpState::Rts.to_raw(), QpState::Err.to_raw());
    let dead = (err, cause, vec![(EventType::QpFatal, cause)]);
    // Requests completed, requests posted and not completed, producer index stored then, and true
    // if it is valid.
    for (done, posted, stored, good) in [
        (0u32, 0u32, 16u32, true),
        (0, 0, 17, false),
        (0, 16, 16, true),
        (0, 16, 17, false),
        (3, 0, 19, true),
        (3, 0, 20, false),
        (3, 0, 2, false),
        (3, 0, u32::MAX, false),
        (3, 4, 6, false),
        (3, 4, 3, false),
        (3, 4, 8, true),
        (20, 0, 36, true),
        (20, 0, 37, false),
        (20, 0, 20 + (1 << 31), false),
    ] {
        let mut p = Pair::new();
        for i in 0..done {
            p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, i.into(), &[]));
            assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
        }
        // From here on no request is acknowledged.
        p.d.set_port(false);
        let slot = p.a.slot.into();
        doorbell::post_send(&p.d.words(), slot, done + posted, || {});
        p.d.run();
        doorbell::post_send(&p.d.words(), slot, stored, || {});
        p.d.run();
        let qpn = p.a.qpn;
        let got = fate(&mut p, qpn);
        let expected = if good { (rts, 0, vec![]) } else { dead.clone() };
        assert_eq!(got, expected, "{done} {posted} {stored:#x}");
        if good {
            assert_eq!(p.d.query_qp(qpn).sq_pi.get(), stored);
        } else {
            // All posted requests are flushed.
            let flushed = p.d.drain(&mut p.cq_a).len();
            assert!(flushed as u32 >= posted, "{done} {posted} {stored:#x}");
        }
    }
}

#[test]
fn a_receive_producer_index_beyond_the_ring_or_back_is_an_error() {
    let cause = u32::from(Syndrome::ProducerIndex.to_raw());
    for (taken, stored, good) in [
        (0u32, 16u32, true),
        (0, 17, false),
        (5, 21, true),
        (5, 22, false),
        (5, 4, false),
        (5, u32::MAX, false),
    ] {
        for shared in [false, true] {
            let mut p = Pair::new();
            let mut srq = p.share();
            if !shared {
                p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
            }
            p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
            p.d.connect(&p.a, &p.b);
            for i in 0..taken {
                if shared {
                    p.d.post_srq(&mut srq, i.into(), &[]);
                } else {
                    p.d.post_recv(&mut p.b, i.into(), &[]);
                }
                p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, i.into(), &[]));
                p.d.run();
            }
            p.d.events(0);
            p.d.drain(&mut p.cq_a);
            let slot = if shared { srq.slot } else { p.b.slot };
            doorbell::post_recv(&p.d.words(), slot.into(), stored, || {});
            p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 9, &[]));
            p.d.run();
            let status = if good { Success } else { RemOpErr };
            assert_eq!(
                p.d.drain(&mut p.cq_a),
                [(9, status)],
                "{taken} {stored} {shared}"
            );
            let b = p.b.qpn;
            let (state, _, events) = fate(&mut p, b);
            let expected = match (good, shared) {
                (true, _) => vec![],
                (false, false) => vec![(EventType::QpFatal, cause)],
                (false, true) => vec![(EventType::SrqErr, cause)],
            };
            assert_eq!(&events[..events.len().min(1)], expected, "{taken} {stored}");
            assert_eq!(state == QpState::Err.to_raw(), !good);
        }
    }
}

#[test]
fn indexes_wrap() {
    // The indexes begin shortly before they wrap, as in an SRQ that was used for a long time.
    let mut p = Pair::new();
    let mut srq = p.share();
    p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.connect(&p.a, &p.b);
    let start = u32::MAX - 5;
    srq.pi = start;
    p.d.device.shared.srqs.get_mut(srq.srqn).unwrap().ci = start;
    let words = GuestWords {
        ram: &p.d.ram,
        base: p.d.area,
    };
    words.store(doorbell::rq_producer(srq.slot.into()), start);
    for i in 0..40 {
        p.d.post_srq(&mut srq, i, &[]);
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, i, &[]));
        assert_eq!(p.d.drain(&mut p.cq_a), [(i, Success)]);
        assert_eq!(p.d.drain(&mut p.cq_b), [(i, Success)]);
    }
    let taken = p.d.words().load(doorbell::srq_consumer(srq.slot.into()));
    assert_eq!(taken, start.wrapping_add(40));
    assert_eq!(p.d.events(0), []);
}

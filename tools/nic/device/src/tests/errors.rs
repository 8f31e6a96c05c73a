// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Errors: a mistake of the guest leads to a status, a syndrome or an event, and affects no other
//! object.

use super::Pair;
use crate::mock::{SendWr, WqeBytes};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{access, mr_flags, qp_mask, QpAttr, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{FastRegSegment, WqeOpcode};

/// Posts one send and returns status and syndrome of its completion.
pub fn outcome(p: &mut Pair, wqe: &WqeBytes) -> (WcStatus, u32) {
    p.d.post_raw(&mut p.a, wqe);
    p.d.pass(3_000_000_000);
    let done = p.d.poll(&mut p.cq_a).unwrap();
    assert_eq!(p.d.query_qp(p.a.qpn).attr.qp_state, QpState::Err.to_raw());
    (done.status(), done.cqe.vendor_err.get())
}

fn expect(wqe: &WqeBytes, status: WcStatus, cause: Syndrome) {
    let got = outcome(&mut Pair::new(), wqe);
    assert_eq!(got, (status, cause.to_raw().into()));
}

#[test]
fn each_kind_of_malformed_wqe_has_its_syndrome() {
    let good = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]).encode();
    let with = |at: usize, value: u8| {
        let mut wqe = good;
        wqe[at] = value;
        wqe
    };
    let op = WcStatus::LocQpOpErr;
    expect(&with(0, 99), op, Syndrome::WqeOpcodeUnknown);
    expect(&with(1, 0x82), op, Syndrome::WqeFlags);
    expect(&with(2, 5), op, Syndrome::WqeSgeCount);
    expect(
        &with(0, WqeOpcode::FastReg.to_raw()),
        op,
        Syndrome::Privilege,
    );
    let mut inline = with(1, 0xa);
    inline[4] = 129;
    expect(&inline, op, Syndrome::WqeInline);
}

#[test]
fn local_keys_are_checked() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 8, key ^ 1)]);
    let got = outcome(&mut p, &wr.encode());
    let unknown = Syndrome::LkeyUnknown.to_raw().into();
    assert_eq!(got, (WcStatus::LocProtErr, unknown));
    for (addr, len) in [
        (at + 4090, 7),
        (at - 1, 2),
        (u64::MAX - 3, 8),
        (at, u32::MAX >> 1),
    ] {
        let mut p = Pair::new();
        let (_, key) = p.d.region(4096, 1);
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(addr, len, key)]);
        let got = outcome(&mut p, &wr.encode());
        let bounds = Syndrome::LkeyBounds.to_raw().into();
        assert_eq!(got, (WcStatus::LocProtErr, bounds), "{addr:#x} {len}");
    }
}

#[test]
fn unreachable_memory_of_a_key_is_reported_at_its_use() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    // CREATE_MR does not check that the memory of a key can be reached.
    let nowhere = 0x7701;
    p.d.create_mr(nowhere, 1 << 40, 4096, 0xf).unwrap();
    let to = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 64, key)]).to(1 << 40, nowhere);
    assert_eq!(
        outcome(&mut p, &to.encode()),
        (
            WcStatus::RemAccessErr,
            Syndrome::NakRemoteAccess.to_raw().into()
        )
    );
    let shown = p.d.query_qp(p.b.qpn);
    assert_eq!(
        shown.syndrome.get(),
        u32::from(Syndrome::RkeyUnreachable.to_raw())
    );
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    p.d.create_mr(nowhere, 1 << 40, 4096, 0xf).unwrap();
    let from = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(1 << 40, 64, nowhere)]).to(at, key);
    assert_eq!(
        outcome(&mut p, &from.encode()),
        (
            WcStatus::LocProtErr,
            Syndrome::LkeyUnreachable.to_raw().into()
        )
    );
}

#[test]
fn a_bad_rkey_is_an_event_at_the_responder() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 8, key)]).to(at, key ^ 1);
    let got = outcome(&mut p, &wr.encode());
    let nak = Syndrome::NakRemoteAccess.to_raw().into();
    assert_eq!(got, (WcStatus::RemAccessErr, nak));
    let events = p.d.events(0);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].kind, EventType::QpAccessErr);
    assert_eq!(events[0].number, p.b.qpn);
}

#[test]
fn a_receive_that_is_too_small_fails_both_sides() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    p.d.post_recv(&mut p.b, 5, &[(at, 100, key)]);
    let wr = SendWr::new(WqeOpcode::Send, 1, &[(at, 101, key)]);
    let got = outcome(&mut p, &wr.encode());
    assert_eq!(got.0, WcStatus::RemInvReqErr);
    assert_eq!(p.d.drain(&mut p.cq_b), [(5, WcStatus::LocLenErr)]);
}

#[test]
fn a_peer_without_receives_exceeds_the_rnr_retries() {
    let mut p = Pair::new();
    let wr = SendWr::new(WqeOpcode::Send, 1, &[]);
    let got = outcome(&mut p, &wr.encode());
    let cause = Syndrome::RnrRetryExceeded.to_raw().into();
    assert_eq!(got, (WcStatus::RnrRetryExcErr, cause));
}

#[test]
fn a_destroyed_peer_exceeds_the_retries() {
    let mut p = Pair::new();
    p.d.must(&DestroyQp {
        id: p.b.qpn.into(),
        ..Default::default()
    });
    let wr = SendWr::new(WqeOpcode::Send, 1, &[]);
    let got = outcome(&mut p, &wr.encode());
    let cause = Syndrome::RetryExceeded.to_raw().into();
    assert_eq!(got, (WcStatus::RetryExcErr, cause));
}

#[test]
fn err_flushes_posted_requests_and_later_ones() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    for i in 0..3 {
        p.d.post_recv(&mut p.a, 10 + i, &[(at, 8, key)]);
    }
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    let flushed =
        |ids: &[u64]| -> Vec<_> { ids.iter().map(|&i| (i, WcStatus::WrFlushErr)).collect() };
    assert_eq!(p.d.drain(&mut p.cq_a), flushed(&[10, 11, 12]));
    p.d.post_recv(&mut p.a, 13, &[(at, 8, key)]);
    assert_eq!(p.d.drain(&mut p.cq_a), flushed(&[13]));
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 14, &[]));
    assert_eq!(p.d.drain(&mut p.cq_a), flushed(&[14]));
    // While the device sleeps, a posted receive has to ring the doorbell so that it is flushed.
    assert!(p.d.device.fall_asleep(&p.d.ram));
    p.d.post_recv(&mut p.a, 15, &[(at, 8, key)]);
    assert_eq!(p.d.rings.get(), 1);
    assert_eq!(p.d.drain(&mut p.cq_a), flushed(&[15]));
}

#[test]
fn a_producer_index_beyond_the_ring_is_fatal_for_the_queue_pair_only() {
    let mut p = Pair::new();
    let slot = p.a.slot.into();
    doorbell::post_send(&p.d.words(), slot, 17, || {});
    p.d.run();
    let events = p.d.events(0);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].kind, EventType::QpFatal);
    assert_eq!(events[0].syndrome, Syndrome::ProducerIndex.to_raw().into());
    doorbell::post_send(&p.d.words(), slot, 0x8000_0000, || {});
    p.d.run();
    assert_eq!(p.d.events(0), []);
}

#[test]
fn a_queue_pair_in_err_works_again_after_reset() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    let bad = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 8, 0)]);
    outcome(&mut p, &bad.encode());
    p.d.move_to(p.a.qpn, QpState::Reset).unwrap();
    p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    for qp in [&mut p.a, &mut p.b] {
        (qp.sq_pi, qp.rq_pi) = (0, 0);
        p.d.words().store(doorbell::sq_producer(qp.slot.into()), 0);
        p.d.words().store(doorbell::rq_producer(qp.slot.into()), 0);
    }
    let (a, b) = (p.a.clone(), p.b.clone());
    p.d.connect(&a, &b);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 2, &[(at, 8, key)]).to(at + 64, key);
    p.d.post_send(&mut p.a, &wr);
    assert_eq!(p.d.drain(&mut p.cq_a), [(2, WcStatus::Success)]);
}

#[test]
fn commands_of_random_bytes_do_no_harm() {
    let mut p = Pair::new();
    p.d.watch = 16;
    let mut dice = 1u64;
    for _ in 0..20_000 {
        let mut payload = [0; PAYLOAD_SIZE];
        for byte in &mut payload {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = if dice >> 62 == 0 {
                (dice >> 33) as u8
            } else {
                (dice >> 61) as u8
            };
        }
        let opcode = (dice >> 40) as u16 % 0x80;
        let _ = p.d.raw_cmd(opcode, &payload);
    }
    p.d.pass(1_000_000);
}

#[test]
fn a_receive_that_cannot_be_written_fails_both_sides() {
    for (rights, length, cause) in [
        (0, 4096, Syndrome::LkeyAccess),
        (1, 50, Syndrome::LkeyBounds),
    ] {
        let mut p = Pair::new();
        let (at, key) = p.d.region(4096, 1);
        p.d.create_mr(0x5011, at, length, rights).unwrap();
        p.d.post_recv(&mut p.b, 5, &[(at, 100, 0x5011)]);
        let wr = SendWr::new(WqeOpcode::Send, 1, &[(at, 100, key)]);
        let got = outcome(&mut p, &wr.encode());
        let nak = Syndrome::NakRemoteOperational.to_raw().into();
        assert_eq!(got, (WcStatus::RemOpErr, nak));
        let done = p.d.poll(&mut p.cq_b).unwrap();
        assert_eq!(done.status(), WcStatus::LocProtErr);
        assert_eq!(done.cqe.vendor_err.get(), u32::from(cause.to_raw()));
        // The completion of the receive reports the error, so there is no event.
        assert_eq!(p.d.events(0), []);
    }
}

#[test]
fn a_disabled_operation_is_an_event_at_the_responder() {
    let mut p = Pair::new();
    let attr = QpAttr {
        qp_access_flags: access::REMOTE_READ.into(),
        ..Default::default()
    };
    p.d.modify(p.b.qpn, qp_mask::ACCESS_FLAGS, attr).unwrap();
    let (at, key) = p.d.region(4096, 1);
    let read = SendWr::new(WqeOpcode::RdmaRead, 7, &[(at, 8, key)]).to(at, key);
    p.d.post_send(&mut p.a, &read);
    assert_eq!(p.d.drain(&mut p.cq_a), [(7, WcStatus::Success)]);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 8, key)]).to(at, key);
    let got = outcome(&mut p, &wr.encode());
    let nak = Syndrome::NakInvalidRequest.to_raw().into();
    assert_eq!(got, (WcStatus::RemInvReqErr, nak));
    let events = p.d.events(0);
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].kind, events[0].number),
        (EventType::QpReqErr, p.b.qpn)
    );
}

#[test]
fn a_refused_write_with_immediate_fails_the_receive_that_it_took() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    p.d.post_recv(&mut p.b, 5, &[]);
    let wr = SendWr::new(WqeOpcode::RdmaWriteImm, 1, &[(at, 8, key)]).to(at, key ^ 1);
    let got = outcome(&mut p, &wr.encode());
    assert_eq!(got.0, WcStatus::RemAccessErr);
    assert_eq!(p.d.drain(&mut p.cq_b), [(5, WcStatus::LocAccessErr)]);
    assert_eq!(p.d.events(0), []);
}

#[test]
fn a_key_is_invalid_after_its_region_is_destroyed() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    p.d.must(&DestroyMr {
        id: key.into(),
        ..Default::default()
    });
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 8, key)]);
    let got = outcome(&mut p, &wr.encode());
    let unknown = Syndrome::LkeyUnknown.to_raw().into();
    assert_eq!(got, (WcStatus::LocProtErr, unknown));
    // The same index with another tag is another key.
    p.d.create_mr(key ^ 2, at, 4096, 0xf).unwrap();
}

#[test]
fn a_fast_registration_is_valid_until_it_is_invalidated() {
    let mut p = Pair::new();
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    request.flags = QP_PRIVILEGED;
    p.a = p.d.create_qp_by(&request).unwrap();
    p.b = p.d.create_qp(&p.cq_b.clone(), &p.cq_b.clone());
    p.d.connect(&p.a.clone(), &p.b.clone());
    let (at, good) = p.d.region(4096, 1);
    let key = 0x60 << 8;
    p.d.must(&CreateMr {
        key: key.into(),
        pdn: 7.into(),
        flags: mr_flags::FAST_REG.into(),
        ..Default::default()
    });
    let key = key | 0x42;
    let segment = FastRegSegment {
        key: key.into(),
        access: 0xf.into(),
        iova: 0x1000.into(),
        length: 4096.into(),
        pages: crate::mock::flat(at),
        ..Default::default()
    };
    let mut register = SendWr::new(WqeOpcode::FastReg, 1, &[]).encode();
    register[48..96].copy_from_slice(zerocopy::IntoBytes::as_bytes(&segment));
    p.d.post_raw(&mut p.a, &register);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 2, &[(0x1000, 64, key)]).to(at + 64, good);
    p.d.post_send(&mut p.a, &write);
    let mut invalidate = SendWr::new(WqeOpcode::LocalInv, 3, &[]);
    invalidate.imm = key.to_le_bytes();
    p.d.post_send(&mut p.a, &invalidate);
    // A second invalidation succeeds, because the peer may have invalidated the key already.
    invalidate.wr_id = 4;
    p.d.post_send(&mut p.a, &invalidate);
    let ok = WcStatus::Success;
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, ok), (2, ok), (3, ok), (4, ok)]);
    assert_eq!(p.d.bytes(at, 64), p.d.bytes(at + 64, 64));
    let got = outcome(&mut p, &write.encode());
    assert_eq!(got.0, WcStatus::LocProtErr);
}

#[test]
fn a_privileged_queue_pair_reaches_all_of_memory() {
    let mut p = Pair::new();
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    request.flags = QP_PRIVILEGED;
    p.a = p.d.create_qp_by(&request).unwrap();
    p.b = p.d.create_qp(&p.cq_b.clone(), &p.cq_b.clone());
    p.d.connect(&p.a.clone(), &p.b.clone());
    let (at, key) = p.d.region(4096, 1);
    let lkey = crate::config::LOCAL_DMA_LKEY;
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 64, lkey)]).to(at + 64, key);
    p.d.post_send(&mut p.a, &wr);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
    // The key is not valid as a remote key.
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 64, key)]).to(at, lkey);
    assert_eq!(outcome(&mut p, &wr.encode()).0, WcStatus::RemAccessErr);
}

#[test]
fn a_fast_registration_that_reaches_into_the_next_wqe_is_malformed() {
    let mut p = Pair::new();
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    request.flags = QP_PRIVILEGED;
    request.log_sq_stride = 6;
    p.a = p.d.create_qp_by(&request).unwrap();
    p.b = p.d.create_qp(&p.cq_b.clone(), &p.cq_b.clone());
    p.d.connect(&p.a.clone(), &p.b.clone());
    let register = SendWr::new(WqeOpcode::FastReg, 1, &[]).encode();
    let got = outcome(&mut p, &register);
    let cause = Syndrome::WqeSgeCount.to_raw();
    assert_eq!(got, (WcStatus::LocQpOpErr, cause.into()));
}

#[test]
fn moves_to_err_and_reset_take_no_attributes() {
    let mut p = Pair::new();
    for state in [QpState::Err, QpState::Reset] {
        let attr = QpAttr {
            qp_state: state.to_raw(),
            cur_qp_state: QpState::Rts.to_raw(),
            ..Default::default()
        };
        for surplus in [
            qp_mask::CUR_STATE,
            qp_mask::QKEY,
            qp_mask::AV,
            qp_mask::TIMEOUT,
            1 << 31,
        ] {
            let e = p.d.modify(p.a.qpn, qp_mask::STATE | surplus, attr);
            assert_eq!(e.unwrap_err().syndrome, Syndrome::CmdAttribute);
        }
        assert_eq!(p.d.query_qp(p.a.qpn).attr.qp_state, QpState::Rts.to_raw());
    }
    for state in [QpState::Err, QpState::Reset] {
        p.d.move_to(p.a.qpn, state).unwrap();
    }
}

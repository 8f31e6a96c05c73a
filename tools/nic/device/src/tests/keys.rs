// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keys: fast registration, invalidation, and the queue pairs that may use a key.

use super::errors::outcome;
use super::Pair;
use crate::memory::GuestMemory;
use crate::mock::{SendWr, WqeBytes};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{mr_flags, MemoryEntry, MrState};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{FastRegSegment, WqeOpcode};
use zerocopy::{FromBytes, IntoBytes};

/// Returns a pair of privileged queue pairs. The second one belongs to another protection domain.
pub(super) fn privileged() -> Pair {
    let mut p = Pair::new();
    for pdn in [7, 8] {
        let cq = if pdn == 7 { &p.cq_a } else { &p.cq_b }.clone();
        let mut request = p.d.qp_request(&cq, &cq);
        request.flags = QP_PRIVILEGED;
        request.pdn = pdn.into();
        let qp = p.d.create_qp_by(&request).unwrap();
        *(if pdn == 7 { &mut p.a } else { &mut p.b }) = qp;
    }
    p.d.connect(&p.a.clone(), &p.b.clone());
    p
}

/// Creates a key for fast registration. Returns it with the WQE that registers memory from `offset`
/// on.
fn fast_registration(p: &mut Pair, pdn: u32, at: u64, offset: u64) -> (u32, WqeBytes) {
    let key = p.d.number() << 8;
    p.d.must(&CreateMr {
        key: key.into(),
        pdn: pdn.into(),
        flags: mr_flags::FAST_REG.into(),
        ..Default::default()
    });
    let segment = FastRegSegment {
        key: key.into(),
        access: 0xf.into(),
        iova: 0x1000.into(),
        length: 1024.into(),
        page_offset: offset.into(),
        pages: crate::mock::flat(at),
    };
    let mut register = SendWr::new(WqeOpcode::FastReg, 1, &[]).encode();
    register[48..96].copy_from_slice(zerocopy::IntoBytes::as_bytes(&segment));
    (key, register)
}

#[test]
fn a_fast_registration_is_checked_like_a_region() {
    type Change = fn(&mut FastRegSegment);
    let changes: &[(Change, bool)] = &[
        (|_| {}, true),
        (|s| s.access = 0x3f.into(), true),
        (|s| s.access = 0x40.into(), false),
        (|s| s.iova = (u64::MAX - 1024).into(), true),
        (|s| s.iova = (u64::MAX - 1023).into(), false),
        (|s| s.page_offset = (u64::MAX - 1023).into(), false),
        (|s| s.length = (1 << 47).into(), true),
        (|s| s.length = ((1u64 << 47) + 1).into(), false),
        (|s| s.pages.num_pages = 2.into(), false),
        (|s| s.pages.levels = 3, false),
        (|s| s.key = (s.key.get() ^ 0x55).into(), true),
        (|s| s.key = (s.key.get() + 0x100).into(), false),
        (|s| s.key = 0x5a.into(), false),
    ];
    for (i, (change, good)) in changes.iter().enumerate() {
        let mut p = privileged();
        let (at, _) = p.d.region(4096, 1);
        let (_, mut register) = fast_registration(&mut p, 7, at, 0);
        let mut segment = FastRegSegment::read_from_bytes(&register[48..96]).unwrap();
        change(&mut segment);
        register[48..96].copy_from_slice(segment.as_bytes());
        p.d.post_raw(&mut p.a, &register);
        p.d.run();
        let done = p.d.poll(&mut p.cq_a).unwrap();
        let expected = if *good {
            WcStatus::Success
        } else {
            WcStatus::MwBindErr
        };
        assert_eq!(done.status(), expected, "case {i}");
        if *good {
            // A valid key cannot be registered again.
            p.d.post_raw(&mut p.a, &register);
            p.d.run();
            let again = p.d.poll(&mut p.cq_a).unwrap();
            assert_eq!(again.status(), WcStatus::MwBindErr, "case {i}");
            let cause = u32::from(Syndrome::KeyManagement.to_raw());
            assert_eq!(again.cqe.vendor_err.get(), cause);
        }
    }
    // A key of another domain is refused, and so is one that is not for fast registration.
    let mut p = privileged();
    let (at, plain) = p.d.region(4096, 1);
    let (_, register) = fast_registration(&mut p, 8, at, 0);
    p.d.post_raw(&mut p.a, &register);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::MwBindErr)]);
    let mut p = privileged();
    let (at, _) = p.d.region(4096, 1);
    let (_, mut register) = fast_registration(&mut p, 7, at, 0);
    register[48..52].copy_from_slice(&plain.to_le_bytes());
    p.d.post_raw(&mut p.a, &register);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::MwBindErr)]);
}

#[test]
fn a_fast_registration_begins_where_its_offset_says() {
    let mut p = privileged();
    let (at, _) = p.d.region(4096, 1);
    let (key, register) = fast_registration(&mut p, 8, at, 0x80);
    p.d.post_raw(&mut p.b, &register);
    assert_eq!(p.d.drain(&mut p.cq_b), [(1, WcStatus::Success)]);
    // The queue pair of the key's domain writes the bytes to its peer.
    let (to, _) = p.d.region(4096, 2);
    let (far, reachable) = fast_registration(&mut p, 7, to, 0);
    p.d.post_raw(&mut p.a, &reachable);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 2, &[(0x1000, 64, key)]).to(0x1000, far);
    p.d.post_send(&mut p.b, &write);
    assert_eq!(p.d.drain(&mut p.cq_b), [(2, WcStatus::Success)]);
    assert_eq!(p.d.bytes(to, 64), p.d.bytes(at + 0x80, 64));
}

#[test]
fn a_key_of_another_protection_domain_is_not_invalidated() {
    let mut p = privileged();
    let (at, _) = p.d.region(4096, 1);
    let (key, register) = fast_registration(&mut p, 8, at, 0);
    p.d.post_raw(&mut p.b, &register);
    assert_eq!(p.d.drain(&mut p.cq_b), [(1, WcStatus::Success)]);
    let mut invalidate = SendWr::new(WqeOpcode::LocalInv, 2, &[]);
    invalidate.imm = key.to_le_bytes();
    p.d.post_send(&mut p.a, &invalidate);
    assert_eq!(p.d.drain(&mut p.cq_a), [(2, WcStatus::MwBindErr)]);
}

#[test]
fn a_deadline_can_become_earlier() {
    let mut p = Pair::new();
    let (at, key) = p.d.region(64, 1);
    // The ACK timer is set for 4 ms. Then an RNR NAK asks for 10 us.
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
    p.d.run();
    p.d.post_recv(&mut p.b, 2, &[(at, 64, key)]);
    p.d.pass(100_000);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
}

#[test]
fn only_peers_and_privileged_queue_pairs_use_a_privileged_region() {
    let mut p = Pair::new();
    let (at, plain) = p.d.region(4096, 1);
    let key = 0x7701;
    p.d.must(&CreateMr {
        key: key.into(),
        pdn: 7.into(),
        access: 0xf.into(),
        flags: mr_flags::PRIVILEGED.into(),
        iova: at.into(),
        length: 4096.into(),
        pages: crate::mock::flat(at),
        ..Default::default()
    });
    let to = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 64, plain)]).to(at + 64, key);
    p.d.post_send(&mut p.a, &to);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
    let from = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 64, key)]).to(at + 64, plain);
    let refused = u32::from(Syndrome::LkeyAccess.to_raw());
    assert_eq!(
        outcome(&mut p, &from.encode()),
        (WcStatus::LocProtErr, refused)
    );
}

#[test]
fn an_ordinary_region_is_not_invalidated() {
    for opcode in [WqeOpcode::LocalInv, WqeOpcode::SendInv] {
        let mut p = privileged();
        let (_, ours) = p.d.region(4096, 1);
        let theirs = 0x7701;
        p.d.must(&CreateMr {
            key: theirs.into(),
            pdn: 8.into(),
            access: 0xf.into(),
            length: 64.into(),
            pages: crate::mock::flat(p.d.area),
            ..Default::default()
        });
        let key = if opcode == WqeOpcode::LocalInv {
            ours
        } else {
            theirs
        };
        p.d.post_recv(&mut p.b, 9, &[]);
        let mut wr = SendWr::new(opcode, 1, &[]);
        wr.imm = key.to_le_bytes();
        p.d.post_send(&mut p.a, &wr);
        let (sent, received) = (p.d.drain(&mut p.cq_a), p.d.drain(&mut p.cq_b));
        if opcode == WqeOpcode::LocalInv {
            assert_eq!(sent, [(1, WcStatus::MwBindErr)]);
        } else {
            assert_eq!(received, [(9, WcStatus::MwBindErr)]);
        }
        let at = p.d.table(Table::Mpt) + u64::from(key >> 8) * size_of::<MemoryEntry>() as u64;
        let entry: MemoryEntry = p.d.ram.read_struct(at).unwrap();
        assert_eq!(entry.state, MrState::Valid.to_raw(), "{opcode:?}");
    }
}

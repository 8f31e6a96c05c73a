// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory windows: the access that a bind grants, and the binds that are refused.

mod refused;

use super::Pair;
use crate::memory::GuestMemory;
use crate::mock::{Driver, SendWr};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{access, mr_flags, MemoryEntry, MrState, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{self, BindSegment, WqeOpcode};
use zerocopy::IntoBytes;

/// Protection domain of the mock's queue pairs.
const PD: u32 = 7;
const REGION: u32 = 0x50_11;
const LENGTH: u64 = 8192;
const REMOTE: u32 = access::REMOTE_WRITE | access::REMOTE_READ;

/// Parameters of a bind.
#[derive(Clone, Copy)]
struct Bind {
    key: u32,
    region: u32,
    addr: u64,
    length: u64,
    access: u32,
}

/// The second queue pair, B, has a region and windows. The first one, A, is its peer.
struct Rig {
    p: Pair,
    /// Address of the region, which is the same in memory and in work requests.
    at: u64,
}

impl Rig {
    fn new() -> Self {
        let mut p = Pair::new();
        let at = p.d.alloc(LENGTH);
        let rights = access::LOCAL_WRITE | access::MW_BIND;
        region(&mut p.d, REGION, PD, rights, at);
        Self { p, at }
    }

    fn bind(&self) -> Bind {
        Bind {
            key: 0x60_02,
            region: REGION,
            addr: self.at + 100,
            length: 50,
            access: REMOTE,
        }
    }

    /// Executes a bind of B. Returns its syndrome if it fails.
    fn bound(&mut self, bind: Bind) -> Result<(), Syndrome> {
        let mut wqe = SendWr::new(WqeOpcode::BindMw, 9, &[])
            .to(bind.addr, bind.key)
            .encode();
        let segment = BindSegment {
            length: bind.length.into(),
            region: bind.region.into(),
            access: bind.access.into(),
        };
        let end = wqe::BIND_OFFSET + size_of::<BindSegment>();
        wqe[wqe::BIND_OFFSET..end].copy_from_slice(segment.as_bytes());
        self.p.d.post_raw(&mut self.p.b, &wqe);
        self.done(WcStatus::MwBindErr)
    }

    /// Polls the completion of B's request. Returns its syndrome if it has failed, which has to be
    /// with the status `bad`.
    fn done(&mut self, bad: WcStatus) -> Result<(), Syndrome> {
        self.p.d.run();
        let done = self.p.d.poll(&mut self.p.cq_b).expect("a completion");
        if done.status() == WcStatus::Success {
            return Ok(());
        }
        assert_eq!(done.status(), bad);
        let cause = Syndrome::from_raw(done.cqe.vendor_err.get() as u16).expect("a cause");
        self.again();
        Err(cause)
    }

    /// Executes a WRITE or READ of one byte by A. Returns the syndrome in B's context if it fails.
    fn used(&mut self, opcode: WqeOpcode, addr: u64, key: u32) -> Result<(), Syndrome> {
        let (local, lkey) = (self.at + 4096, 0x44_00);
        let wr = SendWr::new(opcode, 8, &[(local, 1, lkey)]).to(addr, key);
        self.p.d.post_send(&mut self.p.a, &wr);
        self.p.d.run();
        let done = self.p.d.poll(&mut self.p.cq_a).expect("a completion");
        if done.status() == WcStatus::Success {
            return Ok(());
        }
        assert_eq!(done.status(), WcStatus::RemAccessErr);
        let cause = self.p.d.query_qp(self.p.b.qpn).syndrome.get();
        self.again();
        Err(Syndrome::from_raw(cause as u16).expect("a cause"))
    }

    /// Resets both queue pairs, drops their posts and completions, and connects them again.
    fn again(&mut self) {
        for qp in [&mut self.p.a, &mut self.p.b] {
            self.p.d.move_to(qp.qpn, QpState::Reset).unwrap();
            (qp.sq_pi, qp.rq_pi) = (0, 0);
            let slot = qp.slot.into();
            self.p.d.words().store(doorbell::sq_producer(slot), 0);
            self.p.d.words().store(doorbell::rq_producer(slot), 0);
        }
        while self.p.d.poll(&mut self.p.cq_a).is_some() {}
        while self.p.d.poll(&mut self.p.cq_b).is_some() {}
        self.p.d.connect(&self.p.a, &self.p.b);
    }

    fn entry(&self, key: u32) -> MemoryEntry {
        let size = size_of::<MemoryEntry>() as u64;
        let at = self.p.d.table(Table::Mpt) + u64::from(key >> 8) * size;
        self.p.d.ram.read_struct(at).unwrap()
    }
}

fn region(d: &mut Driver, key: u32, pdn: u32, rights: u32, at: u64) {
    d.must(&CreateMr {
        key: key.into(),
        pdn: pdn.into(),
        access: rights.into(),
        iova: at.into(),
        length: LENGTH.into(),
        pages: crate::mock::flat(at),
        ..Default::default()
    });
}

fn window(d: &mut Driver, key: u32, pdn: u32, kind: u32) {
    d.must(&CreateMr {
        key: key.into(),
        pdn: pdn.into(),
        flags: kind.into(),
        ..Default::default()
    });
}

/// Returns a rig with a window of a type, and with a region for the local data of A.
fn with(kind: u32) -> Rig {
    let mut rig = Rig::new();
    region(&mut rig.p.d, 0x44_00, PD, access::LOCAL_WRITE, rig.at);
    window(&mut rig.p.d, 0x60_01, PD, kind);
    rig
}

#[test]
fn a_window_of_type_1_can_be_bound_again() {
    let mut rig = with(mr_flags::WINDOW_1);
    let bind = rig.bind();
    let inside = bind.addr + 49;
    assert_eq!(
        rig.used(WqeOpcode::RdmaWrite, inside, 0x60_01),
        Err(Syndrome::RkeyUnknown)
    );
    rig.bound(bind).unwrap();
    let told = rig.entry(0x60_02);
    assert_eq!(
        (told.key.get(), told.state),
        (0x60_02, MrState::Valid.to_raw())
    );
    assert_eq!((told.region.get(), told.length.get()), (REGION, 50));
    assert_eq!(rig.entry(REGION).windows.get(), 1);
    rig.used(WqeOpcode::RdmaWrite, inside, 0x60_02).unwrap();
    rig.used(WqeOpcode::RdmaRead, bind.addr, 0x60_02).unwrap();
    for (addr, key, cause) in [
        (inside + 1, 0x60_02, Syndrome::RkeyBounds),
        (bind.addr - 1, 0x60_02, Syndrome::RkeyBounds),
        (inside, 0x60_01, Syndrome::RkeyUnknown),
        // The key of the region grants no remote access.
        (inside, REGION, Syndrome::RkeyAccess),
    ] {
        assert_eq!(rig.used(WqeOpcode::RdmaWrite, addr, key), Err(cause));
    }
    // The window is bound to another range, with other rights and another tag.
    let other = Bind {
        key: 0x60_03,
        addr: rig.at,
        length: LENGTH,
        access: access::REMOTE_READ,
        ..bind
    };
    rig.bound(other).unwrap();
    assert_eq!(rig.entry(REGION).windows.get(), 1);
    rig.used(WqeOpcode::RdmaRead, rig.at + LENGTH - 1, 0x60_03)
        .unwrap();
    for (key, cause) in [
        (0x60_03, Syndrome::RkeyAccess),
        (0x60_02, Syndrome::RkeyUnknown),
    ] {
        assert_eq!(rig.used(WqeOpcode::RdmaWrite, rig.at, key), Err(cause));
    }
    // A bind of length 0 unbinds the window.
    let nothing = Bind {
        key: 0x60_04,
        length: 0,
        region: 0,
        ..other
    };
    rig.bound(nothing).unwrap();
    assert_eq!(rig.entry(REGION).windows.get(), 0);
    for key in [0x60_03, 0x60_04] {
        let unknown = Err(Syndrome::RkeyUnknown);
        assert_eq!(rig.used(WqeOpcode::RdmaRead, rig.at, key), unknown);
    }
}

fn invalidate(rig: &mut Rig, key: u32) -> Result<(), Syndrome> {
    let mut wr = SendWr::new(WqeOpcode::LocalInv, 7, &[]);
    wr.imm = key.to_le_bytes();
    rig.p.d.post_send(&mut rig.p.b, &wr);
    rig.done(WcStatus::MwBindErr)
}

#[test]
fn a_window_of_type_2_belongs_to_a_queue_pair_until_it_is_invalidated() {
    let mut rig = with(mr_flags::WINDOW_2);
    let bind = rig.bind();
    assert_eq!(invalidate(&mut rig, 0x60_01), Err(Syndrome::KeyManagement));
    rig.bound(bind).unwrap();
    assert_eq!(rig.entry(0x60_02).qpn.get(), rig.p.b.qpn);
    rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_02).unwrap();
    // The window cannot be bound again before it is invalidated.
    let again = Bind {
        key: 0x60_03,
        ..bind
    };
    assert_eq!(rig.bound(again), Err(Syndrome::BindWindow));
    rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_02).unwrap();
    // Another queue pair of the same domain can neither be accessed through the window nor
    // invalidate it.
    let (cq_a, cq_b) = (rig.p.cq_a.clone(), rig.p.cq_b.clone());
    let (a, b) = (
        rig.p.d.create_qp(&cq_a, &cq_a),
        rig.p.d.create_qp(&cq_b, &cq_b),
    );
    rig.p.d.connect(&a, &b);
    let old_a = std::mem::replace(&mut rig.p.a, a);
    let old_b = std::mem::replace(&mut rig.p.b, b);
    let stranger = Err(Syndrome::RkeyQp);
    assert_eq!(rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_02), stranger);
    assert_eq!(rig.used(WqeOpcode::RdmaRead, bind.addr, 0x60_02), stranger);
    assert_eq!(invalidate(&mut rig, 0x60_02), Err(Syndrome::KeyManagement));
    (rig.p.a, rig.p.b) = (old_a, old_b);
    rig.used(WqeOpcode::RdmaRead, bind.addr, 0x60_02).unwrap();
    invalidate(&mut rig, 0x60_02).unwrap();
    assert_eq!(rig.entry(REGION).windows.get(), 0);
    assert_eq!(
        rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_02),
        Err(Syndrome::RkeyUnknown)
    );
    rig.bound(again).unwrap();
    rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_03).unwrap();
    // The peer invalidates the window.
    let mut send = SendWr::new(WqeOpcode::SendInv, 6, &[]);
    send.imm = 0x60_03u32.to_le_bytes();
    rig.p.d.post_recv(&mut rig.p.b, 5, &[]);
    rig.p.d.post_send(&mut rig.p.a, &send);
    rig.done(WcStatus::MwBindErr).unwrap();
    let done = rig.p.d.drain(&mut rig.p.cq_a);
    assert_eq!(done, [(6, WcStatus::Success)]);
    assert_eq!(rig.entry(REGION).windows.get(), 0);
    assert_eq!(
        rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_03),
        Err(Syndrome::RkeyUnknown)
    );
}

#[test]
fn a_window_is_not_valid_for_a_new_queue_pair_of_the_same_number() {
    let mut rig = with(mr_flags::WINDOW_2);
    let bind = rig.bind();
    rig.bound(bind).unwrap();
    let mut request = rig.p.d.qp_request(&rig.p.cq_b.clone(), &rig.p.cq_b.clone());
    rig.p.d.must(&DestroyQp {
        id: rig.p.b.qpn.into(),
        ..Default::default()
    });
    request.qpn = rig.p.b.qpn.into();
    rig.p.b = rig.p.d.create_qp_by(&request).unwrap();
    rig.again();
    assert_eq!(
        rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_02),
        Err(Syndrome::RkeyQp)
    );
}

#[test]
fn a_zero_based_window_begins_at_0() {
    let mut rig = with(mr_flags::WINDOW_2);
    let bind = Bind {
        access: REMOTE | access::ZERO_BASED,
        ..rig.bind()
    };
    rig.bound(bind).unwrap();
    let (at, there) = (rig.at + 4096, bind.addr);
    rig.p.d.ram.write(at, &[0xab]).unwrap();
    rig.used(WqeOpcode::RdmaWrite, 0, 0x60_02).unwrap();
    assert_eq!(rig.p.d.bytes(there, 1), [0xab]);
    rig.used(WqeOpcode::RdmaWrite, 49, 0x60_02).unwrap();
    let beyond = Err(Syndrome::RkeyBounds);
    assert_eq!(rig.used(WqeOpcode::RdmaWrite, 50, 0x60_02), beyond);
    assert_eq!(rig.used(WqeOpcode::RdmaWrite, bind.addr, 0x60_02), beyond);
}

#[test]
fn a_window_is_not_a_local_key() {
    let mut rig = with(mr_flags::WINDOW_1);
    let bind = rig.bind();
    rig.bound(bind).unwrap();
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 3, &[(bind.addr, 4, 0x60_02)]);
    rig.p.d.post_send(&mut rig.p.b, &wr);
    assert_eq!(rig.done(WcStatus::LocProtErr), Err(Syndrome::LkeyUnknown));
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keys: each use of a key, with each error that the use can have.

use super::Pair;
use crate::config::LOCAL_DMA_LKEY;
use crate::mock::{Driver, SendWr};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{access, mr_flags, QpState};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{self, WqeOpcode};

/// Use of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Source of an RDMA WRITE.
    Gather,
    /// Target of an RDMA READ.
    Fetch,
    /// Buffer of a receive.
    Receive,
    /// Target of an RDMA WRITE.
    Write,
    /// Source of an RDMA READ.
    Read,
    /// Word of an atomic.
    Atomic,
}

const USES: [Use; 6] = [
    Use::Gather,
    Use::Fetch,
    Use::Receive,
    Use::Write,
    Use::Read,
    Use::Atomic,
];

impl Use {
    /// Returns the access right that the use needs.
    fn right(self) -> u32 {
        match self {
            Use::Gather => 0,
            Use::Fetch | Use::Receive => access::LOCAL_WRITE,
            Use::Write => access::REMOTE_WRITE,
            Use::Read => access::REMOTE_READ,
            Use::Atomic => access::REMOTE_ATOMIC,
        }
    }

    fn is_local(self) -> bool {
        matches!(self, Use::Gather | Use::Fetch | Use::Receive)
    }
}

/// All access rights that the uses need.
const ALL_ACCESS: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// Length of the region, and offset of its first byte in its pages.
const LENGTH: u32 = 1024;
const OFFSET: u64 = 512;
/// First address and key of the region.
const IOVA: u64 = 0x7000_0000;
const KEY: u32 = 0x66 << 8 | 0x21;

/// A pair, pages for a region, and other memory with its key.
struct Scene {
    p: Pair,
    pages: u64,
    other: (u64, u32),
}

impl Scene {
    fn new(rights: u32) -> Self {
        let mut scene = Self::bare(0);
        scene.create(KEY, 7, rights, 0);
        scene
    }

    /// Creates a scene without a region. The queue pairs have these flags.
    fn bare(flags: u8) -> Self {
        let mut p = Pair::on(Driver::new());
        if flags != 0 {
            let mut make = |cq: &crate::mock::CqHandle| {
                let mut request = p.d.qp_request(cq, cq);
                request.flags = flags;
                p.d.create_qp_by(&request).unwrap()
            };
            let (a, b) = (make(&p.cq_a.clone()), make(&p.cq_b.clone()));
            (p.a, p.b) = (a, b);
            p.d.connect(&p.a, &p.b);
        }
        let (pages, _) = p.d.region(8192, 3);
        let other = p.d.region(4096, 4);
        Self { p, pages, other }
    }

    fn create(&mut self, key: u32, pdn: u32, rights: u32, flags: u32) {
        self.p.d.must(&CreateMr {
            key: key.into(),
            pdn: pdn.into(),
            access: rights.into(),
            flags: flags.into(),
            iova: IOVA.into(),
            length: u64::from(LENGTH).into(),
            page_offset: OFFSET.into(),
            pages: crate::mock::flat(self.pages),
        });
    }

    fn destroy(&mut self) {
        self.p.d.must(&DestroyMr {
            id: KEY.into(),
            ..Default::default()
        });
    }

    /// Uses a key. Returns the syndrome if that fails.
    fn attempt(&mut self, what: Use, addr: u64, length: u32, key: u32) -> Option<u32> {
        let (p, (at, good)) = (&mut self.p, self.other);
        let opcode = match what {
            Use::Gather | Use::Write => WqeOpcode::RdmaWrite,
            Use::Fetch | Use::Read => WqeOpcode::RdmaRead,
            Use::Receive => WqeOpcode::Send,
            Use::Atomic => WqeOpcode::FetchAdd,
        };
        let (ours, theirs) = if matches!(what, Use::Gather | Use::Fetch) {
            ((addr, length, key), (at, good))
        } else {
            ((at, length, good), (addr, key))
        };
        let mut wqe = SendWr::new(opcode, 1, &[ours])
            .to(theirs.0, theirs.1)
            .encode();
        if what == Use::Atomic {
            wqe.copy_within(
                wqe::DATA_OFFSET..wqe::DATA_OFFSET + 16,
                wqe::DATA_OFFSET_ATOMIC,
            );
            wqe[wqe::DATA_OFFSET..wqe::DATA_OFFSET_ATOMIC].fill(0);
        }
        if what == Use::Receive {
            p.d.post_recv(&mut p.b, 2, &[(addr, length, key)]);
        }
        p.d.post_raw(&mut p.a, &wqe);
        p.d.run();
        let done = p.d.poll(&mut p.cq_a).unwrap();
        let events = p.d.events(0);
        if done.status() == WcStatus::Success {
            assert!(events.is_empty(), "{what:?}");
            return None;
        }
        let (status, cause) = match what {
            Use::Gather | Use::Fetch => (WcStatus::LocProtErr, done.cqe.vendor_err.get()),
            Use::Receive => {
                let recv = p.d.poll(&mut p.cq_b).unwrap();
                assert_eq!(recv.status(), WcStatus::LocProtErr);
                (WcStatus::RemOpErr, recv.cqe.vendor_err.get())
            }
            Use::Write | Use::Read | Use::Atomic => {
                let event = events[0];
                assert_eq!(
                    (event.kind, event.number),
                    (EventType::QpAccessErr, p.b.qpn)
                );
                (WcStatus::RemAccessErr, event.syndrome)
            }
        };
        assert_eq!(done.status(), status, "{what:?}");
        // The error is reported once, and the requester is in ERR.
        let told = usize::from(!what.is_local());
        assert_eq!(events.len(), told, "{what:?}");
        assert_eq!(p.d.query_qp(p.a.qpn).attr.qp_state, QpState::Err.to_raw());
        Some(cause)
    }
}

/// Returns the syndrome of a use: that of a local or that of a remote key.
fn cause(what: Use, local: Syndrome, remote: Syndrome) -> Option<u32> {
    Some(if what.is_local() { local } else { remote }.to_raw().into())
}

/// Returns the largest length of one use of the region.
fn whole(what: Use) -> u32 {
    if what == Use::Atomic {
        8
    } else {
        LENGTH
    }
}

#[test]
fn each_use_needs_its_own_right_only() {
    for what in USES {
        let mut right = Scene::new(what.right());
        assert_eq!(
            right.attempt(what, IOVA, whole(what), KEY),
            None,
            "{what:?}"
        );
        if what.right() != 0 {
            let mut wrong = Scene::new(ALL_ACCESS & !what.right());
            let expected = cause(what, Syndrome::LkeyAccess, Syndrome::RkeyAccess);
            assert_eq!(
                wrong.attempt(what, IOVA, whole(what), KEY),
                expected,
                "{what:?}"
            );
        }
    }
}

#[test]
fn a_region_belongs_to_one_protection_domain() {
    for what in USES {
        let mut scene = Scene::bare(0);
        scene.create(KEY, 8, ALL_ACCESS, 0);
        let expected = cause(what, Syndrome::LkeyPd, Syndrome::RkeyPd);
        assert_eq!(
            scene.attempt(what, IOVA, whole(what), KEY),
            expected,
            "{what:?}"
        );
    }
}

#[test]
fn the_bounds_of_a_region_are_checked() {
    for what in USES {
        let all = whole(what);
        let last = IOVA + u64::from(LENGTH - all);
        for (addr, length, good) in [
            (IOVA, all, true),
            (last, all, true),
            (last + 1, all, false),
            (last + 8, all, false),
            (IOVA - 1, all, false),
            (IOVA - 8, all, false),
            (IOVA + u64::from(LENGTH), all, false),
            (IOVA + u64::from(LENGTH) + 8, all, false),
            (0, all, false),
            (u64::MAX - 7, all, false),
        ] {
            // The responder refuses an unaligned address before it looks at the key.
            if what == Use::Atomic && addr % 8 != 0 {
                continue;
            }
            let mut scene = Scene::new(ALL_ACCESS);
            let got = scene.attempt(what, addr, length, KEY);
            let expected = cause(what, Syndrome::LkeyBounds, Syndrome::RkeyBounds);
            let expected = expected.filter(|_| !good);
            assert_eq!(got, expected, "{what:?} {addr:#x}");
        }
    }
}

#[test]
fn a_use_of_no_bytes_needs_no_key() {
    for what in USES {
        if what != Use::Atomic {
            let mut scene = Scene::bare(0);
            assert_eq!(scene.attempt(what, 5, 0, 0xdead_0001), None, "{what:?}");
        }
    }
}

#[test]
fn a_key_is_its_index_and_its_tag() {
    for what in USES {
        let unknown = cause(what, Syndrome::LkeyUnknown, Syndrome::RkeyUnknown);
        let all = whole(what);
        for key in [
            KEY ^ 1,
            KEY ^ 0x80,
            KEY + 0x100,
            KEY - 0x100,
            0,
            u32::MAX,
            LOCAL_DMA_LKEY,
        ] {
            let mut scene = Scene::new(ALL_ACCESS);
            assert_eq!(
                scene.attempt(what, IOVA, all, key),
                unknown,
                "{what:?} {key:#x}"
            );
        }
        // The key is destroyed, and then created again with another tag or with the same one.
        let mut scene = Scene::new(ALL_ACCESS);
        scene.destroy();
        assert_eq!(scene.attempt(what, IOVA, all, KEY), unknown, "{what:?}");
        for tag in [0x40, 0] {
            let mut scene = Scene::new(ALL_ACCESS);
            scene.destroy();
            scene.create(KEY ^ tag, 7, ALL_ACCESS, 0);
            let expected = unknown.filter(|_| tag != 0);
            assert_eq!(
                scene.attempt(what, IOVA, all, KEY),
                expected,
                "{what:?} {tag}"
            );
        }
        // A key for fast registration without a registration.
        let mut scene = Scene::bare(0);
        scene.create(KEY, 7, ALL_ACCESS, mr_flags::FAST_REG);
        assert_eq!(scene.attempt(what, IOVA, all, KEY), unknown, "{what:?}");
    }
}

#[test]
fn privileged_queue_pairs_use_privileged_keys() {
    for what in USES {
        for flags in [0, QP_PRIVILEGED] {
            // A privileged region: peers and privileged queue pairs may use it.
            let mut scene = Scene::bare(flags);
            scene.create(KEY, 7, ALL_ACCESS, mr_flags::PRIVILEGED);
            let got = scene.attempt(what, IOVA, whole(what), KEY);
            let refused = cause(what, Syndrome::LkeyAccess, Syndrome::RkeyAccess);
            let expected = refused.filter(|_| flags == 0 && what.is_local());
            assert_eq!(got, expected, "{what:?} {flags}");
            // The key of all memory: only privileged queue pairs may use it, for local accesses.
            let mut scene = Scene::bare(flags);
            let at = scene.pages;
            let got = scene.attempt(what, at, whole(what), LOCAL_DMA_LKEY);
            let unknown = cause(what, Syndrome::LkeyUnknown, Syndrome::RkeyUnknown);
            let expected = unknown.filter(|_| flags == 0 || !what.is_local());
            assert_eq!(got, expected, "{what:?} {flags}");
        }
    }
}

#[test]
fn data_begin_at_the_offset_of_the_region() {
    for what in USES {
        let mut scene = Scene::new(ALL_ACCESS);
        let (pages, other) = (scene.pages, scene.other.0);
        let before = (scene.p.d.bytes(pages, 8192), scene.p.d.bytes(other, 4096));
        assert_eq!(scene.attempt(what, IOVA + 16, 8, KEY), None);
        let after = (scene.p.d.bytes(pages, 8192), scene.p.d.bytes(other, 4096));
        // Eight bytes are copied between the region and the other memory.
        let (at, mut expected) = (OFFSET as usize + 16, before.clone());
        let into = matches!(what, Use::Fetch | Use::Receive | Use::Write);
        if into {
            expected.0[at..at + 8].copy_from_slice(&before.1[..8]);
        } else {
            expected.1[..8].copy_from_slice(&before.0[at..at + 8]);
        }
        assert!(after == expected, "{what:?}");
    }
}
